/* Which keys a listing or a removal means: those with a prefix, or those that a POSIX extended regular
 * expression finds.
 *
 * An expression comes from outside and runs on the master's one I/O thread, so it is bounded three ways:
 * back references, which make matching exponential, are refused; so are repetition counts that multiply to a
 * large automaton; and a step visits fewer records.
 */
#include "service.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REGEX_BYTES_MAX 1024u
#define REPETITIONS_MAX 1000u
#define VISITS_PREFIX 20000u
#define VISITS_REGEX 2000u

struct ma_matcher {
    bool is_regex;
    size_t length;
    char pattern[MS_PATTERN_BYTES_MAX + 1];
    regex_t regex;
};

/* Whether an expression is one that we let the C library compile. */
static ms_status check_regex(const char *pattern, size_t length, char error[MA_SENTENCE_BYTES]) {
    if (length > REGEX_BYTES_MAX) {
        snprintf(error, MA_SENTENCE_BYTES,
                 "a regular expression has at most %u bytes, this one %zu", REGEX_BYTES_MAX,
                 length);
        return MS_BAD_REQUEST;
    }
    if (memchr(pattern, 0, length) != NULL) {
        snprintf(error, MA_SENTENCE_BYTES, "a regular expression holds no zero byte");
        return MS_BAD_REQUEST;
    }
    uint64_t repetitions = 1;
    for (size_t i = 0; i < length; i++) {
        if (pattern[i] == '\\') {
            i++;
            if (i < length && pattern[i] >= '1' && pattern[i] <= '9') {
                snprintf(error, MA_SENTENCE_BYTES, "back references such as \\%c are not supported",
                         pattern[i]);
                return MS_BAD_REQUEST;
            }
            continue;
        }
        if (pattern[i] != '{')
            continue;
        /* {n}, {n,} or {n,m}: the larger number copies what stands before it so many times. */
        uint64_t number = 0, largest = 1;
        for (i++; i < length && pattern[i] != '}'; i++) {
            if (pattern[i] == ',')
                number = 0;
            else if (pattern[i] >= '0' && pattern[i] <= '9' && number <= REPETITIONS_MAX)
                number = number * 10 + (uint64_t)(pattern[i] - '0');
            if (number > largest)
                largest = number;
        }
        repetitions *= largest;
        if (repetitions > REPETITIONS_MAX) {
            snprintf(error, MA_SENTENCE_BYTES,
                     "the repetition counts of a regular expression multiply to at most %u",
                     REPETITIONS_MAX);
            return MS_BAD_REQUEST;
        }
    }
    return MS_OK;
}

ms_status ma_matcher_open(const ms_text *pattern, bool is_regex, ma_matcher **out,
                          char error[MA_SENTENCE_BYTES]) {
    *out = NULL;
    ma_matcher *matcher = malloc(sizeof *matcher);
    if (matcher == NULL) {
        snprintf(error, MA_SENTENCE_BYTES, "the master has no memory for the pattern");
        return MS_NO_MEMORY;
    }
    matcher->is_regex = is_regex;
    matcher->length = pattern->length;
    memcpy(matcher->pattern, pattern->data, pattern->length);
    matcher->pattern[pattern->length] = '\0';
    if (is_regex) {
        ms_status status = check_regex(matcher->pattern, matcher->length, error);
        if (status == MS_OK) {
            int fault = regcomp(&matcher->regex, matcher->pattern, REG_EXTENDED | REG_NOSUB);
            if (fault != 0) {
                char reason[128];
                regerror(fault, &matcher->regex, reason, sizeof reason);
                snprintf(error, MA_SENTENCE_BYTES, "the regular expression '%.200s' is wrong: %s",
                         matcher->pattern, reason);
                status = fault == REG_ESPACE ? MS_NO_MEMORY : MS_BAD_REQUEST;
            }
        }
        if (status != MS_OK) {
            free(matcher);
            return status;
        }
    }
    *out = matcher;
    return MS_OK;
}

void ma_matcher_close(ma_matcher *matcher) {
    if (matcher != NULL && matcher->is_regex)
        regfree(&matcher->regex);
    free(matcher);
}

bool ma_matcher_matches(void *context, const uint8_t *key, size_t length) {
    const ma_matcher *matcher = context;
    if (!matcher->is_regex)
        return length >= matcher->length && memcmp(key, matcher->pattern, matcher->length) == 0;
    /* REG_STARTEND: a zero byte in a key is a byte like others.  The zero behind the copy is for what looks over
     * regexec's shoulder and does not know REG_STARTEND. */
    char copy[MS_KEY_BYTES_MAX + 1];
    memcpy(copy, key, length);
    copy[length] = '\0';
    regmatch_t range = {.rm_so = 0, .rm_eo = (regoff_t)length};
    return regexec(&matcher->regex, copy, 1, &range, REG_STARTEND) == 0;
}

uint32_t ma_matcher_visits_max(const ma_matcher *matcher) {
    return matcher->is_regex ? VISITS_REGEX : VISITS_PREFIX;
}

/* The parts of the master service that need no connection: answers kept for repeats, patterns. */
// sources: master/src/dedupe.c master/src/matching.c mooncake_store/protocol/src/*.c
// variants: plain address
#include "engine_kit.h"

#include "service.h"

/* dedupe.c answers calls too; those parts are tested over the wire. */
ms_status ma_fail(ma_call *call, ms_status status, const char *format, ...) {
    (void)call;
    (void)format;
    return status;
}
void ma_done(ma_call *call) { (void)call; }
ms_status ma_batch_join(ma_master *master, uint64_t name, te_peer peer, const ms_header *header) {
    (void)master;
    (void)name;
    (void)peer;
    (void)header;
    return MS_INTERNAL;
}

/* ---- answers kept for repeats ------------------------------------------------------------------ */

static uint64_t bytes_total;

static ma_number_state state_of(ma_dedupe *dedupe, uint64_t number, const ma_kept **kept) {
    return ma_dedupe_find(dedupe, number, MS_PUT_END, kept);
}

static void keep(ma_dedupe *dedupe, uint64_t number, const void *answer, size_t length) {
    CHECK_STATUS(ma_dedupe_reserve(dedupe, 4096), MS_OK);
    ma_dedupe_park(dedupe, number, MS_PUT_END, 99);
    CHECK_STATUS(ma_dedupe_answer(dedupe, number, MS_PUT_END, answer, length), MS_OK);
}

static void an_answer_is_kept_until_it_is_given_up(void) {
    ma_dedupe dedupe = {.bytes_total = &bytes_total};
    const ma_kept *kept = NULL;
    uint8_t long_answer[1000];
    fill_pattern(long_answer, sizeof long_answer, 0, 1);
    CHECK(state_of(&dedupe, 1, &kept) == MA_NUMBER_NEW);
    keep(&dedupe, 1, "short", 5);
    keep(&dedupe, 3, long_answer, sizeof long_answer);
    keep(&dedupe, 2, "late", 4); /* threads of a client overtake each other */
    CHECK(state_of(&dedupe, 1, &kept) == MA_NUMBER_ANSWERED && kept->answer_length == 5);
    CHECK(memcmp(ma_kept_answer(kept), "short", 5) == 0);
    CHECK(state_of(&dedupe, 3, &kept) == MA_NUMBER_ANSWERED);
    CHECK(memcmp(ma_kept_answer(kept), long_answer, sizeof long_answer) == 0);
    CHECK(dedupe.bytes == sizeof long_answer && bytes_total == dedupe.bytes);
    CHECK(ma_dedupe_find(&dedupe, 3, MS_REMOVE, &kept) == MA_NUMBER_OTHER);
    CHECK(state_of(&dedupe, 4, &kept) == MA_NUMBER_NEW);

    ma_dedupe_forget(&dedupe, 2);
    CHECK(state_of(&dedupe, 1, &kept) == MA_NUMBER_OLD);
    CHECK(state_of(&dedupe, 2, &kept) == MA_NUMBER_OLD);
    CHECK(state_of(&dedupe, 3, &kept) == MA_NUMBER_ANSWERED);
    ma_dedupe_forget(&dedupe, 1); /* an older claim changes nothing */
    CHECK(dedupe.done == 2);
    ma_dedupe_forget(&dedupe, 100);
    CHECK(dedupe.count == 0 && dedupe.bytes == 0);
    CHECK(state_of(&dedupe, 50, &kept) == MA_NUMBER_OLD);
    CHECK(state_of(&dedupe, 101, &kept) == MA_NUMBER_NEW);
    ma_dedupe_close(&dedupe);
}

static void a_request_under_way_is_found_by_its_batch(void) {
    ma_dedupe dedupe = {.bytes_total = &bytes_total};
    const ma_kept *kept = NULL;
    CHECK_STATUS(ma_dedupe_reserve(&dedupe, 10), MS_OK);
    ma_dedupe_park(&dedupe, 7, MS_PUT_END, 1234);
    CHECK(state_of(&dedupe, 7, &kept) == MA_NUMBER_PARKED && kept->parked == 1234);
    CHECK_STATUS(ma_dedupe_answer(&dedupe, 7, MS_PUT_END, "ok", 2), MS_OK);
    CHECK(state_of(&dedupe, 7, &kept) == MA_NUMBER_ANSWERED);
    CHECK_STATUS(ma_dedupe_answer(&dedupe, 8, MS_PUT_END, "ok", 2),
                 MS_OK); /* forgotten meanwhile */
    CHECK(dedupe.count == 1);
    ma_dedupe_close(&dedupe);
}

static void what_is_kept_is_bounded(void) {
    ma_dedupe dedupe = {.bytes_total = &bytes_total};
    for (uint64_t number = 1; number <= 100; number++) {
        CHECK_STATUS(ma_dedupe_reserve(&dedupe, 100), MS_OK);
        ma_dedupe_park(&dedupe, number, MS_PUT_END, 1);
    }
    CHECK_STATUS(ma_dedupe_reserve(&dedupe, 100), MS_LIMIT);
    ma_dedupe_forget(&dedupe, 1);
    CHECK_STATUS(ma_dedupe_reserve(&dedupe, 100), MS_OK);
    ma_dedupe_close(&dedupe);

    size_t length = MA_ANSWER_BYTES_KEPT_MAX + 1;
    uint8_t *huge = calloc(1, length);
    keep(&dedupe, 1, huge, length);
    CHECK_STATUS(ma_dedupe_reserve(&dedupe, 100), MS_LIMIT);
    ma_dedupe_forget(&dedupe, 1);
    CHECK_STATUS(ma_dedupe_reserve(&dedupe, 100), MS_OK);
    bytes_total = MA_ANSWER_BYTES_TOTAL_MAX + 1ull; /* other sessions keep so much */
    CHECK_STATUS(ma_dedupe_reserve(&dedupe, 100), MS_LIMIT);
    bytes_total = 0;
    keep(&dedupe, 2, huge, 100);
    CHECK(bytes_total == 100);
    ma_dedupe_close(&dedupe);
    CHECK(bytes_total == 0);
    free(huge);
}

/* ---- patterns ------------------------------------------------------------------------------------ */

static bool matches(const char *pattern, bool is_regex, const void *key, size_t length) {
    ma_matcher *matcher;
    char error[MA_SENTENCE_BYTES];
    ms_text text = {.data = pattern, .length = (uint32_t)strlen(pattern)};
    CHECK_STATUS(ma_matcher_open(&text, is_regex, &matcher, error), MS_OK);
    bool is_match = ma_matcher_matches(matcher, key, length);
    ma_matcher_close(matcher);
    return is_match;
}

static void keys_match_by_prefix_and_by_expression(void) {
    CHECK(matches("", false, "a", 1));
    CHECK(matches("ab", false, "abc", 3));
    CHECK(!matches("ab", false, "a", 1));
    CHECK(!matches("ab", false, "cab", 3));
    CHECK(matches("^a.c$", true, "abc", 3));
    CHECK(!matches("^a.c$", true, "abcd", 4));
    CHECK(matches("b", true, "abc", 3));
    CHECK(matches("(x|y)+$", true, "abxy", 4));
    CHECK(matches("a{2,3}", true, "baac", 4));
    CHECK(matches("\\{1}", true, "{1}", 3));
    /* Keys end where they end: there is no zero behind them, and one inside is a byte like others. */
    char key[3] = {'a', 'b', 'c'};
    CHECK(!matches("c", true, key, 2));
    CHECK(matches("b$", true, key, 2));
    CHECK(matches("c$", true, "a\0c", 3));
}

static void an_expression_that_costs_too_much_is_refused(void) {
    static const char *const refused[] = {
        "[",       "(",           "(a)\\1",          "a\\9",    "*{2", "a{999}{2}",
        "a{2000}", "(a{50}){50}", "a{1,4294967296}", "a{40000}"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ma_matcher *matcher = NULL;
        char error[MA_SENTENCE_BYTES] = "";
        ms_text text = {.data = refused[i], .length = (uint32_t)strlen(refused[i])};
        ms_status status = ma_matcher_open(&text, true, &matcher, error);
        if (status != MS_BAD_REQUEST)
            fprintf(stderr, "%s\n", refused[i]);
        CHECK_STATUS(status, MS_BAD_REQUEST);
        CHECK(error[0] != '\0' && matcher == NULL);
    }
    char zero[] = "a\0b", error[MA_SENTENCE_BYTES];
    ma_matcher *matcher;
    ms_text text = {.data = zero, .length = 3};
    CHECK_STATUS(ma_matcher_open(&text, true, &matcher, error), MS_BAD_REQUEST);
    CHECK_STATUS(ma_matcher_open(&text, false, &matcher, error), MS_OK);
    CHECK(ma_matcher_matches(matcher, (const uint8_t *)"a\0bc", 4));
    CHECK(ma_matcher_visits_max(matcher) > 0);
    ma_matcher_close(matcher);
}

int main(int argc, char **argv) {
    RUN(an_answer_is_kept_until_it_is_given_up);
    RUN(a_request_under_way_is_found_by_its_batch);
    RUN(what_is_kept_is_bounded);
    RUN(keys_match_by_prefix_and_by_expression);
    RUN(an_expression_that_costs_too_much_is_refused);
    return 0;
}

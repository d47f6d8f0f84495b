/* Numbered requests are executed at most once: a repeat gets the first answer.
 *
 * A client numbers its put_starts, put_ends, revokes and removes upwards, and says with each up to which
 * number it has all answers.  What is kept is therefore what is under way, a handful, in a small array
 * in order of arrival; a number above the highest seen is new without a search.  When a client never
 * says so the array fills up and further requests are refused: forgetting would execute twice.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

ma_number_state ma_dedupe_find(ma_dedupe *dedupe, uint64_t number, uint16_t method,
                               const ma_kept **kept) {
    if (number > dedupe->highest)
        return MA_NUMBER_NEW;
    if (number <= dedupe->done)
        return MA_NUMBER_OLD;
    for (uint32_t i = dedupe->count; i-- > 0;) {
        const ma_kept *candidate = &dedupe->kept[i];
        if (candidate->number != number)
            continue;
        if (candidate->method != method)
            return MA_NUMBER_OTHER;
        *kept = candidate;
        return candidate->parked != 0 ? MA_NUMBER_PARKED : MA_NUMBER_ANSWERED;
    }
    return MA_NUMBER_NEW; /* threads of a client may overtake each other */
}

static void release(ma_dedupe *dedupe, ma_kept *kept) {
    if (kept->answer == NULL)
        return;
    dedupe->bytes -= kept->answer_length;
    *dedupe->bytes_total -= kept->answer_length;
    free(kept->answer);
}

void ma_dedupe_forget(ma_dedupe *dedupe, uint64_t done) {
    if (done <= dedupe->done)
        return;
    dedupe->done = done;
    if (done > dedupe->highest)
        dedupe->highest = done;
    uint32_t left = 0;
    for (uint32_t i = 0; i < dedupe->count; i++) {
        if (dedupe->kept[i].number <= done)
            release(dedupe, &dedupe->kept[i]);
        else
            dedupe->kept[left++] = dedupe->kept[i];
    }
    dedupe->count = left;
}

ms_status ma_dedupe_reserve(ma_dedupe *dedupe, uint32_t kept_max) {
    if (dedupe->count >= kept_max || dedupe->bytes > MA_ANSWER_BYTES_KEPT_MAX ||
        *dedupe->bytes_total > MA_ANSWER_BYTES_TOTAL_MAX)
        return MS_LIMIT;
    if (dedupe->count < dedupe->capacity)
        return MS_OK;
    uint32_t capacity = dedupe->capacity == 0 ? 8 : dedupe->capacity * 2;
    ma_kept *kept = realloc(dedupe->kept, capacity * sizeof *kept);
    if (kept == NULL)
        return MS_NO_MEMORY;
    dedupe->kept = kept;
    dedupe->capacity = capacity;
    return MS_OK;
}

void ma_dedupe_park(ma_dedupe *dedupe, uint64_t number, uint16_t method, uint64_t parked) {
    dedupe->kept[dedupe->count++] = (ma_kept){.number = number, .method = method, .parked = parked};
    if (number > dedupe->highest)
        dedupe->highest = number;
}

ms_status ma_dedupe_answer(ma_dedupe *dedupe, uint64_t number, uint16_t method, const void *answer,
                           size_t length) {
    for (uint32_t i = dedupe->count; i-- > 0;) {
        ma_kept *kept = &dedupe->kept[i];
        if (kept->number != number || kept->method != method)
            continue;
        uint8_t *target = kept->small;
        if (length > sizeof kept->small) {
            /* Without memory the entry stays parked under a batch that is gone: a repeat is refused. */
            if ((target = malloc(length)) == NULL)
                return MS_NO_MEMORY;
            kept->answer = target;
            dedupe->bytes += length;
            *dedupe->bytes_total += length;
        }
        memcpy(target, answer, length);
        kept->answer_length = (uint32_t)length;
        kept->parked = 0;
        return MS_OK;
    }
    return MS_OK; /* the client has said meanwhile that it will not ask again */
}

void ma_dedupe_close(ma_dedupe *dedupe) {
    for (uint32_t i = 0; i < dedupe->count; i++)
        release(dedupe, &dedupe->kept[i]);
    free(dedupe->kept);
    *dedupe = (ma_dedupe){.bytes_total = dedupe->bytes_total};
}

bool ma_number_begin(ma_call *call, const ms_batch *head) {
    ma_dedupe *dedupe = &call->session->dedupe;
    ma_dedupe_forget(dedupe, head->number_done);
    if (head->number == 0)
        return true;
    const ma_kept *kept = NULL;
    unsigned long long number = head->number;
    ms_status status;
    switch (ma_dedupe_find(dedupe, head->number, call->request->header->method, &kept)) {
    case MA_NUMBER_NEW:
        status = ma_dedupe_reserve(dedupe, call->master->config.answers_kept_max);
        if (status == MS_OK)
            return true;
        ma_fail(call, status,
                status == MS_LIMIT
                    ? "%u answers wait to be forgotten: say with number_done which have arrived"
                    : "the master has no memory for another request (%u answers are kept)",
                (unsigned)dedupe->count);
        return false;
    case MA_NUMBER_ANSWERED:
        call->master->counts.requests_repeated++;
        ms_writer_bytes(&call->master->answer, ma_kept_answer(kept), kept->answer_length);
        ma_done(call);
        return false;
    case MA_NUMBER_PARKED:
        call->master->counts.requests_repeated++;
        status =
            ma_batch_join(call->master, kept->parked, call->request->peer, call->request->header);
        if (status == MS_OK)
            call->is_answered_later = true;
        else
            ma_fail(call, status,
                    "request %llu is under way, and its answer cannot be repeated again", number);
        return false;
    case MA_NUMBER_OLD:
        ma_fail(call, MS_BAD_REQUEST, "request %llu was answered, and you said so", number);
        return false;
    default:
        ma_fail(call, MS_BAD_REQUEST, "request number %llu was used for another method", number);
        return false;
    }
}

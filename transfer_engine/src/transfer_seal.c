/* Seals of objects whose bytes went in several parts, or another way. */
#include "te_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

#define BUSY_NS TE_NS_PER_S
#define BUSY_LOOK_NS TE_NS_PER_MS

static bool is_busy(const te_moving *written, size_t i) {
    return written->statuses[i] == MS_BUSY && written->writes[i].seal_length > 0;
}

/* Leaves those is_unsealed whose objects' bytes have all been answered; how many, and how long their seals are. */
static size_t find_due(const te_moving *written, size_t *bytes) {
    size_t sealed = 0;
    bool is_whole = true; /* every byte of the object so far is there */
    *bytes = 0;
    for (size_t i = 0; i < written->count; i++) {
        bool is_asked_again = written->is_unsealed[i] && is_busy(written, i);
        is_whole = is_whole && (written->statuses[i] == MS_OK || is_asked_again);
        bool is_due = written->is_unsealed[i] && is_whole;
        if (written->writes[i].seal_length > 0) { /* the object's last item */
            written->is_unsealed[i] = is_due;
            is_whole = true;
        }
        sealed += is_due;
        *bytes += is_due ? written->writes[i].seal_length : 0;
    }
    return sealed;
}

/* Seals that went with no part, or are asked for again: every byte of theirs has been answered.  Each is an item without
 * bytes, but of shared memory. */
static ms_status write_seals(const te_moving *written) {
    size_t bytes, offset = 0, kept = 0, sealed = find_due(written, &bytes);
    if (sealed == 0) {
        return MS_OK;
    }
    ms_write_item *items = malloc(sealed * sizeof *items);
    uint32_t *answers = malloc(sealed * sizeof *answers);
    size_t *origins = malloc(sealed * sizeof *origins);
    const void **sources = calloc(sealed, sizeof *sources);
    uint8_t *kept_seals = malloc(bytes);
    ms_status status = MS_NO_MEMORY;
    if (items != NULL && answers != NULL && origins != NULL && sources != NULL &&
        kept_seals != NULL) {
        sealed = 0;
        for (size_t i = 0; i < written->count; i++) {
            uint32_t length = written->writes[i].seal_length;
            if (written->is_unsealed[i]) {
                items[sealed] = written->writes[i];
                if (items[sealed].source == 0) { /* else it is copied again *(source_busy)* */
                    items[sealed].offset = items[sealed].length = 0;
                }
                answers[sealed] = MS_PENDING;
                origins[sealed++] = i;
                memcpy(kept_seals + kept, written->seals + offset, length);
                kept += length;
            }
            offset += length;
        }
        te_moving wanted = *written;
        wanted.count = sealed;
        wanted.writes = items;
        wanted.sources = sources;
        wanted.seals = kept_seals;
        wanted.statuses = answers;
        wanted.is_unsealed = NULL;
        status = te_transfer_run(&wanted);
        for (size_t i = 0; i < sealed && status == MS_OK; i++) {
            written->statuses[origins[i]] = answers[i];
        }
    }
    free(items);
    free(answers);
    free(origins);
    free(sources);
    free(kept_seals);
    return status;
}

static bool is_any_busy(const te_moving *written) {
    bool is_any = false;
    for (size_t i = 0; i < written->count; i++) {
        is_any |= is_busy(written, i);
    }
    return is_any;
}

/* A connection over which a part of an object went first, and which has ended since, may not have given back its use of
 * the extent yet: then the server says BUSY to the SEAL, for a moment *(again_busy)*. */
static ms_status ask_again(const te_moving *written, bool *is_unsealed) {
    int64_t busy_ns = written->engine->seal_busy_ns;
    int64_t until_ns = te_now_ns() + (busy_ns != 0 ? busy_ns : BUSY_NS);
    te_moving again = *written;
    ms_status status = MS_OK;
    size_t bytes;
    again.is_unsealed = is_unsealed;
    again.is_repeated = true;
    if (until_ns > written->deadline_ns) {
        until_ns = written->deadline_ns;
    }
    while (status == MS_OK && te_now_ns() < until_ns) {
        for (size_t i = 0; i < written->count; i++) {
            is_unsealed[i] = is_busy(written, i);
        }
        if (find_due(&again, &bytes) == 0) {
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = BUSY_LOOK_NS}, NULL);
        status = write_seals(&again);
    }
    return status;
}

void te_transfer_seal_busy(const te_moving *written) {
    if (!is_any_busy(written)) {
        return;
    }
    bool *is_unsealed = malloc(written->count * sizeof *is_unsealed);
    ms_status status = is_unsealed == NULL ? MS_OK : ask_again(written, is_unsealed);
    free(is_unsealed);
    /* Of these alone: what the others were answered holds, however asking again has ended. */
    for (size_t i = 0; i < written->count; i++) {
        if (is_busy(written, i)) { /* the first attempt may still be sealed */
            written->statuses[i] =
                status == MS_OK || status == MS_NO_MEMORY ? MS_UNAVAILABLE : (uint32_t)status;
        }
    }
}

/* Bytes and seals, with room to note which seals went with no part. */
ms_status te_transfer_write_all(te_moving *wanted) {
    bool few[16] = {false};
    wanted->is_unsealed = few;
    if (wanted->count > sizeof few / sizeof *few) {
        wanted->is_unsealed = calloc(wanted->count, sizeof *wanted->is_unsealed);
        if (wanted->is_unsealed == NULL) {
            te_channel_set_error(wanted->channel, "no memory for a request");
            return MS_NO_MEMORY;
        }
    }
    ms_status status = te_transfer_run(wanted);
    if (status == MS_OK) {
        status = write_seals(wanted);
    }
    if (wanted->is_unsealed != few) {
        free(wanted->is_unsealed);
    }
    wanted->is_unsealed = NULL;
    return status;
}

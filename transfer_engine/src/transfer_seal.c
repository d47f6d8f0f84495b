/* Seals of objects whose bytes went in several parts, or another way. */
#include "te_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

#define BUSY_NS TE_NS_PER_S
#define BUSY_LOOK_NS TE_NS_PER_MS

/* Seals that went with no part: every byte of theirs has been answered.  Each is an item without bytes. */
static ms_status write_seals(const te_moving *written) {
    size_t sealed = 0, bytes = 0, offset = 0, kept = 0;
    bool is_whole = true; /* every item of the object so far has been answered with OK */
    for (size_t i = 0; i < written->count; i++) {
        is_whole = is_whole && written->statuses[i] == MS_OK;
        bool is_due = written->is_unsealed[i] && is_whole;
        if (written->writes[i].seal_length > 0) { /* the object's last item */
            written->is_unsealed[i] = is_due;
            is_whole = true;
        }
        sealed += is_due;
        bytes += is_due ? written->writes[i].seal_length : 0;
    }
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
                items[sealed].source = 0;
                items[sealed].offset = items[sealed].length = items[sealed].source_offset = 0;
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
    bool is_busy = false;
    for (size_t i = 0; i < written->count; i++) {
        is_busy |= written->statuses[i] == MS_BUSY && written->writes[i].seal_length > 0;
    }
    return is_busy;
}

/* A connection over which a part of an object went first, and which has ended since, may not have given back its use of
 * the extent yet: then the server says BUSY to the SEAL, for a moment *(again_busy)*. */
ms_status te_transfer_seal_busy(const te_moving *written) {
    if (!is_any_busy(written)) {
        return MS_OK;
    }
    const int64_t until_ns = te_now_ns() + BUSY_NS;
    te_moving again = *written;
    ms_status status = MS_OK;
    again.is_unsealed = NULL;
    while (status == MS_OK && is_any_busy(written)) {
        int64_t now_ns = te_now_ns();
        if (now_ns >= until_ns || now_ns >= written->deadline_ns) {
            break;
        }
        if (again.is_unsealed == NULL) {
            again.is_unsealed = malloc(written->count * sizeof *again.is_unsealed);
        }
        if (again.is_unsealed == NULL) {
            return MS_NO_MEMORY;
        }
        for (size_t i = 0; i < written->count; i++) {
            again.is_unsealed[i] =
                written->statuses[i] == MS_BUSY && written->writes[i].seal_length > 0;
            if (again.is_unsealed[i]) {
                written->statuses[i] = MS_OK; /* its bytes are there */
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = BUSY_LOOK_NS}, NULL);
        status = write_seals(&again);
    }
    free(again.is_unsealed);
    return status;
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
    return status;
}

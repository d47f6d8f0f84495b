/* The table of segments whose memory peers READ and WRITE.
 *
 * A job of a link holds its segments, so that te_segment_remove can say when the memory is free.
 * Lookups happen once for a run of items of one segment; the table is small and sorted.
 */
#include "te_rdma.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

void te_segments_open(te_engine *engine) {
    pthread_mutex_init(&engine->segments_lock, NULL);
    pthread_cond_init(&engine->segments_changed, NULL);
}

static void segment_free(te_segment *segment) {
    te_rdma_range_close(segment->rdma);
    te_rdma_range_close(segment->rdma_words);
    free((void *)(uintptr_t)segment->config.payload_path);
    free((void *)(uintptr_t)segment->config.words_path);
    free(segment);
}

void te_segments_close(te_engine *engine) {
    for (uint32_t i = 0; i < engine->segment_count; i++) {
        segment_free(engine->segments[i]);
    }
    free(engine->segments);
    pthread_mutex_destroy(&engine->segments_lock);
    pthread_cond_destroy(&engine->segments_changed);
}

/* Registration with the RDMA NICs begins before anybody can ask for it. */
static ms_status reach_by_rdma(te_segment *segment) {
    te_rdma *rdma = segment->engine->rdma;
    const te_segment_config *config = &segment->config;
    bool is_served = segment->engine->config.io_threads > 0;
    if (config->device != NULL) {
        return te_rdma_range_open_device(rdma, config->address, config->length, config->device,
                                         is_served ? TE_RDMA_SERVED : TE_RDMA_OWN, &segment->rdma);
    }
    /* Whoever wants to be asked before each READ or WRITE is not asked by a NIC.  Words do instead: they are read behind
     * the bytes, and who may write is settled by the queue pair and the SEAL. */
    bool wants_to_be_asked = config->ops.read_begin != NULL || config->ops.write_begin != NULL;
    if (rdma == NULL || (wants_to_be_asked && config->words == NULL && !config->is_read_only)) {
        return MS_OK;
    }
    uint64_t ready = config->ready_bytes == 0 ? config->length : config->ready_bytes;
    segment->rdma = te_rdma_range_open(rdma, config->address, config->length, ready,
                                       config->is_read_only ? TE_RDMA_SERVED_READING
                                       : is_served          ? TE_RDMA_SERVED
                                                            : TE_RDMA_OWN);
    if (config->words != NULL) {
        uint64_t bytes = (config->length + MS_PAGE_SIZE - 1) / MS_PAGE_SIZE * sizeof(uint64_t);
        segment->rdma_words =
            te_rdma_range_open(rdma, config->words, bytes, bytes, TE_RDMA_SERVED_READING);
    }
    return MS_OK;
}

struct te_rdma_range *te_segment_rdma(te_engine *engine, uint32_t number) {
    if (engine->rdma == NULL) {
        return NULL;
    }
    te_segment *segment = te_segment_get(engine, number);
    if (segment == NULL) {
        return NULL;
    }
    te_rdma_range *range = segment->rdma;
    te_segment_put(segment);
    return range;
}

void te_segment_extend(te_engine *engine, uint32_t number, uint64_t ready_bytes) {
    if (engine->rdma == NULL) {
        return;
    }
    te_segment *segment = te_segment_get(engine, number);
    if (segment == NULL) {
        return;
    }
    if (segment->rdma != NULL) {
        te_rdma_range_extend(segment->rdma, ready_bytes);
    }
    te_segment_put(segment);
}

/* Where `number` is or belongs. */
static uint32_t find_place(const te_engine *engine, uint32_t number) {
    uint32_t low = 0, high = engine->segment_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (engine->segments[middle]->config.segment < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool is_at(const te_engine *engine, uint32_t place, uint32_t number) {
    return place < engine->segment_count && engine->segments[place]->config.segment == number;
}

static char *copy_path(const char *path, bool *failed) {
    if (path == NULL) {
        return NULL;
    }
    size_t bytes = strlen(path) + 1;
    char *copy = malloc(bytes);
    *failed = *failed || copy == NULL;
    return copy == NULL ? NULL : memcpy(copy, path, bytes);
}

ms_status te_segment_add(te_engine *engine, const te_segment_config *config) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK) {
        return status;
    }
    /* Lengths stay below 2^47, so that sums over a frame's items cannot overflow. */
    if (config->address == NULL || config->length == 0 || config->length >> 47 != 0) {
        return MS_BAD_REQUEST;
    }
    te_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL) {
        return MS_NO_MEMORY;
    }
    bool failed = false;
    segment->engine = engine;
    segment->config = *config;
    segment->config.payload_path = copy_path(config->payload_path, &failed);
    segment->config.words_path = copy_path(config->words_path, &failed);
    status = failed ? MS_NO_MEMORY : MS_OK;
    if (status == MS_OK) {
        status = reach_by_rdma(segment);
        segment->config.device = NULL; /* the caller's */
    }

    pthread_mutex_lock(&engine->segments_lock);
    uint32_t place = find_place(engine, config->segment);
    if (status == MS_OK && is_at(engine, place, config->segment)) {
        status = MS_EXISTS;
    }
    if (status == MS_OK && engine->segment_count == engine->segment_room) {
        uint32_t room = engine->segment_room == 0 ? 8 : engine->segment_room * 2;
        te_segment **grown = realloc(engine->segments, room * sizeof *grown);
        if (grown == NULL) {
            status = MS_NO_MEMORY;
        } else {
            engine->segments = grown;
            engine->segment_room = room;
        }
    }
    if (status == MS_OK) {
        memmove(&engine->segments[place + 1], &engine->segments[place],
                (engine->segment_count - place) * sizeof *engine->segments);
        engine->segments[place] = segment;
        engine->segment_count++;
    }
    pthread_mutex_unlock(&engine->segments_lock);
    if (status != MS_OK) {
        segment_free(segment);
    }
    return status;
}

te_segment *te_segment_get(te_engine *engine, uint32_t number) {
    te_segment *segment = NULL;
    pthread_mutex_lock(&engine->segments_lock);
    uint32_t place = find_place(engine, number);
    if (is_at(engine, place, number)) {
        segment = engine->segments[place];
        segment->users++;
    }
    pthread_mutex_unlock(&engine->segments_lock);
    return segment;
}

void te_segment_hold(te_segment *segment) {
    pthread_mutex_lock(&segment->engine->segments_lock);
    segment->users++;
    pthread_mutex_unlock(&segment->engine->segments_lock);
}

void te_segment_put(te_segment *segment) {
    te_engine *engine = segment->engine;
    pthread_mutex_lock(&engine->segments_lock);
    segment->users--;
    if (segment->users == 0 && segment->is_removed) {
        pthread_cond_broadcast(&engine->segments_changed);
    }
    pthread_mutex_unlock(&engine->segments_lock);
}

bool te_segment_is_removed(te_segment *segment) {
    pthread_mutex_lock(&segment->engine->segments_lock);
    bool is_removed = segment->is_removed;
    pthread_mutex_unlock(&segment->engine->segments_lock);
    return is_removed;
}

void te_segment_remove(te_engine *engine, uint32_t number) {
    if (te_engine_check(engine) == MS_FORKED) {
        return;
    }
    pthread_mutex_lock(&engine->segments_lock);
    uint32_t place = find_place(engine, number);
    if (!is_at(engine, place, number)) {
        pthread_mutex_unlock(&engine->segments_lock);
        return;
    }
    te_segment *segment = engine->segments[place];
    memmove(&engine->segments[place], &engine->segments[place + 1],
            (engine->segment_count - place - 1) * sizeof *engine->segments);
    engine->segment_count--;
    segment->is_removed = true;
    bool is_used = segment->users > 0;
    pthread_mutex_unlock(&engine->segments_lock);
    if (is_used) {
        te_io_sweep(engine); /* a peer that reads slowly must not hold us up */
    }
    pthread_mutex_lock(&engine->segments_lock);
    while (segment->users > 0) {
        pthread_cond_wait(&engine->segments_changed, &engine->segments_lock);
    }
    pthread_mutex_unlock(&engine->segments_lock);
    segment_free(segment);
}

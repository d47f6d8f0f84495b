/* The last events, for whoever follows the store: a ring of entries and a ring of the keys that they name. */
#include "md_internal.h"

#include <string.h>

#define KEY_BYTES_PER_EVENT 96u

bool md_events_open(md_core *core) {
    md_events_ring *ring = &core->events;
    ring->capacity = core->config.events_max;
    ring->key_bytes = (uint64_t)ring->capacity * KEY_BYTES_PER_EVENT + MS_KEY_BYTES_MAX;
    ring->first = ring->next = 1;
    if (ring->capacity == 0)
        return true;
    ring->entries = md_memory_map(ring->capacity * sizeof *ring->entries);
    ring->keys = md_memory_map(ring->key_bytes);
    return ring->entries != NULL && ring->keys != NULL;
}

void md_events_close(md_core *core) {
    md_memory_unmap(core->events.entries, core->events.capacity * sizeof *core->events.entries);
    md_memory_unmap(core->events.keys, core->events.key_bytes);
}

static md_event_entry *entry_at(md_events_ring *ring, uint64_t sequence) {
    return &ring->entries[sequence % ring->capacity];
}

/* A key does not wrap round: it begins again at the start of the ring. */
static uint64_t key_place(const md_events_ring *ring, uint32_t length) {
    uint64_t offset = ring->key_next % ring->key_bytes;
    return offset + length <= ring->key_bytes ? ring->key_next
                                              : ring->key_next + (ring->key_bytes - offset);
}

void md_event(md_core *core, enum ms_event_kind kind, uint64_t version, uint64_t size,
              uint32_t server_plus_1, const uint8_t *key, uint32_t key_length) {
    md_events_ring *ring = &core->events;
    MD_COUNT(core, events)++;
    if (ring->capacity == 0)
        return;
    uint64_t place = key_place(ring, key_length);
    /* The oldest go while their slot or their key's bytes are needed. */
    while (ring->first < ring->next &&
           (ring->next - ring->first == ring->capacity ||
            place + key_length > entry_at(ring, ring->first)->key + ring->key_bytes))
        ring->first++;
    if (key_length > 0)
        memcpy(ring->keys + place % ring->key_bytes, key, key_length);
    *entry_at(ring, ring->next) = (md_event_entry){.sequence = ring->next,
                                                   .version = version,
                                                   .size = size,
                                                   .at_ms = core->now.now_ms,
                                                   .key = place,
                                                   .kind = (uint32_t)kind,
                                                   .server = server_plus_1,
                                                   .key_length = key_length};
    ring->next++;
    ring->key_next = place + key_length;
}

ms_status md_events(md_core *core, md_now now, const ms_events *asked, ms_writer *out) {
    md_set_now(core, now);
    md_events_ring *ring = &core->events;
    uint64_t sequence = asked->sequence != 0 ? asked->sequence : ring->next;
    bool is_known = asked->sequence == 0 || asked->epoch == core->config.epoch;
    if (!is_known || sequence < ring->first || sequence > ring->next)
        return MS_GONE;
    uint64_t left = ring->next - sequence;
    ms_events_answer answer = {.epoch = core->config.epoch,
                               .count = left < asked->limit ? (uint32_t)left : asked->limit};
    answer.sequence_next = sequence + answer.count;
    MS_WRITER_STRUCT(out, &answer);
    for (uint32_t i = 0; i < answer.count; i++) {
        const md_event_entry *entry = entry_at(ring, sequence + i);
        int64_t age_ms = core->now.now_ms - entry->at_ms;
        ms_event event = {.sequence = entry->sequence,
                          .version = entry->version,
                          .size = entry->size,
                          .kind = entry->kind,
                          .server = entry->server,
                          .key_length = entry->key_length,
                          .age_ms = age_ms < UINT32_MAX ? (uint32_t)age_ms : UINT32_MAX};
        MS_WRITER_STRUCT(out, &event);
        ms_writer_padded(out, ring->keys + entry->key % ring->key_bytes, entry->key_length);
    }
    return out->status;
}

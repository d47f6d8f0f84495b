// sources: master/src/metadata/shard.c master/src/metadata/index.c master/src/metadata/memory.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 120
/* Records of one shard: they keep what was put into them through growth, removal and rebuilding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "md_internal.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OBJECTS 20000u

static md_shard shard;
static bool is_there[OBJECTS];

/* Some share their tag, so that probing goes past others' slots. */
static ms_hash hash_of(uint32_t i) {
    return (ms_hash){.low = md_mix(i / 3) << 8, .high = md_mix(i) << 32};
}

static size_t key_of(uint32_t i, char *key) {
    return (size_t)sprintf(key, "%*u", (int)(1 + i % 200), i);
}

/* Object i has i % 4 replicas more than one, and replica r has r + i % 3 + 1 extents. */
static uint32_t replica_count(uint32_t i) { return 1 + i % 4; }
static uint32_t extent_count(uint32_t i, uint32_t replica) {
    return i % 4 == 0 ? 1 : replica + i % 3 + 1;
}

static bool add(uint32_t i) {
    char key[256];
    size_t length = key_of(i, key);
    md_replica replicas[4];
    ms_extent extents[4][8];
    const ms_extent *lists[4];
    uint32_t total = 0;
    for (uint32_t r = 0; r < replica_count(i); r++) {
        replicas[r] = (md_replica){.server = (uint16_t)r,
                                   .segment = (uint16_t)(i % 7),
                                   .extent_count = (uint16_t)extent_count(i, r),
                                   .state = MD_REPLICA_THERE};
        for (uint32_t e = 0; e < replicas[r].extent_count; e++)
            extents[r][e] =
                (ms_extent){.page = i + r * 100000 + e, .page_count = i % 4 == 0 ? 1 : e + 1};
        lists[r] = extents[r];
        total += replicas[r].extent_count;
    }
    if (!md_shard_reserve(&shard, length, md_replica_bytes(replica_count(i), total)))
        return false;
    uint32_t record = md_shard_add(&shard, hash_of(i), (const uint8_t *)key, length);
    md_record *at = md_record_at(&shard, record);
    at->state = MD_RECORD_COMPLETE;
    at->version = i + 1;
    at->size = 100;
    md_record_set_replicas(&shard, at, replica_count(i), replicas, lists);
    if (i % 5 == 0)
        md_record_need_extra(&shard, record)->group = i;
    is_there[i] = true;
    return true;
}

static void check(uint32_t i) {
    char key[256];
    size_t length = key_of(i, key);
    uint32_t record = md_index_find(&shard, hash_of(i), MD_RECORD_COMPLETE);
    EXPECT((record != 0) == is_there[i]);
    EXPECT(md_index_find(&shard, hash_of(i), MD_RECORD_WRITING) == 0);
    if (record == 0)
        return;
    md_record *at = md_record_at(&shard, record);
    EXPECT(at->version == i + 1 && at->key_length == length);
    EXPECT(memcmp(md_record_key(&shard, at), key, length) == 0);
    EXPECT((md_record_extra(&shard, at) != NULL) == (i % 5 == 0));
    if (i % 5 == 0)
        EXPECT(md_record_extra(&shard, at)->group == i);
    md_replica_set set;
    md_record_replicas(&shard, at, &set);
    EXPECT(set.count == replica_count(i));
    for (uint32_t r = 0; r < set.count; r++) {
        EXPECT(set.replicas[r].server == r && set.replicas[r].segment == i % 7);
        EXPECT(set.replicas[r].extent_count == extent_count(i, r));
        for (uint32_t e = 0; e < set.replicas[r].extent_count; e++)
            EXPECT(set.extents[r][e].page == i + r * 100000 + e);
    }
}

static void check_all(uint32_t step) {
    for (uint32_t i = 0; i < OBJECTS; i += step)
        check(i);
}

static void drop(uint32_t i) {
    md_shard_remove(&shard, md_index_find(&shard, hash_of(i), MD_RECORD_COMPLETE));
    is_there[i] = false;
}

static size_t resident_pages(const void *memory, size_t bytes) {
    size_t pages = (bytes + 4095) / 4096, count = 0;
    unsigned char state[1024];
    if (memory == NULL)
        return 0;
    EXPECT(pages <= sizeof state && mincore((void *)(uintptr_t)memory, bytes, state) == 0);
    for (size_t i = 0; i < pages; i++)
        count += state[i] & 1;
    return count;
}

static void keeps_what_is_put_in(void) {
    for (uint32_t i = 0; i < OBJECTS; i++)
        EXPECT(add(i));
    check_all(1);
    /* In an order that is neither theirs nor its reverse. */
    uint32_t left = OBJECTS;
    for (uint32_t n = 0; n < OBJECTS; n++) {
        uint32_t i = (uint32_t)((uint64_t)n * 7919 % OBJECTS);
        if (i % 10 == 3)
            continue;
        drop(i);
        left--;
        if (n % 1000 == 0)
            check_all(37);
    }
    check_all(1);
    EXPECT(shard.record_count == left);
    /* What is left lies in arrays of its size. */
    EXPECT(shard.record_capacity <= left * 3 && shard.slot_count <= left * 4 &&
           shard.generation > 0);
    EXPECT(shard.arena_waste <= shard.arena_used / 2 + 16384);
    for (uint32_t i = 0; i < OBJECTS; i++)
        if (!is_there[i])
            EXPECT(add(i));
    check_all(1);
    for (uint32_t i = 0; i < OBJECTS; i++)
        drop(i);
    /* Address space stays for the next object; memory hardly any. */
    EXPECT(shard.record_count == 0 && shard.record_fresh == 0 && shard.arena_used == 0);
    EXPECT(resident_pages(shard.records, shard.record_capacity * sizeof(md_record)) <= 2 &&
           resident_pages(shard.arena, shard.arena_capacity) <= 4 &&
           resident_pages(shard.extras, shard.extra_capacity * sizeof(md_extra)) <= 2 &&
           shard.slot_count * sizeof(md_slot) <= 8192);
    check_all(1);
    md_shard_close(&shard);
    EXPECT(shard.records == NULL && shard.slots == NULL && shard.arena == NULL &&
           shard.extras == NULL);
}

/* Replicas that change again and again leave their old places in the arena; a rebuild takes these back. */
static void replaced_replicas_are_taken_back(void) {
    for (uint32_t i = 1; i <= 200; i++)
        EXPECT(add(i));
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t i = 1 + round % 200;
        if (is_there[i])
            drop(i);
        EXPECT(add(i));
    }
    EXPECT(shard.arena_capacity < 1u << 20);
    check_all(1);
    md_shard_close(&shard);
    memset(is_there, 0, sizeof is_there);
}

/* A few objects that come and go: the arena is put in order before it has touched a second page. */
static void few_objects_keep_to_a_page(void) {
    uint32_t used_max = 0;
    for (uint32_t i = 0; i < OBJECTS; i++) {
        uint32_t last =
            i % 3 == 0 ? 0 : 3; /* now and then only one is left, and it is an old one */
        if (i > last && is_there[i - last - 1])
            drop(i - last - 1);
        EXPECT(add(i));
        if (shard.arena_used > used_max)
            used_max = shard.arena_used;
        for (uint32_t n = i > 6 ? i - 6 : 0; n <= i; n++)
            check(n);
    }
    EXPECT(shard.generation == 0); /* not by a rebuild */
    EXPECT(used_max > 2048 && used_max <= 4096);
    md_shard_close(&shard);
    memset(is_there, 0, sizeof is_there);
}

/* As many objects leave as come: the arrays stay where they are, and no page is asked for again. */
static void objects_that_come_and_go_keep_their_pages(void) {
    const uint32_t kept = 100;
    for (uint32_t i = 0; i < kept; i++)
        EXPECT(add(i));
    const uint8_t *arena = shard.arena;
    const md_record *records = shard.records;
    const uint32_t generation = shard.generation;
    for (uint32_t i = kept; i < OBJECTS; i++) {
        drop(i - kept);
        EXPECT(add(i));
        if (i % 500 == 0)
            check_all(1);
    }
    EXPECT(shard.arena == arena && shard.records == records && shard.generation == generation);
    EXPECT(resident_pages(shard.arena, shard.arena_capacity) <= 17);
    EXPECT(resident_pages(shard.arena, shard.arena_capacity) > 4);
    /* Few are left, and so are few pages; none is left, and hardly a page. */
    for (uint32_t i = OBJECTS - kept; i < OBJECTS - 2; i++)
        drop(i);
    check_all(1);
    EXPECT(shard.record_count == 2 && resident_pages(shard.arena, shard.arena_capacity) <= 4);
    drop(OBJECTS - 2);
    drop(OBJECTS - 1);
    EXPECT(resident_pages(shard.arena, shard.arena_capacity) <= 2);
    md_shard_close(&shard);
    memset(is_there, 0, sizeof is_there);
}

/* Whichever call for memory fails, no record is lost. */
static void without_memory_nothing_is_lost(void) {
    for (uint64_t after = 1; after < 60; after++) {
        md_memory_fail_after(after);
        for (uint32_t i = 0; i < 3000; i++)
            if (!add(i))
                EXPECT(add(i));
        for (uint32_t i = 0; i < 3000; i += 2)
            drop(i);
        for (uint32_t i = 1; i < 3000; i += 4)
            drop(i);
        md_memory_fail_after(0);
        check_all(1);
        for (uint32_t i = 0; i < 3000; i++)
            if (is_there[i])
                drop(i);
        EXPECT(shard.record_count == 0);
        md_shard_close(&shard); /* so that the next round asks for all of it again */
    }
}

int main(void) {
    few_objects_keep_to_a_page();
    objects_that_come_and_go_keep_their_pages();
    keeps_what_is_put_in();
    replaced_replicas_are_taken_back();
    without_memory_nothing_is_lost();
    return 0;
}

/* The prefix index: an open-addressing table of blocks, each with the bits of its holders.
 *
 * An entry is the 16 bytes of a key and one bit an instance and tier, and lies in the table itself, so that a look-up
 * is one miss of the processor's cache.  Keys are hashes already: their bits choose the slot.  Removal shifts what
 * follows back, which needs no tombstones: a table that is always full stays as fast as a new one.
 *
 * Memory is bounded: when blocks_max blocks are known, a new one takes the place of one that was neither stored nor
 * matched since the clock's hand came by.  To forget a block that somebody holds costs a hit, never a wrong answer.
 *
 * One thread at a time; whoever owns the index holds its lock.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cd_index.h"

#define INSTANCES_MAX 1024
#define WORDS_MAX (INSTANCES_MAX / 64)
/* Slots are 5/4 of the blocks: linear probing finds a key after 3 slots on average, most on the same cache line. */
#define SLOTS_OF(blocks) ((blocks) + (blocks) / 4 + 8)
#define AHEAD 12 /* keys whose slots are fetched while earlier ones are compared */
#define GROUP 8  /* slots that the hand passes one after the other */

struct cd_index {
    uint64_t slots, blocks, blocks_max, forgotten;
    uint64_t hand;         /* of the clock: the slot that it is at */
    uint64_t groups, leap; /* of slots; how many of them the hand goes on after one */
    uint32_t instances, tiers, words, stride; /* words of one tier's bits; of an entry */
    uint64_t *table;                          /* entry: low, high, then words of each tier */
    uint8_t *state; /* of a slot, behind the table: EMPTY, or HELD with SEEN */
    size_t mapped_bytes;
};

enum { EMPTY = 0, HELD = 1, SEEN = 2 };

size_t cd_index_bytes_per_block(uint32_t instances, uint32_t tiers) {
    size_t words = 2 + (size_t)tiers * ((instances + 63) / 64);
    return (words * 8 + 1) * 5 / 4 + 1;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

cd_index *cd_index_open(uint32_t instances, uint32_t tiers, uint64_t blocks_max) {
    if (instances < 1 || instances > INSTANCES_MAX || tiers < 1 || tiers > CD_TIERS ||
        blocks_max < 1 || blocks_max > UINT64_C(1) << 32)
        return NULL;
    cd_index *index = calloc(1, sizeof *index);
    if (index == NULL)
        return NULL;
    index->instances = instances;
    index->tiers = tiers;
    index->words = (instances + 63) / 64;
    index->stride = 2 + tiers * index->words;
    index->blocks_max = blocks_max;
    index->slots = SLOTS_OF(blocks_max);
    index->groups = (index->slots + GROUP - 1) / GROUP;
    index->leap = (uint64_t)((double)index->groups * 0.618) + 1; /* the golden ratio */
    while (common_divisor(index->leap, index->groups) != 1)
        index->leap++;
    /* Huge pages where the system gives them: a look-up then seldom misses the TLB too, which was half of its time. */
    size_t table_bytes = index->slots * index->stride * sizeof *index->table;
    index->mapped_bytes = table_bytes + index->slots;
    void *memory =
        mmap(NULL, index->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(index);
        return NULL;
    }
    (void)madvise(memory, index->mapped_bytes, MADV_HUGEPAGE);
    index->table = memory;
    index->state = (uint8_t *)memory + table_bytes;
    return index;
}

void cd_index_close(cd_index *index) {
    if (index == NULL)
        return;
    munmap(index->table, index->mapped_bytes);
    free(index);
}

uint64_t cd_index_blocks(const cd_index *index) { return index->blocks; }
uint64_t cd_index_forgotten(const cd_index *index) { return index->forgotten; }

static uint64_t *entry_at(const cd_index *index, uint64_t slot) {
    return index->table + slot * index->stride;
}

static uint64_t home_of(const cd_index *index, cd_key key) {
    /* Mixed, because small numbers may be used as keys too; then scaled: slots are no power of two. */
    uint64_t mixed =
        (key.low ^ (key.high * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
    mixed ^= mixed >> 32;
    mixed *= UINT64_C(0xD6E8FEB86659FD93);
    return (uint64_t)(((unsigned __int128)mixed * index->slots) >> 64);
}

static uint64_t next_slot(const cd_index *index, uint64_t slot) {
    return slot + 1 == index->slots ? 0 : slot + 1;
}

/* The slot of a key, or the empty one in which it would lie. */
static uint64_t find(const cd_index *index, cd_key key) {
    uint64_t slot = home_of(index, key);
    while (index->state[slot] != EMPTY) {
        const uint64_t *entry = entry_at(index, slot);
        if (entry[0] == key.low && entry[1] == key.high)
            break;
        slot = next_slot(index, slot);
    }
    return slot;
}

/* Empties a slot and closes the gap: what could not lie at its home because of it moves up. */
static void take_out(cd_index *index, uint64_t hole) {
    uint64_t slot = hole;
    for (;;) {
        slot = next_slot(index, slot);
        if (index->state[slot] == EMPTY)
            break;
        const uint64_t *entry = entry_at(index, slot);
        uint64_t home = home_of(index, (cd_key){entry[0], entry[1]});
        /* May stay if its home lies behind the hole, going round. */
        bool may_stay = hole <= slot ? hole < home && home <= slot : hole < home || home <= slot;
        if (may_stay)
            continue;
        memcpy(entry_at(index, hole), entry, index->stride * sizeof *entry);
        index->state[hole] = index->state[slot];
        hole = slot;
    }
    index->state[hole] = EMPTY;
    index->blocks--;
}

/* Moves the clock's hand: through a few slots, then to others far away, and to all before it comes back.  In the order
 * of the table it would leave emptiness behind and come to where a look-up goes through thousands of slots: blocks
 * come in everywhere alike, so they have to leave everywhere alike. */
static void move_hand(cd_index *index) {
    uint64_t group = index->hand / GROUP;
    index->hand++;
    if (index->hand % GROUP == 0 || index->hand == index->slots)
        index->hand = (group + index->leap) % index->groups * GROUP;
}

static void forget_one(cd_index *index) {
    for (; index->state[index->hand] != HELD; move_hand(index))
        if (index->state[index->hand] & SEEN)
            index->state[index->hand] = HELD;
    take_out(index, index->hand);
    move_hand(index);
    index->forgotten++;
}

static void store(cd_index *index, uint32_t instance, uint32_t tier, cd_key key) {
    uint64_t slot = find(index, key);
    uint64_t *entry = entry_at(index, slot);
    if (index->state[slot] == EMPTY) {
        if (index->blocks == index->blocks_max) {
            forget_one(index);
            slot = find(index, key); /* taking out may have moved the free slot */
            entry = entry_at(index, slot);
        }
        memset(entry, 0, index->stride * sizeof *entry);
        entry[0] = key.low;
        entry[1] = key.high;
        index->blocks++;
    }
    index->state[slot] = HELD | SEEN;
    entry[2 + tier * index->words + instance / 64] |= UINT64_C(1) << (instance % 64);
}

static bool has_holder(const cd_index *index, const uint64_t *entry) {
    uint64_t any = 0;
    for (uint32_t i = 2; i < index->stride; i++)
        any |= entry[i];
    return any != 0;
}

static void drop(cd_index *index, uint32_t instance, uint32_t tier, cd_key key) {
    uint64_t slot = find(index, key);
    if (index->state[slot] == EMPTY)
        return; /* never heard of, or forgotten */
    uint64_t *entry = entry_at(index, slot);
    entry[2 + tier * index->words + instance / 64] &= ~(UINT64_C(1) << (instance % 64));
    if (!has_holder(index, entry))
        take_out(index, slot);
}

static void fetch_ahead(const cd_index *index, cd_key key) {
    uint64_t slot = home_of(index, key);
    __builtin_prefetch(&index->state[slot]);
    __builtin_prefetch(entry_at(index, slot));
}

size_t cd_index_apply(cd_index *index, const cd_event *events, size_t count) {
    size_t applied = 0;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            fetch_ahead(index, events[i + AHEAD].key);
        const cd_event *event = &events[i];
        if (event->instance >= index->instances || event->tier >= index->tiers ||
            event->kind > CD_REMOVED)
            continue;
        if (event->kind == CD_STORED)
            store(index, event->instance, event->tier, event->key);
        else
            drop(index, event->instance, event->tier, event->key);
        applied++;
    }
    return applied;
}

void cd_index_store(cd_index *index, uint32_t instance, uint32_t tier, const cd_key *keys,
                    size_t count) {
    if (instance >= index->instances || tier >= index->tiers)
        return;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            fetch_ahead(index, keys[i + AHEAD]);
        store(index, instance, tier, keys[i]);
    }
}

void cd_index_remove(cd_index *index, uint32_t instance, uint32_t tier, const cd_key *keys,
                     size_t count) {
    if (instance >= index->instances || tier >= index->tiers)
        return;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            fetch_ahead(index, keys[i + AHEAD]);
        drop(index, instance, tier, keys[i]);
    }
}

static void clear_tiers(cd_index *index, uint32_t instance, uint32_t first, uint32_t end) {
    uint64_t mask = ~(UINT64_C(1) << (instance % 64));
    for (uint64_t slot = 0; slot < index->slots; slot++) {
        /* What moves up into this slot is looked at too.  At the end of the table that may be an entry from its
         * beginning, which has been looked at: once more does no harm. */
        while (index->state[slot] != EMPTY) {
            uint64_t *entry = entry_at(index, slot);
            for (uint32_t tier = first; tier < end; tier++)
                entry[2 + tier * index->words + instance / 64] &= mask;
            if (has_holder(index, entry))
                break;
            take_out(index, slot);
        }
    }
}

void cd_index_clear(cd_index *index, uint32_t instance) {
    if (instance < index->instances)
        clear_tiers(index, instance, 0, index->tiers);
}

void cd_index_clear_tier(cd_index *index, uint32_t instance, uint32_t tier) {
    if (instance < index->instances && tier < index->tiers)
        clear_tiers(index, instance, tier, tier + 1);
}

void cd_index_copy(cd_index *index, uint32_t source, uint32_t target, uint32_t tier) {
    if (source >= index->instances || target >= index->instances || tier >= index->tiers)
        return;
    for (uint64_t slot = 0; slot < index->slots; slot++) {
        if (index->state[slot] == EMPTY)
            continue;
        uint64_t *bits = entry_at(index, slot) + 2 + tier * index->words;
        if (bits[source / 64] >> (source % 64) & 1)
            bits[target / 64] |= UINT64_C(1) << (target % 64);
    }
}

uint64_t cd_index_dump(const cd_index *index, uint32_t instance, uint32_t tier, uint64_t *cursor,
                       uint64_t slots, cd_key *keys) {
    uint64_t count = 0;
    if (instance >= index->instances || tier >= index->tiers)
        return 0;
    for (; slots > 0 && *cursor < index->slots; slots--, (*cursor)++) {
        if (index->state[*cursor] == EMPTY)
            continue;
        const uint64_t *entry = entry_at(index, *cursor);
        if (entry[2 + tier * index->words + instance / 64] >> (instance % 64) & 1)
            keys[count++] = (cd_key){.low = entry[0], .high = entry[1]};
    }
    return count;
}

void cd_index_match(cd_index *index, const cd_key *keys, size_t count, cd_match *matches) {
    uint64_t alive[CD_TIERS][WORDS_MAX];
    uint32_t words = index->words, tiers = index->tiers;
    memset(matches, 0, index->instances * sizeof *matches);
    for (uint32_t word = 0; word < words; word++)
        for (uint32_t tier = 0; tier < tiers; tier++)
            alive[tier][word] = ~UINT64_C(0);
    if (index->instances % 64 != 0)
        for (uint32_t tier = 0; tier < tiers; tier++)
            alive[tier][words - 1] = (UINT64_C(1) << (index->instances % 64)) - 1;
    for (size_t i = 0; i < count && i < AHEAD; i++)
        fetch_ahead(index, keys[i]);
    size_t length = 0;
    for (; length < count; length++) {
        if (length + AHEAD < count)
            fetch_ahead(index, keys[length + AHEAD]);
        uint64_t slot = find(index, keys[length]);
        if (index->state[slot] == EMPTY)
            break;
        index->state[slot] = HELD | SEEN;
        const uint64_t *bits = entry_at(index, slot) + 2;
        uint64_t anybody = 0;
        for (uint32_t word = 0; word < words; word++) {
            uint64_t held = 0;
            for (uint32_t tier = 0; tier < tiers; tier++) {
                held |= bits[tier * words + word]; /* in this tier or a nearer one */
                uint64_t ended = alive[tier][word] & ~held;
                alive[tier][word] &= held;
                for (; ended != 0; ended &= ended - 1)
                    matches[word * 64 + (uint32_t)__builtin_ctzll(ended)].blocks[tier] =
                        (uint32_t)length;
            }
            anybody |= alive[tiers - 1][word];
        }
        if (anybody == 0)
            break;
    }
    for (uint32_t word = 0; word < words; word++)
        for (uint32_t tier = 0; tier < tiers; tier++)
            for (uint64_t left = alive[tier][word]; left != 0; left &= left - 1)
                matches[word * 64 + (uint32_t)__builtin_ctzll(left)].blocks[tier] =
                    (uint32_t)length;
    for (uint32_t tier = tiers; tier < CD_TIERS; tier++)
        for (uint32_t i = 0; i < index->instances; i++)
            matches[i].blocks[tier] = matches[i].blocks[tiers - 1];
}

uint32_t cd_index_holders(const cd_index *index, cd_key key, uint64_t *words) {
    uint32_t count = 0;
    memset(words, 0, index->words * sizeof *words);
    uint64_t slot = find(index, key);
    if (index->state[slot] == EMPTY)
        return 0;
    const uint64_t *bits = entry_at(index, slot) + 2;
    for (uint32_t word = 0; word < index->words; word++) {
        for (uint32_t tier = 0; tier < index->tiers; tier++)
            words[word] |= bits[tier * index->words + word];
        count += (uint32_t)__builtin_popcountll(words[word]);
    }
    return count;
}

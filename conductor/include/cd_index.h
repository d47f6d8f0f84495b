/* Which instance holds which block: one index for all of them, with its tiers told apart. */
#ifndef CD_INDEX_H
#define CD_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* begin cdef */
enum { CD_DEVICE = 0, CD_DRAM = 1, CD_SSD = 2, CD_TIERS = 3 };
enum { CD_STORED = 0, CD_REMOVED = 1 };

/* The key of a block names it and all before it: 16 bytes of its hash. */
typedef struct cd_key {
    uint64_t low, high;
} cd_key;

typedef struct cd_event {
    cd_key key;
    uint32_t instance;
    uint8_t kind; /* CD_STORED, CD_REMOVED */
    uint8_t tier;
    uint16_t reserved;
} cd_event;

/* Of one instance, in blocks from the first on: held on the device, held on it or in DRAM, held at all. */
typedef struct cd_match {
    uint32_t blocks[3];
} cd_match;

typedef struct cd_index cd_index;

/* Memory for blocks_max blocks is taken at once and never more: cd_index_bytes_per_block of them each.  NULL: no
 * memory, or a number that cannot be (1 to 1024 instances, 1 to 3 tiers, 1 to 2^32 blocks). */
cd_index *cd_index_open(uint32_t instances, uint32_t tiers, uint64_t blocks_max);
void cd_index_close(cd_index *index);

size_t cd_index_bytes_per_block(uint32_t instances, uint32_t tiers);
uint64_t cd_index_blocks(const cd_index *index);
/* Blocks that were forgotten because blocks_max others are known: the longest not seen, about (a clock). */
uint64_t cd_index_forgotten(const cd_index *index);

/* Applies events in order; how many made sense: the others name no instance or no tier of this index. */
size_t cd_index_apply(cd_index *index, const cd_event *events, size_t count);
/* The same change to many blocks of one instance. */
void cd_index_store(cd_index *index, uint32_t instance, uint32_t tier, const cd_key *keys,
                    size_t count);
void cd_index_remove(cd_index *index, uint32_t instance, uint32_t tier, const cd_key *keys,
                     size_t count);
/* Forgets all that an instance holds; a pass over the table. */
void cd_index_clear(cd_index *index, uint32_t instance);
/* The same for one tier. */
void cd_index_clear_tier(cd_index *index, uint32_t instance, uint32_t tier);
/* What `source` holds in a tier, `target` holds there too from now on; a pass over the table. */
void cd_index_copy(cd_index *index, uint32_t source, uint32_t target, uint32_t tier);
/* What an instance holds in a tier, in steps: looks at `slots` places of the table from *cursor on (0 at first), of
 * which `keys` has room for as many; how many keys there were.  *cursor stays where it is: that was all.  A change
 * between two steps may move a key, so that it is seen twice or not at all: replay what happened since the first step. */
uint64_t cd_index_dump(const cd_index *index, uint32_t instance, uint32_t tier, uint64_t *cursor,
                       uint64_t slots, cd_key *keys);

/* The longest prefix that each instance holds: matches has one entry an instance.  A block that is missing ends the
 * match, whatever comes after it. */
void cd_index_match(cd_index *index, const cd_key *keys, size_t count, cd_match *matches);
/* The instances that hold a block in any tier, as (instances + 63) / 64 words; how many. */
uint32_t cd_index_holders(const cd_index *index, cd_key key, uint64_t *words);
/* end cdef */

#endif

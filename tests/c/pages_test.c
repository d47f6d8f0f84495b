// sources: master/src/metadata/memory.c mooncake_store/protocol/src/*.c
// variants: plain address
/* Pages of the metadata core: whoever gets a piece that another has given back finds zeros in it, and a piece
 * that grows or shrinks keeps its bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "md_memory.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static bool is_all(const uint8_t *memory, size_t bytes, uint8_t value) {
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != value)
            return false;
    return true;
}

static const size_t sizes[] = {1,     100,   4095,  4096,  4097,  9000,
                               33000, 36864, 40961, 65536, 65537, 300000};
#define SIZES (sizeof sizes / sizeof *sizes)

static void what_was_given_back_comes_back_as_zeros(void) {
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SIZES; i++) {
            uint8_t *pieces[40];
            for (size_t j = 0; j < 40; j++) {
                pieces[j] = md_memory_map(sizes[i]);
                CHECK(pieces[j] != NULL && is_all(pieces[j], sizes[i], 0));
                memset(pieces[j], 0xA5, sizes[i]);
            }
            for (size_t j = 0; j < 40; j++)
                md_memory_unmap(pieces[j], sizes[i]);
        }
}

/* Over the boundaries of a page and of a piece's size, up and down, into pieces that were dirty. */
static void what_grows_is_zero_where_it_is_new(void) {
    what_was_given_back_comes_back_as_zeros();
    for (size_t from = 0; from < SIZES; from++)
        for (size_t to = 0; to < SIZES; to++) {
            uint8_t *memory = md_memory_map(sizes[from]);
            CHECK(memory != NULL);
            memset(memory, 0x3C, sizes[from]);
            memory = md_memory_remap(memory, sizes[from], sizes[to]);
            CHECK(memory != NULL);
            size_t kept = sizes[from] < sizes[to] ? sizes[from] : sizes[to];
            CHECK(is_all(memory, kept, 0x3C));
            CHECK(is_all(memory + kept, sizes[to] - kept, 0));
            memset(memory, 0x77, sizes[to]);
            md_memory_unmap(memory, sizes[to]);
        }
}

/* Smaller, then larger again within the same pages: what was cut off must not come back. */
static void what_was_cut_off_is_gone(void) {
    uint8_t *memory = md_memory_map(4000);
    CHECK(memory != NULL);
    memset(memory, 0x11, 4000);
    memory = md_memory_remap(memory, 4000, 10);
    CHECK(memory != NULL);
    memory = md_memory_remap(memory, 10, 4000);
    CHECK(memory != NULL && is_all(memory, 10, 0x11) && is_all(memory + 10, 3990, 0));
    md_memory_unmap(memory, 4000);
}

int main(void) {
    what_was_given_back_comes_back_as_zeros();
    what_grows_is_zero_where_it_is_new();
    what_was_cut_off_is_gone();
    return 0;
}

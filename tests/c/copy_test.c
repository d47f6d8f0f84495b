// The second copying thread: every byte arrives, nothing beside it is touched, whoever is faster does more.
//
// sources: transfer_engine/src/copy_helper.c mooncake_store/protocol/src/copy*.c
// timeout: 60
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "te_parts.h"

#define MIB ((size_t)1 << 20)
#define GUARD 64

static uint8_t byte_at(uint64_t seed, size_t i) {
    return (uint8_t)((i * 2654435761u) >> 13 ^ seed ^ i >> 18);
}

static void check_copy(te_copier *copier, size_t length, size_t source_shift, size_t target_shift,
                       uint64_t seed) {
    uint8_t *source = malloc(length + source_shift + 1);
    uint8_t *room = malloc(length + target_shift + 2 * GUARD);
    assert(source != NULL && room != NULL);
    for (size_t i = 0; i < length; i++)
        source[source_shift + i] = byte_at(seed, i);
    memset(room, 0xa5, length + target_shift + 2 * GUARD);
    uint8_t *target = room + GUARD + target_shift;
    te_copier_copy(copier, target, source + source_shift, length);
    assert(memcmp(target, source + source_shift, length) == 0);
    for (size_t i = 0; i < GUARD + target_shift; i++)
        assert(room[i] == 0xa5);
    for (size_t i = 0; i < GUARD; i++)
        assert(target[length + i] == 0xa5);
    free(room);
    free(source);
}

static void test_sizes_and_alignments(void) {
    static const size_t sizes[] = {0,      1,      7,       4096, 65536,   262143,
                                   262144, 262145, MIB - 1, MIB,  MIB + 1, 3 * MIB + 17};
    te_copier *copier;
    assert(te_copier_open(256 << 10, MIB, &copier) == MS_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_copy(copier, sizes[i], 0, 0, i);
        check_copy(copier, sizes[i], 3, 5, i + 100);
    }
    te_copier_close(copier);
}

static void test_zero_means_never(void) {
    te_copier *copier;
    assert(te_copier_open(0, 0, &copier) == MS_OK);
    check_copy(copier, 2 * MIB, 0, 0, 1);
    te_copier_close(copier);
}

/* Copies so short after each other that the helper is often woken too late: a late helper must not touch the next
 * copy's memory. */
static void test_late_helper(void) {
    te_copier *copier;
    assert(te_copier_open(256 << 10, 512 << 10, &copier) == MS_OK);
    enum { LENGTH = 600 << 10 };
    uint8_t *source = malloc(LENGTH), *target = malloc(LENGTH);
    assert(source != NULL && target != NULL);
    for (uint32_t round = 0; round < 300; round++) {
        memset(source, (int)(round & 0xff), LENGTH);
        te_copier_copy(copier, target, source, LENGTH);
        assert(memcmp(target, source, LENGTH) == 0);
        /* Nobody may write to it now. */
        memset(target, 0x5a, LENGTH);
        for (size_t i = 0; i < LENGTH; i += 4096)
            assert(target[i] == 0x5a);
    }
    free(target);
    free(source);
    te_copier_close(copier);
}

static void *copy_in_a_loop(void *argument) {
    te_copier *copier = argument;
    for (uint64_t round = 0; round < 12; round++)
        check_copy(copier, MIB + 4096 * round, round, 0, round);
    return NULL;
}

/* The helper serves one caller, the others copy alone. */
static void test_several_callers(void) {
    te_copier *copier;
    pthread_t threads[4];
    assert(te_copier_open(256 << 10, MIB, &copier) == MS_OK);
    for (size_t i = 0; i < 4; i++)
        assert(pthread_create(&threads[i], NULL, copy_in_a_loop, copier) == 0);
    for (size_t i = 0; i < 4; i++)
        assert(pthread_join(threads[i], NULL) == 0);
    te_copier_close(copier);
}

static void test_close_without_use(void) {
    te_copier *copier;
    assert(te_copier_open(1, 1, &copier) == MS_OK);
    te_copier_close(copier);
    te_copier_close(NULL);
}

int main(void) {
    test_sizes_and_alignments();
    test_zero_means_never();
    test_late_helper();
    test_several_callers();
    test_close_without_use();
    puts("copy_test: ok");
    return 0;
}

// sources: store/src/inventory.c store/src/log_file.c store/src/file.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 120
/* The inventory of a segment: what a restart finds after a kill at any step, a torn tail, a compaction.
 *
 * A child process works on the mapped files and ends without warning at step k, for every k until it gets
 * through; the parent then opens the files and compares with what had been acknowledged. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "st_inventory.h"
#include "st_step.h"

#define PAGES (2 * ST_LOG_PAGES + 100)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (step %ld)\n", __FILE__, __LINE__, #condition, steps_left); \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static char folder[64];
static long steps_left = -1; /* -1: no kill */

void st_step(const char *name) {
    (void)name;
    if (steps_left > 0 && --steps_left == 0)
        _exit(77);
}

/* The words, in a file as the server has them: they survive the child. */
static _Atomic uint64_t *words;

static void words_open(void) {
    words = mmap(NULL, PAGES * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    CHECK(words != MAP_FAILED);
}

static st_extent extent_of(uint32_t page, uint64_t version, const char *key) {
    return (st_extent){.version = version,
                       .note = version,
                       .size = version * 7,
                       .expiry_ms = 1000 + version,
                       .group = 3,
                       .hash = {version, ~version},
                       .parent = {1, 2},
                       .page = page,
                       .page_count = 1,
                       .checksum = (uint32_t)version * 31,
                       .part = 0,
                       .part_count = 1,
                       .key_length = (uint16_t)strlen(key),
                       .tenant_length = 7,
                       .flags = 5,
                       .tenant = (const uint8_t *)"default",
                       .key = (const uint8_t *)key};
}

/* As the server does it: word, then record. */
static void seal(st_inventory *inventory, uint32_t page, uint64_t version, const char *key) {
    st_extent extent = extent_of(page, version, key);
    CHECK(st_inventory_reserve(inventory, &extent) == MS_OK);
    st_step("word");
    words[page] = ms_word(version, 1);
    st_step("record");
    st_inventory_commit(inventory, &extent);
}

static void free_extent(st_inventory *inventory, uint32_t page, uint64_t version) {
    words[page] = ms_word(version, 0);
    st_step("free record");
    st_inventory_free(inventory, page, version);
}

static void check_extent(const st_inventory *inventory, uint32_t page, uint64_t version,
                         const char *key) {
    st_extent found, wanted = extent_of(page, version, key);
    CHECK(st_inventory_find(inventory, page, &found));
    CHECK(found.version == version && found.size == wanted.size && found.group == 3);
    CHECK(found.hash.low == version && found.hash.high == ~version && found.parent.high == 2);
    CHECK(found.page == page && found.page_count == wanted.page_count);
    CHECK(found.checksum == wanted.checksum && found.part_count == 1 && found.part == 0);
    CHECK(found.key_length == strlen(key) && memcmp(found.key, key, found.key_length) == 0);
    CHECK(found.tenant_length == 7 && memcmp(found.tenant, "default", 7) == 0);
}

static st_inventory_repair repair; /* of the last opening */

static st_inventory *reopen(void) {
    st_inventory *inventory;
    st_inventory_options options = {.folder = folder,
                                    .page_count = PAGES,
                                    .pages_there = PAGES,
                                    .version_max = ms_version(1, 0),
                                    .words = words};
    CHECK(st_inventory_open(&options, &repair, &inventory) == MS_OK);
    return inventory;
}

static void start_over(void) {
    st_inventory_erase(folder);
    memset((void *)(uintptr_t)words, 0, PAGES * sizeof(uint64_t));
}

static void test_records_are_found_again(void) {
    start_over();
    st_inventory *inventory = reopen();
    seal(inventory, 5, 11, "five");
    seal(inventory, ST_LOG_PAGES, 12, "first of the second log");
    seal(inventory, PAGES - 1, 13, "last");
    CHECK(st_inventory_note(inventory, 5, 99, 4242, 1) == MS_OK);
    free_extent(inventory, PAGES - 1, 13);
    CHECK(st_inventory_count(inventory) == 2);
    st_inventory_close(inventory);

    inventory = reopen();
    CHECK(st_inventory_count(inventory) == 2);
    check_extent(inventory, 5, 11, "five");
    check_extent(inventory, ST_LOG_PAGES, 12, "first of the second log");
    st_extent found;
    CHECK(!st_inventory_find(inventory, PAGES - 1, &found));
    CHECK(!st_inventory_find(inventory, PAGES, &found));
    CHECK(st_inventory_find(inventory, 5, &found));
    CHECK(found.note == 99 && found.expiry_ms == 4242 && found.flags == 1);
    CHECK(st_inventory_find(inventory, ST_LOG_PAGES, &found));
    CHECK(found.note == 12 && found.expiry_ms == 1012 && found.flags == 5);
    CHECK(st_inventory_live_pages(inventory) == 2);

    uint64_t page = 0;
    CHECK(st_inventory_next(inventory, &page, &found) && found.page == 5 && page == 6);
    CHECK(st_inventory_next(inventory, &page, &found) && found.page == ST_LOG_PAGES);
    CHECK(!st_inventory_next(inventory, &page, &found));
    st_inventory_close(inventory);
}

static void test_words_count_more_than_the_log(void) {
    start_over();
    st_inventory *inventory = reopen();
    seal(inventory, 1, 21, "freed without a record");
    seal(inventory, 2, 22, "kept");
    words[1] = ms_word(21, 0); /* the process dies before the free record */
    words[3] = ms_word(23, 1); /* ... and before the commit record of another */
    st_inventory_close(inventory);
    inventory = reopen();
    CHECK(st_inventory_count(inventory) == 1);
    check_extent(inventory, 2, 22, "kept");
    st_inventory_close(inventory);
}

static size_t log_size(const char *name, uint8_t **bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    struct stat state;
    CHECK(fd >= 0 && fstat(fd, &state) == 0);
    *bytes = malloc((size_t)state.st_size);
    CHECK(read(fd, *bytes, (size_t)state.st_size) == state.st_size);
    close(fd);
    return (size_t)state.st_size;
}

static void log_write(const char *name, const uint8_t *bytes, size_t length) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_TRUNC);
    CHECK(fd >= 0 && write(fd, bytes, length) == (ssize_t)length);
    close(fd);
}

/* Whatever happens to the last record's bytes, the ones before it stay, and nothing false appears. */
static void test_a_torn_tail_is_cut(void) {
    start_over();
    st_inventory *inventory = reopen();
    for (uint32_t page = 0; page < 8; page++)
        seal(inventory, page, 30 + page, "a key");
    st_inventory_close(inventory);
    uint8_t *bytes;
    size_t size = log_size("inventory-0-000000", &bytes), used = size;
    while (used > 0 && bytes[used - 1] == 0)
        used--;
    used = (used + 7) / 8 * 8;
    size_t record = (used - 16) / 8;
    CHECK(16 + 8 * record == used);
    uint8_t *torn = malloc(size);
    for (size_t lost = 1; lost <= 3 * record; lost++) {
        memcpy(torn, bytes, size);
        memset(torn + used - lost, 0, lost);
        log_write("inventory-0-000000", torn, size);
        inventory = reopen();
        uint64_t count = st_inventory_count(inventory);
        CHECK(count >= 8 - (lost + record - 1) / record && count <= 8);
        for (uint32_t page = 0; page < count; page++)
            check_extent(inventory, page, 30 + page, "a key");
        /* What is appended next is found, also behind the cut. */
        seal(inventory, 100, 300, "after the cut");
        st_inventory_close(inventory);
        inventory = reopen();
        CHECK(st_inventory_count(inventory) == count + 1);
        check_extent(inventory, 100, 300, "after the cut");
        st_inventory_close(inventory);
        words[100] = 0;
    }
    for (size_t at = 16; at < used; at++) { /* a flipped bit anywhere cuts there */
        memcpy(torn, bytes, size);
        torn[at] ^= (uint8_t)(1u << at % 8);
        log_write("inventory-0-000000", torn, size);
        inventory = reopen();
        CHECK(st_inventory_count(inventory) == (at - 16) / record);
        CHECK(repair.logs_cut == 1 && repair.bytes_cut > 0 && repair.dropped == 0);
        st_inventory_close(inventory);
    }
    for (size_t at = 0; at < 8 * 8; at++) { /* in a word: that object alone is gone */
        log_write("inventory-0-000000", bytes, size);
        words[at / 8] ^= UINT64_C(1) << (at * 7 % 64);
        inventory = reopen();
        CHECK(st_inventory_count(inventory) == 7);
        st_extent found;
        CHECK(!st_inventory_find(inventory, (uint32_t)at / 8, &found));
        st_inventory_close(inventory);
        words[at / 8] ^= UINT64_C(1) << (at * 7 % 64);
    }
    for (size_t length = 0; length < used; length++) { /* shorter than it was, by any number */
        log_write("inventory-0-000000", bytes, length);
        inventory = reopen();
        CHECK(st_inventory_count(inventory) == (length < 16 ? 0 : (length - 16) / record));
        seal(inventory, 100, 300, "after the cut");
        st_inventory_close(inventory);
        words[100] = 0;
    }
    memset(torn, 0xff, size); /* not a log at all */
    log_write("inventory-0-000000", torn, size);
    inventory = reopen();
    CHECK(st_inventory_count(inventory) == 0);
    CHECK(repair.logs_cut == 1 && repair.bytes_cut == size);
    seal(inventory, 1, 400, "new");
    st_inventory_close(inventory);
    inventory = reopen();
    check_extent(inventory, 1, 400, "new");
    st_inventory_close(inventory);
    free(torn);
    free(bytes);
}

/* The shared page in which a child says what it has acknowledged. */
typedef struct progress {
    uint32_t sealed, freed, noted;
} progress;

static void test_a_kill_at_any_step_loses_nothing_acknowledged(void) {
    progress *said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool is_through = false;
    long step = 0;
    while (!is_through) {
        step++;
        start_over();
        *said = (progress){0};
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            steps_left = step;
            st_inventory *inventory = reopen();
            for (uint32_t page = 0; page < 6; page++) {
                seal(inventory, page, 50 + page, "some key");
                said->sealed = page + 1;
            }
            for (uint32_t page = 0; page < 3; page++) {
                CHECK(st_inventory_note(inventory, 3 + page, 500 + page, 60 + page, 2) == MS_OK);
                said->noted = page + 1;
            }
            for (uint32_t page = 0; page < 3; page++) {
                said->freed = page + 1; /* from the word on it is gone, record or not */
                free_extent(inventory, page, 50 + page);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        is_through = WEXITSTATUS(status) == 0;
        CHECK(is_through || WEXITSTATUS(status) == 77);
        st_inventory *inventory = reopen();
        for (uint32_t page = 0; page < said->sealed; page++) {
            st_extent found;
            if (page < said->freed && words[page] == ms_word(50 + page, 0)) {
                CHECK(!st_inventory_find(inventory, page, &found));
                continue;
            }
            check_extent(inventory, page, 50 + page, "some key");
            CHECK(st_inventory_find(inventory, page, &found));
            if (page >= 3 && page - 3 < said->noted)
                CHECK(found.note == 500 + page - 3 && found.flags == 2 &&
                      found.expiry_ms == 60 + page - 3);
        }
        CHECK(st_inventory_count(inventory) <= said->sealed + 1u);
        st_inventory_close(inventory);
    }
    CHECK(step > 30); /* the steps are there */
    munmap(said, 4096);
}

/* Until a log has been compacted at least once. */
static void churn(st_inventory *inventory, uint64_t *version) {
    uint64_t before = st_inventory_compactions(inventory);
    for (uint32_t page = 10; st_inventory_compactions(inventory) == before;
         page = page == 200 ? 10 : page + 1) {
        ++*version;
        seal(inventory, page, *version, "churned");
        free_extent(inventory, page, *version);
    }
}

static void test_compaction_keeps_records_and_notes(void) {
    start_over();
    st_inventory *inventory = reopen();
    uint64_t version = 1000;
    for (uint32_t page = 0; page < 8; page++)
        seal(inventory, page, 70 + page, "kept");
    for (uint32_t page = 0; page < 4; page++)
        CHECK(st_inventory_note(inventory, page, 700 + page, 8, 4) == MS_OK);
    for (int round = 0; round < 3; round++)
        churn(inventory, &version);
    for (int again = 0; again < 2; again++) {
        CHECK(st_inventory_count(inventory) == 8 || st_inventory_count(inventory) == 9);
        for (uint32_t page = 0; page < 8; page++) {
            st_extent found;
            check_extent(inventory, page, 70 + page, "kept");
            CHECK(st_inventory_find(inventory, page, &found));
            CHECK(found.note == (page < 4 ? 700 + page : 70 + page));
            CHECK(found.flags == (page < 4 ? 4 : 5));
        }
        st_inventory_close(inventory);
        inventory = reopen();
    }
    CHECK(st_inventory_bytes(inventory) <= 4u * 64 * 1024);
    st_inventory_close(inventory);
}

static void test_a_kill_inside_compaction_loses_nothing(void) {
    long step = 0;
    bool is_through = false;
    while (!is_through) {
        step++;
        start_over();
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            st_inventory *inventory = reopen();
            for (uint32_t page = 0; page < 4; page++)
                seal(inventory, page, 80 + page, "kept");
            CHECK(st_inventory_note(inventory, 3, 900, 9, 6) == MS_OK);
            uint64_t version = 2000;
            /* Up to just before the log is full, then count steps: those of the compaction come. */
            while (st_inventory_bytes(inventory) != 0 &&
                   version < 2000 + 64 * 1024 / (32 + 136) - 8) {
                version++;
                seal(inventory, 10, version, "churned");
                free_extent(inventory, 10, version);
            }
            CHECK(st_inventory_compactions(inventory) == 0);
            steps_left = step;
            churn(inventory, &version);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        is_through = WEXITSTATUS(status) == 0;
        st_inventory *inventory = reopen();
        st_extent found;
        for (uint32_t page = 0; page < 4; page++)
            check_extent(inventory, page, 80 + page, "kept");
        CHECK(st_inventory_find(inventory, 3, &found) && found.note == 900 && found.flags == 6);
        CHECK(st_inventory_count(inventory) <= 5);
        st_inventory_close(inventory);
    }
    CHECK(step > 30);
}

/* Records that are whole and cannot be true: each is dropped, and what lies around it stays. */
static void test_records_that_make_no_sense_are_dropped(void) {
    static const struct {
        const char *what;
        uint32_t page, page_count;
        uint64_t version;
        uint16_t part, part_count, key_length;
        uint8_t tenant_length;
        uint64_t size;
    } cases[] = {
        {"beyond the segment", PAGES - 1, 2, 90, 0, 1, 3, 7, 1},
        {"beyond what is there", PAGES - 50, 1, 90, 0, 1, 3, 7, 1},
        {"no pages", 20, 0, 90, 0, 1, 3, 7, 1},
        {"pages that wrap", 20, UINT32_MAX, 90, 0, 1, 3, 7, 1},
        {"newer than any version", 20, 1, UINT64_C(1) << 60, 0, 1, 3, 7, 1},
        {"no key", 20, 1, 90, 0, 1, 0, 7, 1},
        {"a part that is not", 20, 1, 90, 2, 2, 3, 7, 1},
        {"too many parts", 20, 1, 90, 0, 9999, 3, 7, 1},
        {"a tenant that is too long", 20, 1, 90, 0, 1, 3, 200, 1},
        {"larger than any object", 20, 1, 90, 0, 1, 3, 7, UINT64_MAX},
        {"over an older extent", 5, 30, 95, 0, 1, 3, 7, 1},
        {"over a newer extent", 5, 30, 40, 0, 1, 3, 7, 1},
    };
    static const char names[256 + 1024] = "default";
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        start_over();
        st_inventory *inventory = reopen();
        seal(inventory, 4, 80, "before");
        seal(inventory, 30, 81, "behind");
        st_extent extent = extent_of(cases[at].page, cases[at].version, "");
        extent.page_count = cases[at].page_count;
        extent.part = cases[at].part;
        extent.part_count = cases[at].part_count;
        extent.key_length = cases[at].key_length;
        extent.tenant_length = cases[at].tenant_length;
        extent.size = cases[at].size;
        extent.tenant = extent.key = (const uint8_t *)names;
        CHECK(st_inventory_reserve(inventory, &extent) == MS_OK);
        words[extent.page] = ms_word(extent.version, 1);
        st_inventory_commit(inventory, &extent);
        st_inventory_close(inventory);
        st_inventory_options options = {.folder = folder,
                                        .page_count = PAGES,
                                        .pages_there = PAGES - 50,
                                        .version_max = ms_version(1, 0),
                                        .words = words};
        CHECK(st_inventory_open(&options, &repair, &inventory) == MS_OK);
        bool is_newer = strcmp(cases[at].what, "over an older extent") == 0;
        st_extent found;
        CHECK(repair.dropped == 1 && repair.logs_cut == 0);
        CHECK(st_inventory_find(inventory, 4, &found) && found.version == 80);
        CHECK(st_inventory_find(inventory, 30, &found) == !is_newer);
        CHECK(st_inventory_find(inventory, cases[at].page, &found) == is_newer);
        st_inventory_close(inventory);
    }
    /* A word that says "live" though the log says that it was freed: one bit has flipped. */
    start_over();
    st_inventory *inventory = reopen();
    seal(inventory, 4, 80, "freed");
    free_extent(inventory, 4, 80);
    st_inventory_close(inventory);
    words[4] |= 1;
    inventory = reopen();
    CHECK(st_inventory_count(inventory) == 0 && repair.dropped == 1);
    st_inventory_close(inventory);
}

/* Bytes of chance, and good logs with some of their bytes changed: whatever is found is one of what was put. */
static void test_a_log_of_hostile_bytes_ends_well(void) {
    start_over();
    st_inventory *inventory = reopen();
    for (uint32_t page = 0; page < 64; page++)
        seal(inventory, page, 30 + page, "a key");
    for (uint32_t page = 0; page < 64; page += 3)
        CHECK(st_inventory_note(inventory, page, 900 + page, 7, 1) == MS_OK);
    st_inventory_close(inventory);
    uint8_t *bytes;
    size_t size = log_size("inventory-0-000000", &bytes);
    uint8_t *hostile = malloc(size);
    uint64_t seed = 88172645463325252u;
    for (int round = 0; round < 3000; round++) {
        memcpy(hostile, bytes, size);
        for (int change = 0; change < 1 + round % 7; change++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17; /* xorshift64 */
            size_t at = (size_t)(seed % (round % 2 != 0 ? 12 * 1024 : size));
            hostile[at] = (uint8_t)(seed >> 32);
            if (round % 5 == 0) /* a length that lies */
                memcpy(hostile + at / 8 * 8, &seed, sizeof(uint32_t));
        }
        log_write("inventory-0-000000", hostile, round % 11 == 0 ? (size_t)(seed % size) : size);
        inventory = reopen();
        uint64_t page = 0;
        st_extent found;
        while (st_inventory_next(inventory, &page, &found))
            check_extent(inventory, found.page, 30 + found.page, "a key");
        st_inventory_close(inventory);
    }
    free(hostile);
    free(bytes);
}

static void test_long_keys_and_growth(void) {
    start_over();
    st_inventory *inventory = reopen();
    char key[1025];
    memset(key, 'k', sizeof key);
    key[1024] = '\0';
    for (uint32_t page = 0; page < 3000; page++)
        seal(inventory, page, 100 + page, key + page % 1024);
    CHECK(st_inventory_bytes(inventory) > 1u << 20);
    st_inventory_close(inventory);
    inventory = reopen();
    CHECK(st_inventory_count(inventory) == 3000);
    for (uint32_t page = 0; page < 3000; page++)
        check_extent(inventory, page, 100 + page, key + page % 1024);
    st_inventory_close(inventory);
}

/* No file may grow any more, as in a file system that is full. */
static void set_full(bool is_full) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = is_full ? 0 : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void test_the_reserve_is_there_when_the_file_system_is_full(void) {
    start_over();
    st_inventory *inventory = reopen();
    CHECK(st_inventory_reserve_bytes(PAGES) == (3u * 256 + 64) * 1024);
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    CHECK(st_inventory_bytes(inventory) == (2u * 256 + 64) * 1024); /* and the spare file */
    set_full(true);
    seal(inventory, ST_LOG_PAGES, 12, "first of the second log");
    seal(inventory, PAGES - 1, 13, "last");
    for (uint32_t page = 0; page < 8; page++)
        seal(inventory, page, 70 + page, "kept");
    uint64_t version = 1000;
    for (int round = 0; round < 6; round++)
        churn(inventory, &version); /* each compacts, in the spare file */
    for (int again = 0; again < 2; again++) {
        for (uint32_t page = 0; page < 8; page++)
            check_extent(inventory, page, 70 + page, "kept");
        check_extent(inventory, PAGES - 1, 13, "last");
        st_inventory_close(inventory);
        inventory = reopen();
        CHECK(repair.logs_cut == 0 && repair.dropped == 0);
        CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    }
    churn(inventory, &version); /* the spare file of an earlier process */

    /* What is live has all of the reserve, and then a put is refused; nothing that is there is lost. */
    uint32_t page = 300;
    for (;; page++) {
        st_extent extent = extent_of(page, 5000 + page, "small objects");
        ms_status status = st_inventory_reserve(inventory, &extent);
        if (status != MS_OK) {
            CHECK(status == MS_NO_SPACE);
            break;
        }
        words[page] = ms_word(5000 + page, 1);
        st_inventory_commit(inventory, &extent);
    }
    CHECK(page - 300 > 1500 && page - 300 < 2100);
    for (uint32_t at = 300; at < page; at++)
        check_extent(inventory, at, 5000 + at, "small objects");
    free_extent(inventory, 300, 5300);
    seal(inventory, 300, 9000, "small objects");
    set_full(false);
    seal(inventory, page, 9001, "small objects");
    st_inventory_close(inventory);
}

static struct stat file_named(const char *name) {
    char path[300];
    struct stat found = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(stat(path, &found) == 0);
    return found;
}

/* A log with `count` extents of which the oldest leave, until it has been compacted `times` times. */
static void compact_large(st_inventory *inventory, uint64_t *version, uint32_t count, int times) {
    const uint64_t before = st_inventory_compactions(inventory);
    while (st_inventory_compactions(inventory) < before + (uint64_t)times) {
        uint32_t page = (uint32_t)(*version % count);
        if (words[page] & 1)
            free_extent(inventory, page, words[page] >> 1);
        seal(inventory, page, ++*version, "one of the many that come and go, with a longer key");
    }
}

static void test_compaction_takes_blocks_that_are_there(void) {
    start_over();
    st_inventory *inventory = reopen();
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    uint64_t version = 1000;
    compact_large(inventory, &version, 6000, 3);
    struct stat log = file_named("inventory-0-000000"), spare = file_named("inventory-0-spare");
    CHECK(spare.st_size > 256 * 1024);
    compact_large(inventory, &version, 6000, 1); /* the two exchange their names and places */
    CHECK(file_named("inventory-0-000000").st_ino == spare.st_ino);
    CHECK(file_named("inventory-0-spare").st_ino == log.st_ino);
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    for (int again = 0; again < 2; again++) {
        for (uint32_t page = 0; page < 6000; page++)
            check_extent(inventory, page, words[page] >> 1,
                         "one of the many that come and go, with a longer key");
        st_inventory_close(inventory);
        inventory = reopen();
        CHECK(repair.logs_cut == 0 && repair.dropped == 0);
    }
    /* A log that needs a tenth of that has a file of its own size. */
    for (uint32_t page = 0; page < 6000; page++)
        free_extent(inventory, page, words[page] >> 1);
    churn(inventory, &version);
    CHECK(file_named("inventory-0-000000").st_size == 256 * 1024);

    /* Where blocks run short, the spare file gives back what it has beyond the reserve. */
    CHECK(file_named("inventory-0-spare").st_size > 256 * 1024);
    set_full(true);
    ms_status status = MS_OK;
    for (uint32_t page = 6000; status == MS_OK; page++) {
        st_extent extent = extent_of(page, ++version, "as many as there is room for");
        status = st_inventory_reserve(inventory, &extent);
        if (status != MS_OK)
            break;
        words[page] = ms_word(version, 1);
        st_inventory_commit(inventory, &extent);
    }
    CHECK(status == MS_NO_SPACE && file_named("inventory-0-spare").st_size == 256 * 1024);
    set_full(false);
    compact_large(inventory, &version, 3000, 1);
    st_inventory_close(inventory);
}

static bool has_no_exchange;

/* The inventory calls this one instead of the C library's. */
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (has_no_exchange && flags != 0) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

static void test_the_spare_file_stays_as_large_as_the_reserve(void) {
    start_over();
    st_inventory *inventory = reopen();
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    uint64_t version = 1000;
    for (int full = 0; full < 2; full++) { /* in need the small log's file is better than none */
        set_full(full != 0);
        uint64_t before = st_inventory_compactions(inventory);
        while (st_inventory_compactions(inventory) == before) {
            seal(inventory, PAGES - 1, ++version, "in the last log, which is small");
            free_extent(inventory, PAGES - 1, version);
        }
        set_full(false);
        CHECK((file_named("inventory-0-spare").st_size >= 256 * 1024) == !full);
        CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
        CHECK(file_named("inventory-0-spare").st_size >= 256 * 1024);
    }
    st_inventory_close(inventory);
}

static void check_all(const st_inventory *inventory, uint32_t count) {
    for (uint32_t page = 0; page < count; page++)
        check_extent(inventory, page, words[page] >> 1,
                     "one of the many that come and go, with a longer key");
}

static void test_a_spare_file_that_was_removed_is_not_needed(void) {
    start_over();
    st_inventory *inventory = reopen();
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    uint64_t version = 1000;
    char path[300];
    snprintf(path, sizeof path, "%s/inventory-0-spare", folder);
    compact_large(inventory, &version, 6000, 3);
    for (int round = 0; round < 2; round++) {
        CHECK(unlink(path) == 0);
        compact_large(inventory, &version, 6000, 2);
        check_all(inventory, 6000);
        CHECK(file_named("inventory-0-spare").st_size > 256 * 1024);
    }
    st_inventory_close(inventory);
}

static void test_a_file_system_that_cannot_exchange_names_keeps_its_spare_file(void) {
    start_over();
    st_inventory *inventory = reopen();
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    uint64_t version = 1000;
    has_no_exchange = true;
    compact_large(inventory, &version, 1000, 1);
    const struct stat spare = file_named("inventory-0-spare");
    CHECK(spare.st_size == 256 * 1024);
    compact_large(inventory, &version, 1000, 3);
    CHECK(file_named("inventory-0-spare").st_ino == spare.st_ino);
    check_all(inventory, 1000);
    has_no_exchange = false;
    st_inventory_close(inventory);
}

static void test_the_spare_file_gives_to_logs_that_begin(void) {
    start_over();
    st_inventory *inventory = reopen();
    CHECK(st_inventory_extend(inventory, ST_LOG_PAGES) == MS_OK);
    uint64_t version = 1000;
    compact_large(inventory, &version, 6000, 3);
    CHECK(file_named("inventory-0-spare").st_size > 256 * 1024);
    set_full(true);
    CHECK(st_inventory_extend(inventory, PAGES) == MS_NO_SPACE);
    CHECK(file_named("inventory-0-spare").st_size == 256 * 1024);
    set_full(false);
    CHECK(st_inventory_extend(inventory, PAGES) == MS_OK);
    check_all(inventory, 6000);
    st_inventory_close(inventory);
}

int main(void) {
    snprintf(folder, sizeof folder, "/tmp/st-inventory-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    words_open();
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    test_records_are_found_again();
    test_words_count_more_than_the_log();
    test_a_torn_tail_is_cut();
    test_a_kill_at_any_step_loses_nothing_acknowledged();
    test_compaction_keeps_records_and_notes();
    test_a_kill_inside_compaction_loses_nothing();
    test_records_that_make_no_sense_are_dropped();
    test_a_log_of_hostile_bytes_ends_well();
    test_long_keys_and_growth();
    test_the_reserve_is_there_when_the_file_system_is_full();
    test_compaction_takes_blocks_that_are_there();
    test_the_spare_file_stays_as_large_as_the_reserve();
    test_a_spare_file_that_was_removed_is_not_needed();
    test_a_file_system_that_cannot_exchange_names_keeps_its_spare_file();
    test_the_spare_file_gives_to_logs_that_begin();
    st_inventory_erase(folder);
    CHECK(rmdir(folder) == 0);
    return 0;
}

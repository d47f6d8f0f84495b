// sources: store/src/segment.c store/src/kept.c store/src/geometry.c store/src/inventory.c store/src/log_file.c store/src/file.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 120
/* A segment's files and the next process: what it takes up, what it throws away, and after which kill. */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "st.h"
#include "st_segment.h"
#include "st_step.h"

#define PAGES 3000u
#define EPOCH 7u
#define OBJECTS 40u

static const char *what = "";
static long steps_left = -1; /* -1: no kill */

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s, step %ld)\n", __FILE__, __LINE__, #condition, what,    \
                    steps_left);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static char folder[64];
static st_segment segment;
static st_segment_found found;

void st_step(const char *name) {
    (void)name;
    if (steps_left > 0 && --steps_left == 0)
        _exit(77);
}

bool st_is_planted(enum st_fault fault) {
    (void)fault;
    return false;
}

static st_segment_options options_of(uint64_t page_count) {
    return (st_segment_options){.folder = folder,
                                .name = "node",
                                .page_count = page_count,
                                .version_max = ms_version(EPOCH, (UINT64_C(1) << 43) - 1),
                                .boot_id = {1, 2, 3}};
}

static void open_with(const st_segment_options *options) {
    char warning[ST_ERROR_BYTES], error[ST_ERROR_BYTES] = "";
    ms_status status = st_segment_open(options, &segment, &found, warning, error);
    if (status != MS_OK)
        fprintf(stderr, "%s\n", error);
    CHECK(status == MS_OK);
}

static void open_again(uint64_t page_count) {
    st_segment_options options = options_of(page_count);
    open_with(&options);
}

static uint32_t page_of(uint32_t number) { return number * 70; }
static uint64_t version_of(uint32_t number) { return ms_version(EPOCH, 100 + number); }

static void fill(uint32_t number, uint8_t bytes[2 * MS_PAGE_SIZE]) {
    for (uint32_t at = 0; at < 2 * MS_PAGE_SIZE; at++)
        bytes[at] = (uint8_t)(number * 31 + at * 7 + at / 256);
}

/* As the server does it: bytes, word, record. */
static void seal(uint32_t number) {
    char key[32];
    snprintf(key, sizeof key, "key-%u", number);
    fill(number, segment.payload + (size_t)page_of(number) * MS_PAGE_SIZE);
    st_extent extent = {.version = version_of(number),
                        .note = version_of(number),
                        .size = 2 * MS_PAGE_SIZE,
                        .page = page_of(number),
                        .page_count = 2,
                        .part_count = 1,
                        .key_length = (uint16_t)strlen(key),
                        .tenant_length = 7,
                        .tenant = (const uint8_t *)"default",
                        .key = (const uint8_t *)key};
    CHECK(st_inventory_reserve(segment.inventory, &extent) == MS_OK);
    st_step("before the word");
    segment.words[extent.page] = ms_word(extent.version, 1);
    st_step("before the record");
    st_inventory_commit(segment.inventory, &extent);
}

static void release(uint32_t number) {
    segment.words[page_of(number)] = ms_word(version_of(number), 0);
    st_step("before the free record");
    st_inventory_free(segment.inventory, page_of(number), version_of(number));
}

/* What is found is true: every live word has its record, every record its bytes. */
static uint32_t check_all(void) {
    uint32_t count = 0;
    uint64_t page = 0;
    st_extent extent;
    uint8_t bytes[2 * MS_PAGE_SIZE];
    while (st_inventory_next(segment.inventory, &page, &extent)) {
        uint32_t number = extent.page / 70;
        CHECK(extent.page == page_of(number) && extent.version == version_of(number));
        CHECK(segment.words[extent.page] == ms_word(extent.version, 1));
        CHECK(st_pages_are_ready(&segment, extent.page, extent.page_count));
        fill(number, bytes);
        CHECK(memcmp(bytes, segment.payload + (size_t)extent.page * MS_PAGE_SIZE, sizeof bytes) ==
              0);
        count++;
    }
    uint32_t live = 0;
    for (uint64_t at = 0; at < atomic_load(&segment.pages_ready); at++) {
        CHECK(segment.words[at] >> 1 <= version_of(UINT16_MAX));
        live += (uint32_t)(segment.words[at] & 1);
    }
    CHECK(live == count && st_inventory_count(segment.inventory) == count);
    return count;
}

/* A folder with OBJECTS objects in it, closed as by a kill. */
static void start_over(void) {
    st_segment_erase(folder, NULL, "node");
    open_again(PAGES);
    CHECK(!found.is_kept && found.lost_reason == NULL);
    CHECK(st_segment_grow(&segment, PAGES) == MS_OK);
    for (uint32_t number = 0; number < OBJECTS; number++)
        seal(number);
    st_segment_close(&segment, true);
}

static const char *path_of(const char *name) {
    static char path[2][128];
    static int turn;
    turn = 1 - turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void test_everything_is_taken_up(void) {
    start_over();
    for (int again = 0; again < 3; again++) {
        open_again(PAGES);
        CHECK(found.is_kept && found.page_count == PAGES && !found.is_cut);
        CHECK(found.words_settled == 0 && found.repair.logs_cut == 0 && found.repair.dropped == 0);
        CHECK(atomic_load(&segment.pages_ready) == PAGES);
        CHECK(check_all() == OBJECTS);
        st_segment_close(&segment, true);
    }
}

static void test_what_was_not_sealed_whole_is_settled(void) {
    start_over();
    open_again(PAGES);
    segment.words[1] = ms_word(version_of(900), 1);          /* killed before the record */
    segment.words[3] = ms_word(ms_version(EPOCH + 1, 1), 1); /* a flipped bit: no leader gave it */
    segment.words[5] = ms_word(ms_version(EPOCH + 9, 1), 0);
    segment.words[7] = ms_word(version_of(901), 0); /* freed: stays as it is */
    st_segment_close(&segment, true);
    open_again(PAGES);
    CHECK(found.is_kept && found.words_settled == 3);
    CHECK(segment.words[1] == ms_word(version_of(900), 0) && segment.words[3] == 0);
    CHECK(segment.words[5] == 0 && segment.words[7] == ms_word(version_of(901), 0));
    CHECK(check_all() == OBJECTS);
    st_segment_close(&segment, true);
}

/* Another size: larger is made so, smaller waits until nothing is there. */
static void test_another_size(void) {
    start_over();
    open_again(2 * PAGES);
    CHECK(found.is_kept && found.page_count == PAGES && segment.page_count == 2 * PAGES);
    CHECK(atomic_load(&segment.pages_ready) == PAGES && check_all() == OBJECTS);
    CHECK(st_segment_grow(&segment, PAGES) == MS_OK);
    CHECK(atomic_load(&segment.pages_ready) == 2 * PAGES);
    segment.payload[(2 * (size_t)PAGES) * MS_PAGE_SIZE - 1] = 1;
    CHECK(check_all() == OBJECTS);
    st_segment_close(&segment, true);
    st_segment_options any_size = options_of(PAGES / 2);
    any_size.keep_size = true;
    open_with(&any_size);
    CHECK(found.is_kept && segment.page_count == 2 * PAGES && check_all() == OBJECTS);
    st_segment_close(&segment, true);
    open_again(PAGES / 2);
    CHECK(found.is_kept && found.page_count == 2 * PAGES && segment.page_count == 2 * PAGES);
    CHECK(check_all() == OBJECTS);
    for (uint32_t number = 0; number < OBJECTS; number++)
        release(number);
    st_segment_close(&segment, true);
    open_again(PAGES / 2);
    CHECK(!found.is_kept && found.lost_reason != NULL && segment.page_count == PAGES / 2);
    CHECK(check_all() == 0);
    st_segment_close(&segment, true);
}

/* Whoever maps the old words sees nothing live in them once they do not count. */
static void test_files_that_do_not_count_are_made_anew(void) {
    static const char *const names[] = {"geometry-0", "payload-0", "words-0"};
    for (size_t at = 0; at < 3 + 4; at++) {
        start_over();
        int fd = open(path_of("words-0"), O_RDONLY);
        const uint64_t *old = mmap(NULL, PAGES * sizeof *old, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(fd >= 0 && old != MAP_FAILED && old[page_of(1)] == ms_word(version_of(1), 1));
        close(fd);
        st_segment_options options = options_of(PAGES);
        what = at < 3 ? names[at] : "";
        if (at < 2) {
            CHECK(unlink(path_of(names[at])) == 0);
        } else if (at == 2) {
            CHECK(rename(path_of("words-0"), path_of("aside")) == 0);
        } else if (at == 3) {
            what = "another boot";
            options.boot_id[0]++;
        } else if (at == 4) {
            what = "readable by others";
            CHECK(chmod(path_of("payload-0"), 0644) == 0);
        } else if (at == 5) {
            what = "a reason of the caller";
            options.fresh_reason = "no";
        } else {
            what = "a hole";
            int payload = open(path_of("payload-0"), O_RDWR);
            int result = fallocate(payload, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                   (off_t)page_of(3) * MS_PAGE_SIZE, MS_PAGE_SIZE);
            CHECK(payload >= 0 && result == 0);
            close(payload);
        }
        open_with(&options);
        CHECK(!found.is_kept);
        CHECK(found.lost_reason != NULL);
        CHECK(check_all() == 0 && atomic_load(&segment.pages_ready) == 0);
        CHECK(at == 2 || old[page_of(1)] == 0);
        CHECK(st_segment_grow(&segment, PAGES) == MS_OK);
        seal(1);
        st_segment_close(&segment, true);
        open_again(PAGES);
        CHECK(at == 3 || (found.is_kept && check_all() == 1));
        st_segment_close(&segment, true);
        munmap((void *)(uintptr_t)old, PAGES * sizeof *old);
        unlink(path_of("aside"));
    }
    what = "";
}

/* Cut anywhere: what lies behind the cut is dropped, what lies before it is whole. */
static void test_a_file_that_is_too_short(void) {
    static const uint32_t cuts[] = {0, 1, 71, 72, 1024, 1471, 2731, 2999};
    for (int which = 0; which < 2; which++)
        for (size_t at = 0; at < sizeof cuts / sizeof cuts[0]; at++) {
            start_over();
            what = which == 0 ? "payload" : "words";
            size_t unit = which == 0 ? MS_PAGE_SIZE : sizeof(uint64_t);
            CHECK(truncate(path_of(which == 0 ? "payload-0" : "words-0"),
                           (off_t)(cuts[at] * unit + unit / 2)) == 0);
            open_again(PAGES);
            CHECK(found.is_kept && found.is_cut);
            CHECK(atomic_load(&segment.pages_ready) == cuts[at]);
            uint32_t whole = 0;
            while (whole < OBJECTS && page_of(whole) + 2 <= cuts[at])
                whole++;
            CHECK(check_all() == whole);
            CHECK(st_segment_grow(&segment, PAGES) == MS_OK);
            CHECK(atomic_load(&segment.pages_ready) == PAGES && check_all() == whole);
            st_segment_close(&segment, true);
        }
    what = "";
}

/* The 64 bytes of the geometry, each cut and each bit of them turned: never more than was there. */
static void test_a_damaged_geometry(void) {
    start_over();
    uint8_t good[64], bad[64];
    int fd = open(path_of("geometry-0"), O_RDONLY);
    CHECK(fd >= 0 && read(fd, good, sizeof good) == sizeof good);
    close(fd);
    for (uint32_t at = 0; at < sizeof good * 9; at++) {
        bool is_cut = at < sizeof good;
        uint32_t bit = at - (uint32_t)sizeof good;
        memcpy(bad, good, sizeof bad);
        if (!is_cut)
            bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        fd = open(path_of("geometry-0"), O_WRONLY | O_TRUNC);
        size_t length = is_cut ? at : sizeof bad;
        CHECK(fd >= 0 && write(fd, bad, length) == (ssize_t)length);
        close(fd);
        open_again(PAGES);
        /* A flip in the number of ready pages, or in its complement, costs the pages beyond at most. */
        bool in_ready = !is_cut && bit / 8 >= 48;
        CHECK(found.is_kept == in_ready);
        uint32_t left = check_all();
        CHECK(in_ready ? left <= OBJECTS : left == 0 && found.lost_reason != NULL);
        st_segment_close(&segment, true);
        start_over();
    }
}

/* Kills it at every step of making, growing, putting and removing; then twice more while it starts. */
static void test_a_kill_at_any_step(void) {
    uint32_t *said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(said != MAP_FAILED);
    bool is_through = false;
    long step = 0;
    while (!is_through) {
        step++;
        st_segment_erase(folder, NULL, "node");
        memset(said, 0, 4096);
        for (int life = 0; life < 3; life++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                steps_left = step;
                open_again(PAGES);
                while (atomic_load(&segment.pages_ready) < PAGES)
                    CHECK(st_segment_grow(&segment, 1024) == MS_OK);
                for (uint32_t number = 0; number < 6; number++) {
                    if (said[number] != 0)
                        continue; /* in an earlier life */
                    st_extent extent;
                    if (!st_inventory_find(segment.inventory, page_of(number), &extent) &&
                        segment.words[page_of(number)] == 0)
                        seal(number);
                    if (segment.words[page_of(number)] & 1)
                        said[number] = 1; /* acknowledged */
                }
                said[6] = 1;
                release(0);
                release(1);
                said[7] = 1;
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
            CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
            bool is_done = WEXITSTATUS(status) == 0;
            is_through |= is_done && life == 0;
            open_again(PAGES);
            uint32_t count = check_all();
            for (uint32_t number = 0; number < 6; number++) {
                st_extent extent;
                bool is_there = st_inventory_find(segment.inventory, page_of(number), &extent);
                CHECK(is_there || said[number] == 0 || (said[6] != 0 && number < 2));
                CHECK(!is_there || said[7] == 0 || number >= 2);
            }
            CHECK(count <= 6);
            st_segment_close(&segment, true);
            if (is_done)
                break;
        }
    }
    CHECK(step > 20); /* the steps are there */
    munmap(said, 4096);
}

int main(void) {
    /* tmpfs, as for a real pool: holes show there. */
    snprintf(folder, sizeof folder, "/dev/shm/st-kept-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    test_everything_is_taken_up();
    test_what_was_not_sealed_whole_is_settled();
    test_another_size();
    test_files_that_do_not_count_are_made_anew();
    test_a_file_that_is_too_short();
    test_a_damaged_geometry();
    test_a_kill_at_any_step();
    st_segment_erase(folder, NULL, "node");
    CHECK(rmdir(folder) == 0);
    return 0;
}

/* te_read and te_write over TCP (v4 and v6) and Unix sockets: every byte, in every shape. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include "engine_kit.h"

#define MIB (1u << 20)

static kit served;
static te_engine *asker;
static te_channel *channel;

static void open_pair(const char *host, bool over_unix, size_t length, uint32_t connections_max) {
    kit_open(&served, host, over_unix, length, NULL);
    asker = kit_asker();
    channel = kit_channel(asker, over_unix ? NULL : served.address,
                          over_unix ? served.unix_path : NULL, connections_max);
}

static void close_pair(void) {
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void read_and_check(uint32_t segment, uint64_t offset, uint64_t length, size_t count,
                           uint64_t stride) {
    ms_read_item *items = calloc(count, sizeof *items);
    void **targets = calloc(count, sizeof *targets);
    ms_read_result *results = calloc(count, sizeof *results);
    uint8_t *buffer = malloc(count * length + 1);
    CHECK(items != NULL && targets != NULL && results != NULL && buffer != NULL);
    memset(buffer, 0xee, count * length + 1);
    for (size_t i = 0; i < count; i++) {
        /* Scattered, and in another order than in memory. */
        size_t place = (i * 7 + 3) % count;
        while (targets[place] != NULL) {
            place = (place + 1) % count;
        }
        targets[place] = buffer + i * length;
        items[place] = (ms_read_item){.segment = segment,
                                      .offset = offset + i * stride,
                                      .length = length,
                                      .word = 41,
                                      .flags = 1};
    }
    CHECK_STATUS(te_read(channel, items, targets, count, results, in_ms(20000)), MS_OK);
    for (size_t i = 0; i < count; i++) {
        CHECK_STATUS(results[i].status, MS_OK);
        CHECK(results[i].word == (segment == 2 ? 41u : segment == 1 ? results[i].word : 0u));
        CHECK(has_pattern(targets[i], length, items[i].offset, 1));
    }
    CHECK(buffer[count * length] == 0xee);
    free(items);
    free(targets);
    free(results);
    free(buffer);
}

static void read_shapes(void) {
    for (uint32_t segment = 1; segment <= 2; segment++) {
        read_and_check(segment, 0, 0, 1, 0);
        read_and_check(segment, 5, 1, 1, 0);
        read_and_check(segment, 4096, 4096, 1, 0);
        read_and_check(segment, 17, 65536, 1, 0);
        read_and_check(segment, 17, 65537, 1, 0);
        read_and_check(segment, 0, 16, 64, 16);
        read_and_check(segment, 0, 16, 65, 16);
        read_and_check(segment, 0, 100, 2500, 137); /* more than one frame */
        read_and_check(segment, 0, 4096, 128, 8192);
        read_and_check(segment, 3, 65536, 128, 65536);
        read_and_check(segment, 1, 9 * MIB + 11, 1, 0);
        read_and_check(segment, 0, 3 * MIB + 5, 3, 3 * MIB + 5);
    }
}

static void reads_over_tcp_v4(void) {
    open_pair("127.0.0.1", false, 12 * MIB, 4);
    read_shapes();
    close_pair();
}

static void reads_over_tcp_v6(void) {
    open_pair("::1", false, 12 * MIB, 4);
    read_shapes();
    close_pair();
}

static void reads_over_unix(void) {
    open_pair("127.0.0.1", true, 12 * MIB, 4);
    read_shapes();
    CHECK(te_channel_is_local(channel));
    close_pair();
}

static void reads_over_one_connection(void) {
    open_pair("127.0.0.1", false, 12 * MIB, 1);
    read_shapes();
    close_pair();
}

/* Refused items send no bytes: the others must still be at their places. */
static void refused_reads_leave_the_others_right(void) {
    open_pair("127.0.0.1", false, 12 * MIB, 4);
    enum { COUNT = 97 };
    static uint8_t buffer[COUNT][5000];
    for (int large = 0; large < 2; large++) {
        uint64_t length = large ? 5000 : 300;
        ms_read_item items[COUNT];
        void *targets[COUNT];
        ms_read_result results[COUNT];
        for (int seed = 0; seed < 40; seed++) {
            for (size_t i = 0; i < COUNT; i++) {
                targets[i] = buffer[i];
                bool is_bad = (i * 2654435761u + (size_t)seed * 40503u) % 7 < (size_t)(seed % 7);
                items[i] =
                    (ms_read_item){.segment = is_bad && i % 2 ? 99 : 2,
                                   .offset = is_bad ? served.length - 1 : i * 6000 + (size_t)seed,
                                   .length = i % 5 == 0 ? length / 3 : length};
            }
            CHECK_STATUS(te_read(channel, items, targets, COUNT, results, in_ms(5000)), MS_OK);
            for (size_t i = 0; i < COUNT; i++) {
                if (items[i].segment == 99) {
                    CHECK_STATUS(results[i].status, MS_NOT_REGISTERED);
                } else if (items[i].offset == served.length - 1) {
                    CHECK_STATUS(results[i].status, MS_OUT_OF_RANGE);
                } else {
                    CHECK_STATUS(results[i].status, MS_OK);
                    CHECK(has_pattern(buffer[i], items[i].length, items[i].offset, 1));
                }
            }
        }
    }
    close_pair();
}

static void ops_refuse_reads_and_words_come_back(void) {
    open_pair("127.0.0.1", false, 8 * MIB, 4);
    served.refuse_read = MS_GONE;
    served.refuse_from = 4 * MIB;
    uint8_t *target = malloc(6 * MIB);
    CHECK(target != NULL);
    void *targets[] = {target, target + 100};
    ms_read_item items[] = {{.segment = 2, .offset = 4 * MIB, .length = 100},
                            {.segment = 2, .offset = 8, .length = 50}};
    ms_read_result results[2];
    CHECK_STATUS(te_read(channel, items, targets, 2, results, in_ms(5000)), MS_OK);
    CHECK_STATUS(results[0].status, MS_GONE);
    CHECK_STATUS(results[1].status, MS_OK);
    CHECK(results[1].word == 41 && has_pattern(target + 100, 50, 8, 1));
    /* One item over several frames: a piece that is refused refuses the item. */
    ms_read_item large = {.segment = 2, .offset = 3 * MIB, .length = 5 * MIB, .word = 41};
    CHECK_STATUS(te_read(channel, &large, targets, 1, results, in_ms(5000)), MS_OK);
    CHECK_STATUS(results[0].status, MS_GONE);
    served.refuse_read = MS_OK;
    large.word = 40;
    CHECK_STATUS(te_read(channel, &large, targets, 1, results, in_ms(5000)), MS_OK);
    CHECK(results[0].status == MS_OK && results[0].word == 41);
    free(target);
    close_pair();
}

/* `count` objects of `runs` pieces of `length` bytes each; a seal must find all its object's bytes. */
static void write_and_check_runs(uint64_t page, uint64_t offset, uint64_t length, size_t objects,
                                 size_t runs, bool sealed, uint64_t salt) {
    size_t count = objects * runs;
    ms_write_item *items = calloc(count, sizeof *items);
    const void **sources = calloc(count, sizeof *sources);
    uint32_t *statuses = calloc(count, sizeof *statuses);
    uint8_t *buffer = malloc(count * length + 1), *seals = malloc(objects * 16);
    CHECK(items != NULL && sources != NULL && statuses != NULL && buffer != NULL && seals != NULL);
    uint32_t pages = (uint32_t)((offset + runs * length) / MS_PAGE_SIZE + 1);
    for (size_t i = 0; i < count; i++) {
        size_t object = i / runs, run = i % runs;
        items[i] = (ms_write_item){.segment = 2,
                                   .page = (uint32_t)(page + object * pages),
                                   .page_count = pages,
                                   .version = 9,
                                   .offset = offset + run * length,
                                   .length = length,
                                   .seal_length = sealed && run == runs - 1 ? 16 : 0};
        sources[i] = buffer + i * length;
        uint64_t place = (uint64_t)items[i].page * MS_PAGE_SIZE + items[i].offset;
        fill_pattern(buffer + i * length, length, place, salt);
        memset(seals + object * 16, (int)object, 16);
    }
    int sealed_before = kit_count(&served, &served.sealed);
    memset(served.seals_of, 0, sizeof served.seals_of);
    served.seal_needs = runs * length;
    served.first_delay_ns = 30000000;
    served.extent_bytes = calloc(served.length / MS_PAGE_SIZE, sizeof *served.extent_bytes);
    CHECK(served.extent_bytes != NULL);
    CHECK_STATUS(te_write(channel, items, sources, count, seals, sealed ? objects * 16 : 0, 0,
                          statuses, in_ms(20000)),
                 MS_OK);
    for (size_t i = 0; i < count; i++) {
        uint64_t place = (uint64_t)items[i].page * MS_PAGE_SIZE + items[i].offset;
        CHECK_STATUS(statuses[i], MS_OK);
        CHECK(has_pattern(served.memory + place, length, place, salt));
    }
    CHECK(kit_count(&served, &served.sealed) == sealed_before + (sealed ? (int)objects : 0));
    CHECK(!sealed || served.last_seal_length == 16);
    for (size_t i = 0; i < 256 && sealed; i++) {
        CHECK(served.seals_of[i] == objects / 256 + (i < objects % 256));
    }
    free(served.extent_bytes);
    served.extent_bytes = NULL;
    served.first_delay_ns = 0;
    free(items);
    free(sources);
    free(statuses);
    free(buffer);
    free(seals);
}

static void write_and_check(uint64_t page, uint64_t offset, uint64_t length, size_t count,
                            bool sealed, uint64_t salt) {
    write_and_check_runs(page, offset, length, count, 1, sealed, salt);
}

static void write_shapes(void) {
    uint64_t salt = 100;
    for (int sealed = 0; sealed < 2; sealed++) {
        write_and_check(0, 0, 0, 1, sealed, salt++);
        write_and_check(3, 7, 1, 1, sealed, salt++);
        write_and_check(0, 0, 4096, 1, sealed, salt++);
        write_and_check(1, 0, 65536, 1, sealed, salt++);
        write_and_check(0, 0, 16, 128, sealed, salt++);
        write_and_check(0, 1, 3000, 1500, sealed, salt++);
        write_and_check(0, 0, 4096, 128, sealed, salt++);
        write_and_check(0, 0, 65000, 64, sealed, salt++);
        write_and_check(1, 0, 9 * MIB + 3, 1, sealed, salt++);
        write_and_check(1, 9, 9 * MIB + 3, 1, sealed, salt++);
        write_and_check(0, 0, 3 * MIB, 3, sealed, salt++);
        write_and_check_runs(0, 0, 70000, 5, 29, sealed, salt++);
        write_and_check_runs(2, 5, 3000, 700, 3, sealed, salt++);
        write_and_check_runs(0, 0, 2 * MIB + 5, 2, 3, sealed, salt++);
    }
}

static void writes_over_tcp_v4(void) {
    open_pair("127.0.0.1", false, 16 * MIB, 4);
    write_shapes();
    close_pair();
}

static void writes_over_unix(void) {
    open_pair("127.0.0.1", true, 16 * MIB, 4);
    write_shapes();
    close_pair();
}

/* Refused items among good ones: their bytes are thrown away, the others arrive, and each status
 * is told. */
static void refused_writes_touch_nothing(void) {
    open_pair("127.0.0.1", false, 8 * MIB, 4);
    served.refuse_write = MS_FENCED;
    served.refuse_from = 100;
    enum { COUNT = 50, LENGTH = 100000 };
    ms_write_item items[COUNT];
    const void *sources[COUNT];
    uint32_t statuses[COUNT];
    uint8_t *source = malloc(LENGTH);
    CHECK(source != NULL);
    memset(source, 0xab, LENGTH);
    for (int round = 0; round < 2; round++) {
        uint64_t length = round == 0 ? 3000 : LENGTH; /* larger than what is thrown away at once */
        memset(served.memory, 0, served.length);
        for (size_t i = 0; i < COUNT; i++) {
            items[i] = (ms_write_item){.segment = i % 7 == 5 ? 77 : 2,
                                       .page = i % 3 == 0 ? 100 + (uint32_t)i : (uint32_t)i * 30,
                                       .page_count = 30,
                                       .version = 3,
                                       .length = i % 11 == 10 ? 30 * 4096 + 1 : length};
            if (items[i].length > LENGTH) {
                items[i].length = LENGTH;
                items[i].page_count = 1;
            }
            sources[i] = source;
        }
        CHECK_STATUS(te_write(channel, items, sources, COUNT, NULL, 0, 0, statuses, in_ms(5000)),
                     MS_OK);
        size_t ok_bytes = 0, set_bytes = 0;
        for (size_t i = 0; i < COUNT; i++) {
            uint32_t wanted = items[i].segment == 77                            ? MS_NOT_REGISTERED
                              : items[i].length > items[i].page_count * 4096ull ? MS_OUT_OF_RANGE
                              : (items[i].page + 30) * 4096ull > served.length  ? statuses[i]
                              : items[i].page >= 100                            ? MS_FENCED
                                                                                : MS_OK;
            CHECK_STATUS(statuses[i], wanted);
            ok_bytes += statuses[i] == MS_OK ? items[i].length : 0;
        }
        for (size_t i = 0; i < served.length; i++) {
            set_bytes += served.memory[i] == 0xab;
        }
        CHECK(ok_bytes == set_bytes && ok_bytes > 0);
    }
    free(source);
    close_pair();
}

static void plain_memory_is_written_at_offsets(void) {
    open_pair("::1", false, MIB, 4);
    uint8_t source[5000];
    fill_pattern(source, sizeof source, 0, 77);
    const void *sources[] = {source, source + 1000, source};
    ms_write_item items[] = {
        {.segment = 1, .offset = 11, .length = 1000},
        {.segment = 1, .offset = MIB - 4000, .length = 4000},
        {.segment = 1, .offset = MIB - 4000, .length = 4001},
    };
    uint32_t statuses[3];
    CHECK_STATUS(te_write(channel, items, sources, 3, NULL, 0, 0, statuses, in_ms(5000)), MS_OK);
    CHECK(statuses[0] == MS_OK && statuses[1] == MS_OK && statuses[2] == MS_OUT_OF_RANGE);
    CHECK(memcmp(served.memory + 11, source, 1000) == 0);
    CHECK(memcmp(served.memory + MIB - 4000, source + 1000, 4000) == 0);
    CHECK(served.memory[MIB - 4001] == 0 ||
          has_pattern(served.memory + MIB - 4001, 1, MIB - 4001, 1));
    /* A seal is for segments that keep records. */
    items[0].seal_length = 8;
    CHECK_STATUS(te_write(channel, items, sources, 1, "12345678", 8, 0, statuses, in_ms(5000)),
                 MS_OK);
    CHECK_STATUS(statuses[0], MS_BAD_REQUEST);
    CHECK_STATUS(te_write(channel, items, sources, 1, "1234", 4, 0, statuses, in_ms(5000)),
                 MS_BAD_REQUEST);
    CHECK_STATUS(
        te_write(channel, items, sources, 1, "12345678", 8, MS_FLAG_RELAY, statuses, in_ms(5000)),
        MS_BAD_REQUEST);
    close_pair();
}

/* Eight threads read and write ranges of their own over one channel. */
typedef struct mover {
    int number;
    pthread_t thread;
} mover;

static void *move_around(void *argument) {
    mover *own = argument;
    size_t length = 700000;
    uint64_t base = (uint64_t)own->number * MIB;
    uint8_t *bytes = malloc(length), *back = malloc(length);
    CHECK(bytes != NULL && back != NULL);
    for (uint64_t round = 0; round < 12; round++) {
        fill_pattern(bytes, length, base, 1000 + round);
        const void *source = bytes;
        void *target = back;
        ms_write_item written = {.segment = 1, .offset = base, .length = length};
        ms_read_item read = {.segment = 1, .offset = base, .length = length};
        uint32_t status;
        ms_read_result result;
        CHECK_STATUS(te_write(channel, &written, &source, 1, NULL, 0, 0, &status, in_ms(30000)),
                     MS_OK);
        CHECK_STATUS(status, MS_OK);
        CHECK_STATUS(te_read(channel, &read, &target, 1, &result, in_ms(30000)), MS_OK);
        CHECK(result.status == MS_OK && memcmp(bytes, back, length) == 0);
    }
    free(bytes);
    free(back);
    return NULL;
}

static void threads_share_a_channel(void) {
    open_pair("127.0.0.1", false, 8 * MIB, 3);
    mover movers[8];
    for (int i = 0; i < 8; i++) {
        movers[i].number = i;
        CHECK(pthread_create(&movers[i].thread, NULL, move_around, &movers[i]) == 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(movers[i].thread, NULL);
    }
    close_pair();
}

static bool any(void *match_context, void *peer_context) {
    (void)match_context;
    (void)peer_context;
    return true;
}

static _Atomic bool is_cutting;

/* Cuts every connection of the peer, again and again. */
static void *cut_connections(void *unused) {
    (void)unused;
    while (atomic_load(&is_cutting)) {
        usleep(6000);
        (void)te_close_matching(served.engine, any, NULL, "the test cuts");
    }
    return NULL;
}

/* A broken connection costs another try, or an error: never a wrong byte, nor one that comes late.  What was
 * begun on a connection has ended before its end is seen (the ops' lock tells the thread sanitizer). */
static void connections_are_cut_under_way(void) {
    open_pair("127.0.0.1", false, 12 * MIB, 4);
    size_t length = 5 * MIB;
    uint8_t *bytes = malloc(length);
    CHECK(bytes != NULL);
    pthread_t cutter;
    atomic_store(&is_cutting, true);
    CHECK(pthread_create(&cutter, NULL, cut_connections, NULL) == 0);
    int good = 0;
    for (uint64_t round = 0; round < 60; round++) {
        void *target = bytes;
        const void *source = bytes;
        ms_status status;
        if (round % 3 == 2) {
            uint32_t one;
            ms_write_item item = {.segment = 2, .offset = MIB, .length = length};
            fill_pattern(bytes, length, MIB, 1); /* what is there already */
            status = te_write(channel, &item, &source, 1, NULL, 0, 0, &one, in_ms(5000));
            CHECK(status == MS_OK ? one == MS_OK : one == status);
        } else {
            ms_read_result one;
            ms_read_item item = {.segment = 2, .offset = 77, .length = length};
            memset(bytes, 0, length);
            status = te_read(channel, &item, &target, 1, &one, in_ms(5000));
            CHECK(one.status == status && (status != MS_OK || has_pattern(bytes, length, 77, 1)));
        }
        CHECK(status == MS_OK || status == MS_UNAVAILABLE);
        good += status == MS_OK;
        memset(bytes, 0x77, length);
        usleep(500);
        CHECK(is_all(bytes, length, 0x77));
    }
    atomic_store(&is_cutting, false);
    pthread_join(cutter, NULL);
    CHECK(good > 0);
    CHECK(has_pattern(served.memory, served.length, 0, 1));
    free(bytes);
    close_pair();
}

/* Who sees the end of a connection and writes again over another one meets nothing of the first. */
static void a_write_ends_before_its_connection(void) {
    open_pair("127.0.0.1", false, 12 * MIB, 1);
    served.first_delay_ns = 3000000;
    size_t length = 5 * MIB;
    uint8_t *bytes = malloc(length);
    CHECK(bytes != NULL);
    fill_pattern(bytes, length, 0, 1); /* what is there already */
    pthread_t cutter;
    atomic_store(&is_cutting, true);
    CHECK(pthread_create(&cutter, NULL, cut_connections, NULL) == 0);
    for (int round = 0; round < 40; round++) {
        uint32_t one;
        const void *source = bytes;
        ms_write_item item = {.segment = 2, .length = length};
        ms_status status = te_write(channel, &item, &source, 1, NULL, 0, 0, &one, in_ms(5000));
        CHECK(status == MS_OK || status == MS_UNAVAILABLE);
    }
    atomic_store(&is_cutting, false);
    pthread_join(cutter, NULL);
    served.first_delay_ns = 0;
    pthread_mutex_lock(&served.lock);
    CHECK(served.incomplete > 0);
    CHECK(served.writes_most == 1);
    pthread_mutex_unlock(&served.lock);
    free(bytes);
    close_pair();
}

int main(int argc, char **argv) {
    RUN(reads_over_tcp_v4);
    RUN(reads_over_tcp_v6);
    RUN(reads_over_unix);
    RUN(reads_over_one_connection);
    RUN(refused_reads_leave_the_others_right);
    RUN(ops_refuse_reads_and_words_come_back);
    RUN(writes_over_tcp_v4);
    RUN(writes_over_unix);
    RUN(refused_writes_touch_nothing);
    RUN(plain_memory_is_written_at_offsets);
    RUN(threads_share_a_channel);
    RUN(connections_are_cut_under_way);
    RUN(a_write_ends_before_its_connection);
    return 0;
}

/* The stale-read hunt: readers with locations of any age against extents that are freed and used again.
 *
 * A master (the movers), writers and readers do their worst to a real store server in this process:
 *
 *   movers    own a stretch of pages each.  They put objects of random length at random places, publish their
 *             locations, free them while they are read, and use the pages again, cut differently.  Some puts
 *             freeze half way (their session is fenced) and go on when their pages hold something else; some
 *             are abandoned; some old grants are used again.
 *   readers   take a published location, often an old one, and read: half of them over TCP, half through a
 *             read-only mapping.  They stop anywhere, for as long as they like.
 *
 * An object's bytes come from its version, so a read proves itself: when the word says that it was the object,
 * it must be the object.  Delays are put between any two steps of server, writers and readers.
 *
 * With the comparison of words left out, or with FREED answered while a copy runs, the hunt must find a wrong
 * read: tests/c/stale_read_planted_test.c. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>

#include "../c/st_fixture.h"
#include "st_step.h"

#define EPOCH 3u
#define POOL_PAGES 256u
#define MOVERS 2u
#define READERS 4u /* even: TCP, odd: shared memory */
#define OBJECT_PAGES_MAX 12u
#define LIVE_MAX 6u    /* objects of a mover */
#define PUBLISHED 512u /* locations that readers choose from */
#define FROZEN_MAX 8u  /* writers of a mover that may yet wake up */
#define STALL_S 60

typedef struct location {
    uint32_t page, page_count;
    uint64_t version, length;
} location;

/* ---- chance ------------------------------------------------------------------------------------------ */

static uint64_t seed;
static _Atomic uint64_t generator_count;
static _Thread_local uint64_t generator;

static uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static uint64_t chance(uint64_t below) {
    if (generator == 0)
        generator =
            mix(seed + (atomic_fetch_add(&generator_count, 1) + 1) * 0x9e3779b97f4a7c15u) | 1;
    generator += 0x9e3779b97f4a7c15u;
    return mix(generator) % below;
}

/* Nothing, a turn of the scheduler, or a sleep: what a frozen process or a slow network is to the others. */
static void delay(uint64_t rarity) {
    if (chance(rarity) != 0)
        return;
    uint64_t kind = chance(64);
    if (kind < 40)
        sched_yield();
    else
        nanosleep(
            &(struct timespec){.tv_nsec = (long)(1000 + chance(kind < 62 ? 100000 : 3000000))},
            NULL);
}

void st_step(const char *name) {
    (void)name;
    delay(256);
}

static bool is_planted[2];

bool st_is_planted(enum st_fault fault) { return is_planted[fault]; }

/* ---- objects that prove themselves ----------------------------------------------------------------------- */

static uint64_t word_of_object(uint64_t version, size_t at) {
    return mix(version * 0x9e3779b97f4a7c15u + at);
}

static void make_object(uint64_t *bytes, uint64_t version, size_t length) {
    for (size_t at = 0; at < (length + 7) / 8; at++)
        bytes[at] = word_of_object(version, at);
}

static bool is_object(const uint64_t *bytes, uint64_t version, size_t length) {
    for (size_t at = 0; at < length / 8; at++) {
        if (bytes[at] != word_of_object(version, at))
            return false;
    }
    return true;
}

/* ---- what all share ------------------------------------------------------------------------------------------ */

typedef struct hunt {
    node node;
    te_engine *master; /* its end of the server's connection */
    char address[64];
    _Atomic te_peer server;
    _Atomic uint64_t
        freed[POOL_PAGES]; /* version of the last FREED of the extent that begins there */
    pthread_mutex_t lock;
    location published[PUBLISHED];
    uint64_t published_count;
    _Atomic uint64_t sequence, session;
    _Atomic bool is_over;
    uint64_t reads_wanted; /* of each kind */
    _Atomic uint64_t reads[2], hits[2], misses[2], wrong, puts, frozen, woken, stale_writes, waits;
} hunt;

static hunt all;

static ms_status on_hello(void *context, const te_request *request, uint8_t answer[4096],
                          uint32_t *answer_length, void **peer_context, char *error) {
    master unused = {0};
    ms_status status =
        master_on_hello(&unused, request, answer, answer_length, peer_context, error);
    (void)context;
    *peer_context = &all;
    atomic_store(&all.server, request->peer);
    return status;
}

static void on_request(void *context, const te_request *request) {
    (void)context;
    if (request->header->method != MS_FREED)
        return;
    ms_free_view view;
    CHECK(ms_read_free(request->body, request->header->body_length, &view));
    for (uint32_t at = 0; at < view.items.count; at++) {
        ms_free_item item;
        MS_ARRAY_GET(view.items, at, &item);
        uint64_t known = atomic_load(&all.freed[item.page]);
        while (known < item.version &&
               !atomic_compare_exchange_weak(&all.freed[item.page], &known, item.version))
            ;
    }
}

static void on_close(void *context, te_peer peer, void *peer_context, const char *reason) {
    (void)context, (void)peer, (void)peer_context, (void)reason;
}

static void send_free(const location *of, uint64_t session) {
    uint8_t body[64];
    ms_writer out = ms_writer_fixed(body, sizeof body);
    ms_free_item item = free_item(of->page, of->page_count, of->version, session);
    ms_writer_u32(&out, EPOCH);
    ms_writer_u32(&out, all.node.status.incarnation);
    ms_writer_array(&out, &item, 1, sizeof item);
    struct iovec part = {out.data, out.length};
    CHECK_STATUS(te_push(all.master, atomic_load(&all.server), MS_ONEWAY, MS_FREE, 0, 0, &part, 1),
                 MS_OK);
}

/* FREE, now and then twice; returns with FREED: only then may the pages be granted again. */
static void free_object(const location *of, uint64_t session) {
    send_free(of, session);
    delay(8);
    if (chance(8) == 0)
        send_free(of, session);
    int64_t deadline_ns = in_seconds(STALL_S);
    for (uint32_t turn = 0; atomic_load(&all.freed[of->page]) < of->version; turn++) {
        if (turn == 0)
            atomic_fetch_add(&all.waits, 1);
        CHECK(te_now_ns() < deadline_ns);
        if (turn < 50)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

static void publish(const location *of) {
    pthread_mutex_lock(&all.lock);
    all.published[all.published_count++ % PUBLISHED] = *of;
    pthread_mutex_unlock(&all.lock);
}

/* Any of the newest 16 half of the time, else any that is remembered. */
static bool choose(location *of) {
    pthread_mutex_lock(&all.lock);
    uint64_t count = all.published_count;
    if (count != 0) {
        uint64_t back = count < PUBLISHED ? count : PUBLISHED;
        if (back > 16 && chance(2) == 0)
            back = 16;
        *of = all.published[(count - 1 - chance(back)) % PUBLISHED];
    }
    pthread_mutex_unlock(&all.lock);
    return count != 0;
}

/* ---- movers ------------------------------------------------------------------------------------------------------ */

typedef struct sleeper {
    int socket;
    size_t sent, length;
    uint64_t *bytes;
} sleeper;

typedef struct mover {
    uint32_t first, end; /* its pages */
    bool is_used[POOL_PAGES];
    location live[LIVE_MAX];
    uint32_t live_count;
    location past[64]; /* grants that were taken back or freed */
    uint64_t past_count;
    sleeper frozen[FROZEN_MAX];
    uint32_t frozen_count;
    client writers[2]; /* TCP, Unix */
    uint64_t *loaned;  /* memory that the server copies from */
    uint64_t bytes[OBJECT_PAGES_MAX * MS_PAGE_SIZE / 8];
} mover;

/* A free run of random length at a random place; false: none there. */
static bool grant(mover *self, location *out) {
    uint32_t pages = 1 + (uint32_t)chance(chance(3) == 0 ? OBJECT_PAGES_MAX : 3);
    uint32_t from = self->first + (uint32_t)chance(self->end - self->first - pages + 1);
    for (uint32_t page = from; page < from + pages; page++) {
        if (self->is_used[page])
            return false;
    }
    for (uint32_t page = from; page < from + pages; page++)
        self->is_used[page] = true;
    *out = (location){.page = from,
                      .page_count = pages,
                      .version = ms_version(EPOCH, atomic_fetch_add(&all.sequence, 1) + 1),
                      .length = (pages - 1) * MS_PAGE_SIZE + 8 * (1 + chance(MS_PAGE_SIZE / 8))};
    return true;
}

static void take_back(mover *self, const location *of) {
    for (uint32_t page = of->page; page < of->page + of->page_count; page++)
        self->is_used[page] = false;
    self->past[self->past_count++ % 64] = *of;
}

static put put_of(const mover *self, const location *of) {
    return (put){.page = of->page,
                 .page_count = of->page_count,
                 .version = of->version,
                 .bytes = self->bytes,
                 .length = of->length};
}

static ms_status write_from_loan(mover *self, const put *put) {
    uint8_t seal[256];
    uint32_t source, answered = MS_INTERNAL;
    uint64_t offset;
    client *writer = &self->writers[1];
    memcpy(self->loaned, put->bytes, put->length);
    CHECK_STATUS(
        te_share(writer->channel, self->loaned, put->length, &source, &offset, in_seconds(STALL_S)),
        MS_OK);
    ms_write_item item = {.page = put->page,
                          .page_count = put->page_count,
                          .source = source,
                          .source_offset = offset,
                          .version = put->version,
                          .length = put->length,
                          .seal_length = (uint32_t)seal_write(seal, sizeof seal, put)};
    const void *none = NULL;
    ms_status status = te_write(writer->channel, &item, &none, 1, seal, item.seal_length, 0,
                                &answered, in_seconds(STALL_S));
    return status != MS_OK ? status : (ms_status)answered;
}

static void put_object(mover *self, const location *of) {
    put put = put_of(self, of);
    make_object(self->bytes, of->version, of->length);
    ms_status status;
    switch (chance(4)) {
    case 0:
        status = client_put(&self->writers[0], &put);
        break;
    case 1:
        status = client_put(&self->writers[1], &put);
        break;
    case 2:
        status = write_from_loan(self, &put);
        break;
    default: /* bytes and seal apart */
        CHECK_STATUS(client_write(&self->writers[chance(2)], &put), MS_OK);
        delay(8);
        put.size = put.length;
        put.length = 0;
        status = client_put(&self->writers[chance(2)], &put);
        break;
    }
    /* Somebody still writes into pages that FREED has given back: the engine asks a BUSY seal again, and tells at last that
     * nobody knows. */
    if (status == MS_BUSY || (status == MS_UNAVAILABLE && is_planted[ST_FAULT_FREED_EARLY])) {
        atomic_fetch_add(&all.wrong, 1);
        fprintf(stderr, "PAGES IN USE WERE GRANTED: page %u, version %llu\n", of->page,
                (unsigned long long)of->version);
        atomic_store(&all.is_over, true);
        take_back(self, of);
        return;
    }
    CHECK_STATUS(status, MS_OK);
    atomic_fetch_add(&all.puts, 1);
    self->live[self->live_count++] = *of;
    publish(of);
}

static void wake(mover *self, uint32_t at) {
    sleeper *sleeper = &self->frozen[at];
    ssize_t sent = send(sleeper->socket, (const uint8_t *)sleeper->bytes + sleeper->sent,
                        sleeper->length - sleeper->sent, MSG_NOSIGNAL);
    (void)sent;
    delay(4);
    close(sleeper->socket);
    free(sleeper->bytes);
    *sleeper = self->frozen[--self->frozen_count];
    atomic_fetch_add(&all.woken, 1);
}

/* A put whose process stops in the middle; its session is fenced, its pages are taken back. */
static void freeze(mover *self, const location *of) {
    sleeper *sleeper = &self->frozen[self->frozen_count];
    put put = put_of(self, of);
    uint64_t session = ms_version(EPOCH, atomic_fetch_add(&all.session, 1));
    make_object(self->bytes, of->version, of->length);
    sleeper->length = of->length;
    sleeper->sent = chance(of->length);
    sleeper->bytes = malloc(of->length);
    CHECK(sleeper->bytes != NULL);
    memcpy(sleeper->bytes, self->bytes, of->length);
    sleeper->socket = frozen_writer(&all.node, EPOCH, &put, session, sleeper->sent);
    self->frozen_count++;
    atomic_fetch_add(&all.frozen, 1);
    if (chance(4) == 0)
        publish(of); /* it was never complete: every read of it must miss */
    delay(2);
    if (chance(2) == 0) {
        free_object(of, session);
    } else {
        /* Without a fence FREED waits for the writer: it has to wake up, and must not find other's pages. */
        send_free(of, 0);
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        if (atomic_load(&all.freed[of->page]) < of->version) {
            wake(self, self->frozen_count - 1);
            free_object(of, 0);
        }
    }
    take_back(self, of);
}
/* A grant of the past is used again: a writer that was away. */
static void write_stale(mover *self) {
    if (self->past_count == 0)
        return;
    location of = self->past[chance(self->past_count < 64 ? self->past_count : 64)];
    put put = put_of(self, &of);
    make_object(self->bytes, of.version, of.length);
    ms_status status = client_put(&self->writers[chance(2)], &put);
    CHECK(status == MS_GONE);
    atomic_fetch_add(&all.stale_writes, 1);
}

static void *move(void *argument) {
    mover *self = argument;
    while (!atomic_load(&all.is_over)) {
        location of;
        uint64_t what = chance(16);
        if (what == 0 && self->frozen_count != 0) {
            wake(self, (uint32_t)chance(self->frozen_count));
        } else if (what == 1) {
            write_stale(self);
        } else if (self->live_count == LIVE_MAX || (what < 6 && self->live_count != 0)) {
            uint32_t at = (uint32_t)chance(self->live_count);
            of = self->live[at];
            self->live[at] = self->live[--self->live_count];
            free_object(&of, 0);
            take_back(self, &of);
        } else if (grant(self, &of)) {
            if (what == 15 && self->frozen_count < FROZEN_MAX) {
                freeze(self, &of);
            } else if (what == 14) { /* begun and given up */
                put put = put_of(self, &of);
                make_object(self->bytes, of.version, of.length);
                CHECK_STATUS(client_write(&self->writers[chance(2)], &put), MS_OK);
                free_object(&of, 0);
                take_back(self, &of);
            } else {
                put_object(self, &of);
            }
        }
        delay(8);
    }
    while (self->frozen_count != 0)
        wake(self, 0);
    return NULL;
}

/* ---- readers ---------------------------------------------------------------------------------------------------------- */

/* The comparison that makes a read certain, on every read *(check_always)*. */
static bool is_same_word(uint64_t found, uint64_t wanted) {
    return found == wanted || is_planted[ST_FAULT_NO_WORD_CHECK];
}

static bool read_tcp(client *client, const location *of, uint64_t *bytes) {
    ms_read_item item = {.flags = 1,
                         .offset = (uint64_t)of->page * MS_PAGE_SIZE,
                         .length = of->length,
                         .word = ms_word(of->version, 1),
                         .guard_page = of->page};
    ms_read_result result = {.status = MS_INTERNAL};
    void *target = bytes;
    CHECK_STATUS(te_read(client->channel, &item, &target, 1, &result, in_seconds(STALL_S)), MS_OK);
    CHECK(result.status == MS_OK || result.status == MS_GONE);
    return result.status == MS_OK && is_same_word(result.word, item.word);
}

static bool read_mapped(const te_mapping *mapping, const location *of, uint64_t *bytes) {
    const uint8_t *source = mapping->payload + (size_t)of->page * MS_PAGE_SIZE;
    for (uint64_t at = 0; at < of->length;) {
        uint64_t step = of->length - at < 4096 ? of->length - at : 4096;
        memcpy((uint8_t *)bytes + at, source + at, step);
        at += step;
        delay(32);
    }
    atomic_thread_fence(memory_order_acquire);
    uint64_t word = __atomic_load_n(&mapping->words[of->page], __ATOMIC_ACQUIRE);
    return is_same_word(word, ms_word(of->version, 1));
}

typedef struct reader {
    client client;
    te_mapping mapping;
    bool is_mapped;
    uint64_t bytes[OBJECT_PAGES_MAX * MS_PAGE_SIZE / 8];
} reader;

static void *hunt_reads(void *argument) {
    reader *self = argument;
    location of = {0};
    while (!atomic_load(&all.is_over)) {
        /* Stay with a location for some reads: it is freed under way sooner or later. */
        if ((of.version == 0 || chance(4) == 0) && !choose(&of)) {
            sched_yield();
            continue;
        }
        delay(16);
        bool is_hit = self->is_mapped ? read_mapped(&self->mapping, &of, self->bytes)
                                      : read_tcp(&self->client, &of, self->bytes);
        if (is_hit && !is_object(self->bytes, of.version, of.length)) {
            atomic_fetch_add(&all.wrong, 1);
            fprintf(stderr, "WRONG READ over %s: page %u, version %llu, %llu bytes\n",
                    self->is_mapped ? "shared memory" : "TCP", of.page,
                    (unsigned long long)of.version, (unsigned long long)of.length);
            atomic_store(&all.is_over, true);
        }
        atomic_fetch_add(is_hit ? &all.hits[self->is_mapped] : &all.misses[self->is_mapped], 1);
        if (atomic_fetch_add(&all.reads[self->is_mapped], 1) + 1 >= all.reads_wanted) {
            if (atomic_load(&all.reads[!self->is_mapped]) >= all.reads_wanted)
                atomic_store(&all.is_over, true);
            return NULL;
        }
    }
    return NULL;
}

/* ---- the run -------------------------------------------------------------------------------------------------------------- */

static void open_all(void) {
    pthread_mutex_init(&all.lock, NULL);
    te_engine_config config;
    te_engine_config_default(&config);
    config.io_threads = 1;
    CHECK_STATUS(te_engine_open(&config, &all.master), MS_OK);
    te_service service = {.on_hello = on_hello,
                          .on_request = on_request,
                          .on_answer = on_request,
                          .on_close = on_close};
    te_serve(all.master, &service);
    uint16_t port;
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_listen_tcp(all.master, "127.0.0.1", 0, &port, error), MS_OK);
    snprintf(all.address, sizeof all.address, "127.0.0.1:%u", port);
    node_open(&all.node, POOL_PAGES * MS_PAGE_SIZE, all.address);
    while (node_counter(&all.node, "master_dials_total") == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ms_adopt adopt = {.epoch = EPOCH};
    struct iovec part = {&adopt, sizeof adopt};
    CHECK_STATUS(
        te_push(all.master, atomic_load(&all.server), MS_REQUEST, MS_ADOPT, 0, 1, &part, 1), MS_OK);
    node_wait_adopted(&all.node);
    atomic_store(&all.session, 1000);
}

/* False: a read returned something else than its object. */
static bool hunt_stale_reads(uint64_t reads) {
    all.reads_wanted = (reads + 1) / 2;
    open_all();
    static mover movers[MOVERS];
    static reader readers[READERS];
    pthread_t threads[MOVERS + READERS];
    for (uint32_t at = 0; at < MOVERS; at++) {
        mover *self = &movers[at];
        self->first = at * POOL_PAGES / MOVERS;
        self->end = (at + 1) * POOL_PAGES / MOVERS;
        for (int is_unix = 0; is_unix < 2; is_unix++)
            client_open(&self->writers[is_unix], &all.node, is_unix, ms_version(EPOCH, 10 + at),
                        EPOCH, MS_RIGHT_WRITE);
        void *loaned;
        CHECK_STATUS(te_shared_alloc(self->writers[1].engine, sizeof self->bytes, &loaned), MS_OK);
        self->loaned = loaned;
        CHECK(pthread_create(&threads[at], NULL, move, self) == 0);
    }
    for (uint32_t at = 0; at < READERS; at++) {
        reader *self = &readers[at];
        self->is_mapped = at % 2 == 1;
        client_open(&self->client, &all.node, self->is_mapped, 0, 0, MS_RIGHT_READ);
        if (self->is_mapped)
            CHECK_STATUS(te_attach(self->client.channel, 0, in_seconds(10), &self->mapping), MS_OK);
        CHECK(pthread_create(&threads[MOVERS + at], NULL, hunt_reads, self) == 0);
    }
    for (uint32_t at = 0; at < MOVERS + READERS; at++)
        pthread_join(threads[at], NULL);
    for (uint32_t at = 0; at < MOVERS; at++) {
        te_shared_free(movers[at].writers[1].engine, movers[at].loaned);
        client_close(&movers[at].writers[0]);
        client_close(&movers[at].writers[1]);
    }
    for (uint32_t at = 0; at < READERS; at++)
        client_close(&readers[at].client);
    node_close(&all.node);
    te_engine_close(all.master);
    pthread_mutex_destroy(&all.lock);
    return atomic_load(&all.wrong) == 0;
}

static void report(void) {
    fprintf(stderr,
            "%llu reads: TCP %llu objects, %llu misses; shared memory %llu objects, %llu misses; "
            "%llu wrong\n"
            "%llu puts, %llu frozen, %llu woken, %llu late writes refused, %llu frees that waited; "
            "seed %llu\n",
            (unsigned long long)(all.reads[0] + all.reads[1]), (unsigned long long)all.hits[0],
            (unsigned long long)all.misses[0], (unsigned long long)all.hits[1],
            (unsigned long long)all.misses[1], (unsigned long long)all.wrong,
            (unsigned long long)all.puts, (unsigned long long)all.frozen,
            (unsigned long long)all.woken, (unsigned long long)all.stale_writes,
            (unsigned long long)all.waits, (unsigned long long)seed);
}

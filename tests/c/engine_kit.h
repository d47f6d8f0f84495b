/* What the engine's tests share: checks, a service that echoes, a segment whose ops can be made to
 * refuse. */
#ifndef ENGINE_KIT_H
#define ENGINE_KIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pause.h"
#include "te.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_STATUS(got, wanted)                                                                  \
    do {                                                                                           \
        int got_ = (int)(got), wanted_ = (int)(wanted);                                            \
        if (got_ != wanted_) {                                                                     \
            fprintf(stderr, "%s:%d: %s is %d, not %d\n", __FILE__, __LINE__, #got, got_, wanted_); \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* NAME_test PART runs those tests only whose names contain PART. */
#define RUN(test)                                                                                  \
    do {                                                                                           \
        if (argc < 2 || strstr(#test, argv[1]) != NULL) {                                          \
            fprintf(stderr, "%s\n", #test);                                                        \
            test();                                                                                \
        }                                                                                          \
    } while (0)

/* Methods of the test service. */
enum {
    KIT_ECHO = 0x60,
    KIT_LATER = 0x61,
    KIT_SILENT = 0x62,
    KIT_PAYLOAD = 0x63,
    KIT_REFUSE = 0x64
};

static inline int64_t in_ms(int64_t milliseconds) { return te_now_ns() + milliseconds * 1000000; }

/* Bytes that tell where they belong: each 8-byte word is a mix of its place and of `salt`. */
static inline void fill_pattern(uint8_t *bytes, size_t length, uint64_t place, uint64_t salt) {
    for (size_t done = 0; done < length;) {
        uint64_t at = place + done;
        uint64_t mixed =
            (at / 8 + salt * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);
        mixed ^= mixed >> 32;
        size_t skip = at % 8, piece = 8 - skip < length - done ? 8 - skip : length - done;
        memcpy(bytes + done, (uint8_t *)&mixed + skip, piece);
        done += piece;
    }
}

static inline bool has_pattern(const uint8_t *bytes, size_t length, uint64_t place, uint64_t salt) {
    uint8_t expected[4096];
    for (size_t done = 0; done < length;) {
        size_t piece = length - done < sizeof expected ? length - done : sizeof expected;
        fill_pattern(expected, piece, place + done, salt);
        if (memcmp(expected, bytes + done, piece) != 0) {
            return false;
        }
        done += piece;
    }
    return true;
}

static inline bool is_all(const uint8_t *bytes, size_t length, uint8_t value) {
    return length == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, length - 1) == 0);
}

/* ---- a serving engine ------------------------------------------------------------------------- */

typedef struct kit {
    te_engine *engine;
    uint16_t port;
    char address[64];
    char unix_path[108];
    uint8_t *memory; /* segment 1: plain; segment 2: the same with ops */
    size_t length;

    _Atomic int hellos, closes, requests, answers, ticks;
    _Atomic ms_status refuse_hello;
    /* ops of segment 2 */
    pthread_mutex_t lock;
    int reads_open, writes_open, writes_most; /* most: that were open at once */
    int sealed, incomplete;
    uint64_t word;
    ms_status refuse_read, refuse_write; /* for offsets (reads) or pages (writes) >= refuse_from */
    uint64_t refuse_from;
    bool swallow_done; /* write_done says that it answers */
    uint8_t last_seal[256];
    size_t last_seal_length;
    /* When set: bytes that have arrived in the extent that begins at a page, and what a seal of it finds
     * must be there, the same for all; last_seal[0] says which object, modulo 256. */
    uint64_t *extent_bytes, seal_needs;
    uint32_t seals_of[256];
    long first_delay_ns; /* of a large piece at the beginning of an extent: its end comes late */
    char last_reason[160];
    pthread_t later;
    bool has_later;
} kit;

typedef struct kit_later {
    kit *served;
    te_peer peer;
    ms_header header;
    uint8_t body[64];
} kit_later;

static inline void *kit_answer_later(void *argument) {
    kit_later *later = argument;
    pause_ms(20);
    struct iovec body = {.iov_base = later->body, .iov_len = later->header.body_length};
    (void)te_answer(later->served->engine, later->peer, &later->header, MS_OK, &body, 1, NULL, 0);
    free(later);
    return NULL;
}

static inline ms_status kit_hello(void *context, const te_request *request, uint8_t answer[4096],
                                  uint32_t *length, void **peer_context, char *error) {
    kit *served = context;
    ms_hello hello;
    CHECK(request->header->body_length >= sizeof hello);
    memcpy(&hello, request->body, sizeof hello);
    atomic_fetch_add(&served->hellos, 1);
    ms_status refuse = atomic_load(&served->refuse_hello);
    if (refuse != MS_OK) {
        snprintf(error, TE_ERROR_BYTES, "the test refuses HELLO");
        return refuse;
    }
    ms_hello_answer fixed = {.version = MS_WIRE_VERSION, .epoch = 7, .session = hello.session};
    memset(answer, 0, sizeof fixed + 8);
    memcpy(answer, &fixed, sizeof fixed);
    *length = sizeof fixed + 8;
    *peer_context = (void *)(uintptr_t)hello.session;
    return MS_OK;
}

static inline void kit_request(void *context, const te_request *request) {
    kit *served = context;
    const ms_header *header = request->header;
    atomic_fetch_add(&served->requests, 1);
    struct iovec body = {.iov_base = (void *)(uintptr_t)request->body,
                         .iov_len = header->body_length};
    switch (header->method) {
    case KIT_ECHO:
        if (header->kind == MS_REQUEST) {
            (void)te_answer(served->engine, request->peer, header, MS_OK, &body, 1, NULL, 0);
        }
        break;
    case KIT_PAYLOAD:
        (void)te_answer(served->engine, request->peer, header, MS_OK, NULL, 0, request->body,
                        header->body_length);
        break;
    case KIT_REFUSE:
        body = (struct iovec){.iov_base = (void *)(uintptr_t)"no such luck", .iov_len = 12};
        (void)te_answer(served->engine, request->peer, header, MS_NOT_FOUND, &body, 1, NULL, 0);
        break;
    case KIT_LATER: {
        kit_later *later = malloc(sizeof *later);
        CHECK(later != NULL && header->body_length <= sizeof later->body);
        *later = (kit_later){.served = served, .peer = request->peer, .header = *header};
        memcpy(later->body, request->body, header->body_length);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, kit_answer_later, later) == 0);
        pthread_mutex_lock(&served->lock);
        bool had_one = served->has_later;
        pthread_t before = served->later;
        served->later = thread;
        served->has_later = true;
        pthread_mutex_unlock(&served->lock);
        if (had_one) {
            pthread_join(before, NULL);
        }
        break;
    }
    default:
        break; /* KIT_SILENT: never answered */
    }
}

static inline void kit_close(void *context, te_peer peer, void *peer_context, const char *reason) {
    kit *served = context;
    (void)peer;
    (void)peer_context;
    pthread_mutex_lock(&served->lock);
    snprintf(served->last_reason, sizeof served->last_reason, "%s", reason);
    pthread_mutex_unlock(&served->lock);
    atomic_fetch_add(&served->closes, 1);
}

static inline void kit_on_answer(void *context, const te_request *request) {
    (void)request;
    atomic_fetch_add(&((kit *)context)->answers, 1);
}

static inline void kit_tick(void *context, int64_t now_ns) {
    (void)now_ns;
    atomic_fetch_add(&((kit *)context)->ticks, 1);
}

static inline ms_status kit_read_begin(void *context, void *peer_context,
                                       const ms_read_item *item) {
    kit *served = context;
    (void)peer_context;
    pthread_mutex_lock(&served->lock);
    ms_status status = item->offset >= served->refuse_from ? served->refuse_read : MS_OK;
    served->reads_open += status == MS_OK;
    pthread_mutex_unlock(&served->lock);
    return status;
}

static inline uint64_t kit_read_end(void *context, void *peer_context, const ms_read_item *item) {
    kit *served = context;
    (void)peer_context;
    (void)item;
    pthread_mutex_lock(&served->lock);
    served->reads_open--;
    uint64_t word = served->word;
    pthread_mutex_unlock(&served->lock);
    return word;
}

static inline ms_status kit_write_begin(void *context, void *peer_context,
                                        const ms_write_item *item) {
    kit *served = context;
    (void)peer_context;
    pthread_mutex_lock(&served->lock);
    ms_status status = item->page >= served->refuse_from ? served->refuse_write : MS_OK;
    served->writes_open += status == MS_OK;
    if (served->writes_open > served->writes_most) {
        served->writes_most = served->writes_open;
    }
    pthread_mutex_unlock(&served->lock);
    return status;
}

static inline ms_status kit_write_end(void *context, void *peer_context, const ms_write_item *item,
                                      const uint8_t *seal, size_t seal_length, bool complete) {
    kit *served = context;
    (void)peer_context;
    if (item->offset == 0 && item->length >= 1u << 20 && served->first_delay_ns > 0) {
        nanosleep(&(struct timespec){.tv_nsec = served->first_delay_ns}, NULL);
    }
    pthread_mutex_lock(&served->lock);
    served->writes_open--;
    served->incomplete += !complete;
    if (served->extent_bytes != NULL && complete) {
        served->extent_bytes[item->page] += item->length;
        CHECK(seal == NULL || served->extent_bytes[item->page] == served->seal_needs);
    }
    if (seal != NULL) {
        served->seals_of[seal[0]]++;
        CHECK(complete && seal_length <= sizeof served->last_seal);
        served->sealed++;
        served->last_seal_length = seal_length;
        memcpy(served->last_seal, seal, seal_length);
    }
    pthread_mutex_unlock(&served->lock);
    return MS_OK;
}

static inline bool kit_write_done(void *context, const te_request *request,
                                  const uint32_t *statuses, size_t count) {
    kit *served = context;
    (void)statuses;
    CHECK(count > 0 && request->header->method == MS_WRITE);
    return served->swallow_done && (request->header->flags & MS_FLAG_RELAY) != 0;
}

/* What kit_open serves next instead of the kit's own service; the context is the kit. */
static const te_service *kit_service;

/* Serves 127.0.0.1 (or `host`) and, with a path, a Unix socket; segments 1 (plain) and 2 (ops)
 * share memory. */
static inline void kit_open(kit *served, const char *host, bool with_unix, size_t length,
                            const te_engine_config *wanted) {
    te_engine_config config;
    te_engine_config_default(&config);
    if (wanted != NULL) {
        config = *wanted;
    }
    memset(served, 0, sizeof *served);
    pthread_mutex_init(&served->lock, NULL);
    served->refuse_from = 0;
    served->word = 41;
    CHECK_STATUS(te_engine_open(&config, &served->engine), MS_OK);
    te_service service = {
        .context = served,
        .on_hello = kit_hello,
        .on_request = kit_request,
        .on_answer = kit_on_answer,
        .on_close = kit_close,
        .on_tick = kit_tick,
        .tick_ms = 10,
    };
    if (kit_service != NULL) {
        service = *kit_service;
        service.context = served;
        kit_service = NULL;
    }
    te_serve(served->engine, &service);
    char error[TE_ERROR_BYTES] = "";
    CHECK_STATUS(te_listen_tcp(served->engine, host, 0, &served->port, error), MS_OK);
    snprintf(served->address, sizeof served->address,
             strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, (unsigned)served->port);
    if (with_unix) {
        snprintf(served->unix_path, sizeof served->unix_path, "/tmp/te-test-%d-%u.sock",
                 (int)getpid(), (unsigned)served->port);
        CHECK_STATUS(te_listen_unix(served->engine, served->unix_path, error), MS_OK);
    }
    if (length > 0) {
        served->memory = malloc(length);
        served->length = length;
        CHECK(served->memory != NULL);
        fill_pattern(served->memory, length, 0, 1);
        te_segment_config plain = {.segment = 1, .address = served->memory, .length = length};
        plain.payload_descriptor = plain.words_descriptor = -1;
        te_segment_config guarded = plain;
        guarded.segment = 2;
        guarded.ops = (te_segment_ops){
            .context = served,
            .read_begin = kit_read_begin,
            .read_end = kit_read_end,
            .write_begin = kit_write_begin,
            .write_end = kit_write_end,
            .write_done = kit_write_done,
        };
        CHECK_STATUS(te_segment_add(served->engine, &plain), MS_OK);
        CHECK_STATUS(te_segment_add(served->engine, &guarded), MS_OK);
    }
}

static inline void kit_close_all(kit *served) {
    pthread_mutex_lock(&served->lock);
    bool has_later = served->has_later;
    pthread_t later = served->later;
    pthread_mutex_unlock(&served->lock);
    if (has_later) {
        pthread_join(later, NULL);
    }
    te_engine_close(served->engine);
    CHECK(served->reads_open == 0 && served->writes_open == 0);
    free(served->memory);
    pthread_mutex_destroy(&served->lock);
}

/* A counter that the ops keep. */
static inline int kit_count(kit *served, const int *counter) {
    pthread_mutex_lock(&served->lock);
    int value = *counter;
    pthread_mutex_unlock(&served->lock);
    return value;
}

/* An asking engine (no I/O threads) and a channel. */
static inline te_engine *kit_asker(void) {
    te_engine_config config;
    te_engine *engine;
    te_engine_config_default(&config);
    config.io_threads = 0;
    CHECK_STATUS(te_engine_open(&config, &engine), MS_OK);
    return engine;
}

static inline te_channel *kit_channel(te_engine *engine, const char *addresses,
                                      const char *unix_path, uint32_t connections_max) {
    te_channel_config config = {
        .addresses = addresses, .unix_path = unix_path, .connections_max = connections_max};
    te_channel *channel;
    CHECK_STATUS(te_channel_open(engine, &config, &channel), MS_OK);
    return channel;
}

/* Waits (at most 5 s) until `value` is at least `wanted`. */
static inline void wait_at_least(_Atomic int *value, int wanted) {
    int64_t until = in_ms(5000);
    while (atomic_load(value) < wanted) {
        CHECK(te_now_ns() < until);
        pause_ms(1);
    }
}

#endif

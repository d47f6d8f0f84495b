/* The limits of this machine in bare C: see te_bench.h.
 *
 * Everything is as simple as it can be made: blocking sockets, a thread a connection, no framing
 * beyond 64 bytes, no allocation between two readings of the clock.  What a real path adds (keys,
 * versions, checks, queues) shows as a ratio to this.
 */
#include "te_bench.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CHUNK_BYTES (256u << 10)
#define COPY_SPINS 2000u /* some 50 us: longer would keep a core from who needs it */
#define MEMBERS_MAX 64u
#define SILENCE_S 10
#define REQUEST_BYTES 64u

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- a team: the caller and its helpers do one step together, many times ---------------------------
 *
 * A step begins when the caller raises `step` and ends when every helper has counted itself in
 * `finished`, so nothing that a step uses is touched by anyone between two steps.  Waiting first
 * spins: a helper that sleeps costs a wake-up of some 10 us, which is not a limit of the copy. */
typedef struct team {
    _Atomic uint32_t step;
    _Atomic uint32_t finished;
    _Atomic uint32_t is_over;
    uint32_t spins;
    uint32_t helper_count;
    void (*work)(void *context, uint32_t member);
    void *context;
    pthread_t helpers[MEMBERS_MAX];
} team;

typedef struct helper_start {
    team *of;
    uint32_t member;
} helper_start;

static void await_change(team *t, _Atomic uint32_t *word, uint32_t seen) {
    for (uint32_t i = 0; i < t->spins; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) {
            return;
        }
        relax();
    }
    while (atomic_load_explicit(word, memory_order_acquire) == seen) {
        futex_wait(word, seen);
    }
}

static void *helper_main(void *argument) {
    helper_start start = *(helper_start *)argument;
    free(argument);
    team *t = start.of;
    uint32_t seen = 0;
    for (;;) {
        await_change(t, &t->step, seen);
        seen = atomic_load_explicit(&t->step, memory_order_acquire);
        if (atomic_load_explicit(&t->is_over, memory_order_acquire)) {
            return NULL;
        }
        t->work(t->context, start.member);
        atomic_fetch_add_explicit(&t->finished, 1, memory_order_release);
        futex_wake(&t->finished);
    }
}

static void team_begin(team *t) {
    atomic_store_explicit(&t->finished, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->step, 1, memory_order_release);
    if (t->helper_count > 0) {
        futex_wake(&t->step);
    }
}

static void team_step(team *t) {
    team_begin(t);
    t->work(t->context, 0);
    for (;;) {
        uint32_t finished = atomic_load_explicit(&t->finished, memory_order_acquire);
        if (finished == t->helper_count) {
            return;
        }
        await_change(t, &t->finished, finished);
    }
}

static void team_close(team *t) {
    atomic_store_explicit(&t->is_over, 1, memory_order_release);
    atomic_fetch_add_explicit(&t->step, 1, memory_order_release);
    futex_wake(&t->step);
    for (uint32_t i = 0; i < t->helper_count; i++) {
        pthread_join(t->helpers[i], NULL);
    }
}

static int team_open(team *t, uint32_t member_count, uint32_t spins, void (*work)(void *, uint32_t),
                     void *context) {
    *t = (team){.spins = spins, .work = work, .context = context};
    for (uint32_t i = 1; i < member_count; i++) {
        helper_start *start = malloc(sizeof *start);
        int error = ENOMEM;
        if (start != NULL) {
            *start = (helper_start){.of = t, .member = i};
            error = pthread_create(&t->helpers[t->helper_count], NULL, helper_main, start);
        }
        if (error != 0) {
            free(start);
            team_close(t);
            return -error;
        }
        t->helper_count++;
    }
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------ */
void *te_bench_memory_open(size_t length, int shared) {
    int flags = MAP_ANONYMOUS | MAP_POPULATE | (shared ? MAP_SHARED : MAP_PRIVATE);
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    /* Written once: a page that is only read may be the kernel's page of zeros. */
    memset(memory, 0x5a, length);
    return memory;
}

void te_bench_memory_close(void *memory, size_t length) {
    if (memory != NULL) {
        munmap(memory, length);
    }
}

/* ---- copies ------------------------------------------------------------------------------------ */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void copy_avx2(uint8_t *target, const uint8_t *source,
                                                      size_t length) {
    for (size_t i = 0; i < length; i += 128) {
        _mm_prefetch((const char *)source + i + 512, _MM_HINT_NTA);
        _mm_prefetch((const char *)source + i + 576, _MM_HINT_NTA);
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(source + i + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(source + i + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(source + i + 96));
        _mm256_stream_si256((__m256i *)(void *)(target + i), a);
        _mm256_stream_si256((__m256i *)(void *)(target + i + 32), b);
        _mm256_stream_si256((__m256i *)(void *)(target + i + 64), c);
        _mm256_stream_si256((__m256i *)(void *)(target + i + 96), d);
    }
    _mm_sfence();
}

static void copy_sse2(uint8_t *target, const uint8_t *source, size_t length) {
    for (size_t i = 0; i < length; i += 64) {
        _mm_prefetch((const char *)source + i + 512, _MM_HINT_NTA);
        for (size_t j = 0; j < 64; j += 16) {
            __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(source + i + j));
            _mm_stream_si128((__m128i *)(void *)(target + i + j), a);
        }
    }
    _mm_sfence();
}
#elif defined(__aarch64__)
static void copy_stnp(uint8_t *target, const uint8_t *source, size_t length) {
    for (size_t i = 0; i < length; i += 64) {
        __asm__ volatile("ldnp q0, q1, [%1]\n\tldnp q2, q3, [%1, #32]\n\t"
                         "stnp q0, q1, [%0]\n\tstnp q2, q3, [%0, #32]"
                         :
                         : "r"(target + i), "r"(source + i)
                         : "v0", "v1", "v2", "v3", "memory");
    }
}
#endif

static void copy_nontemporal(uint8_t *target, const uint8_t *source, size_t length) {
    size_t whole = length & ~(size_t)127;
    if (((uintptr_t)target & 31) != 0) {
        whole =
            0; /* streaming stores need an aligned target; slots are aligned in every measurement */
    }
    if (whole > 0) {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2")) {
            copy_avx2(target, source, whole);
        } else {
            copy_sse2(target, source, whole);
        }
#elif defined(__aarch64__)
        copy_stnp(target, source, whole);
#else
        memcpy(target, source, whole);
#endif
    }
    memcpy(target + whole, source + whole, length - whole);
}

#define PAGE 4096u
#define GROUP (4 * PAGE)

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void copy_group_avx512(uint8_t *target,
                                                                 const uint8_t *source) {
    for (size_t line = 0; line < PAGE; line += 128) {
        for (size_t at = line; at < GROUP; at += PAGE) {
            __m512i a = _mm512_loadu_si512(source + at);
            __m512i b = _mm512_loadu_si512(source + at + 64);
            _mm512_stream_si512((__m512i *)(void *)(target + at), a);
            _mm512_stream_si512((__m512i *)(void *)(target + at + 64), b);
        }
    }
}

__attribute__((target("avx2"))) static void copy_group_avx2(uint8_t *target,
                                                            const uint8_t *source) {
    for (size_t line = 0; line < PAGE; line += 64) {
        for (size_t at = line; at < GROUP; at += PAGE) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(source + at));
            __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(source + at + 32));
            _mm256_stream_si256((__m256i *)(void *)(target + at), a);
            _mm256_stream_si256((__m256i *)(void *)(target + at + 32), b);
        }
    }
}
#endif

/* Where the processor or the alignment does not allow it: copy_nontemporal. */
static void copy_interleaved(uint8_t *target, const uint8_t *source, size_t length) {
    size_t at = 0;
#if defined(__x86_64__)
    void (*copy_group)(uint8_t *, const uint8_t *) =
        __builtin_cpu_supports("avx512f") ? copy_group_avx512
        : __builtin_cpu_supports("avx2")  ? copy_group_avx2
                                          : NULL;
    if (copy_group != NULL && ((uintptr_t)target & 63) == 0)
        for (; length - at >= GROUP; at += GROUP)
            copy_group(target + at, source + at);
    _mm_sfence();
#endif
    copy_nontemporal(target + at, source + at, length - at);
}

typedef struct copy_job {
    te_bench_kernel kernel;
    uint8_t *target;
    const uint8_t *source;
    size_t length;
    size_t chunk;
    _Atomic size_t next; /* first byte that nobody has taken */
} copy_job;

static void copy_work(void *context, uint32_t member) {
    (void)member;
    copy_job *job = context;
    for (;;) {
        size_t at = atomic_fetch_add_explicit(&job->next, job->chunk, memory_order_relaxed);
        if (at >= job->length) {
            return;
        }
        size_t length = job->length - at < job->chunk ? job->length - at : job->chunk;
        if (job->kernel == TE_BENCH_NONTEMPORAL) {
            copy_nontemporal(job->target + at, job->source + at, length);
        } else if (job->kernel == TE_BENCH_INTERLEAVED) {
            copy_interleaved(job->target + at, job->source + at, length);
        } else {
            memcpy(job->target + at, job->source + at, length);
        }
    }
}

static size_t chunk_for(size_t length, uint32_t thread_count) {
    if (thread_count == 1) {
        return length;
    }
    size_t share = (length / thread_count + 127) & ~(size_t)127;
    return share == 0 ? length : share < CHUNK_BYTES ? share : CHUNK_BYTES;
}

int64_t te_bench_copy(te_bench_kernel kernel, uint32_t thread_count, void *target,
                      const void *source, size_t memory_length, size_t length, uint64_t first,
                      uint32_t count, uint64_t *sample_ns) {
    if (length == 0 || length > memory_length || thread_count == 0 || thread_count > MEMBERS_MAX) {
        return -EINVAL;
    }
    copy_job job = {.kernel = kernel, .length = length, .chunk = chunk_for(length, thread_count)};
    team copiers;
    int error = team_open(&copiers, thread_count, COPY_SPINS, copy_work, &job);
    if (error != 0) {
        return error;
    }
    uint64_t slot_count = memory_length / length;
    int64_t begun = now_ns();
    for (uint32_t i = 0; i < count; i++) {
        size_t at = (size_t)((first + i) % slot_count) * length;
        int64_t started = sample_ns != NULL ? now_ns() : 0;
        job.target = (uint8_t *)target + at;
        job.source = (const uint8_t *)source + at;
        atomic_store_explicit(&job.next, 0, memory_order_relaxed);
        if (thread_count == 1) {
            copy_work(&job, 0);
        } else {
            team_step(&copiers);
        }
        if (sample_ns != NULL) {
            sample_ns[i] = (uint64_t)(now_ns() - started);
        }
    }
    int64_t elapsed = now_ns() - begun;
    team_close(&copiers);
    return elapsed;
}

/* ---- exchanges --------------------------------------------------------------------------------- */
typedef struct request {
    uint32_t operation;
    uint32_t reserved;
    uint64_t position;
    uint64_t length;
    uint8_t padding[40];
} request;
_Static_assert(sizeof(request) == REQUEST_BYTES, "a request is 64 bytes");

static int receive_all(int socket, uint8_t *memory, uint64_t length) {
    while (length > 0) {
        ssize_t n = recv(socket, memory, (size_t)length, MSG_WAITALL);
        if (n <= 0) {
            if (n < 0 && errno == EINTR) {
                continue;
            }
            return n == 0 ? -EPIPE : -errno;
        }
        memory += n;
        length -= (uint64_t)n;
    }
    return 0;
}

static int send_all(int socket, const uint8_t *memory, uint64_t length) {
    while (length > 0) {
        ssize_t n = send(socket, memory, (size_t)length, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -errno;
        }
        memory += n;
        length -= (uint64_t)n;
    }
    return 0;
}

static int send_with_payload(int socket, request *ask, const uint8_t *memory, uint64_t length) {
    struct iovec parts[2] = {{ask, sizeof *ask}, {(void *)(uintptr_t)memory, (size_t)length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = length > 0 ? 2 : 1};
    ssize_t n;
    do {
        n = sendmsg(socket, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return -errno;
    }
    uint64_t sent = (uint64_t)n;
    if (sent < sizeof *ask) {
        int error = send_all(socket, (const uint8_t *)ask + sent, sizeof *ask - sent);
        if (error != 0) {
            return error;
        }
        sent = sizeof *ask;
    }
    sent -= sizeof *ask;
    return send_all(socket, memory + sent, length - sent);
}

static void tune(int socket) {
    int on = 1;
    /* Fails on a Unix socket, which has no such delay. */
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

typedef struct served {
    int socket;
    uint8_t *memory;
    uint64_t memory_length;
} served;

static void *serve_connection(void *argument) {
    served s = *(served *)argument;
    free(argument);
    tune(s.socket);
    request ask;
    int error = 0;
    while (error == 0 && receive_all(s.socket, (uint8_t *)&ask, sizeof ask) == 0) {
        if (ask.position > s.memory_length || ask.length > s.memory_length - ask.position) {
            break;
        }
        if (ask.operation == TE_BENCH_FETCH) {
            error = send_all(s.socket, s.memory + ask.position, ask.length);
        } else if (ask.operation == TE_BENCH_PUSH) {
            error = receive_all(s.socket, s.memory + ask.position, ask.length);
            error = error != 0 ? error : send_all(s.socket, (const uint8_t *)&ask, sizeof ask);
        } else {
            break;
        }
    }
    close(s.socket);
    return NULL;
}

int te_bench_serve(int listener, void *memory, size_t memory_length) {
    for (;;) {
        int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0) {
            if (errno == ECONNABORTED) {
                continue;
            }
            return -errno;
        }
        served *s = malloc(sizeof *s);
        pthread_t thread;
        if (s == NULL) {
            close(socket);
            return -ENOMEM;
        }
        *s = (served){.socket = socket, .memory = memory, .memory_length = memory_length};
        int error = pthread_create(&thread, NULL, serve_connection, s);
        if (error != 0) {
            free(s);
            close(socket);
            return -error;
        }
        pthread_detach(thread);
    }
}

typedef struct exchange_job {
    const te_bench_exchange *of;
    const int *sockets;
    uint64_t part; /* bytes of a call on one connection */
    uint64_t slot_count;
    uint64_t call; /* number of the call of this step, or of the first one when free running */
    uint32_t calls_per_step;
    _Atomic int error; /* the first -errno of any connection */
} exchange_job;

static int exchange_once(const te_bench_exchange *e, int socket, uint64_t position,
                         uint64_t length) {
    request ask = {.operation = (uint32_t)e->operation, .position = position, .length = length};
    if (e->operation == TE_BENCH_FETCH) {
        int error = send_all(socket, (const uint8_t *)&ask, sizeof ask);
        return error != 0 ? error : receive_all(socket, e->memory + position, length);
    }
    int error = send_with_payload(socket, &ask, e->memory + position, length);
    return error != 0 ? error : receive_all(socket, (uint8_t *)&ask, sizeof ask);
}

static void exchange_work(void *context, uint32_t member) {
    exchange_job *job = context;
    const te_bench_exchange *e = job->of;
    for (uint32_t i = 0; i < job->calls_per_step; i++) {
        uint64_t slot = e->length > 0 ? (job->call + i) % job->slot_count : 0;
        int error = exchange_once(e, job->sockets[member], slot * e->length + member * job->part,
                                  job->part);
        if (error != 0) {
            int none = 0;
            atomic_compare_exchange_strong(&job->error, &none, error);
            return;
        }
    }
}

int64_t te_bench_exchange_run(const te_bench_exchange *exchange, const int *sockets,
                              uint32_t socket_count, uint64_t *sample_ns) {
    const te_bench_exchange *e = exchange;
    if (socket_count == 0 || socket_count > MEMBERS_MAX || e->length > e->memory_length ||
        e->length % socket_count != 0) {
        return -EINVAL;
    }
    for (uint32_t i = 0; i < socket_count; i++) {
        struct timeval silence = {.tv_sec = SILENCE_S};
        tune(sockets[i]);
        setsockopt(sockets[i], SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
        setsockopt(sockets[i], SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
    }
    exchange_job job = {.of = e,
                        .sockets = sockets,
                        .part = e->length / socket_count,
                        .slot_count = e->length > 0 ? e->memory_length / e->length : 1,
                        .call = e->first,
                        .calls_per_step = e->is_free_running ? e->call_count : 1};
    team members;
    /* No spinning here: pinned to one core, a spinning member would take it from a receiving one. */
    int error = team_open(&members, socket_count, 0, exchange_work, &job);
    if (error != 0) {
        return error;
    }
    uint32_t step_count = e->is_free_running ? 1 : e->call_count;
    int64_t begun = now_ns();
    for (uint32_t i = 0; i < step_count && atomic_load(&job.error) == 0; i++) {
        int64_t started = now_ns();
        if (socket_count == 1) {
            exchange_work(&job, 0);
        } else {
            team_step(&members);
        }
        if (sample_ns != NULL && !e->is_free_running) {
            sample_ns[i] = (uint64_t)(now_ns() - started);
        }
        job.call++;
    }
    int64_t elapsed = now_ns() - begun;
    team_close(&members);
    error = atomic_load(&job.error);
    return error != 0 ? error : elapsed;
}

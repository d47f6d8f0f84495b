/* The engine object: configuration, start and stop, its log, and the helpers that every file here
 * uses. */
#include "te_channel_rails.h"
#include "te_rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "te_fault.h"

#define PEER_SLOTS_MAX 65536u /* 16 bits of a peer's number */
#define THREAD_STACK_BYTES (512u << 10)
#define TURNS_PER_CORE 8u /* callers that spin in turns; four a core were tried, and gained */

/* ---- time ------------------------------------------------------------------------------------ */

int64_t te_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * TE_NS_PER_S + now.tv_nsec;
}

uint32_t te_deadline_ms(int64_t deadline_ns) {
    int64_t left = deadline_ns - te_now_ns();
    if (left <= 0) {
        return 1; /* 0 would mean "none" */
    }
    int64_t milliseconds = left / TE_NS_PER_MS + 1;
    return milliseconds > UINT32_MAX ? UINT32_MAX : (uint32_t)milliseconds;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* A child has none of the parent's threads and must not touch its sockets: it is told apart by
 * this number, which costs less than a getpid on every call. */
static _Atomic unsigned fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add(&fork_generation, 1); }

static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

unsigned te_fork_generation(void) {
    pthread_once(&fork_once, watch_forks);
    return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

ms_status te_engine_check(const te_engine *engine) {
    if (engine->fork_generation != atomic_load_explicit(&fork_generation, memory_order_relaxed)) {
        return MS_FORKED;
    }
    return atomic_load_explicit(&engine->is_stopping, memory_order_relaxed) ? MS_CLOSED : MS_OK;
}

/* ---- sentences ------------------------------------------------------------------------------- */

void te_error(char *error, const char *format, ...) {
    if (error == NULL) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, TE_ERROR_BYTES, format, arguments);
    va_end(arguments);
}

void te_log(te_engine *engine, const char *format, ...) {
    char line[TE_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&engine->log_lock);
    if (engine->log_count == TE_LOG_LINES) { /* the oldest makes room */
        engine->log_first = (engine->log_first + 1) % TE_LOG_LINES;
        engine->log_count--;
        engine->log_lost++;
    }
    memcpy(engine->log_lines[(engine->log_first + engine->log_count) % TE_LOG_LINES], line,
           sizeof line);
    engine->log_count++;
    pthread_mutex_unlock(&engine->log_lock);
}

bool te_engine_log_next(te_engine *engine, char *line) {
    bool found = false;
    pthread_mutex_lock(&engine->log_lock);
    if (engine->log_lost > 0) {
        snprintf(line, TE_ERROR_BYTES, "%llu earlier lines were lost",
                 (unsigned long long)engine->log_lost);
        engine->log_lost = 0;
        found = true;
    } else if (engine->log_count > 0) {
        memcpy(line, engine->log_lines[engine->log_first], TE_ERROR_BYTES);
        engine->log_first = (engine->log_first + 1) % TE_LOG_LINES;
        engine->log_count--;
        found = true;
    }
    pthread_mutex_unlock(&engine->log_lock);
    return found;
}

/* ---- threads --------------------------------------------------------------------------------- */

ms_status te_thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
                          void *argument) {
    /* Signals are for the threads of the program (Python's main thread): ours block them all. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return MS_NO_MEMORY;
    }
    pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
        return MS_LIMIT;
    }
    pthread_setname_np(*thread, name);
    return MS_OK;
}

ms_status te_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) {
        return MS_NO_MEMORY;
    }
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return failed ? MS_NO_MEMORY : MS_OK;
}

bool te_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns) {
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / TE_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % TE_NS_PER_S)};
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

/* ---- open and close -------------------------------------------------------------------------- */

void te_engine_config_default(te_engine_config *config) {
    *config = (te_engine_config){
        .io_threads = 2,
        .worker_threads = 2,
        .connections_accepted_max = 4096,
        .handshake_timeout_ms = 5000,
        .stall_timeout_ms = 30000,
        .outbound_bytes_max = 64u << 20,
        .slice_bytes = 1u << 20,
        .stream_copy_bytes = 256u << 10,
        .helper_copy_bytes = 1u << 20,
        .spin_us = 20,
        .rdma = 1,
    };
}

/* The host's boot, by which two processes know that they share a kernel; zeros when it cannot be
 * read. */
static void read_boot_id(uint8_t boot_id[16]) {
    memset(boot_id, 0, 16);
    char text[40] = {0};
    int descriptor = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return;
    }
    ssize_t length = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    size_t digits = 0;
    for (ssize_t i = 0; i < length && digits < 32; i++) {
        const char *hexadecimal = "0123456789abcdef";
        const char *place = text[i] != '\0' ? strchr(hexadecimal, text[i]) : NULL;
        if (place != NULL) {
            unsigned digit = (unsigned)(place - hexadecimal);
            boot_id[digits / 2] = (uint8_t)((unsigned)boot_id[digits / 2] << 4 | digit);
            digits++;
        }
    }
}

void te_hello_default(const te_engine *engine, uint8_t hello[TE_HELLO_DEFAULT_BYTES]) {
    memset(hello, 0, TE_HELLO_DEFAULT_BYTES); /* three empty strings follow the struct */
    ms_hello fixed = {
        .version_oldest = MS_WIRE_VERSION_OLDEST,
        .version_newest = MS_WIRE_VERSION,
        .role = MS_ROLE_ENGINE,
        .right = MS_RIGHT_READ | MS_RIGHT_WRITE,
        .pid = (uint32_t)getpid(),
    };
    memcpy(fixed.boot_id, engine->boot_id, sizeof fixed.boot_id);
    memcpy(hello, &fixed, sizeof fixed);
}

ms_status te_engine_open(const te_engine_config *config, te_engine **opened) {
    *opened = NULL;
    if (config->io_threads > 64 || config->worker_threads > 64 ||
        config->connections_accepted_max == 0 ||
        config->connections_accepted_max > PEER_SLOTS_MAX - 1024) {
        return MS_BAD_REQUEST;
    }
    te_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        return MS_NO_MEMORY;
    }
    engine->config = *config;
    if (engine->config.slice_bytes < 4096) {
        engine->config.slice_bytes = 4096;
    }
    engine->rails_bytes_min = TE_RAILS_BYTES_MIN;
    engine->fork_generation = te_fork_generation();
    read_boot_id(engine->boot_id);
    /* One connection cannot use two cores, and more than a few only get in each other's way. */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    engine->stripes_max = cores < 2 ? 2 : cores > 4 ? 4 : (uint32_t)cores;
    engine->spinning_max = cores < 2 ? 0 : (uint32_t)cores / 2;
    engine->turns_max = cores < 2 ? 0 : (uint32_t)cores * TURNS_PER_CORE;
    pthread_mutex_init(&engine->peers_lock, NULL);
    pthread_mutex_init(&engine->log_lock, NULL);
    te_segments_open(engine);
    /* Dialled connections have slots of their own beyond the accepted ones. */
    engine->peer_slots = config->connections_accepted_max + 1024;
    engine->peers = calloc(engine->peer_slots, sizeof *engine->peers);
    engine->log_lines = calloc(TE_LOG_LINES, sizeof *engine->log_lines);
    ms_status status = engine->peers == NULL || engine->log_lines == NULL ? MS_NO_MEMORY : MS_OK;
    if (status == MS_OK) {
        status = te_workers_open(engine);
    }
    if (status == MS_OK) {
        status = te_parts_open(engine); /* before a thread runs */
    }
    if (status == MS_OK) {
        status = te_io_open(engine);
    }
    if (status != MS_OK) {
        te_engine_close(engine);
        return status;
    }
    *opened = engine;
    return MS_OK;
}

void te_engine_close(te_engine *engine) {
    if (engine == NULL || engine->fork_generation != te_fork_generation()) {
        return; /* in a child: the threads are the parent's, and so are the sockets; what is left is let go */
    }
    te_parts_stop(engine);
    atomic_store(&engine->is_stopping, true);
    te_workers_stop(engine);
    te_io_stop(engine);
    te_parts_close(engine);
    te_segments_close(engine);
    te_rdma_close(engine->rdma);
    te_workers_close(engine); /* I/O threads have asked it for workers until they ended */
    free(engine->peers);
    free(engine->log_lines);
    pthread_mutex_destroy(&engine->peers_lock);
    pthread_mutex_destroy(&engine->log_lock);
    free(engine);
}

void te_engine_set_epoch(te_engine *engine, uint32_t epoch) {
    atomic_store_explicit(&engine->epoch, epoch, memory_order_relaxed);
}

void te_serve(te_engine *engine, const te_service *service) {
    engine->service = *service;
    atomic_store_explicit(&engine->is_serving, true, memory_order_release);
    if (engine->config.io_threads > 0) {
        te_io_wake(engine->io); /* it has a tick to keep from now on */
    }
}

/* Worker threads: second halves of copies, further connections of a striped transfer, batches.
 *
 * A bounded ring of jobs.  A thread is started only when a job finds none waiting, so that a
 * process which never needs one has none.  Jobs are run to their end; te_workers_stop runs what
 * is still queued, because whoever queued it waits.
 */
#include "te_internal.h"

#include <stdlib.h>

#include "te_fault.h"

#define QUEUE_JOBS 4096u

typedef struct job {
    void (*run)(void *argument);
    void *argument;
} job;

struct te_workers {
    te_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    job *queue;
    uint32_t first, count;
    uint32_t waiting; /* threads in pthread_cond_wait that no queued job is meant for yet */
    uint32_t started;
    bool is_stopping;
    pthread_t threads[64];
};

static void *work(void *argument) {
    te_workers *workers = argument;
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        while (workers->count == 0 && !workers->is_stopping) {
            workers->waiting++;
            pthread_cond_wait(&workers->filled, &workers->lock);
            workers->waiting--;
        }
        if (workers->count == 0) {
            break;
        }
        job next = workers->queue[workers->first];
        workers->first = (workers->first + 1) % QUEUE_JOBS;
        workers->count--;
        pthread_mutex_unlock(&workers->lock);
        next.run(next.argument);
        pthread_mutex_lock(&workers->lock);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

ms_status te_workers_open(te_engine *engine) {
    te_workers *workers = calloc(1, sizeof *workers);
    if (workers == NULL) {
        return MS_NO_MEMORY;
    }
    workers->engine = engine;
    workers->queue = calloc(QUEUE_JOBS, sizeof *workers->queue);
    if (workers->queue == NULL || te_cond_init(&workers->filled) != MS_OK) {
        free(workers->queue);
        free(workers);
        return MS_NO_MEMORY;
    }
    pthread_mutex_init(&workers->lock, NULL);
    engine->workers = workers;
    return MS_OK;
}

void te_workers_stop(te_engine *engine) {
    te_workers *workers = engine->workers;
    if (workers == NULL) {
        return;
    }
    pthread_mutex_lock(&workers->lock);
    workers->is_stopping = true;
    pthread_cond_broadcast(&workers->filled);
    uint32_t started = workers->started;
    pthread_mutex_unlock(&workers->lock);
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(workers->threads[i], NULL);
    }
}

void te_workers_close(te_engine *engine) {
    te_workers *workers = engine->workers;
    if (workers == NULL) {
        return;
    }
    pthread_mutex_destroy(&workers->lock);
    pthread_cond_destroy(&workers->filled);
    free(workers->queue);
    free(workers);
    engine->workers = NULL;
}

ms_status te_spawn(te_engine *engine, void (*run)(void *argument), void *argument) {
    te_workers *workers = engine->workers;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK) {
        return status;
    }
    pthread_mutex_lock(&workers->lock);
    if (workers->is_stopping) {
        status = MS_CLOSED;
    } else if (workers->count == QUEUE_JOBS || engine->config.worker_threads == 0) {
        status = MS_LIMIT;
    } else if (workers->count >= workers->waiting &&
               workers->started < engine->config.worker_threads) {
        /* Nobody is free for it.  The lock is kept: a second caller would start the same thread
         * again. */
        status = te_thread_start(&workers->threads[workers->started], "te-worker", work, workers);
        workers->started += status == MS_OK;
        if (status != MS_OK && workers->started > 0) {
            status = MS_OK; /* the others will come to it */
        }
    }
    if (status == MS_OK) {
        workers->queue[(workers->first + workers->count) % QUEUE_JOBS] = (job){run, argument};
        workers->count++;
    }
    pthread_mutex_unlock(&workers->lock);
    if (status == MS_OK)
        pthread_cond_signal(&workers->filled);
    return status;
}

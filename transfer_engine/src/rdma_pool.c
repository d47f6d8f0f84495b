/* Endpoints of a channel: opened in the background when they are asked for, taken by one thread at a time, forgotten
 * when they are broken.
 *
 * Nobody waits for an endpoint to be opened: while there is none, bytes go over TCP.  Opening that fails is tried again
 * after pauses from 50 ms to 1 s, and only when somebody moves bytes.  One whose rails have partly failed goes on until a
 * new one with more has been opened.
 *
 * An engine has a bounded number.  The next one beyond that takes the place of one that was not used lately: SIEVE (Zhang
 * et al., NSDI '24) over all channels, whose hand passes those that were used since it came by.
 */
#include <stdlib.h>
#include <string.h>

#include "te_rdma.h"

#include "te_fault.h"

#define PAUSE_FIRST_NS (50 * TE_NS_PER_MS)
#define PAUSE_MAX_NS TE_NS_PER_S
#define OPEN_NS (5 * TE_NS_PER_S)

struct te_rdma_pool {
    te_rdma *rdma;
    te_channel *channel;
    bool is_writing;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    te_rdma_endpoint *idle;
    uint32_t count;   /* idle and taken */
    uint32_t waiting; /* threads, for one that is taken */
    bool is_opening, is_closing;
    _Atomic bool is_never; /* the peer has no RDMA */
    uint32_t rails_best;   /* of those that are there */
    uint32_t failures;
    int64_t retry_ns;
};

/* ---- SIEVE's queue ------------------------------------------------------------------------------------------------ */

static void enter(te_rdma *rdma, te_rdma_endpoint *endpoint) {
    pthread_mutex_lock(&rdma->lock);
    endpoint->older = rdma->newest;
    if (rdma->newest != NULL)
        rdma->newest->newer = endpoint;
    else
        rdma->oldest = endpoint;
    rdma->newest = endpoint;
    pthread_mutex_unlock(&rdma->lock);
}

/* Under rdma->lock. */
static void unlink_endpoint(te_rdma *rdma, te_rdma_endpoint *endpoint) {
    if (rdma->hand == endpoint)
        rdma->hand = endpoint->newer;
    if (endpoint->newer != NULL)
        endpoint->newer->older = endpoint->older;
    else
        rdma->newest = endpoint->older;
    if (endpoint->older != NULL)
        endpoint->older->newer = endpoint->newer;
    else
        rdma->oldest = endpoint->newer;
}

/* One that is in no list of idle ones any more.  The pool counts it until it is closed: so pool and channel stay. */
static void close_counted(te_rdma_endpoint *endpoint) {
    te_rdma_pool *pool = endpoint->pool;
    te_rdma_endpoint_close(endpoint);
    pthread_mutex_lock(&pool->lock);
    pool->count--;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

static void end(te_rdma *rdma, te_rdma_endpoint *endpoint) {
    pthread_mutex_lock(&rdma->lock);
    unlink_endpoint(rdma, endpoint);
    rdma->endpoint_count--;
    pthread_mutex_unlock(&rdma->lock);
    close_counted(endpoint);
}

/* Under pool->lock. */
static bool remove_idle(te_rdma_pool *pool, const te_rdma_endpoint *endpoint) {
    for (te_rdma_endpoint **at = &pool->idle; *at != NULL; at = &(*at)->next)
        if (*at == endpoint) {
            *at = endpoint->next;
            return true;
        }
    return false;
}

bool te_rdma_evict(te_rdma *rdma) {
    te_rdma_endpoint *victim = NULL;
    pthread_mutex_lock(&rdma->lock);
    /* Twice round: the first may only clear marks. */
    for (uint32_t steps = 0; victim == NULL && steps < 2 * rdma->endpoint_count + 1; steps++) {
        te_rdma_endpoint *endpoint = rdma->hand != NULL ? rdma->hand : rdma->oldest;
        if (endpoint == NULL)
            break;
        rdma->hand = endpoint->newer;
        /* The order of locks is the other way round, so only one that is free is looked at. */
        if (pthread_mutex_trylock(&endpoint->pool->lock) != 0)
            continue;
        if (endpoint->is_taken || endpoint->was_used)
            endpoint->was_used = false;
        else if (remove_idle(endpoint->pool, endpoint))
            victim = endpoint;
        pthread_mutex_unlock(&endpoint->pool->lock);
    }
    if (victim != NULL) {
        unlink_endpoint(rdma, victim);
        rdma->endpoint_count--;
    }
    pthread_mutex_unlock(&rdma->lock);
    if (victim == NULL)
        return false;
    close_counted(victim);
    return true;
}

/* A place among the engine's endpoints. */
static bool reserve(te_rdma *rdma) {
    for (int tries = 0; tries < 2; tries++) {
        pthread_mutex_lock(&rdma->lock);
        bool is_free = !rdma->is_stopping && rdma->endpoint_count < rdma->settings.endpoints_max;
        rdma->endpoint_count += is_free;
        pthread_mutex_unlock(&rdma->lock);
        if (is_free)
            return true;
        if (!te_rdma_evict(rdma))
            break;
    }
    return false;
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static ms_status open_one(te_rdma_pool *pool, te_rdma_endpoint **opened) {
    te_rdma *rdma = pool->rdma;
    int64_t deadline_ns = te_now_ns() + OPEN_NS;
    te_connection *connection = NULL;
    if (!reserve(rdma))
        return MS_LIMIT;
    te_scope *outer = te_scope_enter(NULL);
    ms_status status = te_checkout(pool->channel, deadline_ns, &connection);
    if (status == MS_OK && connection->is_unix) {
        te_checkin(connection, true);
        status = MS_REFUSED; /* a peer on this host is reached over shared memory */
    }
    if (status == MS_OK)
        status =
            te_rdma_endpoint_open(rdma, connection, pool->is_writing, NULL, 0, deadline_ns, opened);
    te_scope_enter(outer);
    if (status != MS_OK) {
        pthread_mutex_lock(&rdma->lock);
        rdma->endpoint_count--;
        pthread_mutex_unlock(&rdma->lock);
        return status;
    }
    (*opened)->pool = pool;
    enter(rdma, *opened);
    return MS_OK;
}

static void failed(te_rdma_pool *pool, ms_status status) {
    int64_t pause = PAUSE_FIRST_NS << (pool->failures < 5 ? pool->failures : 5);
    pool->failures++;
    pool->retry_ns = te_now_ns() + (pause < PAUSE_MAX_NS ? pause : PAUSE_MAX_NS);
    /* A method that it does not know, or no NIC: that does not change while it runs. */
    pool->is_never = pool->is_never || status == MS_BAD_REQUEST || status == MS_REFUSED;
}

/* Under pool->lock: idle endpoints that the new one is better than, as a chain. */
static te_rdma_endpoint *take_poorer(te_rdma_pool *pool, uint32_t rails) {
    te_rdma_endpoint *poorer = NULL;
    for (te_rdma_endpoint **at = &pool->idle; *at != NULL;) {
        te_rdma_endpoint *endpoint = *at;
        if (endpoint->alive_count < rails) {
            *at = endpoint->next;
            endpoint->next = poorer;
            poorer = endpoint;
        } else {
            at = &endpoint->next;
        }
    }
    return poorer;
}

static void end_chain(te_rdma *rdma, te_rdma_endpoint *chain) {
    while (chain != NULL) {
        te_rdma_endpoint *next = chain->next;
        end(rdma, chain);
        chain = next;
    }
}

static void open_in_worker(void *argument) {
    te_rdma_pool *pool = argument;
    te_rdma_endpoint *opened = NULL, *useless = NULL;
    ms_status status = open_one(pool, &opened);
    pthread_mutex_lock(&pool->lock);
    pool->count += status == MS_OK;
    if (status != MS_OK) {
        failed(pool, status);
    } else if (pool->is_closing || (opened->rail_count <= pool->rails_best &&
                                    pool->count > pool->rdma->settings.endpoints_per_peer)) {
        /* Nothing has become better: the next try after a pause. */
        opened->next = NULL;
        useless = opened;
        failed(pool, MS_OK);
    } else {
        useless = take_poorer(pool, opened->rail_count);
        pool->rails_best = opened->rail_count;
        pool->failures = 0;
        pool->retry_ns = 0;
        opened->next = pool->idle;
        pool->idle = opened;
    }
    pthread_mutex_unlock(&pool->lock);
    end_chain(pool->rdma, useless);
    pthread_mutex_lock(&pool->lock);
    pool->is_opening = false; /* from here on the pool may go */
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

/* Under pool->lock. */
static void begin_opening(te_rdma_pool *pool) {
    if (pool->is_opening || pool->is_closing || pool->is_never ||
        (pool->retry_ns != 0 && te_now_ns() < pool->retry_ns))
        return;
    pool->is_opening = te_spawn(pool->rdma->engine, open_in_worker, pool) == MS_OK;
}

/* ---- taking and giving --------------------------------------------------------------------------------------------- */

static te_rdma_pool *pool_of(te_channel *channel, bool is_writing) {
    te_rdma *rdma = te_channel_engine(channel)->rdma;
    te_rdma_pool **place = &te_channel_pools(channel)[is_writing];
    te_rdma_pool *pool = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (pool != NULL)
        return pool;
    pool = calloc(1, sizeof *pool);
    if (pool == NULL || te_cond_init(&pool->changed) != MS_OK) {
        free(pool);
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pool->rdma = rdma;
    pool->channel = channel;
    pool->is_writing = is_writing;
    te_rdma_pool *first = NULL;
    if (__atomic_compare_exchange_n(place, &first, pool, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return pool;
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->changed);
    free(pool);
    return first;
}

/* Whether the peer has closed it meanwhile is not asked: the wait for completions looks at the connection too. */
static bool is_useful(te_rdma_endpoint *endpoint) {
    return !endpoint->is_broken && endpoint->alive_count > 0 &&
           te_connection_is_current(endpoint->connection);
}

/* Rails whose NIC is up. */
static uint32_t usable_rails(const te_rdma_endpoint *endpoint) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        count += endpoint->rails[i]->is_alive && atomic_load(&endpoint->rails[i]->qp.nic->is_up);
    return count;
}

bool te_rdma_serves(te_channel *channel, bool is_writing) {
    if (te_channel_engine(channel)->rdma == NULL)
        return false;
    te_rdma_pool *pool = pool_of(channel, is_writing);
    if (pool == NULL)
        return false;
    pthread_mutex_lock(&pool->lock);
    bool is_there = !pool->is_never && (pool->count > 0 || pool->failures == 0);
    if (!is_there)
        begin_opening(pool);
    pthread_mutex_unlock(&pool->lock);
    return is_there;
}

te_rdma_endpoint *te_rdma_take(te_channel *channel, bool is_writing, int64_t deadline_ns) {
    te_rdma_pool *pool = pool_of(channel, is_writing);
    te_rdma_endpoint *useless = NULL, *taken = NULL;
    if (pool == NULL || pool->is_never)
        return NULL;
    int64_t patient_ns = 0; /* no clock is read when one is idle */
    uint32_t gone = 0;      /* counted, and of no use */
    pthread_mutex_lock(&pool->lock);
    while (!pool->is_closing) {
        taken = pool->idle;
        if (taken != NULL) {
            pool->idle = taken->next;
            if (is_useful(taken) && usable_rails(taken) > 0)
                break;
            taken->next = useless;
            useless = taken;
            taken = NULL;
            gone++;
            continue;
        }
        if (pool->count - gone < pool->rdma->settings.endpoints_per_peer)
            begin_opening(pool);
        int64_t now_ns = te_now_ns();
        if (patient_ns == 0)
            patient_ns = now_ns + (int64_t)pool->rdma->settings.wait_ms * TE_NS_PER_MS;
        bool is_patient = pool->is_opening && now_ns < patient_ns;
        if (pool->count == gone && !is_patient)
            break;
        int64_t until_ns = is_patient && patient_ns < deadline_ns ? patient_ns : deadline_ns;
        pool->waiting++;
        bool is_signalled = te_cond_wait_until(&pool->changed, &pool->lock, until_ns);
        pool->waiting--;
        if (!is_signalled)
            break;
    }
    if (pool->count == gone)
        pool->rails_best = 0;
    if (taken != NULL) {
        taken->is_taken = taken->was_used = true;
        if (taken->alive_count < taken->rail_count || usable_rails(taken) < pool->rails_best) {
            pool->rails_best = usable_rails(taken);
            begin_opening(pool);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    end_chain(pool->rdma, useless);
    return taken;
}

void te_rdma_give(te_channel *channel, te_rdma_endpoint *endpoint) {
    te_rdma_pool *pool = endpoint->pool;
    (void)channel;
    pthread_mutex_lock(&pool->lock);
    endpoint->is_taken = false;
    bool is_kept = !pool->is_closing && !endpoint->is_broken && endpoint->alive_count > 0 &&
                   pool->count <= pool->rdma->settings.endpoints_per_peer;
    if (is_kept) {
        endpoint->next = pool->idle;
        pool->idle = endpoint;
    } else if (endpoint->is_broken) {
        begin_opening(pool); /* at once: a peer that is there takes us again */
    }
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    if (!is_kept)
        end(pool->rdma, endpoint);
}

void te_rdma_channel_close(te_channel *channel) {
    for (int i = 0; i < 2; i++) {
        te_rdma_pool *pool = __atomic_load_n(&te_channel_pools(channel)[i], __ATOMIC_ACQUIRE);
        if (pool == NULL)
            continue;
        pthread_mutex_lock(&pool->lock);
        pool->is_closing = true;
        pthread_cond_broadcast(&pool->changed);
        te_rdma_endpoint *idle = pool->idle;
        pool->idle = NULL;
        pthread_mutex_unlock(&pool->lock);
        end_chain(pool->rdma, idle);
        pthread_mutex_lock(&pool->lock);
        while (pool->is_opening || pool->count > 0 || pool->waiting > 0)
            pthread_cond_wait(&pool->changed, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
        /* An eviction may still hold the lock that it has tried. */
        pthread_mutex_lock(&pool->rdma->lock);
        pthread_mutex_unlock(&pool->rdma->lock);
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->changed);
        free(pool);
        te_channel_pools(channel)[i] = NULL;
    }
}

/* Peers that fail: calls tell of it here, a thread asks such peers again, and callers that may wait do so here.
 *
 * The thread begins with the first failure and sleeps while all is well.  It asks the master with a KEEPALIVE, which
 * opens a session where the old one has ended, and a store server with a PING, each under a deadline of its own,
 * the master first.  So no caller pays for finding out whether a peer is back.
 */
#include <errno.h>
#include <time.h>

#include "cl_internal.h"

#define MASTER_PROBE_TIMEOUT_NS INT64_C(300000000)
#define NODE_PROBE_TIMEOUT_NS INT64_C(200000000)

/* A new leader may take 3 s to be found; no caller waits longer than that for one. */
static const cl_breaker_rules master_rules = {
    .patience_ns = INT64_C(3000000000), .pause_first_ns = 20000000, .pause_max_ns = 250000000};
/* While it is suspected others are asked, and who has nobody else waits for the verdict. */
static const cl_breaker_rules node_rules = {
    .patience_ns = INT64_C(1000000000), .pause_first_ns = 50000000, .pause_max_ns = 2000000000};

/* Of nodes that are replaced by a newer life nobody asks any more. */
static void count_node(cl_health *health, const cl_node *node, int change) {
    if (!node->is_retired)
        health->nodes_troubled += (unsigned)change;
}

/* Calls that succeed look at this alone. */
static void publish(atomic_uint *trouble, const cl_breaker *breaker) {
    atomic_store(trouble, (unsigned)breaker->state | (breaker->strikes != 0 ? CL_HAS_STRIKES : 0));
}

static void wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    pthread_cond_timedwait(condition, lock, &until);
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

static void probe_master(cl_client *client) {
    cl_health *health = &client->health;
    pthread_mutex_unlock(&health->lock);
    ms_status status = cl_session_probe(client, te_now_ns() + MASTER_PROBE_TIMEOUT_NS);
    pthread_mutex_lock(&health->lock);
    bool is_change = cl_is_leaderless(status)
                         ? cl_breaker_probe_failed(&health->master, &master_rules, te_now_ns())
                         : cl_breaker_probe_worked(&health->master);
    publish(&health->master_trouble, &health->master);
    if (!is_change)
        return;
    pthread_cond_broadcast(&health->changed);
    if (health->master.state == CL_BREAKER_OPEN) { /* who waits for an answer has waited for long */
        pthread_mutex_unlock(&health->lock);
        te_channel_break_off(client->master);
        pthread_mutex_lock(&health->lock);
    }
}

static void probe_node(cl_client *client, cl_node *node) {
    cl_health *health = &client->health;
    pthread_mutex_unlock(&health->lock);
    uint8_t body[64];
    te_reply reply = {.body = body, .body_size = sizeof body};
    ms_status status =
        te_call(node->reading, MS_PING, 0, NULL, 0, &reply, te_now_ns() + NODE_PROBE_TIMEOUT_NS);
    pthread_mutex_lock(&health->lock);
    bool is_change = cl_is_transport(status)
                         ? cl_breaker_probe_failed(&node->breaker, &node_rules, te_now_ns())
                         : cl_breaker_probe_worked(&node->breaker);
    if (is_change && node->breaker.state == CL_BREAKER_CLOSED)
        count_node(health, node, -1);
    publish(&node->trouble, &node->breaker);
    if (is_change)
        pthread_cond_broadcast(&health->changed);
}

/* Asks whom it is time to ask; when to look again. */
static int64_t probe_due(cl_client *client) {
    cl_health *health = &client->health;
    if (cl_breaker_take_probe(&health->master, te_now_ns()))
        probe_master(client);
    int64_t next_ns = cl_breaker_next_ns(&health->master);
    for (size_t i = 0; i < cl_nodes_end(client) && health->nodes_troubled != 0; i++) {
        cl_node *node = atomic_load_explicit(&client->nodes[i], memory_order_acquire);
        if (node == NULL)
            continue;
        if (cl_breaker_take_probe(&node->breaker, te_now_ns())) {
            probe_node(client, node);
            /* The master comes first, also when a node has kept it waiting. */
            if (cl_breaker_next_ns(&health->master) <= te_now_ns())
                return 0;
        }
        int64_t due_ns = cl_breaker_next_ns(&node->breaker);
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    return next_ns;
}

static void *prober(void *argument) {
    cl_client *client = argument;
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    while (!health->is_stopping) {
        health->is_woken = false;
        int64_t next_ns = probe_due(client);
        while (!health->is_stopping && !health->is_woken && te_now_ns() < next_ns) {
            if (next_ns == INT64_MAX)
                pthread_cond_wait(&health->wake, &health->lock);
            else
                wait_until(&health->wake, &health->lock, next_ns);
        }
    }
    pthread_mutex_unlock(&health->lock);
    return NULL;
}

/* Lock held.  Without a thread a peer is asked by calls only, as before its failure. */
static bool wake_prober(cl_client *client) {
    cl_health *health = &client->health;
    if (!health->runs && !health->is_stopping)
        health->runs = pthread_create(&health->prober, NULL, prober, client) == 0;
    health->is_woken = true;
    pthread_cond_signal(&health->wake);
    return health->runs;
}

void cl_health_open(cl_client *client) {
    cl_health *health = &client->health;
    pthread_mutex_init(&health->lock, NULL);
    cl_condition_init(&health->wake);
    cl_condition_init(&health->changed);
}

void cl_health_stop(cl_client *client) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    health->is_stopping = true;
    pthread_cond_signal(&health->wake);
    pthread_cond_broadcast(&health->changed);
    bool runs = health->runs;
    health->runs = false;
    pthread_mutex_unlock(&health->lock);
    if (runs)
        pthread_join(health->prober, NULL);
}

void cl_health_resume(cl_client *client) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    health->is_stopping = false;
    if (health->master.state != CL_BREAKER_CLOSED || health->nodes_troubled != 0)
        wake_prober(client);
    pthread_mutex_unlock(&health->lock);
}

void cl_health_close(cl_client *client) {
    pthread_mutex_destroy(&client->health.lock);
    pthread_cond_destroy(&client->health.wake);
    pthread_cond_destroy(&client->health.changed);
}

/* ---- the master ------------------------------------------------------------------------------------------- */

void cl_master_failed(cl_client *client, int64_t began_ns) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    bool is_change = cl_breaker_failed(&health->master, &master_rules, began_ns, te_now_ns());
    if (is_change && !wake_prober(client))
        cl_breaker_worked(&health->master);
    publish(&health->master_trouble, &health->master);
    pthread_mutex_unlock(&health->lock);
}

void cl_master_worked(cl_client *client) {
    cl_health *health = &client->health;
    if (atomic_load_explicit(&health->master_trouble, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&health->lock);
    if (cl_breaker_worked(&health->master))
        pthread_cond_broadcast(&health->changed);
    publish(&health->master_trouble, &health->master);
    pthread_mutex_unlock(&health->lock);
}

void cl_master_moved(cl_client *client) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    cl_breaker_moved(&health->master, te_now_ns());
    wake_prober(client);
    publish(&health->master_trouble, &health->master);
    pthread_mutex_unlock(&health->lock);
}

bool cl_master_wait(cl_client *client, bool even_if_open, int64_t deadline_ns) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    while (!health->is_stopping && te_now_ns() < deadline_ns &&
           (health->master.state == CL_BREAKER_SUSPECTED ||
            (even_if_open && health->master.state == CL_BREAKER_OPEN)))
        wait_until(&health->changed, &health->lock, deadline_ns);
    bool is_back = health->master.state == CL_BREAKER_CLOSED && te_now_ns() < deadline_ns;
    pthread_mutex_unlock(&health->lock);
    return is_back;
}

ms_status cl_master_check(cl_client *client, const char *stage, int64_t deadline_ns,
                          cl_failure *failure) {
    cl_health *health = &client->health;
    unsigned state =
        atomic_load_explicit(&health->master_trouble, memory_order_relaxed) & CL_STATE_MASK;
    if (state == CL_BREAKER_CLOSED ||
        (state == CL_BREAKER_SUSPECTED && cl_master_wait(client, false, deadline_ns)))
        return MS_OK;
    pthread_mutex_lock(&health->lock);
    int64_t silent_ns = te_now_ns() - health->master.since_ns;
    pthread_mutex_unlock(&health->lock);
    return cl_fail(failure, MS_UNAVAILABLE, stage, "master",
                   "it has not answered for %.1f s and is asked again in the background",
                   (double)silent_ns / 1e9);
}

/* ---- store servers ---------------------------------------------------------------------------------------- */

void cl_node_failed(cl_client *client, cl_node *node, int64_t began_ns) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    if (cl_breaker_failed(&node->breaker, &node_rules, began_ns, te_now_ns())) {
        count_node(health, node, 1);
        if (!wake_prober(client)) {
            cl_breaker_worked(&node->breaker);
            count_node(health, node, -1);
        }
    }
    publish(&node->trouble, &node->breaker);
    pthread_mutex_unlock(&health->lock);
}

void cl_node_worked(cl_client *client, cl_node *node) {
    cl_health *health = &client->health;
    if (atomic_load_explicit(&node->trouble, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&health->lock);
    if (cl_breaker_worked(&node->breaker)) {
        count_node(health, node, -1);
        pthread_cond_broadcast(&health->changed);
    }
    publish(&node->trouble, &node->breaker);
    pthread_mutex_unlock(&health->lock);
}

bool cl_node_settle(cl_client *client, cl_node *node, int64_t deadline_ns) {
    cl_health *health = &client->health;
    if (cl_node_state(node) == CL_BREAKER_CLOSED)
        return true;
    pthread_mutex_lock(&health->lock);
    while (!health->is_stopping && !node->is_retired && te_now_ns() < deadline_ns &&
           node->breaker.state == CL_BREAKER_SUSPECTED)
        wait_until(&health->changed, &health->lock, deadline_ns);
    bool is_there = node->breaker.state == CL_BREAKER_CLOSED;
    pthread_mutex_unlock(&health->lock);
    return is_there;
}

void cl_node_retired(cl_client *client, cl_node *node) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    if (node->breaker.state != CL_BREAKER_CLOSED)
        count_node(health, node, -1);
    node->is_retired = true;
    pthread_cond_broadcast(&health->changed);
    pthread_mutex_unlock(&health->lock);
}

void cl_health_read(cl_client *client, cl_counters *counters) {
    cl_health *health = &client->health;
    pthread_mutex_lock(&health->lock);
    counters->master_state = (uint32_t)health->master.state;
    counters->master_openings = health->master.openings;
    counters->nodes_avoided = health->nodes_troubled;
    pthread_mutex_unlock(&health->lock);
}

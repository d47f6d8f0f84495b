#include "write_early.h"

#include "pieces.h"

/* Small enough for a socket's buffer, and for one connection to be as good as several. */
#define EARLY_BYTES_MAX (64u << 10)

/* NULL: it must be asked for first, or there is none. */
static cl_node *holder_of(const cl_putting *put, const cl_replica *replica, uint32_t epoch) {
    if (!cl_node_is_told(put->client, replica->server, replica->incarnation, epoch))
        return NULL;
    return cl_node_get(put->client, replica->server, replica->incarnation, epoch, put->deadline_ns);
}

/* The node of all that is granted; NULL: there are several, or replicas, or it must be asked for first. */
static cl_node *node_of_all(const cl_putting *put, size_t *writes) {
    cl_node *node = NULL;
    uint32_t epoch = 0; /* of the grant that named it */
    uint64_t bytes = 0;
    *writes = 0;
    if (put->options->share != NULL)
        return NULL; /* the engine's schedule says when */
    for (size_t i = 0; i < put->count; i++) {
        const cl_location *grant = put->states[i].grant;
        if (grant == NULL)
            continue;
        const cl_replica *replica = &grant->replicas[0];
        if (grant->replica_count != 1)
            return NULL;
        bool is_same = node != NULL && replica->server == node->server &&
                       replica->incarnation == node->incarnation && grant->epoch == epoch;
        if (!is_same) {
            cl_node *holder = holder_of(put, replica, grant->epoch);
            if (holder == NULL || (node != NULL && holder != node))
                return NULL;
            node = holder;
            epoch = grant->epoch;
        }
        *writes += cl_runs_max(&put->items[i], replica->extent_count);
        bytes += put->items[i].size;
    }
    if (bytes > EARLY_BYTES_MAX || *writes > CL_WRITE_ITEMS_MAX)
        return NULL;
    return node;
}

static ms_status take_connection(cl_write_early *early, cl_write_early *before,
                                 int64_t deadline_ns) {
    bool is_followed = before != NULL && before->connection != NULL && before->sent == MS_OK &&
                       before->node == early->node;
    if (!is_followed)
        return te_checkout_try(early->node->writing, deadline_ns, &early->connection);
    early->connection = before->connection;
    before->next = early;
    return MS_OK;
}

/* The connection goes back, or to who is next on it; none is left if who was before has seen it fail. */
static void give_connection(cl_write_early *early, ms_status status, bool is_refused) {
    te_connection *connection = early->connection;
    early->connection = NULL;
    if (connection == NULL)
        return;
    if (early->next != NULL) {
        if (status == MS_OK || is_refused)
            return; /* after a refusal the connection's end is the next one's answer */
        early->next->connection = NULL;
        early->next->sent = status;
    }
    te_checkin(connection, status == MS_OK);
}

bool cl_write_early_begin(cl_write_early *early, cl_putting *put, cl_write_early *before) {
    size_t writes;
    early->connection = NULL;
    early->next = NULL;
    early->node = node_of_all(put, &writes);
    if (early->node == NULL || cl_put_avoids(put, early->node))
        return false;
    early->began_ns = te_now_ns();
    put->write_ns = cl_put_limit(put, early->node, EARLY_BYTES_MAX);
    ms_status status = cl_write_list_open(&early->list, writes);
    for (size_t i = 0; i < put->count && status == MS_OK; i++)
        if (put->states[i].grant != NULL)
            cl_write_list_add(&early->list, put, i, &put->states[i].grant->replicas[0], 0, 0);
    if (status == MS_OK)
        status = early->list.seals.status;
    if (status == MS_OK)
        status = take_connection(early, before, put->write_ns);
    if (status != MS_OK) {
        cl_write_list_close(&early->list);
        return false;
    }
    early->generation = te_connection_generation(early->connection);
    early->sent = cl_write_list_send(&early->list, early->connection, 0, put->write_ns);
    return true;
}

ms_status cl_write_early_end(cl_write_early *early, cl_putting *put, cl_failure *failure) {
    ms_status status = early->sent;
    bool is_refused = false;
    if (status == MS_OK)
        status = cl_write_list_receive(&early->list, early->connection, put->write_ns, &is_refused);
    bool is_again = status == MS_UNAVAILABLE && !is_refused;
    if (is_again)
        cl_put_repeat(put, early->generation);
    give_connection(early, status, is_refused);
    if (is_again) {
        cl_write_list_doubt(&early->list, put);
        cl_write_list_close(&early->list);
        return cl_put_write(put, &put->is_relayed, failure);
    }
    if (status == MS_OK) {
        cl_write_list_settle(&early->list, put, early->node, 1, failure);
        cl_node_worked(put->client, early->node);
    } else {
        cl_put_node_failed(put, early->node, status, early->began_ns, failure);
        cl_write_list_doubt(&early->list, put);
        for (size_t at = 0; at < early->list.count; at++)
            cl_put_replica_failed(put, early->list.owners[at], status);
    }
    cl_write_list_close(&early->list);
    return status;
}

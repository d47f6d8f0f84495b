/* Store servers as this client knows them: channels, mappings, and who is avoided after a failure. */
#include <stdio.h>

#include "cl_internal.h"

#define MEMBERS_PAUSE_NS                                                                           \
    50000000 /* an unknown server makes us ask for MEMBERS at most this often */

static void node_free(cl_node *node) {
    if (node->reading != NULL)
        te_channel_close(node->reading);
    if (node->writing != NULL)
        te_channel_close(node->writing);
    pthread_mutex_destroy(&node->mapping_lock);
    free(node);
}

void cl_nodes_destroy(cl_client *client) {
    for (size_t i = 0; i < cl_nodes_end(client); i++)
        if (client->nodes[i] != NULL)
            node_free(client->nodes[i]);
    while (client->retired != NULL) {
        cl_node *next = client->retired->older;
        node_free(client->retired);
        client->retired = next;
    }
}

static ms_status open_channel(cl_client *client, cl_node *node, uint8_t right,
                              const char *addresses, const char *unix_path, te_channel **channel) {
    uint8_t hello[CL_HELLO_BYTES_MAX];
    size_t length = 0;
    ms_status status =
        cl_hello_for_node(client, right, node->incarnation, hello, sizeof hello, &length);
    if (status != MS_OK)
        return status;
    te_channel_config config = {.addresses = addresses,
                                .unix_path = unix_path,
                                .hello = hello,
                                .hello_length = length,
                                .connections_max = client->config.connections_max};
    return te_channel_open(client->engine, &config, channel);
}

/* With members_lock held. */
static void set_session(cl_client *client, cl_node *node) {
    uint8_t hello[CL_HELLO_BYTES_MAX];
    size_t length;
    /* Of those that read nobody asks for a session: their connections stay. */
    if (cl_hello_for_node(client, MS_RIGHT_WRITE, node->incarnation, hello, sizeof hello,
                          &length) == MS_OK)
        te_channel_set_hello(node->writing, hello, length);
}

/* With members_lock held.  The leader of that epoch says who has a number. */
static void node_make(cl_client *client, const ms_server_view *view, uint32_t epoch) {
    if (view->head.server >= CL_NODES_MAX)
        return;
    cl_node *old = client->nodes[view->head.server];
    bool is_same =
        old != NULL && memcmp(old->node_id, view->head.node_id, sizeof old->node_id) == 0;
    if (old != NULL && (epoch < atomic_load(&old->epoch_last) ||
                        (is_same && view->head.incarnation < old->incarnation)))
        return; /* an answer that took longer is of no use */
    if (is_same && view->head.incarnation == old->incarnation) {
        if (epoch != atomic_load(&old->epoch_last)) {
            set_session(client, old); /* before grants of that epoch count here */
            atomic_store(&old->epoch_last, epoch);
        }
        return;
    }
    cl_node *node = calloc(1, sizeof *node);
    char addresses[MS_ADDRESSES_BYTES_MAX + 1], path[MS_SOCKET_PATH_BYTES_MAX + 1];
    if (node == NULL)
        return;
    pthread_mutex_init(&node->mapping_lock, NULL);
    node->server = view->head.server;
    node->incarnation = view->head.incarnation;
    node->epoch_first = is_same ? old->epoch_first : epoch;
    atomic_store(&node->epoch_last, epoch);
    memcpy(node->node_id, view->head.node_id, sizeof node->node_id);
    snprintf(node->name, sizeof node->name, "%.*s", (int)view->name.length, view->name.data);
    snprintf(addresses, sizeof addresses, "%.*s", (int)view->addresses.length,
             view->addresses.data);
    snprintf(path, sizeof path, "%.*s", (int)view->socket_path.length, view->socket_path.data);
    node->is_local = client->config.allow_local && path[0] != '\0' &&
                     memcmp(view->head.boot_id, client->boot_id, sizeof client->boot_id) == 0;
    const char *unix_path = node->is_local ? path : NULL;
    if (open_channel(client, node, MS_RIGHT_READ, addresses, unix_path, &node->reading) != MS_OK ||
        open_channel(client, node, MS_RIGHT_WRITE, addresses, unix_path, &node->writing) != MS_OK) {
        node_free(node);
        return;
    }
    atomic_store_explicit(&client->nodes[node->server], node, memory_order_release);
    if (node->server >= cl_nodes_end(client))
        atomic_store_explicit(&client->nodes_end, node->server + 1, memory_order_release);
    if (old != NULL) {
        cl_node_retired(client, old);
        old->older = client->retired;
        client->retired = old;
    }
}

ms_status cl_members_fetch(cl_client *client, int64_t deadline_ns) {
    cl_failure failure;
    te_reply reply = {.grow = true};
    /* Under no lock: it may have to open a session, which tells the nodes. */
    ms_status status = cl_master_call(client, CL_REPEAT_ALWAYS, MS_MEMBERS, 0, NULL, 0, &reply,
                                      "members", deadline_ns, &failure);
    uint32_t epoch = reply.header.epoch; /* of the leader that answered, also if it leads no more */
    pthread_mutex_lock(&client->members_lock);
    if (status == MS_OK && epoch != atomic_load(&client->epoch))
        status = MS_WRONG_EPOCH; /* its numbers mean nothing any more */
    if (status == MS_OK) {
        ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
        uint32_t serial = ms_reader_u32(&reader);
        uint32_t count = ms_reader_u32(&reader);
        for (uint32_t i = 0; i < count && !reader.is_bad; i++) {
            ms_server_view view;
            if (!ms_reader_server(&reader, &view))
                break;
            if (view.head.state != MS_MEMBER_GONE)
                node_make(client, &view, epoch);
        }
        if (reader.is_bad)
            status = MS_BAD_FRAME;
        else
            atomic_store(&client->members_known, serial);
    }
    free(reply.body);
    client->members_fetched_ns = te_now_ns();
    pthread_mutex_unlock(&client->members_lock);
    return status;
}

cl_node *cl_node_get(cl_client *client, uint32_t server, uint32_t incarnation, uint32_t epoch,
                     int64_t deadline_ns) {
    if (server >= CL_NODES_MAX)
        return NULL;
    cl_node *node = atomic_load_explicit(&client->nodes[server], memory_order_acquire);
    bool is_newer = node != NULL && (node->epoch_first > epoch || node->incarnation > incarnation);
    if (is_newer)
        return NULL; /* the location is of an older life, or of whoever had this number before */
    bool is_confirmed = node != NULL && epoch <= atomic_load(&node->epoch_last);
    if (is_confirmed && node->incarnation == incarnation)
        return node;
    pthread_mutex_lock(&client->members_lock);
    bool is_recent = te_now_ns() - client->members_fetched_ns < MEMBERS_PAUSE_NS &&
                     client->members_fetched_ns != 0;
    pthread_mutex_unlock(&client->members_lock);
    if (!is_recent || !is_confirmed)
        cl_members_fetch(client, deadline_ns);
    node = atomic_load_explicit(&client->nodes[server], memory_order_acquire);
    bool is_named = node != NULL && node->incarnation == incarnation &&
                    node->epoch_first <= epoch && epoch <= atomic_load(&node->epoch_last);
    return is_named ? node : NULL;
}

bool cl_node_is_told(cl_client *client, uint32_t server, uint32_t incarnation, uint32_t epoch) {
    if (server >= CL_NODES_MAX)
        return true;
    const cl_node *node = atomic_load_explicit(&client->nodes[server], memory_order_acquire);
    if (node == NULL)
        return false;
    bool is_newer = node->epoch_first > epoch || node->incarnation > incarnation;
    return is_newer ||
           (epoch <= atomic_load(&node->epoch_last) && node->incarnation == incarnation);
}

cl_node *cl_node_now(cl_client *client, cl_node *node) {
    cl_node *newest = node;
    for (size_t i = 0; i < cl_nodes_end(client); i++) {
        cl_node *known = atomic_load_explicit(&client->nodes[i], memory_order_acquire);
        if (known != NULL && memcmp(known->node_id, node->node_id, sizeof node->node_id) == 0 &&
            known->incarnation > newest->incarnation)
            newest = known;
    }
    return newest;
}

cl_node *cl_node_of_view(cl_client *client, const cl_view *view) {
    cl_node *node = view->server < CL_NODES_MAX ? atomic_load(&client->nodes[view->server]) : NULL;
    if (node == NULL || node->incarnation != view->incarnation ||
        node->epoch_first != view->epoch) {
        pthread_mutex_lock(&client->members_lock);
        for (node = client->retired; node != NULL; node = node->older)
            if (node->server == view->server && node->incarnation == view->incarnation &&
                node->epoch_first == view->epoch)
                break;
        pthread_mutex_unlock(&client->members_lock);
    }
    return node != NULL ? cl_node_now(client, node) : NULL;
}

static bool is_at_work(cl_client *client, cl_node *node) {
    return node != NULL && atomic_load(&node->epoch_last) == atomic_load(&client->epoch) &&
           cl_node_state(node) == CL_BREAKER_CLOSED;
}

uint32_t cl_node_others(cl_client *client, const cl_node *node) {
    uint32_t count = 0;
    for (size_t i = 0; i < cl_nodes_end(client); i++) {
        cl_node *other = atomic_load_explicit(&client->nodes[i], memory_order_acquire);
        count += other != node && is_at_work(client, other);
    }
    return count;
}

void cl_nodes_troubled(cl_client *client, uint16_t servers[2]) {
    uint32_t count = 0;
    servers[0] = servers[1] = 0;
    if (atomic_load_explicit(&client->health.nodes_troubled, memory_order_relaxed) == 0)
        return;
    for (uint32_t i = 0; i < cl_nodes_end(client) && count < 2; i++) {
        cl_node *node = atomic_load_explicit(&client->nodes[i], memory_order_acquire);
        if (node != NULL && cl_node_state(node) != CL_BREAKER_CLOSED)
            servers[count++] = (uint16_t)(i + 1);
    }
}

const te_mapping *cl_node_map(cl_client *client, cl_node *node, uint32_t segment,
                              int64_t deadline_ns) {
    if (!node->is_local || segment >= CL_SEGMENTS_MAX)
        return NULL;
    if (cl_node_is_mapped(node, segment))
        return &node->mappings[segment];
    const te_mapping *mapping = NULL;
    if (!cl_lock_until(&node->mapping_lock, deadline_ns))
        return NULL;
    if (atomic_load(&node->mapped[segment])) {
        mapping = &node->mappings[segment];
    } else {
        int64_t began_ns = te_now_ns();
        ms_status status = te_attach(node->reading, segment, deadline_ns, &node->mappings[segment]);
        /* Another incarnation's memory would answer for pages that were never its. */
        if (status == MS_OK && node->mappings[segment].incarnation == node->incarnation &&
            node->mappings[segment].words != NULL) {
            atomic_store_explicit(&node->mapped[segment], true, memory_order_release);
            mapping = &node->mappings[segment];
        }
        if (status == MS_TIMEOUT) /* no socket is no failure: TCP may work */
            cl_node_failed(client, node, began_ns);
    }
    pthread_mutex_unlock(&node->mapping_lock);
    return mapping;
}

void cl_nodes_set_session(cl_client *client) {
    pthread_mutex_lock(&client->members_lock);
    for (size_t i = 0; i < cl_nodes_end(client); i++)
        if (client->nodes[i] != NULL)
            set_session(client, client->nodes[i]);
    pthread_mutex_unlock(&client->members_lock);
}

void cl_nodes_retire(cl_client *client) {
    pthread_mutex_lock(&client->members_lock);
    for (size_t i = 0; i < cl_nodes_end(client); i++) {
        cl_node *node = client->nodes[i];
        if (node == NULL)
            continue;
        atomic_store(&client->nodes[i], NULL);
        cl_node_retired(client, node);
        node->older = client->retired;
        client->retired = node;
    }
    pthread_mutex_unlock(&client->members_lock);
}

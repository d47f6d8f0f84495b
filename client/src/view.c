/* The messages about views, and those that are still owed: a server counts a view until it is told of its end.
 *
 * A view that nobody here looks at must not stay open there.  Three things could leave one behind at a server that
 * is frozen, overloaded or killed:
 * - its VIEW_OPEN is unanswered at the deadline.  A VIEW_CLOSE could overtake it, so the connection is kept, and the
 *   late answer read *(close_follows)*.  A client that closes ends the connection first and then looks for the last time
 *   *(end_then_look)*: an answer that is not there by then cannot be given any more, and a server takes back the views
 *   whose answer it cannot give *(open_answered)*.
 * - the connection of its VIEW_OPEN ends without an answer.  The server may have opened it and died then, and its next
 *   life counts it still: its VIEW_CLOSE is sent *(open_settled)*.  The tag, which is another one for each view, keeps
 *   that from ending another view of the same object in its place *(close_tagged)*.
 * - its VIEW_CLOSE is not answered: it could not be sent, or the server died before it handled it.  It is sent again;
 *   one that was handled finds nothing to end *(close_repeated)*.
 * A server that is restarted has its table of views still, so what is owed to its former life goes to the next one.
 * The keeper settles them; for a client that is closed and owes still, because a server is away, a thread that ends
 * with the last of them, or gives up after CL_LINGER_NS: what is left then ends with the process.
 */
#include <time.h>

#include "cl_internal.h"

#define UNANSWERED_MAX 4u /* more would take all connections to a frozen server */
#define CLOSE_TIMEOUT_NS 2000000000
#define SETTLE_TIMEOUT_NS 300000000
#define LOOK_NS 1000000
#define LINGER_PAUSE_NS 250000000
#define MEMBERS_TIMEOUT_NS 2000000000
#define ANSWER_REST_NS 10000000 /* for the rest of an answer that has begun to come */

typedef struct view_list {
    uint32_t count, zero;
    ms_view_item item;
} view_list;

/* *connection has the request on its way.  One that is found dead is replaced once. */
static ms_status send_view(cl_node *node, uint16_t method, const ms_view_item *item,
                           te_connection **connection, int64_t deadline_ns) {
    view_list list = {.count = 1, .item = *item};
    struct iovec body = {.iov_base = &list, .iov_len = sizeof list};
    ms_status status = MS_UNAVAILABLE;
    for (int attempt = 0; attempt < 2 && status == MS_UNAVAILABLE; attempt++) {
        status = te_checkout(node->reading, deadline_ns, connection);
        if (status != MS_OK)
            return status;
        status = te_send(*connection, MS_REQUEST, method, 0, te_next_request(*connection),
                         cl_left_ms(deadline_ns), &body, 1, NULL, 0, deadline_ns);
        if (status != MS_OK)
            te_checkin(*connection, false);
    }
    return status;
}

/* What the server says of the view.  The connection is given back. */
static ms_status receive_view(te_connection *connection, int64_t deadline_ns) {
    uint8_t answer[256];
    te_reply reply = {.body = answer, .body_size = sizeof answer};
    ms_array statuses;
    ms_status status = te_receive(connection, &reply, deadline_ns);
    /* REFUSED: a channel whose Unix socket did not answer has fallen back on TCP; the next dial may be better. */
    te_checkin(connection, status == MS_OK && reply.header.status != MS_REFUSED);
    if (status != MS_OK)
        return status;
    if (reply.header.status != MS_OK)
        return (ms_status)reply.header.status;
    if (!ms_read_array(answer, reply.header.body_length, sizeof(uint32_t), &statuses) ||
        statuses.count != 1)
        return MS_BAD_FRAME;
    return (ms_status)ms_array_u32(statuses, 0);
}

static void owe(cl_client *client, cl_owed_view *owed) {
    pthread_mutex_lock(&client->owed_lock);
    owed->next = client->owed;
    client->owed = owed;
    client->owed_unanswered += owed->connection != NULL;
    pthread_mutex_unlock(&client->owed_lock);
}

/* Of all clients of this process, for which a server keeps one list. */
uint16_t cl_view_next_tag(void) {
    static atomic_uint last;
    return (uint16_t)(atomic_fetch_add(&last, 1) + 1);
}

ms_status cl_view_ask(cl_client *client, cl_node *node, const ms_view_item *item,
                      int64_t deadline_ns) {
    pthread_mutex_lock(&client->owed_lock);
    bool is_full = client->owed_unanswered >= UNANSWERED_MAX;
    pthread_mutex_unlock(&client->owed_lock);
    if (is_full)
        return MS_UNAVAILABLE;
    cl_owed_view *owed = malloc(sizeof *owed);
    if (owed == NULL)
        return MS_NO_MEMORY;
    *owed = (cl_owed_view){.node = node, .item = *item};
    int which;
    ms_status status = send_view(node, MS_VIEW_OPEN, item, &owed->connection, deadline_ns);
    if (status == MS_OK) {
        status = te_wait_either(owed->connection, owed->connection, &which, deadline_ns);
        if (status != MS_OK) {
            te_hand_over(owed->connection);
            owe(client, owed);
            return status;
        }
        int64_t rest_ns = te_now_ns() + ANSWER_REST_NS;
        status = receive_view(owed->connection, deadline_ns > rest_ns ? deadline_ns : rest_ns);
        owed->connection = NULL;
        if (status == MS_REFUSED) {
            status = MS_UNAVAILABLE;
        } else if (cl_is_transport(status) || status == MS_BAD_FRAME) {
            owe(client, owed); /* nobody knows: it is closed later, if it is there */
            return status;
        }
    }
    free(owed);
    return status;
}

static ms_status tell_closed(cl_node *node, const ms_view_item *item, int64_t timeout_ns) {
    te_connection *connection = NULL;
    int64_t deadline_ns = te_now_ns() + timeout_ns;
    ms_status status = send_view(node, MS_VIEW_CLOSE, item, &connection, deadline_ns);
    if (status == MS_OK)
        status = receive_view(connection, deadline_ns);
    return status == MS_NOT_FOUND ? MS_OK : status; /* it has ended before */
}

/* ---- a client that is closed ------------------------------------------------------------------------------- */

/* Only the master knows where a server's next life is, and only a prober finds that a peer is back. */
static void *linger(void *argument) {
    cl_client *client = argument;
    const struct timespec pause = {.tv_nsec = LINGER_PAUSE_NS};
    int64_t end_ns = te_now_ns() + CL_LINGER_NS;
    for (bool is_over = false; !is_over;) {
        cl_health_resume(client);
        bool is_late = false;
        for (bool owes = true; owes && !is_late; is_late = te_now_ns() >= end_ns) {
            nanosleep(&pause, NULL);
            cl_members_fetch(client, te_now_ns() + MEMBERS_TIMEOUT_NS);
            cl_views_settle(client, false);
            pthread_mutex_lock(&client->owed_lock);
            owes = client->owed != NULL;
            pthread_mutex_unlock(&client->owed_lock);
        }
        cl_session_close(client, te_now_ns() + MEMBERS_TIMEOUT_NS);
        cl_health_stop(client);
        pthread_mutex_lock(&client->owed_lock);
        is_over = is_late || client->owed == NULL; /* or a view has ended meanwhile */
        client->lingers = !is_over;
        pthread_mutex_unlock(&client->owed_lock);
    }
    cl_let_go(client);
    return NULL;
}

static void linger_if_closed(cl_client *client) {
    pthread_mutex_lock(&client->owed_lock);
    bool starts = client->is_closed && client->owed != NULL && !client->lingers;
    client->lingers = client->lingers || starts;
    pthread_mutex_unlock(&client->owed_lock);
    if (!starts)
        return;
    pthread_t thread;
    atomic_fetch_add(&client->holders, 1);
    if (pthread_create(&thread, NULL, linger, client) == 0) {
        pthread_detach(thread);
        return;
    }
    pthread_mutex_lock(&client->owed_lock);
    client->lingers = false;
    pthread_mutex_unlock(&client->owed_lock);
    cl_let_go(client);
}

void cl_views_linger(cl_client *client) {
    pthread_mutex_lock(&client->owed_lock);
    client->is_closed = true;
    pthread_mutex_unlock(&client->owed_lock);
    linger_if_closed(client);
}

void cl_view_end(cl_client *client, const cl_view *view) {
    cl_node *node = cl_node_of_view(client, view);
    if (node == NULL)
        return;
    ms_view_item item = {.version = view->version,
                         .segment = (uint16_t)view->segment,
                         .tag = (uint16_t)view->tag,
                         .page = view->page};
    if (tell_closed(node, &item, CLOSE_TIMEOUT_NS) == MS_OK)
        return;
    cl_owed_view *owed = malloc(sizeof *owed);
    if (owed == NULL)
        return; /* it ends with the process */
    *owed = (cl_owed_view){.node = node, .item = item};
    owe(client, owed);
    linger_if_closed(client);
}

/* Whether nothing more is to be done about it.  *silent: a node that is not asked again in this round. */
static bool settle(cl_client *client, cl_owed_view *owed, bool is_last, cl_node **silent) {
    cl_node *now = cl_node_now(client, owed->node);
    if (owed->connection != NULL && now != owed->node) {
        te_checkin(owed->connection, false); /* restarted since it was asked */
        owed->connection = NULL;
    }
    if (owed->connection != NULL) {
        int which;
        bool has_come = te_wait_either(owed->connection, owed->connection, &which,
                                       te_now_ns() + LOOK_NS) == MS_OK;
        if (!has_come && !is_last)
            return false;
        if (!has_come)
            te_connection_end(owed->connection);
        ms_status status = receive_view(owed->connection, te_now_ns() + ANSWER_REST_NS);
        owed->connection = NULL;
        bool is_unknown = cl_is_transport(status) || status == MS_BAD_FRAME;
        if ((status != MS_OK && !is_unknown) || (is_unknown && !has_come))
            return true; /* it was not opened, or will be taken back */
    }
    if (now == *silent || cl_node_state(now) != CL_BREAKER_CLOSED)
        return false;
    ms_status status = tell_closed(now, &owed->item, SETTLE_TIMEOUT_NS);
    if (status == MS_TIMEOUT)
        *silent = now;
    return status == MS_OK;
}

void cl_views_settle(cl_client *client, bool is_last) {
    pthread_mutex_lock(&client->owed_lock);
    cl_owed_view *owed = client->owed;
    client->owed = NULL;
    client->owed_unanswered = 0;
    pthread_mutex_unlock(&client->owed_lock);
    cl_node *silent = NULL;
    while (owed != NULL) {
        cl_owed_view *next = owed->next;
        if (settle(client, owed, is_last, &silent))
            free(owed);
        else
            owe(client, owed);
        owed = next;
    }
}

/* What is left by who gave up: it ends with the process. */
void cl_views_forget(cl_client *client) {
    while (client->owed != NULL) {
        cl_owed_view *next = client->owed->next;
        free(client->owed);
        client->owed = next;
    }
}

/* Cancelling exchanges that other threads are in.
 *
 * A thread that is in a scope has its connections entered there by te_checkout.  te_scope_cancel shuts the sockets
 * of all of them down, which wakes whoever waits on one at once; the exchange fails, the connection is closed, and
 * te_checkout gives no further one.  Work that goes on on other threads takes the scope along.
 */
#include <sys/socket.h>

#include "te_carrier.h"

static _Thread_local te_scope *current;

void te_scope_open(te_scope *scope) {
    *scope = (te_scope){0};
    pthread_mutex_init(&scope->lock, NULL);
}

void te_scope_close(te_scope *scope) { pthread_mutex_destroy(&scope->lock); }

te_scope *te_scope_current(void) { return current; }

te_scope *te_scope_enter(te_scope *scope) {
    te_scope *outer = current;
    current = scope;
    return outer;
}

ms_status te_scope_add(te_connection *connection) {
    te_scope *scope = current;
    connection->scope = NULL;
    if (scope == NULL)
        return MS_OK;
    pthread_mutex_lock(&scope->lock);
    ms_status status = scope->is_cancelled ? MS_CANCELLED : MS_OK;
    if (status == MS_OK) {
        connection->scope = scope;
        connection->scope_next = scope->connections;
        scope->connections = connection;
    }
    pthread_mutex_unlock(&scope->lock);
    return status;
}

void te_scope_remove(te_connection *connection) {
    te_scope *scope = connection->scope;
    if (scope == NULL)
        return;
    pthread_mutex_lock(&scope->lock);
    te_connection **link = &scope->connections;
    while (*link != connection)
        link = &(*link)->scope_next;
    *link = connection->scope_next;
    /* It has been shut down: whatever its user thinks, it cannot be used again. */
    if (scope->is_cancelled)
        connection->is_broken = true;
    pthread_mutex_unlock(&scope->lock);
    connection->scope = NULL;
}

void te_scope_cancel(te_scope *scope) {
    pthread_mutex_lock(&scope->lock);
    if (!scope->is_cancelled) {
        scope->is_cancelled = true;
        for (te_connection *connection = scope->connections; connection != NULL;
             connection = connection->scope_next)
            shutdown(connection->descriptor, SHUT_RDWR);
        for (te_carry *carry = scope->carries; carry != NULL; carry = carry->scope_next)
            te_carry_cancel(carry, MS_CANCELLED);
    }
    pthread_mutex_unlock(&scope->lock);
}

bool te_scope_is_cancelled(te_scope *scope) {
    pthread_mutex_lock(&scope->lock);
    bool is_cancelled = scope->is_cancelled;
    pthread_mutex_unlock(&scope->lock);
    return is_cancelled;
}

void te_scope_add_carry(te_scope *scope, te_carry *carry) {
    pthread_mutex_lock(&scope->lock);
    carry->scope_next = scope->carries;
    scope->carries = carry;
    if (scope->is_cancelled)
        te_carry_cancel(carry, MS_CANCELLED);
    pthread_mutex_unlock(&scope->lock);
}

void te_scope_remove_carry(te_scope *scope, te_carry *carry) {
    pthread_mutex_lock(&scope->lock);
    te_carry **at = &scope->carries;
    while (*at != carry)
        at = &(*at)->scope_next;
    *at = carry->scope_next;
    pthread_mutex_unlock(&scope->lock);
}

/* Relayed put_end: after the last SEAL the server passes the client's put_end to the master *(relay_after_seal)*.
 *
 * It goes over the connection of the grant's epoch, once.  Without one the client is answered OK, which tells
 * it to send put_end itself; it does so too when the master's answer does not come in time.
 */
#include <stdlib.h>

#include "st_internal.h"

/* The client relays only when all other parts and replicas have been answered: all of them are SEALED. */
#define ALL_REPLICAS UINT64_MAX

bool st_relay(st_server *server, st_peer *peer, const ms_write_view *write) {
    ms_end_item *items = malloc(write->items.count * sizeof *items);
    if (items == NULL)
        return false;
    uint32_t count = 0;
    uint64_t number = 0;
    bool is_whole = true;
    ms_reader seals = ms_reader_of(write->seals, write->seals_length);
    for (uint32_t at = 0; is_whole && at < write->items.count; at++) {
        ms_write_item item;
        ms_seal_view seal;
        MS_ARRAY_GET(write->items, at, &item);
        if (item.seal_length == 0)
            continue;
        if (!ms_reader_seal(&seals, &seal)) {
            is_whole = false;
            break;
        }
        if (count != 0 && items[count - 1].version == item.version)
            continue; /* another part of the same object */
        is_whole = count == 0 || seal.head.number == number;
        number = seal.head.number;
        items[count++] = (ms_end_item){.hash = seal.head.hash,
                                       .version = item.version,
                                       .replica_mask = ALL_REPLICAS,
                                       .checksum = seal.head.checksum,
                                       .flags = seal.head.flags & MS_OBJECT_HAS_CHECKSUM};
    }
    pthread_mutex_lock(&server->lock);
    bool is_connected =
        server->master != NULL && server->is_adopted && peer->epoch == server->header.epoch;
    te_peer master = is_connected ? server->master->number : 0;
    pthread_mutex_unlock(&server->lock);
    bool is_sent = false;
    if (is_connected && is_whole && count != 0) {
        uint64_t numbers[2] = {peer->session, number};
        uint32_t list[2] = {count, 0};
        struct iovec body[3] = {
            {numbers, sizeof numbers}, {list, sizeof list}, {items, count * sizeof *items}};
        is_sent =
            te_push(server->engine, master, MS_ONEWAY, MS_RELAYED_END, 0, 0, body, 3) == MS_OK;
    }
    free(items);
    if (is_sent)
        st_count_add(server, ST_COUNT_RELAYS, count);
    return is_sent;
}

bool st_write_done(void *context, const te_request *request, const uint32_t *statuses,
                   size_t count) {
    st_segment *segment = context;
    if ((request->header->flags & MS_FLAG_RELAY) == 0 || request->peer_context == NULL)
        return false;
    for (size_t at = 0; at < count; at++) {
        if (statuses[at] != MS_OK)
            return false; /* refusals are answered by the server itself */
    }
    ms_write_view write;
    if (!ms_read_write(request->body, request->header->body_length, &write))
        return false;
    return st_relay(segment->server, request->peer_context, &write);
}

/* TOPOLOGY: whoever asks is told this engine's interfaces, and told again, on that connection, when they change. */
#include <stdlib.h>

#include "ms_frame.h"
#include "te_parts.h"

#include "te_fault.h"

static void answer_topology(te_engine *engine, te_link *link, const te_request *request) {
    if (request->header->kind != MS_REQUEST)
        return;
    /* Before it is read: a change in between is told twice, not never. */
    atomic_store(&link->is_told_topology, true);
    ms_writer body = ms_writer_growable(MS_BODY_BYTES_MAX);
    te_registry_write_topology(engine->registry, &body);
    if (body.status == MS_OK) {
        struct iovec part = {body.data, body.length};
        te_link_answer(link, request->header, MS_OK, &part, 1, NULL, 0, NULL, 0);
    } else {
        te_link_refuse(link, request->header, body.status, "no memory for the topology");
    }
    ms_writer_close(&body);
}

/* The first link from `slot` on that wants to be told, held. */
static te_link *next_told(te_engine *engine, uint32_t *slot) {
    te_link *found = NULL;
    pthread_mutex_lock(&engine->peers_lock);
    for (; *slot < engine->peer_slots && found == NULL; (*slot)++) {
        te_link *link = engine->peers[*slot];
        if (link != NULL && atomic_load(&link->is_told_topology)) {
            te_link_hold(link);
            found = link;
        }
    }
    pthread_mutex_unlock(&engine->peers_lock);
    return found;
}

void te_topology_tell(te_engine *engine) {
    ms_writer body = ms_writer_growable(MS_BODY_BYTES_MAX);
    te_registry_write_topology(engine->registry, &body);
    uint32_t slot = 0;
    te_link *link;
    while (body.status == MS_OK && (link = next_told(engine, &slot)) != NULL) {
        struct iovec part = {body.data, body.length};
        /* One that has gone since, or does not read what it is sent, asks again when it is back. */
        (void)te_push(engine, link->peer, MS_ONEWAY, MS_TOPOLOGY, 0, 0, &part, 1);
        te_link_release(link);
    }
    ms_writer_close(&body);
}

void te_topology_install(te_engine *engine) { engine->methods[MS_TOPOLOGY] = answer_topology; }

/* Opens and closes what te_parts.h names, in the order in which one needs the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ms_frame.h"
#include "te_carrier.h"
#include "te_rdma.h"
#include "te_remote.h"

#include "te_fault.h"

ms_status te_parts_open(te_engine *engine) {
    engine->shm = calloc(1, sizeof *engine->shm);
    if (engine->shm == NULL)
        return MS_NO_MEMORY;
    ms_status status = te_copier_open(engine->config.stream_copy_bytes,
                                      engine->config.helper_copy_bytes, &engine->shm->copier);
    if (status == MS_OK)
        status = te_shared_open(&engine->shm->shared);
    if (status == MS_OK)
        status = te_loans_open(&engine->shm->loans);
    if (status == MS_OK && engine->config.rdma != 0)
        status = te_rdma_open(engine, &engine->rdma);
    if (status == MS_OK)
        status = te_registry_open(&engine->registry);
    if (status == MS_OK)
        status = te_notes_open(&engine->notes);
    if (status == MS_OK)
        status = te_carrier_open(engine);
    if (status == MS_OK)
        status = te_remotes_open(engine, &engine->remotes);
    if (status == MS_OK)
        status = te_batches_open(engine, &engine->batches);
    if (status != MS_OK)
        return status;
    te_loans_install(engine);
    te_registry_install(engine);
    te_notes_install(engine);
    te_cuts_install(engine);
    te_topology_install(engine);
    te_rdma_install(engine);
    return MS_OK;
}

void te_parts_stop(te_engine *engine) {
    te_batches_stop(engine->batches);
    te_remotes_close(engine->remotes);
    engine->remotes = NULL;
    te_carrier_stop(engine);
    te_rdma_stop(engine->rdma);
}

void te_parts_close(te_engine *engine) {
    te_batches_close(engine->batches);
    te_remotes_close(engine->remotes);
    te_carrier_close(engine);
    te_notes_close(engine->notes);
    te_registry_close(engine->registry);
    if (engine->shm == NULL)
        return;
    te_loans_close(engine->shm->loans);
    te_shared_close(engine->shm->shared);
    te_copier_close(engine->shm->copier);
    free(engine->shm);
    engine->shm = NULL;
}

/* ---- the service of an engine that has none of its own -------------------------------------------------------- */

static ms_status on_hello(void *context, const te_request *request, uint8_t answer[4096],
                          uint32_t *answer_length, void **peer_context, char *error) {
    te_engine *engine = context;
    ms_hello_view hello;
    *peer_context = NULL;
    if (!ms_read_hello(request->body, request->header->body_length, &hello))
        return MS_BAD_FRAME;
    uint32_t incarnation = te_registry_incarnation(engine->registry);
    if (hello.head.role == MS_ROLE_SERVER) {
        te_error(error, "this is a transfer engine, not a master: it takes no store servers");
        return MS_REFUSED;
    }
    if (hello.head.incarnation != 0 && hello.head.incarnation != incarnation) {
        te_error(error, "the engine at this address has restarted");
        return MS_WRONG_INCARNATION;
    }
    ms_hello_answer head = {
        .version = MS_WIRE_VERSION, .role = MS_ROLE_ENGINE, .incarnation = incarnation};
    memcpy(head.boot_id, engine->boot_id, sizeof head.boot_id);
    /* Two empty strings follow: node name, and the secret that only masters give. */
    memset(answer, 0, sizeof head + 16);
    memcpy(answer, &head, sizeof head);
    *answer_length = sizeof head + 16;
    return MS_OK;
}

static void on_request(void *context, const te_request *request) {
    te_engine *engine = context;
    if (request->header->kind != MS_REQUEST)
        return;
    static const char sentence[] = "a transfer engine without a service does not know that method";
    struct iovec body = {(void *)(uintptr_t)sentence, sizeof sentence - 1};
    te_answer(engine, request->peer, request->header, MS_BAD_REQUEST, &body, 1, NULL, 0);
}

static void on_answer(void *context, const te_request *request) { (void)context, (void)request; }

static void on_close(void *context, te_peer peer, void *peer_context, const char *reason) {
    (void)context, (void)peer, (void)peer_context, (void)reason;
}

ms_status te_serve_memory(te_engine *engine) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_service service = {.context = engine,
                          .on_hello = on_hello,
                          .on_request = on_request,
                          .on_answer = on_answer,
                          .on_close = on_close};
    te_serve(engine, &service);
    return MS_OK;
}

ms_status te_publish_unix(te_engine *engine, const char *path) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (strlen(path) > MS_SOCKET_PATH_BYTES_MAX)
        return MS_BAD_REQUEST;
    te_registry_set_unix_path(engine->registry, path);
    return MS_OK;
}

/* The rails of a segment: named by whoever knows the topology, and looked at. */
#include <stdlib.h>
#include <string.h>

#include "te_interfaces.h"
#include "te_session.h"

#include "te_fault.h"

bool te_options_are_default(const te_transfer_options *options) {
    return options == NULL || (options->priority == TE_PRIORITY_NORMAL && options->tenant == 0 &&
                               options->weight <= 1);
}

void te_carry_set_options(te_carry *carry, const te_transfer_options *options) {
    static const te_class class_of[] = {[TE_PRIORITY_NORMAL] = TE_CLASS_NORMAL,
                                        [TE_PRIORITY_URGENT] = TE_CLASS_URGENT,
                                        [TE_PRIORITY_BACKGROUND] = TE_CLASS_BACKGROUND,
                                        [TE_PRIORITY_PREFETCH] = TE_CLASS_PREFETCH};
    carry->class = options == NULL ? TE_CLASS_NORMAL : class_of[options->priority];
    carry->tenant = options == NULL ? 0 : options->tenant;
    carry->weight = options == NULL || options->weight == 0 ? 1 : options->weight;
}

ms_status te_carried_status(const te_carried *item) {
    return item->status == MS_CLOSED ? MS_UNAVAILABLE : item->status;
}

void te_rail_ends_from(const te_rail *rail, te_rail_ends *ends) {
    const char *arrow = strchr(rail->address, '>');
    size_t local_length = arrow == NULL ? 0 : (size_t)(arrow - rail->address);
    *ends = (te_rail_ends){
        .local_nic = rail->local_nic, .remote_nic = rail->remote_nic, .tier = rail->tier};
    memcpy(ends->local, rail->address, local_length);
    memcpy(ends->remote, rail->address + (arrow == NULL ? 0 : local_length + 1),
           strlen(rail->address) + 1 - (arrow == NULL ? 0 : local_length + 1));
}

ms_status te_rail_ends_of(te_engine *engine, const char *addresses, te_rail_ends ends[TE_RAILS_MAX],
                          uint32_t *count) {
    te_topology *local = calloc(1, sizeof *local);
    te_interfaces *interfaces = malloc(sizeof *interfaces);
    ms_status status = local == NULL || interfaces == NULL ? MS_NO_MEMORY : MS_OK;
    if (status == MS_OK) {
        te_registry_topology(engine->registry, local);
        /* Without knowledge of its own interfaces: as the routes go. */
        (void)te_interfaces_look(interfaces, AF_UNSPEC);
        *count = te_pairs_build(interfaces, local, addresses, ends);
    }
    free(local);
    free(interfaces);
    return status;
}

/* "LOCAL>REMOTE:PORT/TIER" */
static ms_status parse_rail(const char *text, size_t length, const te_topology *local,
                            te_rail_ends *ends, char *error) {
    te_address address;
    char copy[2 * TE_RAIL_ADDRESS_BYTES];
    if (length >= sizeof copy) {
        te_error(error, "a rail of %zu characters is too long", length);
        return MS_BAD_REQUEST;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    *ends = (te_rail_ends){.local_nic = UINT32_MAX, .remote_nic = UINT32_MAX};
    char *slash = strrchr(copy, '/');
    if (slash != NULL) {
        if (slash[1] < '0' || slash[1] >= '0' + TE_TIER_COUNT || slash[2] != '\0') {
            te_error(error, "%.100s: a tier is 0, 1 or 2", copy);
            return MS_BAD_REQUEST;
        }
        ends->tier = (uint32_t)(slash[1] - '0');
        *slash = '\0';
    }
    ms_status status = te_address_parse(copy, strlen(copy), &address, error);
    if (status == MS_OK && address.is_unix) {
        te_error(error, "a Unix socket is no rail");
        status = MS_BAD_REQUEST;
    }
    if (status != MS_OK)
        return status;
    const char *arrow = strchr(copy, '>');
    const char *remote = arrow == NULL ? copy : arrow + 1;
    size_t local_length = arrow == NULL ? 0 : (size_t)(arrow - copy);
    if (strlen(remote) >= TE_RAIL_ADDRESS_BYTES || local_length >= TE_RAIL_ADDRESS_BYTES) {
        te_error(error, "%.100s is too long for a rail", copy);
        return MS_BAD_REQUEST;
    }
    memcpy(ends->local, copy, local_length);
    memcpy(ends->remote, remote, strlen(remote) + 1);
    ends->local_nic = te_topology_nic_of(local, ends->local);
    return MS_OK;
}

static ms_status parse_rails(te_engine *engine, const char *text, te_rail_ends rails[TE_RAILS_MAX],
                             uint32_t *count, char *error) {
    te_topology *local = calloc(1, sizeof *local);
    if (local == NULL)
        return MS_NO_MEMORY;
    te_registry_topology(engine->registry, local);
    ms_status status = MS_OK;
    *count = 0;
    while (*text != '\0' && status == MS_OK) {
        size_t length = strcspn(text, ",");
        if (*count == TE_RAILS_MAX) {
            te_error(error, "more than %u rails to one peer", TE_RAILS_MAX);
            status = MS_LIMIT;
        } else {
            status = parse_rail(text, length, local, &rails[(*count)++], error);
        }
        text += length + (text[length] == ',');
    }
    free(local);
    if (status == MS_OK && *count == 0) {
        te_error(error, "no rails: want \"LOCAL>REMOTE:PORT/TIER,...\"");
        status = MS_BAD_REQUEST;
    }
    return status;
}

ms_status te_segment_set_rails(te_engine *engine, uint32_t segment, const char *text, char *error) {
    te_rail_ends rails[TE_RAILS_MAX];
    uint32_t count = 0;
    ms_status status = te_engine_check(engine);
    if (status == MS_OK)
        status = parse_rails(engine, text, rails, &count, error);
    if (status != MS_OK)
        return status;
    te_remote *remote = te_remote_get(engine->remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    te_rail_ends *copy = malloc(count * sizeof *copy);
    if (copy == NULL) {
        te_remote_put(engine->remotes, remote);
        return MS_NO_MEMORY;
    }
    memcpy(copy, rails, count * sizeof *copy);
    pthread_mutex_lock(&remote->lock);
    te_rail_ends *old = remote->rails;
    remote->rails = copy;
    remote->rail_count = count;
    pthread_mutex_unlock(&remote->lock);
    free(old);
    te_session *session = te_remote_session(remote);
    status = te_session_set_rails(engine, session, rails, count);
    te_session_put(session);
    te_remote_put(engine->remotes, remote);
    return status;
}

void te_rail_view_of(const te_rail_status *status, te_rail_view *view) {
    *view = (te_rail_view){.opcode = (int32_t)status->opcode,
                           .tier = status->tier,
                           .is_up = status->is_up,
                           .resets = status->resets,
                           .bytes_in_flight = status->bytes_in_flight,
                           .bandwidth_bytes_per_s = status->bandwidth_bytes_per_s};
    memcpy(view->local, status->local, sizeof view->local);
    memcpy(view->remote, status->remote, sizeof view->remote);
    memcpy(view->transport, status->transport, sizeof view->transport);
    memcpy(view->note, status->note, sizeof view->note);
}

ms_status te_segment_rail(te_engine *engine, uint32_t segment, uint32_t index, te_rail_view *view) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_remote *remote = te_remote_get(engine->remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    te_session *session = te_remote_session(remote);
    te_path *path = te_session_path(engine, session, false);
    te_rail_status rail;
    status = MS_NOT_FOUND;
    for (uint32_t i = 0, told = 0; path != NULL && te_path_rail(path, i, &rail); i++) {
        if (rail.is_gone || told++ != index)
            continue;
        te_rail_view_of(&rail, view);
        status = MS_OK;
        break;
    }
    te_session_put(session);
    te_remote_put(engine->remotes, remote);
    return status;
}

ms_status te_segment_topology(te_engine *engine, uint32_t segment, char *json, size_t size,
                              size_t *length) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_remote *remote = te_remote_get(engine->remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    te_session *session = te_remote_session(remote);
    pthread_mutex_lock(&session->lock);
    *length = session->path == NULL ? 0 : te_path_topology(session->path, json, size);
    bool is_told = *length > 0; /* by itself, after it was asked */
    if (!is_told)
        *length = session->topology_length;
    if (*length > size)
        status = MS_BUFFER_TOO_SMALL;
    else if (*length > 0 && !is_told)
        memcpy(json, session->topology, *length);
    pthread_mutex_unlock(&session->lock);
    te_session_put(session);
    te_remote_put(engine->remotes, remote);
    return status;
}

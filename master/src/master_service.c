/* Opens the master and takes what the engine brings: HELLO, frames, answers, closed connections, time. */
#include "service.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 20u
#define CORE_TICK_MS 100
#define WALL_CLOCK_MS 1000

_Static_assert(sizeof(((ma_config *)0)->secret) == MS_SECRET_BYTES,
               "the cdef spells the number out");
_Static_assert(sizeof(ma_sample) == sizeof(ms_counter), "STATUS sends samples");

/* ---- answers ------------------------------------------------------------------------------------ */

ms_status ma_fail(ma_call *call, ms_status status, const char *format, ...) {
    char sentence[MA_SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    ms_writer *answer = &call->master->answer;
    ms_writer_reset(answer);
    if (length > 0)
        ms_writer_bytes(answer, sentence,
                        (size_t)length < sizeof sentence ? (size_t)length : sizeof sentence - 1);
    call->is_payload = false;
    call->status = status;
    return status;
}

void ma_fail_bad_frame(ma_call *call) {
    call->is_bad = true;
    ma_fail(call, MS_BAD_FRAME, "the body of method 0x%02x makes no sense (%u bytes)",
            (unsigned)call->request->header->method, (unsigned)call->request->header->body_length);
}

void ma_done(ma_call *call) {
    ms_status status = call->master->answer.status;
    if (status != MS_OK)
        ma_fail(call, status,
                status == MS_LIMIT ? "the answer is longer than a frame: ask for less"
                                   : "the master has no memory for the answer");
}

/* ---- methods ------------------------------------------------------------------------------------ */

/* NEEDS_INDEX: a new leader answers it when the inventories are there. */
enum { ANY_RIGHT = 0, NEEDS_WRITE = 1, ONE_WAY = 2, FOR_SERVERS = 4, NEEDS_INDEX = 8 };

typedef struct method {
    void (*handle)(ma_call *call);
    uint8_t rules;
} method;

static const method methods[] = {
    [MS_EXISTS_KEYS] = {ma_call_exists, NEEDS_INDEX},
    [MS_LOOKUP] = {ma_call_lookup, NEEDS_INDEX},
    [MS_MATCH_PREFIX] = {ma_call_match_prefix, NEEDS_INDEX},
    [MS_PUT_START] = {ma_call_put_start, NEEDS_WRITE | NEEDS_INDEX},
    [MS_PUT_END] = {ma_call_put_end, NEEDS_WRITE},
    [MS_REVOKE] = {ma_call_revoke, NEEDS_WRITE},
    [MS_REMOVE] = {ma_call_remove, NEEDS_WRITE | NEEDS_INDEX},
    [MS_TOUCH] = {ma_call_touch, ONE_WAY},
    [MS_PIN] = {ma_call_pin, NEEDS_INDEX},
    [MS_UNPIN] = {ma_call_unpin, ANY_RIGHT},
    [MS_PINS] = {ma_call_pins, NEEDS_INDEX},
    [MS_LIST] = {ma_call_list, NEEDS_INDEX},
    [MS_STAT] = {ma_call_stat, NEEDS_INDEX},
    [MS_ANNOTATE] = {ma_call_annotate, NEEDS_WRITE | NEEDS_INDEX},
    [MS_CHANGE_REPLICA] = {ma_call_change_replica, NEEDS_WRITE | NEEDS_INDEX},
    [MS_MEMBERS] = {ma_call_members, FOR_SERVERS},
    [MS_STATUS] = {ma_call_status, FOR_SERVERS},
    [MS_REMOVE_MATCHING] = {ma_call_remove_matching, NEEDS_WRITE | NEEDS_INDEX},
    [MS_EVENTS] = {ma_call_events, ANY_RIGHT},
    [MS_KEEPALIVE] = {ma_call_keepalive, ANY_RIGHT},
    [MS_CLOSE_SESSION] = {ma_call_close_session, ANY_RIGHT},
    [MS_EXPLAIN] = {ma_call_explain, NEEDS_INDEX},
    [MS_FORGET] = {ma_call_forget, NEEDS_WRITE},
    [MS_START_TASK] = {ma_call_start_task, NEEDS_WRITE | NEEDS_INDEX},
    [MS_TASKS] = {ma_call_tasks, ANY_RIGHT},
    [MS_CANCEL_TASK] = {ma_call_cancel_task, NEEDS_WRITE | NEEDS_INDEX},
};

/* Says in the call why this method is not for this connection; false: it is. */
static bool is_refused(ma_call *call, const method *method) {
    ma_connection *connection = call->connection;
    if (connection->role == MS_ROLE_SERVER) {
        if ((method->rules & FOR_SERVERS) != 0)
            return false;
        ma_fail(call, MS_REFUSED,
                "method 0x%02x is for clients, this connection is a store server's",
                (unsigned)call->request->header->method);
        return true;
    }
    if (connection->session != NULL && ma_session_keep(call->master, connection->session) != MS_OK)
        ma_session_end(call->master, connection->session->id);
    if (connection->session == NULL) {
        ma_fail(call, MS_SESSION_LOST, "this session has ended: open a new one");
        return true;
    }
    if ((method->rules & NEEDS_WRITE) != 0 && connection->right == MS_RIGHT_READ) {
        ma_fail(call, MS_REFUSED, "this connection may read only");
        return true;
    }
    call->session = connection->session;
    return false;
}

/* A request, or a one-way frame, of a client, tool or server.  Under the lock. */
static void handle_frame(ma_call *call) {
    const ms_header *header = call->request->header;
    if (call->connection->role == MS_ROLE_SERVER && header->kind == MS_ONEWAY) {
        ma_member_frame(call);
        return;
    }
    const method *method =
        header->method < sizeof methods / sizeof *methods ? &methods[header->method] : NULL;
    if (method == NULL || method->handle == NULL) {
        ma_fail(call, MS_BAD_REQUEST, "this master knows no method 0x%02x",
                (unsigned)header->method);
        return;
    }
    if (header->kind == MS_ONEWAY && (method->rules & ONE_WAY) == 0) {
        ma_fail_bad_frame(call); /* whoever sent it waits for no answer, but it asks for one */
        return;
    }
    if (header->payload_length != 0 || header->trailer_length != 0) {
        ma_fail_bad_frame(call);
        return;
    }
    if (is_refused(call, method)) {
        call->master->counts.requests_refused++;
        return;
    }
    if ((method->rules & NEEDS_INDEX) != 0 && !ma_is_warm(call->master)) {
        call->is_answered_later = ma_hold_frame(call);
        return;
    }
    method->handle(call);
}

/* ---- what the engine calls ------------------------------------------------------------------------ */

static void read_clock(ma_master *master, int64_t now_ns) {
    master->now.now_ms = now_ns / 1000000;
    if (master->now.now_ms - master->clock_read_ms >= WALL_CLOCK_MS || master->clock_read_ms == 0) {
        struct timespec wall;
        clock_gettime(CLOCK_REALTIME, &wall);
        master->wall_offset_ms =
            (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000 - master->now.now_ms;
        master->clock_read_ms = master->now.now_ms;
    }
    master->now.wall_ms = master->now.now_ms + master->wall_offset_ms;
}

/* Before it is a member or has a session: what it would tell, or ask for, means something else here. */
static ms_status refuse_cluster(ma_master *master, const ms_hello_view *hello, char *error) {
    unsigned long long own = master->config.cluster, other = hello->head.cluster;
    if (hello->head.role != MS_ROLE_SERVER && hello->head.session != 0) {
        snprintf(error, TE_ERROR_BYTES,
                 "this session is of cluster %016llx, and this master leads cluster %016llx: open "
                 "a new one",
                 other, own);
        return MS_SESSION_LOST;
    }
    char name[64];
    ma_printable(hello->name.data, hello->name.length, name, sizeof name);
    ma_log(master, MA_LOG_SERVER, MA_WARNING,
           "other_cluster peer=\"%s\" cluster=%016llx own=%016llx", name, other, own);
    snprintf(
        error, TE_ERROR_BYTES,
        "this master leads cluster %016llx, you belong to cluster %016llx: correct the master's "
        "address, or restart to leave the old cluster",
        own, other);
    return MS_REFUSED;
}

static ms_status on_hello(void *context, const te_request *request, uint8_t answer[4096],
                          uint32_t *answer_length, void **peer_context, char *error) {
    ma_master *master = context;
    ms_hello_view hello;
    if (!ms_read_hello(request->body, request->header->body_length, &hello)) {
        snprintf(error, TE_ERROR_BYTES, "this HELLO makes no sense");
        return MS_BAD_FRAME;
    }
    /* That there is one, the engine has made sure. */
    uint8_t version = ms_version_agree(MS_WIRE_VERSION_OLDEST, MS_WIRE_VERSION,
                                       hello.head.version_oldest, hello.head.version_newest);
    ma_connection *connection = calloc(1, sizeof *connection);
    ms_status status = MS_OK;
    pthread_mutex_lock(&master->lock);
    read_clock(master, te_now_ns());
    if (connection == NULL) {
        snprintf(error, TE_ERROR_BYTES, "the master has no memory for another connection");
        status = MS_NO_MEMORY;
    } else if (hello.tenant.length != 7 || memcmp(hello.tenant.data, "default", 7) != 0) {
        snprintf(error, TE_ERROR_BYTES, "the only tenant here is 'default'");
        status = MS_REFUSED;
    } else if (hello.token.length != 0) {
        snprintf(error, TE_ERROR_BYTES, "this master takes no token: leave it empty");
        status = MS_REFUSED;
    } else if (hello.head.cluster != 0 && hello.head.cluster != master->config.cluster) {
        status = refuse_cluster(master, &hello, error);
    } else if (hello.head.role != MS_ROLE_SERVER && !ma_may_answer(master)) {
        snprintf(error, TE_ERROR_BYTES,
                 "this master's lease has ended: another one leads, or will");
        status = MS_NOT_LEADER;
    } else {
        connection->peer = request->peer;
        connection->role = hello.head.role;
        connection->right = hello.head.right;
        ma_printable(hello.name.data, hello.name.length, connection->name, sizeof connection->name);
        switch (hello.head.role) {
        case MS_ROLE_CLIENT:
        case MS_ROLE_TOOL:
            status = ma_session_begin(master, connection, &hello, error);
            break;
        case MS_ROLE_SERVER:
            status = ma_member_join(master, connection, &hello, error);
            break;
        default:
            snprintf(error, TE_ERROR_BYTES,
                     "a master serves clients, tools and store servers, not role %u",
                     (unsigned)hello.head.role);
            status = MS_REFUSED;
        }
    }
    if (status == MS_OK) {
        ms_writer writer = ms_writer_fixed(answer, 4096);
        ms_hello_answer head = {
            .version = version,
            .epoch = master->config.epoch,
            .session = connection->session != NULL ? connection->session->id : 0,
            .cluster = master->config.cluster,
            .session_timeout_ms = master->config.session_timeout_ms,
            .location_lifetime_ms = master->config.location_lifetime_ms,
            .members_serial = master->members_serial,
        };
        memcpy(head.boot_id, master->boot_id, sizeof head.boot_id);
        MS_WRITER_STRUCT(&writer, &head);
        ms_writer_string(&writer, master->name, (uint32_t)strlen(master->name));
        ms_writer_string(&writer, master->config.secret, MS_SECRET_BYTES);
        *answer_length = (uint32_t)writer.length;
        *peer_context = connection;
        master->counts.connections++;
        master->counts.connections_opened++;
    } else {
        master->counts.hellos_refused++;
        free(connection);
    }
    ma_drain(master);
    pthread_mutex_unlock(&master->lock);
    ma_flush(master);
    return status;
}

static void serve_frame(ma_master *master, const te_request *request, int64_t started_ns,
                        bool is_new) {
    const ms_header *header = request->header;
    ma_call call = {.master = master,
                    .request = request,
                    .connection = request->peer_context,
                    .started_ns = started_ns};

    pthread_mutex_lock(&master->lock);
    read_clock(master, is_new ? started_ns : te_now_ns());
    master->counts.frames += is_new;
    ms_writer_reset(&master->answer);
    handle_frame(&call);
    ma_drain(master);
    if (call.is_bad)
        master->counts.frames_bad++;
    if (!call.is_answered_later && header->kind == MS_REQUEST)
        ma_op_count(master, header->method, call.started_ns, call.status);
    bool is_server = call.connection->role == MS_ROLE_SERVER;
    pthread_mutex_unlock(&master->lock);

    if (call.is_bad)
        ma_log(master, MA_LOG_FRAME, MA_WARNING,
               "bad_frame peer=\"%s\" method=0x%02x body_bytes=%u", call.connection->name,
               (unsigned)header->method, (unsigned)header->body_length);
    /* From here on the connection may be closed, and `call.connection` gone.  `answer` is this thread's
     * alone: nothing but the next frame writes to it. */
    if (!call.is_answered_later && header->kind == MS_REQUEST && !is_server &&
        !ma_may_answer(master)) {
        ma_withhold_answer(master, request->peer);
    } else if (!call.is_answered_later && header->kind == MS_REQUEST) {
        struct iovec body = {.iov_base = master->answer.data, .iov_len = master->answer.length};
        bool is_body = !call.is_payload && body.iov_len != 0;
        ms_status status =
            te_answer(master->engine, request->peer, header, call.status, &body, is_body ? 1 : 0,
                      body.iov_base, call.is_payload ? body.iov_len : 0);
        ma_sent(master, request->peer, status);
    }
    ma_flush(master);
    if (call.is_bad)
        te_close_peer(master->engine, request->peer, "a frame makes no sense");
}

/* Frames that waited for the index, in the order in which they came.  On the I/O thread, without the lock. */
static void serve_held(ma_master *master) {
    for (;;) {
        pthread_mutex_lock(&master->lock);
        ma_held *held = ma_held_next(master);
        pthread_mutex_unlock(&master->lock);
        if (held == NULL)
            return;
        te_request request = {.peer = held->peer,
                              .peer_context = held->connection,
                              .header = &held->header,
                              .body = (const uint8_t *)held->body};
        serve_frame(master, &request, held->started_ns, false);
        free(held);
    }
}

static void on_request(void *context, const te_request *request) {
    ma_master *master = context;
    serve_frame(master, request, te_now_ns(), true);
    if (master->held_count != 0) /* this thread's alone */
        serve_held(master);
}

static void on_answer(void *context, const te_request *answer) {
    ma_master *master = context;
    ma_connection *connection = answer->peer_context;
    pthread_mutex_lock(&master->lock);
    read_clock(master, te_now_ns());
    ma_member_answer(master, connection, answer);
    ma_drain(master);
    pthread_mutex_unlock(&master->lock);
    ma_flush(master);
}

static void on_close(void *context, te_peer peer, void *peer_context, const char *reason) {
    ma_master *master = context;
    ma_connection *connection = peer_context;
    if (connection == NULL)
        return; /* its HELLO was refused, or never came */
    pthread_mutex_lock(&master->lock);
    read_clock(master, te_now_ns());
    master->counts.connections--;
    if (connection->role == MS_ROLE_SERVER)
        ma_member_closed(master, connection, reason);
    else
        ma_session_detach(connection);
    ma_batches_forget_peer(master, peer);
    ma_held_forget(master, peer);
    free(connection);
    ma_drain(master);
    pthread_mutex_unlock(&master->lock);
    ma_flush(master);
}

/* Connections that the engine closed for what came over them, and why. */
static void pass_engine_log_on(ma_master *master) {
    char line[TE_ERROR_BYTES], text[TE_ERROR_BYTES];
    while (te_engine_log_next(master->engine, line))
        ma_log(master, MA_LOG_FRAME, MA_WARNING, "connection_closed reason=\"%s\"",
               ma_printable(line, strlen(line), text, sizeof text));
}

static void on_tick(void *context, int64_t now_ns) {
    ma_master *master = context;
    pthread_mutex_lock(&master->lock);
    read_clock(master, now_ns);
    master->turned_ms = master->now.now_ms;
    ma_tombstones_take(master);
    ma_drains_take(master);
    ma_members_tick(master);
    ma_warm_check(master);
    if (master->now.now_ms - master->ticked_ms >= CORE_TICK_MS) {
        master->ticked_ms = master->now.now_ms;
        md_tick(master->core, master->now);
        ma_batches_tick(master);
        pass_engine_log_on(master);
        ma_tell_shared_hosts(master);
        ma_tombstones_settle(master);
    }
    if (master->is_warm)
        md_tasks_step(master->core, master->now);
    ma_drain(master);
    pthread_mutex_unlock(&master->lock);
    ma_flush(master);
    if (master->held_count != 0)
        serve_held(master);
}

/* ---- open and close --------------------------------------------------------------------------------- */

void ma_config_default(ma_config *config) {
    *config = (ma_config){
        .session_timeout_ms = 10000,
        .location_lifetime_ms = MS_LOCATION_LIFETIME_MS,
        .member_grace_ms = 10000,
        .server_silence_ms = 5000,
        .evict_above_permille = 950,
        .evict_below_permille = 920,
        .soft_pin_ms = 1800000,
        .events_max = 65536,
        .fates_max = 65536,
        .puts_open_max = 1u << 20,
        .sessions_max = 65536,
        .connections_max = 16384,
        .answers_kept_max = 4096,
        .copy_bytes_per_s = 100u << 20,
        .repair_delay_ms = 60000,
        .ramp_share_permille = 200,
        .ramp_ms = 300000,
        .log_level = MA_INFO,
    };
}

static void read_boot_id(uint8_t boot_id[16]) {
    char text[64] = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL)
        return; /* zeros: nobody takes us for a process of their host */
    size_t length = fread(text, 1, sizeof text - 1, file), digits = 0;
    fclose(file);
    for (size_t i = 0; i < length && digits < 32; i++) {
        int value = text[i] >= '0' && text[i] <= '9'   ? text[i] - '0'
                    : text[i] >= 'a' && text[i] <= 'f' ? text[i] - 'a' + 10
                                                       : -1;
        if (value < 0)
            continue;
        boot_id[digits / 2] = (uint8_t)(boot_id[digits / 2] << 4 | value);
        digits++;
    }
}

static md_config core_config(const ma_config *config) {
    md_config core;
    md_config_default(&core);
    core.epoch = config->epoch;
    core.sequence = 1;
    memcpy(core.secret, config->secret, MS_SECRET_BYTES);
    core.policy = (md_policy)config->policy;
    core.session_timeout_ms = config->session_timeout_ms;
    core.location_lifetime_ms = config->location_lifetime_ms;
    core.member_grace_ms = config->member_grace_ms;
    core.evict_above_permille = config->evict_above_permille;
    core.evict_below_permille = config->evict_below_permille;
    core.soft_pin_ms = config->soft_pin_ms;
    core.events_max = config->events_max;
    core.fates_max = config->fates_max;
    core.puts_open_max = config->puts_open_max;
    core.placement_seed = config->placement_seed;
    core.copy_bytes_per_s = config->copy_bytes_per_s;
    core.repair_delay_ms = config->repair_delay_ms;
    core.ramp_share_permille = config->ramp_share_permille;
    core.ramp_ms = config->ramp_ms;
    return core;
}

static ms_status open_core(ma_master *master) {
    md_config core = core_config(&master->config);
    return md_open(&core, &master->core);
}

void ma_reconfigure(ma_master *master, const ma_config *config) {
    pthread_mutex_lock(&master->lock);
    master->config.location_lifetime_ms = config->location_lifetime_ms;
    master->config.member_grace_ms = config->member_grace_ms;
    master->config.server_silence_ms = config->server_silence_ms;
    master->config.forget_after_ms = config->forget_after_ms;
    master->config.evict_above_permille = config->evict_above_permille;
    master->config.evict_below_permille = config->evict_below_permille;
    master->config.soft_pin_ms = config->soft_pin_ms;
    master->config.copy_bytes_per_s = config->copy_bytes_per_s;
    master->config.repair_delay_ms = config->repair_delay_ms;
    master->config.ramp_share_permille = config->ramp_share_permille;
    master->config.ramp_ms = config->ramp_ms;
    md_config core = core_config(&master->config);
    md_reconfigure(master->core, &core);
    pthread_mutex_unlock(&master->lock);
}

ms_status ma_master_open(const ma_config *config, ma_master **out, char *error) {
    *out = NULL;
    if (config->epoch == 0 || config->epoch >= 1u << 20) {
        snprintf(error, TE_ERROR_BYTES, "epoch %u: 1 to %u", (unsigned)config->epoch,
                 (1u << 20) - 1);
        return MS_BAD_REQUEST;
    }
    if (config->policy > MD_SIEVE) {
        snprintf(error, TE_ERROR_BYTES, "eviction policy %u is unknown", (unsigned)config->policy);
        return MS_BAD_REQUEST;
    }
    ms_status status = MS_NO_MEMORY;
    snprintf(error, TE_ERROR_BYTES, "no memory for a master");
    ma_master *master = calloc(1, sizeof *master);
    if (master == NULL)
        return status;
    master->config = *config;
    if (config->name != NULL)
        ma_printable(config->name, strlen(config->name), master->name, sizeof master->name);
    else
        gethostname(master->name, sizeof master->name - 1);
    master->config.name = master->name;
    read_boot_id(master->boot_id);
    master->members_serial = 1;
    master->outbox_last = &master->outbox_first;
    master->held_last = &master->held_first;
    master->is_warm = true;
    master->answer = ms_writer_growable(MS_BODY_BYTES_MAX);
    master->scratch = ms_writer_growable(MS_BODY_BYTES_MAX);
    pthread_mutex_init(&master->lock, NULL);
    read_clock(master, te_now_ns());
    master->turned_ms = master->now.now_ms;
    if (ma_journal_open(&master->journal) != MS_OK)
        goto out;
    for (master->session_bucket_count = 64; master->session_bucket_count < config->sessions_max;)
        master->session_bucket_count *= 2;
    master->session_buckets = calloc(master->session_bucket_count, sizeof *master->session_buckets);
    if (master->session_buckets == NULL)
        goto out;
    if ((status = open_core(master)) != MS_OK) {
        snprintf(error, TE_ERROR_BYTES, "the metadata core does not open: %s",
                 ms_status_name(status));
        goto out;
    }

    /* From te_serve on the I/O thread may call; what is not under the lock comes before. */
    ma_log(master, MA_LOG_START, MA_INFO, "leading epoch=%u cluster=%016llx",
           (unsigned)config->epoch, (unsigned long long)config->cluster);

    te_engine_config engine;
    te_engine_config_default(&engine);
    engine.io_threads = 1; /* the rule of service.h */
    engine.worker_threads = 1;
    engine.connections_accepted_max = config->connections_max;
    engine.rdma = 0; /* it has no memory that anybody reads */
    if ((status = te_engine_open(&engine, &master->engine)) != MS_OK) {
        snprintf(error, TE_ERROR_BYTES, "the engine does not open: %s", ms_status_name(status));
        goto out;
    }
    te_service service = {.context = master,
                          .on_hello = on_hello,
                          .on_request = on_request,
                          .on_answer = on_answer,
                          .on_close = on_close,
                          .on_tick = on_tick,
                          .tick_ms = TICK_MS};
    te_serve(master->engine, &service);
    te_engine_set_epoch(master->engine, config->epoch);
    error[0] = '\0';
    *out = master;
    return MS_OK;
out:
    ma_master_close(master);
    return status;
}

int64_t ma_tick_age_ms(ma_master *master) { return te_now_ns() / 1000000 - master->turned_ms; }

ms_status ma_master_listen_tcp(ma_master *master, const char *address, uint16_t port,
                               uint16_t *bound, char *error) {
    return te_listen_tcp(master->engine, address, port, bound, error);
}

ms_status ma_master_listen_unix(ma_master *master, const char *path, char *error) {
    return te_listen_unix(master->engine, path, error);
}

void ma_master_close(ma_master *master) {
    if (master == NULL)
        return;
    if (master->engine != NULL)
        te_engine_close(master->engine); /* on_close comes for every connection */
    ma_held_close(master);
    ma_batches_close(master);
    ma_members_close(master);
    ma_sessions_close(master);
    ma_outbox_close(master);
    if (master->core != NULL)
        md_close(master->core);
    ms_writer_close(&master->answer);
    ms_writer_close(&master->scratch);
    ma_journal_close(&master->journal);
    pthread_mutex_destroy(&master->lock);
    free(master);
}

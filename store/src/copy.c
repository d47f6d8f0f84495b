/* COPY: pull an object from another server into granted extents, then SEAL it, in the master's name.
 *
 * A read and a put, under the rules of both: the source's word is compared after each piece,
 * the target's extents are in use until the end, and the epoch that ordered the copy must still be the adopted
 * one when it is sealed.  Copies wait for the network, so they have threads of their own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ms_crc32c.h"
#include "st_internal.h"

#define QUEUE_MAX 4096u
#define PIECE_BYTES (16u << 20)
#define PIECE_ITEMS 256u
#define PIECE_TIMEOUT_MS 10000
#define CHANNELS_MAX 64u /* to other servers, kept open; the oldest goes */
#define NS_PER_MS INT64_C(1000000)

typedef struct copy_task {
    struct copy_task *next; /* waiting, or running */
    te_peer from;
    ms_header header;
    bool is_running;   /* its extents are in use; under server->lock */
    ms_copy_view view; /* into body */
    uint8_t body[];
} copy_task;

typedef struct copy_channel {
    uint32_t server, incarnation;
    te_channel *channel;
    uint32_t users;
    bool is_doomed;
} copy_channel;

struct st_copier {
    pthread_mutex_t lock; /* after server->lock */
    pthread_cond_t wake;
    copy_task *first, *last, *running;
    uint32_t waiting_count, thread_count;
    bool is_stopping;
    pthread_t *threads;
    copy_channel channels[CHANNELS_MAX];
};

/* ---- where the source is ------------------------------------------------------------------------------------ */

/* HELLO body of a connection that only reads. */
static void write_hello(st_server *server, uint8_t role, ms_writer *out) {
    pthread_mutex_lock(&server->lock);
    uint64_t cluster = server->header.cluster;
    pthread_mutex_unlock(&server->lock);
    ms_hello hello = {.version_oldest = MS_WIRE_VERSION_OLDEST,
                      .version_newest = MS_WIRE_VERSION,
                      .role = role,
                      .right = MS_RIGHT_READ,
                      .cluster = cluster};
    memcpy(hello.boot_id, server->boot_id, sizeof hello.boot_id);
    MS_WRITER_STRUCT(out, &hello);
    ms_writer_string(out, server->config.tenant, (uint32_t)strlen(server->config.tenant));
    ms_writer_string(out, server->config.token, (uint32_t)strlen(server->config.token));
    ms_writer_string(out, server->config.name, (uint32_t)strlen(server->config.name));
}

static ms_status open_channel(st_server *server, const char *addresses, const char *unix_path,
                              uint8_t role, te_channel **channel) {
    uint8_t memory[16384];
    ms_writer hello = ms_writer_fixed(memory, sizeof memory);
    write_hello(server, role, &hello);
    if (hello.status != MS_OK)
        return hello.status;
    te_channel_config config = {.addresses = addresses,
                                .unix_path = unix_path,
                                .hello = hello.data,
                                .hello_length = hello.length,
                                .connections_max = 4,
                                .connect_timeout_ms = 1000};
    return te_channel_open(server->engine, &config, channel);
}

/* MEMBERS from the master, on a connection of its own. */
static ms_status ask_members(st_server *server, te_reply *reply) {
    char address[sizeof server->master_address];
    pthread_mutex_lock(&server->lock);
    memcpy(address, server->master_address, sizeof address);
    pthread_mutex_unlock(&server->lock);
    te_channel *channel;
    ms_status status = open_channel(server, address, NULL, MS_ROLE_TOOL, &channel);
    if (status != MS_OK)
        return status;
    *reply = (te_reply){.grow = true};
    status = te_call(channel, MS_MEMBERS, 0, NULL, 0, reply, te_now_ns() + 2000 * NS_PER_MS);
    if (status == MS_OK && reply->header.status != MS_OK) {
        status = (ms_status)reply->header.status;
        free(reply->body);
        reply->body = NULL;
    }
    te_channel_close(channel);
    return status;
}

/* A channel to that incarnation of a member; GONE when there is another one. */
static ms_status dial_member(st_server *server, uint32_t number, uint32_t incarnation,
                             te_channel **channel) {
    te_reply reply = {.grow = true};
    ms_status status = ask_members(server, &reply);
    if (status != MS_OK)
        return status;
    ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
    ms_server_view member;
    uint32_t serial = ms_reader_u32(&reader), count = ms_reader_u32(&reader);
    (void)serial;
    status = MS_NOT_FOUND;
    for (uint32_t at = 0;
         at < count && status == MS_NOT_FOUND && ms_reader_server(&reader, &member); at++) {
        if (member.head.server != number)
            continue;
        if (member.head.incarnation != incarnation) {
            status = MS_GONE;
            break;
        }
        char addresses[MS_ADDRESSES_BYTES_MAX + 1], socket_path[MS_SOCKET_PATH_BYTES_MAX + 1];
        snprintf(addresses, sizeof addresses, "%.*s", (int)member.addresses.length,
                 member.addresses.data);
        snprintf(socket_path, sizeof socket_path, "%.*s", (int)member.socket_path.length,
                 member.socket_path.data);
        bool is_local = socket_path[0] != '\0' &&
                        memcmp(member.head.boot_id, server->boot_id, sizeof server->boot_id) == 0;
        status =
            open_channel(server, addresses, is_local ? socket_path : NULL, MS_ROLE_CLIENT, channel);
    }
    free(reply.body);
    return status;
}

/* A kept channel, or a new one; in use until put_channel. */
static ms_status get_channel(st_server *server, uint32_t number, uint32_t incarnation,
                             copy_channel **out) {
    st_copier *copier = server->copier;
    pthread_mutex_lock(&copier->lock);
    for (uint32_t at = 0; at < CHANNELS_MAX; at++) {
        copy_channel *kept = &copier->channels[at];
        if (kept->channel != NULL && kept->server == number && kept->incarnation == incarnation &&
            !kept->is_doomed) {
            kept->users++;
            pthread_mutex_unlock(&copier->lock);
            *out = kept;
            return MS_OK;
        }
    }
    pthread_mutex_unlock(&copier->lock);
    te_channel *channel = NULL, *old = NULL;
    ms_status status = dial_member(server, number, incarnation, &channel);
    if (status != MS_OK)
        return status;
    copy_channel *place = NULL;
    pthread_mutex_lock(&copier->lock);
    for (uint32_t at = 0; at < CHANNELS_MAX; at++) {
        copy_channel *kept = &copier->channels[at];
        if (kept->users == 0 && (place == NULL || kept->channel == NULL))
            place = kept;
    }
    if (place != NULL) {
        old = place->channel;
        *place = (copy_channel){
            .server = number, .incarnation = incarnation, .channel = channel, .users = 1};
    }
    pthread_mutex_unlock(&copier->lock);
    te_channel *unused = place == NULL ? channel : old;
    if (unused != NULL)
        te_channel_close(unused);
    *out = place;
    return place != NULL ? MS_OK : MS_LIMIT;
}

static void put_channel(st_copier *copier, copy_channel *channel, bool is_good) {
    te_channel *done = NULL;
    pthread_mutex_lock(&copier->lock);
    channel->is_doomed = channel->is_doomed || !is_good;
    if (--channel->users == 0 && channel->is_doomed) {
        done = channel->channel;
        *channel = (copy_channel){0};
    }
    pthread_mutex_unlock(&copier->lock);
    if (done != NULL)
        te_channel_close(done);
}

/* ---- the pull -------------------------------------------------------------------------------------------------- */

/* A place in an object: which extent, how far inside. */
typedef struct place {
    const ms_replica_view *replica;
    uint32_t index;
    uint64_t inside;
} place;

static uint64_t room_at(const place *at, uint64_t *byte, uint32_t *page) {
    ms_extent extent = ms_replica_extent(at->replica, at->index);
    *byte = (uint64_t)extent.page * MS_PAGE_SIZE + at->inside;
    *page = extent.page;
    return (uint64_t)extent.page_count * MS_PAGE_SIZE - at->inside;
}

static void advance(place *at, uint64_t bytes, uint64_t room) {
    at->inside += bytes;
    if (bytes == room) {
        at->index++;
        at->inside = 0;
    }
}

static ms_status read_piece(te_channel *channel, const ms_read_item *items, void *const *targets,
                            uint32_t count, uint64_t word, uint64_t tenant) {
    ms_read_result results[PIECE_ITEMS];
    /* Behind whatever else goes over this server's rails; tenants' copies share evenly. */
    const te_transfer_options share = {.priority = TE_PRIORITY_BACKGROUND, .tenant = tenant};
    ms_status status = te_read_as(channel, items, targets, count, results, &share,
                                  te_now_ns() + PIECE_TIMEOUT_MS * NS_PER_MS);
    for (uint32_t at = 0; status == MS_OK && at < count; at++) {
        if (results[at].status != MS_OK)
            status = (ms_status)results[at].status;
        else if (results[at].word != word)
            status = MS_GONE; /* after the last byte, on every piece *(check_always)* */
    }
    return status;
}

static ms_status pull(st_copier *copier, te_channel *channel, st_segment *segment,
                      const ms_copy_view *view) {
    uint64_t left = view->source.head.size, word = ms_word(view->source.head.version, 1);
    const uint64_t tenant = ms_crc32c(0, view->seal.tenant, view->seal.head.tenant_length);
    place from = {.replica = &view->source.replicas[0]}, to = {.replica = &view->target};
    do {
        ms_read_item items[PIECE_ITEMS];
        void *targets[PIECE_ITEMS];
        uint32_t count = 0;
        uint64_t bytes = 0;
        while (left != 0 && count < PIECE_ITEMS && bytes < PIECE_BYTES) {
            uint64_t source_byte, target_byte;
            uint32_t source_page, target_page;
            uint64_t source_room = room_at(&from, &source_byte, &source_page);
            uint64_t target_room = room_at(&to, &target_byte, &target_page);
            uint64_t length = left < PIECE_BYTES - bytes ? left : PIECE_BYTES - bytes;
            length = length < source_room ? length : source_room;
            length = length < target_room ? length : target_room;
            items[count] = (ms_read_item){.segment = view->source.replicas[0].head.segment,
                                          .flags = 1,
                                          .offset = source_byte,
                                          .length = length,
                                          .word = word,
                                          .guard_page = source_page};
            targets[count++] = segment->payload + target_byte;
            advance(&from, length, source_room);
            advance(&to, length, target_room);
            bytes += length;
            left -= length;
        }
        if (count == 0) { /* an empty object: its word alone is asked */
            ms_extent first = ms_replica_extent(&view->source.replicas[0], 0);
            items[count] = (ms_read_item){.segment = view->source.replicas[0].head.segment,
                                          .flags = 1,
                                          .offset = (uint64_t)first.page * MS_PAGE_SIZE,
                                          .word = word,
                                          .guard_page = first.page};
            targets[count++] = segment->payload;
        }
        pthread_mutex_lock(&copier->lock);
        bool is_stopping = copier->is_stopping;
        pthread_mutex_unlock(&copier->lock);
        ms_status status =
            is_stopping ? MS_CANCELLED : read_piece(channel, items, targets, count, word, tenant);
        if (status != MS_OK)
            return status;
    } while (left != 0);
    return MS_OK;
}

static ms_status check_bytes(const st_segment *segment, const ms_copy_view *view) {
    if ((view->seal.head.flags & MS_OBJECT_HAS_CHECKSUM) == 0)
        return MS_OK;
    uint32_t checksum = 0;
    uint64_t left = view->source.head.size;
    for (uint32_t at = 0; left != 0; at++) {
        ms_extent extent = ms_replica_extent(&view->target, at);
        uint64_t room = (uint64_t)extent.page_count * MS_PAGE_SIZE;
        uint64_t length = left < room ? left : room;
        checksum = ms_crc32c(checksum, segment->payload + (uint64_t)extent.page * MS_PAGE_SIZE,
                             (size_t)length);
        left -= length;
    }
    return checksum == view->seal.head.checksum ? MS_OK : MS_BAD_CHECKSUM;
}

/* ---- one task ---------------------------------------------------------------------------------------------------- */

/* The version under which the target is sealed.  The master gives a copy one of its own: words only grow, so a
 * page that has held a later version than the object's could not name that. */
static uint64_t target_version(const ms_copy_view *view) {
    return view->seal.head.number != 0 ? view->seal.head.number : view->source.head.version;
}

/* Checks the order and takes the extents' use counts, in one step. */
static ms_status begin(st_server *server, copy_task *task, st_segment **out) {
    const ms_copy_view *view = &task->view;
    st_segment *segment = st_segment_of(server, view->target.head.segment);
    uint64_t version = target_version(view);
    if (segment == NULL)
        return MS_NOT_REGISTERED;
    ms_status status = MS_OK;
    uint32_t taken = 0;
    pthread_mutex_lock(&server->lock);
    if (view->head.epoch != server->header.epoch)
        status = MS_WRONG_EPOCH;
    else if (view->head.incarnation != server->header.incarnation)
        status = MS_WRONG_INCARNATION;
    for (; status == MS_OK && taken < view->target.head.extent_count; taken++) {
        ms_extent extent = ms_replica_extent(&view->target, taken);
        if (!st_pages_are_ready(segment, extent.page, extent.page_count)) {
            status = MS_OUT_OF_RANGE;
            break;
        }
        /* A page that has held a later version can never name this one: words only grow. */
        uint64_t word = st_word(segment, extent.page);
        if (word == ms_word(version, 1))
            status = MS_COMPLETE;
        else if (version <= word >> 1)
            status = MS_NO_SPACE;
        if (status != MS_OK)
            break;
        atomic_fetch_add(&segment->uses[extent.page], ST_USE_WRITER);
    }
    if (status != MS_OK) {
        while (taken > 0)
            atomic_fetch_sub(&segment->uses[ms_replica_extent(&view->target, --taken).page],
                             ST_USE_WRITER);
    }
    task->is_running = status == MS_OK;
    pthread_mutex_unlock(&server->lock);
    *out = segment;
    return status;
}

static ms_status run_task(st_server *server, copy_task *task) {
    const ms_copy_view *view = &task->view;
    st_segment *segment;
    ms_status status = begin(server, task, &segment);
    if (status == MS_COMPLETE)
        return MS_OK; /* the order came again */
    if (status != MS_OK)
        return status;
    copy_channel *channel = NULL;
    status = get_channel(server, view->source.replicas[0].head.server,
                         view->source.replicas[0].head.incarnation, &channel);
    if (status == MS_OK) {
        status = pull(server->copier, channel->channel, segment, view);
        put_channel(server->copier, channel, status == MS_OK || status == MS_GONE);
    }
    if (status == MS_OK)
        status = check_bytes(segment, view);
    st_copy_order order = {.segment = segment,
                           .version = target_version(view),
                           .epoch = view->head.epoch,
                           .incarnation = view->head.incarnation,
                           .target = &view->target,
                           .seal = &view->seal,
                           .is_running = &task->is_running};
    return st_copy_end(server, &order, status);
}

static void *run(void *argument) {
    st_server *server = argument;
    st_copier *copier = server->copier;
    pthread_mutex_lock(&copier->lock);
    for (;;) {
        while (copier->first == NULL && !copier->is_stopping)
            pthread_cond_wait(&copier->wake, &copier->lock);
        if (copier->is_stopping)
            break;
        copy_task *task = copier->first;
        copier->first = task->next;
        if (copier->first == NULL)
            copier->last = NULL;
        copier->waiting_count--;
        task->next = copier->running;
        copier->running = task;
        pthread_mutex_unlock(&copier->lock);

        ms_status status = run_task(server, task);
        st_count_add(server, status == MS_OK ? ST_COUNT_COPIES : ST_COUNT_COPIES_FAILED, 1);
        if (status != MS_OK)
            st_log(server, 1, "copy_failed source_server=%u status=%s",
                   task->view.source.replicas[0].head.server, ms_status_name(status));
        te_answer(server->engine, task->from, &task->header, status, NULL, 0, NULL, 0);

        pthread_mutex_lock(&copier->lock);
        copy_task **link = &copier->running;
        while (*link != task)
            link = &(*link)->next;
        *link = task->next;
        free(task);
    }
    pthread_mutex_unlock(&copier->lock);
    return NULL;
}

uint32_t st_copies_write(st_server *server, ms_writer *out) {
    st_copier *copier = server->copier;
    uint32_t count = 0;
    pthread_mutex_lock(&copier->lock);
    for (const copy_task *task = copier->running; task != NULL; task = task->next) {
        for (uint32_t at = 0; task->is_running && at < task->view.target.head.extent_count; at++) {
            ms_extent extent = ms_replica_extent(&task->view.target, at);
            st_write_in_use(out, &(st_pending){.version = target_version(&task->view),
                                               .segment = task->view.target.head.segment,
                                               .page = extent.page,
                                               .page_count = extent.page_count});
            count++;
        }
    }
    pthread_mutex_unlock(&copier->lock);
    return count;
}

void st_handle_copy(st_server *server, st_peer *peer, const te_request *request) {
    (void)peer;
    st_copier *copier = server->copier;
    uint32_t length = request->header->body_length;
    copy_task *task = malloc(sizeof *task + length);
    if (task == NULL) {
        st_answer(server, request, MS_NO_MEMORY, "");
        return;
    }
    *task = (copy_task){.from = request->peer, .header = *request->header};
    memcpy(task->body, request->body, length);
    if (!ms_read_copy(task->body, length, &task->view) ||
        task->view.source.head.replica_count != 1) {
        free(task);
        st_answer(server, request, MS_BAD_REQUEST, "malformed COPY");
        return;
    }
    bool is_taken = false;
    pthread_mutex_lock(&copier->lock);
    if (!copier->is_stopping && copier->waiting_count < QUEUE_MAX) {
        /* Threads come with the first copies: most servers never make one. */
        if (copier->thread_count < server->config.copies_max &&
            pthread_create(&copier->threads[copier->thread_count], NULL, run, server) == 0)
            pthread_setname_np(copier->threads[copier->thread_count++], "st-copy");
        is_taken = copier->thread_count != 0;
    }
    if (is_taken) {
        if (copier->last != NULL)
            copier->last->next = task;
        else
            copier->first = task;
        copier->last = task;
        copier->waiting_count++;
        pthread_cond_signal(&copier->wake);
    }
    pthread_mutex_unlock(&copier->lock);
    if (!is_taken) {
        free(task);
        st_answer(server, request, MS_LIMIT, "too many copies wait here");
    }
}

ms_status st_copier_open(st_server *server) {
    st_copier *copier = calloc(1, sizeof *copier);
    server->copier = copier;
    if (copier == NULL)
        return MS_NO_MEMORY;
    pthread_mutex_init(&copier->lock, NULL);
    pthread_cond_init(&copier->wake, NULL);
    copier->threads = calloc(server->config.copies_max, sizeof *copier->threads);
    return copier->threads != NULL ? MS_OK : MS_NO_MEMORY;
}

void st_copier_close(st_server *server) {
    st_copier *copier = server->copier;
    if (copier == NULL)
        return;
    pthread_mutex_lock(&copier->lock);
    copier->is_stopping = true;
    pthread_cond_broadcast(&copier->wake);
    pthread_mutex_unlock(&copier->lock);
    for (uint32_t at = 0; at < copier->thread_count; at++)
        pthread_join(copier->threads[at], NULL);
    for (copy_task *task = copier->first; task != NULL;) {
        copy_task *next = task->next;
        free(task);
        task = next;
    }
    for (uint32_t at = 0; at < CHANNELS_MAX; at++) {
        if (copier->channels[at].channel != NULL)
            te_channel_close(copier->channels[at].channel);
    }
    pthread_mutex_destroy(&copier->lock);
    pthread_cond_destroy(&copier->wake);
    free(copier->threads);
    free(copier);
    server->copier = NULL;
}

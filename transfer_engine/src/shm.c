/* Asking side of shared memory: mapping a peer's segments (ATTACH), lending it our memory (SHARE).
 *
 * Both are rare exchanges over a Unix connection of the channel; what they give is kept in the channel:
 * mappings until it closes, share ids until the peer may have forgotten them (te_channel_shares_epoch), says
 * that it does not know them, or the memory is freed.
 *
 * Lock order: a channel's `lock` is a leaf.  It is not held during an exchange, so two threads that share the
 * same memory at once may both ask; the peer gives both the same id.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "te_parts.h"

#include "te_fault.h"

typedef struct channel_shm channel_shm;

typedef struct attachment {
    struct attachment *next;
    channel_shm *owner;
    te_mapping mapping;
    uint32_t segment;
    uint64_t payload_start, payload_length; /* in the file */
    uint64_t words_length;
    dev_t
        device; /* of the payload's file, which tells whether a second ATTACH gives the same memory */
    ino_t inode;
    int descriptor;     /* of the payload, for population; -1 when that has ended */
    uint64_t populated; /* see te_populate_step */
} attachment;

typedef struct share {
    uint64_t number; /* of the allocation; never used twice, so a freed one is never mistaken */
    uint32_t id;
} share;

struct channel_shm {
    te_channel *channel;
    te_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    attachment *attachments;
    share *shares;
    size_t share_count, share_room;
    uint64_t shares_epoch; /* of the ids: see te_channel_shares_epoch */
    uint32_t populating;   /* attachments that a worker may touch */
    _Atomic bool closing;
};

static void channel_shm_close(void *argument);

static channel_shm *shm_of(te_channel *channel) {
    channel_shm *shm = te_channel_attachments(channel);
    if (shm != NULL)
        return shm;
    static pthread_mutex_t creating = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&creating);
    shm = te_channel_attachments(channel);
    if (shm == NULL && (shm = calloc(1, sizeof *shm)) != NULL) {
        shm->channel = channel;
        shm->engine = te_channel_engine(channel);
        pthread_mutex_init(&shm->lock, NULL);
        pthread_cond_init(&shm->changed, NULL);
        te_channel_set_attachments(channel, shm, channel_shm_close);
    }
    pthread_mutex_unlock(&creating);
    return shm;
}

/* ---- one exchange with descriptors -------------------------------------------------------------------------- */

typedef struct exchange {
    uint16_t method;
    uint64_t request_body; /* the three methods have 8 bytes each */
    int descriptor;        /* to send, or -1 */
    uint8_t answer[1024];  /* room for a sentence */
    size_t answer_length;  /* expected */
    int descriptors[2];    /* received; run_exchange's caller closes them when it returned OK */
    size_t descriptor_count;
} exchange;

static void close_descriptors(exchange *what) {
    while (what->descriptor_count > 0)
        close(what->descriptors[--what->descriptor_count]);
}

/* *epoch: see te_channel_shares_epoch, as of when it was sent. */
static ms_status run_exchange(channel_shm *shm, exchange *what, uint64_t *epoch,
                              int64_t deadline_ns) {
    te_connection *connection;
    ms_status status = te_checkout(shm->channel, deadline_ns, &connection);
    if (status != MS_OK)
        return status;
    if (!connection->is_unix) {
        te_checkin(connection, true);
        return MS_UNAVAILABLE;
    }
    *epoch = te_channel_shares_epoch(shm->channel);
    struct iovec body = {&what->request_body, sizeof what->request_body};
    te_reply reply = {.body = what->answer, .body_size = sizeof what->answer};
    status = te_send_passing(connection, MS_REQUEST, what->method, 0, te_next_request(connection),
                             te_deadline_ms(deadline_ns), &body, 1, what->descriptor, deadline_ns);
    if (status == MS_OK)
        status = te_receive(connection, &reply, deadline_ns);
    if (status == MS_OK) {
        memcpy(what->descriptors, connection->passed, sizeof what->descriptors);
        what->descriptor_count = connection->passed_count;
        connection->passed_count = 0;
    }
    te_checkin(connection, status == MS_OK);
    if (status != MS_OK)
        return status;
    if (reply.header.status != MS_OK) {
        status =
            reply.header.status < MS_STATUS_COUNT ? (ms_status)reply.header.status : MS_BAD_FRAME;
        char sentence[TE_ERROR_BYTES];
        te_error(sentence, "%.*s", (int)reply.header.body_length, (const char *)what->answer);
        te_channel_set_error(shm->channel, sentence);
    } else if (reply.header.body_length != what->answer_length) {
        status = MS_BAD_FRAME;
    }
    if (status != MS_OK)
        close_descriptors(what);
    return status;
}

/* ---- attach -------------------------------------------------------------------------------------------------- */

ms_status te_map_read_only(int descriptor, uint64_t offset, uint64_t length, void **address) {
    struct stat file;
    /* A peer of our own uid is trusted not to shrink what it hands out (protocol: segments never shrink). */
    if (fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode))
        return MS_BAD_FRAME;
    if (length == 0 || (uint64_t)file.st_size < length || offset > (uint64_t)file.st_size - length)
        return MS_BAD_FRAME;
    void *mapped = mmap(NULL, (size_t)length, PROT_READ, MAP_SHARED, descriptor, (off_t)offset);
    if (mapped == MAP_FAILED)
        return errno == ENOMEM ? MS_NO_MEMORY : MS_IO_ERROR;
    *address = mapped;
    return MS_OK;
}

static void populate(void *argument) {
    attachment *attached = argument;
    channel_shm *shm = attached->owner;
    bool more =
        !atomic_load_explicit(&shm->closing, memory_order_acquire) &&
        te_populate_step(attached->mapping.payload, attached->descriptor, attached->payload_start,
                         attached->payload_length, &attached->populated);
    /* To the end of the queue after each step, so that other work of the workers is not held up. */
    if (more && te_spawn(shm->engine, populate, attached) == MS_OK)
        return;
    close(attached->descriptor);
    pthread_mutex_lock(&shm->lock);
    attached->descriptor = -1;
    shm->populating--;
    pthread_cond_broadcast(&shm->changed);
    pthread_mutex_unlock(&shm->lock);
}

static void unmap(attachment *attached) {
    if (attached->mapping.payload != NULL)
        munmap((void *)(uintptr_t)attached->mapping.payload, (size_t)attached->payload_length);
    if (attached->mapping.words != NULL)
        munmap((void *)(uintptr_t)attached->mapping.words, (size_t)attached->words_length);
    free(attached);
}

static ms_status map_attachment(const ms_attached *answer, const exchange *what,
                                attachment *attached) {
    void *payload = NULL, *words = NULL;
    if (answer->page_count == 0 || answer->page_count > UINT64_MAX / MS_PAGE_SIZE ||
        what->descriptor_count == 0)
        return MS_BAD_FRAME;
    attached->payload_start = (uint64_t)answer->page_first * MS_PAGE_SIZE;
    attached->payload_length = answer->page_count * MS_PAGE_SIZE;
    attached->words_length = answer->page_count * sizeof(uint64_t);
    ms_status status = te_map_read_only(what->descriptors[0], attached->payload_start,
                                        attached->payload_length, &payload);
    if (status != MS_OK)
        return status;
    attached->mapping = (te_mapping){
        .payload = payload, .page_count = answer->page_count, .incarnation = answer->incarnation};
    if (what->descriptor_count < 2)
        return MS_OK;
    status = te_map_read_only(what->descriptors[1], 0, attached->words_length, &words);
    attached->mapping.words = words;
    return status;
}

static attachment *find_attachment(channel_shm *shm, uint32_t segment, uint32_t incarnation,
                                   const struct stat *file) {
    for (attachment *known = shm->attachments; known != NULL; known = known->next)
        if (known->segment == segment && known->mapping.incarnation == incarnation &&
            known->device == file->st_dev && known->inode == file->st_ino)
            return known;
    return NULL;
}

ms_status te_attach(te_channel *channel, uint32_t segment, int64_t deadline_ns,
                    te_mapping *mapping) {
    channel_shm *shm = shm_of(channel);
    if (shm == NULL)
        return MS_NO_MEMORY;
    exchange what = {.method = MS_ATTACH,
                     .request_body = segment,
                     .descriptor = -1,
                     .answer_length = sizeof(ms_attached)};
    uint64_t epoch;
    ms_status status = run_exchange(shm, &what, &epoch, deadline_ns);
    if (status != MS_OK)
        return status;
    ms_attached answer;
    memcpy(&answer, what.answer, sizeof answer);
    struct stat file;
    attachment *attached = calloc(1, sizeof *attached);
    status = attached == NULL ? MS_NO_MEMORY : MS_OK;
    if (status == MS_OK && (what.descriptor_count == 0 || fstat(what.descriptors[0], &file) != 0))
        status = MS_BAD_FRAME;
    if (status != MS_OK)
        goto out;

    pthread_mutex_lock(&shm->lock);
    attachment *known = find_attachment(shm, segment, answer.incarnation, &file);
    if (known != NULL)
        *mapping = known->mapping;
    pthread_mutex_unlock(&shm->lock);
    if (known != NULL)
        goto out;

    status = map_attachment(&answer, &what, attached);
    if (status != MS_OK)
        goto out;
    attached->owner = shm;
    attached->segment = segment;
    attached->device = file.st_dev;
    attached->inode = file.st_ino;
    attached->descriptor = fcntl(what.descriptors[0], F_DUPFD_CLOEXEC, 0);
    *mapping = attached->mapping;
    bool populates = attached->descriptor >= 0;
    pthread_mutex_lock(&shm->lock);
    attached->next = shm->attachments;
    shm->attachments = attached;
    shm->populating += populates;
    pthread_mutex_unlock(&shm->lock);
    if (populates && te_spawn(shm->engine, populate, attached) != MS_OK) {
        /* The first reads will touch the pages instead. */
        pthread_mutex_lock(&shm->lock);
        close(attached->descriptor);
        attached->descriptor = -1;
        shm->populating--;
        pthread_mutex_unlock(&shm->lock);
    }
    attached = NULL;
out:
    close_descriptors(&what);
    if (attached != NULL)
        unmap(attached);
    return status;
}

/* ---- share --------------------------------------------------------------------------------------------------- */

static void give_back(channel_shm *shm, uint32_t id, int64_t deadline_ns) {
    exchange what = {.method = MS_UNSHARE, .request_body = id, .descriptor = -1};
    uint64_t epoch;
    if (run_exchange(shm, &what, &epoch, deadline_ns) == MS_OK)
        close_descriptors(&what);
}

/* Tells the peer about memory that was freed here since: one a call, so that no call pays for many. */
static void unshare_freed(channel_shm *shm, te_shared *shared, int64_t deadline_ns) {
    uint32_t id = 0;
    bool found = false;
    pthread_mutex_lock(&shm->lock);
    for (size_t i = 0; i < shm->share_count && !found; i++) {
        if (te_shared_exists(shared, shm->shares[i].number))
            continue;
        id = shm->shares[i].id;
        shm->shares[i] = shm->shares[--shm->share_count];
        found = true;
    }
    pthread_mutex_unlock(&shm->lock);
    if (found)
        give_back(shm, id, deadline_ns);
}

/* Under the lock: what the peer has forgotten is forgotten here. */
static void drop_stale(channel_shm *shm) {
    uint64_t epoch = te_channel_shares_epoch(shm->channel);
    if (shm->shares_epoch != epoch)
        shm->share_count = 0;
    shm->shares_epoch = epoch;
}

/* Under the lock. */
static const share *find_share(const channel_shm *shm, uint64_t number) {
    for (size_t i = 0; i < shm->share_count; i++)
        if (shm->shares[i].number == number)
            return &shm->shares[i];
    return NULL;
}

/* False: no memory.  `epoch`: from before the id was asked for; an id that is stale already is not kept.  Another
 * thread may have been first: the peer gives it the same id. */
static bool keep_share(channel_shm *shm, uint64_t number, uint32_t id, uint64_t epoch) {
    bool stored = true;
    pthread_mutex_lock(&shm->lock);
    drop_stale(shm);
    if (shm->shares_epoch == epoch && find_share(shm, number) == NULL) {
        if (shm->share_count == shm->share_room) {
            size_t room = shm->share_room == 0 ? 8 : shm->share_room * 2;
            share *grown = realloc(shm->shares, room * sizeof *grown);
            stored = grown != NULL;
            if (stored) {
                shm->shares = grown;
                shm->share_room = room;
            }
        }
        if (stored)
            shm->shares[shm->share_count++] = (share){number, id};
    }
    pthread_mutex_unlock(&shm->lock);
    return stored;
}

ms_status te_share(te_channel *channel, const void *address, size_t length, uint32_t *source,
                   uint64_t *offset, int64_t deadline_ns) {
    channel_shm *shm = shm_of(channel);
    if (shm == NULL)
        return MS_NO_MEMORY;
    te_shared *shared = shm->engine->shm->shared;
    te_shared_range range;
    if (!te_shared_find(shared, address, length, &range))
        return MS_NOT_REGISTERED;
    *offset = (uint64_t)((const uint8_t *)address - range.base);

    pthread_mutex_lock(&shm->lock);
    drop_stale(shm);
    const share *known = find_share(shm, range.number);
    if (known != NULL)
        *source = known->id + 1;
    pthread_mutex_unlock(&shm->lock);
    if (known != NULL)
        return MS_OK;

    unshare_freed(shm, shared, deadline_ns);
    int descriptor = te_shared_descriptor(shared, range.number);
    if (descriptor < 0)
        return te_shared_exists(shared, range.number) ? MS_LIMIT : MS_NOT_REGISTERED;
    exchange what = {.method = MS_SHARE,
                     .request_body = range.length,
                     .descriptor = descriptor,
                     .answer_length = sizeof(uint64_t)};
    uint64_t epoch = 0;
    ms_status status = run_exchange(shm, &what, &epoch, deadline_ns);
    close(descriptor);
    if (status != MS_OK)
        return status;
    close_descriptors(&what);
    uint32_t id;
    memcpy(&id, what.answer, sizeof id);
    if (!keep_share(shm, range.number, id, epoch)) {
        give_back(shm, id, deadline_ns);
        return MS_NO_MEMORY;
    }
    *source = id + 1;
    return MS_OK;
}

void te_channel_shares_forget(te_channel *channel) {
    channel_shm *shm = te_channel_attachments(channel);
    if (shm == NULL)
        return;
    pthread_mutex_lock(&shm->lock);
    shm->share_count = 0;
    pthread_mutex_unlock(&shm->lock);
}

/* From te_channel_close, when no caller is inside. */
static void channel_shm_close(void *argument) {
    channel_shm *shm = argument;
    atomic_store_explicit(&shm->closing, true, memory_order_release);
    pthread_mutex_lock(&shm->lock);
    while (shm->populating > 0)
        pthread_cond_wait(&shm->changed, &shm->lock);
    pthread_mutex_unlock(&shm->lock);
    while (shm->attachments != NULL) {
        attachment *attached = shm->attachments;
        shm->attachments = attached->next;
        unmap(attached);
    }
    free(shm->shares);
    pthread_cond_destroy(&shm->changed);
    pthread_mutex_destroy(&shm->lock);
    free(shm);
}

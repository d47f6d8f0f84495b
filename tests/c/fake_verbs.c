/* libibverbs for tests: RDMA NICs whose wires are this process's memory.
 *
 * Built as libibverbs.so.1 and found by the engine as the real one is, so that all that the engine does with RDMA runs under
 * the sanitizers, and meets errors that no software NIC produces when asked to.  It is strict where devices are: a queue
 * pair takes as many requests as it was made for, until a completion that was polled speaks for them; keys, ranges and
 * rights are checked at both ends; a completion queue that overflows, or is destroyed with events that were not
 * acknowledged, ends the test.
 *
 * One thread is all the wires: it takes the requests of each queue pair in order, copies under no lock, and completes.
 * What finds no way (a link down, loss, no such queue pair) waits as long as the queue pair's timeout and retries say, and
 * fails then.
 */
#include "fake_verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "te_verbs.h"

#define EXPORT __attribute__((visibility("default")))
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "fake verbs: %s:%d: %s is false\n", __FILE__, __LINE__, #condition);   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { WC_LOC_PROT_ERR = 4, WC_REM_INV_REQ_ERR = 9 };
enum { GIDS = 3, DEAD_GID = 2, INLINE_MAX = 128 };

typedef struct nic {
    verbs_device device; /* first */
    int number, life;    /* a device that comes back is another one */
    bool is_there, is_up, is_lost, has_dead_gid;
} nic;

typedef struct context {
    verbs_context verbs; /* first */
    nic *nic;
    int life;
    int async_pipe[2];
    struct context *next;
} context;

typedef struct region {
    verbs_mr verbs; /* first */
    int access, busy;
    uint8_t *mapped; /* of a descriptor: the page with its first byte; else NULL */
    struct region *next;
} region;

typedef struct cq {
    verbs_cq verbs; /* first */
    verbs_wc *done;
    uint64_t *speaks_for; /* how many requests of the queue pair each of `done` is the end of */
    int first, count, room;
    bool is_armed;
    uint32_t events;
} cq;

typedef struct request {
    struct request *next;
    verbs_send_wr wanted;
    verbs_sge part;
    uint64_t sequence;
    int64_t lost_ns; /* since when there is no way; 0 = not */
    uint8_t inlined[INLINE_MAX];
} request;

typedef struct qp {
    verbs_qp verbs; /* first */
    nic *nic;
    int life, busy;
    verbs_qp_attr attributes; /* what has been said, all of it */
    verbs_qp_cap cap;
    request *first, *last;
    uint64_t posted, released;
    struct qp *next;
} qp;

typedef struct channel {
    verbs_comp_channel verbs; /* first */
    int pipe[2];
} channel;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static nic nics[FAKE_NICS];
static context *contexts;
static region *regions;
static qp *qps;
static uint32_t numbers = 100;
static bool is_begun, has_wires;
static fake_counts counts;
static struct {
    int skipped, count;
} failures[FAKE_CALLS];
static int completion_failure;

/* ---- under the lock ----------------------------------------------------------------------------------------------- */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void begin(void) {
    for (int i = 0; i < FAKE_NICS && !is_begun; i++) {
        nics[i] = (nic){.number = i, .is_there = true, .is_up = true};
        snprintf(nics[i].device.name, sizeof nics[i].device.name, "rxe%d", i);
    }
    is_begun = true;
}

static bool fails(fake_call call) {
    if (failures[call].count == 0 || failures[call].skipped-- > 0)
        return false;
    failures[call].skipped = 0;
    failures[call].count--;
    errno = ENOMEM;
    return true;
}

static void tell(const nic *about, int type) {
    verbs_async_event event = {.element.port_num = 1, .event_type = type};
    for (context *each = contexts; each != NULL; each = each->next)
        if (each->nic == about && each->life == about->life)
            REQUIRE(write(each->async_pipe[1], &event, sizeof event) == sizeof event);
}

static bool gid_of(const nic *of, int index, uint8_t raw[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(raw, 0, 16);
    if (index == 0) {
        raw[0] = 0xfe;
        raw[1] = 0x80;
        raw[15] = (uint8_t)(of->number + 1);
    } else if (index == 1 || (index == DEAD_GID && of->has_dead_gid)) {
        memcpy(raw, mapped, sizeof mapped);
        raw[12] = 10;
        raw[13] = index == 1 ? 77 : 99;
        raw[15] = (uint8_t)(of->number + 1);
    }
    return raw[15] != 0;
}

static const nic *nic_of_gid(const uint8_t raw[16]) {
    uint8_t own[16];
    for (int i = 0; i < FAKE_NICS; i++)
        for (int index = 0; index < 2; index++)
            if (gid_of(&nics[i], index, own) && memcmp(raw, own, sizeof own) == 0)
                return &nics[i];
    return NULL;
}

static bool is_reached(const nic *end, int life) {
    return end->is_there && end->life == life && end->is_up && !end->is_lost;
}

/* The other end of a queue pair, if a packet comes there. */
static qp *way(const qp *from) {
    const nic *there = nic_of_gid(from->attributes.ah_attr.grh.dgid.raw);
    if (there == NULL || there == from->nic || !is_reached(from->nic, from->life) ||
        from->attributes.ah_attr.grh.sgid_index == DEAD_GID)
        return NULL;
    for (qp *each = qps; each != NULL; each = each->next)
        if (each->nic == there && each->verbs.qp_num == from->attributes.dest_qp_num)
            return is_reached(there, each->life) &&
                           each->attributes.dest_qp_num == from->verbs.qp_num &&
                           (each->verbs.state == VERBS_QPS_RTR ||
                            each->verbs.state == VERBS_QPS_RTS)
                       ? each
                       : NULL;
    return NULL;
}

static region *find(const nic *of, uint32_t key, uint64_t address, uint64_t length, int access) {
    for (region *each = regions; each != NULL; each = each->next) {
        const context *owner = (const context *)each->verbs.context;
        uint64_t start = (uint64_t)(uintptr_t)each->verbs.addr;
        if (owner->nic == of && owner->life == of->life && each->verbs.lkey == key)
            return address >= start && length <= each->verbs.length &&
                           address - start <= each->verbs.length - length &&
                           (each->access & access) == access
                       ? each
                       : NULL;
    }
    return NULL;
}

static void complete(qp *of, const request *done, int status) {
    cq *into = (cq *)of->verbs.send_cq;
    if (status == VERBS_WC_SUCCESS && (done->wanted.send_flags & VERBS_SEND_SIGNALED) == 0)
        return;
    REQUIRE(into->count < into->room);
    int at = (into->first + into->count++) % into->room;
    into->done[at] =
        (verbs_wc){.wr_id = done->wanted.wr_id, .status = status, .qp_num = of->verbs.qp_num};
    into->speaks_for[at] = done->sequence;
    if (!into->is_armed || into->verbs.channel == NULL)
        return;
    into->is_armed = false;
    into->events++;
    const verbs_cq *about = &into->verbs;
    REQUIRE(write(((channel *)into->verbs.channel)->pipe[1], &about, sizeof about) == sizeof about);
}

static request *take_first(qp *of) {
    request *first = of->first;
    of->first = first->next;
    if (of->first == NULL)
        of->last = NULL;
    return first;
}

/* The first of the requests has failed; those behind it are flushed. */
static void break_off(qp *of, int status) {
    of->verbs.state = VERBS_QPS_ERR;
    while (of->first != NULL) {
        request *each = take_first(of);
        complete(of, each, status);
        status = VERBS_WC_FLUSH_ERR;
        free(each);
    }
}

static _Atomic uint64_t speed;

EXPORT void fake_speed_set(uint64_t bytes_per_s) { atomic_store(&speed, bytes_per_s); }

/* ---- the wires ------------------------------------------------------------------------------------------------------ */

/* Where the bytes of that address lie. */
static uint8_t *at(const region *of, uint64_t address) {
    if (of == NULL || of->mapped == NULL)
        return (uint8_t *)(uintptr_t)address;
    uint64_t start = (uint64_t)(uintptr_t)of->verbs.addr;
    return of->mapped + start % 4096 + (address - start);
}

static void copy(const request *moved, const region *here, const region *there, bool is_write) {
    uint64_t bytes_per_s = atomic_load(&speed);
    if (bytes_per_s != 0 && moved->part.length > 8) {
        struct timespec pause = {.tv_nsec = (long)(moved->part.length * UINT64_C(1000000000) /
                                                   bytes_per_s % 1000000000)};
        nanosleep(&pause, NULL);
    }
    uint8_t *local = at(here, moved->part.addr);
    uint8_t *remote = at(there, moved->wanted.rdma.remote_addr);
    const uint8_t *inlined = moved->inlined;
    size_t length = moved->part.length;
    bool is_inline = (moved->wanted.send_flags & VERBS_SEND_INLINE) != 0;
    if (length == 8 && (uintptr_t)remote % 8 == 0 && !is_write) { /* a word is read whole */
        uint64_t word = __atomic_load_n((uint64_t *)(void *)remote, __ATOMIC_ACQUIRE);
        memcpy(local, &word, sizeof word);
    } else if (is_write) {
        memcpy(remote, is_inline ? inlined : local, length);
    } else {
        memcpy(local, remote, length);
    }
}

/* Under the lock, which it leaves for the copy.  True: something was done. */
static bool carry_one(qp *from) {
    request *first = from->first;
    bool is_write = first->wanted.opcode == VERBS_WR_RDMA_WRITE;
    bool is_inline = (first->wanted.send_flags & VERBS_SEND_INLINE) != 0;
    uint64_t length = first->wanted.num_sge == 0 ? 0 : first->part.length;
    region *local = NULL, *remote = NULL;
    qp *to = way(from);
    if (to == NULL) {
        int64_t limit_ns =
            (INT64_C(4096) << from->attributes.timeout) * (from->attributes.retry_cnt + 1);
        int64_t at_ns = now_ns();
        if (first->lost_ns == 0)
            first->lost_ns = at_ns;
        if (at_ns - first->lost_ns < limit_ns)
            return false;
        break_off(from, VERBS_WC_RETRY_EXC_ERR);
        return true;
    }
    if (completion_failure != 0) {
        int status = completion_failure;
        completion_failure = 0;
        break_off(from, status);
        return true;
    }
    unsigned right = is_write ? VERBS_ACCESS_REMOTE_WRITE : VERBS_ACCESS_REMOTE_READ;
    if ((to->attributes.qp_access_flags & right) != right) {
        break_off(from, WC_REM_INV_REQ_ERR);
        return true;
    }
    if (length > 0) {
        if (!is_inline)
            local = find(from->nic, first->part.lkey, first->part.addr, length,
                         is_write ? 0 : VERBS_ACCESS_LOCAL_WRITE);
        if (!is_inline && local == NULL) {
            break_off(from, WC_LOC_PROT_ERR);
            return true;
        }
        remote = find(to->nic, first->wanted.rdma.rkey, first->wanted.rdma.remote_addr, length,
                      (int)right);
        if (remote == NULL) {
            break_off(from, VERBS_WC_REM_ACCESS_ERR);
            return true;
        }
        from->busy++;
        to->busy++;
        remote->busy++;
        if (local != NULL)
            local->busy++;
        pthread_mutex_unlock(&lock);
        copy(first, local, remote, is_write);
        pthread_mutex_lock(&lock);
        if (local != NULL)
            local->busy--;
        remote->busy--;
        to->busy--;
        from->busy--;
        *(is_write ? &counts.write_bytes : &counts.read_bytes) += length;
        counts.nic_bytes[from->nic->number] += length;
        pthread_cond_broadcast(&changed);
    }
    if (from->first != first) /* it has been destroyed, or set to error, meanwhile */
        return true;
    first = take_first(from);
    complete(from, first, VERBS_WC_SUCCESS);
    free(first);
    return true;
}

static void *be_wires(void *argument) {
    (void)argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        bool any = false, is_waiting = false;
        for (qp *each = qps; each != NULL && !any; each = each->next)
            if (each->first != NULL && each->verbs.state == VERBS_QPS_RTS) {
                any = carry_one(each); /* the list may be another one afterwards */
                is_waiting = is_waiting || !any;
            }
        if (any) { /* the next in turn, so that none waits for another's long row */
            qp *first = qps;
            if (first != NULL && first->next != NULL) {
                qps = first->next;
                qp *last = qps;
                while (last->next != NULL)
                    last = last->next;
                last->next = first;
                first->next = NULL;
            }
            continue;
        }
        if (!is_waiting) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&changed, &lock, &until);
    }
    return NULL;
}

/* ---- the data path --------------------------------------------------------------------------------------------------- */

static int post(verbs_qp *to, verbs_send_wr *wanted, verbs_send_wr **bad) {
    qp *of = (qp *)to;
    int problem = 0;
    pthread_mutex_lock(&lock);
    for (; wanted != NULL && problem == 0; wanted = problem == 0 ? wanted->next : wanted) {
        bool is_inline = (wanted->send_flags & VERBS_SEND_INLINE) != 0;
        if (fails(FAKE_POST) || of->posted - of->released >= of->cap.max_send_wr)
            problem = ENOMEM;
        else if (wanted->num_sge > 1 ||
                 (is_inline && wanted->sg_list[0].length > of->cap.max_inline_data) ||
                 (of->verbs.state != VERBS_QPS_RTS && of->verbs.state != VERBS_QPS_ERR))
            problem = EINVAL;
        request *made = problem == 0 ? calloc(1, sizeof *made) : NULL;
        if (made == NULL)
            continue;
        made->wanted = *wanted;
        made->sequence = ++of->posted;
        if (wanted->num_sge == 1)
            made->part = wanted->sg_list[0];
        if (is_inline)
            memcpy(made->inlined, (const void *)(uintptr_t)made->part.addr, made->part.length);
        if (of->last == NULL)
            of->first = made;
        else
            of->last->next = made;
        of->last = made;
    }
    if (of->verbs.state == VERBS_QPS_ERR)
        break_off(of, VERBS_WC_FLUSH_ERR);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    *bad = wanted;
    return problem;
}

static int poll_cq(verbs_cq *from, int room, verbs_wc *completions) {
    cq *of = (cq *)from;
    int count = 0;
    pthread_mutex_lock(&lock);
    for (; count < room && of->count > 0; count++) {
        completions[count] = of->done[of->first];
        for (qp *each = qps; each != NULL; each = each->next)
            if (each->verbs.send_cq == from && each->verbs.qp_num == completions[count].qp_num)
                each->released = of->speaks_for[of->first];
        of->first = (of->first + 1) % of->room;
        of->count--;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static int arm(verbs_cq *armed, int solicited_only) {
    (void)solicited_only;
    pthread_mutex_lock(&lock);
    ((cq *)armed)->is_armed = true;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- devices ------------------------------------------------------------------------------------------------------------ */

EXPORT verbs_device **ibv_get_device_list(int *count);
EXPORT verbs_device **ibv_get_device_list(int *count) {
    verbs_device **list = calloc(FAKE_NICS + 1, sizeof(*list));
    int found = 0;
    pthread_mutex_lock(&lock);
    begin();
    for (int i = 0; i < FAKE_NICS; i++)
        if (nics[i].is_there)
            list[found++] = &nics[i].device;
    pthread_mutex_unlock(&lock);
    *count = found;
    return list;
}

EXPORT void ibv_free_device_list(verbs_device **list);
EXPORT void ibv_free_device_list(verbs_device **list) { free((void *)list); }

EXPORT verbs_context *ibv_open_device(verbs_device *device);
EXPORT verbs_context *ibv_open_device(verbs_device *device) {
    context *made = calloc(1, sizeof *made);
    REQUIRE(pipe2(made->async_pipe, O_CLOEXEC) == 0);
    made->nic = (nic *)device;
    made->verbs.device = device;
    made->verbs.ops.poll_cq = poll_cq;
    made->verbs.ops.req_notify_cq = arm;
    made->verbs.ops.post_send = post;
    made->verbs.async_fd = made->async_pipe[0];
    pthread_mutex_lock(&lock);
    made->life = made->nic->life;
    made->next = contexts;
    contexts = made;
    counts.contexts++;
    if (!has_wires) {
        pthread_t wires;
        REQUIRE(pthread_create(&wires, NULL, be_wires, NULL) == 0);
        pthread_detach(wires);
        has_wires = true;
    }
    pthread_mutex_unlock(&lock);
    return &made->verbs;
}

EXPORT int ibv_close_device(verbs_context *closed);
EXPORT int ibv_close_device(verbs_context *closed) {
    context *of = (context *)closed;
    pthread_mutex_lock(&lock);
    for (const region *each = regions; each != NULL; each = each->next)
        REQUIRE(each->verbs.context != closed);
    context **at = &contexts;
    while (*at != of)
        at = &(*at)->next;
    *at = of->next;
    counts.contexts--;
    pthread_mutex_unlock(&lock);
    close(of->async_pipe[0]);
    close(of->async_pipe[1]);
    free(of);
    return 0;
}

EXPORT int ibv_query_device(verbs_context *of, verbs_device_attr *attributes);
EXPORT int ibv_query_device(verbs_context *of, verbs_device_attr *attributes) {
    (void)of;
    memset(attributes, 0, sizeof *attributes);
    attributes->max_mr_size = UINT64_C(1) << 40;
    attributes->max_qp_wr = 4096;
    attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = 16;
    attributes->phys_port_cnt = 1;
    return 0;
}

EXPORT int ibv_query_port(verbs_context *of, uint8_t port, verbs_port_attr *attributes);
EXPORT int ibv_query_port(verbs_context *of, uint8_t port, verbs_port_attr *attributes) {
    const context *asked = (const context *)of;
    (void)port;
    pthread_mutex_lock(&lock);
    bool is_there = asked->nic->is_there && asked->life == asked->nic->life;
    *attributes = (verbs_port_attr){.state = asked->nic->is_up ? VERBS_PORT_ACTIVE : 1,
                                    .active_mtu = 5,
                                    .gid_tbl_len = GIDS,
                                    .max_msg_sz = 1u << 30,
                                    .link_layer = VERBS_LINK_ETHERNET};
    pthread_mutex_unlock(&lock);
    return is_there ? 0 : ENODEV;
}

EXPORT int ibv_query_gid(verbs_context *of, uint8_t port, int index, verbs_gid *gid);
EXPORT int ibv_query_gid(verbs_context *of, uint8_t port, int index, verbs_gid *gid) {
    (void)port;
    pthread_mutex_lock(&lock);
    (void)gid_of(((context *)of)->nic, index, gid->raw);
    pthread_mutex_unlock(&lock);
    return index < GIDS ? 0 : EINVAL;
}

EXPORT int ibv_get_async_event(verbs_context *of, verbs_async_event *event);
EXPORT int ibv_get_async_event(verbs_context *of, verbs_async_event *event) {
    return read(of->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

EXPORT void ibv_ack_async_event(verbs_async_event *event);
EXPORT void ibv_ack_async_event(verbs_async_event *event) { (void)event; }

EXPORT const char *ibv_wc_status_str(int status);
EXPORT const char *ibv_wc_status_str(int status) { return status == 0 ? "success" : "failure"; }

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

EXPORT verbs_pd *ibv_alloc_pd(verbs_context *of);
EXPORT verbs_pd *ibv_alloc_pd(verbs_context *of) {
    verbs_pd *made = calloc(1, sizeof *made);
    made->context = of;
    return made;
}

EXPORT int ibv_dealloc_pd(verbs_pd *pd);
EXPORT int ibv_dealloc_pd(verbs_pd *pd) {
    free(pd);
    return 0;
}

EXPORT verbs_mr *ibv_reg_mr(verbs_pd *pd, void *address, size_t length, int access);
EXPORT verbs_mr *ibv_reg_mr(verbs_pd *pd, void *address, size_t length, int access) {
    const context *of = (const context *)pd->context;
    region *made = NULL;
    pthread_mutex_lock(&lock);
    if (!of->nic->is_there || of->life != of->nic->life)
        errno = ENODEV;
    else if (!fails(FAKE_REGISTER))
        made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->verbs = (verbs_mr){
            .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = ++numbers};
        made->verbs.rkey = made->verbs.lkey;
        made->access = access;
        made->next = regions;
        regions = made;
        counts.regions++;
    }
    pthread_mutex_unlock(&lock);
    return made == NULL ? NULL : &made->verbs;
}

EXPORT verbs_mr *ibv_reg_mr_iova2(verbs_pd *pd, void *address, size_t length, uint64_t iova,
                                  unsigned access);
EXPORT verbs_mr *ibv_reg_mr_iova2(verbs_pd *pd, void *address, size_t length, uint64_t iova,
                                  unsigned access) {
    REQUIRE(iova == (uint64_t)(uintptr_t)address);
    return ibv_reg_mr(pd, address, length, (int)access);
}

/* A dmabuf is a file here, and what lies at the address is not looked at. */
EXPORT verbs_mr *ibv_reg_dmabuf_mr(verbs_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                   int descriptor, int access);
EXPORT verbs_mr *ibv_reg_dmabuf_mr(verbs_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                   int descriptor, int access) {
    REQUIRE(offset % 4096 == iova % 4096);
    pthread_mutex_lock(&lock);
    bool is_refused = fails(FAKE_REGISTER_DEVICE);
    pthread_mutex_unlock(&lock);
    if (is_refused)
        return NULL;
    uint8_t *mapped = mmap(NULL, length + offset % 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                           descriptor, (off_t)(offset - offset % 4096));
    if (mapped == MAP_FAILED)
        return NULL;
    verbs_mr *made = ibv_reg_mr(pd, (void *)(uintptr_t)iova, length, access);
    if (made == NULL) {
        int problem = errno;
        munmap(mapped, length + offset % 4096);
        errno = problem;
        return NULL;
    }
    pthread_mutex_lock(&lock);
    ((region *)made)->mapped = mapped;
    counts.device_regions++;
    pthread_mutex_unlock(&lock);
    return made;
}

EXPORT int ibv_dereg_mr(verbs_mr *mr);
EXPORT int ibv_dereg_mr(verbs_mr *mr) {
    region *gone = (region *)mr;
    pthread_mutex_lock(&lock);
    region **at = &regions;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    while (gone->busy > 0)
        pthread_cond_wait(&changed, &lock);
    counts.regions--;
    counts.device_regions -= gone->mapped != NULL;
    pthread_mutex_unlock(&lock);
    if (gone->mapped != NULL)
        munmap(gone->mapped, gone->verbs.length + (uintptr_t)gone->verbs.addr % 4096);
    free(gone);
    return 0;
}

/* ---- completion queues --------------------------------------------------------------------------------------------------- */

EXPORT verbs_comp_channel *ibv_create_comp_channel(verbs_context *of);
EXPORT verbs_comp_channel *ibv_create_comp_channel(verbs_context *of) {
    channel *made = calloc(1, sizeof *made);
    if (pipe2(made->pipe, O_CLOEXEC) != 0) {
        free(made);
        return NULL;
    }
    made->verbs.context = of;
    made->verbs.fd = made->pipe[0];
    return &made->verbs;
}

EXPORT int ibv_destroy_comp_channel(verbs_comp_channel *of);
EXPORT int ibv_destroy_comp_channel(verbs_comp_channel *of) {
    channel *gone = (channel *)of;
    close(gone->pipe[0]);
    close(gone->pipe[1]);
    free(gone);
    return 0;
}

EXPORT verbs_cq *ibv_create_cq(verbs_context *of, int cqe, void *cq_context,
                               verbs_comp_channel *told, int vector);
EXPORT verbs_cq *ibv_create_cq(verbs_context *of, int cqe, void *cq_context,
                               verbs_comp_channel *told, int vector) {
    cq *made = NULL;
    (void)vector;
    pthread_mutex_lock(&lock);
    if (!fails(FAKE_CREATE_CQ))
        made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->verbs.context = of;
        made->verbs.channel = told;
        made->verbs.cq_context = cq_context;
        made->verbs.cqe = made->room = cqe;
        made->done = calloc((size_t)cqe, sizeof *made->done);
        made->speaks_for = calloc((size_t)cqe, sizeof *made->speaks_for);
        counts.completion_queues++;
    }
    pthread_mutex_unlock(&lock);
    return made == NULL ? NULL : &made->verbs;
}

EXPORT int ibv_destroy_cq(verbs_cq *of);
EXPORT int ibv_destroy_cq(verbs_cq *of) {
    cq *gone = (cq *)of;
    pthread_mutex_lock(&lock);
    for (const qp *each = qps; each != NULL; each = each->next)
        REQUIRE(each->verbs.send_cq != of);
    REQUIRE(gone->verbs.comp_events_completed == gone->events ||
            gone->verbs.comp_events_completed + 1 ==
                gone->events); /* one may not have been fetched */
    counts.completion_queues--;
    pthread_mutex_unlock(&lock);
    free(gone->done);
    free(gone->speaks_for);
    free(gone);
    return 0;
}

EXPORT int ibv_get_cq_event(verbs_comp_channel *of, verbs_cq **about, void **cq_context);
EXPORT int ibv_get_cq_event(verbs_comp_channel *of, verbs_cq **about, void **cq_context) {
    if (read(of->fd, about, sizeof *about) != sizeof *about)
        return -1;
    *cq_context = (*about)->cq_context;
    return 0;
}

EXPORT void ibv_ack_cq_events(verbs_cq *of, unsigned count);
EXPORT void ibv_ack_cq_events(verbs_cq *of, unsigned count) {
    pthread_mutex_lock(&lock);
    of->comp_events_completed += count;
    REQUIRE(of->comp_events_completed <= ((cq *)of)->events);
    pthread_mutex_unlock(&lock);
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------------------ */

EXPORT verbs_qp *ibv_create_qp(verbs_pd *pd, verbs_qp_init_attr *attributes);
EXPORT verbs_qp *ibv_create_qp(verbs_pd *pd, verbs_qp_init_attr *attributes) {
    const context *of = (const context *)pd->context;
    qp *made = NULL;
    pthread_mutex_lock(&lock);
    if (!of->nic->is_there || of->life != of->nic->life)
        errno = ENODEV;
    else if (!fails(FAKE_CREATE_QP))
        made = calloc(1, sizeof *made);
    if (made != NULL) {
        if (attributes->cap.max_inline_data > INLINE_MAX)
            attributes->cap.max_inline_data = INLINE_MAX;
        made->nic = of->nic;
        made->life = of->life;
        made->cap = attributes->cap;
        made->verbs.context = pd->context;
        made->verbs.pd = pd;
        made->verbs.send_cq = attributes->send_cq;
        made->verbs.recv_cq = attributes->recv_cq;
        made->verbs.qp_type = attributes->qp_type;
        made->verbs.qp_num = ++numbers;
        made->next = qps;
        qps = made;
        counts.queue_pairs++;
    }
    pthread_mutex_unlock(&lock);
    return made == NULL ? NULL : &made->verbs;
}

EXPORT int ibv_modify_qp(verbs_qp *of, verbs_qp_attr *wanted, int mask);
EXPORT int ibv_modify_qp(verbs_qp *of, verbs_qp_attr *wanted, int mask) {
    qp *changing = (qp *)of;
    int problem = 0;
    pthread_mutex_lock(&lock);
    if (fails(FAKE_MODIFY_QP)) {
        problem = ENOMEM;
    } else {
        verbs_qp_attr *kept = &changing->attributes;
        REQUIRE(mask & VERBS_QP_STATE);
        of->state = wanted->qp_state;
        if (mask & VERBS_QP_ACCESS_FLAGS)
            kept->qp_access_flags = wanted->qp_access_flags;
        if (mask & VERBS_QP_AV)
            kept->ah_attr = wanted->ah_attr;
        if (mask & VERBS_QP_DEST_QPN)
            kept->dest_qp_num = wanted->dest_qp_num;
        if (mask & VERBS_QP_TIMEOUT)
            kept->timeout = wanted->timeout;
        if (mask & VERBS_QP_RETRY_CNT)
            kept->retry_cnt = wanted->retry_cnt;
        while (of->state == VERBS_QPS_ERR && changing->busy > 0)
            pthread_cond_wait(&changed, &lock);
        if (of->state == VERBS_QPS_ERR)
            break_off(changing, VERBS_WC_FLUSH_ERR);
    }
    pthread_mutex_unlock(&lock);
    return problem;
}

/* The completions that nobody has polled go with it, as with the providers. */
static void forget_completions(cq *of, uint32_t number) {
    int kept = 0;
    for (int i = 0; i < of->count; i++) {
        int from = (of->first + i) % of->room, to = (of->first + kept) % of->room;
        if (of->done[from].qp_num == number)
            continue;
        of->done[to] = of->done[from];
        of->speaks_for[to] = of->speaks_for[from];
        kept++;
    }
    of->count = kept;
}

EXPORT int ibv_destroy_qp(verbs_qp *of);
EXPORT int ibv_destroy_qp(verbs_qp *of) {
    qp *gone = (qp *)of;
    pthread_mutex_lock(&lock);
    qp **at = &qps;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    gone->verbs.state = VERBS_QPS_ERR;
    while (gone->busy > 0)
        pthread_cond_wait(&changed, &lock);
    while (gone->first != NULL)
        free(take_first(gone));
    forget_completions((cq *)of->send_cq, of->qp_num);
    counts.queue_pairs--;
    pthread_mutex_unlock(&lock);
    free(gone);
    return 0;
}

/* ---- what tests do ------------------------------------------------------------------------------------------------------------ */

EXPORT void fake_link_set(int number, bool is_up) {
    pthread_mutex_lock(&lock);
    begin();
    nics[number].is_up = is_up;
    tell(&nics[number], is_up ? VERBS_EVENT_PORT_ACTIVE : VERBS_EVENT_PORT_ERR);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_loss_set(int number, bool is_lost) {
    pthread_mutex_lock(&lock);
    begin();
    nics[number].is_lost = is_lost;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_nic_set(int number, bool is_there) {
    pthread_mutex_lock(&lock);
    begin();
    if (nics[number].is_there && !is_there)
        tell(&nics[number], VERBS_EVENT_DEVICE_FATAL);
    nics[number].life += is_there && !nics[number].is_there;
    nics[number].is_there = is_there;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_dead_gid_set(int number, bool is_there) {
    pthread_mutex_lock(&lock);
    begin();
    nics[number].has_dead_gid = is_there;
    tell(&nics[number], VERBS_EVENT_GID_CHANGE);
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_fail(fake_call call, int skipped, int count) {
    pthread_mutex_lock(&lock);
    failures[call].skipped = skipped;
    failures[call].count = count;
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_fail_completion(int status) {
    pthread_mutex_lock(&lock);
    completion_failure = status;
    pthread_mutex_unlock(&lock);
}

EXPORT fake_counts fake_count(void) {
    pthread_mutex_lock(&lock);
    fake_counts now = counts;
    pthread_mutex_unlock(&lock);
    return now;
}

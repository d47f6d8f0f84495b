/* Accepting side of shared memory: what local peers lend us (SHARE), and what we hand out (ATTACH).
 *
 * A lender is a process, known by the credentials of its Unix connections; a loan is one memfd of it, mapped
 * read-only here, from which WRITE copies.  Loans belong to the process, not to a connection, because the
 * WRITE that names one may arrive on any connection of its pool; they end when its last connection closes.
 * A process can therefore never name memory that another one lent.
 *
 * What makes the mapping safe to read: the file is a tmpfs file sealed against shrinking, and at least as long
 * as what we map, so no access can raise SIGBUS; the descriptor is not kept.  Its owner may change the bytes
 * while we copy them: then it stores garbage of its own.
 *
 * Ids are random, so that an id of an earlier process behind the same socket is unknown here instead of naming
 * something else.
 *
 * One lock: it is held for a look-up among at most LOANS_PER_LENDER_MAX entries, never across a system call.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "te_parts.h"

#include "te_fault.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define POPULATE_STEP ((size_t)8 << 20)

#define LOANS_PER_LENDER_MAX 256u
/* Address space, not memory: the pages are the lender's. */
#define LENDER_BYTES_MAX ((uint64_t)1 << 40)
#define ALL_BYTES_MAX ((uint64_t)1 << 42)

typedef struct te_loan {
    const uint8_t *bytes;
    uint64_t length;
    size_t mapped;
    dev_t device; /* with inode: which file, so that the same memory is mapped once */
    ino_t inode;
    uint32_t id;
    /* Under the lock: */
    uint32_t
        holders; /* WRITEs that copy, population, a SHARE that is not over; and 1 until withdrawn */
    bool is_withdrawn; /* UNSHAREd or the lender has gone: no further WRITE may name it */
} te_loan;

struct te_lender {
    te_lender *next;
    uint32_t uid, pid;
    uint64_t hidden; /* tells processes apart whose pid we cannot see */
    uint32_t connections;
    uint32_t users; /* connections, and population of its loans */
    uint32_t loan_count;
    uint64_t bytes;
    te_loan *loans[LOANS_PER_LENDER_MAX];
};

struct te_loans {
    pthread_mutex_t lock;
    te_lender *lenders;
    uint64_t bytes;
};

ms_status te_loans_open(te_loans **result) {
    te_loans *loans = calloc(1, sizeof *loans);
    if (loans == NULL)
        return MS_NO_MEMORY;
    pthread_mutex_init(&loans->lock, NULL);
    *result = loans;
    return MS_OK;
}

static void unmap(void *argument) {
    te_loan *loan = argument;
    munmap((void *)(uintptr_t)loan->bytes, loan->mapped);
    free(loan);
}

/* Unmapping gigabytes takes tens of milliseconds: not on an I/O thread. */
static void unmap_later(te_engine *engine, te_loan *loan) {
    if (te_spawn(engine, unmap, loan) != MS_OK)
        unmap(loan);
}

/* Lock held.  True: that was the last holder; the loan has left its lender's table and the caller unmaps it. */
static bool let_go(te_loans *loans, te_lender *lender, te_loan *loan) {
    if (--loan->holders > 0)
        return false;
    uint32_t index = 0;
    while (lender->loans[index] != loan)
        index++;
    lender->loans[index] = lender->loans[--lender->loan_count];
    lender->bytes -= loan->mapped;
    loans->bytes -= loan->mapped;
    return true;
}

static bool withdraw(te_loans *loans, te_lender *lender, te_loan *loan) {
    if (loan->is_withdrawn)
        return false;
    loan->is_withdrawn = true;
    return let_go(loans, lender, loan);
}

void te_loans_close(te_loans *loans) {
    if (loans == NULL)
        return;
    while (loans->lenders != NULL) {
        te_lender *lender = loans->lenders;
        loans->lenders = lender->next;
        for (uint32_t i = 0; i < lender->loan_count; i++)
            unmap(lender->loans[i]);
        free(lender);
    }
    pthread_mutex_destroy(&loans->lock);
    free(loans);
}

te_lender *te_lender_connect(te_loans *loans, uint32_t uid, uint32_t pid, uint64_t hidden) {
    pthread_mutex_lock(&loans->lock);
    te_lender *lender = loans->lenders;
    while (lender != NULL &&
           !(lender->uid == uid && lender->pid == pid && (pid != 0 || lender->hidden == hidden)))
        lender = lender->next;
    if (lender == NULL) {
        lender = calloc(1, sizeof *lender);
        if (lender != NULL) {
            lender->uid = uid;
            lender->pid = pid;
            lender->hidden = hidden;
            lender->next = loans->lenders;
            loans->lenders = lender;
        }
    }
    if (lender != NULL) {
        lender->connections++;
        lender->users++;
    }
    pthread_mutex_unlock(&loans->lock);
    return lender;
}

/* The last user takes what is left away; nobody else can know the lender any more. */
static void lender_let_go(te_engine *engine, te_lender *lender) {
    te_loans *loans = engine->shm->loans;
    pthread_mutex_lock(&loans->lock);
    bool last = --lender->users == 0;
    pthread_mutex_unlock(&loans->lock);
    if (last)
        free(lender);
}

/* With its last connection a lender leaves the list, so that a process that comes later with the same pid is
 * another one, and its loans are withdrawn. */
void te_lender_disconnect(te_engine *engine, te_lender *lender) {
    if (lender == NULL)
        return;
    te_loans *loans = engine->shm->loans;
    te_loan *gone[LOANS_PER_LENDER_MAX];
    uint32_t gone_count = 0;
    pthread_mutex_lock(&loans->lock);
    if (--lender->connections == 0) {
        te_lender **link = &loans->lenders;
        while (*link != lender)
            link = &(*link)->next;
        *link = lender->next;
        for (uint32_t i = lender->loan_count; i-- > 0;) {
            te_loan *loan = lender->loans[i];
            if (withdraw(loans, lender, loan))
                gone[gone_count++] = loan;
        }
    }
    pthread_mutex_unlock(&loans->lock);
    for (uint32_t i = 0; i < gone_count; i++)
        unmap_later(engine, gone[i]);
    lender_let_go(engine, lender);
}

static te_loan *find(const te_lender *lender, uint32_t id) {
    for (uint32_t i = 0; i < lender->loan_count; i++)
        if (lender->loans[i]->id == id)
            return lender->loans[i];
    return NULL;
}

/* Why a descriptor cannot be mapped safely, or NULL. */
static const char *objection(int descriptor, uint64_t length, struct stat *file) {
    struct statfs system;
    if (length == 0)
        return "the length is 0";
    if (fstat(descriptor, file) != 0 || !S_ISREG(file->st_mode))
        return "it is not a regular file";
    /* Huge pages could run out below a mapping, and other file systems answer reads as they like. */
    if (fstatfs(descriptor, &system) != 0 || system.f_type != TMPFS_MAGIC)
        return "it is not on tmpfs";
    int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return "it is not sealed against shrinking";
    if ((uint64_t)file->st_size < length)
        return "it is shorter than announced";
    return NULL;
}

static void loan_let_go(te_engine *engine, te_lender *lender, te_loan *loan) {
    te_loans *loans = engine->shm->loans;
    pthread_mutex_lock(&loans->lock);
    bool last = let_go(loans, lender, loan);
    pthread_mutex_unlock(&loans->lock);
    if (last)
        unmap_later(engine, loan);
}

typedef struct population {
    te_engine *engine;
    te_lender *lender; /* used: it stays */
    te_loan *loan;     /* held */
    size_t done;
} population;

static void populate_end(population *work) {
    loan_let_go(work->engine, work->lender, work->loan);
    lender_let_go(work->engine, work->lender);
    free(work);
}

/* One step, then to the end of the queue: other work of the workers is not held up. */
static void populate(void *argument) {
    population *work = argument;
    te_loans *loans = work->engine->shm->loans;
    pthread_mutex_lock(&loans->lock);
    bool is_wanted = !work->loan->is_withdrawn;
    pthread_mutex_unlock(&loans->lock);
    size_t left = work->loan->mapped - work->done;
    size_t step = left < POPULATE_STEP ? left : POPULATE_STEP;
    if (is_wanted &&
        madvise((void *)(uintptr_t)(work->loan->bytes + work->done), step, MADV_POPULATE_READ) ==
            0 &&
        step < left) {
        work->done += step;
        if (te_spawn(work->engine, populate, work) == MS_OK)
            return;
    }
    populate_end(work);
}

/* The caller holds the loan and uses the lender.  Reading a hole would make us pay for pages that the lender never
 * wrote, so only whole files are populated. */
static void populate_later(te_engine *engine, te_lender *lender, te_loan *loan,
                           const struct stat *file) {
    if ((uint64_t)file->st_blocks * 512 < (uint64_t)file->st_size)
        return;
    population *work = malloc(sizeof *work);
    if (work == NULL)
        return;
    *work = (population){engine, lender, loan, 0};
    te_loans *loans = engine->shm->loans;
    pthread_mutex_lock(&loans->lock);
    loan->holders++;
    lender->users++;
    pthread_mutex_unlock(&loans->lock);
    if (te_spawn(engine, populate, work) != MS_OK)
        populate_end(work);
}

/* Lock held.  The loan of the same bytes, if the lender shared them before: over another channel, or before it
 * lost its connections. */
static te_loan *find_again(te_lender *lender, const struct stat *file, uint64_t length) {
    for (uint32_t i = 0; i < lender->loan_count; i++) {
        te_loan *loan = lender->loans[i];
        if (!loan->is_withdrawn && loan->inode == file->st_ino && loan->device == file->st_dev &&
            loan->length == length)
            return loan;
    }
    return NULL;
}

/* Lock held. */
static ms_status admit(te_loans *loans, te_lender *lender, te_loan *loan) {
    if (lender->loan_count == LOANS_PER_LENDER_MAX ||
        lender->bytes + loan->mapped > LENDER_BYTES_MAX ||
        loans->bytes + loan->mapped > ALL_BYTES_MAX)
        return MS_LIMIT;
    do {
        if (getrandom(&loan->id, sizeof loan->id, 0) != (ssize_t)sizeof loan->id)
            return MS_INTERNAL;
    } while (loan->id == UINT32_MAX || find(lender, loan->id) != NULL);
    lender->loans[lender->loan_count++] = loan;
    lender->bytes += loan->mapped;
    loans->bytes += loan->mapped;
    return MS_OK;
}

ms_status te_lender_share(te_engine *engine, te_lender *lender, int descriptor, uint64_t length,
                          uint32_t *id, char error[TE_ERROR_BYTES]) {
    te_loans *loans = engine->shm->loans;
    struct stat file;
    const char *why = objection(descriptor, length, &file);
    if (why != NULL) {
        te_error(error, "shared memory refused: %s", why);
        return MS_REFUSED;
    }
    if (length > LENDER_BYTES_MAX) {
        te_error(error, "shared memory refused: larger than 1 TiB");
        return MS_LIMIT;
    }
    pthread_mutex_lock(&loans->lock);
    te_loan *again = find_again(lender, &file, length);
    if (again != NULL)
        *id = again->id;
    pthread_mutex_unlock(&loans->lock);
    if (again != NULL)
        return MS_OK;
    size_t mapped = (size_t)((length + MS_PAGE_SIZE - 1) / MS_PAGE_SIZE * MS_PAGE_SIZE);
    void *bytes = mmap(NULL, mapped, PROT_READ, MAP_SHARED, descriptor, 0);
    te_loan *loan = calloc(1, sizeof *loan);
    if (bytes == MAP_FAILED || loan == NULL) {
        if (bytes != MAP_FAILED)
            munmap(bytes, mapped);
        free(loan);
        te_error(error, "no memory to map shared memory");
        return MS_NO_MEMORY;
    }
    /* One holder until withdrawn, and this call, so that an UNSHARE cannot take it away below. */
    *loan = (te_loan){.bytes = bytes,
                      .length = length,
                      .mapped = mapped,
                      .device = file.st_dev,
                      .inode = file.st_ino,
                      .holders = 2};
    pthread_mutex_lock(&loans->lock);
    ms_status status = admit(loans, lender, loan);
    pthread_mutex_unlock(&loans->lock);
    if (status != MS_OK) {
        te_error(error, "shared memory refused: at most %u pieces and 1 TiB", LOANS_PER_LENDER_MAX);
        unmap(loan);
        return status;
    }
    *id = loan->id;
    populate_later(engine, lender, loan, &file);
    loan_let_go(engine, lender, loan);
    return MS_OK;
}

ms_status te_lender_unshare(te_engine *engine, te_lender *lender, uint32_t id) {
    te_loans *loans = engine->shm->loans;
    pthread_mutex_lock(&loans->lock);
    te_loan *loan = find(lender, id);
    bool known = loan != NULL && !loan->is_withdrawn;
    bool last = known && withdraw(loans, lender, loan);
    pthread_mutex_unlock(&loans->lock);
    if (last)
        unmap_later(engine, loan);
    return known ? MS_OK : MS_NOT_REGISTERED;
}

ms_status te_loan_begin(te_engine *engine, te_lender *lender, uint32_t source, uint64_t offset,
                        uint64_t length, const void **bytes) {
    te_loans *loans = engine->shm->loans;
    ms_status status = MS_OK;
    pthread_mutex_lock(&loans->lock);
    te_loan *loan = source == 0 ? NULL : find(lender, source - 1);
    if (loan == NULL || loan->is_withdrawn) {
        status = MS_NOT_REGISTERED;
    } else if (offset > loan->length || length > loan->length - offset) {
        status = MS_OUT_OF_RANGE;
    } else {
        loan->holders++;
        *bytes = loan->bytes + offset;
    }
    pthread_mutex_unlock(&loans->lock);
    return status;
}

void te_loan_end(te_engine *engine, te_lender *lender, uint32_t source) {
    te_loans *loans = engine->shm->loans;
    pthread_mutex_lock(&loans->lock);
    te_loan *loan = find(lender, source - 1);
    bool last = let_go(loans, lender, loan);
    pthread_mutex_unlock(&loans->lock);
    if (last)
        unmap_later(engine, loan);
}

/* ---- ATTACH ---------------------------------------------------------------------------------------------- */

/* The same file, opened for reading only, whatever its name has become meanwhile. */
static int reopen_read_only(int descriptor, const char *path) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int opened = descriptor < 0 ? -1 : open(link, O_RDONLY | O_CLOEXEC);
    if (opened >= 0 || path == NULL)
        return opened;
    opened = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat by_path, held;
    if (opened >= 0 && descriptor >= 0 &&
        (fstat(opened, &by_path) != 0 || fstat(descriptor, &held) != 0 ||
         by_path.st_ino != held.st_ino || by_path.st_dev != held.st_dev)) {
        close(opened);
        return -1;
    }
    return opened;
}

/* A registered region may be a part of its file: its first page in it. */
static bool find_page(const te_segment_config *segment, int payload, uint32_t *page_first,
                      uint64_t *page_count) {
    uint64_t file_offset = segment->payload_offset, within = file_offset % MS_PAGE_SIZE;
    uint64_t first = file_offset / MS_PAGE_SIZE;
    struct stat file;
    if (fstat(payload, &file) != 0 || first > UINT32_MAX)
        return false;
    *page_first = (uint32_t)first;
    *page_count = (within + segment->length + MS_PAGE_SIZE - 1) / MS_PAGE_SIZE;
    return (first + *page_count) * MS_PAGE_SIZE <= (uint64_t)file.st_size;
}

ms_status te_attach_answer(const te_segment_config *segment, ms_attached *answer,
                           int descriptors[2], size_t *descriptor_count) {
    *descriptor_count = 0;
    *answer = (ms_attached){.incarnation = segment->incarnation};
    if (segment->payload_descriptor < 0 && segment->payload_path == NULL)
        return MS_UNAVAILABLE;
    int payload = reopen_read_only(segment->payload_descriptor, segment->payload_path);
    int words = -1;
    bool has_words = segment->words_descriptor >= 0 || segment->words_path != NULL;
    if (has_words)
        words = reopen_read_only(segment->words_descriptor, segment->words_path);
    if (payload < 0 || (has_words && words < 0) ||
        !find_page(segment, payload, &answer->page_first, &answer->page_count)) {
        if (payload >= 0)
            close(payload);
        if (words >= 0)
            close(words);
        return MS_IO_ERROR;
    }
    descriptors[(*descriptor_count)++] = payload;
    if (words >= 0)
        descriptors[(*descriptor_count)++] = words;
    return MS_OK;
}

/* ---- frames ---------------------------------------------------------------------------------------------- */

/* The kernel says which process it is.  One of another pid namespace has no pid here: then its connections are
 * known by the session that they name, or each is a lender of its own. */
static void link_opened(te_engine *engine, te_link *link) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (!link->is_unix || link->is_dialled || link->lender != NULL ||
        getsockopt(link->descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return;
    uint64_t hidden = link->hello.session != 0 ? link->hello.session : link->peer;
    link->lender = te_lender_connect(engine->shm->loans, peer.uid, (uint32_t)peer.pid, hidden);
}

static void link_closed(te_engine *engine, te_link *link) {
    te_lender_disconnect(engine, link->lender);
    link->lender = NULL;
}

static ms_status source_acquire(te_engine *engine, te_link *link, uint32_t source, uint64_t offset,
                                uint64_t length, const void **address) {
    if (link->lender == NULL)
        return MS_NOT_REGISTERED;
    return te_loan_begin(engine, link->lender, source, offset, length, address);
}

static void source_release(te_engine *engine, te_link *link, uint32_t source) {
    te_loan_end(engine, link->lender, source);
}

static void answer_share(te_engine *engine, te_link *link, const te_request *request) {
    char error[TE_ERROR_BYTES] = "SHARE needs a descriptor and a Unix socket";
    uint64_t length;
    if (request->header->body_length != sizeof length || request->header->payload_length != 0) {
        te_link_refuse(link, request->header, MS_BAD_FRAME, "SHARE has a body of 8 bytes");
        return;
    }
    memcpy(&length, request->body, sizeof length);
    uint32_t answer[2] = {0, 0};
    ms_status status = MS_BAD_REQUEST;
    if (link->lender != NULL && request->descriptor >= 0)
        status =
            te_lender_share(engine, link->lender, request->descriptor, length, &answer[0], error);
    if (status != MS_OK) {
        te_link_refuse(link, request->header, status, "%s", error);
        return;
    }
    struct iovec body = {answer, sizeof answer};
    te_link_answer(link, request->header, MS_OK, &body, 1, NULL, 0, NULL, 0);
}

static void answer_unshare(te_engine *engine, te_link *link, const te_request *request) {
    uint32_t body[2];
    if (request->header->body_length != sizeof body || request->header->payload_length != 0) {
        te_link_refuse(link, request->header, MS_BAD_FRAME, "UNSHARE has a body of 8 bytes");
        return;
    }
    memcpy(body, request->body, sizeof body);
    ms_status status =
        link->lender == NULL ? MS_NOT_REGISTERED : te_lender_unshare(engine, link->lender, body[0]);
    if (status == MS_OK)
        te_link_answer(link, request->header, MS_OK, NULL, 0, NULL, 0, NULL, 0);
    else
        te_link_refuse(link, request->header, status, "no shared memory has that id");
}

static void answer_attach(te_engine *engine, te_link *link, const te_request *request) {
    uint32_t body[2];
    if (request->header->body_length != sizeof body || request->header->payload_length != 0) {
        te_link_refuse(link, request->header, MS_BAD_FRAME, "ATTACH has a body of 8 bytes");
        return;
    }
    if (!link->is_unix) {
        te_link_refuse(link, request->header, MS_UNAVAILABLE, "ATTACH needs a Unix socket");
        return;
    }
    memcpy(body, request->body, sizeof body);
    te_segment *segment = te_segment_get(engine, body[0]);
    if (segment == NULL) {
        te_link_refuse(link, request->header, MS_NOT_REGISTERED, "no segment has the number %u",
                       body[0]);
        return;
    }
    ms_attached answer;
    int descriptors[2];
    size_t count;
    ms_status status = te_attach_answer(&segment->config, &answer, descriptors, &count);
    te_segment_put(segment);
    if (status != MS_OK) {
        te_link_refuse(link, request->header, status,
                       status == MS_UNAVAILABLE ? "that segment is not shared memory"
                                                : "cannot open the segment's file");
        return;
    }
    struct iovec parts = {&answer, sizeof answer};
    te_link_answer(link, request->header, MS_OK, &parts, 1, NULL, 0, descriptors, count);
    for (size_t i = 0; i < count; i++)
        close(descriptors[i]);
}

void te_loans_install(te_engine *engine) {
    engine->methods[MS_ATTACH] = answer_attach;
    engine->methods[MS_SHARE] = answer_share;
    engine->methods[MS_UNSHARE] = answer_unshare;
    engine->source_acquire = source_acquire;
    engine->source_release = source_release;
    engine->link_opened = link_opened;
    engine->link_closed = link_closed;
}

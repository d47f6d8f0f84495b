/* Views: processes on this host that read an object in place, for as long as they like.
 *
 * Opening one compares the word, enters the view in a table and takes the use count, in one step *(view_atomic)*.
 * It ends by a message or with its process, never by a deadline.  A view of which nobody learns would stay as long as
 * the process, so one whose answer cannot be given is taken back *(open_answered)*.
 * The table is a file, so that use counts outlive this process *(views_persist)*: a start takes those up whose
 * process is the same one still.  A table that is damaged would let pages under a view be granted again, so then
 * nothing is kept, and the viewers' memory is theirs alone.  Freed pages under a view are lost to the pool, hence
 * the quota.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ms_crc32c.h"
#include "st_internal.h"
#include "st_step.h"

#define NO_SLOT UINT32_MAX
#define VIEWS_MAGIC 0x32565453u /* "STV2" */
#define VIEWS_HEAD_BYTES 32u

typedef struct views_head {
    uint32_t magic;
    uint32_t slot_count;
    uint64_t pid_namespace; /* in another one the pids mean other processes */
    uint64_t zero[2];
} views_head;
_Static_assert(sizeof(views_head) == VIEWS_HEAD_BYTES, "on disk");

/* As persisted; pid 0 = free. */
#define START_TIME_MASK ((UINT64_C(1) << 48) - 1)

typedef struct view_slot {
    uint64_t version;
    /* Of the process, clock ticks since boot: tells it from a later one of that pid. */
    uint64_t start_time : 48, tag : 16;
    uint32_t pid;
    uint16_t segment;
    uint16_t check; /* of the rest */
    uint32_t page, page_count;
} view_slot;
_Static_assert(sizeof(view_slot) == 32, "on disk");

typedef struct view_links {
    uint32_t next_same;                /* of the same process and page; or the next free slot */
    uint32_t next_mine, previous_mine; /* of the same process */
} view_links;

typedef struct view_process {
    uint32_t pid;
    int pidfd;
    uint64_t start_time;
    uint32_t first;
} view_process;

/* Under the server's lock. */
struct st_views {
    int descriptor;
    size_t file_bytes;
    uint8_t *file; /* the head, then the slots */
    view_slot *slots;
    view_links *links;
    uint32_t slot_count, free_first;
    uint32_t open_count;
    uint64_t open_pages;
    st_table by_page;   /* process and page -> first slot */
    st_table processes; /* pid -> view_process * */
};

static uint64_t page_key(uint32_t pid, uint32_t page) { return (uint64_t)pid << 32 | page; }

static uint16_t check_of(const view_slot *slot) {
    view_slot copy = *slot;
    copy.check = 0;
    uint32_t checksum = ms_crc32c(0, &copy, sizeof copy);
    return (uint16_t)(checksum ^ checksum >> 16);
}

void st_views_close(st_server *server, bool keep_files) {
    st_views *views = server->views;
    if (views == NULL)
        return;
    for (size_t at = 0; at < views->processes.capacity; at++) {
        if (views->processes.slots[at].key == UINT64_MAX)
            continue;
        view_process *process = (void *)(uintptr_t)views->processes.slots[at].value;
        close(process->pidfd);
        free(process);
    }
    st_table_clear(&views->processes);
    st_table_clear(&views->by_page);
    if (views->file != NULL)
        munmap(views->file, views->file_bytes);
    if (views->descriptor >= 0)
        close(views->descriptor);
    char path[ST_PATH_BYTES];
    if (!keep_files && st_path(path, server->config.segment_dir, "views"))
        unlink(path);
    free(views->links);
    free(views);
    server->views = NULL;
}

/* Field 22 of /proc/PID/stat; 0 when it cannot be read. */
static uint64_t start_time_of(uint32_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    char *at = strrchr(text, ')'); /* the command may contain anything before */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at != NULL ? strtoull(at + 1, NULL, 10) & START_TIME_MASK : 0;
}

/* Lock held.  The entry of a process, made and watched when it is its first view. */
static ms_status process_of(st_server *server, uint32_t pid, view_process **out) {
    st_views *views = server->views;
    st_table_slot *slot = st_table_find(&views->processes, pid);
    if (slot != NULL) {
        *out = (void *)(uintptr_t)slot->value;
        /* One that is gone, whose number is taken already: its views end as soon as the control thread hears of it, and
         * must not take those of the other process with them. */
        bool is_gone =
            syscall(SYS_pidfd_send_signal, (*out)->pidfd, 0, NULL, 0) != 0 && errno == ESRCH;
        return is_gone ? MS_UNAVAILABLE : MS_OK;
    }
    /* Its connection is open, so the process is alive and the pid its own; in another pid namespace the number
     * means nothing here, and a view could never be known to have ended. */
    errno = 0;
    int pidfd = pid != 0 ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;
    if (pidfd < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? MS_LIMIT : MS_UNAVAILABLE;
    view_process *process = malloc(sizeof *process);
    if (process == NULL || !st_table_set(&views->processes, pid, (uintptr_t)process)) {
        free(process);
        close(pidfd);
        return MS_NO_MEMORY;
    }
    *process = (view_process){
        .pid = pid, .pidfd = pidfd, .start_time = start_time_of(pid), .first = NO_SLOT};
    st_control_watch(server, pidfd, pid);
    *out = process;
    return MS_OK;
}

/* Lock held.  Puts a slot into the lists of its process and page.  False: no memory. */
static bool enter(st_views *views, view_process *process, uint32_t slot) {
    const view_slot *entry = &views->slots[slot];
    uint64_t key = page_key(process->pid, entry->page);
    st_table_slot *first = st_table_find(&views->by_page, key);
    uint32_t next_same = first != NULL ? (uint32_t)first->value : NO_SLOT;
    if (!st_table_set(&views->by_page, key, slot))
        return false;
    views->links[slot] =
        (view_links){.next_same = next_same, .next_mine = process->first, .previous_mine = NO_SLOT};
    if (process->first != NO_SLOT)
        views->links[process->first].previous_mine = slot;
    process->first = slot;
    views->open_count++;
    views->open_pages += entry->page_count;
    return true;
}

/* Lock held. */
static ms_status open_one(st_server *server, view_process *process, const ms_view_item *item) {
    st_views *views = server->views;
    st_segment *segment = st_segment_of(server, item->segment);
    st_extent extent;
    if (segment == NULL)
        return MS_NOT_REGISTERED;
    if (!st_pages_are_ready(segment, item->page, 1))
        return MS_OUT_OF_RANGE;
    if (st_word(segment, item->page) != ms_word(item->version, 1) ||
        !st_inventory_find(segment->inventory, item->page, &extent))
        return MS_GONE;
    if (views->free_first == NO_SLOT ||
        (views->open_pages + extent.page_count) * MS_PAGE_SIZE > server->config.view_bytes_max)
        return MS_LIMIT;
    uint32_t before = atomic_fetch_add(&segment->uses[item->page], ST_USE_READER);
    if ((before & ST_USE_READERS) >= ST_USE_READERS_MAX) {
        atomic_fetch_sub(&segment->uses[item->page], ST_USE_READER);
        return MS_LIMIT;
    }
    uint32_t slot = views->free_first, next_free = views->links[slot].next_same;
    view_slot *entry = &views->slots[slot];
    view_slot filled = {.version = item->version,
                        .start_time = process->start_time & START_TIME_MASK,
                        .tag = item->tag,
                        .pid = process->pid,
                        .segment = item->segment,
                        .page = item->page,
                        .page_count = extent.page_count};
    filled.check = check_of(&filled);
    uint32_t pid = filled.pid;
    filled.pid = 0;
    *entry = filled;
    if (!enter(views, process, slot)) {
        atomic_fetch_sub(&segment->uses[item->page], ST_USE_READER);
        return MS_NO_MEMORY;
    }
    views->free_first = next_free;
    ST_STEP("view: before it counts");
    atomic_signal_fence(memory_order_release); /* the pid makes the slot count */
    *(volatile uint32_t *)&entry->pid = pid;
    return MS_OK;
}

/* ---- start ---------------------------------------------------------------------------------------------- */

static uint64_t pid_namespace(void) {
    struct stat state;
    return stat("/proc/self/ns/pid", &state) == 0 ? (uint64_t)state.st_ino : 0;
}

/* The table that an earlier process left, if there is one that can be believed. */
static bool find_table(st_views *views, const char *path) {
    views->descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat state;
    views_head head;
    if (views->descriptor < 0 || fstat(views->descriptor, &state) != 0 || !S_ISREG(state.st_mode) ||
        pread(views->descriptor, &head, sizeof head, 0) != sizeof head ||
        head.magic != VIEWS_MAGIC || head.slot_count == 0 || head.slot_count > ST_VIEWS_MAX ||
        head.pid_namespace != pid_namespace() ||
        (uint64_t)state.st_size < VIEWS_HEAD_BYTES + head.slot_count * sizeof(view_slot))
        return false;
    if (head.slot_count > views->slot_count)
        views->slot_count = head.slot_count; /* a smaller table could lose some */
    return true;
}

static ms_status map_table(st_views *views) {
    views->file_bytes = VIEWS_HEAD_BYTES + (size_t)views->slot_count * sizeof(view_slot);
    ms_status status = st_file_allocate(views->descriptor, 0, views->file_bytes);
    if (status != MS_OK)
        return status;
    void *file =
        mmap(NULL, views->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, views->descriptor, 0);
    views->links = malloc((size_t)views->slot_count * sizeof *views->links);
    if (file == MAP_FAILED || views->links == NULL)
        return MS_NO_MEMORY;
    views->file = file;
    views->slots = (view_slot *)(void *)(views->file + VIEWS_HEAD_BYTES);
    views_head head = {
        .magic = VIEWS_MAGIC, .slot_count = views->slot_count, .pid_namespace = pid_namespace()};
    memcpy(views->file, &head, sizeof head);
    return MS_OK;
}

/* Counts the use of a view that an earlier process has entered; its process is alive. */
static ms_status take_up_one(st_server *server, view_process *process, uint32_t slot) {
    const view_slot *entry = &server->views->slots[slot];
    st_segment *segment = &server->segments[entry->segment];
    if ((atomic_load(&segment->uses[entry->page]) & ST_USE_READERS) >= ST_USE_READERS_MAX)
        return MS_LIMIT;
    /* Freed, or dropped at this start: in use without a live word *(busy_inventory)*. */
    if (st_word(segment, entry->page) != ms_word(entry->version, 1)) {
        ms_free_item item = {.version = entry->version,
                             .segment = entry->segment,
                             .page = entry->page,
                             .page_count = entry->page_count};
        if (!st_pending_add(server, &item))
            return MS_NO_MEMORY;
    }
    if (!enter(server->views, process, slot))
        return MS_NO_MEMORY;
    atomic_fetch_add(&segment->uses[entry->page], ST_USE_READER);
    return MS_OK;
}

/* BAD_CHECKSUM: an entry is damaged, so none can be relied on. */
static ms_status take_up(st_server *server, uint32_t *kept, uint32_t *ended) {
    st_views *views = server->views;
    for (uint32_t at = views->slot_count; at-- != 0;) {
        view_slot *entry = &views->slots[at];
        if (entry->pid == 0) {
            views->links[at].next_same = views->free_first;
            views->free_first = at;
            continue;
        }
        const st_segment *segment = st_segment_of(server, entry->segment);
        if (entry->check != check_of(entry) || segment == NULL || entry->version == 0 ||
            !st_pages_are_ready(segment, entry->page, entry->page_count))
            return MS_BAD_CHECKSUM;
        view_process *process = NULL;
        ms_status status = process_of(server, entry->pid, &process);
        bool is_dead = status == MS_UNAVAILABLE ||
                       (status == MS_OK && process->start_time != entry->start_time);
        /* A word that is newer: the page was granted again, which only follows the view's end. */
        if (is_dead || st_word(segment, entry->page) >> 1 > entry->version) {
            entry->pid = 0;
            views->links[at].next_same = views->free_first;
            views->free_first = at;
            (*ended)++;
            continue;
        }
        if (status == MS_OK)
            status = take_up_one(server, process, at);
        if (status != MS_OK)
            return status;
        (*kept)++;
    }
    return MS_OK;
}

ms_status st_views_open(st_server *server, bool is_kept, char *error) {
    st_views *views = calloc(1, sizeof *views);
    server->views = views;
    char path[ST_PATH_BYTES];
    if (views == NULL || !st_path(path, server->config.segment_dir, "views")) {
        st_error_set(error, "no memory for the table of views");
        return MS_NO_MEMORY;
    }
    views->descriptor = -1;
    views->slot_count = server->config.views_max;
    views->free_first = NO_SLOT;
    if (is_kept && !find_table(views, path))
        return MS_BAD_CHECKSUM;
    if (!is_kept)
        views->descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    ms_status status = views->descriptor >= 0 ? map_table(views) : MS_IO_ERROR;
    if (status != MS_OK) {
        st_error_set(error, "cannot make %s: %s", path, strerror(errno));
        return status;
    }
    uint32_t kept = 0, ended = 0;
    pthread_mutex_lock(&server->lock);
    status = take_up(server, &kept, &ended);
    pthread_mutex_unlock(&server->lock);
    if (status != MS_OK)
        st_error_set(error, "the views in %s cannot be taken up: %s", path, ms_status_name(status));
    else if (kept + ended != 0)
        st_log(server, 0, "views_found kept=%u ended=%u", kept, ended);
    return status;
}

/* ---- end of a view --------------------------------------------------------------------------------------- */

/* Lock held.  The slot is free again; the caller gives the use back once the lock is released. */
static void close_slot(st_views *views, view_process *process, uint32_t slot) {
    view_slot *entry = &views->slots[slot];
    view_links *links = &views->links[slot];
    uint64_t key = page_key(process->pid, entry->page);
    st_table_slot *first = st_table_find(&views->by_page, key);
    if ((uint32_t)first->value != slot) {
        uint32_t before = (uint32_t)first->value;
        while (views->links[before].next_same != slot)
            before = views->links[before].next_same;
        views->links[before].next_same = links->next_same;
    } else if (links->next_same != NO_SLOT) {
        first->value = links->next_same;
    } else {
        st_table_remove(&views->by_page, key);
    }
    if (links->previous_mine != NO_SLOT)
        views->links[links->previous_mine].next_mine = links->next_mine;
    else
        process->first = links->next_mine;
    if (links->next_mine != NO_SLOT)
        views->links[links->next_mine].previous_mine = links->previous_mine;
    views->open_count--;
    views->open_pages -= entry->page_count;
    entry->pid = 0;
    links->next_same = views->free_first;
    views->free_first = slot;
}

static ms_status close_one(st_views *views, view_process *process, const ms_view_item *item) {
    st_table_slot *first = st_table_find(&views->by_page, page_key(process->pid, item->page));
    for (uint32_t slot = first != NULL ? (uint32_t)first->value : NO_SLOT; slot != NO_SLOT;
         slot = views->links[slot].next_same) {
        const view_slot *entry = &views->slots[slot];
        if (entry->version == item->version && entry->segment == item->segment &&
            entry->tag == item->tag) {
            close_slot(views, process, slot);
            return MS_OK;
        }
    }
    return MS_NOT_FOUND;
}

/* A list of u32, as answers have it. */
typedef struct view_answer {
    uint32_t count, zero;
    uint32_t statuses[];
} view_answer;

/* OK: whoever asked has the answer. */
static ms_status give_answer(st_server *server, const te_request *request,
                             const view_answer *answer) {
    struct iovec body = {(void *)(uintptr_t)answer,
                         sizeof *answer + answer->count * sizeof *answer->statuses};
    return te_answer_at_once(server->engine, request->peer, request->header, MS_OK, &body);
}

/* The items of a frame and their answer, to be filled; NULL: answered already. */
static view_answer *begin(st_server *server, st_peer *peer, const te_request *request,
                          ms_array *items) {
    if (request->header->kind != MS_REQUEST)
        return NULL; /* nobody would know of the view, or that it has ended */
    if (!ms_read_array(request->body, request->header->body_length, sizeof(ms_view_item), items)) {
        st_answer(server, request, MS_BAD_FRAME, "malformed list of views");
        return NULL;
    }
    if (items->count > MS_VIEWS_MAX) {
        st_answer(server, request, MS_BAD_REQUEST, "too many views in one frame");
        return NULL;
    }
    if (!peer->is_unix) {
        st_answer(server, request, MS_REFUSED,
                  "views are for processes on this host, over its Unix socket");
        return NULL;
    }
    view_answer *answer = calloc(1, sizeof *answer + items->count * sizeof *answer->statuses);
    if (answer == NULL)
        st_answer(server, request, MS_NO_MEMORY, "");
    else
        answer->count = items->count;
    return answer;
}

/* Ends those of `items` whose status is OK, and says of each what became of it. */
static void close_all(st_server *server, uint32_t pid, ms_array items, uint32_t *statuses) {
    pthread_mutex_lock(&server->lock);
    st_table_slot *found = st_table_find(&server->views->processes, pid);
    view_process *process = found != NULL ? (void *)(uintptr_t)found->value : NULL;
    for (uint32_t at = 0; at < items.count; at++) {
        ms_view_item item;
        MS_ARRAY_GET(items, at, &item);
        if (statuses[at] == MS_OK)
            statuses[at] =
                process != NULL ? close_one(server->views, process, &item) : MS_NOT_FOUND;
    }
    pthread_mutex_unlock(&server->lock);
    for (uint32_t at = 0; at < items.count; at++) {
        ms_view_item item;
        MS_ARRAY_GET(items, at, &item);
        if (statuses[at] == MS_OK)
            st_drop_reader(&server->segments[item.segment], item.page);
    }
}

void st_handle_view_open(st_server *server, st_peer *peer, const te_request *request) {
    ms_array items;
    view_answer *answer = begin(server, peer, request, &items);
    if (answer == NULL)
        return;
    /* Who has given up ends the connection.  One that goes after this look does not get the answer. */
    if (!te_peer_is_there(server->engine, request->peer)) {
        st_count_add(server, ST_COUNT_VIEWS_REFUSED, items.count);
        st_answer(server, request, MS_CANCELLED, "");
        free(answer);
        return;
    }
    ST_STEP("view: asked for");
    uint32_t opened = 0, *statuses = answer->statuses;
    pthread_mutex_lock(&server->lock);
    view_process *process = NULL;
    ms_status status = process_of(server, peer->pid, &process);
    for (uint32_t at = 0; at < items.count; at++) {
        ms_view_item item;
        MS_ARRAY_GET(items, at, &item);
        statuses[at] = status == MS_OK ? open_one(server, process, &item) : status;
        opened += statuses[at] == MS_OK;
    }
    pthread_mutex_unlock(&server->lock);
    ST_STEP("view: before the answer");
    if (give_answer(server, request, answer) != MS_OK) {
        close_all(server, peer->pid, items, statuses);
        opened = 0;
    }
    st_count_add(server, ST_COUNT_VIEWS_OPENED, opened);
    st_count_add(server, ST_COUNT_VIEWS_REFUSED, items.count - opened);
    free(answer);
}

void st_handle_view_close(st_server *server, st_peer *peer, const te_request *request) {
    ms_array items;
    view_answer *answer = begin(server, peer, request, &items);
    if (answer == NULL)
        return;
    close_all(server, peer->pid, items, answer->statuses);
    (void)give_answer(server, request, answer); /* else it is asked again */
    free(answer);
}

void st_view_process_died(st_server *server, uint32_t pid) {
    st_views *views = server->views;
    uint32_t closed = 0;
    for (bool is_more = true; is_more;) {
        /* In steps: the lock is for microseconds, a process may have many views. */
        struct {
            uint32_t segment, page;
        } ended[256];
        uint32_t count = 0;
        pthread_mutex_lock(&server->lock);
        st_table_slot *found = st_table_find(&views->processes, pid);
        view_process *process = found != NULL ? (void *)(uintptr_t)found->value : NULL;
        while (process != NULL && process->first != NO_SLOT && count < 256) {
            ended[count].segment = views->slots[process->first].segment;
            ended[count++].page = views->slots[process->first].page;
            close_slot(views, process, process->first);
        }
        is_more = process != NULL && process->first != NO_SLOT;
        if (process != NULL && !is_more) {
            close(process->pidfd);
            free(process);
            st_table_remove(&views->processes, pid);
        }
        pthread_mutex_unlock(&server->lock);
        for (uint32_t at = 0; at < count; at++)
            st_drop_reader(&server->segments[ended[at].segment], ended[at].page);
        closed += count;
    }
    if (closed != 0)
        st_log(server, 0, "views_closed pid=%u count=%u reason=\"the process has ended\"", pid,
               closed);
}

bool st_views_are_open(const st_server *server) { return server->views->open_count != 0; }

void st_views_count(st_server *server, uint64_t *views, uint64_t *bytes) {
    pthread_mutex_lock(&server->lock);
    *views = server->views->open_count;
    *bytes = server->views->open_pages * MS_PAGE_SIZE;
    pthread_mutex_unlock(&server->lock);
}

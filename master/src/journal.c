/* What waits for Python: log lines, tombstones and drains.  An eventfd says that something is there. */
#include "service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

ms_status ma_journal_open(ma_journal *journal) {
    pthread_mutex_init(&journal->lock, NULL);
    journal->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return journal->descriptor < 0 ? MS_IO_ERROR : MS_OK;
}

void ma_journal_close(ma_journal *journal) {
    if (journal->descriptor > 0)
        close(journal->descriptor);
    free(journal->tombstones);
    free(journal->results);
    pthread_mutex_destroy(&journal->lock);
}

int ma_event_descriptor(ma_master *master) { return master->journal.descriptor; }

static void wake(ma_journal *journal) {
    uint64_t one = 1;
    ssize_t written = write(journal->descriptor, &one, sizeof one);
    (void)written; /* EAGAIN: it is readable already */
}

static void append_line(ma_journal *journal, int64_t wall_ms, int level, const char *format,
                        va_list arguments) {
    if (journal->count ==
        MA_LOG_LINES) { /* nobody reads: the newest lines say more than the oldest */
        journal->first = (journal->first + 1) % MA_LOG_LINES;
        journal->count--;
    }
    ma_log_line *line = &journal->lines[(journal->first + journal->count++) % MA_LOG_LINES];
    line->wall_ms = wall_ms;
    line->level = level;
    vsnprintf(line->text, sizeof line->text, format, arguments);
}

static void append_format(ma_journal *journal, int64_t wall_ms, int level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void append_format(ma_journal *journal, int64_t wall_ms, int level, const char *format,
                          ...) {
    va_list arguments;
    va_start(arguments, format);
    append_line(journal, wall_ms, level, format, arguments);
    va_end(arguments);
}

static const char *const kind_names[MA_LOG_KINDS] = {"start", "frame",     "server",  "session",
                                                     "space", "tombstone", "warming", "task"};

void ma_log(ma_master *master, ma_log_kind kind, int level, const char *format, ...) {
    if (level < master->config.log_level)
        return;
    ma_journal *journal = &master->journal;
    int64_t wall_ms = master->now.wall_ms, second = wall_ms / 1000;
    pthread_mutex_lock(&journal->lock);
    if (journal->rates[kind].second != second) {
        if (journal->rates[kind].suppressed != 0)
            append_format(journal, wall_ms, MA_WARNING, "lines_suppressed kind=%s count=%u",
                          kind_names[kind], (unsigned)journal->rates[kind].suppressed);
        journal->rates[kind].second = second;
        journal->rates[kind].count = journal->rates[kind].suppressed = 0;
    }
    /* Who puts into a full pool does so thousands of times a second, and one line says it all. */
    uint32_t lines_max = kind == MA_LOG_SPACE ? 1 : MA_LOG_LINES_PER_S;
    if (journal->rates[kind].count++ < lines_max) {
        va_list arguments;
        va_start(arguments, format);
        append_line(journal, wall_ms, level, format, arguments);
        va_end(arguments);
        wake(journal);
    } else {
        journal->rates[kind].suppressed++;
    }
    pthread_mutex_unlock(&journal->lock);
}

bool ma_log_next(ma_master *master, ma_log_line *line) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    bool is_there = journal->count != 0;
    if (is_there) {
        *line = journal->lines[journal->first];
        journal->first = (journal->first + 1) % MA_LOG_LINES;
        journal->count--;
    }
    pthread_mutex_unlock(&journal->lock);
    return is_there;
}

const char *ma_printable(const void *text, size_t length, char *room, size_t size) {
    const unsigned char *bytes = text;
    size_t used = 0;
    for (size_t i = 0; i < length && used + 1 < size; i++)
        room[used++] = bytes[i] >= ' ' && bytes[i] < 0x7f && bytes[i] != '"' && bytes[i] != '\\'
                           ? (char)bytes[i]
                           : '_';
    room[used] = '\0';
    return room;
}

/* ---- drains -------------------------------------------------------------------------------------- */

bool ma_drain_queue(ma_master *master, const ma_draining *drain, uint64_t waiter) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    bool has_room = journal->drain_count < MA_DRAINS_MAX;
    if (has_room) {
        journal->drains[journal->drain_count].drain = *drain;
        journal->drains[journal->drain_count].waiter = waiter;
        journal->drains[journal->drain_count++].status = MS_PENDING;
        wake(journal);
    }
    pthread_mutex_unlock(&journal->lock);
    return has_room;
}

bool ma_drain_is_waiting(ma_master *master) {
    pthread_mutex_lock(&master->journal.lock);
    bool is_there = master->journal.drain_asked < master->journal.drain_count;
    pthread_mutex_unlock(&master->journal.lock);
    return is_there;
}

bool ma_drain_next(ma_master *master, ma_draining *drain) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    bool is_there = journal->drain_asked < journal->drain_count;
    if (is_there)
        *drain = journal->drains[journal->drain_asked++].drain;
    pthread_mutex_unlock(&journal->lock);
    return is_there;
}

void ma_drain_done(ma_master *master, const ma_draining *drain, ms_status status) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    for (uint32_t i = 0; i < journal->drain_asked; i++)
        if (journal->drains[i].status == MS_PENDING &&
            memcmp(&journal->drains[i].drain, drain, sizeof *drain) == 0) {
            journal->drains[i].status = status;
            break;
        }
    pthread_mutex_unlock(&journal->lock);
}

bool ma_drain_result(ma_master *master, ma_draining *drain, uint64_t *waiter, ms_status *status) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    bool is_there = journal->drain_asked > 0 && journal->drains[0].status != MS_PENDING;
    if (is_there) {
        *drain = journal->drains[0].drain;
        *waiter = journal->drains[0].waiter;
        *status = journal->drains[0].status;
        journal->drain_asked--;
        memmove(journal->drains, journal->drains + 1,
                --journal->drain_count * sizeof journal->drains[0]);
    }
    pthread_mutex_unlock(&journal->lock);
    return is_there;
}

/* ---- tombstones ----------------------------------------------------------------------------------- */

void ma_journal_wake(ma_master *master) { wake(&master->journal); }

ms_status ma_tombstone_queue(ma_master *master, ms_hash hash, uint64_t version) {
    ma_journal *journal = &master->journal;
    ms_status status = MS_OK;
    pthread_mutex_lock(&journal->lock);
    if (journal->tombstones == NULL)
        journal->tombstones = calloc(MA_TOMBSTONES_MAX, sizeof *journal->tombstones);
    if (journal->tombstones == NULL) {
        status = MS_NO_MEMORY;
    } else if (journal->tombstone_count == MA_TOMBSTONES_MAX) {
        status = MS_LIMIT;
    } else {
        uint32_t at = (journal->tombstone_first + journal->tombstone_count++) % MA_TOMBSTONES_MAX;
        journal->tombstones[at] = (ma_tombstone){hash.low, hash.high, version};
        wake(journal);
    }
    pthread_mutex_unlock(&journal->lock);
    return status;
}

ms_status ma_tombstone_add(ma_master *master, const ma_tombstone *tombstone) {
    pthread_mutex_lock(&master->lock);
    ms_status status = md_tombstone_add(
        master->core, (ms_hash){tombstone->hash_low, tombstone->hash_high}, tombstone->version);
    master->stones_seen += status == MS_OK;
    pthread_mutex_unlock(&master->lock);
    return status;
}

bool ma_tombstone_is_waiting(ma_master *master) {
    pthread_mutex_lock(&master->journal.lock);
    bool is_there = master->journal.tombstone_count != 0;
    pthread_mutex_unlock(&master->journal.lock);
    return is_there;
}

bool ma_tombstone_next(ma_master *master, ma_tombstone *tombstone) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    /* One is handed out only while there is room for its result. */
    bool is_there = journal->tombstone_count != 0;
    if (is_there && journal->results == NULL)
        journal->results = calloc(MA_TOMBSTONES_MAX, sizeof *journal->results);
    is_there = is_there && journal->results != NULL && journal->result_count < MA_TOMBSTONES_MAX;
    if (is_there) {
        *tombstone = journal->tombstones[journal->tombstone_first];
        journal->tombstone_first = (journal->tombstone_first + 1) % MA_TOMBSTONES_MAX;
        journal->tombstone_count--;
    }
    pthread_mutex_unlock(&journal->lock);
    return is_there;
}

void ma_tombstone_done(ma_master *master, const ma_tombstone *tombstone, ms_status status) {
    ma_journal *journal = &master->journal;
    pthread_mutex_lock(&journal->lock);
    if (journal->results != NULL && journal->result_count < MA_TOMBSTONES_MAX) {
        uint32_t at = (journal->result_first + journal->result_count++) % MA_TOMBSTONES_MAX;
        journal->results[at] = (ma_tombstone_result){*tombstone, status};
    }
    pthread_mutex_unlock(&journal->lock);
}

void ma_tombstones_take(ma_master *master) {
    ma_journal *journal = &master->journal;
    for (;;) {
        ma_tombstone_result result;
        pthread_mutex_lock(&journal->lock);
        bool is_there = journal->result_count != 0;
        if (is_there) {
            result = journal->results[journal->result_first];
            journal->result_first = (journal->result_first + 1) % MA_TOMBSTONES_MAX;
            journal->result_count--;
        }
        pthread_mutex_unlock(&journal->lock);
        if (!is_there)
            return;
        if (result.status == MS_OK) {
            master->counts.tombstones_written++;
            master->stones_seen++;
        } else {
            ma_log(master, MA_LOG_TOMBSTONE, MA_ERROR, "tombstone_not_written status=%s",
                   ms_status_name(result.status));
        }
        md_tombstoned(master->core, master->now,
                      (ms_hash){result.tombstone.hash_low, result.tombstone.hash_high},
                      result.tombstone.version, result.status);
    }
}

void ma_tombstones_settle(ma_master *master) {
    if (master->stones_settled == master->stones_seen || !md_tombstones_settle(master->core))
        return;
    master->stones_settled = master->stones_seen;
    wake(&master->journal);
}

uint64_t ma_tombstones_settled(ma_master *master) {
    pthread_mutex_lock(&master->lock);
    uint64_t settled = master->stones_settled;
    pthread_mutex_unlock(&master->lock);
    return settled;
}

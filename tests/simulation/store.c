/* Store servers as docs/protocol.md describes them, without disks and sockets. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static sim_server *server_of(sim *s, uint32_t server) { return &s->servers[server]; }
static uint64_t word_version(uint64_t word) { return word >> 1; }

/* What a start drops from a damaged log: the word says "not live" from then on, and views stay. */
static void damage(sim *s, uint32_t server) {
    sim_server *at = server_of(s, server);
    sim_oracle_reboot(s, server);
    for (uint32_t page = 0; page < SIM_PAGES; page++) {
        sim_record *record = &at->records[page];
        if (!record->is_there || !sim_chance(s, 250))
            continue;
        sim_trace(s, "server %u has lost the record of page %u", server, page);
        record->is_there = false;
        at->words[page] &= ~UINT64_C(1);
        s->records_damaged++;
    }
}

/* ---- life ------------------------------------------------------------------------------------------------ */
void sim_store_start(sim *s, uint32_t server, bool is_reboot) {
    sim_server *at = server_of(s, server);
    if (is_reboot) {
        if (at->memory != 0) {
            sim_oracle_reboot(s, server);
            sim_views_lost(s, server);
        }
        uint32_t incarnation = at->incarnation, memory = at->memory;
        memset(at, 0, sizeof *at);
        at->incarnation = incarnation;
        at->memory = memory + 1;
    }
    at->is_up = true;
    at->incarnation++;
    sim_trace(s, "server %u starts, incarnation %u%s", server, at->incarnation,
              is_reboot ? ", memory is new" : "");
    if (at->epoch < s->epoch)
        at->epoch = s->epoch; /* epoch_floor */
    at->ready = s->weather.pages < 16 ? s->weather.pages : 16;
    at->fenced_count = 0;
    at->connection = 0;
    memset(at->owes_freed, 0, sizeof at->owes_freed);
    for (uint32_t page = 0; page < SIM_PAGES; page++) {
        at->uses[page].copies = 0; /* views stay: their table is in the segment (views_persist) */
        sim_record *record = &at->records[page];
        if (record->is_there && at->words[page] != ms_word(record->version, 1))
            record->is_there = false; /* the words are believed, not the log */
    }
    if (!is_reboot && s->weather.damages && !s->is_healing && sim_chance(s, 250))
        damage(s, server);
    sim_store_dial(s, server);
}

void sim_store_kill(sim *s, uint32_t server) {
    sim_store_disconnect(s, server);
    sim_trace(s, "server %u is killed", server);
    server_of(s, server)->is_up = false;
    s->kills++;
}

static void dial(sim *s, sim_event *event) {
    uint32_t server = (uint32_t)event->a;
    sim_server *at = server_of(s, server);
    if (!at->is_up || at->connection != 0)
        return;
    if (s->leader.core != NULL)
        sim_leader_join(s, server);
    if (at->connection == 0)
        sim_store_dial(s, server);
}

void sim_store_dial(sim *s, uint32_t server) {
    sim_at(s, 10 + (int64_t)sim_random(s, 200), dial)->a = server;
}

void sim_store_disconnect(sim *s, uint32_t server) {
    sim_server *at = server_of(s, server);
    if (at->connection == 0)
        return;
    sim_trace(s, "server %u is cut off", server);
    at->connection = 0;
    sim_leader_gone(s, server);
    if (at->is_up)
        sim_store_dial(s, server);
}

/* ---- writers --------------------------------------------------------------------------------------------- */
static bool is_fenced(const sim_server *at, uint64_t session) {
    for (uint32_t i = 0; i < at->fenced_count; i++)
        if (at->fenced[i] == session)
            return true;
    return false;
}

bool sim_store_accepts_writer(const sim *s, uint32_t server, uint64_t session, uint32_t epoch,
                              uint32_t incarnation) {
    const sim_server *at = &s->servers[server];
    return at->is_up && at->epoch == epoch && at->incarnation == incarnation &&
           !is_fenced(at, session);
}

/* Check and use count in one step (atomic_write). */
bool sim_store_write_begin(sim *s, uint32_t server, uint64_t session, uint32_t epoch,
                           uint32_t incarnation, uint64_t version, ms_extent extent) {
    uint32_t first_page = extent.page;
    sim_server *at = server_of(s, server);
    if (!sim_store_accepts_writer(s, server, session, epoch, incarnation) ||
        version <= word_version(at->words[first_page]))
        return false;
    at->uses[first_page].version = version;
    at->uses[first_page].page_count = extent.page_count;
    at->uses[first_page].copies++;
    return true;
}

/* Bytes arrive.  Nothing checks them here: that they may is what the protocol has to see to. */
void sim_store_write_land(sim *s, uint32_t server, uint64_t version, uint32_t page,
                          uint32_t value) {
    sim_server *at = server_of(s, server);
    for (uint32_t first = 0; first < SIM_PAGES; first++) {
        const sim_record *record = &at->records[first];
        if (record->is_there && record->version != version && page >= first &&
            page < first + record->page_count && at->words[first] == ms_word(record->version, 1))
            sim_fail(s, "S2: version %lx writes server %u page %u under the live version %lx",
                     (unsigned long)version, server, page, (unsigned long)record->version);
    }
    for (uint32_t i = 0; i < SIM_VIEWS; i++) {
        const sim_view *view = &s->views[i];
        if (view->is_open && view->server == server && view->memory == at->memory &&
            view->version != version && page >= view->extent.page &&
            page < view->extent.page + view->extent.page_count)
            sim_fail(s,
                     "S2: version %lx writes server %u page %u under an open view of version %lx",
                     (unsigned long)version, server, page, (unsigned long)view->version);
    }
    if (at->owner[page] > version)
        sim_fail(s, "S2: version %lx writes server %u page %u, which was granted to version %lx",
                 (unsigned long)version, server, page, (unsigned long)at->owner[page]);
    at->payload[page] = value + 1;
    sim_trace(s, "server %u page %u: version %lx writes value %u", server, page,
              (unsigned long)version, value + 1);
}

static void freed_arrives(sim *s, sim_event *event) {
    if (s->leader.core == NULL || s->leader.epoch != event->b)
        return;
    sim_trace(s, "server %u page %u+%u: %s version %lx arrives", (uint32_t)event->a,
              event->free.page, event->free.page_count, event->d != 0 ? "FREED" : "CLEARED",
              (unsigned long)event->free.version);
    if (event->d != 0)
        md_freed(s->leader.core, sim_now(s), (uint32_t)event->a, (uint32_t)event->c, &event->free);
    else
        md_cleared(s->leader.core, sim_now(s), (uint32_t)event->a, (uint32_t)event->c,
                   &event->free);
    sim_leader_drain(s);
}

static void answer_free(sim *s, uint32_t server, const ms_free_item *item, bool is_freed) {
    sim_server *at = server_of(s, server);
    sim_send(s, &(sim_event){.run = freed_arrives,
                             .a = server,
                             .b = at->epoch,
                             .c = at->incarnation,
                             .d = is_freed,
                             .free = *item});
}

static void use_ended(sim *s, uint32_t server, uint32_t page) {
    sim_server *at = server_of(s, server);
    if (at->uses[page].copies + at->uses[page].views != 0 || !at->owes_freed[page] || !at->is_up)
        return;
    at->owes_freed[page] = false;
    ms_free_item item = {
        .version = at->owed_version[page], .page = page, .page_count = at->owed_count[page]};
    answer_free(s, server, &item, true);
}

void sim_store_use_end(sim *s, uint32_t server, uint32_t first_page, bool is_view) {
    sim_use *use = &server_of(s, server)->uses[first_page];
    uint32_t *count = is_view ? &use->views : &use->copies;
    if (*count > 0)
        (*count)--;
    use_ended(s, server, first_page);
}

ms_status sim_store_seal(sim *s, uint32_t server, uint64_t session, uint32_t epoch,
                         uint32_t incarnation, const sim_record *record, uint32_t page) {
    sim_server *at = server_of(s, server);
    if (!sim_store_accepts_writer(s, server, session, epoch, incarnation))
        return MS_FENCED;
    if (at->words[page] == ms_word(record->version, 1))
        return MS_OK; /* a repeat */
    if (record->version <= word_version(at->words[page]))
        return MS_GONE;
    if (at->uses[page].copies != 0)
        return MS_BUSY; /* record_check */
    at->words[page] = ms_word(record->version, 1);
    sim_trace(s, "server %u page %u+%u: version %lx of key %u is sealed", server, page,
              record->page_count, (unsigned long)record->version, record->key);
    at->records[page] = *record;
    at->records[page].is_there = true;
    return MS_OK;
}

/* ---- the leader's frames ----------------------------------------------------------------------------------- */
static bool accepts_frame(const sim_server *at, uint64_t epoch, uint64_t incarnation) {
    return at->is_up && epoch == at->epoch && incarnation == at->incarnation;
}

/* a server, b epoch, c incarnation */
void sim_store_free(sim *s, sim_event *message) {
    uint32_t server = (uint32_t)message->a;
    sim_server *at = server_of(s, server);
    const ms_free_item *item = &message->free;
    sim_trace(s,
              "server %u page %u+%u: FREE version %lx session %lx epoch %lu incarnation %lu, word "
              "%lx, uses %u %u, %s",
              server, item->page, item->page_count, (unsigned long)item->version,
              (unsigned long)item->session, (unsigned long)message->b, (unsigned long)message->c,
              (unsigned long)at->words[item->page], at->uses[item->page].copies,
              at->uses[item->page].views,
              accepts_frame(at, message->b, message->c) ? "taken" : "refused");
    if (!accepts_frame(at, message->b, message->c))
        return;
    if (item->session != 0 && !is_fenced(at, item->session)) {
        if (at->fenced_count == SIM_FENCED) {
            sim_fail(s, "more fenced sessions than the simulation has room for");
            return;
        }
        at->fenced[at->fenced_count++] = item->session;
        s->writes_cut++;
    }
    uint32_t page = item->page;
    if (item->version >= word_version(at->words[page])) {
        at->words[page] = ms_word(item->version, 0);
        if (at->records[page].version <= item->version)
            at->records[page].is_there = false;
    }
    if (at->uses[page].copies + at->uses[page].views == 0) {
        answer_free(s, server, item, true);
        return;
    }
    at->owes_freed[page] = true;
    at->owed_version[page] = item->version;
    at->owed_count[page] = item->page_count;
    answer_free(s, server, item, false);
}

typedef struct inventory {
    uint32_t count;
    ms_inventory_item items[SIM_PAGES * 2];
    uint32_t keys[SIM_PAGES * 2];
} inventory;

static void inventory_arrives(sim *s, sim_event *event) {
    uint32_t server = (uint32_t)event->a;
    sim_leader *leader = &s->leader;
    /* Frames of a connection that is gone do not arrive. */
    if (leader->core == NULL || leader->epoch != event->b ||
        leader->connections[server] != event->d)
        return;
    const inventory *told = event->data;
    sim_trace(s, "the inventory of server %u arrives: %u items", server, told->count);
    for (uint32_t i = 0; i < told->count; i++) {
        const char *key = s->keys[told->keys[i]];
        ms_status status =
            md_inventory(leader->core, sim_now(s), server, (uint32_t)event->c, &told->items[i],
                         (const uint8_t *)"default", (const uint8_t *)key);
        if (status != MS_OK)
            sim_fail(s, "an inventory's item is refused: %d", (int)status);
        sim_leader_drain(s);
    }
    ms_status status = md_inventory_end(leader->core, sim_now(s), server, (uint32_t)event->c);
    if (status != MS_OK)
        sim_fail(s, "an inventory's end is refused: %d", (int)status);
    sim_leader_drain(s);
}

/* a server, b epoch, d connection */
void sim_store_adopt(sim *s, sim_event *message) {
    uint32_t server = (uint32_t)message->a;
    sim_server *at = server_of(s, server);
    if (!at->is_up || at->connection != message->d || message->b < at->epoch)
        return;
    sim_trace(s, "server %u adopts epoch %lu", server, (unsigned long)message->b);
    at->epoch = (uint32_t)message->b; /* this also cuts all write connections of older epochs */
    inventory *told = calloc(1, sizeof *told);
    if (told == NULL)
        abort();
    for (uint32_t page = 0; page < SIM_PAGES; page++) {
        const sim_record *record = &at->records[page];
        bool is_live = record->is_there && at->words[page] == ms_word(record->version, 1);
        if (is_live) {
            told->keys[told->count] = record->key;
            told->items[told->count++] =
                (ms_inventory_item){.hash = s->hashes[record->key],
                                    .version = record->version,
                                    .size = record->size,
                                    .expiry_ms = record->expiry_ms,
                                    .note = record->note,
                                    .parent = record->parent,
                                    .group = record->group,
                                    .page = page,
                                    .page_count = record->page_count,
                                    .part = record->part,
                                    .part_count = record->part_count,
                                    .key_length = (uint16_t)strlen(s->keys[record->key]),
                                    .flags = record->flags,
                                    .state = 1,
                                    .tenant_length = 7};
        }
        if (at->uses[page].copies + at->uses[page].views != 0 &&
            at->words[page] != ms_word(at->uses[page].version, 1)) { /* busy_inventory */
            told->items[told->count++] =
                (ms_inventory_item){.version = at->uses[page].version,
                                    .page = page,
                                    .page_count = at->uses[page].page_count,
                                    .state = 2};
        }
    }
    sim_event *answer = sim_at(s, sim_delay(s), inventory_arrives);
    answer->a = server;
    answer->b = at->epoch;
    answer->c = at->incarnation;
    answer->d = message->d;
    answer->data = told;
}

static void noted(sim *s, sim_event *event) {
    if (s->leader.core == NULL || s->leader.epoch != event->b)
        return;
    md_noted(s->leader.core, sim_now(s), event->c, (uint32_t)event->a, (ms_status)event->d);
    sim_leader_drain(s);
}

/* a server, c tag */
void sim_store_note(sim *s, sim_event *message) {
    uint32_t server = (uint32_t)message->a;
    sim_server *at = server_of(s, server);
    const ms_note *note = &message->note;
    if (!accepts_frame(at, note->epoch, note->incarnation))
        return;
    ms_status status = MS_OK;
    sim_record *record = &at->records[note->page];
    if (at->words[note->page] != ms_word(note->version, 1) || !record->is_there) {
        status = MS_GONE;
    } else if (note->note > record->note) {
        record->note = note->note;
        record->expiry_ms = note->expiry_ms;
        record->flags = (uint8_t)((record->flags & MS_OBJECT_IS_COPY) | note->flags);
    }
    sim_send(
        s, &(sim_event){
               .run = noted, .a = server, .b = at->epoch, .c = message->c, .d = (uint64_t)status});
}

/* ---- copies between servers -------------------------------------------------------------------------------- */
typedef struct copy {
    uint32_t source, source_memory, target, target_incarnation, epoch;
    uint64_t source_version, version, task;
    uint32_t target_count, page_count;
    uint32_t source_pages[SIM_PAGES], target_pages[SIM_PAGES];
    ms_extent extents[SIM_PAGES];
    uint32_t source_count_of_extents;
    uint32_t source_firsts[SIM_PAGES];
    sim_record record;
    uint32_t got[SIM_PAGES];
} copy;

static void copied(sim *s, sim_event *event) {
    if (s->leader.core == NULL || s->leader.epoch != event->b)
        return;
    md_copied(s->leader.core, sim_now(s), event->c, (ms_status)event->d);
    s->copies_done += event->d == MS_OK;
    sim_leader_drain(s);
}

/* A request's answer is lost only with its connection, and that the leader is told. */
static void copy_answers(sim *s, uint32_t server, uint64_t task, uint32_t epoch, ms_status status) {
    sim_event *answer = sim_at(s, sim_delay(s), copied);
    answer->a = server;
    answer->b = epoch;
    answer->c = task;
    answer->d = (uint64_t)status;
}

static void copy_ends(sim *s, sim_event *event) {
    copy *task = event->data;
    sim_server *from = server_of(s, task->source), *to = server_of(s, task->target);
    if (!to->is_up || to->incarnation != task->target_incarnation)
        return;
    /* The source's word after the last byte. */
    ms_status status = MS_OK;
    if (!from->is_up || from->memory != task->source_memory)
        status = MS_GONE;
    for (uint32_t i = 0; i < task->source_count_of_extents; i++)
        if (from->words[task->source_firsts[i]] != ms_word(task->source_version, 1))
            status = MS_GONE;
    for (uint32_t i = 0; status == MS_OK && i < task->page_count; i++)
        if (task->got[i] == 0)
            status = MS_GONE;
    for (uint32_t i = 0; i < task->target_count; i++)
        to->uses[task->extents[i].page].copies--;
    if (status == MS_OK && to->epoch != task->epoch)
        status = MS_WRONG_EPOCH;
    for (uint32_t i = 0; status == MS_OK && i < task->target_count; i++)
        if (task->version <= word_version(to->words[task->extents[i].page]))
            status = MS_GONE;
    for (uint32_t i = 0; status == MS_OK && i < task->target_count; i++) {
        sim_record *record = &to->records[task->extents[i].page];
        *record = task->record;
        record->is_there = true;
        record->part = (uint16_t)i;
        record->part_count = (uint16_t)task->target_count;
        record->page_count = task->extents[i].page_count;
        to->words[task->extents[i].page] = ms_word(task->version, 1);
        sim_trace(s, "server %u page %u+%u: a copy is sealed, version %lx", task->target,
                  task->extents[i].page, task->extents[i].page_count, (unsigned long)task->version);
    }
    for (uint32_t i = 0; i < task->target_count; i++)
        use_ended(s, task->target, task->extents[i].page);
    copy_answers(s, task->target, task->task, task->epoch, status);
}

/* Bytes go over in two halves, so that a source may change in between. */
static void copy_half(sim *s, sim_event *event) {
    copy *task = event->data;
    event->data = NULL;
    sim_server *from = server_of(s, task->source), *to = server_of(s, task->target);
    uint32_t half = task->page_count / 2, start = event->a == 0 ? 0 : half;
    uint32_t end = event->a == 0 ? half : task->page_count;
    if (to->is_up && to->incarnation == task->target_incarnation)
        for (uint32_t i = start; i < end; i++) {
            bool is_there = from->is_up && from->memory == task->source_memory;
            task->got[i] = is_there ? from->payload[task->source_pages[i]] : 0;
            if (task->got[i] != 0)
                sim_store_write_land(s, task->target, task->version, task->target_pages[i],
                                     task->got[i] - 1);
        }
    sim_event *next = sim_at(s, sim_delay(s), event->a == 0 ? copy_half : copy_ends);
    next->a = 1;
    next->data = task;
}

static uint32_t pages_of(const ms_replica_view *replica, uint32_t *pages) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < replica->extents.count; i++) {
        ms_extent extent = ms_replica_extent(replica, i);
        for (uint32_t page = 0; page < extent.page_count; page++)
            pages[count++] = extent.page + page;
    }
    return count;
}

/* data: the COPY's body, its length in d */
void sim_store_copy(sim *s, sim_event *message) {
    uint32_t server = (uint32_t)message->a;
    ms_copy_view view;
    if (!ms_read_copy(message->data, message->d, &view)) {
        sim_fail(s, "a COPY is malformed");
        return;
    }
    sim_server *at = server_of(s, server);
    if (!accepts_frame(at, view.head.epoch, view.head.incarnation))
        return;
    const ms_replica_view *source = &view.source.replicas[0];
    copy *task = calloc(1, sizeof *task);
    if (task == NULL)
        abort();
    task->source = source->head.server;
    task->source_memory = s->servers[task->source].memory;
    task->target = server;
    task->target_incarnation = at->incarnation;
    task->epoch = view.head.epoch;
    task->task = view.head.task;
    task->source_version = view.source.head.version;
    task->version = view.seal.head.number;
    task->page_count = pages_of(&view.target, task->target_pages);
    pages_of(source, task->source_pages);
    task->source_count_of_extents = source->extents.count;
    for (uint32_t i = 0; i < source->extents.count; i++)
        task->source_firsts[i] = ms_replica_extent(source, i).page;
    task->target_count = view.target.head.extent_count;
    for (uint32_t i = 0; i < task->target_count; i++)
        task->extents[i] = ms_replica_extent(&view.target, i);
    for (uint32_t key = 0; key < SIM_KEYS; key++)
        if (ms_hash_equal(s->hashes[key], view.seal.head.hash))
            task->record.key = key;
    task->record.version = task->version;
    task->record.note = task->version;
    task->record.size = view.seal.head.size;
    task->record.expiry_ms = view.seal.head.expiry_ms;
    task->record.flags = view.seal.head.flags;
    task->record.parent = view.seal.head.parent;
    task->record.group = view.seal.head.group;
    ms_status status = source->head.server == server ? MS_BAD_REQUEST : MS_OK;
    if (status != MS_OK)
        sim_fail(s, "server %u is told to copy from itself", server);
    for (uint32_t i = 0; i < task->target_count && status == MS_OK; i++)
        if (task->version <= word_version(at->words[task->extents[i].page]))
            status = at->words[task->extents[i].page] == ms_word(task->version, 1) ? MS_COMPLETE
                                                                                   : MS_NO_SPACE;
    if (status != MS_OK) {
        free(task);
        if (status == MS_COMPLETE)
            status = MS_OK;
        copy_answers(s, server, view.head.task, at->epoch, status);
        return;
    }
    for (uint32_t i = 0; i < task->target_count; i++) {
        at->uses[task->extents[i].page].version = task->version;
        at->uses[task->extents[i].page].page_count = task->extents[i].page_count;
        at->uses[task->extents[i].page].copies++;
    }
    sim_at(s, sim_delay(s), copy_half)->data = task;
}

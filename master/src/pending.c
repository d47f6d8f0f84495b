/* Batches on their way to an answer: some items are done at once, others when the core says so.
 *
 * A waiter, the number that the core gives back with an ANSWER effect, is made of the batch's slot (20
 * bits), the generation of that slot (28 bits) and the item's index (16 bits), so an answer that comes for a
 * batch that is gone finds nothing.  A batch that is parked belongs to nobody's call: its askers are
 * connections that may close, and then the work goes on, except that grants which nobody can
 * learn of are taken back.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_SHIFT 44
#define GENERATION_SHIFT 16
#define GENERATION_MASK ((1u << 28) - 1)
#define ITEMS_KEPT_MAX 256u /* a batch that had more gives its memory back */

_Static_assert(MS_BATCH_ITEMS_MAX <= 1u << GENERATION_SHIFT, "an item's index fits into a waiter");
_Static_assert(MA_BATCHES_MAX <= 1u << 20, "a slot fits into a waiter");

static uint32_t slot_of(uint64_t name) { return (uint32_t)(name >> SLOT_SHIFT); }

static uint64_t next_name(uint64_t name) {
    uint64_t generation = (name >> GENERATION_SHIFT & GENERATION_MASK) + 1;
    if (generation > GENERATION_MASK)
        generation = 1; /* never 0: no waiter is 0 */
    return (uint64_t)slot_of(name) << SLOT_SHIFT | generation << GENERATION_SHIFT;
}

static ma_batch *find(ma_master *master, uint64_t name) {
    uint32_t slot = slot_of(name);
    if (slot >= master->batch_capacity || master->batches[slot] == NULL)
        return NULL;
    ma_batch *batch = master->batches[slot];
    return batch->name == name ? batch : NULL;
}

static bool grow(ma_master *master) {
    uint32_t old = master->batch_capacity, capacity = old == 0 ? 64 : old * 2;
    if (capacity > MA_BATCHES_MAX)
        return false;
    ma_batch **batches = realloc(master->batches, capacity * sizeof(ma_batch *));
    if (batches == NULL)
        return false;
    master->batches = batches;
    memset(batches + old, 0, (capacity - old) * sizeof(ma_batch *));
    uint32_t *slots = realloc(master->batch_free, capacity * sizeof *slots);
    if (slots == NULL)
        return false; /* the longer table does no harm */
    master->batch_free = slots;
    for (uint32_t slot = capacity; slot-- > old;)
        slots[master->batch_free_count++] = slot;
    master->batch_capacity = capacity;
    return true;
}

ma_batch *ma_batch_begin(ma_master *master, ma_form form, uint16_t method, uint32_t count) {
    if (master->items_parked > MA_ITEMS_PARKED_MAX ||
        (master->batch_free_count == 0 && !grow(master)))
        return NULL;
    uint32_t slot = master->batch_free[master->batch_free_count - 1];
    ma_batch *batch = master->batches[slot];
    if (batch == NULL) {
        if ((batch = calloc(1, sizeof *batch)) == NULL)
            return NULL;
        batch->name = next_name((uint64_t)slot << SLOT_SHIFT);
        master->batches[slot] = batch;
    }
    if (count > batch->items_capacity) {
        ma_item *items = realloc(batch->items, count * sizeof *items);
        if (items == NULL)
            return NULL;
        batch->items = items;
        batch->items_capacity = count;
    }
    master->batch_free_count--;
    batch->form = form;
    batch->method = method;
    batch->count = count;
    batch->open_count = 0;
    batch->asker_count = 0;
    batch->session = batch->number = batch->cursor = 0;
    batch->started_ns = 0;
    batch->deadline_ms = INT64_MAX;
    batch->is_parked = false;
    return batch;
}

static void end(ma_master *master, ma_batch *batch) {
    if (batch->is_parked) {
        *(batch->previous != NULL ? &batch->previous->next : &master->parked_first) = batch->next;
        *(batch->next != NULL ? &batch->next->previous : &master->parked_last) = batch->previous;
        master->counts.batches_parked--;
        master->items_parked -= batch->count;
    }
    if (batch->items_capacity > ITEMS_KEPT_MAX) {
        free(batch->items);
        batch->items = NULL;
        batch->items_capacity = 0;
    }
    uint32_t slot = slot_of(batch->name);
    batch->name = next_name(batch->name);
    master->batch_free[master->batch_free_count++] = slot;
}

void ma_batch_set(ma_batch *batch, uint32_t index, ms_status status) {
    batch->items[index].status = status;
    batch->open_count += status == MS_PENDING;
}

/* ---- answers ---------------------------------------------------------------------------------------- */

/* Nobody is left who could learn of these grants, so nobody would end those puts: they would run into
 * their deadline and take their session with them. */
static void take_back_grants(ma_master *master, ma_batch *batch) {
    for (uint32_t i = 0; i < batch->count; i++) {
        ma_item *item = &batch->items[i];
        if (item->status != MS_OK)
            continue;
        ms_end_item revoked = {.hash = item->hash, .version = item->version};
        md_revoke(master->core, master->now, batch->session, &revoked);
        item->status = MS_UNAVAILABLE;
    }
}

static void write_grants(ma_master *master, const ma_batch *batch, ms_writer *out) {
    ms_status refused = MS_OK;
    ms_writer_list(out, batch->count);
    for (uint32_t i = 0; i < batch->count; i++) {
        const ma_item *item = &batch->items[i];
        ms_status status = item->status;
        if (status ==
            MS_OK) /* GONE: it was granted and has ended while others of the batch waited */
            status = md_write_grant(master->core, master->now, item->version, out) == MS_OK
                         ? MS_OK
                         : MS_GONE;
        if (status != MS_OK)
            ms_writer_no_location(out, status);
        if (ma_is_refused_for_space(status))
            refused = status;
    }
    if (refused != MS_OK) {
        char sentence[MA_SENTENCE_BYTES];
        ma_describe_space(master, sentence, sizeof sentence);
        ms_writer_string(out, sentence, (uint32_t)strlen(sentence));
    }
}

/* The whole answer of a batch whose items are done; returns the frame's status. */
static ms_status write_answer(ma_master *master, const ma_batch *batch, ms_writer *out) {
    ms_list_answer removed = {.cursor = batch->cursor};
    switch (batch->form) {
    case MA_FORM_GRANTS:
        write_grants(master, batch, out);
        break;
    case MA_FORM_STATUSES:
        ms_writer_list(out, batch->count);
        for (uint32_t i = 0; i < batch->count; i++)
            ms_writer_u32(out, batch->items[i].status);
        break;
    case MA_FORM_STATUS:
    case MA_FORM_LOCATION:
        if (batch->items[0].status != MS_OK)
            return batch->items[0].status;
        if (batch->form == MA_FORM_LOCATION) {
            size_t begin = out->length;
            ms_status status = md_lookup(master->core, master->now, &batch->items[0].hash, 1, out);
            if (status != MS_OK)
                return status;
            /* The list's head goes: the answer is the one location. */
            memmove(out->data + begin, out->data + begin + 8, out->length - begin - 8);
            out->length -= 8;
        }
        break;
    case MA_FORM_TASK:
        if (batch->items[0].status != MS_OK)
            return batch->items[0].status;
        return md_tasks_write(master->core, master->now,
                              &(ms_tasks){.task = batch->items[0].version}, out);
    case MA_FORM_REMOVED:
        for (uint32_t i = 0; i < batch->count; i++)
            removed.count += batch->items[i].status == MS_OK;
        MS_WRITER_STRUCT(out, &removed);
        break;
    }
    return out->status;
}

/* A sentence for the forms whose answer is one status. */
static void write_sentence(const ma_batch *batch, ms_status status, ms_writer *out) {
    const char *sentence = "";
    switch (status) {
    case MS_IO_ERROR:
    case MS_NOT_LEADER:
        sentence = "the coordinator cannot keep that: nothing was changed";
        break;
    case MS_LIMIT:
        sentence = "too many tasks are at work";
        break;
    case MS_NOT_FOUND:
        sentence = batch->method == MS_CHANGE_REPLICA
                       ? "there is no such object, or no replica of it at that store server"
                       : "there is no such object";
        break;
    case MS_BUSY:
        sentence = "the object is being put or its replicas are being changed: try again";
        break;
    case MS_NOT_REGISTERED:
        sentence = "there is no such store server";
        break;
    case MS_UNAVAILABLE:
        sentence = batch->method == MS_ANNOTATE
                       ? "a holder did not answer: the change may have taken effect"
                       : "a store server did not answer: the replicas are as they were";
        break;
    case MS_NO_SPACE:
        sentence = "no other store server has room for a replica";
        break;
    case MS_BAD_REQUEST:
        sentence = "the key is not the one of that hash, or a number is out of bounds";
        break;
    default:
        break;
    }
    ms_writer_reset(out);
    ms_writer_bytes(out, sentence, strlen(sentence));
}

static void keep_answer(ma_master *master, const ma_batch *batch, const ms_writer *answer) {
    ma_session *session = batch->number != 0 ? ma_session_find(master, batch->session) : NULL;
    if (session != NULL)
        ma_dedupe_answer(&session->dedupe, batch->number, batch->method, answer->data,
                         answer->length);
}

static void send_to_askers(ma_master *master, const ma_batch *batch, ms_status status,
                           const ms_writer *answer) {
    for (uint32_t i = 0; i < batch->asker_count; i++)
        ma_send_answer(master, &batch->askers[i], status, answer->data, answer->length);
    if (batch->asker_count != 0)
        ma_op_count(master, batch->method, batch->started_ns, status);
}

/* Everything is done and no call waits for it. */
static void finish(ma_master *master, ma_batch *batch) {
    if (batch->form == MA_FORM_GRANTS && batch->asker_count == 0)
        take_back_grants(master, batch);
    ms_writer *answer = &master->scratch;
    ms_writer_reset(answer);
    ms_status status = write_answer(master, batch, answer);
    if (status == MS_OK)
        keep_answer(master, batch, answer);
    else
        write_sentence(batch, status, answer);
    send_to_askers(master, batch, status, answer);
    end(master, batch);
}

static void park(ma_master *master, ma_batch *batch) {
    batch->is_parked = true;
    batch->next = NULL;
    batch->previous = master->parked_last;
    *(batch->previous != NULL ? &batch->previous->next : &master->parked_first) = batch;
    master->parked_last = batch;
    master->counts.batches_parked++;
    master->items_parked += batch->count;
}

void ma_batch_settle(ma_call *call, ma_batch *batch) {
    ma_master *master = call->master;
    batch->session = call->session->id;
    batch->started_ns = call->started_ns;
    ma_dedupe *dedupe = &call->session->dedupe;
    if (batch->open_count != 0) {
        const ms_header *header = call->request->header;
        batch->askers[0] = (ma_asker){call->request->peer, *header};
        batch->asker_count = 1;
        if (header->status != 0) /* of a request: its deadline */
            batch->deadline_ms = master->now.now_ms + header->status;
        if (batch->number != 0)
            ma_dedupe_park(dedupe, batch->number, batch->method, batch->name);
        park(master, batch);
        call->is_answered_later = true;
        return;
    }
    ms_writer *answer = &master->answer;
    /* put_start has written its grants while it made them. */
    ms_status status =
        batch->form == MA_FORM_GRANTS ? answer->status : write_answer(master, batch, answer);
    if (batch->form == MA_FORM_GRANTS && status != MS_OK)
        take_back_grants(master, batch);
    if (batch->number != 0) {
        ma_dedupe_park(dedupe, batch->number, batch->method, batch->name);
        if (status == MS_OK)
            ma_dedupe_answer(dedupe, batch->number, batch->method, answer->data, answer->length);
    }
    if (status != MS_OK && answer->status == MS_OK) {
        write_sentence(batch, status, answer);
        call->status = status;
    } else {
        ma_done(call);
    }
    end(master, batch);
}

void ma_batch_settle_alone(ma_master *master, ma_batch *batch) {
    if (batch->open_count != 0)
        park(master, batch);
    else
        finish(master, batch);
}

void ma_batch_item_done(ma_master *master, uint64_t waiter, ms_status status, uint64_t version) {
    ma_batch *batch = find(master, waiter & ~(uint64_t)0xffff);
    uint32_t index = waiter & 0xffff;
    if (batch == NULL || index >= batch->count || batch->items[index].status != MS_PENDING)
        return;
    ma_item *item = &batch->items[index];
    item->status = status;
    item->version = version != 0 ? version : item->version;
    if (batch->form == MA_FORM_GRANTS && status == MS_OK && batch->asker_count != 0)
        md_put_set_reply(master->core, version, batch->askers[batch->asker_count - 1].peer);
    if (--batch->open_count == 0 && batch->is_parked)
        finish(master, batch);
}

ms_status ma_batch_join(ma_master *master, uint64_t name, te_peer peer, const ms_header *header) {
    ma_batch *batch = find(master, name);
    if (batch == NULL)
        return MS_NO_MEMORY; /* its answer found no room */
    if (batch->asker_count == MA_ASKERS_MAX)
        return MS_LIMIT;
    batch->askers[batch->asker_count++] = (ma_asker){peer, *header};
    batch->deadline_ms = header->status != 0 ? master->now.now_ms + header->status : INT64_MAX;
    return MS_OK;
}

void ma_batches_forget_peer(ma_master *master, te_peer peer) {
    for (ma_batch *batch = master->parked_first; batch != NULL; batch = batch->next) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < batch->asker_count; i++)
            if (batch->askers[i].peer != peer)
                batch->askers[left++] = batch->askers[i];
        batch->asker_count = left;
    }
}

void ma_batches_tick(ma_master *master) {
    for (ma_batch *batch = master->parked_first; batch != NULL; batch = batch->next) {
        if (batch->deadline_ms > master->now.now_ms || batch->asker_count == 0)
            continue;
        char sentence[MA_SENTENCE_BYTES] = "the holders did not answer in time";
        if (batch->form == MA_FORM_GRANTS)
            ma_describe_space(master, sentence, sizeof sentence);
        /* Only the answer is given up: a repeat of the request may still learn how it ends. */
        for (uint32_t i = 0; i < batch->asker_count; i++)
            ma_send_answer(master, &batch->askers[i], MS_TIMEOUT, sentence, strlen(sentence));
        ma_op_count(master, batch->method, batch->started_ns, MS_TIMEOUT);
        batch->asker_count = 0;
        batch->deadline_ms = INT64_MAX;
    }
}

void ma_batches_close(ma_master *master) {
    for (uint32_t slot = 0; slot < master->batch_capacity; slot++)
        if (master->batches[slot] != NULL) {
            free(master->batches[slot]->items);
            free(master->batches[slot]);
        }
    free(master->batches);
    free(master->batch_free);
}

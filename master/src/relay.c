/* put_end in a client's name: a store server says that it has SEALED what the client wrote.
 *
 * The client numbered its put_end before it wrote, and the seals carry the number; so whichever comes first,
 * this or the client's own put_end, is executed, and the other is a repeat.  The answer goes
 * to the connection that carried the put's PUT_START: its frame is that of an answered PUT_END whose request
 * is the number.  A repeat needs no answer from here: the client's own put_end has got it.
 */
#include "service.h"

static void answer_lost(ma_master *master, te_peer reply_to, uint64_t number) {
    static const char sentence[] = "this session has ended: open a new one";
    if (reply_to == 0)
        return;
    ma_asker asker = {.peer = reply_to};
    asker.header = ms_header_make(MS_WIRE_VERSION, MS_REQUEST, MS_PUT_END, number);
    ma_send_answer(master, &asker, MS_SESSION_LOST, sentence, sizeof sentence - 1);
}

void ma_relayed_end(ma_call *call) {
    ma_master *master = call->master;
    ms_relayed_end_view end;
    if (!ms_read_relayed_end(call->request->body, call->request->header->body_length, &end) ||
        end.items.count == 0) {
        ma_fail_bad_frame(call);
        return;
    }
    ms_end_item first;
    MS_ARRAY_GET(end.items, 0, &first);
    te_peer reply_to = md_put_reply(master->core, first.version);
    ma_session *session = ma_session_find(master, end.session);
    if (session == NULL) {
        answer_lost(master, reply_to, end.number);
        return;
    }
    const ma_kept *kept = NULL;
    if (end.number == 0 ||
        ma_dedupe_find(&session->dedupe, end.number, MS_PUT_END, &kept) != MA_NUMBER_NEW ||
        ma_dedupe_reserve(&session->dedupe, master->config.answers_kept_max) != MS_OK)
        return; /* the client asks itself when nothing comes */
    ma_batch *batch = ma_batch_begin(master, MA_FORM_STATUSES, MS_PUT_END, end.items.count);
    if (batch == NULL)
        return;
    batch->session = end.session;
    batch->number = end.number;
    batch->started_ns = call->started_ns;
    if (reply_to != 0) {
        batch->askers[0].peer = reply_to;
        batch->askers[0].header =
            ms_header_make(MS_WIRE_VERSION, MS_REQUEST, MS_PUT_END, end.number);
        batch->asker_count = 1;
    }
    ma_dedupe_park(&session->dedupe, end.number, MS_PUT_END, batch->name);
    for (uint32_t i = 0; i < end.items.count; i++) {
        ms_end_item item;
        MS_ARRAY_GET(end.items, i, &item);
        batch->items[i] = (ma_item){.hash = item.hash, .version = item.version};
        ma_batch_set(
            batch, i,
            md_put_end(master->core, master->now, end.session, &item, ma_batch_waiter(batch, i)));
    }
    master->counts.answers_relayed++;
    ma_batch_settle_alone(master, batch);
}

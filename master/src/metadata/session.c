/* Sessions: they own pins and open puts, and end by silence, by a put past its deadline, or when closed. */
#include "md_internal.h"

#define ENDING_RETRY_MS 100

static md_session *session_at(md_core *core, uint32_t session) {
    return md_pool_at(&core->sessions, session);
}

md_session *md_session_find(md_core *core, uint64_t id, uint32_t *number) {
    *number = md_map_get(&core->session_of, id);
    if (*number == 0 || session_at(core, *number)->is_ending)
        return NULL;
    md_session *session = session_at(core, *number);
    session->last_ms = core->now.now_ms;
    return session;
}

ms_status md_session_open(md_core *core, md_now now, const uint8_t *tenant, size_t tenant_length,
                          uint64_t *session) {
    md_set_now(core, now);
    uint32_t tenant_number;
    ms_status status = md_tenant(core, tenant, tenant_length, &tenant_number);
    if (status != MS_OK)
        return status;
    if (!md_pool_reserve(&core->sessions, 1) || !md_map_reserve(&core->session_of, 1) ||
        !md_pool_reserve(&core->wheel.timers, 1))
        return MS_NO_MEMORY;
    uint32_t number = md_pool_take(&core->sessions);
    md_session *at = session_at(core, number);
    at->id = ms_version(core->config.epoch, core->session_sequence++);
    at->last_ms = now.now_ms;
    at->tenant = tenant_number;
    at->timer = md_timer_start(core, now.now_ms + core->config.session_timeout_ms, MD_TIMER_SESSION,
                               number);
    md_map_set(&core->session_of, at->id, number);
    MD_COUNT(core, sessions)++;
    *session = at->id;
    return MS_OK;
}

/* Its open puts go back with a fence: the writer may be alive, and must not write any more. */
void md_session_end(md_core *core, uint32_t session) {
    md_session *at = session_at(core, session);
    if (!at->is_ending) {
        at->is_ending = 1;
        MD_COUNT(core, sessions_ended)++;
        md_effect *effect = md_effect_push(core, MD_EFFECT_SESSION_ENDED);
        if (effect != NULL)
            effect->session = at->id; /* else the client learns it from its next frame */
    }
    while (at->first_pin != 0)
        md_pin_end(core, at->first_pin);
    while (at->first_put != 0)
        if (!md_put_take_back(core, at->first_put, at->id, MS_SESSION_LOST)) {
            if (at->timer == 0 && md_pool_reserve(&core->wheel.timers, 1))
                at->timer = md_timer_start(core, core->now.now_ms + ENDING_RETRY_MS,
                                           MD_TIMER_SESSION, session);
            return;
        }
    md_timer_stop(core, &at->timer);
    md_map_remove(&core->session_of, at->id);
    md_pool_give(&core->sessions, session);
    MD_COUNT(core, sessions)--;
}

void md_session_timer(md_core *core, uint32_t session) {
    md_session *at = session_at(core, session);
    at->timer = 0;
    int64_t ends_ms = at->last_ms + core->config.session_timeout_ms;
    if (at->is_ending || ends_ms <= core->now.now_ms) {
        md_session_end(core, session);
        md_parked_serve(core);
    } else if (md_pool_reserve(&core->wheel.timers, 1)) {
        at->timer = md_timer_start(core, ends_ms, MD_TIMER_SESSION, session);
    }
}

ms_status md_session_keep(md_core *core, md_now now, uint64_t session) {
    md_set_now(core, now);
    uint32_t number;
    return md_session_find(core, session, &number) == NULL ? MS_SESSION_LOST : MS_OK;
}

void md_session_close(md_core *core, md_now now, uint64_t session) {
    md_set_now(core, now);
    uint32_t number;
    if (md_session_find(core, session, &number) == NULL)
        return;
    md_session_end(core, number);
    md_parked_serve(core);
}

uint32_t md_session_tenant(const md_core *core, uint64_t session) {
    uint32_t number = md_map_get(&core->session_of, session);
    return number == 0 ? 0 : ((const md_session *)md_pool_at(&core->sessions, number))->tenant;
}

/* remove, and objects whose time is over. */
#include "md_internal.h"

ms_status md_remove(md_core *core, md_now now, uint32_t tenant, uint64_t session, ms_hash hash,
                    const uint8_t *key, size_t key_length, bool force, uint64_t waiter) {
    md_set_now(core, now);
    uint32_t number = md_shard_of(hash);
    md_shard *shard = &core->shards[number];
    uint32_t record = md_object_find(core, hash);
    if (record == 0)
        return md_wait_for_key(core, hash, UINT64_MAX, md_unknown_version(core, hash), MS_NOT_FOUND,
                               waiter);
    md_record *at = md_record_at(shard, record);
    if (md_record_tenant(shard, at) != tenant || !md_record_has_key(shard, at, key, key_length))
        return MS_BAD_REQUEST;
    if (at->flags & MS_OBJECT_HARD_PIN && !force)
        return MS_PINNED;
    md_cause cause = {.kind = MS_FATE_REMOVED, .session = session};
    if (!md_object_depart(core, number, record, cause))
        return MS_NO_MEMORY;
    ms_status status =
        md_wait_for_key(core, hash, UINT64_MAX, md_unknown_version(core, hash), MS_OK, waiter);
    md_parked_serve(core);
    return status;
}

/* TTLs end at the latest when this comes by; before that, whoever finds an expired object lets it depart. */
void md_expiry_sweep(md_core *core, uint32_t extras) {
    for (uint32_t shards = 0; shards <= MD_SHARDS && extras > 0;) {
        md_shard *shard = &core->shards[core->expiry_shard];
        if (core->expiry_extra >= shard->extra_fresh) {
            core->expiry_shard = (core->expiry_shard + 1) % MD_SHARDS;
            core->expiry_extra = 0;
            shards++;
            continue;
        }
        extras--;
        const md_extra *extra = &shard->extras[core->expiry_extra++];
        if (extra->record == 0 || extra->expires_at_ms > core->now.now_ms)
            continue;
        if (md_record_at(shard, extra->record)->state == MD_RECORD_COMPLETE)
            md_object_depart(core, core->expiry_shard, extra->record,
                             (md_cause){.kind = MS_FATE_EXPIRED});
    }
}

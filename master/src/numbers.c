/* By which number locations name a store server.
 *
 * Clients keep locations over a change of leaders, so a number means the same node under all of them: the coordinator
 * keeps whose it is, and a server that it does not know as a member with a number waits for its ADOPT until it does
 * *(number_kept)*.  Forgotten nodes keep their numbers too, until a later leader needs them for others.
 */
#include <string.h>

#include "service.h"

static md_now now_of(const ma_master *master) {
    return (md_now){.now_ms = te_now_ns() / 1000000, .wall_ms = master->now.wall_ms};
}

ms_status ma_number_add(ma_master *master, const uint8_t node_id[16], uint32_t server,
                        const char *name, uint64_t struck) {
    pthread_mutex_lock(&master->lock);
    ms_status status = md_server_number(master->core, now_of(master), node_id, server, struck);
    if (status == MS_OK) {
        if (ma_member_place(master, node_id, server, name) == NULL)
            status = MS_NO_MEMORY;
    }
    pthread_mutex_unlock(&master->lock);
    return status;
}

void ma_number_kept(ma_master *master, const uint8_t node_id[16]) {
    pthread_mutex_lock(&master->lock);
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        ma_member *member = ma_member_get(master, server);
        if (member != NULL && memcmp(member->info.node_id, node_id, 16) == 0)
            member->is_kept = true; /* the next tick adopts it */
    }
    pthread_mutex_unlock(&master->lock);
}

ms_status ma_expect_member(ma_master *master, const uint8_t node_id[16]) {
    uint32_t server = UINT32_MAX;
    pthread_mutex_lock(&master->lock);
    ms_status status = md_server_expect(master->core, now_of(master), node_id, &server);
    bool has_number = ma_member_get(master, server) != NULL || !master->config.keeps_numbers;
    if (status == MS_OK && ma_member_get(master, server) == NULL &&
        ma_member_place(master, node_id, server, "") == NULL)
        status = MS_NO_MEMORY;
    if (status == MS_OK) {
        ma_member_get(master, server)->is_kept = has_number;
        master->warm_expected++;
        master->is_warm = false;
        master->warm_begin_ms = te_now_ns() / 1000000;
    }
    pthread_mutex_unlock(&master->lock);
    return status;
}

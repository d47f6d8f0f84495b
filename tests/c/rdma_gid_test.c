// sources: transfer_engine/src/rdma_gid.c transfer_engine/src/rdma_settings.c
/* Which GIDs are tried with which, and in which order; and what the environment may set. */
#undef NDEBUG
#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "te_rdma_gid.h"
#include "te_rdma_settings.h"

static te_rdma_gid gid(const char *text, te_rdma_gid_type type, uint8_t index) {
    te_rdma_gid made = {.type = (uint8_t)type, .index = index};
    assert(inet_pton(AF_INET6, text, made.raw) == 1);
    return made;
}

#define V1 TE_RDMA_GID_ROCE_V1
#define V2 TE_RDMA_GID_ROCE_V2
#define IB TE_RDMA_GID_INFINIBAND

static void families_are_told_apart(void) {
    te_rdma_gid v4 = gid("::ffff:10.0.0.1", V2, 0), v6 = gid("fd00::1", V2, 0),
                local = gid("fe80::1", V2, 0), local_v4 = gid("::ffff:169.254.1.1", V2, 0);
    assert(te_rdma_family_of(&v4) == TE_RDMA_IPV4 && te_rdma_family_of(&v6) == TE_RDMA_IPV6);
    assert(te_rdma_family_of(&local) == TE_RDMA_LINK_LOCAL);
    assert(te_rdma_family_of(&local_v4) == TE_RDMA_LINK_LOCAL);
}

static void one_port_s_gids_are_ranked(void) {
    te_rdma_gid gids[] = {gid("fe80::1", V1, 0), gid("fe80::1", V2, 1),
                          gid("::ffff:10.0.0.1", V1, 2), gid("::ffff:10.0.0.1", V2, 3),
                          gid("2001:db8::1", V2, 5)};
    te_rdma_gids_rank(gids, 5);
    const uint8_t wanted[] = {3, 5, 1, 2, 0};
    for (size_t i = 0; i < 5; i++)
        assert(gids[i].index == wanted[i]);
}

typedef struct wanted_pair {
    uint8_t ours, theirs;
} wanted_pair;

static void check_pairs(const te_rdma_gid *ours, size_t our_count, const te_rdma_gid *theirs,
                        size_t their_count, const wanted_pair *wanted, size_t wanted_count) {
    te_rdma_gid_pair pairs[16];
    size_t count = te_rdma_gid_pairs(ours, our_count, theirs, their_count, pairs, 16);
    assert(count == wanted_count);
    for (size_t i = 0; i < count; i++)
        assert(pairs[i].ours.index == wanted[i].ours && pairs[i].theirs.index == wanted[i].theirs);
    /* A list that is cut short has the best ones. */
    if (count > 1) {
        assert(te_rdma_gid_pairs(ours, our_count, theirs, their_count, pairs, 1) == 1);
        assert(pairs[0].ours.index == wanted[0].ours && pairs[0].theirs.index == wanted[0].theirs);
    }
}

static void pairs_are_of_one_kind_and_ranked(void) {
    const te_rdma_gid ours[] = {gid("fe80::1", V2, 0), gid("::ffff:10.0.0.1", V2, 1),
                                gid("::ffff:10.0.0.1", V1, 2)};
    const te_rdma_gid theirs[] = {gid("fe80::2", V2, 0), gid("::ffff:10.0.0.2", V2, 1)};
    const wanted_pair wanted[] = {{1, 1}, {0, 0}};
    check_pairs(ours, 3, theirs, 2, wanted, 2);
}

static void ipv6_only_networks_work(void) {
    const te_rdma_gid ours[] = {gid("fe80::1", V2, 0), gid("2001:db8:1::1", V2, 2)};
    const te_rdma_gid theirs[] = {gid("2001:db8:1::2", V2, 4), gid("fe80::2", V2, 0)};
    const wanted_pair wanted[] = {{2, 4}, {0, 0}};
    check_pairs(ours, 2, theirs, 2, wanted, 2);
}

static void one_network_comes_before_a_routed_one(void) {
    const te_rdma_gid ours[] = {gid("::ffff:10.1.0.1", V2, 1), gid("::ffff:10.2.0.1", V2, 2)};
    const te_rdma_gid theirs[] = {gid("::ffff:10.2.0.9", V2, 1), gid("::ffff:10.3.0.9", V2, 2)};
    const wanted_pair wanted[] = {{2, 1}, {1, 1}, {1, 2}, {2, 2}};
    check_pairs(ours, 2, theirs, 2, wanted, 4);
}

static void nothing_goes_with_nothing(void) {
    const te_rdma_gid v4[] = {gid("::ffff:10.0.0.1", V2, 1)}, v6[] = {gid("fd00::1", V2, 1)},
                      ib[] = {gid("fe80::1", IB, 0)}, old[] = {gid("::ffff:10.0.0.2", V1, 1)};
    check_pairs(v4, 1, v6, 1, NULL, 0);
    check_pairs(v4, 1, ib, 1, NULL, 0);
    check_pairs(v4, 1, old, 1, NULL, 0);
    check_pairs(v4, 1, v4, 1, NULL, 0); /* a port cannot talk to itself */
    check_pairs(v4, 1, NULL, 0, NULL, 0);
}

static void infiniband_takes_the_first(void) {
    const te_rdma_gid ours[] = {gid("fe80::1", IB, 0), gid("fe80::1:1", IB, 1)};
    const te_rdma_gid theirs[] = {gid("fe80::2", IB, 0)};
    const wanted_pair wanted[] = {{0, 0}, {1, 0}};
    check_pairs(ours, 2, theirs, 1, wanted, 2);
}

/* ---- settings --------------------------------------------------------------------------------------------------- */

static const char *asked_name, *asked_value;

static char *look_up(const char *name) {
    return strcmp(name, asked_name) == 0 ? (char *)(uintptr_t)asked_value : NULL;
}

static te_rdma_settings settings_with(const char *name, const char *value, bool is_good) {
    te_rdma_settings settings;
    char problem[160];
    asked_name = name;
    asked_value = value;
    te_rdma_settings_read(look_up, &settings, problem, sizeof problem);
    assert((problem[0] == '\0') == is_good);
    assert(is_good || strstr(problem, name) != NULL);
    return settings;
}

static void settings_are_read(void) {
    te_rdma_settings usual = settings_with("NOTHING", "", true);
    assert(usual.is_on && usual.gid_index == -1 && usual.queue_pairs_per_rail == 1);
    assert(!settings_with("MOONCAKE_STORE_RDMA", "0", true).is_on);
    assert(settings_with("MOONCAKE_STORE_RDMA_GID_INDEX", "3", true).gid_index == 3);
    assert(settings_with("MOONCAKE_STORE_RDMA_CHUNK_BYTES", "1000000", true).chunk_bytes == 999424);
    static const char *const bad[] = {"x", "-1", "3x", "99999999999999999999", " 1", "1.5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert(settings_with("MOONCAKE_STORE_RDMA_RETRIES", bad[i], false).retry_count ==
               usual.retry_count);
    /* 7 means for ever to some devices. */
    settings_with("MOONCAKE_STORE_RDMA_RETRIES", "7", false);
}

static void devices_are_named_whole(void) {
    te_rdma_settings some = settings_with("MOONCAKE_STORE_RDMA_DEVICES", "mlx5_0,mlx5_11", true);
    assert(te_rdma_settings_allow(&some, "mlx5_0") && te_rdma_settings_allow(&some, "mlx5_11"));
    assert(!te_rdma_settings_allow(&some, "mlx5_1") && !te_rdma_settings_allow(&some, ""));
    te_rdma_settings all = settings_with("NOTHING", "", true);
    assert(te_rdma_settings_allow(&all, "anything"));
}

int main(void) {
    families_are_told_apart();
    one_port_s_gids_are_ranked();
    pairs_are_of_one_kind_and_ranked();
    ipv6_only_networks_work();
    one_network_comes_before_a_routed_one();
    nothing_goes_with_nothing();
    infiniband_takes_the_first();
    settings_are_read();
    devices_are_named_whole();
    return 0;
}

// Topology as JSON, ranking, and the choice of a rail: tables.
//
// sources: transfer_engine/src/topology.c transfer_engine/src/rail.c
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "te.h"
#include "te_rails.h"

static const char two_nics[] =
    "{\"nics\": {\"eth0\": [\"10.0.0.5\", \"fd00::5\"], \"eth1\": [\"10.0.1.5\"],"
    "           \"ib0\": []},\n"
    " \"later\": [1, {\"a\": \"}]\\\"\"}, null, -2.5e3, true],"
    " \"matrix\": {\"cpu:0\": [[\"eth1\"], [\"eth0\"]], \"cuda:0\": [[\"ib0\"], []]}}";

static ms_status parse(const char *json, te_topology *topology) {
    char error[TE_ERROR_BYTES] = "";
    ms_status status = te_topology_parse(json, strlen(json), topology, error);
    assert((status == MS_OK) == (error[0] == '\0'));
    return status;
}

static void test_parse(void) {
    te_topology topology;
    assert(parse(two_nics, &topology) == MS_OK);
    assert(topology.nic_count == 3 && topology.location_count == 2);
    assert(strcmp(topology.nics[0].name, "eth0") == 0 && topology.nics[0].address_count == 2);
    assert(topology.locations[0].preferred == 2 && topology.locations[0].secondary == 1);
    assert(te_topology_nic_of(&topology, "fd00::5") == 0);
    assert(te_topology_nic_of(&topology, "10.0.1.5") == 1);
    assert(te_topology_nic_of(&topology, "10.0.1.6") == UINT32_MAX);
    /* The matrix may come first. */
    assert(parse("{\"matrix\":{\"cpu:0\":[[\"a\"],[]]},\"nics\":{\"a\":[]}}", &topology) == MS_OK);
    assert(topology.locations[0].preferred == 1);
    assert(parse("{}", &topology) == MS_OK && topology.nic_count == 0);
}

static void test_parse_refuses(void) {
    static const char *const bad[] = {
        "",
        "[]",
        "{",
        "{\"nics\"}",
        "{\"nics\":{\"a\":[]}} x",
        "{\"nics\":{\"a\":[1]}}",
        "{\"nics\":{\"a\":[\"x\\u0041\"]}}",
        "{\"nics\":{},\"matrix\":{\"cpu:0\":[[\"a\"],[]]}}",
        "{\"nics\":{\"a\":[]},\"matrix\":{\"cpu:0\":[[\"a\"]]}}",
        "{\"nics\":{\"a\":[]},\"matrix\":{\"cpu:0\":[\"a\",[]]}}",
        "{\"nics\":{\"0123456789012345678901234567890123456789\":[]}}",
        "{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
        "{\"x\":\"unterminated",
        "{\"x\":}",
        "{\"x\":]}",
    };
    te_topology topology;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i], &topology) == MS_OK) {
            printf("accepted: %s\n", bad[i]);
            assert(0);
        }
    }
    /* Every beginning of a good one is bad, and reads nothing behind its end. */
    for (size_t length = 0; length < sizeof two_nics - 1; length++)
        assert(te_topology_parse(two_nics, length, &topology, NULL) == MS_BAD_REQUEST);
}

static void test_rank(void) {
    te_topology topology;
    uint32_t order[TE_NICS_MAX];
    assert(parse(two_nics, &topology) == MS_OK);
    assert(te_topology_rank(&topology, "cpu:0", order) == 3);
    assert(order[0] == 1 && order[1] == 0 && order[2] == 2);
    assert(te_topology_rank(&topology, "cuda:0", order) == 3);
    assert(order[0] == 2 && order[1] == 0 && order[2] == 1);
    /* What the matrix does not know likes all alike. */
    assert(te_topology_rank(&topology, "*", order) == 3);
    assert(order[0] == 0 && order[1] == 1 && order[2] == 2);
    assert(te_topology_tier(&topology, "cpu:7", 2) == TE_TIER_PREFERRED);
    assert(te_topology_tier(&topology, "cpu:0", 9) == TE_TIER_OTHER);
}

static void test_build(void) {
    te_topology topology;
    te_topology nothing = {0};
    te_rail rails[TE_RAILS_MAX];
    assert(parse(two_nics, &topology) == MS_OK);
    /* The peer's eth1 suits its cpu:0 better, so the rail to it comes first. */
    assert(te_rails_build(&nothing, "*", &topology, "cpu:0", "10.0.0.5:7800,10.0.1.5:7800",
                          rails) == 2);
    assert(strcmp(rails[0].address, "10.0.1.5:7800") == 0 && rails[0].remote_nic == 1 &&
           rails[0].tier == 0);
    assert(strcmp(rails[1].address, "10.0.0.5:7800") == 0 && rails[1].remote_nic == 0 &&
           rails[1].tier == 1);
    assert(rails[0].local_nic == UINT32_MAX);
    /* Local NICs: the best one of the same family. */
    assert(te_rails_build(&topology, "cpu:0", &nothing, "*", "[fd00::9]:7800,10.9.9.9:1", rails) ==
           2);
    assert(strcmp(rails[0].address, "10.9.9.9:1") == 0 && rails[0].local_nic == 1 &&
           rails[0].tier == 0);
    assert(strcmp(rails[1].address, "[fd00::9]:7800") == 0 && rails[1].local_nic == 0 &&
           rails[1].tier == 1);
    assert(te_rails_build(&nothing, "*", &nothing, "*", "", rails) == 0);
    /* No more than fit. */
    char many[TE_RAILS_MAX * 32] = "";
    for (uint32_t i = 0; i < TE_RAILS_MAX + 4; i++)
        strcat(many, "127.0.0.1:1,");
    assert(te_rails_build(&nothing, "*", &nothing, "*", many, rails) == TE_RAILS_MAX);
}

static void test_choose(void) {
    te_rail rails[3] = {{.bandwidth_bytes_per_s = 1000},
                        {.bandwidth_bytes_per_s = 1000},
                        {.bandwidth_bytes_per_s = 1000, .tier = 1}};
    assert(te_rails_choose(rails, 0, 1, 0) == UINT32_MAX);
    assert(te_rails_choose(rails, 3, 100, 0) == 0);
    /* The less loaded one; the faster one; a worse tier only under load. */
    te_rail_begin(&rails[0], 100);
    assert(te_rails_choose(rails, 3, 100, 0) == 1);
    rails[1].bandwidth_bytes_per_s = 400;
    assert(te_rails_choose(rails, 3, 100, 0) == 0);
    te_rail_begin(&rails[0], 200);
    rails[1].bandwidth_bytes_per_s = 1;
    assert(te_rails_choose(rails, 3, 100, 0) == 2);
    te_rail_end(&rails[0], 300, false, 0, 0);
    assert(rails[0].bytes_in_flight == 0 && te_rails_choose(rails, 3, 100, 0) == 0);
}

static void test_failure_and_recovery(void) {
    te_rail rails[2] = {{.bandwidth_bytes_per_s = 1000}, {.bandwidth_bytes_per_s = 1000}};
    int64_t now = 1000000000, pause = 0;
    for (int i = 0; i < 8; i++) {
        te_rail_begin(&rails[0], 10);
        te_rail_end(&rails[0], 10, true, 1, now);
        int64_t next = rails[0].retry_ns - now;
        assert(next >= pause && next <= 1000000000);
        pause = next;
        assert(te_rails_choose(rails, 2, 10, now) == 1);
        assert(te_rails_choose(rails, 2, 10, rails[0].retry_ns) == 0);
    }
    assert(pause == 1000000000);
    /* Both failed: the one whose pause ends first is tried, never none. */
    te_rail_end(&rails[1], 0, true, 1, now);
    assert(te_rails_choose(rails, 2, 10, now) == 1);
    te_rail_end(&rails[0], 0, false, 1, now);
    assert(rails[0].failures == 0 && te_rails_choose(rails, 2, 10, now) == 0);
    /* Bandwidth follows what is measured over large pieces only. */
    te_rail_begin(&rails[0], 100);
    te_rail_end(&rails[0], 100, false, 1, now);
    assert(rails[0].bandwidth_bytes_per_s == 1000);
    for (int i = 0; i < 40; i++) {
        te_rail_begin(&rails[0], 1 << 20);
        te_rail_end(&rails[0], 1 << 20, false, 1000000, now);
    }
    assert(rails[0].bandwidth_bytes_per_s > 1000000000 &&
           rails[0].bandwidth_bytes_per_s < 1100000000);
}

int main(void) {
    test_parse();
    test_parse_refuses();
    test_rank();
    test_build();
    test_choose();
    test_failure_and_recovery();
    puts("rail_test: ok");
    return 0;
}

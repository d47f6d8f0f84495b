/* Topology from JSON, the rank of NICs, and the choice among rails: tables. */
// sources: transfer_engine/src/topology.c transfer_engine/src/rail.c
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "te.h"
#include "te_rails.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static te_topology topology;

static ms_status parse(const char *text) {
    /* In memory of exactly that size: reading on is seen by AddressSanitizer. */
    size_t length = strlen(text);
    char *copy = malloc(length + 1), error[TE_ERROR_BYTES];
    CHECK(copy != NULL);
    memcpy(copy, text, length);
    ms_status status = te_topology_parse(copy, length, &topology, error);
    CHECK(status == MS_OK || strncmp(error, "topology: ", 10) == 0);
    free(copy);
    return status;
}

static void refused_texts(void) {
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"nics\": []}",
        "{\"nics\": {\"a\": [1]}}",
        "{\"nics\": {\"a\": [\"10.0.0.1\"}}",
        "{\"nics\": {\"a\\\"\": []}}",
        "{\"nics\": {\"a\": []}, \"matrix\": {\"cpu:0\": [[\"b\"], []]}}",
        "{\"nics\": {\"a\": []}, \"matrix\": {\"cpu:0\": [[\"a\"]]}}",
        "{\"nics\": {}} x",
        "{\"later\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK(parse(texts[i]) == MS_BAD_REQUEST);
        CHECK(topology.nic_count == 0 && topology.location_count == 0);
    }
}

static void members_come_in_any_order_and_later_ones_are_skipped(void) {
    CHECK(parse("{\"links\": {\"a\": {\"addresses\": [\"10.0.0.1/24\"], \"rdma\": {\"gids\": "
                "[[3, \"::ffff:10.0.0.1\", \"RoCE v2\"]], \"is_active\": true, \"x\": null}}}, "
                "\"matrix\": {\"cpu:0\": [[\"b\"], [\"a\", \"b\"]], \"*\": [[\"a\"], []]}, "
                "\"nics\": {\"a\": [\"10.0.0.1\", \"fd00::1\"], \"b\": [], \"c\": []}}") == MS_OK);
    CHECK(topology.nic_count == 3 && topology.location_count == 2);
    CHECK(te_topology_nic_of(&topology, "fd00::1") == 0);
    CHECK(te_topology_nic_of(&topology, "10.0.0.2") == UINT32_MAX);
    CHECK(te_topology_tier(&topology, "cpu:0", 1) == TE_TIER_PREFERRED);
    CHECK(te_topology_tier(&topology, "cpu:0", 0) == TE_TIER_SECONDARY);
    CHECK(te_topology_tier(&topology, "cpu:0", 2) == TE_TIER_OTHER);
    CHECK(te_topology_tier(&topology, "*", 1) == TE_TIER_OTHER); /* the row for unplaced memory */
    CHECK(te_topology_tier(&topology, "cuda:9", 2) == TE_TIER_PREFERRED); /* no row: all alike */
    uint32_t order[TE_NICS_MAX];
    CHECK(te_topology_rank(&topology, "cpu:0", order) == 3);
    CHECK(order[0] == 1 && order[1] == 0 && order[2] == 2);
}

/* As many as an AWS p5 has, and more: the masks have a bit for each. */
static void holds_64_nics_and_no_65th(void) {
    for (uint32_t count = 64; count <= 65; count++) {
        char text[8192];
        size_t length = (size_t)snprintf(text, sizeof text, "{\"nics\": {");
        for (uint32_t i = 0; i < count; i++)
            length += (size_t)snprintf(text + length, sizeof text - length,
                                       "%s\"rdmap%us0\": [\"10.0.0.%u\"]", i > 0 ? "," : "", i, i);
        snprintf(text + length, sizeof text - length,
                 "}, \"matrix\": {\"cuda:0\": [[\"rdmap63s0\", \"rdmap32s0\"], [\"rdmap31s0\"]]}}");
        CHECK(parse(text) == (count == 64 ? MS_OK : MS_BAD_REQUEST));
    }
    char text[8192] = "{\"nics\": {";
    size_t length = strlen(text);
    for (uint32_t i = 0; i < 64; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s\"n%u\": []",
                                   i > 0 ? "," : "", i);
    snprintf(text + length, sizeof text - length,
             "}, \"matrix\": {\"cuda:0\": [[\"n63\", \"n32\"], [\"n31\"]]}}");
    CHECK(parse(text) == MS_OK);
    uint32_t order[TE_NICS_MAX];
    CHECK(te_topology_rank(&topology, "cuda:0", order) == 64);
    CHECK(order[0] == 32 && order[1] == 63 && order[2] == 31 && order[3] == 0);
}

static void names_and_addresses_have_bounds(void) {
    char name[80], text[256];
    memset(name, 'e', sizeof name);
    for (size_t length = 63; length <= 64; length++) {
        snprintf(text, sizeof text, "{\"nics\": {\"%.*s\": []}}", (int)length, name);
        CHECK(parse(text) == (length == 63 ? MS_OK : MS_BAD_REQUEST));
    }
    CHECK(parse("{\"nics\": {\"a\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\"]}}") == MS_OK);
    CHECK(parse("{\"nics\": {\"a\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]}}") ==
          MS_BAD_REQUEST);
}

static void rails_are_ordered_by_the_worse_end(void) {
    CHECK(parse("{\"nics\": {\"a\": [\"10.0.0.1\"], \"b\": [\"fd00::1\"]}, "
                "\"matrix\": {\"cpu:0\": [[\"b\"], [\"a\"]]}}") == MS_OK);
    te_topology local = topology;
    CHECK(parse("{\"nics\": {\"x\": [\"10.0.0.2\"], \"y\": [\"fd00::2\"]}, "
                "\"matrix\": {\"cpu:1\": [[\"y\"], []]}}") == MS_OK);
    te_rail rails[TE_RAILS_MAX];
    CHECK(te_rails_build(&local, "cpu:0", &topology, "cpu:1", "10.0.0.2:7800,[fd00::2]:7800,,",
                         rails) == 2);
    CHECK(strcmp(rails[0].address, "[fd00::2]:7800") == 0 && rails[0].tier == TE_TIER_PREFERRED);
    CHECK(rails[0].local_nic == 1 && rails[0].remote_nic == 1);
    CHECK(strcmp(rails[1].address, "10.0.0.2:7800") == 0 && rails[1].tier == TE_TIER_OTHER);
    CHECK(rails[1].local_nic == 0 && rails[1].remote_nic == 0);
}

static void the_least_queue_for_its_bandwidth_is_chosen(void) {
    te_rail rails[3] = {{.bandwidth_bytes_per_s = 1000000000, .tier = TE_TIER_PREFERRED},
                        {.bandwidth_bytes_per_s = 1000000000, .tier = TE_TIER_SECONDARY},
                        {.bandwidth_bytes_per_s = 8000000000, .tier = TE_TIER_OTHER}};
    CHECK(te_rails_choose(rails, 2, 1000, 0) == 0);
    te_rail_begin(&rails[0], 2000);
    CHECK(te_rails_choose(rails, 2, 1000, 0) == 1); /* 3000 against twice 1000 */
    te_rail_end(&rails[0], 2000, false, 1, 1);
    CHECK(rails[0].bytes_in_flight == 0);
    te_rail_begin(&rails[1], 1);
    te_rail_end(&rails[1], 1, true, 1, 0);
    CHECK(rails[1].retry_ns == 50000000 && te_rails_choose(rails + 1, 1, 1, 0) == 0);
    CHECK(te_rails_choose(rails, 0, 1, 0) == UINT32_MAX);
    CHECK(te_rails_choose(rails + 1, 2, 1000000, 49999999) == 1);
    CHECK(te_rails_choose(rails + 1, 2, 1000000, 50000000) == 1); /* a tie of price: the queue */
}

int main(void) {
    refused_texts();
    members_come_in_any_order_and_later_ones_are_skipped();
    holds_64_nics_and_no_65th();
    names_and_addresses_have_bounds();
    rails_are_ordered_by_the_worse_end();
    the_least_queue_for_its_bandwidth_is_chosen();
    puts("ok");
    return 0;
}

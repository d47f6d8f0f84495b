/* Paths to a peer and the choice among them: see te_rails.h. */
#include <stdlib.h>
#include <string.h>

#include "te_rails.h"

#define FIRST_BANDWIDTH UINT64_C(1000000000) /* before anything was measured: all rails alike */
#define MEASURED_BYTES_MIN UINT64_C(65536)   /* less says more about latency than about bandwidth */
#define PAUSE_NS_MIN INT64_C(50000000)
#define PAUSE_NS_MAX INT64_C(1000000000)

/* "10.0.0.5" of "10.0.0.5:7800", "fd00::5" of "[fd00::5]:7800". */
static void host_of(const char *address, char host[TE_RAIL_ADDRESS_BYTES]) {
    const char *arrow = strchr(address, '>'); /* from where, in front of it */
    address = arrow == NULL ? address : arrow + 1;
    const char *start = address[0] == '[' ? address + 1 : address;
    const char *end = address[0] == '[' ? strchr(start, ']') : strrchr(start, ':');
    size_t length = end == NULL ? strlen(start) : (size_t)(end - start);
    memcpy(host, start, length);
    host[length] = '\0';
}

static bool is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static bool reaches(const te_nic *nic, const char *host) {
    for (uint32_t i = 0; i < nic->address_count; i++) {
        const char *own = nic->addresses[i];
        if ((strchr(own, ':') != NULL) == (strchr(host, ':') != NULL) &&
            is_loopback(own) == is_loopback(host))
            return true;
    }
    return false;
}

/* The best local NIC that can reach the host (family and loopback agree; routing is the kernel's). */
static uint32_t local_nic_for(const te_topology *local, const char *location, const char *host) {
    uint32_t order[TE_NICS_MAX];
    uint32_t count = te_topology_rank(local, location, order);
    for (uint32_t i = 0; i < count; i++)
        if (reaches(&local->nics[order[i]], host))
            return order[i];
    return UINT32_MAX;
}

static uint32_t tier_of(const te_topology *topology, const char *location, uint32_t nic) {
    return nic == UINT32_MAX ? TE_TIER_PREFERRED : te_topology_tier(topology, location, nic);
}

uint32_t te_rails_build(const te_topology *local, const char *local_location,
                        const te_topology *remote, const char *remote_location,
                        const char *addresses, te_rail rails[TE_RAILS_MAX]) {
    te_rail found[TE_RAILS_MAX];
    uint32_t count = 0, ordered = 0;
    while (*addresses != '\0' && count < TE_RAILS_MAX) {
        size_t length = strcspn(addresses, ",");
        if (length > 0 && length < TE_RAIL_ADDRESS_BYTES) {
            te_rail *rail = &found[count++];
            memset(rail, 0, sizeof *rail);
            memcpy(rail->address, addresses, length);
            char host[TE_RAIL_ADDRESS_BYTES];
            host_of(rail->address, host);
            rail->remote_nic = te_topology_nic_of(remote, host);
            rail->local_nic = local_nic_for(local, local_location, host);
            uint32_t near = tier_of(local, local_location, rail->local_nic);
            uint32_t far = tier_of(remote, remote_location, rail->remote_nic);
            rail->tier = near > far ? near : far;
            rail->bandwidth_bytes_per_s = FIRST_BANDWIDTH;
        }
        addresses += length + (addresses[length] == ',');
    }
    for (uint32_t tier = 0; tier < TE_TIER_COUNT; tier++)
        for (uint32_t i = 0; i < count; i++)
            if (found[i].tier == tier)
                rails[ordered++] = found[i];
    return count;
}

uint32_t te_rails_choose(const te_rail *rails, uint32_t count, uint64_t bytes, int64_t now_ns) {
    uint32_t best = UINT32_MAX, soonest = UINT32_MAX;
    double best_cost = 0;
    for (uint32_t i = 0; i < count; i++) {
        const te_rail *rail = &rails[i];
        if (soonest == UINT32_MAX || rail->retry_ns < rails[soonest].retry_ns)
            soonest = i;
        if (rail->retry_ns > now_ns)
            continue;
        double ns_per_byte = 1e9 / (double)rail->bandwidth_bytes_per_s;
        double cost = te_rail_cost((double)rail->bytes_in_flight * ns_per_byte,
                                   (double)bytes * ns_per_byte, rail->tier);
        if (best == UINT32_MAX || cost < best_cost) {
            best = i;
            best_cost = cost;
        }
    }
    return best == UINT32_MAX ? soonest : best;
}

void te_rail_begin(te_rail *rail, uint64_t bytes) { rail->bytes_in_flight += bytes; }

void te_rail_end(te_rail *rail, uint64_t bytes, bool is_failed, int64_t elapsed_ns,
                 int64_t now_ns) {
    rail->bytes_in_flight -= bytes;
    if (is_failed) {
        int64_t pause = rail->failures < 5 ? PAUSE_NS_MIN << rail->failures : PAUSE_NS_MAX;
        rail->failures++;
        rail->retry_ns = now_ns + (pause < PAUSE_NS_MAX ? pause : PAUSE_NS_MAX);
        return;
    }
    rail->failures = 0;
    rail->retry_ns = 0;
    if (bytes < MEASURED_BYTES_MIN || elapsed_ns <= 0)
        return;
    double measured = (double)bytes * 1e9 / (double)elapsed_ns;
    double smoothed = (double)rail->bandwidth_bytes_per_s * 0.75 + measured * 0.25;
    rail->bandwidth_bytes_per_s = smoothed < 1 ? 1 : (uint64_t)smoothed;
}

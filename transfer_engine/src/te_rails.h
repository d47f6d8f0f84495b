/* Topology (which NICs suit a memory location) and rails (pairs of NICs): data and pure functions.
 *
 * As JSON, exchanged in OPEN_SEGMENT and given by te_set_topology:
 *
 *     {"nics": {"eth0": ["10.0.0.5", "fd00::5"], "eth1": ["10.0.1.5"]},
 *      "matrix": {"cpu:0": [["eth0"], ["eth1"]], "cpu:1": [["eth1"], ["eth0"]]}}
 *
 * A location's first list names its preferred NICs, the second those to fall back on; a row "*" is for memory
 * that nobody has placed.  Members that a later version adds are skipped, and so is "links", by which Python
 * pairs NICs (topology/exchange.py).
 */
#ifndef TE_RAILS_H
#define TE_RAILS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"

#define TE_LOCATION_BYTES 32
#define TE_NIC_NAME_BYTES 64
#define TE_NIC_ADDRESS_BYTES 48
#define TE_NICS_MAX 64u /* an AWS p5 has 32 adapters for RDMA and one for the rest */
#define TE_NIC_ADDRESSES_MAX 8u
#define TE_LOCATIONS_MAX 64u

typedef struct te_nic {
    char name[TE_NIC_NAME_BYTES];
    char addresses[TE_NIC_ADDRESSES_MAX][TE_NIC_ADDRESS_BYTES]; /* numeric, without port */
    uint32_t address_count;
} te_nic;

typedef struct te_location {
    char name[TE_LOCATION_BYTES];
    uint64_t preferred, secondary; /* bit i: nics[i] */
} te_location;

typedef struct te_topology {
    te_nic nics[TE_NICS_MAX];
    te_location locations[TE_LOCATIONS_MAX];
    uint32_t nic_count, location_count;
} te_topology;

/* BAD_REQUEST with a sentence in `error` (TE_ERROR_BYTES or NULL) when it is not of that form. */
ms_status te_topology_parse(const char *json, size_t length, te_topology *topology, char *error);

enum { TE_TIER_PREFERRED = 0, TE_TIER_SECONDARY = 1, TE_TIER_OTHER = 2, TE_TIER_COUNT = 3 };

/* When a rail would be through, in ns, made dearer by how far it is: the one rule by which all that choose among rails do
 * (schedule, exchanges over RDMA, connections).  `queue_ns`: of what is in flight on it, or on its NIC if that takes longer;
 * `own_ns`: of what is to be added. */
static inline double te_rail_cost(double queue_ns, double own_ns, uint32_t tier) {
    /* A secondary NIC is worth taking when the preferred ones have twice the queue; any other at eight times. */
    static const double penalty_of_tier[TE_TIER_COUNT] = {1, 2, 8};
    return (queue_ns + own_ns) * penalty_of_tier[tier];
}

/* A rail that was given nothing for so long is tried again: what was slow need not be so now. */
#define TE_RAIL_IDLE_PROBE_NS INT64_C(1000000000)

/* How well a NIC suits a location.  A location that the matrix does not have, "*" too, likes all NICs alike. */
uint32_t te_topology_tier(const te_topology *topology, const char *location, uint32_t nic);
/* NICs from the best to the worst; equals in the order in which they are listed.  Returns nic_count. */
uint32_t te_topology_rank(const te_topology *topology, const char *location,
                          uint32_t order[TE_NICS_MAX]);
/* The NIC that has that numeric address; UINT32_MAX: none. */
uint32_t te_topology_nic_of(const te_topology *topology, const char *address);

#define TE_RAILS_MAX 16u
#define TE_RAIL_ADDRESS_BYTES 128

/* A path to a peer.  The owner locks. */
typedef struct te_rail {
    char address[TE_RAIL_ADDRESS_BYTES]; /* where to connect: "10.0.0.5:7800", "[fd00::5]:7800" */
    uint32_t local_nic, remote_nic;      /* in the two topologies; UINT32_MAX: not known */
    uint32_t tier;                       /* the worse of both ends */
    uint32_t failures;                   /* in a row */
    uint64_t bytes_in_flight;
    uint64_t bandwidth_bytes_per_s; /* measured, smoothed */
    int64_t retry_ns;               /* after a failure: not before */
} te_rail;

/* The rails to a peer's addresses (comma-separated), best tier first. */
uint32_t te_rails_build(const te_topology *local, const char *local_location,
                        const te_topology *remote, const char *remote_location,
                        const char *addresses, te_rail rails[TE_RAILS_MAX]);
/* Where the next `bytes` should go: least (bytes in flight + bytes) / bandwidth, times the tier's penalty, among
 * the rails that may be tried now; when none may, the one whose pause ends first.  UINT32_MAX without rails. */
uint32_t te_rails_choose(const te_rail *rails, uint32_t count, uint64_t bytes, int64_t now_ns);
void te_rail_begin(te_rail *rail, uint64_t bytes);
/* A rail that failed is left at once and tried again after pauses that grow from 50 ms to 1 s. */
void te_rail_end(te_rail *rail, uint64_t bytes, bool is_failed, int64_t elapsed_ns, int64_t now_ns);

#endif

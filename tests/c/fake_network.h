/* What breaks the NICs of fake_verbs.c, by the names of tests/rdma/guest_network.h.  A test that includes it is linked with
 * -Wl,--wrap=te_rdma_is_there. */
#ifndef FAKE_NETWORK_H
#define FAKE_NETWORK_H

#include "fake_verbs.h"

#include <limits.h>

#define NETWORK_RESETS 60
#define NETWORK_RESIDENT_KIB_MAX LONG_MAX /* sanitizers keep what is freed, and tell what is not */

bool __wrap_te_rdma_is_there(void);
bool __wrap_te_rdma_is_there(void) { return true; } /* sysfs knows nothing of them */

static inline void network_link_set(int nic, bool is_up) { fake_link_set(nic, is_up); }
static inline void network_loss_set(int nic, bool is_lost) { fake_loss_set(nic, is_lost); }
static inline void network_nic_set(int nic, bool is_there) { fake_nic_set(nic, is_there); }
static inline void network_speed_set(uint64_t bytes_per_s) { fake_speed_set(bytes_per_s); }
static inline void network_dead_gid_set(int nic, bool is_there) {
    fake_dead_gid_set(nic, is_there);
}

#endif

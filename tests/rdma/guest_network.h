/* What breaks the guest's NICs: rxe0 to rxe3 sit on eth0 to eth3. */
#ifndef GUEST_NETWORK_H
#define GUEST_NETWORK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NETWORK_RESETS 300            /* RDMA_TEST_RESETS=10000 for the whole of it */
#define NETWORK_RESIDENT_KIB_MAX 4096 /* so much may a process grow over them */

static inline void run_command(const char *format, int nic) {
    char command[480];
    snprintf(command, sizeof command, format, nic, nic, nic + 1, 100 + nic);
    int status = system(command);
    if (status != 0) {
        fprintf(stderr, "%s: status %d\n", command, status);
        abort();
    }
}

static inline void network_link_set(int nic, bool is_up) {
    run_command(is_up ? "ip link set eth%d up && ip route replace 10.77.0.0/24 dev eth%d "
                        "src 10.77.0.%d metric %d table 100"
                      : "ip link set eth%d down",
                nic);
}

static inline void network_loss_set(int nic, bool is_lost) {
    run_command(is_lost ? "tc qdisc add dev eth%d root netem loss 100%%"
                        : "tc qdisc del dev eth%d root",
                nic);
}

static inline void network_nic_set(int nic, bool is_there) {
    if (is_there) /* it is gone when nobody has its rxe open any more */
        run_command("for i in $(seq 100); do ip link show eth%d >/dev/null 2>&1 || break; "
                    "sleep 0.1; done; ip link add link sw0 name eth%d mtu 9000 type macvlan "
                    "mode bridge && ip link set eth3 up && "
                    "ip addr add 10.77.0.%d/24 dev eth3 noprefixroute && "
                    "ip route add 10.77.0.0/24 dev eth3 src 10.77.0.4 metric %d table 100 && "
                    "rdma link add rxe3 type rxe netdev eth3",
                    nic);
    else
        run_command("ip link del eth%d &", nic); /* its rxe waits for those who have it open */
}

/* Software NICs are slow enough by themselves. */
static inline void network_speed_set(uint64_t bytes_per_s) { (void)bytes_per_s; }

static inline void network_dead_gid_set(int nic, bool is_there) {
    run_command(is_there ? "ip addr add 10.99.0.1/32 dev eth%d && "
                           "ip rule add pref 5 to 10.99.0.1 prohibit"
                         : "ip rule del pref 5 && ip addr del 10.99.0.1/32 dev eth%d",
                nic);
}

#endif

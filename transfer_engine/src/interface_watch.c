/* Hears of changed interfaces on the carrier's thread: see te_interface_watch.h. */
#include "te_interface_watch.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "te_carrier.h"
#include "te_interfaces.h"
#include "te_session.h"

#include "te_fault.h"

/* A cable that is pulled sends a dozen messages. */
#define QUIET_NS (100 * TE_NS_PER_MS) /* without a message, and a burst is over */
#define DELAY_NS_MAX TE_NS_PER_S      /* a burst without end is looked at after this */

struct te_interface_watch {
    te_watched watched; /* first: `ready` is given it */
    te_carrier *carrier;
    int64_t first_ns, last_ns; /* of the burst; 0: none */
};

/* At once, without waiting for the end of the burst or for silence: what is sent there goes nowhere. */
static void leave_lost(te_carrier *carrier) {
    te_interfaces now;
    if (te_interfaces_look(&now, AF_UNSPEC) != MS_OK)
        return;
    for (te_lane *lane = carrier->lanes, *next; lane != NULL; lane = next) {
        next = lane->next;
        if (lane->ops == &te_lane_tcp && lane->is_up && !lane->is_gone &&
            lane->ends.local[0] != '\0' && te_interface_is_lost(&now, lane->ends.local))
            lane->ops->reset(lane, "its interface has lost its link");
    }
}

static void heard(te_watched *watched, uint32_t events) {
    te_interface_watch *watch = (te_interface_watch *)watched;
    char message[8192];
    bool is_change = false;
    ssize_t length;
    (void)events;
    while ((length = recv(watched->descriptor, message, sizeof message, MSG_DONTWAIT)) != 0) {
        if (length < 0 && errno == EINTR)
            continue;
        is_change = is_change || length > 0 || errno == ENOBUFS; /* some were lost */
        if (length < 0 && errno != ENOBUFS)
            break;
    }
    if (!is_change)
        return;
    leave_lost(watch->carrier);
    watch->last_ns = te_now_ns();
    if (watch->first_ns == 0)
        watch->first_ns = watch->last_ns;
}

ms_status te_interface_watch_open(te_carrier *carrier, te_interface_watch **opened) {
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK,
                                 .nl_groups =
                                     RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
    te_interface_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return MS_NO_MEMORY;
    int descriptor = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    watch->carrier = carrier;
    watch->watched = (te_watched){.ready = heard, .descriptor = descriptor, .events = EPOLLIN};
    if (descriptor < 0 || bind(descriptor, (const struct sockaddr *)&groups, sizeof groups) != 0 ||
        te_carrier_watch(carrier, &watch->watched) != MS_OK) {
        if (descriptor >= 0)
            close(descriptor);
        free(watch);
        return MS_LIMIT;
    }
    *opened = watch;
    return MS_OK;
}

void te_interface_watch_close(te_interface_watch *watch) {
    if (watch == NULL)
        return;
    te_carrier_forget(watch->carrier, &watch->watched);
    close(watch->watched.descriptor);
    free(watch);
}

int64_t te_interface_watch_tick(te_interface_watch *watch, int64_t now_ns) {
    if (watch == NULL || watch->first_ns == 0)
        return INT64_MAX;
    int64_t quiet_ns = watch->last_ns + QUIET_NS, latest_ns = watch->first_ns + DELAY_NS_MAX;
    int64_t due_ns = quiet_ns < latest_ns ? quiet_ns : latest_ns;
    if (now_ns < due_ns)
        return due_ns;
    watch->first_ns = 0;
    for (te_path *path = watch->carrier->paths; path != NULL; path = path->next)
        te_path_pair_again(path);
    return INT64_MAX;
}

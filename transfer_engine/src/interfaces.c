/* The interfaces of now, and pairs of them with a peer's addresses: see te_interfaces.h. */
#include "te_interfaces.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te_fault.h"

/* ---- looking ------------------------------------------------------------------------------------------------------ */

/* The bytes of an address: 4 or 16; NULL: of another family. */
static const uint8_t *bytes_of(const struct sockaddr *address, size_t *length) {
    if (address == NULL || (address->sa_family != AF_INET && address->sa_family != AF_INET6))
        return NULL;
    *length = address->sa_family == AF_INET ? 4 : 16;
    return address->sa_family == AF_INET
               ? (const uint8_t *)&((const struct sockaddr_in *)address)->sin_addr
               : (const uint8_t *)&((const struct sockaddr_in6 *)address)->sin6_addr;
}

static size_t length_of(int family) { return family == AF_INET ? 4 : 16; }

static bool is_link_local(int family, const uint8_t *bytes) {
    return family == AF_INET ? bytes[0] == 169 && bytes[1] == 254
                             : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

static void add_own(te_interfaces *interfaces, int family, const uint8_t *bytes) {
    if (interfaces->own_count == TE_OWN_ADDRESSES_MAX)
        return;
    te_own_address *added = &interfaces->own[interfaces->own_count++];
    *added = (te_own_address){.family = family};
    memcpy(added->bytes, bytes, length_of(family));
}

ms_status te_interfaces_look(te_interfaces *interfaces, int family) {
    struct ifaddrs *all = NULL;
    interfaces->count = interfaces->own_count = 0;
    if (getifaddrs(&all) != 0)
        return MS_IO_ERROR;
    for (const struct ifaddrs *each = all; each != NULL; each = each->ifa_next) {
        size_t length = 0, mask_length = 0;
        const uint8_t *bytes = bytes_of(each->ifa_addr, &length);
        const uint8_t *mask = bytes_of(each->ifa_netmask, &mask_length);
        if (bytes == NULL || (family != AF_UNSPEC && each->ifa_addr->sa_family != family) ||
            (each->ifa_flags & IFF_UP) == 0)
            continue;
        add_own(interfaces, each->ifa_addr->sa_family, bytes);
        if (interfaces->count == TE_INTERFACE_ADDRESSES_MAX || mask == NULL ||
            mask_length != length || (each->ifa_flags & IFF_LOOPBACK) != 0 ||
            is_link_local(each->ifa_addr->sa_family, bytes))
            continue;
        te_interface *added = &interfaces->all[interfaces->count];
        *added = (te_interface){.family = each->ifa_addr->sa_family,
                                .number = if_nametoindex(each->ifa_name),
                                .is_running = (each->ifa_flags & IFF_RUNNING) != 0};
        snprintf(added->name, sizeof added->name, "%s", each->ifa_name);
        memcpy(added->bytes, bytes, length);
        memcpy(added->mask, mask, length);
        if (inet_ntop(added->family, added->bytes, added->text, sizeof added->text) != NULL)
            interfaces->count++;
    }
    freeifaddrs(all);
    return MS_OK;
}

static bool is_in_network(const te_interface *interface, int family, const uint8_t *bytes) {
    if (interface->family != family)
        return false;
    for (size_t i = 0; i < length_of(family); i++)
        if ((interface->bytes[i] & interface->mask[i]) != (bytes[i] & interface->mask[i]))
            return false;
    return true;
}

static bool is_loopback(int family, const uint8_t *bytes) {
    static const uint8_t v6[16] = {[15] = 1};
    return family == AF_INET ? bytes[0] == 127 : memcmp(bytes, v6, sizeof v6) == 0;
}

/* What is sent to it stays in this machine. */
static bool is_own(const te_interfaces *interfaces, int family, const uint8_t *bytes) {
    if (is_loopback(family, bytes))
        return true;
    for (uint32_t i = 0; i < interfaces->own_count; i++)
        if (interfaces->own[i].family == family &&
            memcmp(interfaces->own[i].bytes, bytes, length_of(family)) == 0)
            return true;
    return false;
}

bool te_stays_here(const struct sockaddr *here, const struct sockaddr *there) {
    size_t length = 0;
    const uint8_t *near = bytes_of(here, &length), *far = bytes_of(there, &length);
    return near != NULL && far != NULL && here->sa_family == there->sa_family &&
           (is_loopback(there->sa_family, far) || memcmp(near, far, length) == 0);
}

bool te_interface_is_lost(const te_interfaces *interfaces, const char *address) {
    uint8_t bytes[16];
    for (uint32_t i = 0; i < interfaces->count; i++)
        if (strcmp(interfaces->all[i].text, address) == 0)
            return !interfaces->all[i].is_running;
    int family = strchr(address, ':') != NULL ? AF_INET6 : AF_INET;
    if (inet_pton(family, address, bytes) != 1) /* with a scope: not ours to know */
        return false;
    /* Those of the loopback have no link to lose; of those that there was no room for nothing is known. */
    return interfaces->own_count < TE_OWN_ADDRESSES_MAX && !is_own(interfaces, family, bytes);
}

/* ---- pairing ------------------------------------------------------------------------------------------------------ */

/* Which interfaces may lead to an address: bit i, all[i].  Those without a link only where there are no others. */
typedef struct far_end {
    const char *text;
    size_t length;
    uint32_t pairs;
    uint8_t may[TE_INTERFACE_ADDRESSES_MAX];
} far_end;

static void find_ways(const te_interfaces *interfaces, const te_topology *topology, far_end *far) {
    te_address address;
    size_t length = 0;
    memset(far->may, 0, sizeof far->may);
    if (memchr(far->text, '>', far->length) != NULL ||
        te_address_parse(far->text, far->length, &address, NULL) != MS_OK || address.is_unix)
        return;
    int family = address.storage.ss_family;
    const uint8_t *bytes = bytes_of((const struct sockaddr *)&address.storage, &length);
    if (bytes == NULL || is_own(interfaces, family, bytes))
        return;
    bool is_any_running = false;
    for (uint32_t i = 0; i < interfaces->count; i++) {
        const te_interface *each = &interfaces->all[i];
        far->may[i] =
            is_in_network(each, family, bytes) &&
            (topology->nic_count == 0 || te_topology_nic_of(topology, each->text) != UINT32_MAX);
        for (uint32_t j = 0; j < i; j++) /* of an interface's addresses the first */
            if (far->may[j] && interfaces->all[j].number == each->number)
                far->may[i] = 0;
        is_any_running |= far->may[i] && each->is_running;
    }
    for (uint32_t i = 0; i < interfaces->count; i++)
        far->may[i] = far->may[i] && (interfaces->all[i].is_running || !is_any_running);
}

static te_rail_ends *add_pair(const te_interface *near, const te_topology *topology, far_end *far,
                              te_rail_ends *ends) {
    *ends = (te_rail_ends){.local_nic = UINT32_MAX, .remote_nic = UINT32_MAX};
    const char *arrow = memchr(far->text, '>', far->length);
    size_t local_length = arrow == NULL ? 0 : (size_t)(arrow - far->text);
    size_t skipped = arrow == NULL ? 0 : local_length + 1;
    memcpy(ends->local, far->text, local_length);
    memcpy(ends->remote, far->text + skipped, far->length - skipped);
    if (near != NULL)
        snprintf(ends->local, sizeof ends->local, "%s", near->text);
    ends->local_nic = te_topology_nic_of(topology, ends->local);
    if (ends->local_nic != UINT32_MAX)
        ends->tier = te_topology_tier(topology, "*", ends->local_nic);
    else if (near != NULL && near->number <= TE_NICS_MAX)
        ends->local_nic = near->number - 1; /* its bytes in flight count for all peers */
    far->pairs++;
    return ends;
}

uint32_t te_pairs_build(const te_interfaces *interfaces, const te_topology *topology,
                        const char *addresses, te_rail_ends ends[TE_RAILS_MAX]) {
    far_end fars[TE_RAILS_MAX];
    uint32_t used[TE_INTERFACE_ADDRESSES_MAX] = {0};
    uint32_t far_count = 0, count = 0;
    while (*addresses != '\0' && far_count < TE_RAILS_MAX) {
        size_t length = strcspn(addresses, ",");
        if (length > 0 && length < TE_RAIL_ADDRESS_BYTES) {
            far_end *far = &fars[far_count++];
            far->text = addresses;
            far->length = length;
            far->pairs = 0;
            find_ways(interfaces, topology, far);
        }
        addresses += length + (addresses[length] == ',');
    }
    for (uint32_t i = 0; i < far_count; i++) {
        const te_interface *near = NULL;
        for (uint32_t j = 0; j < interfaces->count; j++)
            if (fars[i].may[j] && (near == NULL || used[j] < used[near - interfaces->all]))
                near = &interfaces->all[j];
        if (near != NULL)
            used[near - interfaces->all]++;
        add_pair(near, topology, &fars[i], &ends[count++]);
    }
    for (uint32_t j = 0; j < interfaces->count; j++) {
        far_end *least = NULL;
        for (uint32_t i = 0; i < far_count && used[j] == 0; i++)
            if (fars[i].may[j] && (least == NULL || fars[i].pairs < least->pairs))
                least = &fars[i];
        if (least != NULL && count < TE_RAILS_MAX)
            add_pair(&interfaces->all[j], topology, least, &ends[count++]);
    }
    return count;
}

/* ---- the wire of one connection ------------------------------------------------------------------------------------ */

void te_interface_between(const struct sockaddr *here, const struct sockaddr *there,
                          char name[IF_NAMESIZE]) {
    te_interfaces now;
    size_t length = 0;
    const uint8_t *near = bytes_of(here, &length), *far = bytes_of(there, &length);
    name[0] = '\0';
    if (near == NULL || far == NULL || here->sa_family != there->sa_family ||
        te_interfaces_look(&now, here->sa_family) != MS_OK || is_own(&now, here->sa_family, far))
        return; /* ourselves: it goes over the loopback, whatever the address */
    for (uint32_t i = 0; i < now.count; i++)
        if (memcmp(now.all[i].bytes, near, length) == 0 &&
            is_in_network(&now.all[i], here->sa_family, far))
            memcpy(name, now.all[i].name, IF_NAMESIZE);
}

/* The number of the interface by which the last packet of the handshake has come; 0: not known. */
static uint32_t came_by(int descriptor, int family) {
    uint8_t buffer[256];
    socklen_t length = sizeof buffer;
    int on = 1, off = 0;
    bool is_v4 = family == AF_INET;
    int level = is_v4 ? IPPROTO_IP : IPPROTO_IPV6, want = is_v4 ? IP_PKTINFO : IPV6_RECVPKTINFO;
    if (setsockopt(descriptor, level, want, &on, sizeof on) != 0)
        return 0;
    int failed =
        getsockopt(descriptor, level, is_v4 ? IP_PKTOPTIONS : IPV6_2292PKTOPTIONS, buffer, &length);
    (void)setsockopt(descriptor, level, want, &off, sizeof off);
    if (failed != 0)
        return 0;
    struct msghdr told = {.msg_control = buffer, .msg_controllen = length};
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&told); each != NULL;
         each = CMSG_NXTHDR(&told, each)) {
        if (is_v4 && each->cmsg_level == IPPROTO_IP && each->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(each), sizeof info);
            return (uint32_t)info.ipi_ifindex;
        }
        if (!is_v4 && each->cmsg_level == IPPROTO_IPV6 && each->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(each), sizeof info);
            return info.ipi6_ifindex;
        }
    }
    return 0;
}

static long number_in(const char *path) {
    char text[16] = "";
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t length = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    return length > 0 ? strtol(text, NULL, 10) : 0;
}

/* Whether an interface answers ARP for its own addresses only. Where it answers for those of others, too, a peer may
 * come by another one at any time, and a connection that is bound to this one would refuse what comes there. */
static bool answers_for_itself(const char *name) {
    char path[64 + IF_NAMESIZE];
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%s/arp_ignore", name);
    return number_in("/proc/sys/net/ipv4/conf/all/arp_ignore") > 0 || number_in(path) > 0;
}

void te_socket_answer_by_its_interface(int descriptor, const struct sockaddr *from) {
    te_interfaces now;
    char name[IF_NAMESIZE];
    size_t length = 0;
    const uint8_t *far = bytes_of(from, &length);
    if (far == NULL || is_loopback(from->sa_family, far))
        return;
    uint32_t number = came_by(descriptor, from->sa_family), count = 0, last = 0;
    if (number == 0 || if_indextoname(number, name) == NULL ||
        (from->sa_family == AF_INET && !answers_for_itself(name)) ||
        te_interfaces_look(&now, from->sa_family) != MS_OK || is_own(&now, from->sa_family, far))
        return;
    const te_interface *taken = NULL;
    for (uint32_t i = 0; i < now.count; i++) {
        if (!is_in_network(&now.all[i], from->sa_family, far))
            continue;
        count += now.all[i].number != last;
        last = now.all[i].number;
        if (now.all[i].number == number)
            taken = &now.all[i];
    }
    if (taken != NULL && count > 1) /* one alone is what the routes take, too */
        (void)setsockopt(descriptor, SOL_SOCKET, SO_BINDTODEVICE, taken->name,
                         (socklen_t)strlen(taken->name));
}

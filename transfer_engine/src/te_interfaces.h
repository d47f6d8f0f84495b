/* This machine's IP interfaces, as the kernel has them now, and which of them leads to which address of a peer. */
#ifndef TE_INTERFACES_H
#define TE_INTERFACES_H

#include <net/if.h>
#include <sys/socket.h>

#include "te_rail_ops.h"

#define TE_INTERFACE_ADDRESSES_MAX 128u
#define TE_OWN_ADDRESSES_MAX 256u

/* An address of an interface that leads to others.  Link-local ones are left out: they need a scope that no peer can tell. */
typedef struct te_interface {
    char name[IF_NAMESIZE];
    char text[TE_NIC_ADDRESS_BYTES]; /* "10.0.0.5", "fd00::5" */
    uint32_t number;                 /* the kernel's, from 1 on */
    bool is_running;                 /* it is up and has its link */
    int family;
    uint8_t bytes[16], mask[16];
} te_interface;

/* An address of this machine, whatever holds it: a virtual one may be the loopback's. */
typedef struct te_own_address {
    int family;
    uint8_t bytes[16];
} te_own_address;

typedef struct te_interfaces {
    te_interface all[TE_INTERFACE_ADDRESSES_MAX];
    uint32_t count;
    te_own_address own[TE_OWN_ADDRESSES_MAX];
    uint32_t own_count;
} te_interfaces;

/* Of one family or, AF_UNSPEC, of all. */
ms_status te_interfaces_look(te_interfaces *interfaces, int family);

/* Whether the interface with that address ("10.0.0.5") is known to have lost its link, or the address.  Pure. */
bool te_interface_is_lost(const te_interfaces *interfaces, const char *address);

/* Whether a connection between these addresses stays in this machine.  Pure. */
bool te_stays_here(const struct sockaddr *here, const struct sockaddr *there);

/* Pairs the peer's addresses (comma-separated) with interfaces that are in their networks: each address has a pair, and each such
 * interface, as far as there is room; neighbours get different ones.  An address that is in nobody's network, is this machine's own, or
 * says from where ("10.0.0.1>10.0.0.5:7800") is left to the routes, or to that.  `topology` is this engine's: where it names any
 * interface, no others are used.  Pure. */
uint32_t te_pairs_build(const te_interfaces *interfaces, const te_topology *topology,
                        const char *addresses, te_rail_ends ends[TE_RAILS_MAX]);

/* The interface over which a connection should go so that it uses the wire that its local address says, where the routes might take
 * another one; "" where there is nothing to choose. */
void te_interface_between(const struct sockaddr *here, const struct sockaddr *there,
                          char name[IF_NAMESIZE]);
/* Answers on an accepted connection leave by the interface over which it came in, also where the routes
 * would take another one that is in the same network.  An improvement: without it a connection still works.  All interfaces are
 * looked at only where that can matter: not for this machine's own connections, nor where ARP is answered as it is by default. */
void te_socket_answer_by_its_interface(int descriptor, const struct sockaddr *from);

#endif

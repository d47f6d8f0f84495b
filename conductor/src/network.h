/* The NICs of a simulated cluster and what flows between them. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdbool.h>
#include <stdint.h>

typedef enum flow_kind { FLOW_FETCH, FLOW_STREAM, FLOW_REPLICA } flow_kind;

typedef struct flow {
    uint32_t source, target; /* NICs */
    uint32_t request;        /* or the block of a replica */
    flow_kind kind;
    double weight; /* its share beside others of the same NIC */
    double left_bytes, rate;
} flow;

typedef struct network {
    uint32_t nics;
    double *bandwidth;             /* of each NIC, each way */
    uint32_t *sending, *receiving; /* flows of each NIC */
    double *egress, *ingress;      /* their weights */
    double *egress_bytes;          /* yet to be sent, as of `now_s` */
    double *ingress_bytes;         /* yet to arrive */
    flow *flows;
    uint32_t count, capacity;
    double now_s, next_s; /* next_s: when the first flow ends */
} network;

bool network_open(network *net, uint32_t nics);
void network_close(network *net);
bool network_add(network *net, double now_s, flow added);
void network_advance(network *net, double now_s);
/* Takes a flow out that has ended by now_s; false: none. */
bool network_take(network *net, double now_s, flow *ended);

#endif

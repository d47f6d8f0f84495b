/* Fair sharing by weight: a flow has the smaller of its shares of the sender's and the receiver's NIC. */
#include "network.h"

#include <math.h>
#include <stdlib.h>

/* A flow that ends within a microsecond has ended, or within what the clock's double still resolves where that is more
 * (30 years from the start): else rounding would leave bytes that no step of time can carry, and the clock would stand
 * still. */
#define NOTHING_S 1e-6
#define RESOLVED 1e-15

bool network_open(network *net, uint32_t nics) {
    *net = (network){.nics = nics, .next_s = INFINITY};
    net->bandwidth = calloc(nics, sizeof *net->bandwidth);
    net->sending = calloc(nics, sizeof *net->sending);
    net->receiving = calloc(nics, sizeof *net->receiving);
    net->egress = calloc(nics, sizeof *net->egress);
    net->ingress = calloc(nics, sizeof *net->ingress);
    net->egress_bytes = calloc(nics, sizeof *net->egress_bytes);
    net->ingress_bytes = calloc(nics, sizeof *net->ingress_bytes);
    return net->bandwidth && net->sending && net->receiving && net->egress && net->ingress &&
           net->egress_bytes && net->ingress_bytes;
}

void network_close(network *net) {
    free(net->bandwidth);
    free(net->sending);
    free(net->receiving);
    free(net->egress);
    free(net->ingress);
    free(net->egress_bytes);
    free(net->ingress_bytes);
    free(net->flows);
}

void network_advance(network *net, double now_s) {
    double elapsed_s = now_s - net->now_s;
    net->now_s = now_s;
    if (elapsed_s <= 0)
        return;
    for (uint32_t i = 0; i < net->count; i++) {
        flow *one = &net->flows[i];
        double sent = fmin(one->left_bytes, one->rate * elapsed_s);
        one->left_bytes -= sent;
        net->egress_bytes[one->source] = fmax(0, net->egress_bytes[one->source] - sent);
        net->ingress_bytes[one->target] = fmax(0, net->ingress_bytes[one->target] - sent);
    }
}

static void share(network *net) {
    net->next_s = INFINITY;
    for (uint32_t i = 0; i < net->count; i++) {
        flow *one = &net->flows[i];
        one->rate = one->weight * fmin(net->bandwidth[one->source] / net->egress[one->source],
                                       net->bandwidth[one->target] / net->ingress[one->target]);
        net->next_s = fmin(net->next_s, net->now_s + one->left_bytes / one->rate);
    }
}

bool network_add(network *net, double now_s, flow added) {
    if (net->count == net->capacity) {
        uint32_t more = net->capacity == 0 ? 64 : net->capacity * 2;
        flow *flows = realloc(net->flows, more * sizeof *flows);
        if (flows == NULL)
            return false;
        net->flows = flows;
        net->capacity = more;
    }
    network_advance(net, now_s);
    net->flows[net->count++] = added;
    net->sending[added.source]++;
    net->receiving[added.target]++;
    net->egress[added.source] += added.weight;
    net->ingress[added.target] += added.weight;
    net->egress_bytes[added.source] += added.left_bytes;
    net->ingress_bytes[added.target] += added.left_bytes;
    share(net);
    return true;
}

bool network_take(network *net, double now_s, flow *ended) {
    network_advance(net, now_s);
    double nothing_s = fmax(NOTHING_S, now_s * RESOLVED);
    for (uint32_t i = 0; i < net->count; i++) {
        flow *one = &net->flows[i];
        if (one->left_bytes > one->rate * nothing_s)
            continue;
        *ended = *one;
        net->sending[one->source]--;
        net->receiving[one->target]--;
        net->egress[one->source] -= one->weight;
        net->ingress[one->target] -= one->weight;
        net->flows[i] = net->flows[--net->count];
        if (net->sending[ended->source] == 0)
            net->egress_bytes[ended->source] = 0; /* no rounding is kept */
        if (net->receiving[ended->target] == 0)
            net->ingress_bytes[ended->target] = 0;
        share(net);
        return true;
    }
    share(net);
    return false;
}

/* A simulated decode node: continuous batching, one token a request and iteration. */
#ifndef DECODE_NODE_H
#define DECODE_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "cd_policy.h"

typedef struct decoding {
    uint64_t end; /* iteration at whose end its last token is there */
    uint32_t request;
} decoding;

typedef struct decode_node {
    double context_tokens;  /* of the batch */
    double reserved_tokens; /* of the batch and of who waits: prompts and whole answers */
    double batch_reserved_tokens;
    double promised, promised_tokens, promised_reserved;
    uint64_t iteration; /* how many have ended */
    decoding *batch;    /* a heap, who ends first on top */
    uint32_t count, capacity;
    uint32_t wait_first, wait_last, wait_count; /* a list through the requests */
    float *durations_s;                         /* of iterations from `kept_from` on */
    uint64_t kept_from, kept_count, kept_capacity;
    bool is_running;
    double running_s; /* of the present iteration */
} decode_node;

void decode_close(decode_node *node);
bool decode_join(decode_node *node, uint32_t request, uint64_t iterations);
uint32_t decode_leave(decode_node *node); /* the one on top */
/* Notes how long an iteration took; earliest: the first one that somebody still asks about. */
bool decode_note(decode_node *node, double duration_s, uint64_t earliest);
/* Mean, and mean of the longest tenth, of the gaps before the tokens of the iterations [first, last); the first one
 * waited too. */
bool decode_gaps(const decode_node *node, uint64_t first, uint64_t last, double waited_s,
                 float *scratch, double *mean_s, double *slow_s);

#endif

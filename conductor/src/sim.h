/* The simulated cluster's state, shared by its parts: arrivals, prefill, decoding, replication, events. */
#ifndef SIM_H
#define SIM_H

#include <stdlib.h>

#include "block_cache.h"
#include "cd_index.h"
#include "cd_sim.h"
#include "decode_node.h"
#include "network.h"

#define NONE UINT32_MAX

/* At the same moment: what ends comes before what begins, arrivals last, in the order of the trace. */
typedef enum event_kind {
    EVENT_ARRIVED, /* the last bytes of a flow, its latency later */
    EVENT_PREFILL_END,
    EVENT_STAGE_FREE,
    EVENT_ITERATION,
    EVENT_REPORT,
    EVENT_REPLICATE,
    EVENT_SAMPLE
} event_kind;

typedef struct event {
    double time_s;
    uint64_t sequence;
    uint32_t id;
    uint8_t kind, flow;
} event;

typedef struct sim_request {
    const uint32_t *blocks;
    uint32_t block_count;
    uint32_t tokens, output;
    int32_t prefill, source, decode;
    uint32_t local_blocks, prefix_blocks; /* held at the instance; with what is fetched */
    uint32_t kept_blocks;                 /* for how many there was room in its cache */
    uint32_t prefix_tokens;
    uint32_t waits_for; /* producers, and its own fetch */
    uint32_t next;      /* in a decode node's line */
    /* Edges to whom waits for what this one computes, and for what it fetches. */
    uint32_t waiters, fetch_waiters;
    uint32_t flying; /* place among the accepted */
    double work_s, predicted_s, begin_s, predicted_end_s,
        truth; /* truth: true over predicted time */
    double reserved_tokens;
    double fetch_begin_s, reached_s; /* reached: its KV cache was at the decode node */
    uint64_t join_iteration;
    double promised_s; /* in the order of arrival, from arrival on */
    double ready_s;    /* when its prefix is predicted to be there */
    bool is_fetching, is_queued, has_stream_ended, has_prefill_ended, has_failed_late;
} sim_request;

typedef struct edge {
    uint32_t waiter, next;
} edge;

typedef struct prefill_node {
    block_cache cache;
    uint32_t *queue; /* in the order of arrival */
    uint32_t queue_count, queue_capacity;
    double queued_s;         /* predicted, of what is queued */
    double predicted_free_s; /* of the first stage, what runs */
    double *stage_free_s;
    uint32_t running; /* requests that have begun and not ended */
    bool is_busy;     /* the first stage */
} prefill_node;

/* What a prefill instance told last, and what was decided since. */
typedef struct prefill_report {
    double queue_s, decided_s;
    uint32_t requests;
    int32_t decided; /* below 0: more of those that were told are refused */
} prefill_report;

struct cd_sim {
    cd_sim_config config;
    cd_trace trace;
    double now_s;
    uint32_t arrived;
    event *events;
    size_t event_count, event_capacity, timers; /* timers: events that only look, and end nothing */
    uint64_t event_sequence, used;
    uint64_t turn;
    sim_request *requests;
    edge *edges;
    uint32_t edge_count, edge_capacity, free_edge;
    prefill_node *prefill;
    decode_node *decode;
    network net;
    cd_index *index;
    cd_key *keys;
    cd_match *matches;
    cd_prefill_view *prefill_views;
    cd_decode_view *decode_views;
    prefill_report *prefill_reports;
    cd_decode_view *decode_reports; /* as told last, with what was decided since */
    double reported_s;
    uint32_t *flying; /* accepted, not through */
    uint32_t flying_count;
    cd_flight *flights;
    double *columns;
    cd_plan plan;    /* of one queue and one more request */
    double target_s; /* the deadline that the queues are planned for now */
    uint32_t plan_capacity;
    float *scratch;
    uint32_t output_max, blocks_max;
    /* What the scheduler has learnt from requests that finished. */
    double mean_output, mean_decode_s, mean_decode_square, accepted_per_s, last_accept_s,
        mean_ttft_s, mean_tokens;
    uint64_t finished;
    double *output_counts, *survival;
    double output_total;
    uint64_t survival_as_of;
    /* Heat of blocks: reads a second, fading. */
    float *heat;
    double *heat_s;
    uint32_t *touched;
    uint32_t touched_count;
    uint8_t *block_flags; /* TOUCHED since the last round, UNDER_WAY to somewhere */
    uint32_t *parent;     /* the block before each; NONE: it is the first */
    double replicated_bytes;
    uint32_t *top;
    uint32_t top_count;
    double *samples;
    size_t sample_count, sample_capacity;
    uint64_t evicted_blocks;
    double busy_s;
    bool is_out_of_memory;
};

#define SURVIVAL_BINS 512
#define SURVIVAL_BIN_TOKENS 16.0

bool sim_schedule(cd_sim *sim, double time_s, event_kind kind, uint32_t id, uint8_t flow);
void sim_set(cd_sim *sim, uint32_t request, uint32_t column, double value);
double sim_queue_s(const cd_sim *sim, uint32_t instance);
/* What would go before, and how many after, a request that takes so long and arrives now. */
void sim_line(cd_sim *sim, uint32_t instance, double predicted_s, double *ahead_s, double *behind);
/* Who is next, as a place in the queue; NONE: nobody yet. */
uint32_t sim_next_in_queue(cd_sim *sim, uint32_t instance);
void sim_close_plan(cd_sim *sim);
void sim_flow(cd_sim *sim, flow_kind kind, uint32_t request, uint32_t source, uint32_t target,
              double size_bytes);
void sim_land(cd_sim *sim, uint32_t request);
void sim_sample(cd_sim *sim);

/* All instances tell their load. */
void sim_report(cd_sim *sim);
void sim_arrive(cd_sim *sim, uint32_t request);
/* Whether the decode pool still has room for a request whose prefill could begin now; its instance is chosen anew. */
bool sim_has_room_yet(cd_sim *sim, uint32_t request);
/* Lets a request go that has left the queue; false: others count on what it computes. */
bool sim_refuse_queued(cd_sim *sim, uint32_t request);
bool sim_wait(cd_sim *sim, uint32_t waiter, uint32_t *waiters);
void sim_wake(cd_sim *sim, uint32_t *waiters);
void sim_begin_fetch(cd_sim *sim, uint32_t request);
void sim_end_fetch(cd_sim *sim, uint32_t request);
void sim_cache_block(cd_sim *sim, uint32_t instance, uint32_t request, uint32_t position,
                     uint32_t *entry);

void sim_start_prefills(cd_sim *sim, uint32_t instance);
void sim_end_prefill(cd_sim *sim, uint32_t request);

void sim_reach_decode(cd_sim *sim, uint32_t request);
void sim_end_iteration(cd_sim *sim, uint32_t instance);
void sim_learn(cd_sim *sim, const sim_request *request, double decode_s);

void sim_replicate(cd_sim *sim);
void sim_end_replica(cd_sim *sim, uint32_t block, uint32_t source, uint32_t target);
void sim_heat(cd_sim *sim, uint32_t block);

#endif

/* Decisions of the scheduler, as functions of what is known of the instances: nothing here keeps state, reads a clock
 * or draws a random number.  docs/scheduling.md explains each rule and names its source. */
#ifndef CD_POLICY_H
#define CD_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* begin cdef */
/* Predicted times of one kind of instance; units as in the Python classes of the same terms. */
typedef struct cd_cost {
    double prefill_base_s, prefill_token_s, prefill_pair_s;
    double decode_base_s, decode_request_s, decode_token_s;
    double kv_bytes_per_token, nic_bytes_per_s, transfer_latency_s;
    uint32_t group_nodes;  /* X of a chunked pipeline; 1: none */
    uint32_t chunk_tokens; /* of that pipeline */
    bool is_balanced;      /* its chunks take equally long */
    bool forgets_queued;   /* a transfer is predicted as if its sender had nothing else to send */
} cd_cost;

/* One node's work on a prefill; what a group takes until the first token. */
double cd_prefill_work_s(const cd_cost *cost, double tokens, double prefix_tokens);
double cd_prefill_s(const cd_cost *cost, double tokens, double prefix_tokens);
/* How long each node of a group is busy with it: no cluster of such groups has the first token sooner. */
double cd_prefill_node_s(const cd_cost *cost, double tokens, double prefix_tokens);
double cd_decode_s(const cd_cost *cost, double batch, double context_tokens);
double cd_transfer_s(const cd_cost *cost, double tokens, double queued_bytes);

enum {
    CD_RANDOM = 0,
    CD_LEAST_TIME = 1,
    CD_LEAST_COUNT = 2,
    CD_LOCAL = 3,
    CD_GLOBAL = 4,
    CD_EARLIEST = 5
};

/* CD_GLOBAL: who of several with the longest prefix is fetched from; the lowest number ends what is left of a tie. */
enum {
    CD_HOLDER_QUEUE = 0,  /* the shortest queue */
    CD_HOLDER_EGRESS = 1, /* the least to send */
    CD_HOLDER_FIRST = 2
};

typedef struct cd_selection {
    uint32_t rule;
    uint32_t holder_ties;
    double
        balancing_threshold; /* CD_GLOBAL: fetch if the best prefix is longer by more than this factor; >= 1 */
    bool compares_costs; /* CD_GLOBAL: and only if fetching takes less than computing */
    bool
        overlaps; /* the transfer runs while the request waits: max(queue, transfer), not their sum */
    double work_weight; /* CD_EARLIEST: seconds of TTFT that a second of computing counts as */
    double
        copy_weight; /* CD_EARLIEST: the same of a second of transfer: a copy costs others their cache */
} cd_selection;

/* What the scheduler knows of a prefill instance. */
typedef struct cd_prefill_view {
    double queue_s; /* predicted time until all that goes before the request has been computed */
    double
        behind; /* requests that wait already and would wait for this one: its queue is not in order of arrival */
    double ready_s; /* until the last block of its prefix is computed; CD_EARLIEST looks at it */
    double egress_bytes; /* that it has to send yet */
    uint32_t requests;   /* on it */
    uint32_t prefix_tokens;
    bool is_closed; /* takes nothing new: leaving, or not heard of */
} cd_prefill_view;

typedef struct cd_prefill_choice {
    int32_t instance;
    int32_t source; /* whom to fetch from; -1: nobody */
    uint32_t prefix_tokens, transfer_tokens;
    double queue_s, transfer_s, prefill_s, ttft_s;
} cd_prefill_choice;

/* overlaps: as of cd_selection. */
double cd_ttft_s(double queue_s, double transfer_s, double prefill_s, bool overlaps);

/* The prefill instance of a request; false: all are closed.  `turn` is where to begin, so that ties go round; for
 * CD_RANDOM it is the random number. */
bool cd_choose_prefill(const cd_selection *selection, const cd_cost *cost, uint32_t tokens,
                       const cd_prefill_view *views, uint32_t count, uint64_t turn,
                       cd_prefill_choice *choice);

/* Who waits at an instance, in the order of arrival. */
typedef struct cd_waiting {
    double waited_s, work_s;
    double promised_s; /* what its first token would have taken in the order of arrival */
} cd_waiting;

/* Seconds after arrival: what the first token should take, and what it may.  least_s: somebody who was promised more is
 * not to wait for longer than that, up to the target; whoever was promised less may wait for so long. */
typedef struct cd_deadlines {
    double target_s, slo_s, least_s;
} cd_deadlines;

/* A queue and room to plan it in, each for so many as wait. */
typedef struct cd_plan {
    cd_waiting *waiting;
    uint32_t *sequence; /* what comes out: places of `waiting`, who is next first */
    uint32_t *by_deadline, *heap;
    double *left_s;
    uint8_t *level;
} cd_plan;

/* In which order an instance computes what waits for it; it is free in free_s.  As many as possible have their first
 * token within the target, or what they were promised if that is less; who cannot gives way to all who can, and has the SLO as its deadline, then twice the SLO, and so
 * on.  Within their deadlines the short ones go first. */
void cd_plan_queue(const cd_plan *plan, const cd_deadlines *deadlines, uint32_t count,
                   double free_s);

/* How the target follows what is possible. */
typedef struct cd_target {
    double most;       /* of the SLO */
    double miss_share; /* so many of all may miss it: 0.01 looks after the 99th percentile */
    double gain;       /* of the target's logarithm, a miss */
} cd_target;

/* The target after one more first token. */
double cd_next_target_s(const cd_target *target, double slo_s, double target_s, double ttft_s);

typedef struct cd_decode_limits {
    double tbt_slo_s;
    double capacity_tokens;
    double batch_max;
    double stream_weight; /* of a wait for the NIC beside the load, as a share of the TBT's SLO */
} cd_decode_limits;

/* What the scheduler knows of a decode instance.  Promised: chosen for it, still in prefill. */
typedef struct cd_decode_view {
    double batch, context_tokens, reserved_tokens;
    double promised, promised_tokens;
    double ingress_bytes; /* on their way there */
    bool is_closed;
} cd_decode_view;

typedef struct cd_decode_choice {
    int32_t instance;
    double tbt_s;
    double
        load; /* of the scarcest: TBT, memory, batch; above 1: it does not keep the SLO or has no room */
} cd_decode_choice;

double cd_decode_load(const cd_cost *cost, const cd_decode_limits *limits, double batch,
                      double context_tokens, double reserved_tokens);
/* The least loaded with the request added; false: all are closed.  The KV cache of a request streams there while its
 * prompt is computed; where much is cached that takes longer, and its second token waits.  So a NIC that is busy counts,
 * among those that have room. */
bool cd_choose_decode(const cd_cost *cost, const cd_decode_limits *limits, uint32_t tokens,
                      double expected_output, const cd_decode_view *views, uint32_t count,
                      uint64_t turn, cd_decode_choice *choice);

enum {
    CD_ADMIT_ALL = 0,
    CD_ADMIT_BASELINE = 1,
    CD_ADMIT_EARLY = 2,
    CD_ADMIT_PREDICTED = 3,
    CD_ADMIT_ORACLE = 4,
    CD_ADMIT_FORECAST = 5
};

/* Which load of the decode instances is the pool's. */
enum {
    CD_POOL_RULE = 0, /* the mean; with ORACLE and FORECAST that of the least loaded */
    CD_POOL_MEAN = 1,
    CD_POOL_LEAST = 2,
    CD_POOL_MOST = 3
};

/* A request that was accepted and is not through. */
typedef struct cd_flight {
    double begin_s;    /* when its decoding began, or is predicted to */
    double tokens;     /* its context now */
    double generated;  /* tokens so far */
    double output;     /* tokens in all: only the oracle looks at it */
    uint32_t instance; /* of decoding */
} cd_flight;

typedef struct cd_forecast {
    double now_s, at_s; /* at_s: when this request's prefill ends, as predicted */
    double decode_s;    /* CD_ADMIT_PREDICTED: the one time that decoding takes, of all requests */
    const double
        *survival; /* CD_ADMIT_FORECAST: share of answers longer than i bins, falling from 1 */
    uint32_t survival_bins;
    double bin_tokens;
    double margin;       /* CD_ADMIT_FORECAST: standard deviations of the batch to allow for */
    double joins_per_s;  /* CD_ADMIT_FORECAST: requests accepted lately */
    double join_delay_s; /* ... what one takes from arrival to decoding */
    double join_tokens;  /* ... and its context */
    double threshold;    /* an instance has room up to this load */
    uint32_t pool;       /* which load is the pool's */
} cd_forecast;

/* The decode pool's load with the request added: now, and at forecast->at_s.  Unless `pool` says otherwise it is the
 * mean over the instances now and with PREDICTED, which spreads requests evenly for it, and that of the least loaded
 * instance with ORACLE and FORECAST; told is the one of those with room that is least loaded, with FORECAST when those
 * have come to whom it is promised and whom the request will meet. */
double cd_pool_load(const cd_cost *cost, const cd_decode_limits *limits, uint32_t tokens,
                    const cd_decode_view *views, uint32_t count, uint32_t pool);
double cd_pool_load_at(uint32_t rule, const cd_cost *cost, const cd_decode_limits *limits,
                       uint32_t tokens, double expected_output, const cd_decode_view *views,
                       uint32_t count, const cd_flight *flights, size_t flight_count,
                       const cd_forecast *forecast, int32_t *instance);

/* How many replicas a block wants that is read so often: each serves `share` of a NIC at most. */
uint32_t cd_wanted_replicas(double reads_per_s, double block_bytes, double nic_bytes_per_s,
                            double share, uint32_t instances);
/* end cdef */

#endif

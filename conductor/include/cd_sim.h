/* A cluster in virtual time: requests of a trace go through prefill nodes, a network and decode nodes. */
#ifndef CD_SIM_H
#define CD_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cd_policy.h"

/* begin cdef */
enum { CD_LRU = 0, CD_LFU = 1, CD_LENGTH_AWARE_TAIL = 2, CD_LENGTH_AWARE_HEAD = 3 };
enum { CD_FCFS = 0, CD_FCFS_READY = 1, CD_PLANNED = 2 };
enum { CD_TIES_ROUND = 0, CD_TIES_DRAWN = 1, CD_TIES_FIRST = 2 };
enum { CD_LOAD_HIDDEN = 0, CD_LOAD_SERIAL = 1, CD_LOAD_LAYERWISE = 2 };

typedef struct cd_sim_config {
    uint32_t prefill_instances,
        decode_instances; /* a prefill instance is a group of cost.group_nodes nodes */
    bool is_coupled; /* each instance decodes what it prefills: as many of both, of one node each */
    uint32_t block_tokens;
    uint64_t cache_blocks; /* of a prefill instance; 0: without bound */
    uint32_t eviction;
    cd_cost cost;     /* what is true */
    cd_cost believed; /* what the scheduler predicts with */
    double
        error_sigma; /* of the logarithm of true over predicted prefill time, drawn for each request */
    uint32_t loading; /* of the prefix into the device, and of the new blocks into DRAM */
    uint32_t layers;
    double load_bytes_per_s, store_bytes_per_s;
    double hop_latency_s; /* of a pipeline, beside the activations' bytes */
    double hop_bytes_per_token;

    cd_selection selection;
    uint32_t tie_order;  /* where the search for an instance begins, so who wins a tie */
    uint32_t order;      /* of an instance's queue */
    cd_target target;    /* CD_PLANNED */
    double target_least; /* of the target: least_s of the deadlines */
    bool counts_running; /* the queue time has the rest of the running request in it */
    bool pins_queued;    /* what a queued request will read is not evicted */
    bool keeps_fetched;  /* a fetched copy is as good as any other block; else the first to go */
    bool touches_source; /* a fetch counts as a use at its source */

    uint32_t admission;
    double threshold;
    double margin; /* of the forecast */
    uint32_t pool; /* which load of the decode instances is the pool's */
    bool
        averages_prefill; /* the TTFT that admission looks at has the mean queue in it, not the chosen one's */
    bool is_length_neutral; /* the look at the decode pool is taken for a prompt of mean length */
    double report_s;        /* how often instances tell their load; 0: it is known at any moment */
    bool counts_decided;    /* between reports: what was decided since */
    bool checks_again; /* before a prefill begins: the decode instance, and whether there is room */
    double ttft_slo_s;
    cd_decode_limits decode;
    double decode_s_initial; /* t_d before anybody has finished */
    bool
        weighs_decode_s; /* t_d of requests as a batch meets them: each counts as long as it stays */
    double output_initial; /* expected answer before anybody has finished */
    double
        decode_patience_s; /* how long a request waits for room at its decode node before it is rejected there */

    double fetch_weight, replica_weight; /* share of a NIC, beside 1 of a stream to decoding */
    double hotspot_interval_s;           /* 0: no replication ahead of demand */
    double hotspot_share;
    double hotspot_bytes_per_s;

    double speed;
    uint64_t seed;
    double sample_s; /* 0: no samples */
    uint32_t top_keys;
} cd_sim_config;

typedef struct cd_trace {
    uint32_t requests;
    const double *arrival_s;
    const uint32_t *tokens, *output;
    const uint64_t *first_block; /* requests + 1 of them: where each request's blocks begin */
    const uint32_t *blocks;      /* numbers from 0, the whole blocks only */
    uint32_t distinct_blocks;
} cd_trace;

/* A request's outcome, one column each, in the order of the trace. */
enum {
    CD_STATE = 0, /* CD_FINISHED, ... */
    CD_ARRIVAL,
    CD_TTFT,
    CD_TTFT_PREDICTED,
    CD_QUEUED,
    CD_PREFILL,
    CD_PREFILL_WORK,
    CD_PREFIX_TOKENS,
    CD_LOCAL_TOKENS,
    CD_FETCH,
    CD_FETCH_ALONE,
    CD_FETCH_BYTES,
    CD_TBT,
    CD_TBT_MEAN,
    CD_END,
    CD_DECODE_WAIT,
    CD_PREFILL_INSTANCE,
    CD_DECODE_INSTANCE,
    CD_TBT_PREDICTED,
    CD_MISPREDICTED_TOKENS,
    CD_COLUMNS
};
enum {
    CD_PENDING = 0,
    CD_FINISHED = 1,
    CD_REJECTED_PREFILL = 2,
    CD_REJECTED_DECODE = 3,
    CD_REJECTED_LATE = 4,
    CD_REJECTED_QUEUED = 5
};

typedef struct cd_sim cd_sim;

/* NULL: no memory, or numbers that cannot be.  The trace must live as long. */
cd_sim *cd_sim_open(const cd_sim_config *config, const cd_trace *trace);
void cd_sim_close(cd_sim *sim);
/* Goes on for so many events; 1: there is more, 0: through, -1: no memory. */
int cd_sim_step(cd_sim *sim, uint64_t events);
uint32_t cd_sim_arrived(const cd_sim *sim);
double cd_sim_now_s(const cd_sim *sim);
const double *cd_sim_column(const cd_sim *sim, uint32_t column);
/* Rows of samples: time, load of each prefill instance, of each decode instance, bytes to be sent, replicas of each of
 * the top keys. */
uint32_t cd_sim_sample_width(const cd_sim *sim);
size_t cd_sim_samples(const cd_sim *sim, const double **rows);
double cd_sim_replicated_bytes(const cd_sim *sim);
uint64_t cd_sim_evicted_blocks(const cd_sim *sim);
double cd_sim_busy_s(const cd_sim *sim); /* of all prefill nodes */
/* end cdef */

#endif

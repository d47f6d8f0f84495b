/* How loaded the decode pool is, or will be when a request's prefill has ended. */
#include <math.h>
#include <string.h>

#include "cd_policy.h"

/* Loads of the instances that are open, one after the other. */
typedef struct load_sum {
    double sum, least, most;
    uint32_t open;
} load_sum;

static void add_load(load_sum *loads, double load) {
    loads->least = loads->open == 0 ? load : fmin(loads->least, load);
    loads->most = fmax(loads->most, load);
    loads->sum += load;
    loads->open++;
}

static double load_of_pool(const load_sum *loads, uint32_t pool) {
    if (loads->open == 0)
        return 0;
    switch (pool) {
    case CD_POOL_LEAST:
        return loads->least;
    case CD_POOL_MOST:
        return loads->most;
    default:
        return loads->sum / loads->open;
    }
}

double cd_pool_load(const cd_cost *cost, const cd_decode_limits *limits, uint32_t tokens,
                    const cd_decode_view *views, uint32_t count, uint32_t pool) {
    load_sum loads = {0};
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].is_closed)
            continue;
        double held =
            fmax(views[i].context_tokens, views[i].reserved_tokens - views[i].promised_tokens);
        add_load(&loads, cd_decode_load(cost, limits, views[i].batch + 1,
                                        views[i].context_tokens + tokens, held + tokens));
    }
    return load_of_pool(&loads, pool);
}

/* The chance that an answer of which so much is there goes on for so many tokens more. */
static double chance_to_stay(const cd_forecast *forecast, double generated, double more) {
    double last = (double)forecast->survival_bins - 1;
    uint32_t from = (uint32_t)fmin(generated / forecast->bin_tokens, last);
    uint32_t to = (uint32_t)fmin((generated + more) / forecast->bin_tokens, last);
    double alive = forecast->survival[from];
    return alive > 0 ? forecast->survival[to] / alive : 0;
}

static double stays(uint32_t rule, const cd_forecast *forecast, const cd_flight *flight,
                    double tbt_s) {
    if (flight->begin_s > forecast->at_s)
        return 0; /* still in prefill then */
    double more = (forecast->at_s - fmax(flight->begin_s, forecast->now_s)) / tbt_s;
    switch (rule) {
    case CD_ADMIT_ORACLE:
        return flight->generated + more < flight->output ? 1 : 0;
    case CD_ADMIT_FORECAST:
        return chance_to_stay(forecast, flight->generated, more);
    default:
        return flight->begin_s + forecast->decode_s > forecast->at_s ? 1 : 0;
    }
}

/* Requests that have not arrived yet and will decode before this one does: without them whoever takes long to prefill
 * sees an empty pool at its end, and long prompts are let in where short ones are not. */
static double future_joins(const cd_forecast *forecast, double tbt_s) {
    double span_s = forecast->at_s - forecast->now_s - forecast->join_delay_s;
    if (span_s <= 0)
        return 0;
    double sum = 0;
    for (int step = 0; step < 8; step++)
        sum += chance_to_stay(forecast, 0, span_s * (step + 0.5) / 8 / tbt_s);
    return forecast->joins_per_s * span_s * sum / 8;
}

/* One instance, when a request's prefill ends. */
typedef struct instance_then {
    double batch, context, variance; /* variance: of the batch */
    double met, met_tokens;          /* promised to it, for whom the request will still be there */
    double tbt_s;
} instance_then;

static void add_flight(uint32_t rule, const cd_forecast *forecast, const cd_flight *flight,
                       instance_then *then) {
    double chance = stays(rule, forecast, flight, then->tbt_s);
    then->batch += chance;
    then->variance += chance * (1 - chance);
    then->context += chance * flight->tokens;
    if (rule != CD_ADMIT_FORECAST || flight->begin_s <= forecast->at_s)
        return;
    double meets = chance_to_stay(forecast, 0, (flight->begin_s - forecast->at_s) / then->tbt_s);
    then->met += meets;
    then->met_tokens += meets * flight->tokens;
}

static double mean_load(const cd_cost *cost, const cd_decode_limits *limits, uint32_t tokens,
                        const cd_decode_view *views, const instance_then *then, uint32_t count) {
    double batches = 0, contexts = 0;
    uint32_t open = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].is_closed)
            continue;
        open++;
        batches += then[i].batch;
        contexts += then[i].context;
    }
    if (open == 0)
        return 0;
    double context = contexts / open + tokens;
    return cd_decode_load(cost, limits, batches / open + 1, context, context);
}

#define POOL_MAX 1024

double cd_pool_load_at(uint32_t rule, const cd_cost *cost, const cd_decode_limits *limits,
                       uint32_t tokens, double expected_output, const cd_decode_view *views,
                       uint32_t count, const cd_flight *flights, size_t flight_count,
                       const cd_forecast *forecast, int32_t *instance) {
    instance_then then[POOL_MAX];
    *instance = -1;
    if (count == 0 || count > POOL_MAX)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        then[i] = (instance_then){
            .tbt_s = cd_decode_s(cost, views[i].batch, views[i].context_tokens),
        };
    for (size_t k = 0; k < flight_count; k++)
        add_flight(rule, forecast, &flights[k], &then[flights[k].instance]);
    if (rule == CD_ADMIT_PREDICTED &&
        (forecast->pool == CD_POOL_RULE || forecast->pool == CD_POOL_MEAN))
        return mean_load(cost, limits, tokens, views, then, count);
    /* Whoever is promised a place has a long prompt, mostly, and loses most if there is none when it comes.  So the
     * request goes where it is least in the way of those, among the instances that have room for it; it is not refused
     * for their sake. */
    load_sum loads = {0};
    double chosen = 0;
    bool has_room = false;
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].is_closed)
            continue;
        double joins = 0, spare = 0;
        if (rule == CD_ADMIT_FORECAST) {
            joins = future_joins(forecast, then[i].tbt_s) / count;
            spare = forecast->margin *
                    sqrt(then[i].variance + joins); /* who comes and goes is chance */
        }
        double mean_tokens = then[i].batch > 0 ? then[i].context / then[i].batch : tokens;
        double batch = then[i].batch + joins + spare + 1;
        double context =
            then[i].context + joins * forecast->join_tokens + spare * mean_tokens + tokens;
        double load =
            cd_decode_load(cost, limits, batch, context, context + batch * expected_output / 2);
        batch += then[i].met;
        context += then[i].met_tokens;
        double with_met =
            cd_decode_load(cost, limits, batch, context, context + batch * expected_output / 2);
        bool fits = load <= forecast->threshold;
        double score = fits ? with_met : load;
        add_load(&loads, load);
        if (*instance < 0 || fits > has_room || (fits == has_room && score < chosen)) {
            *instance = (int32_t)i;
            chosen = score;
            has_room = fits;
        }
    }
    if (rule == CD_ADMIT_PREDICTED)
        *instance = -1; /* it knows of no instance */
    return load_of_pool(&loads, forecast->pool == CD_POOL_RULE ? CD_POOL_LEAST : forecast->pool);
}

uint32_t cd_wanted_replicas(double reads_per_s, double block_bytes, double nic_bytes_per_s,
                            double share, uint32_t instances) {
    double wanted = ceil(reads_per_s * block_bytes / (share * nic_bytes_per_s));
    return wanted < 1 ? 1 : wanted > instances ? instances : (uint32_t)wanted;
}

/* How loaded the decode pool is, or will be when a request's prefill has ended. */
#include <math.h>
#include <string.h>

#include "cd_policy.h"

double cd_pool_load(const cd_cost *cost, const cd_decode_limits *limits, uint32_t tokens,
                    const cd_decode_view *views, uint32_t count) {
    double sum = 0;
    uint32_t open = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].is_closed)
            continue;
        open++;
        double held =
            fmax(views[i].context_tokens, views[i].reserved_tokens - views[i].promised_tokens);
        sum += cd_decode_load(cost, limits, views[i].batch + 1, views[i].context_tokens + tokens,
                              held + tokens);
    }
    return open == 0 ? 0 : sum / open;
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

#define POOL_MAX 1024

double cd_pool_load_at(uint32_t rule, const cd_cost *cost, const cd_decode_limits *limits,
                       uint32_t tokens, double expected_output, const cd_decode_view *views,
                       uint32_t count, const cd_flight *flights, size_t flight_count,
                       const cd_forecast *forecast, int32_t *instance) {
    double batch[POOL_MAX], context[POOL_MAX], tbt_s[POOL_MAX], variance[POOL_MAX];
    *instance = -1;
    if (count == 0 || count > POOL_MAX)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        batch[i] = context[i] = variance[i] = 0;
        tbt_s[i] = cd_decode_s(cost, views[i].batch, views[i].context_tokens);
    }
    for (size_t k = 0; k < flight_count; k++) {
        uint32_t i = flights[k].instance;
        double chance = stays(rule, forecast, &flights[k], tbt_s[i]);
        batch[i] += chance;
        variance[i] += chance * (1 - chance);
        context[i] += chance * flights[k].tokens;
    }
    if (rule == CD_ADMIT_PREDICTED) {
        double batches = 0, contexts = 0;
        uint32_t open = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (views[i].is_closed)
                continue;
            open++;
            batches += batch[i];
            contexts += context[i];
        }
        if (open == 0)
            return 0;
        context[0] = contexts / open + tokens;
        return cd_decode_load(cost, limits, batches / open + 1, context[0], context[0]);
    }
    double least = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].is_closed)
            continue;
        double joins = 0, spare = 0;
        if (rule == CD_ADMIT_FORECAST) {
            joins = future_joins(forecast, tbt_s[i]) / count;
            spare = forecast->margin * sqrt(variance[i] + joins); /* who comes and goes is chance */
        }
        double mean_tokens = batch[i] > 0 ? context[i] / batch[i] : tokens;
        double batch_then = batch[i] + joins + spare + 1;
        double tokens_then =
            context[i] + joins * forecast->join_tokens + spare * mean_tokens + tokens;
        double load = cd_decode_load(cost, limits, batch_then, tokens_then,
                                     tokens_then + batch_then * expected_output / 2);
        if (*instance < 0 || load < least) {
            *instance = (int32_t)i;
            least = load;
        }
    }
    return least;
}

uint32_t cd_wanted_replicas(double reads_per_s, double block_bytes, double nic_bytes_per_s,
                            double share, uint32_t instances) {
    double wanted = ceil(reads_per_s * block_bytes / (share * nic_bytes_per_s));
    return wanted < 1 ? 1 : wanted > instances ? instances : (uint32_t)wanted;
}

/* Predicted times, as conductor/prefill_time.py, decode_time.py, transfer_time.py and pipeline.py have them: tests
 * compare. */
#include <math.h>

#include "cd_policy.h"

double cd_prefill_work_s(const cd_cost *cost, double tokens, double prefix_tokens) {
    double n = tokens,
           p = prefix_tokens < n - 1 ? prefix_tokens : n - 1; /* one token at least is computed */
    return cost->prefill_base_s + cost->prefill_token_s * (n - p) +
           cost->prefill_pair_s * (n * n - p * p);
}

double cd_prefill_s(const cd_cost *cost, double tokens, double prefix_tokens) {
    double work_s = cd_prefill_work_s(cost, tokens, prefix_tokens);
    if (cost->group_nodes <= 1)
        return work_s;
    double p = prefix_tokens < tokens - 1 ? prefix_tokens : tokens - 1;
    double chunks = ceil((tokens - p) / cost->chunk_tokens);
    double longest_s = work_s / chunks;
    if (!cost->is_balanced && chunks > 1) { /* the last one, or the last whole one before it */
        double end = p + (chunks - 1) * cost->chunk_tokens;
        double last_s = cd_prefill_work_s(cost, tokens, end);
        longest_s = fmax(last_s, cd_prefill_work_s(cost, end, end - cost->chunk_tokens)) -
                    cost->prefill_base_s;
    }
    /* All stages take equally long for a chunk, so the longest chunk alone is paid once more a stage. */
    return (work_s + (cost->group_nodes - 1) * longest_s) / cost->group_nodes;
}

double cd_prefill_node_s(const cd_cost *cost, double tokens, double prefix_tokens) {
    return cd_prefill_work_s(cost, tokens, prefix_tokens) / cost->group_nodes;
}

double cd_decode_s(const cd_cost *cost, double batch, double context_tokens) {
    return cost->decode_base_s + cost->decode_request_s * batch +
           cost->decode_token_s * context_tokens;
}

double cd_transfer_s(const cd_cost *cost, double tokens, double queued_bytes) {
    if (tokens <= 0)
        return 0;
    return cost->transfer_latency_s +
           ((cost->forgets_queued ? 0 : queued_bytes) + tokens * cost->kv_bytes_per_token) /
               cost->nic_bytes_per_s;
}

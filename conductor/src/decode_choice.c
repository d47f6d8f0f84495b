/* Which decode instance goes on with a request: load balancing alone, there is nothing cached to look for. */
#include <math.h>

#include "cd_policy.h"

double cd_decode_load(const cd_cost *cost, const cd_decode_limits *limits, double batch,
                      double context_tokens, double reserved_tokens) {
    double load = cd_decode_s(cost, batch, context_tokens) / limits->tbt_slo_s;
    load = fmax(load, reserved_tokens / limits->capacity_tokens);
    return fmax(load, batch / limits->batch_max);
}

#define FULL 1e9 /* beyond any wait: without room a free NIC is of no use */

bool cd_choose_decode(const cd_cost *cost, const cd_decode_limits *limits, uint32_t tokens,
                      double expected_output, const cd_decode_view *views, uint32_t count,
                      uint64_t turn, cd_decode_choice *choice) {
    *choice = (cd_decode_choice){.instance = -1};
    double least = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = (uint32_t)((k + turn) % count);
        const cd_decode_view *view = &views[i];
        if (view->is_closed)
            continue;
        /* What is promised counts: a bunch of arrivals would else all go to the same instance. */
        double batch = view->batch + view->promised + 1;
        double context = view->context_tokens + view->promised_tokens + tokens;
        double load = cd_decode_load(cost, limits, batch, context,
                                     view->reserved_tokens + tokens + expected_output);
        double wait_s = view->ingress_bytes / cost->nic_bytes_per_s;
        double score = load + limits->stream_weight * wait_s / limits->tbt_slo_s;
        if (limits->stream_weight > 0 && load > 1)
            score = FULL + load;
        if (choice->instance < 0 || score < least) {
            least = score;
            choice->instance = (int32_t)i;
            choice->load = load;
            choice->tbt_s = cd_decode_s(cost, batch, context);
        }
    }
    return choice->instance >= 0;
}

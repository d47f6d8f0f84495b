/* Choosing and measuring rails: see te_slice_rail.h and te_schedule.h. */
#include "te_slice_rail.h"

#include "te_rails.h"

#define FIRST_BANDWIDTH 1e9 /* bytes a second, before anything was measured: all rails alike */
#define MEASURED_BYTES_MIN UINT64_C(65536) /* less says more about latency than about bandwidth */
#define SMOOTHING 0.25
#define PAUSE_NS_MIN INT64_C(50000000)
#define PAUSE_NS_MAX INT64_C(1000000000)
/* A rail of which nothing has come for four times as long as all that is in flight should take has stalled, and gets
 * no more until something comes. */
#define STALL_FACTOR 4.0
#define STALL_NS_MIN INT64_C(20000000)
#define ROUND_TRIP_AGE_NS INT64_C(10000000000)
#define WINDOW_BYTES_MAX ((double)(UINT64_C(256) << 20))
#define NS_PER_BYTE_MAX 1e4 /* 100 kB a second: what is slower looks so */
#define PROBE_NS 5e7        /* no probe is expected to take longer */
#define PROBE_BYTES_MIN UINT64_C(4096)

/* With only `window_ns` worth in flight, a rail whose round trip is longer would be measured as slower than it is, and
 * then be given less: two round trips more keep the estimate honest.  The round trip is that of a nearly empty rail:
 * measured behind a queue it would be the queue's, and let that grow.  So now and then the queue is left to run dry, as
 * BBR does (Cardwell et al., ACM Queue 2016): when the round trip is older than ROUND_TRIP_AGE_NS, the window is small until
 * it has been measured again. */
static void set_window(te_slice_rails *rails, te_slice_rail *rail, int64_t now_ns) {
    double bytes = (double)(rails->config->window_ns + 2 * rail->round_trip_ns) / rail->ns_per_byte;
    double least = 2.0 * (double)rails->config->slice_bytes;
    bytes = bytes < least || now_ns >= rail->round_trip_until_ns ? least : bytes;
    rail->window = (uint64_t)(bytes > WINDOW_BYTES_MAX ? WINDOW_BYTES_MAX : bytes);
}

static void find_fastest(te_slice_rails *rails, uint32_t nic_index) {
    te_slice_nic *nic = &rails->nics[nic_index];
    nic->fastest = TE_SCHEDULE_NONE;
    for (uint32_t i = 0; i < rails->count; i++)
        if (rails->rails[i].nic == nic_index &&
            (nic->fastest == TE_SCHEDULE_NONE || rails->rails[i].ns_per_byte < nic->ns_per_byte)) {
            nic->fastest = i;
            nic->ns_per_byte = rails->rails[i].ns_per_byte;
        }
}

static void measure_nic(te_slice_rails *rails, uint32_t index) {
    const te_slice_rail *rail = &rails->rails[index];
    if (rail->nic == TE_SCHEDULE_NONE)
        return;
    te_slice_nic *nic = &rails->nics[rail->nic];
    if (nic->fastest == TE_SCHEDULE_NONE || rail->ns_per_byte <= nic->ns_per_byte) {
        nic->fastest = index;
        nic->ns_per_byte = rail->ns_per_byte;
    } else if (nic->fastest == index) { /* it has become slower: is another one the fastest now? */
        find_fastest(rails, rail->nic);
    }
}

void te_slice_rail_place(te_slice_rails *rails, uint32_t index, uint32_t tier, uint32_t nic) {
    te_slice_rail *rail = &rails->rails[index];
    uint32_t old = rail->nic;
    rail->tier = tier;
    rail->nic = nic;
    if (old == nic)
        return;
    if (old != TE_SCHEDULE_NONE) {
        rails->nics[old].in_flight -= rail->in_flight;
        if (rails->nics[old].fastest == index)
            find_fastest(rails, old);
    }
    if (nic != TE_SCHEDULE_NONE)
        rails->nics[nic].in_flight += rail->in_flight;
    measure_nic(rails, index);
}

void te_slice_rail_free(te_slice_rails *rails, uint32_t index) {
    te_slice_rail_leave(rails, index, RAIL_GONE, INT64_MAX);
    te_slice_rail_place(rails, index, TE_TIER_PREFERRED, TE_SCHEDULE_NONE);
    rails->rails[index].next = rails->first_free;
    rails->first_free = index;
}

void te_slice_rail_init(te_slice_rails *rails, uint32_t index, uint64_t bandwidth_bytes_per_s) {
    te_slice_rail *rail = &rails->rails[index];
    double bandwidth = bandwidth_bytes_per_s == 0 ? FIRST_BANDWIDTH : (double)bandwidth_bytes_per_s;
    rail->ns_per_byte = 1e9 / bandwidth;
    rail->given_ns = INT64_MIN / 2;
    rail->retry_ns = INT64_MAX;
    rail->round_trip_until_ns = INT64_MAX;
    set_window(rails, rail, 0);
    measure_nic(rails, index);
}

/* When the rail would be through with `bytes` more. */
static double cost_of(const te_slice_rails *rails, const te_slice_rail *rail, double bytes) {
    double queue = (double)rail->in_flight * rail->ns_per_byte;
    if (rail->nic != TE_SCHEDULE_NONE) {
        const te_slice_nic *nic = &rails->nics[rail->nic];
        double of_nic = (double)nic->in_flight * nic->ns_per_byte;
        queue = of_nic > queue ? of_nic : queue;
    }
    return te_rail_cost(queue, bytes * rail->ns_per_byte, rail->tier);
}

int64_t te_slice_rail_stall_ns(const te_slice_rail *rail) {
    if (rail->slices == 0)
        return INT64_MAX;
    double expected = (double)rail->in_flight * rail->ns_per_byte + (double)rail->round_trip_ns;
    return rail->progress_ns + STALL_NS_MIN + (int64_t)(STALL_FACTOR * expected);
}

uint32_t te_slice_rail_choose(te_slice_rails *rails, uint32_t first, uint64_t bytes,
                              uint64_t waiting, int64_t now_ns, bool *is_probe) {
    uint32_t stalled = TE_SCHEDULE_NONE;
    uint32_t best = TE_SCHEDULE_NONE, open = TE_SCHEDULE_NONE, idle = TE_SCHEDULE_NONE;
    double best_cost = 0, open_cost = 0;
    uint32_t up_count = 0;
    *is_probe = false;
    for (uint32_t i = first; i != TE_SCHEDULE_NONE; i = rails->rails[i].next) {
        const te_slice_rail *rail = &rails->rails[i];
        if (rail->state == RAIL_LEFT && rail->retry_ns <= now_ns && rail->slices == 0) {
            *is_probe = true;
            return i;
        }
        if (rail->state != RAIL_UP)
            continue;
        up_count++;
        if (te_slice_rail_stall_ns(rail) <= now_ns) {
            if (rail->in_flight < rail->window)
                stalled = i;
            continue;
        }
        double cost = cost_of(rails, rail, (double)bytes);
        if (best == TE_SCHEDULE_NONE || cost < best_cost) {
            best = i;
            best_cost = cost;
        }
        if (rail->in_flight < rail->window && (open == TE_SCHEDULE_NONE || cost < open_cost)) {
            open = i;
            open_cost = cost;
        }
        if (rail->slices == 0 && now_ns - rail->given_ns > TE_RAIL_IDLE_PROBE_NS)
            idle = i;
    }
    if (idle != TE_SCHEDULE_NONE && idle != best && up_count > 1) {
        *is_probe = true; /* what was slow a second ago need not be so now */
        return idle;
    }
    if (best == TE_SCHEDULE_NONE) /* a rail that may have stalled is better than none */
        return stalled;
    if (open == TE_SCHEDULE_NONE || open == best)
        return open;
    const te_slice_rail *full = &rails->rails[best];
    double through = te_rail_cost((double)full->in_flight * full->ns_per_byte,
                                  (double)waiting * full->ns_per_byte, full->tier);
    if (open_cost <= through)
        return open;
    if (te_slice_rail_stall_ns(full) < rails->wake_ns) /* it is not waited for longer */
        rails->wake_ns = te_slice_rail_stall_ns(full);
    return TE_SCHEDULE_NONE;
}

uint64_t te_slice_rail_slice_bytes(const te_slice_rails *rails, uint32_t index, bool is_probe) {
    const te_schedule_config *config = rails->config;
    if (is_probe) {
        uint64_t most = (uint64_t)(PROBE_NS / rails->rails[index].ns_per_byte);
        most = most < PROBE_BYTES_MIN ? PROBE_BYTES_MIN : most;
        return most < config->slice_bytes ? most : config->slice_bytes;
    }
    double bytes = (double)config->slice_ns / rails->rails[index].ns_per_byte;
    if (bytes <= (double)config->slice_bytes)
        return config->slice_bytes;
    return bytes >= (double)config->slice_bytes_max ? config->slice_bytes_max : (uint64_t)bytes;
}

void te_slice_rail_begin(te_slice_rails *rails, te_slice *slice, int64_t now_ns) {
    te_slice_rail *rail = &rails->rails[slice->rail];
    slice->begin_ns = now_ns;
    slice->delivered_before = rail->delivered;
    slice->bytes_ahead = rail->in_flight;
    rail->in_flight += slice->bytes;
    if (rail->slices++ == 0)
        rail->progress_ns = now_ns;
    rail->given_ns = now_ns;
    if (rail->nic != TE_SCHEDULE_NONE)
        rails->nics[rail->nic].in_flight += slice->bytes;
    if (rail->state == RAIL_LEFT) {
        rail->state = RAIL_PROBING;
        rails->left_count--;
    }
}

/* What the rail delivered while the slice was under way, its neighbours' bytes too: with several in flight, one
 * slice's bytes over its time would say a fraction. */
static void measure(te_slice_rails *rails, const te_slice *slice, int64_t now_ns) {
    te_slice_rail *rail = &rails->rails[slice->rail];
    int64_t elapsed = now_ns - slice->begin_ns;
    if (elapsed <= 0)
        elapsed = 1;
    bool is_old = rail->round_trip_ns == 0 || now_ns >= rail->round_trip_until_ns;
    if (slice->bytes_ahead <= rails->config->slice_bytes &&
        (is_old || elapsed < rail->round_trip_ns)) {
        rail->round_trip_ns = elapsed;
        rail->round_trip_until_ns = now_ns + ROUND_TRIP_AGE_NS;
    }
    uint64_t delivered = rail->delivered - slice->delivered_before;
    if (delivered < MEASURED_BYTES_MIN && !slice->is_probe)
        return;
    double bandwidth = 1e9 / rail->ns_per_byte;
    bandwidth += SMOOTHING * ((double)delivered * 1e9 / (double)elapsed - bandwidth);
    double ns_per_byte = 1e9 / bandwidth;
    rail->ns_per_byte = ns_per_byte > NS_PER_BYTE_MAX ? NS_PER_BYTE_MAX : ns_per_byte;
    set_window(rails, rail, now_ns);
    measure_nic(rails, slice->rail);
}

void te_slice_rail_leave(te_slice_rails *rails, uint32_t index, te_slice_rail_state state,
                         int64_t retry_ns) {
    te_slice_rail *rail = &rails->rails[index];
    if (rail->state == RAIL_LEFT)
        rails->left_count--;
    rail->state = state;
    rail->retry_ns = retry_ns;
    if (state == RAIL_LEFT) {
        rails->left_count++;
        if (retry_ns < rails->wake_ns)
            rails->wake_ns = retry_ns;
    }
}

void te_slice_rail_end(te_slice_rails *rails, const te_slice *slice, bool has_failed,
                       int64_t now_ns) {
    te_slice_rail *rail = &rails->rails[slice->rail];
    rail->in_flight -= slice->bytes;
    rail->slices--;
    if (rail->nic != TE_SCHEDULE_NONE)
        rails->nics[rail->nic].in_flight -= slice->bytes;
    if (!has_failed) {
        rail->delivered += slice->bytes;
        rail->progress_ns = now_ns;
        measure(rails, slice, now_ns);
        if (rail->state == RAIL_PROBING) {
            rail->state = RAIL_UP;
            rail->failures = 0;
        } else if (rail->state == RAIL_UP) {
            rail->failures = 0;
        }
        return;
    }
    /* Slices that were in flight when it was left, and fail too, are the same failure. */
    if (rail->state != RAIL_UP && rail->state != RAIL_PROBING)
        return;
    int64_t pause = rail->failures < 5 ? PAUSE_NS_MIN << rail->failures : PAUSE_NS_MAX;
    rail->failures++;
    te_slice_rail_leave(rails, slice->rail, RAIL_LEFT,
                        now_ns + (pause < PAUSE_NS_MAX ? pause : PAUSE_NS_MAX));
}

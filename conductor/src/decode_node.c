/* The batch of a decode node, and the record of its iterations from which each request's TBT is read. */
#include "decode_node.h"

#include <stdlib.h>
#include <string.h>

void decode_close(decode_node *node) {
    free(node->batch);
    free(node->durations_s);
}

bool decode_join(decode_node *node, uint32_t request, uint64_t iterations) {
    if (node->count == node->capacity) {
        uint32_t more = node->capacity == 0 ? 64 : node->capacity * 2;
        decoding *batch = realloc(node->batch, more * sizeof *batch);
        if (batch == NULL)
            return false;
        node->batch = batch;
        node->capacity = more;
    }
    decoding joined = {.end = node->iteration + iterations, .request = request};
    uint32_t at = node->count++;
    while (at > 0 && joined.end < node->batch[(at - 1) / 2].end) {
        node->batch[at] = node->batch[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    node->batch[at] = joined;
    return true;
}

uint32_t decode_leave(decode_node *node) {
    uint32_t request = node->batch[0].request;
    decoding last = node->batch[--node->count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < node->count; at = child) {
        if (child + 1 < node->count && node->batch[child + 1].end < node->batch[child].end)
            child++;
        if (node->batch[child].end >= last.end)
            break;
        node->batch[at] = node->batch[child];
    }
    node->batch[at] = last;
    return request;
}

bool decode_note(decode_node *node, double duration_s, uint64_t earliest) {
    if (node->kept_count == node->kept_capacity) {
        uint64_t outdated = earliest > node->kept_from ? earliest - node->kept_from : 0;
        if (outdated > node->kept_count)
            outdated = node->kept_count;
        if (outdated > node->kept_capacity / 2) {
            node->kept_count -= outdated;
            node->kept_from += outdated;
            memmove(node->durations_s, node->durations_s + outdated,
                    node->kept_count * sizeof *node->durations_s);
        } else {
            uint64_t more = node->kept_capacity == 0 ? 4096 : node->kept_capacity * 2;
            float *durations_s = realloc(node->durations_s, more * sizeof *durations_s);
            if (durations_s == NULL)
                return false;
            node->durations_s = durations_s;
            node->kept_capacity = more;
        }
    }
    node->durations_s[node->kept_count++] = (float)duration_s;
    node->iteration++;
    return true;
}

/* Moves the `largest` largest to the front (Hoare's selection). */
static void select_largest(float *values, int64_t count, int64_t largest) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        float pivot = values[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] > pivot)
                i++;
            while (values[j] < pivot)
                j--;
            if (i <= j) {
                float swapped = values[i];
                values[i++] = values[j];
                values[j--] = swapped;
            }
        }
        if (largest - 1 <= j)
            high = j;
        else if (largest - 1 >= i)
            low = i;
        else
            break;
    }
}

bool decode_gaps(const decode_node *node, uint64_t first, uint64_t last, double waited_s,
                 float *scratch, double *mean_s, double *slow_s) {
    if (last <= first || first < node->kept_from)
        return false;
    int64_t count = (int64_t)(last - first), slow = (count + 9) / 10;
    memcpy(scratch, node->durations_s + (first - node->kept_from), (size_t)count * sizeof *scratch);
    scratch[0] += (float)waited_s;
    select_largest(scratch, count, slow);
    double sum = 0, sum_slow = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)scratch[i];
        if (i < slow)
            sum_slow += (double)scratch[i];
    }
    *mean_s = sum / (double)count;
    *slow_s = sum_slow / (double)slow;
    return true;
}

/* What RDMA or rails have left of a transfer, as a transfer of its own. */
#include "te_transfer.h"

#include <stdlib.h>

#include "te_fault.h"

ms_status te_transfer_read_rest(te_moving *wanted) {
    size_t left = 0, at = 0;
    for (size_t i = 0; i < wanted->count; i++) {
        left += wanted->results[i].status == MS_PENDING;
    }
    if (left == 0 || left == wanted->count) {
        return left == 0 ? MS_OK : te_transfer_run(wanted);
    }
    ms_read_item *items = malloc(left * sizeof *items);
    void **targets = malloc(left * sizeof *targets);
    ms_read_result *results = malloc(left * sizeof *results);
    ms_status status = MS_NO_MEMORY;
    if (items != NULL && targets != NULL && results != NULL) {
        for (size_t i = 0; i < wanted->count; i++) {
            if (wanted->results[i].status == MS_PENDING) {
                items[at] = wanted->reads[i];
                targets[at] = wanted->targets[i];
                results[at++] = (ms_read_result){.status = MS_PENDING};
            }
        }
        te_moving rest = *wanted;
        rest.count = left;
        rest.reads = items;
        rest.targets = targets;
        rest.results = results;
        status = te_transfer_run(&rest);
        at = 0;
        for (size_t i = 0; i < wanted->count && status == MS_OK; i++) {
            if (wanted->results[i].status == MS_PENDING) {
                wanted->results[i] = results[at++];
            }
        }
    }
    free(items);
    free((void *)targets);
    free(results);
    return status;
}

/* What RDMA has written travels no more: such an item stays only for its seal. */
ms_status te_transfer_write_rest(te_moving *wanted) {
    size_t left = 0, at = 0, moved = 0;
    for (size_t i = 0; i < wanted->count; i++) {
        moved += wanted->statuses[i] == MS_OK;
        left += wanted->statuses[i] != MS_OK || wanted->writes[i].seal_length > 0;
    }
    if (left == 0 || moved == 0) {
        return left == 0 ? MS_OK : te_transfer_write_all(wanted);
    }
    te_moving rest = *wanted;
    ms_write_item *items = malloc(left * sizeof *items);
    const void **sources = malloc(left * sizeof *sources);
    uint32_t *statuses = malloc(left * sizeof *statuses);
    ms_status status = MS_NO_MEMORY;
    if (items != NULL && sources != NULL && statuses != NULL) {
        for (size_t i = 0; i < wanted->count; i++) {
            bool is_there = wanted->statuses[i] == MS_OK;
            if (is_there && wanted->writes[i].seal_length == 0) {
                continue;
            }
            items[at] = wanted->writes[i];
            sources[at] = wanted->sources[i];
            statuses[at] = MS_PENDING;
            if (is_there) {
                items[at].offset = items[at].length = 0;
            }
            at++;
        }
        rest.count = left;
        rest.writes = items;
        rest.sources = sources;
        rest.statuses = statuses;
        status = te_transfer_write_all(&rest);
        wanted->hello_generation = rest.hello_generation;
        at = 0;
        for (size_t i = 0; i < wanted->count && status == MS_OK; i++) {
            if (wanted->statuses[i] != MS_OK || wanted->writes[i].seal_length > 0) {
                wanted->statuses[i] = statuses[at++];
            }
        }
    }
    free(items);
    free((void *)sources);
    free(statuses);
    return status;
}

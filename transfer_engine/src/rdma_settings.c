/* What can be set about RDMA, read once an engine from the environment (docs/rdma.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "te_rdma_settings.h"

typedef struct number {
    const char *name;
    uint64_t least, most, usual;
} number;

/* A value that is no number, or out of bounds, is told and not used. */
static uint64_t read_number(te_rdma_lookup *lookup, const number *about, char *problem,
                            size_t problem_bytes) {
    const char *text = lookup(about->name);
    if (text == NULL || text[0] == '\0')
        return about->usual;
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value < about->least ||
        value > about->most) {
        snprintf(problem, problem_bytes, "%s=%.40s is not a number from %llu to %llu: %llu is used",
                 about->name, text, (unsigned long long)about->least,
                 (unsigned long long)about->most, (unsigned long long)about->usual);
        return about->usual;
    }
    return value;
}

void te_rdma_settings_read(te_rdma_lookup *lookup, te_rdma_settings *settings, char *problem,
                           size_t problem_bytes) {
#define PREFIX "MOONCAKE_STORE_RDMA"
#define READ(name, least, most, usual)                                                             \
    read_number(lookup, &(number){PREFIX name, least, most, usual}, problem, problem_bytes)
    problem[0] = '\0';
    const char *only = lookup(PREFIX "_DEVICES");
    *settings = (te_rdma_settings){
        .is_on = READ("", 0, 1, 1) == 1,
        .queue_pairs_per_rail = (uint32_t)READ("_QUEUE_PAIRS", 1, 8, 1),
        .endpoints_per_peer = (uint32_t)READ("_ENDPOINTS_PER_PEER", 1, 64, 4),
        .endpoints_max = (uint32_t)READ("_ENDPOINTS_MAX", 1, 65536, 256),
        .queue_pairs_max = (uint32_t)READ("_QUEUE_PAIRS_MAX", 1, 1048576, 16384),
        .slice_bytes = (uint32_t)READ("_SLICE_BYTES", 4096, 64 << 20, 256 << 10),
        .write_bytes_min = (uint32_t)READ("_WRITE_BYTES_MIN", 0, 1 << 30, 64 << 10),
        .rails_bytes_min = READ("_RAILS_BYTES_MIN", 0, UINT64_MAX, UINT64_MAX),
        .chunk_bytes =
            READ("_CHUNK_BYTES", 65536, UINT64_C(1) << 40, UINT64_C(256) << 20) / 4096 * 4096,
        .timeout = (uint8_t)READ("_TIMEOUT", 1, 31, 12),
        .retry_count = (uint8_t)READ("_RETRIES", 0, 6, 4),
        .wait_ms = (uint32_t)READ("_WAIT_MS", 0, 60000, 0),
        .silent_ms = (uint32_t)READ("_SILENT_MS", 10, 60000, 60),
        .relaxed_ordering = READ("_RELAXED_ORDERING", 0, 1, 1) == 1,
        .gid_index = (int32_t)READ("_GID_INDEX", 0, 255, UINT32_MAX),
    };
#undef READ
#undef PREFIX
    if (only != NULL)
        snprintf(settings->only, sizeof settings->only, "%s", only);
}

bool te_rdma_settings_allow(const te_rdma_settings *settings, const char *device) {
    if (settings->only[0] == '\0')
        return true;
    size_t length = strlen(device);
    for (const char *at = settings->only; *at != '\0'; at += strspn(at, ",")) {
        size_t named = strcspn(at, ",");
        if (named == length && memcmp(at, device, length) == 0)
            return true;
        at += named;
    }
    return false;
}

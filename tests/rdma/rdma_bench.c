// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain
// library: tests/rdma/steady_clock.c libsteady_clock.so
/* Speeds of the engine over one pair of NICs, as JSON: rdma_bench ASKING_DEVICE SERVING_DEVICE. */
#include <signal.h>
#include <sys/wait.h>

#include "engine_kit.h"
#include "te_channel_rails.h"

#define MIB (1u << 20)
#define POOL_BYTES (16u * MIB)
#define BATCH 16u
#define ROUNDS 5

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static te_channel *channel;
static uint8_t *memory;
static int64_t deadline_ns; /* where the clock is a system call, as in the guest, it is read once */

static uint32_t segment = 1; /* 3 has generation words, which every READ of it brings along */

static bool is_one_place; /* all items are the same bytes, as all requests of perftest */

/* `count` items of `length` bytes at once. */
static void move(bool is_write, size_t count, uint64_t length) {
    static ms_read_item reads[BATCH];
    static ms_write_item writes[BATCH];
    static void *targets[BATCH];
    static const void *sources[BATCH];
    static ms_read_result results[BATCH];
    static uint32_t statuses[BATCH];
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = is_one_place ? 0 : i * length;
        sources[i] = targets[i] = memory + offset;
        reads[i] = (ms_read_item){.segment = segment,
                                  .flags = segment == 3,
                                  .offset = offset,
                                  .length = length,
                                  .guard_page = (uint32_t)(offset / MS_PAGE_SIZE)};
        writes[i] = (ms_write_item){.segment = 1, .offset = offset, .length = length};
    }
    if (is_write) {
        CHECK_STATUS(te_write(channel, writes, sources, count, NULL, 0, 0, statuses, deadline_ns),
                     MS_OK);
        CHECK_STATUS(statuses[count - 1], MS_OK);
    } else {
        CHECK_STATUS(te_read(channel, reads, targets, count, results, deadline_ns), MS_OK);
        CHECK_STATUS(results[count - 1].status, MS_OK);
    }
}

static double bandwidth(bool is_write) {
    double rates[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int64_t begun = te_now_ns();
        for (int j = 0; j < 4; j++)
            move(is_write, BATCH, MIB);
        rates[i] = 4.0 * BATCH / (double)(te_now_ns() - begun) * 1e9;
    }
    qsort(rates, ROUNDS, sizeof *rates, by_value);
    return rates[ROUNDS / 2];
}

static double latency_us(bool is_write, uint64_t length) {
    double medians[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        enum { CALLS = 200 };
        int64_t begun = te_now_ns();
        for (int j = 0; j < CALLS; j++)
            move(is_write, 1, length);
        medians[i] = (double)(te_now_ns() - begun) / CALLS / 1e3;
    }
    qsort(medians, ROUNDS, sizeof *medians, by_value);
    return medians[ROUNDS / 2];
}

/* From now on what is large goes by the slice scheduler. */
static void go_over_lanes(void) {
    te_channel_rails *rails = te_channel_rails_of(channel);
    te_channel_rails_want(rails);
    for (int64_t until_ns = in_ms(10000);
         !te_channel_rails_serve_rdma(rails, TE_READ, MIB, false) ||
         !te_channel_rails_serve_rdma(rails, TE_WRITE, MIB, false);) {
        CHECK(te_now_ns() < until_ns);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    int pipes[2];
    kit served;
    CHECK(argc == 3 && pipe(pipes) == 0);
    setenv("MOONCAKE_STORE_RDMA_WRITE_BYTES_MIN", "0", 1);
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 1);
    pid_t child = fork();
    if (child == 0) {
        setenv("MOONCAKE_STORE_RDMA_DEVICES", argv[2], 1);
        kit_open(&served, "127.0.0.1", false, POOL_BYTES, NULL);
        static uint64_t words[POOL_BYTES / MS_PAGE_SIZE];
        te_segment_config guarded = {.segment = 3,
                                     .address = served.memory,
                                     .length = POOL_BYTES,
                                     .payload_descriptor = -1,
                                     .words_descriptor = -1,
                                     .words = words};
        CHECK_STATUS(te_segment_add(served.engine, &guarded), MS_OK);
        CHECK(write(pipes[1], served.address, sizeof served.address) == sizeof served.address);
        for (;;)
            pause();
    }
    char address[sizeof served.address];
    CHECK(read(pipes[0], address, sizeof address) == sizeof address);
    setenv("MOONCAKE_STORE_RDMA_DEVICES", argv[1], 1);
    te_engine *asker = kit_asker();
    memory = aligned_alloc(MS_PAGE_SIZE, POOL_BYTES);
    memset(memory, 1, POOL_BYTES);
    CHECK_STATUS(te_register_local_memory(asker, (uint64_t)(uintptr_t)memory, POOL_BYTES, "*"),
                 MS_OK);
    channel = kit_channel(asker, address, NULL, 16);
    deadline_ns = in_ms(300000);
    move(false, 1, 4096);
    move(true, 1, 4096);
    te_rdma_view view;
    te_rdma_look(asker, &view);
    printf("{\"write_mib_per_s\": %.1f, ", bandwidth(true));
    printf("\"read_mib_per_s\": %.1f, ", bandwidth(false));
    is_one_place = true;
    printf("\"one_place_write_mib_per_s\": %.1f, ", bandwidth(true));
    printf("\"one_place_read_mib_per_s\": %.1f, ", bandwidth(false));
    is_one_place = false;
    printf("\"read_4k_us\": %.1f, ", latency_us(false, 4096));
    printf("\"write_4k_us\": %.1f, ", latency_us(true, 4096));
    segment = 3;
    move(false, 1, 4096);
    printf("\"guarded_read_4k_us\": %.1f, ", latency_us(false, 4096));
    segment = 1;
    go_over_lanes();
    printf("\"lanes_write_mib_per_s\": %.1f, ", bandwidth(true));
    printf("\"lanes_read_mib_per_s\": %.1f, ", bandwidth(false));
    segment = 3;
    printf("\"lanes_guarded_read_mib_per_s\": %.1f, ", bandwidth(false));
    te_rdma_look(asker, &view);
    printf("\"fallbacks\": %llu}\n", (unsigned long long)view.fallbacks);
    te_channel_close(channel);
    te_engine_close(asker);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return view.read_bytes > 0 && view.write_bytes > 0 ? 0 : 1;
}

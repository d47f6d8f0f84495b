// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 900
/* The stale-read hunt, a short run.  The long one: make hunt, or this program with a number of reads. */
#include "../stress/stale_read_hunt.c"

int main(int count, char **arguments) {
    uint64_t reads = count > 1 ? strtoull(arguments[1], NULL, 10) : 40000;
    seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)te_now_ns();
    bool is_certain = hunt_stale_reads(reads);
    report();
    CHECK(is_certain);
    /* It was a hunt: objects and misses over both, and pages were used again. */
    CHECK(all.hits[0] != 0 && all.misses[0] != 0 && all.hits[1] != 0 && all.misses[1] != 0);
    CHECK(all.puts > reads / 100 && all.frozen != 0 && all.woken != 0 && all.stale_writes != 0);
    return 0;
}

// sources: store/src/*.c master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c client/src/breaker.c client/src/client.c client/src/get.c client/src/health.c client/src/lane.c client/src/location.c client/src/lookup.c client/src/node.c client/src/pins.c client/src/put.c client/src/session.c client/src/view.c client/src/write.c client/src/write_early.c client/src/write_list.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 900
/* Master, store server and clients hunt for a stale read, a short run.  The long one: make hunt. */
#include "../stress/store_hunt.c"

int main(int count, char **arguments) {
    uint64_t reads = count > 1 ? strtoull(arguments[1], NULL, 10) : 40000;
    seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)te_now_ns();
    bool is_certain = hunt_stores(reads);
    report();
    CHECK(is_certain);
    CHECK(all.hits[0] != 0 && all.misses[0] != 0 && all.stale[0] != 0);
    CHECK(all.hits[1] != 0 && all.misses[1] != 0 && all.stale[1] != 0);
    CHECK(all.puts != 0 && all.removes != 0);
    return 0;
}

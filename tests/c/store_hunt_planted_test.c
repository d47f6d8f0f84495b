// sources: store/src/*.c master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c client/src/breaker.c client/src/client.c client/src/health.c client/src/lane.c client/src/location.c client/src/lookup.c client/src/node.c client/src/pins.c client/src/put.c client/src/session.c client/src/view.c client/src/write.c client/src/write_early.c client/src/write_list.c
// flags of store/src: -DST_TEST_STEPS
// variants: plain
// timeout: 150
/* The hunt with all that ships can find something: without the comparison of words, in client and server, it
 * finds a wrong read within a minute. */
#define CL_PLANT_NO_WORD_CHECK
#include "../../client/src/get.c"
#include "../stress/store_hunt.c"

int main(void) {
    int64_t begin_ns = te_now_ns();
    seed = (uint64_t)begin_ns;
    is_planted = true;
    bool is_certain = hunt_stores(UINT64_MAX / 2);
    report();
    CHECK(!is_certain);
    CHECK(te_now_ns() - begin_ns < 60 * SECONDS);
    return 0;
}

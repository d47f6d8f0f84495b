// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain address
/* What a waiting thread learns (spin.c): when it spins, for how long, and when it must not. */
#include "engine_kit.h"
#include "te_internal.h"

#define US INT64_C(1000)

static te_engine *open_engine(uint32_t spin_us) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.spin_us = spin_us;
    te_engine *engine;
    CHECK_STATUS(te_engine_open(&config, &engine), MS_OK);
    return engine;
}

static void short_waits_are_spun_and_long_ones_slept(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0};
    CHECK(te_spin_may(engine, &spin, 1));
    CHECK(te_spin_end_ns(engine, &spin, 1000) == 1000 + 20 * US);
    te_spin_learn(engine, &spin, 1000 * US);
    CHECK(!te_spin_may(engine, &spin, 1));
    te_spin_learn(engine, &spin, 40 * US); /* slept through: it would have paid */
    CHECK(te_spin_may(engine, &spin, 1));
    CHECK(te_spin_end_ns(engine, &spin, 0) == 60 * US);
    te_spin_learn(engine, &spin, 150 * US);
    CHECK(te_spin_end_ns(engine, &spin, 0) == 160 * US); /* no longer than that */
    te_spin_learn(engine, &spin, -5);
    CHECK(te_spin_end_ns(engine, &spin, 0) == 20 * US);
    /* However long it went well or badly, as many waits turn it. */
    for (int i = 0; i < 1000; i++) {
        te_spin_learn(engine, &spin, 1000 * US);
    }
    for (int i = 0; i < 8; i++) {
        CHECK(!te_spin_may(engine, &spin, 1));
        te_spin_learn(engine, &spin, US);
    }
    CHECK(te_spin_may(engine, &spin, 1));
    te_engine_close(engine);
}

static void a_slow_yield_silences_every_thread_for_a_while(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0}, other = {0};
    int64_t now = te_now_ns() - 3 * TE_NS_PER_MS; /* as if the yield had taken that long */
    CHECK(!te_spin_yield(engine, &now));
    CHECK(!te_spin_may(engine, &spin, now) && !te_spin_may(engine, &other, now));
    int64_t quiet = atomic_load(&engine->spin_quiet_until_ns) - now;
    CHECK(quiet >= 48 * TE_NS_PER_MS && quiet < TE_NS_PER_S);
    CHECK(te_spin_may(engine, &spin, now + quiet));
    /* Again, soon: twice as long, up to a second. */
    for (int i = 0; i < 8; i++) {
        now = te_now_ns() - 3 * TE_NS_PER_MS;
        CHECK(!te_spin_yield(engine, &now));
        int64_t next = atomic_load(&engine->spin_quiet_until_ns) - now;
        CHECK(next == (2 * quiet < TE_NS_PER_S ? 2 * quiet : TE_NS_PER_S));
        quiet = next;
    }
    te_engine_close(engine);
}

static void nobody_spins_who_was_told_not_to(void) {
    te_engine *engine = open_engine(0);
    te_spin spin = {0};
    CHECK(!te_spin_may(engine, &spin, 1));
    te_engine_close(engine);
}

int main(void) {
    short_waits_are_spun_and_long_ones_slept();
    a_slow_yield_silences_every_thread_for_a_while();
    nobody_spins_who_was_told_not_to();
    return 0;
}

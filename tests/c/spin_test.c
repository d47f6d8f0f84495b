// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain address
/* What a waiting thread learns (spin.c): when it spins, for how long, and when it must not; and who may spin on
 * a core (spinners.c). */
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* How long a wait that begins now would be spun; 0: it would be slept. */
static int64_t spin_ns(te_engine *engine, const te_spin *spin) {
    te_spinning spinning;
    int64_t now = te_now_ns();
    if (!te_spin_begin(engine, spin, now, 0, 0, &spinning)) {
        return 0;
    }
    te_spin_end(&spinning);
    return spinning.end_ns - now;
}

static void short_waits_are_spun_and_long_ones_slept(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0};
    CHECK(spin_ns(engine, &spin) == 20 * US);
    te_spin_learn(engine, &spin, 1000 * US);
    CHECK(spin_ns(engine, &spin) == 0);
    te_spin_learn(engine, &spin, 40 * US); /* slept through: it would have paid */
    CHECK(spin_ns(engine, &spin) == 60 * US);
    te_spin_learn(engine, &spin, 150 * US);
    CHECK(spin_ns(engine, &spin) == 160 * US); /* no longer than that */
    te_spin_learn(engine, &spin, -5);
    CHECK(spin_ns(engine, &spin) == 150 * US); /* the longest of the last ones counts */
    for (int i = 0; i < 100; i++) {
        te_spin_learn(engine, &spin, US);
    }
    CHECK(spin_ns(engine, &spin) < 21 * US);
    /* However long it went well or badly, as many waits turn it. */
    for (int i = 0; i < 1000; i++) {
        te_spin_learn(engine, &spin, 1000 * US);
    }
    for (int i = 0; i < 8; i++) {
        CHECK(spin_ns(engine, &spin) == 0);
        te_spin_learn(engine, &spin, US);
    }
    CHECK(spin_ns(engine, &spin) > 0);
    te_engine_close(engine);
}

static void who_has_worked_for_long_spins_in_any_case(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0};
    for (int i = 0; i < 8; i++)
        te_spin_learn(engine, &spin, 1000 * US);
    spin.worked_ns = 1279 * US;
    CHECK(spin_ns(engine, &spin) == 0);
    spin.worked_ns = 1280 * US; /* eight times the longest spin */
    CHECK(spin_ns(engine, &spin) == 160 * US);
    te_engine_close(engine);
}

static void what_others_take_is_added_to_a_spin(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0};
    te_spinning spinning;
    CHECK(te_spin_begin(engine, &spin, te_now_ns(), 0, 0, &spinning));
    int64_t end = spinning.end_ns;
    te_spin_was_away(&spinning, 2 * US);
    CHECK(spinning.end_ns == end); /* that was a yield with nobody there */
    for (int i = 1; i <= 3; i++) {
        te_spin_was_away(&spinning, 300 * US);
        CHECK(spinning.end_ns == end + i * 300 * US);
    }
    te_spin_was_away(&spinning, 300 * US);
    CHECK(spinning.end_ns == end + 900 * US); /* up to 1 ms, for which its mark counts */
    te_spin_end(&spinning);
    te_engine_close(engine);
}

/* As if a yield had taken 3 ms; when it was over. */
static int64_t yield_slowly(te_engine *engine, const te_spin *spin) {
    te_spinning spinning;
    CHECK(te_spin_begin(engine, spin, te_now_ns(), 0, 0, &spinning));
    spinning.now_ns = te_now_ns() - 3 * TE_NS_PER_MS;
    CHECK(!te_spin_goes_on(&spinning));
    te_spin_end(&spinning);
    return spinning.now_ns;
}

static void one_slow_yield_is_chance(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0};
    for (int i = 0; i < 3; i++) {
        yield_slowly(engine, &spin);
        CHECK(spin_ns(engine, &spin) == 20 * US);
        atomic_fetch_sub(&engine->spin_slow_ns, TE_NS_PER_S); /* that was long ago */
    }
    te_engine_close(engine);
}

static void slow_yields_silence_every_thread_for_a_while(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0}, other = {0};
    int64_t quiet = 0;
    yield_slowly(engine, &spin);
    for (int i = 0; i < 8; i++) {
        int64_t now = yield_slowly(engine, &spin);
        CHECK(spin_ns(engine, &spin) == 0 && spin_ns(engine, &other) == 0);
        int64_t next = atomic_load(&engine->spin_quiet_until_ns) - now;
        if (i == 0) {
            CHECK(next >= 48 * TE_NS_PER_MS && next < TE_NS_PER_S);
        } else { /* again, soon: twice as long, up to a second */
            CHECK(next == (2 * quiet < TE_NS_PER_S ? 2 * quiet : TE_NS_PER_S));
        }
        quiet = next;
        atomic_store(&engine->spin_quiet_until_ns, te_now_ns() - 1); /* it is over */
        CHECK(spin_ns(engine, &spin) == 20 * US);
    }
    te_engine_close(engine);
}

static void nobody_spins_who_was_told_not_to(void) {
    te_engine *engine = open_engine(0);
    te_spin spin = {0};
    CHECK(spin_ns(engine, &spin) == 0);
    te_engine_close(engine);
}

static void stay_on_this_core(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static void one_spins_on_a_core_and_it_is_the_one_with_more_work(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {0};
    te_spinning light, equal, heavy;
    int64_t now = te_now_ns() + TE_NS_PER_MS / 2; /* nothing here is over before it was looked at */
    CHECK(te_spin_begin(engine, &spin, now, 0, 3 * US, &light));
    CHECK(!te_spin_begin(engine, &spin, now, 0, 3 * US, &equal));
    CHECK(te_spinner_is_alone(&light.spinner));
    CHECK(te_spin_begin(engine, &spin, now, 1, 60 * US, &heavy));
    CHECK(!te_spin_goes_on(&light)); /* told at its next look, it leaves the other one in peace */
    te_spin_end(&light);
    CHECK(te_spinner_is_alone(&heavy.spinner));
    /* Where this core was taken away for its whole spin, that is over, and nobody looked. */
    CHECK((light.is_taken || te_now_ns() >= light.end_ns) && !heavy.is_taken);
    CHECK(!te_spin_begin(engine, &spin, now, 0, 3 * US, &light) && light.is_taken);
    /* One that could not take its mark away, as others have the core, spins on when they sleep. */
    CHECK(!te_spin_begin(engine, &spin, heavy.end_ns + TE_NS_PER_MS / 2, 0, 3 * US, &light));
    /* What somebody left who was killed counts for a moment after its end, and no longer. */
    CHECK(te_spin_begin(engine, &spin, heavy.end_ns + TE_NS_PER_MS, 0, 0, &light));
    CHECK(!light.is_taken);
    te_spin_end(&heavy); /* that is not its mark any more */
    CHECK(te_spinner_is_alone(&light.spinner));
    te_spin_end(&light);
    CHECK(!te_spinner_is_alone(&light.spinner));
    te_engine_close(engine);
}

static void who_does_not_spin_is_told_of_a_spinner(void) {
    te_engine *engine = open_engine(20);
    te_spin spin = {.score = -1};
    te_spinning spinning;
    te_spinner other;
    int64_t now = te_now_ns();
    CHECK(!te_spin_begin(engine, &spin, now, 0, US, &spinning) && !spinning.is_taken);
    CHECK(te_spinner_begin(&other, now, now + US, US));
    CHECK(!te_spin_begin(engine, &spin, now, 0, US, &spinning) && spinning.is_taken);
    te_spinner_end(&other);
    CHECK(!te_spin_begin(engine, &spin, now, 0, US, &spinning) && !spinning.is_taken);
    te_engine_close(engine);
}

static void who_sleeps_beside_a_spinner_is_woken_quietly(void) {
    CHECK(te_spin_quiet_begin() && sched_getscheduler(0) == SCHED_BATCH);
    te_spin_quiet_end();
    CHECK(sched_getscheduler(0) == SCHED_OTHER);
    /* A policy that somebody else gave stays, whenever it came. */
    CHECK(te_spin_quiet_begin());
    CHECK(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}) == 0);
    te_spin_quiet_end();
    CHECK(sched_getscheduler(0) == SCHED_IDLE);
    CHECK(!te_spin_quiet_begin() && sched_getscheduler(0) == SCHED_IDLE);
    if (sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0)
        CHECK(!te_spin_quiet_begin() && sched_getscheduler(0) == SCHED_BATCH);
}

static pid_t io_thread(void) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    pid_t found = 0;
    for (struct dirent *entry; found == 0 && (entry = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file != NULL && fgets(name, sizeof name, file) != NULL && strcmp(name, "te-io\n") == 0)
            found = (pid_t)strtol(entry->d_name, NULL, 10);
        if (file != NULL)
            fclose(file);
    }
    closedir(tasks);
    CHECK(found != 0);
    return found;
}

static void an_io_thread_is_woken_quietly_while_its_core_has_a_spinner(void) {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
        return; /* no I/O thread spins on one core, so none asks whether it may */
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 1);
    const pid_t io = io_thread();
    te_spinner other = {0};
    const int64_t until = in_ms(20000);
    for (int is_there = 1; is_there >= 0; is_there--) {
        while (sched_getscheduler(io) != (is_there ? SCHED_BATCH : SCHED_OTHER)) {
            int64_t now = te_now_ns();
            CHECK(now < until);
            if (is_there)
                (void)te_spinner_begin(&other, now, now + TE_NS_PER_MS / 2, TE_NS_PER_S);
            te_reply reply = {0};
            CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, until), MS_OK);
        }
        te_spinner_end(&other);
    }
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* Whether a spinner of another process is on the board while it lives, and after it was gone without a word. */
static void processes_share_the_board(void) {
    int ask[2], tell[2];
    CHECK(pipe(ask) == 0 && pipe(tell) == 0);
    int64_t now = te_now_ns();
    char byte = 0;
    pid_t child = fork();
    if (child == 0) {
        te_spinner its;
        byte = te_spinner_begin(&its, now, now + TE_NS_PER_MS / 2, 60 * US);
        _exit(write(tell[1], &byte, 1) == 1 && read(ask[0], &byte, 1) == 1 ? 0 : 1);
    }
    CHECK(read(tell[0], &byte, 1) == 1 && byte == 1);
    te_spinner mine;
    CHECK(!te_spinner_begin(&mine, now, now + US, 3 * US));
    CHECK(write(ask[1], &byte, 1) == 1);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(te_spinner_begin(&mine, now + 3 * TE_NS_PER_MS / 2, now + 2 * TE_NS_PER_MS, 3 * US));
    te_spinner_end(&mine);
}

static void a_board_is_a_file_of_ours(void) {
    char folder[] = "/tmp/spinners-XXXXXX", path[64], target[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/spinners", folder);
    snprintf(target, sizeof target, "%s/target", folder);
    CHECK(symlink(target, path) == 0);
    CHECK_STATUS(te_spinners_share(path), MS_IO_ERROR);
    CHECK_STATUS(te_spinners_share(folder), MS_IO_ERROR);
    CHECK(unlink(path) == 0 && access(target, F_OK) != 0);
    /* Whatever stands in it holds nobody up. */
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    for (int i = 0; i < 100000; i++) {
        fputc(0x7f, file);
    }
    CHECK(fclose(file) == 0);
    CHECK_STATUS(te_spinners_share(path), MS_OK);
    processes_share_the_board();
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

int main(void) {
    CHECK(sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0}) ==
          0);            /* whatever chrt gave */
    stay_on_this_core(); /* so that spinners meet */
    short_waits_are_spun_and_long_ones_slept();
    who_has_worked_for_long_spins_in_any_case();
    what_others_take_is_added_to_a_spin();
    one_slow_yield_is_chance();
    slow_yields_silence_every_thread_for_a_while();
    nobody_spins_who_was_told_not_to();
    one_spins_on_a_core_and_it_is_the_one_with_more_work();
    who_does_not_spin_is_told_of_a_spinner();
    an_io_thread_is_woken_quietly_while_its_core_has_a_spinner();
    a_board_is_a_file_of_ours();
    who_sleeps_beside_a_spinner_is_woken_quietly(); /* last: without privileges there is no way back from SCHED_IDLE */
    return 0;
}

// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// variants: plain
// timeout: 150
/* The stale-read hunt can find something: with a rule left out it does, within a minute each. */
#include <sys/wait.h>

#include "../stress/stale_read_hunt.c"

/* In a process of its own, because a hunt is one a process. */
static void find(enum st_fault fault) {
    int64_t begin_ns = te_now_ns();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        seed = (uint64_t)begin_ns;
        is_planted[fault] = true;
        bool is_certain = hunt_stale_reads(UINT64_MAX / 2);
        report();
        _exit(is_certain ? 1 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(te_now_ns() - begin_ns < 60 * SECONDS);
}

int main(void) {
    find(ST_FAULT_NO_WORD_CHECK);
    find(ST_FAULT_FREED_EARLY);
    return 0;
}

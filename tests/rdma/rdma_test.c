// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain
/* The suite of RDMA in the guest, whose NICs rxe0 to rxe3 sit on eth0 to eth3; and what needs two processes. */
#include <signal.h>
#include <sys/wait.h>

#include "guest_network.h"
#include "rdma_suite.h"

static void test_one_percent_loss(void) {
    mover self;
    open_pair();
    wait_for_endpoint();
    run_command("tc qdisc add dev eth%d root netem loss 1%%", 0);
    start(&self);
    pause_ms(3000);
    stop(&self);
    network_loss_set(0, false);
    close_pair();
}

static int64_t idle_cost_ns(bool is_on) {
    struct timespec before, after;
    setenv("MOONCAKE_STORE_RDMA", is_on ? "1" : "0", 1);
    open_pair();
    if (is_on)
        wait_for_endpoint();
    pause_ms(200);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    pause_ms(2000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    close_pair();
    return (after.tv_sec - before.tv_sec) * INT64_C(1000000000) + after.tv_nsec - before.tv_nsec;
}

/* The kit's service ticks 100 times a second; RDMA adds nothing. */
static void test_idle_costs_nothing(void) {
    int64_t without_ns = idle_cost_ns(false), with_ns = idle_cost_ns(true);
    fprintf(stderr, "idle for 2 s: %.0f ms of processor time without RDMA, %.0f ms with it\n",
            (double)without_ns / 1e6, (double)with_ns / 1e6);
    CHECK(with_ns < without_ns + 40000000);
}

/* Its address comes from a child, which is to be killed. */
static pid_t open_pair_of_two_processes(void) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        open_served();
        CHECK(write(pipes[1], served.address, sizeof served.address) == sizeof served.address);
        for (;;)
            pause();
    }
    char address[sizeof served.address];
    CHECK(read(pipes[0], address, sizeof address) == sizeof address);
    close(pipes[0]);
    close(pipes[1]);
    asker = kit_asker();
    channel = kit_channel(asker, address, NULL, 16);
    wait_for_endpoint();
    return child;
}

static void test_peer_is_killed(void) {
    pid_t child = open_pair_of_two_processes();
    uint8_t *buffer = malloc(4 * MIB);
    CHECK_STATUS(read_once(0, buffer, 4 * MIB), MS_OK);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int64_t begun = te_now_ns();
    CHECK(read_once(0, buffer, 4 * MIB) != MS_OK);
    CHECK(te_now_ns() - begun < 2000 * INT64_C(1000000));
    CHECK(write_once(0, buffer, 4 * MIB) != MS_OK);
    free(buffer);
    te_channel_close(channel);
    te_engine_close(asker);
}

/* Rails break under a write while the peer does not run: it says later that its ends are gone, and the write goes on. */
static void test_frozen_peer_confirms_late(void) {
    pid_t child = open_pair_of_two_processes();
    uint8_t *buffer = calloc(1, 4 * MIB);
    CHECK_STATUS(write_once(0, buffer, 4 * MIB), MS_OK); /* opens the endpoint for writes */
    uint64_t failures = look().rail_failures;
    kill(child, SIGSTOP);
    for (int nic = 0; nic < 4; nic++)
        network_loss_set(nic, true);
    pid_t waker = fork();
    if (waker == 0) {
        pause_ms(1200);
        kill(child, SIGCONT);
        _exit(0);
    }
    int64_t begun = te_now_ns();
    CHECK_STATUS(write_once(0, buffer, 4 * MIB), MS_OK);
    CHECK(te_now_ns() - begun > 600 * INT64_C(1000000));
    CHECK(look().rail_failures > failures);
    for (int nic = 0; nic < 4; nic++)
        network_loss_set(nic, false);
    waitpid(waker, NULL, 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    free(buffer);
    te_channel_close(channel);
    te_engine_close(asker);
}

int main(int argc, char **argv) {
    setenv("MOONCAKE_STORE_RDMA_WRITE_BYTES_MIN", "0", 0);
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 0);
    setvbuf(stderr, NULL, _IOLBF, 0);
    RUN(test_peer_is_killed); /* first: they fork */
    RUN(test_frozen_peer_confirms_late);
    RUN(test_one_percent_loss);
    RUN(test_idle_costs_nothing);
    run_suite(argc, argv);
    return 0;
}

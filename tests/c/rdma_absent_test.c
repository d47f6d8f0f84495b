// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags: -Wl,--wrap=te_rdma_is_there -Wl,--wrap=dlopen
/* RDMA is wanted, as it is by default, and cannot be had: one line of a process says so, and TCP is used. */
#include <dlfcn.h>
#include <sys/wait.h>

#include "engine_kit.h"

#define BYTES (1u << 20)

static bool has_device;

bool __wrap_te_rdma_is_there(void);
bool __wrap_te_rdma_is_there(void) { return has_device; }

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags) {
    bool is_verbs = name != NULL && strcmp(name, "libibverbs.so.1") == 0;
    return __real_dlopen(is_verbs ? "libibverbs.so.none" : name, flags);
}

/* Counts lines about RDMA, and checks that they say this. */
static int lines_of(te_engine *engine, const char *text) {
    char line[TE_ERROR_BYTES];
    int count = 0;
    while (te_engine_log_next(engine, line)) {
        if (strstr(line, "rdma") == NULL)
            continue;
        fprintf(stderr, "%s\n", line);
        CHECK(strstr(line, text) != NULL);
        count++;
    }
    return count;
}

/* In a process of its own: the line comes once in each. */
static void transfers_go_over_tcp(const char *text) {
    kit served;
    kit_open(&served, "127.0.0.1", false, BYTES, NULL);
    int lines = lines_of(served.engine, text);
    CHECK(lines == 1); /* by the first engine, at once */
    for (int turn = 0; turn < 2; turn++) {
        te_engine *asker = kit_asker();
        te_channel *channel = kit_channel(asker, served.address, NULL, 4);
        uint8_t *target = malloc(BYTES);
        void *targets[] = {target};
        ms_read_item item = {.segment = 1, .length = BYTES};
        ms_read_result result;
        CHECK_STATUS(te_read(channel, &item, targets, 1, &result, in_ms(10000)), MS_OK);
        CHECK_STATUS(result.status, MS_OK);
        CHECK(has_pattern(target, BYTES, 0, 1));
        te_rdma_view view;
        te_rdma_look(asker, &view);
        CHECK(view.nics == 0 && view.read_bytes == 0);
        lines += lines_of(asker, text) + lines_of(served.engine, text);
        free(target);
        te_channel_close(channel);
        te_engine_close(asker);
    }
    CHECK(lines == 1);
    kit_close_all(&served);
}

static void in_a_process(const char *text) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        transfers_go_over_tcp(text);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_without_a_device_one_line_says_so(void) {
    has_device = false;
    in_a_process("rdma: off (this machine has no RDMA device): TCP is used");
}

static void test_without_the_library_one_line_says_what_to_install(void) {
    has_device = true;
    in_a_process("(Debian: libibverbs1, ibverbs-providers)): TCP is used");
}

int main(int argc, char **argv) {
    unsetenv("MOONCAKE_STORE_RDMA");
    RUN(test_without_a_device_one_line_says_so);
    RUN(test_without_the_library_one_line_says_what_to_install);
    return 0;
}

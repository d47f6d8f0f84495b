/* Submitting holds no lock over a system call: whoever else wants that lock would wait for the kernel.
 *
 * A child submits, and counts the locks that it holds.  Its parent traces it (ptrace) and looks at that count at each
 * system call, so that those of malloc and of the C library are seen, too.
 */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "engine_pair.h"

#define ROUNDS 64
#define REQUESTS 1024
#define BYTES 64

typedef struct submitter {
    volatile int held;         /* locks, by the submitting thread */
    volatile int in_lock;      /* it is inside one of the functions below */
    volatile bool is_watched;  /* it is submitting */
    volatile const char *what; /* the same address in both processes: a literal */
} submitter;

static submitter *shared; /* with the parent */
static _Thread_local bool is_submitter;

/* ---- locks, counted ------------------------------------------------------------------------------------------------ */

/* The engine calls these instead of the C library's, which they call. */
#define COUNTED(name, type, before, after)                                                         \
    int name(type *lock) {                                                                         \
        static int (*next)(type *);                                                                \
        if (next == NULL)                                                                          \
            *(void **)&next = dlsym(RTLD_NEXT, #name);                                             \
        if (is_submitter)                                                                          \
            shared->held += before, shared->in_lock++;                                             \
        int result = next(lock);                                                                   \
        if (is_submitter)                                                                          \
            shared->held += after, shared->in_lock--;                                              \
        return result;                                                                             \
    }
COUNTED(pthread_mutex_lock, pthread_mutex_t, 0, 1)
COUNTED(pthread_mutex_unlock, pthread_mutex_t, -1, 0)
COUNTED(pthread_rwlock_rdlock, pthread_rwlock_t, 0, 1)
COUNTED(pthread_rwlock_wrlock, pthread_rwlock_t, 0, 1)
COUNTED(pthread_rwlock_unlock, pthread_rwlock_t, -1, 0)

/* ---- the child ----------------------------------------------------------------------------------------------------- */

static void submit(te_engine *engine, te_transfer_request *requests, size_t count, bool is_told,
                   const char *what) {
    uint64_t batch;
    OK(te_allocate_batch_id(engine, count, &batch));
    if (is_told)
        assert(te_batch_eventfd(engine, batch) >= 0);
    shared->what = what;
    shared->is_watched = is_submitter = true;
    OK(te_submit_transfer(engine, batch, requests, count, soon()));
    shared->is_watched = is_submitter = false;
    OK(te_wait_batch(engine, batch, soon()));
    OK(te_free_batch_id(engine, batch));
}

static void child(void) {
    server serving = server_open("127.0.0.1");
    te_engine_config config;
    te_engine *asking;
    te_engine_config_default(&config);
    config.io_threads = 0;
    config.worker_threads =
        1; /* which starts with the first submission: starting is done under a lock */
    OK(te_engine_open(&config, &asking));
    char error[TE_ERROR_BYTES] = "", both[160];
    uint16_t port = 0;
    uint32_t rails, one;
    size_t length = (size_t)REQUESTS * BYTES;
    uint8_t *there = malloc(length), *here = malloc(length);
    fill(there, length, 1);
    OK(te_listen_tcp(serving.engine, "127.0.0.1", 0, &port, error));
    snprintf(both, sizeof both, "%s,127.0.0.1:%u", serving.address, port);
    OK(te_register_local_memory(serving.engine, (uint64_t)(uintptr_t)there, length, "*"));
    OK(te_register_local_memory(asking, (uint64_t)(uintptr_t)here, length, "*"));
    OK(te_open_segment(asking, both, &rails, soon(), error));
    OK(te_open_segment(asking, serving.address, &one, soon(), error));
    te_transfer_request requests[REQUESTS];
    for (int i = 0; i < ROUNDS; i++) {
        bool over_rails = i % 2 == 0, has_wrong = i % 4 >= 2;
        size_t count = i % 8 < 4 ? REQUESTS : 1;
        for (size_t j = 0; j < count; j++)
            requests[j] =
                (te_transfer_request){.opcode = TE_READ,
                                      .segment = over_rails ? rails : one,
                                      .local_address = (uint64_t)(uintptr_t)here + j * BYTES,
                                      .remote_offset = (uint64_t)(uintptr_t)there + j * BYTES,
                                      .length = BYTES};
        if (has_wrong)
            requests[0].local_address =
                1; /* not registered: it ends at once, and whoever waits is told */
        if (i % 16 >= 8)
            pause_ms(5); /* the threads that move bytes are asleep by now */
        if (i < 2) {     /* unwatched: threads and connections begin with the first */
            uint64_t batch;
            OK(te_allocate_batch_id(asking, count, &batch));
            OK(te_submit_transfer(asking, batch, requests, count, soon()));
            OK(te_wait_batch(asking, batch, soon()));
            OK(te_free_batch_id(asking, batch));
        }
        submit(asking, requests, count, has_wrong,
               over_rails ? "requests over rails" : "requests over one connection");
    }
    check_filled(here + BYTES, length - BYTES, 1 + BYTES / 8);
    te_close_segment(asking, rails);
    te_close_segment(asking, one);
    te_engine_close(asking);
    server_close(&serving);
    free(there);
    free(here);
}

/* ---- the parent ---------------------------------------------------------------------------------------------------- */

/* The number of the system call that the child is entering; -1: it is leaving one. */
static long entered(pid_t pid) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return -1;
    return (long)info.entry.nr;
}

int main(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(shared != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        raise(SIGSTOP);
        child();
        _exit(0);
    }
    int state, watched = 0, wrong = 0;
    assert(waitpid(pid, &state, 0) == pid);
    if (WIFEXITED(state) && WEXITSTATUS(state) == 77) {
        fprintf(stderr, "not looked at: this machine lets no process trace its child\n");
        assert(getenv("MOONCAKE_STORE_NO_SKIP") == NULL);
        return 0;
    }
    assert(WIFSTOPPED(state));
    assert(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    long passed_on = 0;
    while (ptrace(PTRACE_SYSCALL, pid, 0, passed_on) == 0 && waitpid(pid, &state, 0) == pid &&
           WIFSTOPPED(state)) {
        bool is_call = WSTOPSIG(state) == (SIGTRAP | 0x80);
        passed_on = is_call ? 0 : WSTOPSIG(state);
        long number = is_call && shared->is_watched ? entered(pid) : -1;
        if (number < 0)
            continue;
        watched++;
        /* Of a lock that another thread has, which may have been preempted: not of one that is held meanwhile. */
        if (shared->in_lock > 0 && number == SYS_futex)
            continue;
        if (shared->held > 0 && wrong++ < 10)
            fprintf(stderr, "%s: system call %ld while %d locks are held\n",
                    (const char *)shared->what, number, shared->held);
    }
    assert(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    printf("%d system calls of %d submissions, %d with a lock held\n", watched, ROUNDS, wrong);
    assert(watched > 0); /* sleeping threads were roused */
    assert(wrong == 0);
    return 0;
}

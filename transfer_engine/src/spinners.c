/* Who spins on which core: at most one thread of a user's stores, clients and masters on each.
 *
 * Two spinners on one core are worse than none.  Each yields to the other, but the scheduler gives the core
 * to whoever has had less of it, so the one with work (a server that copies) waits until the one without (a
 * master that looks again and again) has had as much: 35 us of a put of 1 MiB.  And one spinner is all that a core
 * needs: it keeps the core awake, so that waking somebody else there costs a switch and no trip through the
 * hypervisor.
 *
 * So there is a board with a line for each core, in a small file that the user's processes share.  Who wants
 * to spin writes there until when, and how long the work between its waits takes.  On a taken core it sleeps, unless
 * its work takes longer: then the other one does, at its next look.  The longer one would find no core to
 * come back to, the shorter one is let in at once.  Nothing depends on what is written there but speed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "te_internal.h"

#define CORES 1024u

typedef struct line {
    _Alignas(64) _Atomic int64_t end_ns; /* the spinner's mark, too: 0 = nobody spins */
    _Atomic int64_t work_ns;
} line;

static line own[CORES]; /* until a file is shared: the threads of this process */
static line *_Atomic board = own;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ms_status map_board(const char *path, line **mapped) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return MS_IO_ERROR;
    struct stat state;
    void *memory = MAP_FAILED;
    if (fstat(fd, &state) == 0 && S_ISREG(state.st_mode) && state.st_uid == geteuid() &&
        (state.st_size >= (off_t)sizeof own || ftruncate(fd, (off_t)sizeof own) == 0))
        memory = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return MS_IO_ERROR;
    *mapped = memory;
    return MS_OK;
}

ms_status te_spinners_share(const char *path) {
    ms_status status = MS_OK;
    pthread_mutex_lock(&lock);
    if (atomic_load(&board) == own) {
        line *mapped = NULL;
        status = map_board(path, &mapped);
        if (status == MS_OK)
            atomic_store(&board, mapped);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* A time that is over stands for somebody who spins as well: for a thread that gave way, and to which this one gives
 * the core by sleeping.  What a killed process left, or a time that no spinner writes, holds nobody up for long. */
static bool is_taken(int64_t taken_ns, int64_t now_ns) {
    return taken_ns > now_ns - TE_NS_PER_MS && taken_ns < now_ns + TE_NS_PER_MS;
}

/* -1, where the core is not known: one line for all. */
static line *line_here(void) {
    return &atomic_load_explicit(&board, memory_order_acquire)[(unsigned)sched_getcpu() % CORES];
}

bool te_spinner_begin(te_spinner *spinner, int64_t now_ns, int64_t end_ns, int64_t work_ns) {
    line *at = line_here();
    if (is_taken(atomic_load_explicit(&at->end_ns, memory_order_relaxed), now_ns) &&
        work_ns <= atomic_load_explicit(&at->work_ns, memory_order_relaxed))
        return false;
    atomic_store_explicit(&at->work_ns, work_ns, memory_order_relaxed);
    atomic_store_explicit(&at->end_ns, end_ns, memory_order_relaxed);
    *spinner = (te_spinner){.mark = &at->end_ns, .end_ns = end_ns};
    return true;
}

bool te_spinner_is_alone(const te_spinner *spinner) {
    return atomic_load_explicit(spinner->mark, memory_order_relaxed) == spinner->end_ns;
}

bool te_spinner_is_there(int64_t now_ns) {
    return is_taken(atomic_load_explicit(&line_here()->end_ns, memory_order_relaxed), now_ns);
}

void te_spinner_end(te_spinner *spinner) {
    int64_t mine = spinner->end_ns;
    atomic_compare_exchange_strong_explicit(spinner->mark, &mine, 0, memory_order_relaxed,
                                            memory_order_relaxed);
}

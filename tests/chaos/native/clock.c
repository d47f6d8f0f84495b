/* Clocks that jump, for one process: a library to be preloaded.
 *
 * $CHAOS_CLOCK names a file of two 64-bit numbers, which the run changes while the process goes on: nanoseconds
 * that are added to CLOCK_REALTIME, as somebody who sets the clock does, and to CLOCK_BOOTTIME, as a machine that
 * was suspended does.  CLOCK_MONOTONIC never jumps on Linux, and does not here.
 *
 * The machine's own clock is everybody's, and a time namespace has none of its own for CLOCK_REALTIME and may not
 * be changed once a process is in it; hence this.  Programs that do not call libc for the time (etcd is in Go)
 * are not reached by it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct clock_offsets {
    int64_t realtime_ns, boottime_ns;
} clock_offsets;

static const clock_offsets none;
static const clock_offsets *offsets = &none;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find_offsets(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CHAOS_CLOCK");
    int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offsets, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offsets = mapped;
    close(file);
}

static void add_ns(struct timespec *time, int64_t ns) {
    int64_t sum = (int64_t)time->tv_nsec + ns % 1000000000;
    time->tv_sec += ns / 1000000000 + (sum >= 1000000000) - (sum < 0);
    time->tv_nsec = sum + (sum < 0 ? 1000000000 : 0) - (sum >= 1000000000 ? 1000000000 : 0);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (real_clock_gettime == NULL) /* another library's constructor came before ours */
        find_offsets();
    int status = real_clock_gettime(clock, time);
    if (status != 0)
        return status;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        add_ns(time, __atomic_load_n(&offsets->realtime_ns, __ATOMIC_RELAXED));
    else if (clock == CLOCK_BOOTTIME)
        add_ns(time, __atomic_load_n(&offsets->boottime_ns, __ATOMIC_RELAXED));
    return status;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    if (status == 0)
        *time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return status;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}

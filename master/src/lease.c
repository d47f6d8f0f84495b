/* The lease of the lead, as far as answers depend on it.
 *
 * A leader that was frozen or cut off does not know that another one leads meanwhile.  So it answers clients only
 * before its lease's deadline, by a clock that goes on while the machine is suspended: whoever got an answer got
 * it from the only leader.  Store servers need no such care, they compare epochs.
 */
#include "ms_planted.h"
#include "service.h"

#include <stdatomic.h>
#include <time.h>

void ma_set_lease_deadline(ma_master *master, int64_t boottime_ns) {
    atomic_store(&master->lease_deadline_ns, boottime_ns);
}

bool ma_may_answer(ma_master *master) {
    int64_t deadline_ns = atomic_load(&master->lease_deadline_ns);
    if (deadline_ns == 0 || MS_IS_PLANTED("leader_clock"))
        return true;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec < deadline_ns;
}

void ma_withhold_answer(ma_master *master, te_peer peer) {
    te_close_peer(master->engine, peer, "this master's lease has ended");
}

/* Sessions: what we know of one process behind an address.
 *
 * A session has the incarnation of its process, which every connection names in its HELLO, so that no frame of ours
 * can reach a process that came later under the same address; a channel for each rail; the process's regions.  When
 * the process has changed, the remote gets a new session; work that still uses the old one ends with it.
 *
 * Lock order: te_remotes.lock, te_remote.lock, te_session.lock.  None is held during an exchange with the peer, but
 * `connecting`, which makes others wait who want the same session renewed.
 */
#ifndef TE_SESSION_H
#define TE_SESSION_H

#include "te_carrier.h"
#include "te_remote.h"
#include "te_staging.h"

typedef enum te_sharing { SHARING_UNKNOWN, SHARING_NONE, SHARING_MAPPED } te_sharing;

typedef struct te_remote_region {
    uint64_t address, length;
    uint32_t segment;
    char location[TE_LOCATION_BYTES];
    te_sharing sharing;
    te_mapping mapping;
} te_remote_region;

typedef struct te_session {
    _Atomic uint32_t references;
    bool is_local;
    uint32_t incarnation;
    te_channel *channels[TE_RAILS_MAX]; /* one a rail; the first alone when there is a path */
    te_staging *staging;                /* is_local */
    pthread_mutex_t lock;
    te_rail rails[TE_RAILS_MAX];
    uint32_t rail_count;
    te_path *path;  /* over several rails, or with shares; set once, under the lock */
    char *topology; /* the peer's, as it said: JSON */
    size_t topology_length;
    te_remote_region *regions; /* by address */
    uint32_t region_count;
    uint64_t refreshes;
} te_session;

struct te_remote {
    te_engine *engine;
    uint32_t handle;
    uint32_t opens, users; /* under te_remotes.lock */
    pthread_mutex_t lock;
    te_session *session;
    pthread_mutex_t connecting;
    te_rail_ends *rails; /* that were set, instead of the addresses; under the lock */
    uint32_t rail_count;
    char address[]; /* as given */
};

/* ---- session.c ---- */
ms_status te_session_open(te_engine *engine, const char *address, const te_rail_ends *rails,
                          uint32_t rail_count, int64_t deadline_ns, te_session **session,
                          char *error);
/* The path of its rails; NULL: bytes go another way.  A session of one rail has one once somebody `wants` shares. */
te_path *te_session_path(te_engine *engine, te_session *session, bool wants);
/* Other rails from now on. */
ms_status te_session_set_rails(te_engine *engine, te_session *session, const te_rail_ends *rails,
                               uint32_t count);
void te_session_put(te_session *session);
/* Asks for the regions again, unless someone did since `seen` (te_session.refreshes). */
ms_status te_session_refresh(te_session *session, uint64_t seen, int64_t deadline_ns);
/* A copy of the region around a range.  NOT_REGISTERED, OUT_OF_RANGE. */
ms_status te_session_find(te_session *session, uint64_t address, uint64_t length,
                          te_remote_region *found);
/* Whether the region can be read by mapping it; asks the peer the first time. */
bool te_session_is_mapped(te_session *session, te_remote_region *region, int64_t deadline_ns);

/* ---- remote.c ---- */
/* The remote's session now, held until te_session_put. */
te_session *te_remote_session(te_remote *remote);
/* The process behind the address is another one, or seems to be: a new session, unless someone was faster. */
ms_status te_remote_renew(te_remote *remote, const te_session *old, int64_t deadline_ns);
void te_rail_ends_from(const te_rail *rail, te_rail_ends *ends);
/* The rails to comma-separated addresses, from the interfaces that this machine has now. */
ms_status te_rail_ends_of(te_engine *engine, const char *addresses, te_rail_ends ends[TE_RAILS_MAX],
                          uint32_t *count);
/* What a carry says when its path is dead, as a failure of the path. */
ms_status te_carried_status(const te_carried *item);
void te_rail_view_of(const te_rail_status *status, te_rail_view *view);
bool te_options_are_default(const te_transfer_options *options);
/* Fills in what the schedule needs to know. */
void te_carry_set_options(te_carry *carry, const te_transfer_options *options);
/* Whether another try is due. */
bool te_is_path_failure(te_opcode opcode, ms_status status);

#endif

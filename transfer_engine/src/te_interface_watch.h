/* Keeps the rails of paths that were opened by addresses in step with this machine's interfaces, and leaves lanes of any path whose
 * interface has lost its link, at once.
 *
 * The kernel says on a socket (rtnetlink) that a link or an address has changed; when no more has come for a moment, the
 * carrier looks at the interfaces and pairs them with the addresses again.  It costs no thread, and nothing while nothing changes.
 */
#ifndef TE_INTERFACE_WATCH_H
#define TE_INTERFACE_WATCH_H

#include "te_rail_ops.h"

typedef struct te_interface_watch te_interface_watch;

/* All on the carrier's thread.  Opened with the first such path: until then there is nothing to keep in step. */
ms_status te_interface_watch_open(te_carrier *carrier, te_interface_watch **watch);
void te_interface_watch_close(te_interface_watch *watch);
/* Looks, if that is due; returns when to be called next. */
int64_t te_interface_watch_tick(te_interface_watch *watch, int64_t now_ns);

#endif

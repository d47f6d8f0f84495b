/* TCP within this machine sends at once; to others, as the system or the route chose. */
#ifndef TE_PACING_H
#define TE_PACING_H

#include <sys/socket.h>

#include "te_internal.h"

void te_unpace_before_connect(int descriptor, const te_address *address);
void te_unpace_before_listen(int descriptor);
/* For each connection that such a listener has accepted. */
void te_pace_from_elsewhere(int descriptor, const struct sockaddr *from);

#endif

/* Who sends by a timer: see te_pacing.h.
 *
 * A congestion control may pace (BBR): it sends by a timer, so that queues in a network stay short.  Within a
 * machine there is no queue, and each timer costs more than the copy of what it lets go.  Reno, which every
 * kernel has, does not ask for it.  It has to be chosen before a connection is there: what once began to pace
 * goes on, whatever is chosen then.  A socket that listens cannot know who will come; so it chooses Reno,
 * and those that come from elsewhere get back what the system uses.  What a route says (`ip route ... congctl`)
 * goes before what the socket says.
 *
 * All of this is an improvement: where it fails a connection works as the system would have it.
 */
#include "te_pacing.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "te_interfaces.h"

#define UNPACED "reno"
#define NAME_BYTES 16 /* of a congestion control, as the kernel has it */

static void choose(int descriptor, const char *name) {
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
}

/* "" where it is not known. */
static void chosen(int descriptor, char name[NAME_BYTES]) {
    socklen_t length = NAME_BYTES;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0)
        length = 0;
    name[length < NAME_BYTES ? length : NAME_BYTES - 1] = '\0';
}

/* What new sockets have now. */
static void usual(int family, char name[NAME_BYTES]) {
    int descriptor = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    name[0] = '\0';
    if (descriptor >= 0) {
        chosen(descriptor, name);
        close(descriptor);
    }
}

/* Whether the routes lead to this machine itself.  Connecting a UDP socket asks them, and sends nothing. */
static bool leads_here(const te_address *address) {
    const struct sockaddr *there = (const struct sockaddr *)&address->storage;
    struct sockaddr_storage here = address->local;
    socklen_t length = sizeof here;
    if (address->local_length > 0)
        return te_stays_here((const struct sockaddr *)&here, there);
    int descriptor = socket(there->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0)
        return false;
    bool found = connect(descriptor, there, address->length) == 0 &&
                 getsockname(descriptor, (struct sockaddr *)&here, &length) == 0 &&
                 te_stays_here((const struct sockaddr *)&here, there);
    close(descriptor);
    return found;
}

void te_unpace_before_connect(int descriptor, const te_address *address) {
    if (!address->is_unix && leads_here(address))
        choose(descriptor, UNPACED);
}

void te_unpace_before_listen(int descriptor) { choose(descriptor, UNPACED); }

void te_pace_from_elsewhere(int descriptor, const struct sockaddr *from) {
    struct sockaddr_storage here;
    socklen_t length = sizeof here;
    char name[NAME_BYTES];
    if (getsockname(descriptor, (struct sockaddr *)&here, &length) != 0 ||
        te_stays_here((const struct sockaddr *)&here, from))
        return;
    chosen(descriptor, name);
    if (strcmp(name, UNPACED) != 0)
        return; /* the route has said */
    usual(from->sa_family, name);
    if (name[0] != '\0')
        choose(descriptor, name);
}

/* Names of statuses, for logs, metrics and exceptions. */
#include "ms_wire.h"

static const char *const names[MS_STATUS_COUNT] = {
    [MS_OK] = "OK",
    [MS_EXISTS] = "EXISTS",
    [MS_NOT_FOUND] = "NOT_FOUND",
    [MS_GONE] = "GONE",
    [MS_NO_SPACE] = "NO_SPACE",
    [MS_BUSY] = "BUSY",
    [MS_BAD_REQUEST] = "BAD_REQUEST",
    [MS_BAD_KEY] = "BAD_KEY",
    [MS_TOO_LARGE] = "TOO_LARGE",
    [MS_BUFFER_TOO_SMALL] = "BUFFER_TOO_SMALL",
    [MS_TIMEOUT] = "TIMEOUT",
    [MS_CANCELLED] = "CANCELLED",
    [MS_UNAVAILABLE] = "UNAVAILABLE",
    [MS_WRONG_EPOCH] = "WRONG_EPOCH",
    [MS_WRONG_INCARNATION] = "WRONG_INCARNATION",
    [MS_FENCED] = "FENCED",
    [MS_SESSION_LOST] = "SESSION_LOST",
    [MS_NOT_LEADER] = "NOT_LEADER",
    [MS_VERSION_MISMATCH] = "VERSION_MISMATCH",
    [MS_BAD_FRAME] = "BAD_FRAME",
    [MS_BAD_CHECKSUM] = "BAD_CHECKSUM",
    [MS_OUT_OF_RANGE] = "OUT_OF_RANGE",
    [MS_NOT_REGISTERED] = "NOT_REGISTERED",
    [MS_NO_MEMORY] = "NO_MEMORY",
    [MS_IO_ERROR] = "IO_ERROR",
    [MS_REFUSED] = "REFUSED",
    [MS_CLOSED] = "CLOSED",
    [MS_LIMIT] = "LIMIT",
    [MS_COMPLETE] = "COMPLETE",
    [MS_PINNED] = "PINNED",
    [MS_FORKED] = "FORKED",
    [MS_INTERNAL] = "INTERNAL",
    [MS_PENDING] = "PENDING",
};

const char *ms_status_name(ms_status status) {
    /* A status comes from the network as a number: an unknown one (a newer peer's) has a name too. */
    return (unsigned)status < MS_STATUS_COUNT ? names[status] : "UNKNOWN";
}

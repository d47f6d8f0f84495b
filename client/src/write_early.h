/* The bytes of small objects, sent at once and answered later: the caller has something else to do in between. */
#ifndef CL_WRITE_EARLY_H
#define CL_WRITE_EARLY_H

#include "write_list.h"

typedef struct cl_write_early {
    cl_write_list list;
    cl_node *node;
    te_connection *connection; /* carries the frame; NULL: nothing is under way, or it has failed */
    struct cl_write_early *next; /* whose frame follows on the same connection, which it gets */
    uint32_t generation;         /* of the connection's HELLO */
    ms_status sent;
    int64_t began_ns;
} cl_write_early;

/* Sends all that is granted, where that is one small frame for one node, and needs nothing that others may hold.
 * False: nothing was sent; cl_put_write does it.  `before`: NULL, or what is under way and will be ended first; to the
 * same node both go over one connection, whose thread finds the second when it has done the first: on another
 * connection the second waits until another thread has been woken. */
bool cl_write_early_begin(cl_write_early *early, cl_putting *put, cl_write_early *before);
/* What came of it, as cl_put_write says it. */
ms_status cl_write_early_end(cl_write_early *early, cl_putting *put, cl_failure *failure);

#endif

/* The bytes of small objects, sent at once and answered later: the caller has something else to do in between. */
#ifndef CL_WRITE_EARLY_H
#define CL_WRITE_EARLY_H

#include "write_list.h"

typedef struct cl_write_early {
    cl_write_list list;
    cl_node *node;
    te_connection *connection; /* carries the frame; NULL: nothing is under way */
    ms_status sent;
    int64_t began_ns;
} cl_write_early;

/* Sends all that is granted, where that is one small frame for one node, and needs nothing that others may hold.
 * False: nothing was sent; cl_put_write does it. */
bool cl_write_early_begin(cl_write_early *early, cl_putting *put);
/* What came of it, as cl_put_write says it. */
ms_status cl_write_early_end(cl_write_early *early, cl_putting *put, cl_failure *failure);

#endif

/* What one WRITE frame says: the runs of bytes for one node, side by side with their sources and seals. */
#ifndef CL_WRITE_LIST_H
#define CL_WRITE_LIST_H

#include "put.h"

#define CL_WRITE_ITEMS_MAX 992u /* of one frame: blocks that the engine sends at once */

typedef struct cl_write_list {
    ms_write_item *items;
    const void **sources; /* NULL: the server copies from shared memory */
    uint32_t *statuses;
    uint32_t *owners; /* the put's item to which each belongs, in rising order */
    size_t count;
    ms_writer seals;
    uint64_t payload_bytes; /* that travel in the frame */
    uint64_t shared_bytes;  /* that the server copies */
    uint64_t request;       /* of the frame that was sent */
    ms_write_item item_scratch[4];
    const void *source_scratch[4];
    uint32_t status_scratch[4];
    uint32_t owner_scratch[4];
    uint8_t seal_scratch[2048];
} cl_write_list;

/* Room for `writes` runs; closed also after a failure. */
ms_status cl_write_list_open(cl_write_list *list, size_t writes);
void cl_write_list_close(cl_write_list *list);
/* One replica of one object, cut where its pieces of memory end; the last run of an extent brings the seal. */
void cl_write_list_add(cl_write_list *list, const cl_putting *put, size_t index,
                       const cl_replica *replica, uint32_t source, uint64_t source_offset);
/* All of it as one frame, which has room for CL_WRITE_ITEMS_MAX. */
ms_status cl_write_list_send(cl_write_list *list, te_connection *connection, uint32_t flags,
                             int64_t deadline_ns);
/* The answer, into the statuses.  Other than OK: there are none; *is_refused: the server has answered so for the whole
 * frame, and ends this connection, but passes nothing on. */
ms_status cl_write_list_receive(cl_write_list *list, te_connection *connection, int64_t deadline_ns,
                                bool *is_refused);
/* Nobody knows what became of it. */
void cl_write_list_doubt(const cl_write_list *list, cl_putting *put);
/* The statuses, into the put: which items have their replica with bit `bit`, and what failed. */
void cl_write_list_settle(const cl_write_list *list, cl_putting *put, const cl_node *node,
                          uint64_t bit, cl_failure *failure);

#endif

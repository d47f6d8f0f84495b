/* A put in progress: what put.c (the frames to the master) and write.c (the bytes to the servers) share. */
#ifndef CL_PUT_H
#define CL_PUT_H

#include "cl_internal.h"

typedef struct cl_put_state {
    cl_location *grant; /* NULL: not granted */
    uint64_t sealed;    /* bit per replica: every extent of it is SEALED */
    ms_status failed;   /* of a replica that is not */
    uint32_t checksum;  /* with MS_OBJECT_HAS_CHECKSUM in object_flags */
    bool ended;         /* the master has answered put_end */
    bool is_unclear;    /* nobody knows whether a server has sealed a replica */
    bool is_revoked;    /* the master has taken the grant back: nothing will come of it */
} cl_put_state;

typedef struct cl_putting {
    cl_client *client;
    cl_item *items;
    const cl_item *previous; /* the item before the first, of the same call; NULL: there is none */
    size_t count, pending;
    const cl_put_options *options;
    int64_t deadline_ns;
    int64_t write_ns;          /* until when the node that is written to may take */
    bool is_last;              /* no other node is tried after these */
    bool is_repeated;          /* all of it has been sent to its only node, and was not answered */
    uint32_t hello_generation; /* of the connection over which that went */
    cl_put_state *states;
    te_connection *master; /* carried PUT_START; NULL when it broke */
    /* The request that is under way on `master`: PUT_START, then PUT_END. */
    ms_writer request;
    uint8_t request_scratch[2048];
    ms_status sent;
    bool is_answered; /* PUT_START: `answered` says how */
    ms_status answered;
    int64_t began_ns; /* when it was */
    uint64_t session; /* that PUT_START named */
    ms_batch start;
    bool is_started;   /* `start` is a number that may be repeated */
    ms_batch end;      /* number of the PUT_END */
    bool is_end_asked; /* it went out on `master` */
    bool is_relayed;
    uint64_t expiry_ms; /* wall clock */
    uint8_t object_flags;
} cl_putting;

ms_hash cl_put_parent(const cl_putting *put, size_t index);
void cl_put_write_seal(const cl_putting *put, size_t index, uint16_t part, uint16_t part_count,
                       ms_writer *writer);
/* The relayed answer on put->master, into the items. */
ms_status cl_put_take_relayed(cl_putting *put, cl_failure *failure);
/* Until when a node may take for `bytes`: with another one that works not longer than the hedge's time. */
int64_t cl_put_limit(const cl_putting *put, const cl_node *node, uint64_t bytes);
/* A node that is known not to answer is not written to while another one could be. */
bool cl_put_avoids(const cl_putting *put, cl_node *node);
void cl_put_replica_failed(cl_putting *put, size_t index, ms_status status);
/* The WRITE of all of it went over a connection of that HELLO, which has ended unanswered: it goes over another one
 * *(seal_again)*, as it is that which has ended, not the server, for all that is known. */
void cl_put_repeat(cl_putting *put, uint32_t hello_generation);
/* The node has not taken what it was sent: says so, also to those who come after. */
void cl_put_node_failed(cl_putting *put, cl_node *node, ms_status status, int64_t began_ns,
                        cl_failure *failure);
/* Writes and SEALs all replicas of what is granted; *is_done: put_end was relayed and answered too. */
ms_status cl_put_write(cl_putting *put, bool *is_done, cl_failure *failure);

#endif

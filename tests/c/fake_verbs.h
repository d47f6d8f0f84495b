/* Control of fake_verbs.c: what a test does to the NICs of its process.  Numbers of NICs count from 0. */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_NICS 4

/* The port's link; programs are told by an event. */
void fake_link_set(int nic, bool is_up);
/* Packets to and from it vanish, and nobody is told. */
void fake_loss_set(int nic, bool is_lost);
/* The device is taken away, as by the removal of its driver; or it is there again, as another device. */
void fake_nic_set(int nic, bool is_there);
/* A further GID, from which nobody is reached. */
void fake_dead_gid_set(int nic, bool is_there);

/* So fast all wires are together; 0: as fast as memory. */
void fake_speed_set(uint64_t bytes_per_s);

/* The call after `skipped` others fails, and `count - 1` after it: once armed, for whichever NIC. */
typedef enum fake_call {
    FAKE_CREATE_QP,
    FAKE_MODIFY_QP,
    FAKE_POST,
    FAKE_REGISTER,
    FAKE_CREATE_CQ,
    FAKE_REGISTER_DEVICE, /* memory by a descriptor */
    FAKE_CALLS
} fake_call;
void fake_fail(fake_call call, int skipped, int count);
/* The next READ or WRITE that a NIC would carry out completes with this status (VERBS_WC_...). */
void fake_fail_completion(int status);

typedef struct fake_counts {
    int queue_pairs, completion_queues, regions, contexts; /* that are there now */
    int device_regions;                                    /* of them by a descriptor */
    uint64_t read_bytes, write_bytes;                      /* moved */
    uint64_t nic_bytes[FAKE_NICS];                         /* asked for by way of it */
} fake_counts;
fake_counts fake_count(void);

#endif

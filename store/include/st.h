/* The store server: segments of memory, whose extents the master grants and which clients write and read.
 *
 * It answers WRITE, READ, SEAL and views from clients, FREE, ADOPT, NOTE and COPY from the master that it
 * dials, by the rules of docs/protocol.md; names in italics there are quoted where a line exists because of
 * one.  A server runs its own threads (the engine's I/O threads, one for control, one that touches memory
 * until the pool is ready, some for copies while there are any) and never calls into Python.
 */
#ifndef ST_H
#define ST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"
#include "te.h"

/* Room that `error` of st_open must have; what is written there is a sentence for people. */
#define ST_ERROR_BYTES 512

/* begin cdef */
typedef struct st_server st_server;

typedef struct st_config {
    const char *segment_dir; /* folder of this node's files, made 0700; an absolute path */
    const char *hugetlb_dir; /* payload goes into this hugetlbfs folder; NULL = beside the others */
    const char *name;        /* of the node, for people */
    const char *host;        /* replicas go to distinct hosts */
    const char *listen_address; /* numeric IPv4 or IPv6 */
    const char *addresses;      /* numeric, "10.0.0.2,fd00::2"; NULL = listen_address */
    const char *unix_path;      /* NULL = no Unix socket */
    const char *master;         /* "ip:port"; NULL = none yet, see st_set_master */
    const char *tenant;         /* of the HELLO to the master */
    const char *token;
    uint64_t size_bytes;        /* of the pool; rounded down to pages */
    uint64_t ready_bytes;       /* there when st_open returns; default 64 MiB */
    uint64_t view_bytes_max;    /* under open views at a time; default half of the pool */
    uint32_t views_max;         /* open at a time; default 65,536 */
    uint32_t touch_permille;    /* of a core, for touching the rest of the pool; default 250 */
    uint32_t copies_max;        /* pulls from other servers at a time; default 2 */
    uint32_t epoch_floor;       /* what the coordinator knows, *(epoch_floor)* */
    uint32_t incarnation_floor; /* the coordinator's, for this start */
    uint16_t port;              /* 0 = any */
    bool huge_pages; /* madvise(MADV_HUGEPAGE); a warning when the kernel would not follow */
    bool keep_size; /* size_bytes is for a new pool; one that is taken up stays as large as it is */
    bool keep_files; /* leave the pool's files when closed, if objects lie in them */
    te_engine_config engine;
} st_config;

void st_config_default(st_config *config);

/* Who the node of this folder is, for whoever must be asked before it starts: false when it has no identity yet
 * (st_open makes one). */
bool st_read_identity(const char *segment_dir, uint8_t node_id[16]);

/* Makes the files or takes up those of an earlier process, listens, and dials the master in the background.  `error` has ST_ERROR_BYTES bytes.
 * NO_SPACE: the file system has no room for size_bytes; BUSY: another process owns the folder. */
ms_status st_open(const st_config *config, st_server **server, char *error);
/* Ends every connection, joins the threads, takes the pool's files away unless it is to keep them (its identity
 * stays).  After a kill they are always there: the next start takes them up. */
void st_close(st_server *server);
/* The engine that serves the segments: for the batch interface.  Owned by the server. */
te_engine *st_engine(st_server *server);
/* Dial this master from now on: the leader has changed, or moved. */
ms_status st_set_master(st_server *server, const char *master);

typedef enum {
    ST_POOL_GROWING = 0,
    ST_POOL_READY = 1,
    ST_POOL_SMALLER = 2 /* the file system became full: bytes_ready is what there is */
} st_pool_state;

typedef struct st_status {
    uint8_t node_id[16];
    uint32_t incarnation;
    uint32_t epoch;      /* adopted; 0 = no master yet */
    uint32_t is_adopted; /* connected to a master that has got our inventory */
    uint32_t pool_state; /* st_pool_state */
    uint64_t bytes_total;
    uint64_t bytes_ready;
    uint64_t object_extents; /* live records */
    uint64_t tick_age_ms;    /* since the I/O threads last turned; they do 5 times a second */
    uint16_t port;
    uint8_t was_restarted; /* 1: this node has been started before */
    uint8_t is_kept;       /* 1: this start took up the files of an earlier one */
} st_status;
void st_get_status(st_server *server, st_status *status);
/* Next line of the server's log, or 0 when there is none: an event and its fields
 * (`adopted epoch=3 server=0`), without an end of line.  severity: 0 information, 1 warning, 2 error.
 * Bounded; the oldest go. */
size_t st_next_log(st_server *server, char *line, size_t size, int *severity);
/* Readable while st_next_log has lines. */
int st_log_descriptor(st_server *server);

/* Counters by position; st_counter_name gives NULL past the last. */
const char *st_counter_name(size_t id);
const char *st_counter_help(size_t id);
uint64_t st_counter(st_server *server, size_t id);

/* Memory of a segment, so that the batch interface can register it: base address and bytes that are ready. */
ms_status st_segment_memory(st_server *server, uint32_t segment, uint64_t *address,
                            uint64_t *length);

/* Nanoseconds in which the inventory takes so many records of objects of a page, in a folder of its own; -1: it could
 * not. */
int64_t st_bench_inventory(const char *folder, uint32_t count, uint32_t key_length);
/* end cdef */

#endif

/* The frames that masters, store servers and clients exchange, and the numbers in them.
 *
 * docs/protocol.md tells the same in prose, with golden vectors.  All integers are little-endian and
 * every struct is packed by construction (no padding: the static assertions prove it), so a struct
 * is copied to and from the wire on the hosts we build for (x86-64 and aarch64, both little-endian).
 * A decoder must use ms_reader (ms_frame.h), which checks every length, and must never trust a count.
 */
#ifndef MS_WIRE_H
#define MS_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define MS_MAGIC 0x3153434du /* "MCS1" */
#define MS_WIRE_VERSION 1u
#define MS_WIRE_VERSION_OLDEST 1u /* the oldest version understood */

#define MS_PAGE_SIZE 4096u     /* the unit of space */
#define MS_KEY_BYTES_MAX 1024u /* a key is 1 to 1024 bytes of UTF-8 */
#define MS_TENANT_BYTES_MAX 64u
#define MS_VALUE_BYTES_MAX (16ull << 30)
#define MS_BODY_BYTES_MAX (16u << 20)       /* body of a frame, once HELLO is done */
#define MS_BODY_BYTES_MAX_HELLO (64u << 10) /* body of a frame before that */
#define MS_BATCH_ITEMS_MAX 65536u           /* items of one batch frame */
#define MS_VIEWS_MAX 4096u  /* of VIEW_OPEN and VIEW_CLOSE: a socket takes the answer at once */
#define MS_EXTENTS_MAX 256u /* extents of one replica */
#define MS_REPLICAS_MAX 16u
#define MS_SECRET_BYTES 192u /* XXH3 secret of the cluster */
#define MS_LOCATION_LIFETIME_MS 120000u

/* begin cdef */
typedef enum {
    MS_OK = 0,
    MS_EXISTS = 1,      /* put: the key is there; nothing was changed */
    MS_NOT_FOUND = 2,   /* a miss */
    MS_GONE = 3,        /* the location is stale: look up again */
    MS_NO_SPACE = 4,    /* what is left is pinned, leased or being written */
    MS_BUSY = 5,        /* another put of that key is open; retry */
    MS_BAD_REQUEST = 6, /* the caller's mistake; a retry cannot help */
    MS_BAD_KEY = 7,     /* not 1 to 1024 bytes of UTF-8 */
    MS_TOO_LARGE = 8,   /* larger than the pool or than 16 GiB */
    MS_BUFFER_TOO_SMALL = 9,
    MS_TIMEOUT = 10,
    MS_CANCELLED = 11,
    MS_UNAVAILABLE = 12, /* no connection, peer closed, peer starting */
    MS_WRONG_EPOCH = 13,
    MS_WRONG_INCARNATION = 14,
    MS_FENCED = 15,       /* the session was cut off at this server */
    MS_SESSION_LOST = 16, /* open a new session */
    MS_NOT_LEADER = 17,
    MS_VERSION_MISMATCH = 18, /* wire versions do not overlap */
    MS_BAD_FRAME = 19,
    MS_BAD_CHECKSUM = 20,
    MS_OUT_OF_RANGE = 21,   /* address or offset outside its segment or region */
    MS_NOT_REGISTERED = 22, /* no such region, segment, batch or peer */
    MS_NO_MEMORY = 23,
    MS_IO_ERROR = 24,
    MS_REFUSED = 25, /* identity, token or right */
    MS_CLOSED = 26,
    MS_LIMIT = 27,    /* a bound of this process is reached */
    MS_COMPLETE = 28, /* revoke of a put that is complete */
    MS_PINNED = 29,   /* remove of a hard-pinned object without force */
    MS_FORKED = 30,   /* a handle used after fork */
    MS_INTERNAL = 31,
    MS_PENDING = 32, /* not finished yet: transfers; parked calls inside the master */
    MS_STATUS_COUNT = 33
} ms_status;

const char *ms_status_name(ms_status status);
/* end cdef */

enum ms_kind { MS_REQUEST = 0, MS_ANSWER = 1, MS_ONEWAY = 2 };

enum ms_method {
    /* every connection */
    MS_HELLO = 0x01, /* first frame of a connection */
    MS_PING = 0x02,
    /* transfer engine: memory of a peer.  Also what a store server's segments answer to. */
    MS_OPEN_SEGMENT = 0x10, /* -> ms_region and topology of that engine */
    MS_READ = 0x11,
    MS_WRITE = 0x12,
    MS_ATTACH = 0x13, /* unix socket only: read-only descriptors of a segment */
    MS_SHARE = 0x14,  /* unix socket only: the client's memfd, which WRITE may name as source */
    MS_UNSHARE = 0x15,
    MS_NOTIFY = 0x16, /* application message between engines */
    MS_CUT = 0x17,    /* close another connection of the asker, for certain */
    /* RDMA: queue pairs belong to the connection over which they were agreed, and have its right */
    MS_RDMA_PORTS = 0x18,
    MS_RDMA_CONNECT = 0x19,
    MS_RDMA_DISCONNECT = 0x1a, /* answered when the queue pair is destroyed */
    MS_RDMA_SEGMENT = 0x1b,    /* where a segment is registered, and under which keys */
    MS_TOPOLOGY = 0x1c,        /* the interfaces of who answers; one-way: they have changed */
    /* client -> master */
    MS_EXISTS_KEYS = 0x20,
    MS_LOOKUP = 0x21,
    MS_MATCH_PREFIX = 0x22,
    MS_PUT_START = 0x23,
    MS_PUT_END = 0x24,
    MS_REVOKE = 0x25,
    MS_REMOVE = 0x26,
    MS_TOUCH = 0x27,
    MS_PIN = 0x28,
    MS_UNPIN = 0x29,
    MS_LIST = 0x2a,
    MS_STAT = 0x2b,
    MS_ANNOTATE = 0x2c, /* hard pin, soft pin, TTL of a stored object */
    MS_CHANGE_REPLICA = 0x2d,
    MS_MEMBERS = 0x2e,
    MS_STATUS = 0x2f,
    MS_REMOVE_MATCHING = 0x30,
    MS_EVENTS = 0x31,
    MS_KEEPALIVE = 0x32,
    MS_CLOSE_SESSION = 0x33,
    MS_EXPLAIN = 0x34, /* where an object is, or when and why it went */
    MS_PINS = 0x35,    /* how often a session has pinned each of some keys */
    MS_FORGET = 0x37,  /* a store server that is gone for good is a member no more */
    MS_START_TASK = 0x38,
    MS_TASKS = 0x39,
    MS_CANCEL_TASK = 0x3a,
    /* master -> store server (on the connection that the server dialled) and back */
    MS_ADOPT = 0x40,        /* request; its answer's frames are INVENTORY */
    MS_INVENTORY = 0x41,    /* one-way, several; the last has MS_FLAG_LAST */
    MS_FREE = 0x42,         /* one-way; answered by CLEARED and FREED */
    MS_CLEARED = 0x43,      /* one-way, server -> master */
    MS_FREED = 0x44,        /* one-way, server -> master; says CLEARED too */
    MS_NOTE = 0x45,         /* request: ANNOTATE of one extent */
    MS_COPY = 0x46,         /* request: pull an object from another server, SEAL it */
    MS_RELAYED_END = 0x47,  /* one-way, server -> master: put_end in the client's name */
    MS_SERVER_STATS = 0x48, /* one-way, server -> master, each second: heartbeat */
    /* client -> store server */
    MS_VIEW_OPEN = 0x50,
    MS_VIEW_CLOSE = 0x51,
    MS_SEAL = 0x52, /* apart from WRITE (after drain, RDMA): body as WRITE, lengths 0 */
};

enum ms_flag {
    MS_FLAG_LAST = 1u << 0,  /* last frame of a sequence */
    MS_FLAG_RELAY = 1u << 1, /* WRITE, SEAL: relay put_end after the last; OK: no answer */
    MS_FLAG_FORCE = 1u << 2, /* remove: hard-pinned objects too */
    MS_FLAG_REGEX = 1u << 3, /* list, remove matching: POSIX extended regular expression */
    MS_FLAG_PEEK = 1u << 4,  /* lookup: no use of the objects */
};

/* 48 bytes before every frame.  On the wire: header, body, payload, trailer. */
typedef struct ms_header {
    uint32_t magic;
    uint8_t version;
    uint8_t kind;
    uint16_t method;
    uint32_t status;  /* answer: ms_status.  request: deadline in ms from receipt, 0 = none */
    uint32_t epoch;   /* of the sender's session or leadership; 0 before HELLO */
    uint64_t request; /* chosen by the asker, repeated in the answer */
    uint32_t body_length;
    uint32_t trailer_length;
    uint64_t payload_length;
    uint32_t flags;
    uint32_t reserved; /* 0; later: length of a trace context */
} ms_header;
_Static_assert(sizeof(ms_header) == 48, "wire");

typedef struct ms_hash {
    uint64_t low, high; /* XXH3-128 with the cluster's secret of: u8 tenant length, tenant, key */
} ms_hash;
_Static_assert(sizeof(ms_hash) == 16, "wire");

/* An answer with a status other than OK has as its body a UTF-8 sentence for people (may be empty),
 * unless the method's table says that per-item statuses come instead.
 * "string": u32 length, bytes, zero padding to 8.  "list": u32 count, u32 zero, items. */

/* ---- HELLO ------------------------------------------------------------------------------------ */
enum ms_role { MS_ROLE_CLIENT = 1, MS_ROLE_SERVER = 2, MS_ROLE_ENGINE = 3, MS_ROLE_TOOL = 4 };
enum ms_right { MS_RIGHT_READ = 1, MS_RIGHT_WRITE = 2 };

typedef struct ms_hello {
    uint8_t version_oldest, version_newest;
    uint8_t role;  /* ms_role of the caller */
    uint8_t right; /* ms_right, for ever that of this connection; to a master 0: as the role may */
    uint32_t incarnation; /* to a store server: that of the grant; 0 for reading */
    uint64_t session;     /* to a master: 0 = open one, else take it up again */
    uint32_t epoch;       /* of the session */
    uint32_t pid;
    uint8_t boot_id[16]; /* /proc/sys/kernel/random/boot_id, as 16 bytes */
    uint64_t cluster; /* that the caller belongs to, as HELLO's answer told it; 0 = to none yet */
    /* strings follow: tenant, token, name (for people: "vllm-worker-0").
     * role server: then ms_server_info and its strings */
} ms_hello;
_Static_assert(sizeof(ms_hello) == 48, "wire");

typedef struct ms_hello_answer {
    uint8_t version;
    uint8_t role; /* of the answerer: MS_ROLE_SERVER for a store server, 0 for a master */
    uint16_t reserved;
    uint32_t epoch;
    uint64_t session;
    uint64_t cluster;     /* id of the cluster, random */
    uint32_t incarnation; /* store server: its own */
    uint32_t session_timeout_ms;
    uint32_t location_lifetime_ms;
    uint32_t members_serial; /* grows with each change of MEMBERS */
    uint8_t boot_id[16];
    /* strings follow: node name, secret (192 bytes from a master, else empty) */
} ms_hello_answer;
_Static_assert(sizeof(ms_hello_answer) == 56, "wire");

/* One segment of a store server, in ms_server_info's list. */
typedef struct ms_segment_info {
    uint32_t segment; /* index at that server */
    uint32_t tier;    /* 0 DRAM, 1 SSD, 2 VRAM */
    uint64_t page_count;
    /* allocated and touched; grants stay below; grows, see SERVER_STATS */
    uint64_t page_count_ready;
} ms_segment_info;
_Static_assert(sizeof(ms_segment_info) == 24, "wire");

typedef struct ms_server_info {
    uint8_t node_id[16]; /* UUID, persisted */
    uint32_t incarnation;
    uint32_t state;  /* in MEMBERS: ms_member_state */
    uint32_t server; /* in MEMBERS: the number by which this master names it in locations */
    uint32_t segment_count;
    uint8_t boot_id[16];
    /* then: segment_count ms_segment_info; strings: node name, host (placement: distinct hosts),
     * unix socket path, addresses (comma-separated "ip:port", "[ip]:port") */
} ms_server_info;
_Static_assert(sizeof(ms_server_info) == 48, "wire");

enum ms_member_state {
    MS_MEMBER_JOINING = 0,
    MS_MEMBER_READY = 1,
    MS_MEMBER_DRAINING = 2,
    MS_MEMBER_GONE = 3
};

/* ---- RDMA -------------------------------------------------------------------------------------- */
enum ms_rdma_link { MS_RDMA_INFINIBAND = 1, MS_RDMA_ETHERNET = 2 };
enum ms_rdma_gid_type {
    MS_RDMA_GID_INFINIBAND = 0,
    MS_RDMA_GID_ROCE_V1 = 1,
    MS_RDMA_GID_ROCE_V2 = 2
};

typedef struct ms_rdma_gid {
    uint8_t raw[16];
    uint8_t type;  /* ms_rdma_gid_type */
    uint8_t index; /* in the port's table */
    uint8_t reserved[6];
} ms_rdma_gid;
_Static_assert(sizeof(ms_rdma_gid) == 24, "wire");

/* RDMA_PORTS: empty body.  Answer: list of ms_rdma_port, each followed by its gid_count ms_rdma_gid. */
typedef struct ms_rdma_port {
    uint32_t nic; /* the number by which this process names it */
    uint8_t link; /* ms_rdma_link */
    uint8_t mtu;  /* active: 1 = 256, 2 = 512, ... 5 = 4096 bytes */
    uint16_t lid;
    uint32_t message_bytes_max;
    uint32_t gid_count;
} ms_rdma_port;
_Static_assert(sizeof(ms_rdma_port) == 16, "wire");

/* RDMA_CONNECT: the asker's end.  Answer: the answerer's, with the same generation. */
typedef struct ms_rdma_end {
    uint64_t generation; /* of the asker's endpoint */
    uint32_t nic;        /* of the answerer */
    uint32_t queue_pair;
    uint32_t packet; /* the sender's first packet sequence number, 24 bits */
    uint16_t lid;
    uint8_t mtu;       /* request: at most; answer: what both use */
    uint8_t gid_index; /* of the answerer */
    uint8_t gid[16];   /* of the sender */
    uint8_t reads_out; /* READs that the sender has outstanding at most */
    uint8_t reads_in;  /* and answers at once */
    uint8_t reserved[6];
} ms_rdma_end;
_Static_assert(sizeof(ms_rdma_end) == 48, "wire");

/* RDMA_SEGMENT: u32 segment, u32 zero.  Answer: u32 is_whole (all that the segment has is in the list), u32 zero; list
 * of ms_rdma_chunk. */
typedef struct ms_rdma_chunk {
    uint64_t offset, length; /* of the segment's bytes, or of its table of words */
    uint64_t address;
    uint32_t key;
    uint16_t nic;
    uint16_t is_words;
} ms_rdma_chunk;
_Static_assert(sizeof(ms_rdma_chunk) == 32, "wire");

/* ---- locations and grants ----------------------------------------------------------------------- */
typedef struct ms_extent {
    uint32_t page; /* first page in the segment */
    uint32_t page_count;
} ms_extent;

/* One replica: followed by extent_count ms_extent, in the order of the object's bytes. */
typedef struct ms_replica {
    uint32_t server; /* number in MEMBERS */
    uint32_t incarnation;
    uint16_t segment;
    uint16_t extent_count;
    uint8_t tier;
    uint8_t state; /* 0 writing, 1 complete, 2 leaving */
    uint16_t reserved;
} ms_replica;
_Static_assert(sizeof(ms_replica) == 16, "wire");

/* Answer to LOOKUP per key, MATCH_PREFIX per block, and the grant of PUT_START: followed by
 * replica_count ms_replica.  An item's length is a multiple of 8 by construction. */
typedef struct ms_location {
    uint32_t status; /* OK, NOT_FOUND, ...; other than OK: replica_count is 0 and the rest is 0 */
    uint32_t replica_count;
    uint64_t version;     /* epoch (20 bits), sequence (43 bits) */
    uint64_t size;        /* bytes of the object */
    uint32_t checksum;    /* CRC32C of the whole object; 0 when HAS_CHECKSUM is not set */
    uint32_t flags;       /* ms_object_flag, replicas wanted */
    uint32_t lifetime_ms; /* location: from when the request was sent; grant: deadline of the put */
    uint32_t reserved;
} ms_location;
_Static_assert(sizeof(ms_location) == 40, "wire");

enum ms_object_flag {
    MS_OBJECT_HARD_PIN = 1u << 0,
    MS_OBJECT_SOFT_PIN = 1u << 1,
    MS_OBJECT_HAS_CHECKSUM = 1u << 2,
    MS_OBJECT_IS_COPY = 1u << 3, /* of a record: sealed by COPY, under a version of its own */
};

/* Bits 4 to 7 of these flags: how many replicas are wanted beyond the first, so that a master that rebuilds its
 * index knows which objects are short of some. */
#define MS_OBJECT_WANTED_SHIFT 4u
static inline uint32_t ms_replicas_wanted(uint32_t flags) {
    return (flags >> MS_OBJECT_WANTED_SHIFT & (MS_REPLICAS_MAX - 1)) + 1;
}
static inline uint32_t ms_wanted_flags(uint32_t replica_count) {
    return replica_count < 2 ? 0 : (replica_count - 1) << MS_OBJECT_WANTED_SHIFT;
}

static inline uint64_t ms_word(uint64_t version, int live) {
    return version << 1 | (uint64_t)(live != 0);
}
static inline uint64_t ms_version(uint32_t epoch, uint64_t sequence) {
    return (uint64_t)epoch << 43 | sequence;
}

/* ---- client -> master ---------------------------------------------------------------------------- */
/* EXISTS_KEYS: body = list of ms_hash.  Answer: payload of one byte a key (1 there, 0 not), no body.
 * LOOKUP:      body = list of ms_hash.  Answer: body = list of ms_location (with replicas).
 * REMOVE:      body = ms_batch, items ms_key_item.  Answer (when all holders have CLEARED): list of u32 status.
 * TOUCH:       body = list of ms_hash.  One-way. */

enum ms_pin {
    MS_PIN_NONE = 0,
    MS_PIN_HOLD =
        1, /* until the session takes it back with UNPIN, ends, or the deadline is there */
    MS_PIN_LEASE = 2 /* PIN only: until the deadline, and nobody takes it back */
};

/* MATCH_PREFIX: answer: list of ms_location, as many as matched (all OK).  PIN (pin = HOLD or LEASE) and UNPIN (pin = NONE):
 * every key on its own; answer: list of u32 status. */
typedef struct ms_match {
    uint64_t number; /* of what pins or unpins, see ms_pins_item; 0: not numbered */
    uint32_t count;
    uint32_t pin;             /* ms_pin, for this session */
    uint32_t pin_deadline_ms; /* pins end after this; 0 = with the session */
    uint32_t reserved;
    /* ms_hash[count] */
} ms_match;
_Static_assert(sizeof(ms_match) == 24, "wire");

/* PINS: body = ms_match (pin = NONE), ms_pins_item[count]; answer: list of u32 status.  The session's pins of each key are
 * these from now on, whatever it has pinned and unpinned before.  What comes later with a number that is not above
 * this one's is refused: nobody waits for it any more. */
typedef struct ms_pins_item {
    ms_hash hash;
    uint32_t count;
    uint32_t deadline_ms; /* they end after this; 0 = with the session */
} ms_pins_item;
_Static_assert(sizeof(ms_pins_item) == 24, "wire");

/* First part of PUT_START, PUT_END, REVOKE, REMOVE: executed at most once. */
typedef struct ms_batch {
    uint64_t number; /* of this session; a repeat gets the first answer; 0: never repeated */
    /* all numbers up to this have been answered: their answers may be forgotten */
    uint64_t number_done;
    uint32_t count;
    uint32_t reserved;
} ms_batch;
_Static_assert(sizeof(ms_batch) == 24, "wire");

enum ms_put_flag {
    MS_PUT_UPSERT = 1u << 0,
    MS_PUT_HARD_PIN = 1u << 1,
    MS_PUT_SOFT_PIN = 1u << 2,
    MS_PUT_STRICT_REPLICAS = 1u << 3, /* fewer than replica_count_min: NO_SPACE */
};

/* PUT_START item: struct, then key bytes, zero padding to 8.  Answer: list of ms_location (grants); when one
 * of them is NO_SPACE, TOO_LARGE or UNAVAILABLE a string follows that says what the space is used for. */
typedef struct ms_put_item {
    ms_hash hash;
    uint64_t size;
    uint32_t ttl_ms;      /* 0 = none */
    uint32_t deadline_ms; /* the put's; at least twice the call's */
    ms_hash parent;       /* 0,0 = none */
    uint64_t group;       /* 0 = none */
    uint16_t key_length;
    uint8_t replica_count;
    uint8_t replica_count_min;
    uint32_t flags;            /* ms_put_flag */
    uint32_t preferred_server; /* number in MEMBERS + 1, 0 = none */
    /* number + 1 of servers that do not answer this client: taken only where nothing else has room */
    uint16_t spared_first, spared_second;
} ms_put_item;
_Static_assert(sizeof(ms_put_item) == 72, "wire");

/* PUT_END and REVOKE item.  Answer: list of u32 status. */
typedef struct ms_end_item {
    ms_hash hash;
    uint64_t version;
    /* PUT_END: replicas (in the grant's order) that were SEALED; the others are freed */
    uint64_t replica_mask;
    uint32_t checksum;
    uint32_t flags; /* MS_OBJECT_HAS_CHECKSUM */
} ms_end_item;
_Static_assert(sizeof(ms_end_item) == 40, "wire");

/* REMOVE item, ANNOTATE item's tail, STAT, CHANGE_REPLICA: hash, length, then key bytes, padding to 8. */
typedef struct ms_key_item {
    ms_hash hash;
    uint32_t key_length;
    uint32_t flags; /* MS_FLAG_FORCE */
} ms_key_item;
_Static_assert(sizeof(ms_key_item) == 24, "wire");

enum ms_annotate_field { MS_ANNOTATE_HARD_PIN = 1, MS_ANNOTATE_SOFT_PIN = 2, MS_ANNOTATE_TTL = 4 };

/* ANNOTATE: body = ms_annotate, ms_key_item + key.  Answered when all holders have answered. */
typedef struct ms_annotate {
    uint32_t fields; /* ms_annotate_field: which of the following to set */
    uint32_t flags;  /* ms_object_flag */
    uint64_t ttl_ms; /* 0 = for ever */
} ms_annotate;
_Static_assert(sizeof(ms_annotate) == 16, "wire");

/* CHANGE_REPLICA: body = ms_change_replica, ms_key_item + key.  Answered when done; body: ms_location. */
typedef struct ms_change_replica {
    uint32_t replica_count; /* wanted in all; 0 = move */
    uint32_t target_server; /* number + 1, 0 = any */
    uint32_t source_server; /* number + 1: that replica leaves (move, or first to go), 0 = any */
    uint32_t reserved;
} ms_change_replica;
_Static_assert(sizeof(ms_change_replica) == 16, "wire");

/* LIST, REMOVE_MATCHING: body = ms_list, pattern (a prefix, or with MS_FLAG_REGEX an expression), padding to 8.
 * LIST answers: ms_list_answer, then per object ms_list_item + key + padding.
 * REMOVE_MATCHING does one step and answers ms_list_answer with the count removed (when CLEARED). */
typedef struct ms_list {
    uint64_t cursor; /* 0 = from the start */
    uint32_t limit;  /* objects per answer, at most 10,000 */
    uint32_t flags;  /* MS_FLAG_REGEX, MS_FLAG_FORCE */
    uint32_t pattern_length;
    uint32_t reserved;
} ms_list;
_Static_assert(sizeof(ms_list) == 24, "wire");

typedef struct ms_list_answer {
    uint64_t cursor; /* 0 = that was all */
    uint32_t count;
    uint32_t reserved;
} ms_list_answer;
_Static_assert(sizeof(ms_list_answer) == 16, "wire");

typedef struct ms_list_item {
    uint64_t size;
    uint64_t version;
    uint32_t key_length;
    uint16_t replica_count;
    uint8_t flags;   /* ms_object_flag */
    uint8_t pinned;  /* 1: a session pins it */
    uint64_t ttl_ms; /* left; 0 = for ever */
} ms_list_item;
_Static_assert(sizeof(ms_list_item) == 32, "wire");

/* STAT: body = ms_key_item + key.  Answer: ms_stat, then ms_location with replicas. */
typedef struct ms_stat {
    uint64_t age_ms;
    uint64_t idle_ms; /* since the last use the master knows of */
    uint64_t ttl_ms;
    uint32_t pin_count; /* sessions' pins */
    uint32_t use_count; /* uses the master knows of */
    uint64_t group;
    ms_hash parent;
} ms_stat;
_Static_assert(sizeof(ms_stat) == 56, "wire");

/* MEMBERS: empty body.  Answer: u32 serial, u32 count, ms_server_info + tails.
 * STATUS: empty body.  Answer: list of ms_counter. */
typedef struct ms_counter {
    uint32_t id;    /* position in the list that `md_counter_name` names */
    uint32_t label; /* server number + 1, or 0 */
    uint64_t value;
} ms_counter;
_Static_assert(sizeof(ms_counter) == 16, "wire");

/* EVENTS: body = ms_events.  Answer: ms_events_answer, then per event ms_event + key + padding.
 * A sequence no longer in the ring, or of another epoch, answers GONE: take a snapshot with LIST. */
typedef struct ms_events {
    uint64_t sequence; /* first wanted; 0 = the next one that happens */
    uint32_t epoch;
    uint32_t limit;
} ms_events;
_Static_assert(sizeof(ms_events) == 16, "wire");
typedef struct ms_events_answer {
    uint64_t sequence_next;
    uint32_t epoch;
    uint32_t count;
} ms_events_answer;
_Static_assert(sizeof(ms_events_answer) == 16, "wire");
enum ms_event_kind {
    MS_EVENT_STORED = 1,
    MS_EVENT_REMOVED = 2,
    MS_EVENT_EVICTED = 3,
    MS_EVENT_EXPIRED = 4,
    MS_EVENT_REPLICA_ADDED = 5,
    MS_EVENT_REPLICA_LOST = 6,
    MS_EVENT_SERVER_JOINED = 7,
    MS_EVENT_SERVER_LOST = 8,
    MS_EVENT_LOST = 9 /* the last replica went with its server */
};
typedef struct ms_event {
    uint64_t sequence;
    uint64_t version;
    uint64_t size;
    uint32_t kind;
    uint32_t server; /* number + 1, or 0 */
    uint32_t key_length;
    uint32_t age_ms; /* before the answer */
} ms_event;
_Static_assert(sizeof(ms_event) == 40, "wire");

/* EXPLAIN: body = ms_key_item + key.  Answer: ms_explain; string: the name of the session that is putting it; with
 * MS_EXPLAIN_STORED ms_stat and ms_location as in STAT; then per fate, newest first, ms_fate and a string: the name of
 * its session.  A key of which nothing is known is answered too. */
enum ms_explain_flag {
    MS_EXPLAIN_STORED = 1u << 0,
    MS_EXPLAIN_PUTTING = 1u << 1, /* a put of it is open ... */
    MS_EXPLAIN_PARKED = 1u << 2   /* ... and waits for room */
};
typedef struct ms_explain {
    uint64_t leading_ms; /* since this master leads: of what was before, it knows nothing */
    uint64_t history_ms; /* nothing that happened within this is missing */
    uint64_t put_version, put_size, put_session;
    uint32_t put_deadline_ms; /* left */
    uint32_t flags;           /* ms_explain_flag */
    uint32_t child_count;     /* stored objects whose parent it is */
    uint32_t policy;          /* of eviction: 0 lru, 1 lfu, 2 length_aware, 3 sieve */
    uint32_t fate_count;
    uint32_t reserved;
} ms_explain;
_Static_assert(sizeof(ms_explain) == 64, "wire");
/* How an object, or a put of it, ended. */
enum ms_fate_kind {
    MS_FATE_EVICTED_FOR_PUT = 1,      /* a put needed its room: of `session`, of `bytes_wanted` */
    MS_FATE_EVICTED_AT_WATERMARK = 2, /* in the background; bytes_wanted: wanted free in all */
    MS_FATE_EVICTED_FOR_COPY =
        3,                  /* another object got a replica; bytes_wanted: of all its copies */
    MS_FATE_EXPIRED = 4,    /* its TTL was over */
    MS_FATE_REMOVED = 5,    /* by `session` */
    MS_FATE_REPLACED = 6,   /* by a later put of `session`, of `bytes_wanted` */
    MS_FATE_OUTRANKED = 7,  /* a store server came back with a later version */
    MS_FATE_NODE_LOST = 8,  /* the last that held it was gone for longer than the grace */
    MS_FATE_NOT_KEPT = 9,   /* the last that held it came back without it */
    MS_FATE_STRUCK = 10,    /* removed or replaced while its store server was away */
    MS_FATE_CONDEMNED = 11, /* too much was, so all that its store server held went */
    MS_FATE_PUT_SESSION_ENDED = 12, /* the put's client closed, or was silent for too long */
    MS_FATE_PUT_DEADLINE = 13, /* the put's deadline passed; version 0: while waiting for room */
    MS_FATE_PUT_REVOKED = 14,  /* its client gave the put up */
    MS_FATE_PUT_NO_SPACE = 15, /* nothing that may leave made enough room for it */
    MS_FATE_PUT_NODE_RESTARTED = 16 /* all that it was written to began a new life */
};
typedef struct ms_fate {
    uint64_t version; /* 0: of a put that was never granted */
    uint64_t size;
    uint64_t age_ms;
    uint64_t session; /* that did it, or 0 */
    uint64_t bytes_wanted;
    uint32_t kind;   /* ms_fate_kind */
    uint32_t server; /* that held its first replica: number + 1, or 0 */
} ms_fate;
_Static_assert(sizeof(ms_fate) == 48, "wire");
#define MS_FATES_MAX 16u /* of an answer */

/* What is done to many objects in the background, under the bound of the master's copy bandwidth. */
enum ms_task_kind {
    MS_TASK_DRAIN = 1,     /* a server gets no new replica, and what it has goes elsewhere */
    MS_TASK_REPAIR = 2,    /* what has fewer replicas than wanted is copied again */
    MS_TASK_REPLICATE = 3, /* objects with a prefix have so many replicas */
    MS_TASK_MOVE = 4       /* replicas of objects with a prefix go to another server */
};
enum ms_task_state {
    MS_TASK_WAITING = 1, /* for its server, or for puts that wait for room */
    MS_TASK_RUNNING = 2,
    MS_TASK_BLOCKED = 3, /* what is left cannot move now; it is tried again */
    MS_TASK_DONE = 4,
    MS_TASK_CANCELLED = 5
};

/* START_TASK: body = ms_task_order, prefix, padding to 8.  Answer: ms_task, prefix.  A drain is answered when the
 * coordinator keeps it; one of a server that drains already gives the task that does. */
typedef struct ms_task_order {
    uint32_t kind;          /* ms_task_kind */
    uint32_t source_server; /* number + 1: drain, move */
    uint32_t target_server; /* number + 1, 0 = any: move */
    uint32_t replica_count; /* replicate */
    uint32_t prefix_length; /* replicate, move */
    uint32_t reserved;
} ms_task_order;
_Static_assert(sizeof(ms_task_order) == 24, "wire");

/* TASKS: body = ms_tasks.  Answer: u32 count, u32 zero; per task ms_task, prefix, padding to 8, then failure_count
 * times ms_task_failure, key, padding to 8.  CANCEL_TASK: body = ms_tasks (its task); a drain is undone. */
typedef struct ms_tasks {
    uint64_t task; /* 0: all that are known, the newest first */
    uint32_t failures_max;
    uint32_t reserved;
} ms_tasks;
_Static_assert(sizeof(ms_tasks) == 16, "wire");

typedef struct ms_task {
    uint64_t task;                        /* epoch of the master that began it, number there */
    uint64_t objects_done, objects_total; /* total: 0 = not known yet */
    uint64_t bytes_done, bytes_total;
    uint64_t objects_failed; /* of the last walk over all objects */
    uint64_t objects_left;   /* drain: replicas still there; repair: objects short of some */
    uint64_t sole_left;      /* drain: of the last walk, objects that have no replica elsewhere */
    uint64_t age_ms;         /* since it began */
    uint64_t ended_ms;       /* since it ended; 0: it has not */
    uint32_t kind, state;
    uint32_t source_server, target_server; /* number + 1, 0 = none */
    uint32_t replica_count;
    uint32_t prefix_length;
    uint32_t failure_count; /* of those that follow */
    uint32_t reserved;
} ms_task;
_Static_assert(sizeof(ms_task) == 112, "wire");

#define MS_TASK_FAILURES_MAX 256u

/* An object that a task could not treat. */
typedef struct ms_task_failure {
    uint64_t size;
    uint32_t status; /* ms_status: NO_SPACE, UNAVAILABLE (no other server takes it), BUSY, ... */
    uint32_t key_length;
} ms_task_failure;
_Static_assert(sizeof(ms_task_failure) == 16, "wire");

static inline uint64_t ms_task_id(uint32_t epoch, uint32_t number) {
    return (uint64_t)epoch << 32 | number;
}

/* KEEPALIVE: empty body; answer: u32 members_serial, u32 zero.  Each third of the session's timeout. */

/* ---- master <-> store server ----------------------------------------------------------------------- */
typedef struct ms_adopt {
    uint32_t epoch;
    uint32_t server; /* the number this server has with this master */
} ms_adopt;
_Static_assert(sizeof(ms_adopt) == 8, "wire");

/* INVENTORY: body = list of ms_inventory_item (each + tenant + key + padding).  state: 1 live record,
 * 2 in use without a live word (a copy or a view of an older version). */
typedef struct ms_inventory_item {
    ms_hash hash;
    uint64_t version;
    uint64_t size;      /* of the whole object */
    uint64_t expiry_ms; /* wall clock, ms since 1970; 0 = never */
    uint64_t note;      /* highest note number */
    ms_hash parent;
    uint64_t group;
    uint32_t page, page_count;
    uint32_t checksum;
    uint16_t part, part_count; /* extent i of n */
    uint16_t segment;
    uint16_t key_length;
    uint8_t flags; /* ms_object_flag */
    uint8_t state;
    uint8_t tenant_length;
    uint8_t reserved;
} ms_inventory_item;
_Static_assert(sizeof(ms_inventory_item) == 96, "wire");

/* FREE, CLEARED, FREED: body = u32 epoch, u32 incarnation, list of ms_free_item. */
typedef struct ms_free_item {
    uint64_t version;
    uint64_t session; /* 0, or the session to fence first */
    uint32_t segment;
    uint32_t page, page_count;
    uint32_t reserved;
} ms_free_item;
_Static_assert(sizeof(ms_free_item) == 32, "wire");

/* NOTE: request, body = ms_note; answer OK or GONE. */
typedef struct ms_note {
    uint32_t epoch, incarnation;
    uint64_t version, note;
    uint64_t expiry_ms;
    uint32_t segment, page;
    uint32_t flags;
    uint32_t reserved;
} ms_note;
_Static_assert(sizeof(ms_note) == 48, "wire");

/* SEAL blob: what the server keeps about an extent.  In WRITE it follows the descriptors. */
typedef struct ms_seal {
    ms_hash hash;
    uint64_t size;      /* of the whole object */
    uint64_t expiry_ms; /* wall clock */
    ms_hash parent;
    uint64_t group;
    uint64_t number; /* request number of the put's PUT_END, for the relay */
    uint32_t checksum;
    uint16_t part, part_count;
    uint16_t key_length;
    uint8_t flags; /* ms_object_flag */
    uint8_t tenant_length;
    uint32_t reserved;
    /* tenant bytes, key bytes, zero padding to 8 */
} ms_seal;
_Static_assert(sizeof(ms_seal) == 80, "wire");

/* COPY: request; body = ms_copy_request, the source's ms_location with one replica, its MEMBERS entry is known
 * to the server from MEMBERS; then the target's ms_replica + extents, then ms_seal + tenant + key.
 * seal.number is the version under which the target is sealed; 0: that of the source.
 * Answered when SEALED (OK), or GONE, or an error. */
typedef struct ms_copy_request {
    uint32_t epoch, incarnation;
    uint64_t task;
} ms_copy_request;
_Static_assert(sizeof(ms_copy_request) == 16, "wire");

/* RELAYED_END: body = u64 session, u64 number, list of ms_end_item: those whose seals came in one frame, all
 * with this number.  The master answers the client with the frame that answers PUT_END (list of u32 status),
 * whose header.request is the number, on the connection that carried the put's PUT_START.
 * SERVER_STATS: body = u32 epoch, u32 incarnation, list of ms_segment_info, list of ms_counter. */

/* Counters of SERVER_STATS that mean something to a master; all below are the server's own affair. */
enum ms_server_counter {
    MS_SERVER_STORAGE_FREE =
        0x10000, /* bytes that the file system under its memory can still give */
    MS_SERVER_STORAGE_FULL = 0x10001 /* puts that it refused because there were none, so far */
};

/* ---- engine ----------------------------------------------------------------------------------------- */
/* READ: body = list of ms_read_item.  Answer: payload = the bytes of the items in order, trailer = list of
 * ms_read_result without its count (count as asked).  An item that is not OK contributes no payload bytes.
 * Items are answered in order; payload_length is the sum over OK items. */
typedef struct ms_read_item {
    uint32_t segment;
    uint32_t flags;  /* 1: guarded: the word of guard_page is sent back, read after the bytes */
    uint64_t offset; /* bytes in the segment */
    uint64_t length;
    /* guarded: the word expected; when it already differs before the bytes are sent, GONE */
    uint64_t word;
    uint32_t guard_page;
    uint32_t reserved;
} ms_read_item;
_Static_assert(sizeof(ms_read_item) == 40, "wire");
typedef struct ms_read_result {
    uint32_t status;
    uint32_t reserved;
    uint64_t word;
} ms_read_result;
_Static_assert(sizeof(ms_read_result) == 16, "wire");

/* WRITE: body = list of ms_write_item, then the seals.  Payload: bytes of the items with source 0 in order.
 * Answer: OK without body when all went well, else a list of u32 status per item (and the first as the
 * frame's status).  With MS_FLAG_RELAY nothing is answered on success. */
typedef struct ms_write_item {
    uint32_t segment;
    uint32_t page; /* guarded: first page of the extent */
    uint32_t page_count;
    uint32_t source;  /* 0: payload; else id + 1 of a SHAREd memory */
    uint64_t version; /* of the grant; 0: a plain engine region, offset counts from its start */
    uint64_t offset;  /* in the extent (or region) */
    uint64_t length;
    uint64_t source_offset;
    /* bytes of ms_seal + tenant + key + padding among the seals; 0 = no seal here */
    uint32_t seal_length;
    uint32_t reserved;
} ms_write_item;
_Static_assert(sizeof(ms_write_item) == 56, "wire");

/* OPEN_SEGMENT: empty body.  Answer: list of ms_region, each with a string after it (where it is: "cpu:0"), then
 * strings: the engine's topology as JSON, or empty; the path of its Unix socket, or empty.
 * NOTIFY: one-way or request; body = strings name, message; answer empty.
 * CUT: body = u64: 0 asks for the token of this connection, a token has the connection that it belongs to closed.  Answer:
 * u64, the token; then nothing that was sent over that connection is carried out any more. */
typedef struct ms_region {
    uint64_t address; /* at that engine: what te_transfer_request.remote_offset counts in */
    uint64_t length;
    uint32_t segment; /* number in READ and WRITE; offsets there count from the region's start */
    uint32_t reserved;
} ms_region;
_Static_assert(sizeof(ms_region) == 24, "wire");

/* ATTACH: body = u32 segment, u32 zero.  Answer: ms_attached, with two descriptors (payload, words).
 * SHARE: body = u64 length, with one descriptor; answer: u32 id, u32 zero.  UNSHARE: u32 id, u32 zero. */
typedef struct ms_attached {
    uint64_t page_count; /* to be mapped */
    uint32_t incarnation;
    uint32_t page_first; /* of the payload's file: the segment's bytes begin in that page */
} ms_attached;
_Static_assert(sizeof(ms_attached) == 16, "wire");

/* VIEW_OPEN and VIEW_CLOSE: body = list of at most MS_VIEWS_MAX ms_view_item; answer: list of u32 status.  The tag tells
 * views of the same object apart: a close ends one that was opened with its tag, so that a client which does not know
 * whether its VIEW_OPEN was handled can close that one and no other. */
typedef struct ms_view_item {
    uint64_t version;
    uint16_t segment, tag;
    uint32_t page;
} ms_view_item;
_Static_assert(sizeof(ms_view_item) == 16, "wire");

#endif

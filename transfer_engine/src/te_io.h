/* An I/O thread, as its three files see it: io.c (the thread), accept.c (new connections), receive.c
 * (frames).
 */
#ifndef TE_IO_H
#define TE_IO_H

#include "te_internal.h"

#define TE_LISTENER_TAG 1u /* in epoll's data: the pointer is a listener's */

typedef struct te_listener {
    struct te_listener *next;
    int descriptor;
    bool is_unix;
    char path[108];
    dev_t device; /* of the socket file, so that only our own is unlinked */
    ino_t inode;
} te_listener;

struct te_io {
    te_engine *engine;
    uint32_t index;
    int epoll, wake;
    int reserve; /* a descriptor to give up when there are none left, so that a caller can be told */
    pthread_t thread;
    bool is_started;

    pthread_mutex_t lock; /* mailbox, listeners */
    te_link *mail_first, *mail_last;
    te_listener *listeners;
    _Atomic bool has_mail;
    _Atomic bool must_sweep;

    te_link *links;
    te_link *run_first, *run_last;
    te_link *retired;
    te_link *current;
    bool is_busy; /* somebody has been served since the last wait */
    te_spin spin;
    int64_t served_ns; /* when the last wait ended */
    int64_t work_ns;   /* how long the work after a wait takes */
    int64_t rested_ns; /* when this thread last slept, or gave way to others */
    int64_t check_ns;  /* next look at the deadlines; 0 = no link has one */
    int64_t tick_ns;   /* next tick; 0 = none */
    uint8_t *staging;
};

/* ---- io.c ------------------------------------------------------------------------------------ */
void te_io_own(te_io *io, te_link *link); /* from now on its events come here */

/* ---- accept.c -------------------------------------------------------------------------------- */
void te_accept(te_io *io, const te_listener *from);
void te_listeners_close(te_io *io);

/* ---- receive.c ------------------------------------------------------------------------------- */
void te_link_serve(te_link *link);     /* everything that it can do now */
bool te_link_is_paused(te_link *link); /* its answers wait: it is not read from */

#endif

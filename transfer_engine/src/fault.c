/* Faults on purpose; see te_fault.h.  Empty without MS_FAULTS. */
#define TE_FAULT_IMPLEMENTATION
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "te_fault.h"

#ifdef MS_FAULTS

#include <errno.h>
#include <stdatomic.h>

static _Atomic long calls[2], nth_call[2];

void te_fault_arm(te_fault_kind kind, long nth) {
    atomic_store(&calls[kind], 0);
    atomic_store(&nth_call[kind], nth);
}

long te_fault_calls(te_fault_kind kind) { return atomic_load(&calls[kind]); }

bool te_fault_met(te_fault_kind kind) {
    long nth = atomic_load(&nth_call[kind]);
    return nth > 0 && atomic_load(&calls[kind]) >= nth;
}

static bool fails(te_fault_kind kind, int error) {
    long nth = atomic_load(&nth_call[kind]);
    if (atomic_fetch_add(&calls[kind], 1) + 1 != nth) {
        return false;
    }
    errno = error;
    return true;
}

void *te_fault_malloc(size_t size) { return fails(TE_FAULT_MEMORY, ENOMEM) ? NULL : malloc(size); }

void *te_fault_calloc(size_t count, size_t size) {
    return fails(TE_FAULT_MEMORY, ENOMEM) ? NULL : calloc(count, size);
}

void *te_fault_realloc(void *old, size_t size) {
    return fails(TE_FAULT_MEMORY, ENOMEM) ? NULL : realloc(old, size);
}

int te_fault_socket(int domain, int type, int protocol) {
    return fails(TE_FAULT_IO, EMFILE) ? -1 : socket(domain, type, protocol);
}

int te_fault_connect(int socket, const struct sockaddr *address, socklen_t length) {
    return fails(TE_FAULT_IO, ECONNREFUSED) ? -1 : connect(socket, address, length);
}

int te_fault_accept4(int socket, struct sockaddr *address, socklen_t *length, int flags) {
    return fails(TE_FAULT_IO, EMFILE) ? -1 : accept4(socket, address, length, flags);
}

ssize_t te_fault_recv(int socket, void *buffer, size_t length, int flags) {
    return fails(TE_FAULT_IO, ECONNRESET) ? -1 : recv(socket, buffer, length, flags);
}

ssize_t te_fault_recvmsg(int socket, struct msghdr *message, int flags) {
    return fails(TE_FAULT_IO, ECONNRESET) ? -1 : recvmsg(socket, message, flags);
}

ssize_t te_fault_sendmsg(int socket, const struct msghdr *message, int flags) {
    return fails(TE_FAULT_IO, EPIPE) ? -1 : sendmsg(socket, message, flags);
}

int te_fault_setsockopt(int socket, int level, int name, const void *value, socklen_t length) {
    return fails(TE_FAULT_IO, EINVAL) ? -1 : setsockopt(socket, level, name, value, length);
}

int te_fault_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event) {
    /* To take out what is in cannot fail (it needs no memory), and nobody could do without. */
    bool may_fail = operation != EPOLL_CTL_DEL;
    return may_fail && fails(TE_FAULT_IO, ENOSPC) ? -1
                                                  : epoll_ctl(epoll, operation, descriptor, event);
}

int te_fault_epoll_create1(int flags) {
    return fails(TE_FAULT_IO, EMFILE) ? -1 : epoll_create1(flags);
}

int te_fault_eventfd(unsigned int value, int flags) {
    return fails(TE_FAULT_IO, EMFILE) ? -1 : eventfd(value, flags);
}

int te_fault_memfd_create(const char *name, unsigned int flags) {
    return fails(TE_FAULT_IO, EMFILE) ? -1 : memfd_create(name, flags);
}

void *te_fault_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                    off_t offset) {
    return fails(TE_FAULT_IO, ENOMEM)
               ? MAP_FAILED
               : mmap(address, length, protection, flags, descriptor, offset);
}

int te_fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*run)(void *), void *argument) {
    return fails(TE_FAULT_IO, EAGAIN) ? EAGAIN : pthread_create(thread, attributes, run, argument);
}

#else
typedef int te_fault_is_off; /* a translation unit must not be empty */
#endif

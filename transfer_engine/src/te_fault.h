/* Faults on purpose: with -DMS_FAULTS the n-th allocation or system call of a file that includes
 * this header fails.
 *
 * The fault loop (tests/c/fault_test.c) arms one call after the other until a whole scenario runs
 * without meeting a fault, so that every error path is walked.  Without MS_FAULTS this header is
 * empty.  Include it last.
 */
#ifndef TE_FAULT_H
#define TE_FAULT_H

#ifdef MS_FAULTS

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>

typedef enum te_fault_kind { TE_FAULT_MEMORY = 0, TE_FAULT_IO = 1 } te_fault_kind;

/* The n-th (from 1) call of that kind fails, once; 0 disarms.  Counts over all threads. */
void te_fault_arm(te_fault_kind kind, long nth);
/* Calls of that kind since it was armed; has the fault been met? */
long te_fault_calls(te_fault_kind kind);
bool te_fault_met(te_fault_kind kind);

void *te_fault_malloc(size_t size);
void *te_fault_calloc(size_t count, size_t size);
void *te_fault_realloc(void *old, size_t size);
int te_fault_socket(int domain, int type, int protocol);
int te_fault_connect(int socket, const struct sockaddr *address, socklen_t length);
int te_fault_accept4(int socket, struct sockaddr *address, socklen_t *length, int flags);
ssize_t te_fault_recv(int socket, void *buffer, size_t length, int flags);
ssize_t te_fault_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t te_fault_sendmsg(int socket, const struct msghdr *message, int flags);
int te_fault_setsockopt(int socket, int level, int name, const void *value, socklen_t length);
int te_fault_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event);
int te_fault_epoll_create1(int flags);
int te_fault_eventfd(unsigned int value, int flags);
int te_fault_memfd_create(const char *name, unsigned int flags);
void *te_fault_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                    off_t offset);
int te_fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*run)(void *), void *argument);

#ifndef TE_FAULT_IMPLEMENTATION
#define malloc te_fault_malloc
#define calloc te_fault_calloc
#define realloc te_fault_realloc
#define socket te_fault_socket
#define connect te_fault_connect
#define accept4 te_fault_accept4
#define recv te_fault_recv
#define recvmsg te_fault_recvmsg
#define sendmsg te_fault_sendmsg
#define setsockopt te_fault_setsockopt
#define epoll_ctl te_fault_epoll_ctl
#define epoll_create1 te_fault_epoll_create1
#define eventfd te_fault_eventfd
#define memfd_create te_fault_memfd_create
#define mmap te_fault_mmap
#define pthread_create te_fault_pthread_create
#endif

#endif
#endif

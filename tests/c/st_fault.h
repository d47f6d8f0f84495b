/* Faults on purpose in the store server: its sources are compiled with -include of this header, and the n-th
 * allocation or system call of theirs fails (st_fault_test.c).  Everything else in the process works. */
#ifndef ST_FAULT_H
#define ST_FAULT_H

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum st_fault_kind { ST_FAULT_MEMORY, ST_FAULT_IO };

void *st_fault_malloc(size_t size);
void *st_fault_calloc(size_t count, size_t size);
void *st_fault_aligned_alloc(size_t alignment, size_t size);
void *st_fault_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                    off_t offset);
void *st_fault_mremap(void *old, size_t old_size, size_t size, int flags);
int st_fault_open(const char *path, int flags, ...);
int st_fault_ftruncate(int descriptor, off_t length);
int st_fault_fallocate(int descriptor, int mode, off_t offset, off_t length);
ssize_t st_fault_pwrite(int descriptor, const void *bytes, size_t length, off_t offset);
ssize_t st_fault_write(int descriptor, const void *bytes, size_t length);
ssize_t st_fault_read(int descriptor, void *bytes, size_t length);
int st_fault_rename(const char *from, const char *to);
int st_fault_fsync(int descriptor);
int st_fault_mkdir(const char *path, mode_t mode);
int st_fault_epoll_create1(int flags);
int st_fault_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event);
int st_fault_eventfd(unsigned int value, int flags);
ssize_t st_fault_getrandom(void *bytes, size_t length, unsigned int flags);
int st_fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*run)(void *), void *argument);

#ifndef ST_FAULT_IMPLEMENTATION
#define malloc st_fault_malloc
#define calloc st_fault_calloc
#define aligned_alloc st_fault_aligned_alloc
#define mmap st_fault_mmap
#define mremap st_fault_mremap
#define open st_fault_open
#define ftruncate st_fault_ftruncate
#define fallocate st_fault_fallocate
#define pwrite st_fault_pwrite
#define write st_fault_write
#define read st_fault_read
#define rename st_fault_rename
#define fsync st_fault_fsync
#define mkdir st_fault_mkdir
#define epoll_create1 st_fault_epoll_create1
#define epoll_ctl st_fault_epoll_ctl
#define eventfd st_fault_eventfd
#define getrandom st_fault_getrandom
#define pthread_create st_fault_pthread_create
#endif

#endif

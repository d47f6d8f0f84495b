/* Inside copy.c and copy_x86.c: the kernels that ms_copy_stream chooses from. */
#ifndef MS_COPY_KERNEL_H
#define MS_COPY_KERNEL_H

#include <stddef.h>

typedef void ms_copy_function(void *target, const void *source, size_t length);

#define MS_COPY_KERNELS_MAX 3u

typedef struct ms_copy_kernel {
    const char *name;
    ms_copy_function *copy;
} ms_copy_kernel;

/* The streaming kernels that this processor has, the best one first; returns how many (0: memcpy is best). */
size_t ms_copy_stream_kernels(ms_copy_kernel kernels[MS_COPY_KERNELS_MAX]);

#endif

/* Inside copy.c and copy_x86.c: the kernels that ms_copy_stream chooses from. */
#ifndef MS_COPY_KERNEL_H
#define MS_COPY_KERNEL_H

#include <stddef.h>

typedef void ms_copy_function(void *target, const void *source, size_t length);

/* The best streaming kernel of this processor, NULL when memcpy is. */
ms_copy_function *ms_copy_stream_kernel(void);

#endif

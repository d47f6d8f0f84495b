/* The hot calls as functions of the extension module: what arguments become and what results are made of.
 *
 * Stable ABI of Python 3.10.  The buffer protocol entered it with 3.11 only, but its functions and its struct
 * have been the same since 3.3: they are found by name when the module is loaded.
 */
#ifndef CL_PYTHON_H
#define CL_PYTHON_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <Python.h>
#pragma GCC diagnostic pop

#include "cl_internal.h"

/* Layout of Py_buffer in every CPython since 3.3. */
typedef struct cl_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} cl_buffer;

typedef enum cl_operation {
    CL_EXISTS = 0,
    CL_GET = 1, /* bytes results: first the sizes, then the bytes */
    CL_GET_INTO = 2,
    CL_PUT = 3,
    CL_REMOVE = 4,
    CL_MATCH_PREFIX = 5,
    CL_PIN = 6,
    CL_UNPIN = 7,
    CL_TOUCH = 8,
    CL_SIZES = 9,
    CL_GET_RANGE = 11, /* get_into of the bytes from an offset on */
    CL_COMMAND = 10,   /* any frame to the master; no keys, a body of bytes */
    CL_LEASE = 12
} cl_operation;

/* An item's memory in several buffers. */
typedef struct cl_piece_list {
    struct iovec *parts;
    cl_buffer *buffers;
    size_t count;
} cl_piece_list;

/* One call: its arguments in C, references that keep them alive, and what came of it. */
typedef struct cl_job {
    cl_operation operation;
    uint64_t handle;
    cl_client *client; /* entered */
    size_t count;
    bool is_single; /* one key was given, not a list: one result, errors are raised */
    cl_item *items;
    PyObject **keys;       /* references */
    cl_buffer *buffers;    /* obj NULL: none held */
    cl_piece_list *pieces; /* NULL: no item has any */
    struct iovec
        *parts;        /* of all items, where these were given as addresses; NULL: they were not */
    PyObject **values; /* bytes being filled (CL_GET) */
    cl_put_options put;
    te_transfer_options share; /* is_meant: it was given */
    bool force, pin;
    uint32_t pin_deadline_ms;
    size_t matched;
    int64_t started_ns, deadline_ns;
    ms_status status;
    cl_failure failure;
    int phase;    /* CL_GET: 0 sizes, 1 bytes */
    int attempts; /* CL_GET: that have ended */

    uint16_t method; /* CL_COMMAND */
    uint32_t flags;
    bool numbered;
    PyObject *body; /* reference */
    const uint8_t *body_bytes;
    size_t body_length;
    uint8_t *answer;
    size_t answer_length;

    struct cl_async *async;
    uint64_t number;
    struct cl_job *next;

    cl_item item_scratch[1];
    PyObject *key_scratch[1];
    cl_buffer buffer_scratch[1];
    PyObject *value_scratch[1];
} cl_job;

/* All with the interpreter lock held; -1 or NULL with a Python error set. */
int cl_job_parse(cl_job *job, cl_operation operation, PyObject *const *arguments, Py_ssize_t count);
void cl_job_release(cl_job *job);
/* Without the lock.  CL_GET runs in phases: with the lock held cl_job_between makes the bytes, and afterwards
 * cl_job_again says whether something has grown meanwhile, so that both phases come again. */
void cl_job_run(cl_job *job);
/* A read, without asking the master; false: it has to be asked, or this is no read.  Nothing has come of it then. */
bool cl_job_run_known(cl_job *job);
int cl_job_between(cl_job *job);
bool cl_job_again(cl_job *job);
PyObject *cl_job_result(cl_job *job);
/* Makes the exception for a status; item NULL: none in particular. */
PyObject *cl_make_error(const cl_job *job, const cl_item *item, ms_status status);
int cl_python_init(PyObject *make_error);
/* options, share: None or a tuple, see python_job.c. */
int cl_job_take_put_options(cl_job *job, PyObject *options);
int cl_job_take_share(cl_job *job, PyObject *share);

extern PyMethodDef cl_async_methods[], cl_address_methods[];

#endif

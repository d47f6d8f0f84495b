/* Batches for connectors: memory as plain addresses, results as plain numbers.
 *
 * An engine has its KV cache as addresses and sizes, many small pieces an object.  Nothing is made of these but one
 * array of iovecs, and of the results one list of numbers: what an operation answers, or minus its ms_status.
 */
#include "python.h"
#include "python_interval.h"
#include "python_lock.h"

static bool is_list(PyObject *object) { return PyList_Check(object) || PyTuple_Check(object); }

static Py_ssize_t list_size(PyObject *list) {
    return PyList_Check(list) ? PyList_Size(list) : PyTuple_Size(list);
}

/* Borrowed. */
static PyObject *list_item(PyObject *list, Py_ssize_t index) {
    return PyList_Check(list) ? PyList_GetItem(list, index) : PyTuple_GetItem(list, index);
}

/* `count` of them in a list; -1 with an error that names them. */
static int check_list(PyObject *list, size_t count, const char *what) {
    if (is_list(list) && (size_t)list_size(list) == count)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: a list of %zu is needed, as many as there are keys", what,
                 count);
    return -1;
}

static int take_part(PyObject *address, PyObject *size, struct iovec *part) {
    part->iov_base = PyLong_AsVoidPtr(address);
    if (part->iov_base == NULL && PyErr_Occurred())
        return -1;
    part->iov_len = PyLong_AsSize_t(size);
    if (part->iov_len == SIZE_MAX && PyErr_Occurred())
        return -1;
    if (part->iov_base == NULL && part->iov_len > 0) {
        PyErr_SetString(PyExc_ValueError, "an address is 0");
        return -1;
    }
    return 0;
}

/* Pieces of one item, into `parts`; returns where those of the next one begin. */
static struct iovec *take_item(cl_item *item, PyObject *addresses, PyObject *sizes,
                               struct iovec *parts) {
    item->size = 0;
    if (!is_list(addresses)) {
        if (take_part(addresses, sizes, parts) != 0)
            return NULL;
        item->memory = parts->iov_base;
        item->size = parts->iov_len;
        return parts; /* nothing is kept there */
    }
    Py_ssize_t count = list_size(addresses);
    if (!is_list(sizes) || list_size(sizes) != count) {
        PyErr_SetString(PyExc_ValueError, "as many sizes as addresses are needed");
        return NULL;
    }
    struct iovec *next = parts;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (take_part(list_item(addresses, i), list_item(sizes, i), next) != 0)
            return NULL;
        if (next->iov_len > (size_t)PY_SSIZE_T_MAX - item->size) {
            PyErr_SetString(PyExc_ValueError, "the sizes are more than memory can have");
            return NULL;
        }
        item->size += next->iov_len;
        next += next->iov_len > 0;
    }
    if (next == parts) /* nothing at all is one empty piece */
        next++;
    item->pieces = parts;
    item->piece_count = (uint32_t)(next - parts);
    return next;
}

static int take_addresses(cl_job *job, PyObject *addresses, PyObject *sizes) {
    if (check_list(addresses, job->count, "addresses") != 0 ||
        check_list(sizes, job->count, "sizes") != 0)
        return -1;
    size_t total = 1;
    for (size_t i = 0; i < job->count; i++) {
        PyObject *of_item = list_item(addresses, (Py_ssize_t)i);
        total += is_list(of_item) ? (size_t)list_size(of_item) + 1 : 1;
    }
    job->parts = calloc(total, sizeof *job->parts);
    if (job->parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    struct iovec *next = job->parts;
    for (size_t i = 0; i < job->count && next != NULL; i++)
        next = take_item(&job->items[i], list_item(addresses, (Py_ssize_t)i),
                         list_item(sizes, (Py_ssize_t)i), next);
    return next != NULL ? 0 : -1;
}

static int take_offsets(cl_job *job, PyObject *offsets) {
    if (offsets == Py_None)
        return 0;
    if (check_list(offsets, job->count, "offsets") != 0)
        return -1;
    for (size_t i = 0; i < job->count; i++) {
        job->items[i].offset = PyLong_AsUnsignedLongLong(list_item(offsets, (Py_ssize_t)i));
        if (PyErr_Occurred())
            return -1;
        job->items[i].is_range = true;
    }
    return 0;
}

/* Keys and the time, as of any call; what is special to an operation comes after. */
static int open_job(cl_job *job, PyObject *handle, PyObject *keys, PyObject *timeout) {
    if (!is_list(keys)) {
        PyErr_SetString(PyExc_TypeError, "keys: a list is needed");
        return -1;
    }
    PyObject *arguments[] = {handle, keys, timeout};
    return cl_job_parse(job, CL_EXISTS, arguments, 3);
}

static int check_count(Py_ssize_t count, Py_ssize_t needed) {
    if (count == needed)
        return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", needed, count);
    return -1;
}

static void run(cl_job *job) {
    cl_interval_shorten(job->client->pid);
    PyThreadState *state = cl_python_leave();
    cl_job_run(job);
    cl_python_return(state);
    cl_interval_restore();
}

static int64_t number_of(const cl_job *job, const cl_item *item, bool is_exact) {
    switch (job->operation) {
    case CL_EXISTS:
    case CL_LEASE:
        if (item->status == MS_OK || item->status == MS_NOT_FOUND)
            return item->status == MS_OK;
        break;
    case CL_PUT:
        if (item->status == MS_OK || item->status == MS_EXISTS)
            return item->status == MS_OK ? (int64_t)item->replica_count : 0;
        break;
    default:
        if (item->status == MS_OK)
            return is_exact && item->bytes != item->size ? -(int64_t)MS_OUT_OF_RANGE
                                                         : (int64_t)item->bytes;
        break;
    }
    return -(int64_t)item->status;
}

static PyObject *numbers(const cl_job *job, bool is_exact) {
    PyObject *list = PyList_New((Py_ssize_t)job->count);
    for (size_t i = 0; list != NULL && i < job->count; i++) {
        PyObject *number = PyLong_FromLongLong(number_of(job, &job->items[i], is_exact));
        if (number == NULL || PyList_SetItem(list, (Py_ssize_t)i, number) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *call_exists(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    cl_job job;
    if (check_count(count, 4) != 0)
        return NULL;
    unsigned long lease_ms = PyLong_AsUnsignedLong(arguments[2]);
    if (PyErr_Occurred() || open_job(&job, arguments[0], arguments[1], arguments[3]) != 0)
        return NULL;
    if (lease_ms != 0) {
        job.operation = CL_LEASE;
        job.pin_deadline_ms = lease_ms < UINT32_MAX ? (uint32_t)lease_ms : UINT32_MAX;
    }
    run(&job);
    PyObject *result = numbers(&job, false);
    cl_job_release(&job);
    return result;
}

static PyObject *call_get(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    cl_job job;
    bool has_share = count == 8;
    if (check_count(count, 7 + has_share) != 0 ||
        open_job(&job, arguments[0], arguments[1], arguments[count - 1]) != 0)
        return NULL;
    job.operation = CL_GET_INTO;
    PyObject *result = NULL;
    if (take_addresses(&job, arguments[2], arguments[3]) == 0 &&
        take_offsets(&job, arguments[4]) == 0 &&
        (!has_share || cl_job_take_share(&job, arguments[6]) == 0)) {
        run(&job);
        result = numbers(&job, PyObject_IsTrue(arguments[5]) == 1);
    }
    cl_job_release(&job);
    return result;
}

static PyObject *call_put(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    cl_job job;
    if (check_count(count, 6) != 0 || open_job(&job, arguments[0], arguments[1], arguments[5]) != 0)
        return NULL;
    uint32_t timeout_ms = job.put.timeout_ms;
    job.operation = CL_PUT;
    PyObject *result = NULL;
    if (take_addresses(&job, arguments[2], arguments[3]) == 0 &&
        cl_job_take_put_options(&job, arguments[4]) == 0) {
        job.put.timeout_ms = timeout_ms;
        run(&job);
        result = numbers(&job, false);
    }
    cl_job_release(&job);
    return result;
}

#define FAST(name, function, text)                                                                 \
    {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, text}

PyMethodDef cl_address_methods[] = {
    FAST("client_exists_numbers", call_exists, "exists(handle, keys, lease_ms or 0, timeout_s)"),
    FAST("client_get_addresses", call_get,
         "get(handle, keys, addresses, sizes, offsets or None, exact, [share or None,] timeout_s)"),
    FAST("client_put_addresses", call_put,
         "put(handle, keys, addresses, sizes, options, timeout_s)"),
    {NULL, NULL, 0, NULL},
};

/* The functions that Python calls, and their installation into the extension module. */
#include "python.h"
#include "python_interval.h"
#include "python_lock.h"

_Atomic int cl_is_in_python, cl_returning;
_Thread_local int64_t cl_lock_free_until_ns, cl_gave_way_ns;

static PyObject *call(cl_operation operation, PyObject *const *arguments, Py_ssize_t count) {
    cl_job job;
    if (cl_job_parse(&job, operation, arguments, count) != 0)
        return NULL;
    PyThreadState *state = cl_python_leave();
    cl_job_run(&job);
    cl_python_return(state);
    PyObject *result = cl_job_result(&job);
    cl_job_release(&job);
    return result;
}

/* The size must be known before the bytes object can be made: from the cache without letting the lock go. */
static PyObject *call_get(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    cl_job job;
    if (cl_job_parse(&job, CL_GET, arguments, count) != 0)
        return NULL;
    PyObject *result = NULL;
    do {
        PyThreadState *state;
        if (job.count == 1 && cl_locate_cached(job.client, &job.items[0])) {
            job.status = MS_OK;
        } else {
            state = cl_python_leave();
            cl_job_run(&job);
            cl_python_return(state);
        }
        if (cl_job_between(&job) != 0)
            goto out;
        state = cl_python_leave();
        cl_job_run(&job);
        cl_python_return(state);
    } while (cl_job_again(&job));
    result = cl_job_result(&job);
out:
    cl_job_release(&job);
    return result;
}

#define CALL(name, operation)                                                                      \
    static PyObject *name(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {          \
        (void)self;                                                                                \
        return call(operation, arguments, count);                                                  \
    }
CALL(call_exists, CL_EXISTS)
CALL(call_get_into, CL_GET_INTO)
CALL(call_get_range, CL_GET_RANGE)
CALL(call_put, CL_PUT)
CALL(call_remove, CL_REMOVE)
CALL(call_match_prefix, CL_MATCH_PREFIX)
CALL(call_pin, CL_PIN)
CALL(call_unpin, CL_UNPIN)
CALL(call_touch, CL_TOUCH)
CALL(call_sizes, CL_SIZES)
CALL(call_command, CL_COMMAND)

/* view_open(handle, key, timeout_s) -> None or (address, size, token): read-only memory with the stored bytes. */
static PyObject *call_view_open(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    cl_job job;
    cl_view view;
    if (cl_job_parse(&job, CL_SIZES, arguments, count) != 0)
        return NULL;
    PyThreadState *state = cl_python_leave();
    job.status = cl_view_open(job.client, &job.items[0], &view, job.deadline_ns, &job.failure);
    cl_python_return(state);
    PyObject *result = NULL;
    if (job.items[0].status == MS_OK) {
        result = Py_BuildValue("KK(KIIIIII)", (unsigned long long)view.address,
                               (unsigned long long)view.size, (unsigned long long)view.version,
                               view.server, view.incarnation, view.segment, view.page, view.epoch,
                               view.tag);
        if (result == NULL) {
            state = cl_python_leave();
            cl_view_close(PyLong_AsUnsignedLongLong(arguments[0]), &view);
            cl_python_return(state);
        }
    } else {
        job.is_single = true;
        result = cl_job_result(&job);
    }
    cl_job_release(&job);
    return result;
}

static PyObject *call_view_close(PyObject *self, PyObject *arguments) {
    (void)self;
    unsigned long long handle, version;
    cl_view view = {0};
    if (!PyArg_ParseTuple(arguments, "K(KIIIIII)", &handle, &version, &view.server,
                          &view.incarnation, &view.segment, &view.page, &view.epoch, &view.tag))
        return NULL;
    view.version = version;
    PyThreadState *state = cl_python_leave();
    cl_view_close(handle, &view);
    cl_python_return(state);
    Py_RETURN_NONE;
}

#define FAST(name, function, text)                                                                 \
    {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, text}

static PyMethodDef methods[] = {
    FAST("client_exists", call_exists, "exists(handle, key or keys, timeout_s)"),
    FAST("client_get", call_get, "get(handle, key or keys, timeout_s)"),
    FAST("client_get_into", call_get_into,
         "get_into(handle, key or keys, buffer or buffers, timeout_s)"),
    FAST("client_get_range", call_get_range,
         "get_range(handle, key or keys, buffer or buffers, offset, timeout_s)"),
    FAST("client_put", call_put, "put(handle, key or keys, buffer or buffers, options, timeout_s)"),
    FAST("client_remove", call_remove, "remove(handle, key or keys, force, timeout_s)"),
    FAST("client_match_prefix", call_match_prefix,
         "match_prefix(handle, keys, pin, pin_deadline_ms, timeout_s)"),
    FAST("client_pin", call_pin, "pin(handle, key or keys, pin_deadline_ms, timeout_s)"),
    FAST("client_unpin", call_unpin, "unpin(handle, key or keys, timeout_s)"),
    FAST("client_touch", call_touch, "touch(handle, key or keys, timeout_s)"),
    FAST("client_sizes", call_sizes, "sizes(handle, key or keys, timeout_s)"),
    FAST("client_command", call_command,
         "command(handle, method, flags, body, numbered, timeout_s)"),
    FAST("client_view_open", call_view_open, "view_open(handle, key, timeout_s)"),
    {"client_view_close", call_view_close, METH_VARARGS, "view_close(handle, token)"},
    {NULL, NULL, 0, NULL},
};

int cl_install(uintptr_t module, uintptr_t make_error) {
    /* cffi has let the lock go. */
    PyGILState_STATE state = PyGILState_Ensure();
    int result = cl_python_init((PyObject *)make_error);
    if (result == 0)
        result = cl_interval_init();
    if (result == 0)
        result = PyModule_AddFunctions((PyObject *)module, methods);
    if (result == 0)
        result = PyModule_AddFunctions((PyObject *)module, cl_async_methods);
    if (result == 0)
        result = PyModule_AddFunctions((PyObject *)module, cl_address_methods);
    if (result != 0)
        PyErr_Print();
    PyGILState_Release(state);
    return result;
}

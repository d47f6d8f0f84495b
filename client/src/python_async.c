/* The same calls for an event loop: run on the engine's workers, an eventfd tells that some have ended. */
#include "python.h"

#include <sys/eventfd.h>
#include <unistd.h>

/* Held by its capsule and by each job under way. */
typedef struct cl_async {
    atomic_uint references;
    int descriptor;
    pthread_mutex_t lock;
    cl_job *done;
    uint64_t number;
} cl_async;

#define CAPSULE "mooncake_store._native.async"

static void async_release(cl_async *async) {
    if (atomic_fetch_sub(&async->references, 1) != 1)
        return;
    close(async->descriptor);
    pthread_mutex_destroy(&async->lock);
    free(async);
}

static cl_job *take_done(cl_async *async) {
    pthread_mutex_lock(&async->lock);
    cl_job *done = async->done;
    async->done = NULL;
    pthread_mutex_unlock(&async->lock);
    return done;
}

static void destroy_capsule(PyObject *capsule) {
    cl_async *async = PyCapsule_GetPointer(capsule, CAPSULE);
    if (async == NULL)
        return;
    for (cl_job *job = take_done(async); job != NULL;) {
        cl_job *next = job->next;
        cl_job_release(job);
        free(job);
        async_release(async);
        job = next;
    }
    async_release(async);
}

static PyObject *async_open(PyObject *self, PyObject *nothing) {
    (void)self, (void)nothing;
    cl_async *async = calloc(1, sizeof *async);
    if (async == NULL)
        return PyErr_NoMemory();
    async->references = 1;
    async->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (async->descriptor < 0) {
        free(async);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pthread_mutex_init(&async->lock, NULL);
    PyObject *capsule = PyCapsule_New(async, CAPSULE, destroy_capsule);
    if (capsule == NULL)
        async_release(async);
    return capsule;
}

static PyObject *async_descriptor(PyObject *self, PyObject *capsule) {
    (void)self;
    cl_async *async = PyCapsule_GetPointer(capsule, CAPSULE);
    return async == NULL ? NULL : PyLong_FromLong(async->descriptor);
}

static void tell(cl_job *job) {
    cl_async *async = job->async;
    pthread_mutex_lock(&async->lock);
    job->next = async->done;
    async->done = job;
    /* Inside the lock: whoever takes the job may drop the last reference and close the descriptor. */
    ssize_t written = write(async->descriptor, &(uint64_t){1}, 8);
    (void)written; /* full means that it is readable already */
    pthread_mutex_unlock(&async->lock);
}

/* On a worker. */
static void run_job(void *argument) {
    cl_job *job = argument;
    cl_job_run(job);
    atomic_fetch_sub(&job->client->jobs_spawned, 1);
    tell(job);
}

static ms_status spawn_on_worker(cl_job *job) {
    atomic_fetch_add(&job->client->jobs_spawned, 1);
    ms_status status = te_spawn(cl_engine(job->client), run_job, job);
    if (status != MS_OK)
        atomic_fetch_sub(&job->client->jobs_spawned, 1);
    return status;
}

static void fail_all(cl_job *job, ms_status status) {
    job->status = status;
    for (size_t i = 0; i < job->count; i++)
        job->items[i].status = status; /* else what was not read would pass for read */
}

/* In the lane. */
static void run_known(void *argument) {
    cl_job *job = argument;
    if (cl_job_run_known(job)) {
        tell(job);
        return;
    }
    ms_status status = spawn_on_worker(job);
    if (status != MS_OK) {
        fail_all(job, status);
        tell(job);
    }
}

static bool is_read(const cl_job *job) {
    return job->operation == CL_GET || job->operation == CL_GET_INTO ||
           job->operation == CL_GET_RANGE || job->operation == CL_SIZES;
}

/* Workers may all be held by calls that wait for the master: no read whose location is known waits behind them. */
static ms_status spawn(cl_job *job) {
    cl_client *client = job->client;
    bool are_busy = atomic_load(&client->jobs_spawned) >= client->config.worker_threads;
    if (are_busy && is_read(job) && cl_lane_spawn(client, run_known, job))
        return MS_OK;
    return spawn_on_worker(job);
}

/* submit(capsule, operation, arguments of that call ...) -> number of the job */
static PyObject *async_submit(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    (void)self;
    if (count < 2) {
        PyErr_SetString(PyExc_TypeError, "submit(capsule, operation, ...)");
        return NULL;
    }
    cl_async *async = PyCapsule_GetPointer(arguments[0], CAPSULE);
    long operation = async != NULL ? PyLong_AsLong(arguments[1]) : -1;
    if (PyErr_Occurred())
        return NULL;
    if (operation < 0 || operation > CL_GET_RANGE) {
        PyErr_SetString(PyExc_ValueError, "no such operation");
        return NULL;
    }
    cl_job *job = malloc(sizeof *job);
    if (job == NULL)
        return PyErr_NoMemory();
    if (cl_job_parse(job, (cl_operation)operation, arguments + 2, count - 2) != 0) {
        free(job);
        return NULL;
    }
    job->async = async;
    job->number = ++async->number;
    PyObject *number = PyLong_FromUnsignedLongLong(job->number);
    atomic_fetch_add(&async->references, 1);
    ms_status status = number != NULL ? spawn(job) : MS_NO_MEMORY;
    if (status != MS_OK) {
        PyObject *error = number != NULL ? cl_make_error(job, NULL, status) : NULL;
        Py_XDECREF(number);
        if (error != NULL) {
            PyObject *type = PyObject_Type(error);
            PyErr_SetObject(type, error);
            Py_DECREF(type);
            Py_DECREF(error);
        }
        cl_job_release(job);
        free(job);
        async_release(async);
        return NULL;
    }
    return number;
}

/* A get that has its sizes goes on to its bytes, and begins anew for what has grown; true: it is under way again. */
static bool goes_on(cl_job *job) {
    if (job->operation != CL_GET)
        return false;
    bool any = false;
    if (job->phase == 0) {
        if (cl_job_between(job) != 0)
            return false;
        for (size_t i = 0; i < job->count; i++)
            any = any || job->items[i].memory != NULL;
    } else {
        any = cl_job_again(job);
    }
    if (!any)
        return false;
    ms_status status = spawn(job);
    for (size_t i = 0; status != MS_OK && i < job->count; i++)
        if (job->items[i].memory != NULL || job->items[i].status == MS_BUFFER_TOO_SMALL)
            job->items[i].status = status; /* else what was not read would pass for read */
    return status == MS_OK;
}

/* completed(capsule) -> [(number, result or exception)] */
static PyObject *async_completed(PyObject *self, PyObject *capsule) {
    (void)self;
    cl_async *async = PyCapsule_GetPointer(capsule, CAPSULE);
    if (async == NULL)
        return NULL;
    uint64_t ticks;
    ssize_t got = read(async->descriptor, &ticks, 8);
    (void)got;
    PyObject *list = PyList_New(0);
    if (list == NULL)
        return NULL;
    for (cl_job *job = take_done(async); job != NULL;) {
        cl_job *next = job->next;
        if (goes_on(job)) {
            job = next;
            continue;
        }
        PyObject *value = PyErr_Occurred() ? NULL : cl_job_result(job);
        if (value == NULL) {
            PyObject *type, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            PyErr_NormalizeException(&type, &value, &traceback);
            Py_XDECREF(type);
            Py_XDECREF(traceback);
        }
        PyObject *pair = Py_BuildValue("KN", (unsigned long long)job->number, value);
        cl_job_release(job);
        free(job);
        async_release(async);
        if (pair == NULL || PyList_Append(list, pair) != 0) {
            Py_XDECREF(pair);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(pair);
        job = next;
    }
    return list;
}

PyMethodDef cl_async_methods[] = {
    {"async_open", async_open, METH_NOARGS, "async_open() -> capsule"},
    {"async_descriptor", async_descriptor, METH_O, "async_descriptor(capsule) -> eventfd"},
    {"async_submit", (PyCFunction)(void (*)(void))async_submit, METH_FASTCALL,
     "async_submit(capsule, operation, arguments ...) -> number"},
    {"async_completed", async_completed, METH_O, "async_completed(capsule) -> [(number, result)]"},
    {NULL, NULL, 0, NULL},
};

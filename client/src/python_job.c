/* Arguments of a call into C, and its results out of it. */
#include "python.h"

#include <dlfcn.h>

static int (*get_buffer)(PyObject *, cl_buffer *, int);
static void (*release_buffer)(cl_buffer *);
static PyObject *make_error_function;

#define BUFFER_SIMPLE 0
#define BUFFER_WRITABLE 1

int cl_python_init(PyObject *make_error) {
    /* dlsym gives an object pointer; POSIX promises that it converts. */
    *(void **)(&get_buffer) = dlsym(RTLD_DEFAULT, "PyObject_GetBuffer");
    *(void **)(&release_buffer) = dlsym(RTLD_DEFAULT, "PyBuffer_Release");
    if (get_buffer == NULL || release_buffer == NULL) {
        PyErr_SetString(PyExc_ImportError, "this Python has no buffer protocol in C");
        return -1;
    }
    Py_INCREF(make_error);
    make_error_function = make_error;
    return 0;
}

/* ---- errors --------------------------------------------------------------------------------------------------- */

PyObject *cl_make_error(const cl_job *job, const cl_item *item, ms_status status) {
    const cl_failure *failure = &job->failure;
    bool told = failure->status == (int32_t)status || job->count <= 1;
    const char *stage = failure->stage[0] != '\0' ? failure->stage : "";
    double elapsed_s = (double)(te_now_ns() - job->started_ns) * 1e-9;
    PyObject *key = item != NULL ? PyUnicode_DecodeUTF8((const char *)item->key,
                                                        (Py_ssize_t)item->key_length, "replace")
                                 : (Py_INCREF(Py_None), Py_None);
    if (key == NULL)
        return NULL;
    PyObject *node = PyUnicode_DecodeUTF8(told ? failure->node : "",
                                          (Py_ssize_t)strlen(told ? failure->node : ""), "replace");
    PyObject *text = PyUnicode_DecodeUTF8(
        told ? failure->message : "", (Py_ssize_t)strlen(told ? failure->message : ""), "replace");
    PyObject *error = NULL;
    if (node != NULL && text != NULL)
        error = PyObject_CallFunction(make_error_function, "isOOOdKn", (int)status, stage, node,
                                      text, key, elapsed_s,
                                      item != NULL ? (unsigned long long)item->bytes : 0ull,
                                      item != NULL ? (Py_ssize_t)item->size : (Py_ssize_t)0);
    Py_XDECREF(node);
    Py_XDECREF(text);
    Py_DECREF(key);
    return error;
}

static void raise_error(const cl_job *job, const cl_item *item, ms_status status) {
    PyObject *error = cl_make_error(job, item, status);
    if (error == NULL)
        return;
    PyObject *type = PyObject_Type(error);
    PyErr_SetObject(type, error);
    Py_DECREF(type);
    Py_DECREF(error);
}

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static int take_key(cl_job *job, size_t index, PyObject *key) {
    Py_ssize_t length;
    if (!PyUnicode_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "a key is a str");
        return -1;
    }
    const char *text = PyUnicode_AsUTF8AndSize(key, &length);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeError))
            return -1;
        /* A lone surrogate: no UTF-8, and so a bad key like the empty one. */
        PyErr_Clear();
        text = "";
        length = 0;
    }
    if (length > UINT32_MAX)
        length = UINT32_MAX; /* refused as too long */
    job->items[index].key = (const uint8_t *)text;
    job->items[index].key_length = (uint32_t)length;
    Py_INCREF(key);
    job->keys[index] = key;
    return 0;
}

static bool is_list(PyObject *object) { return PyList_Check(object) || PyTuple_Check(object); }

static Py_ssize_t list_size(PyObject *list) {
    return PyList_Check(list) ? PyList_Size(list) : PyTuple_Size(list);
}

/* Borrowed. */
static PyObject *list_item(PyObject *list, Py_ssize_t index) {
    return PyList_Check(list) ? PyList_GetItem(list, index) : PyTuple_GetItem(list, index);
}

static int take_keys(cl_job *job, PyObject *keys) {
    job->items = job->item_scratch;
    job->keys = job->key_scratch;
    job->buffers = job->buffer_scratch;
    job->values = job->value_scratch;
    memset(job->item_scratch, 0, sizeof job->item_scratch);
    job->key_scratch[0] = NULL;
    job->buffer_scratch[0].obj = NULL;
    job->value_scratch[0] = NULL;
    if (!is_list(keys)) {
        job->is_single = true;
        job->count = 1;
        return take_key(job, 0, keys);
    }
    size_t count = (size_t)list_size(keys);
    if (count > MS_BATCH_ITEMS_MAX) {
        /* One mistake of the caller, not one of each key. */
        cl_fail(&job->failure, MS_BAD_REQUEST, "batch", "",
                "a batch has at most %u keys, not %zu; cut it", MS_BATCH_ITEMS_MAX, count);
        raise_error(job, NULL, MS_BAD_REQUEST);
        return -1;
    }
    job->count = count;
    if (count > 1) {
        job->items = calloc(count, sizeof *job->items);
        job->keys = calloc(count, sizeof *job->keys);
        job->buffers = calloc(count, sizeof *job->buffers);
        job->values = calloc(count, sizeof *job->values);
        if (job->items == NULL || job->keys == NULL || job->buffers == NULL ||
            job->values == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (take_key(job, i, list_item(keys, (Py_ssize_t)i)) != 0)
            return -1;
    return 0;
}

/* A buffer, or raw memory as a tuple (address, length) that the caller keeps alive. */
static int take_part(PyObject *memory, bool writable, struct iovec *part, cl_buffer *buffer) {
    if (PyTuple_Check(memory) && PyTuple_Size(memory) == 2) {
        part->iov_base = PyLong_AsVoidPtr(PyTuple_GetItem(memory, 0));
        if (PyErr_Occurred())
            return -1;
        part->iov_len = PyLong_AsSize_t(PyTuple_GetItem(memory, 1));
        return PyErr_Occurred() ? -1 : 0;
    }
    if (get_buffer(memory, buffer, writable ? BUFFER_WRITABLE : BUFFER_SIMPLE) != 0) {
        buffer->obj = NULL;
        return -1;
    }
    *part = (struct iovec){.iov_base = buffer->buf, .iov_len = (size_t)buffer->len};
    return 0;
}

/* A list: the item's bytes lie in these pieces, in order. */
static int take_pieces(cl_job *job, size_t index, PyObject *memories, bool writable) {
    size_t count = (size_t)PyList_Size(memories);
    if (job->pieces == NULL)
        job->pieces = calloc(job->count, sizeof *job->pieces);
    cl_piece_list *list = job->pieces != NULL ? &job->pieces[index] : NULL;
    if (list != NULL) {
        list->parts = calloc(count + 1, sizeof *list->parts);
        list->buffers = calloc(count + 1, sizeof *list->buffers);
    }
    if (list == NULL || list->parts == NULL || list->buffers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    cl_item *item = &job->items[index];
    item->size = 0;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        list->count = i + 1;
        struct iovec part;
        if (take_part(PyList_GetItem(memories, (Py_ssize_t)i), writable, &part,
                      &list->buffers[i]) != 0)
            return -1;
        item->size += part.iov_len;
        if (part.iov_len > 0)
            list->parts[kept++] = part;
    }
    item->pieces = list->parts;
    item->piece_count = kept > 0 ? (uint32_t)kept : 1; /* nothing at all is one empty piece */
    return 0;
}

static int take_memory(cl_job *job, size_t index, PyObject *memory, bool writable) {
    if (PyList_Check(memory))
        return take_pieces(job, index, memory, writable);
    struct iovec part;
    if (take_part(memory, writable, &part, &job->buffers[index]) != 0)
        return -1;
    job->items[index].memory = part.iov_base;
    job->items[index].size = part.iov_len;
    return 0;
}

static int take_memories(cl_job *job, PyObject *memories, bool writable) {
    if (job->is_single)
        return take_memory(job, 0, memories, writable);
    if (!is_list(memories) || (size_t)list_size(memories) != job->count) {
        PyErr_Format(PyExc_ValueError,
                     "as many buffers as keys are needed, in a list: there are %zu keys",
                     job->count);
        return -1;
    }
    for (size_t i = 0; i < job->count; i++)
        if (take_memory(job, i, list_item(memories, (Py_ssize_t)i), writable) != 0)
            return -1;
    return 0;
}

/* share: None or a tuple (priority, weight, tenant). */
int cl_job_take_share(cl_job *job, PyObject *share) {
    if (share == Py_None)
        return 0;
    if (!PyTuple_Check(share) || PyTuple_Size(share) != 3) {
        PyErr_SetString(PyExc_TypeError, "a share is a tuple of 3");
        return -1;
    }
    unsigned long priority = PyLong_AsUnsignedLong(PyTuple_GetItem(share, 0));
    unsigned long weight = PyLong_AsUnsignedLong(PyTuple_GetItem(share, 1));
    uint64_t tenant = PyLong_AsUnsignedLongLong(PyTuple_GetItem(share, 2));
    if (PyErr_Occurred())
        return -1;
    if (priority > TE_PRIORITY_PREFETCH || weight == 0 || weight > 1024) {
        PyErr_SetString(PyExc_ValueError, "no such priority, or a weight that is not 1 to 1024");
        return -1;
    }
    job->share = (te_transfer_options){
        .priority = (int32_t)priority, .weight = (uint32_t)weight, .tenant = tenant, .is_meant = 1};
    return 0;
}

static const te_transfer_options *share_of(const cl_job *job) {
    return job->share.is_meant ? &job->share : NULL;
}

/* options: None or a tuple (replicas, min_replicas, flags, preferred_server, ttl_ms, parent or None, chain, group, share). */
int cl_job_take_put_options(cl_job *job, PyObject *options) {
    job->put = (cl_put_options){.replica_count = 1, .replica_count_min = 1};
    if (options == Py_None)
        return 0;
    if (!PyTuple_Check(options) || PyTuple_Size(options) != 9) {
        PyErr_SetString(PyExc_TypeError, "put options are a tuple of 9");
        return -1;
    }
    unsigned long numbers[4];
    for (Py_ssize_t i = 0; i < 4; i++) {
        numbers[i] = PyLong_AsUnsignedLong(PyTuple_GetItem(options, i));
        if (PyErr_Occurred())
            return -1;
    }
    job->put.replica_count = (uint32_t)numbers[0];
    job->put.replica_count_min = (uint32_t)numbers[1];
    job->put.flags = (uint32_t)numbers[2];
    job->put.preferred_server = (uint32_t)numbers[3];
    job->put.ttl_ms = PyLong_AsUnsignedLongLong(PyTuple_GetItem(options, 4));
    if (PyErr_Occurred())
        return -1;
    PyObject *parent = PyTuple_GetItem(options, 5);
    if (parent != Py_None) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(parent, &length);
        if (text == NULL)
            return -1;
        cl_item item = {.key = (const uint8_t *)text, .key_length = (uint32_t)length};
        if (cl_hash_items(job->client, &item, 1) == 1)
            job->put.parent = item.hash;
    }
    job->put.chain = PyObject_IsTrue(PyTuple_GetItem(options, 6)) == 1;
    job->put.group = PyLong_AsUnsignedLongLong(PyTuple_GetItem(options, 7));
    return PyErr_Occurred() ? -1 : cl_job_take_share(job, PyTuple_GetItem(options, 8));
}

static int take_timeout(cl_job *job, PyObject *timeout) {
    double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1.0 && PyErr_Occurred())
        return -1;
    if (!(timeout_s > 0)) {
        PyErr_SetString(PyExc_ValueError, "timeout_s must be above 0");
        return -1;
    }
    if (timeout_s > 1e6)
        timeout_s = 1e6;
    job->started_ns = te_now_ns();
    job->deadline_ns = job->started_ns + (int64_t)(timeout_s * 1e9);
    job->put.timeout_ms = (uint32_t)(timeout_s * 1e3) + 1;
    return 0;
}

static int take_command(cl_job *job, PyObject *const *arguments) {
    job->method = (uint16_t)PyLong_AsUnsignedLong(arguments[1]);
    job->flags = (uint32_t)PyLong_AsUnsignedLong(arguments[2]);
    if (PyErr_Occurred())
        return -1;
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(arguments[3], &bytes, &length) != 0)
        return -1;
    Py_INCREF(arguments[3]);
    job->body = arguments[3];
    job->body_bytes = (const uint8_t *)bytes;
    job->body_length = (size_t)length;
    job->numbered = PyObject_IsTrue(arguments[4]) == 1;
    return 0;
}

/* handle, keys, then by operation:  get_into, put: buffers;  put: options;  remove: force;
 * match_prefix: pin, pin_deadline_ms;  pin: pin_deadline_ms;  last: timeout_s.
 * get, get_into, get_range: share, or not;  get_range: buffers, offset;  command: handle, method, flags, body, numbered, timeout_s. */
int cl_job_parse(cl_job *job, cl_operation operation, PyObject *const *arguments,
                 Py_ssize_t count) {
    static const Py_ssize_t counts[] = {3, 3, 4, 5, 4, 5, 4, 3, 3, 3, 6, 5};
    job->operation = operation;
    job->client = NULL;
    job->count = 0;
    job->is_single = false;
    job->failure.status = MS_OK;
    job->failure.stage[0] = job->failure.node[0] = job->failure.message[0] = '\0';
    job->status = MS_OK;
    job->phase = 0;
    job->attempts = 0;
    job->matched = 0;
    job->async = NULL;
    job->body = NULL;
    job->answer = NULL;
    job->pieces = NULL;
    job->parts = NULL;
    job->started_ns = te_now_ns();
    job->items = job->item_scratch;
    job->keys = job->key_scratch;
    job->buffers = job->buffer_scratch;
    job->values = job->value_scratch;
    /* Of reads that move bytes, before the timeout: None or a share.  It may be left out. */
    bool is_read = operation == CL_GET || operation == CL_GET_INTO || operation == CL_GET_RANGE;
    bool has_share = is_read && count == counts[operation] + 1;
    job->share.is_meant = 0;
    if (count != counts[operation] + has_share) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", counts[operation],
                     count);
        return -1;
    }
    job->handle = PyLong_AsUnsignedLongLong(arguments[0]);
    if (PyErr_Occurred())
        return -1;
    job->client = cl_enter(job->handle, &job->failure);
    if (job->client == NULL) {
        raise_error(job, NULL, (ms_status)job->failure.status);
        return -1;
    }
    if (operation == CL_COMMAND) {
        if (take_command(job, arguments) != 0)
            goto failed;
    } else if (take_keys(job, arguments[1]) != 0) {
        goto failed;
    }
    if ((operation == CL_GET_INTO || operation == CL_GET_RANGE) &&
        take_memories(job, arguments[2], true) != 0)
        goto failed;
    if (operation == CL_PUT && (take_memories(job, arguments[2], false) != 0 ||
                                cl_job_take_put_options(job, arguments[3]) != 0))
        goto failed;
    if (has_share && cl_job_take_share(job, arguments[count - 2]) != 0)
        goto failed;
    if (operation == CL_GET_RANGE) {
        uint64_t offset = PyLong_AsUnsignedLongLong(arguments[3]);
        if (PyErr_Occurred())
            goto failed;
        for (size_t i = 0; i < job->count; i++) {
            job->items[i].is_range = true;
            job->items[i].offset = offset;
        }
    }
    if (operation == CL_REMOVE)
        job->force = PyObject_IsTrue(arguments[2]) == 1;
    if (operation == CL_MATCH_PREFIX)
        job->pin = PyObject_IsTrue(arguments[2]) == 1;
    if (operation == CL_MATCH_PREFIX || operation == CL_PIN) {
        unsigned long deadline_ms = PyLong_AsUnsignedLong(arguments[operation == CL_PIN ? 2 : 3]);
        if (PyErr_Occurred())
            goto failed;
        job->pin_deadline_ms = deadline_ms < UINT32_MAX ? (uint32_t)deadline_ms : UINT32_MAX;
    }
    if (take_timeout(job, arguments[count - 1]) != 0)
        goto failed;
    return 0;
failed:
    cl_job_release(job);
    return -1;
}

void cl_job_release(cl_job *job) {
    if (job->client != NULL)
        cl_leave(job->client);
    job->client = NULL;
    for (size_t i = 0; i < job->count; i++) {
        if (job->keys != NULL)
            Py_XDECREF(job->keys[i]);
        if (job->values != NULL)
            Py_XDECREF(job->values[i]);
        if (job->buffers != NULL && job->buffers[i].obj != NULL)
            release_buffer(&job->buffers[i]);
    }
    for (size_t i = 0; job->pieces != NULL && i < job->count; i++) {
        cl_piece_list *list = &job->pieces[i];
        for (size_t j = 0; list->buffers != NULL && j < list->count; j++)
            if (list->buffers[j].obj != NULL)
                release_buffer(&list->buffers[j]);
        free(list->parts);
        free(list->buffers);
    }
    free(job->pieces);
    job->pieces = NULL;
    free(job->parts);
    job->parts = NULL;
    if (job->items != job->item_scratch)
        free(job->items);
    if (job->keys != job->key_scratch)
        free(job->keys);
    if (job->buffers != job->buffer_scratch)
        free(job->buffers);
    if (job->values != job->value_scratch)
        free(job->values);
    job->count = 0;
    Py_XDECREF(job->body);
    job->body = NULL;
    free(job->answer);
    job->answer = NULL;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A get asks for sizes, has bytes objects made, and reads into them.  Where an object was replaced by a larger one in
 * between, it alone is asked for again: what has been read stays. */
#define GET_ATTEMPTS 4

static bool wants_size(const cl_job *job, size_t index) {
    return job->attempts == 0 || job->items[index].status == MS_BUFFER_TOO_SMALL;
}

static bool wants_bytes(const cl_job *job, size_t index) {
    return job->items[index].memory != NULL;
}

typedef ms_status (*get_step)(cl_job *job, cl_item *items, size_t count);

static ms_status locate(cl_job *job, cl_item *items, size_t count) {
    return cl_locate(job->client, items, count, job->deadline_ns, &job->failure);
}

static ms_status locate_known(cl_job *job, cl_item *items, size_t count) {
    return cl_locate_known(job->client, items, count, job->deadline_ns, &job->failure);
}

static ms_status get(cl_job *job, cl_item *items, size_t count) {
    return cl_get(job->client, items, count, share_of(job), job->deadline_ns, &job->failure);
}

static ms_status get_known(cl_job *job, cl_item *items, size_t count) {
    return cl_get_known(job->client, items, count, share_of(job), job->deadline_ns, &job->failure);
}

/* One step for those items that want it, whose statuses it sets. */
static ms_status run_some(cl_job *job, bool (*wants)(const cl_job *, size_t), get_step step) {
    size_t wanted = 0;
    for (size_t i = 0; i < job->count; i++)
        wanted += wants(job, i);
    if (wanted == 0)
        return MS_OK;
    if (wanted == job->count)
        return step(job, job->items, job->count);
    cl_item *items = malloc(wanted * sizeof *items);
    size_t at = 0;
    for (size_t i = 0; i < job->count; i++) {
        if (!wants(job, i))
            continue;
        if (items != NULL)
            items[at++] = job->items[i];
        else
            job->items[i].status = MS_NO_MEMORY; /* else it would pass for read */
    }
    if (items == NULL)
        return MS_NO_MEMORY;
    ms_status status = step(job, items, wanted);
    at = 0;
    for (size_t i = 0; i < job->count; i++)
        if (wants(job, i))
            job->items[i] = items[at++];
    free(items);
    return status;
}

/* A step that failed as a whole stays the cause. */
static ms_status run_get(cl_job *job) {
    ms_status before = job->phase == 0 && job->attempts == 0 ? MS_OK : job->status;
    ms_status status =
        job->phase == 0 ? run_some(job, wants_size, locate) : run_some(job, wants_bytes, get);
    return before != MS_OK ? before : status;
}

void cl_job_run(cl_job *job) {
    cl_client *client = job->client;
    cl_item *items = job->items;
    size_t count = job->count;
    switch (job->operation) {
    case CL_EXISTS:
        job->status = cl_exists(client, items, count, job->deadline_ns, &job->failure);
        break;
    case CL_LEASE:
        job->status =
            cl_lease(client, items, count, job->pin_deadline_ms, job->deadline_ns, &job->failure);
        break;
    case CL_GET:
        job->status = run_get(job);
        break;
    case CL_SIZES:
        job->status = cl_locate(client, items, count, job->deadline_ns, &job->failure);
        break;
    case CL_GET_INTO:
    case CL_GET_RANGE:
        job->status = get(job, items, count);
        break;
    case CL_PUT:
        job->put.share = share_of(job);
        job->status = cl_put(client, items, count, &job->put, job->deadline_ns, &job->failure);
        break;
    case CL_REMOVE:
        job->status = cl_remove(client, items, count, job->force, job->deadline_ns, &job->failure);
        break;
    case CL_MATCH_PREFIX:
        job->status = cl_match_prefix(client, items, count, job->pin, job->pin_deadline_ms,
                                      &job->matched, job->deadline_ns, &job->failure);
        break;
    case CL_PIN:
        job->status = cl_mark(client, MS_PIN, items, count, job->pin_deadline_ms, job->deadline_ns,
                              &job->failure);
        break;
    case CL_UNPIN:
        job->status = cl_mark(client, MS_UNPIN, items, count, 0, job->deadline_ns, &job->failure);
        break;
    case CL_TOUCH:
        job->status = cl_mark(client, MS_TOUCH, items, count, 0, job->deadline_ns, &job->failure);
        break;
    case CL_COMMAND:
        job->status = cl_command(job->handle, job->method, job->flags, job->body_bytes,
                                 job->body_length, job->numbered, &job->answer, &job->answer_length,
                                 job->deadline_ns, &job->failure);
        break;
    }
}

bool cl_job_run_known(cl_job *job) {
    ms_status status = MS_PENDING;
    switch (job->operation) {
    case CL_GET: /* a second attempt goes by what the first one has found */
        if (job->phase == 0 && job->attempts == 0)
            status = run_some(job, wants_size, locate_known);
        else if (job->phase == 1)
            status = run_some(job, wants_bytes, get_known);
        break;
    case CL_SIZES:
        status = locate_known(job, job->items, job->count);
        break;
    case CL_GET_INTO:
    case CL_GET_RANGE:
        status = get_known(job, job->items, job->count);
        break;
    default:
        break;
    }
    if (status == MS_PENDING)
        return false;
    if (job->operation != CL_GET || job->phase == 0 || job->status == MS_OK)
        job->status = status;
    return true;
}

int cl_job_between(cl_job *job) {
    for (size_t i = 0; i < job->count; i++) {
        cl_item *item = &job->items[i];
        if (item->status != MS_OK || job->values[i] != NULL)
            continue;
        job->values[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
        if (job->values[i] == NULL)
            return -1;
        item->memory = PyBytes_AsString(job->values[i]);
        item->size = item->bytes;
    }
    job->phase = 1;
    return 0;
}

bool cl_job_again(cl_job *job) {
    bool is_last = ++job->attempts >= GET_ATTEMPTS, is_again = false;
    for (size_t i = 0; i < job->count; i++) {
        cl_item *item = &job->items[i];
        item->memory = NULL;
        if (item->status != MS_BUFFER_TOO_SMALL)
            continue;
        Py_CLEAR(job->values[i]);
        if (is_last)
            item->status = MS_NOT_FOUND; /* overtaken too often: a miss (docs/consistency.md) */
        else
            is_again = true;
    }
    if (is_again)
        job->phase = 0;
    return is_again;
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

static PyObject *item_value(cl_job *job, size_t index) {
    const cl_item *item = &job->items[index];
    switch (job->operation) {
    case CL_EXISTS:
    case CL_LEASE:
    case CL_REMOVE:
    case CL_PIN:
    case CL_UNPIN:
    case CL_TOUCH:
        if (item->status == MS_OK || item->status == MS_NOT_FOUND)
            return PyBool_FromLong(item->status == MS_OK);
        break;
    case CL_GET:
        if (item->status == MS_OK) {
            PyObject *value = job->values[index];
            if (item->bytes == item->size) {
                Py_INCREF(value);
                return value;
            }
            /* Replaced by a shorter one between the look-up and the read. */
            return PyBytes_FromStringAndSize(PyBytes_AsString(value), (Py_ssize_t)item->bytes);
        }
        break;
    case CL_GET_INTO:
    case CL_GET_RANGE:
    case CL_SIZES:
        if (item->status == MS_OK)
            return PyLong_FromUnsignedLongLong(item->bytes);
        break;
    case CL_PUT:
        if (item->status == MS_OK)
            return PyLong_FromUnsignedLong(item->replica_count);
        if (item->status == MS_EXISTS)
            return PyLong_FromLong(0);
        break;
    case CL_MATCH_PREFIX:
    case CL_COMMAND:
        break;
    }
    if (item->status == MS_NOT_FOUND)
        Py_RETURN_NONE;
    return NULL;
}

PyObject *cl_job_result(cl_job *job) {
    if (job->operation == CL_COMMAND) {
        if (job->status == MS_OK)
            return PyBytes_FromStringAndSize((const char *)job->answer,
                                             (Py_ssize_t)job->answer_length);
        raise_error(job, NULL, job->status);
        return NULL;
    }
    if (job->operation == CL_MATCH_PREFIX) {
        if (job->status == MS_OK)
            return PyLong_FromSize_t(job->matched);
        raise_error(job, NULL, job->status);
        return NULL;
    }
    if (job->is_single) {
        PyObject *value = item_value(job, 0);
        if (value == NULL && !PyErr_Occurred())
            raise_error(job, &job->items[0], job->items[0].status);
        return value;
    }
    PyObject *list = PyList_New((Py_ssize_t)job->count);
    if (list == NULL)
        return NULL;
    bool has_errors = false;
    PyObject *of_all = NULL; /* what failed as a whole is one error, however many keys there are */
    for (size_t i = 0; i < job->count; i++) {
        PyObject *value = item_value(job, i);
        if (value == NULL && !PyErr_Occurred()) {
            const cl_item *item = &job->items[i];
            has_errors = true;
            if (job->status == MS_OK || item->status != job->status) {
                value = cl_make_error(job, item, item->status);
            } else {
                if (of_all == NULL)
                    of_all = cl_make_error(job, NULL, job->status);
                value = of_all;
                Py_XINCREF(value);
            }
        }
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) != 0) {
            Py_XDECREF(of_all);
            Py_DECREF(list);
            return NULL;
        }
    }
    Py_XDECREF(of_all);
    if (!has_errors)
        return list;
    /* A tuple says that there are exceptions in it: Python need not look at every item of a good batch. */
    PyObject *tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    return tuple;
}

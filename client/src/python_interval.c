#include "python_interval.h"

/* The interpreter lock protects all of this. */
static PyObject *get_function, *set_function, *short_interval, *usual_interval;
static double shortened; /* as the interpreter tells it: it rounds to microseconds */
static unsigned calls;   /* that are under way */
static int of_process;   /* a forked child has none of its parent's calls */

int cl_interval_init(void) {
    get_function = PySys_GetObject("getswitchinterval");
    set_function = PySys_GetObject("setswitchinterval");
    short_interval = PyFloat_FromDouble(CL_INTERVAL_S);
    if (get_function == NULL || set_function == NULL || short_interval == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "sys has lost its switch interval");
        return -1;
    }
    Py_INCREF(get_function);
    Py_INCREF(set_function);
    return 0;
}

/* A new reference, or NULL without an error: then the interval stays as it is. */
static PyObject *interval(double *seconds) {
    PyObject *number = PyObject_CallNoArgs(get_function);
    *seconds = number != NULL ? PyFloat_AsDouble(number) : -1;
    if (PyErr_Occurred())
        PyErr_Clear();
    return number;
}

static void set(PyObject *seconds) {
    PyObject *none = PyObject_CallFunctionObjArgs(set_function, seconds, NULL);
    if (none == NULL)
        PyErr_Clear();
    Py_XDECREF(none);
}

void cl_interval_shorten(int process) {
    if (of_process != process) {
        of_process = process;
        if (calls > 0) {
            calls = 1;
            cl_interval_restore();
        }
    }
    if (calls++ > 0)
        return;
    double seconds;
    PyObject *usual = interval(&seconds);
    if (seconds > CL_INTERVAL_S) {
        set(short_interval);
        Py_XDECREF(interval(&shortened));
        usual_interval = usual;
    } else {
        Py_XDECREF(usual);
    }
}

void cl_interval_restore(void) {
    if (--calls > 0 || usual_interval == NULL)
        return;
    double seconds;
    Py_XDECREF(interval(&seconds));
    if (seconds == shortened)
        set(usual_interval);
    Py_CLEAR(usual_interval);
}

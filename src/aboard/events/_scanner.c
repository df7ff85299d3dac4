/* The scanning core as a Python type. All rules live in scan.h; this file only
 * moves bytes in and columns out, and lets other threads run meanwhile. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "scan.h"

typedef struct {
    PyObject_HEAD
    scanner core;
    int busy; /* a scanner serves one thread at a time */
} ScannerObject;

static int enter(ScannerObject *self) {
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "a scanner cannot be used by two threads at once");
        return 0;
    }
    return self->busy = 1;
}

static PyObject *Scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"damage_start", "known", NULL};
    long long damage_start = -1;
    PyObject *known = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LO", names, &damage_start, &known)) return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ScannerObject *self = (ScannerObject *)alloc(type, 0);
    if (!self) return NULL;
    scanner_open(&self->core);
    self->core.damage_start = damage_start;
    PyObject *iterator = known ? PyObject_GetIter(known) : NULL, *item;
    if (known && !iterator) goto failed;
    while (iterator && (item = PyIter_Next(iterator))) {
        char *tag;
        Py_ssize_t n;
        int class;
        int good = PyArg_ParseTuple(item, "y#i;known must hold (tag, class)", &tag, &n, &class);
        if (good) {
            span bytes = {(uint8_t *)tag, (uint8_t *)tag + n};
            int32_t number = series_of(&self->core, bytes);
            if (number < 0) PyErr_NoMemory();
            else self->core.series.at[number].class = (uint8_t)class;
        }
        Py_DECREF(item);
        if (PyErr_Occurred()) break;
    }
    Py_XDECREF(iterator);
    if (!PyErr_Occurred()) return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void Scanner_dealloc(ScannerObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    scanner_close(&self->core);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *Scanner_scan(ScannerObject *self, PyObject *args) {
    Py_buffer block;
    long long offset, end;
    if (!PyArg_ParseTuple(args, "y*LL", &block, &offset, &end)) return NULL;
    if (offset < 0 || end < offset || block.len > end - offset) {
        PyBuffer_Release(&block);
        return PyErr_Format(PyExc_ValueError, "the block does not lie within the file");
    }
    int64_t next = -1;
    if (enter(self)) {
        Py_BEGIN_ALLOW_THREADS
        next = scan_block(&self->core, block.buf, (size_t)block.len, offset, end);
        Py_END_ALLOW_THREADS
        self->busy = 0;
        if (next < 0) PyErr_NoMemory();
    }
    PyBuffer_Release(&block);
    return next < 0 ? NULL : PyLong_FromLongLong(next);
}

/* A tuple of `n` bytes objects, each of `count` elements of the given width. */
static PyObject *new_columns(int n, const size_t *widths, size_t count, char **at) {
    PyObject *columns = PyTuple_New(n);
    for (int i = 0; columns && i < n; i++) {
        PyObject *column = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * widths[i]));
        if (!column) {
            Py_DECREF(columns);
            return NULL;
        }
        at[i] = PyBytes_AsString(column);
        PyTuple_SetItem(columns, i, column);
    }
    return columns;
}

/* Start of each series in a column sorted by series; series -1 comes first. */
#define STARTS(starts, list, series_count)                                                 \
    do {                                                                                   \
        memset(starts, 0, ((series_count) + 2) * sizeof *starts);                          \
        for (size_t i = 0; i < (list).count; i++) starts[(list).at[i].series + 2]++;       \
        for (size_t i = 1; i < (series_count) + 2; i++) starts[i] += starts[i - 1];        \
    } while (0)

static void put(char *column, size_t place, const void *value, size_t width) {
    memcpy(column + place * width, value, width);
}

static void fill_points(const scanner *s, size_t *starts, char **at) {
    STARTS(starts, s->points, s->series.count);
    for (size_t i = 0; i < s->points.count; i++) {
        const point *p = &s->points.at[i];
        size_t place = starts[p->series + 1]++;
        put(at[0], place, &p->series, 4);
        put(at[1], place, &p->step, 8);
        put(at[2], place, &p->wall, 8);
        put(at[3], place, &p->value, 8);
    }
}

static void fill_pointers(const scanner *s, size_t *starts, char **at) {
    STARTS(starts, s->pointers, s->series.count);
    for (size_t i = 0; i < s->pointers.count; i++) {
        const pointer *p = &s->pointers.at[i];
        size_t place = starts[p->series + 1]++;
        put(at[0], place, &p->series, 4);
        put(at[1], place, &p->step, 8);
        put(at[2], place, &p->wall, 8);
        put(at[3], place, &p->offset, 8);
        put(at[4], place, &p->length, 8);
        put(at[5], place, &p->rows, 8);
    }
}

static PyObject *take_damage(scanner *s) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < s->damage.count; i++) {
        PyObject *item = Py_BuildValue("LL", (long long)s->damage.at[i].offset,
                                       (long long)s->damage.at[i].length);
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *Scanner_take(ScannerObject *self, PyObject *Py_UNUSED(ignored)) {
    static const size_t point_widths[] = {4, 8, 8, 8}, pointer_widths[] = {4, 8, 8, 8, 8, 8};
    char *points_at[4], *pointers_at[6];
    scanner *s = &self->core;
    if (!enter(self)) return NULL;
    PyObject *points = new_columns(4, point_widths, s->points.count, points_at);
    PyObject *pointers = new_columns(6, pointer_widths, s->pointers.count, pointers_at);
    PyObject *damage = take_damage(s), *result = NULL;
    size_t *starts = malloc((s->series.count + 2) * sizeof *starts);
    if (points && pointers && damage && starts) {
        Py_BEGIN_ALLOW_THREADS
        fill_points(s, starts, points_at);
        fill_pointers(s, starts, pointers_at);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("OOOK", points, pointers, damage, (unsigned long long)s->events);
    } else if (!starts) {
        PyErr_NoMemory();
    }
    if (result) s->points.count = s->pointers.count = s->damage.count = s->events = 0;
    free(starts);
    Py_XDECREF(points);
    Py_XDECREF(pointers);
    Py_XDECREF(damage);
    self->busy = 0;
    return result;
}

static PyObject *Scanner_series(ScannerObject *self, PyObject *Py_UNUSED(ignored)) {
    if (!enter(self)) return NULL;
    const scanner *s = &self->core;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < s->series.count; i++) {
        const series *one = &s->series.at[i];
        const char *metadata = one->has_metadata ? (char *)s->arena.at + one->metadata : NULL;
        PyObject *item = Py_BuildValue(
            "y#y#iiN", (char *)s->arena.at + one->tag, (Py_ssize_t)one->tag_length, metadata,
            (Py_ssize_t)one->metadata_length, one->origin, one->class, PyBool_FromLong(one->wide));
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    self->busy = 0;
    return list;
}

static PyObject *get_want(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(self->core.want);
}
static PyObject *get_damage_start(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(self->core.damage_start);
}
static PyObject *get_hold(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(self->core.hold);
}
static PyObject *get_first_wall(ScannerObject *self, void *Py_UNUSED(closure)) {
    if (!self->core.has_events) Py_RETURN_NONE;
    return PyFloat_FromDouble(self->core.first_wall);
}
static PyObject *get_pending(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->core.points.count + self->core.pointers.count);
}

static PyMethodDef Scanner_methods[] = {
    {"scan", (PyCFunction)Scanner_scan, METH_VARARGS, "scan(block, offset, end) -> next offset"},
    {"take", (PyCFunction)Scanner_take, METH_NOARGS, "take() -> columns since the last take"},
    {"series", (PyCFunction)Scanner_series, METH_NOARGS,
     "series() -> [(tag, metadata, origin, class, wide)]"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Scanner_fields[] = {
    {"want", (getter)get_want, NULL, "bytes the next block must hold", NULL},
    {"damage_start", (getter)get_damage_start, NULL, "where open damage began, or -1", NULL},
    {"hold", (getter)get_hold, NULL, "first record that runs past the end, or -1", NULL},
    {"first_wall", (getter)get_first_wall, NULL, "wall time of the first event, or None", NULL},
    {"pending", (getter)get_pending, NULL, "values not taken yet", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot Scanner_slots[] = {
    {Py_tp_doc, "Bytes of an event file to columns; see aboard.events.scanner."},
    {Py_tp_new, Scanner_new},
    {Py_tp_dealloc, Scanner_dealloc},
    {Py_tp_methods, Scanner_methods},
    {Py_tp_getset, Scanner_fields},
    {0, NULL},
};

static PyType_Spec Scanner_spec = {
    .name = "aboard.events._scanner.Scanner",
    .basicsize = sizeof(ScannerObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = Scanner_slots,
};

static PyObject *module_crc32c(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
    uint32_t crc = crc32c(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef module_methods[] = {
    {"crc32c", module_crc32c, METH_VARARGS, "crc32c(data) -> int"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    scan_init();
    PyObject *type = PyType_FromSpec(&Scanner_spec);
    if (!type) return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_scanner", "The C core of aboard.events.scanner.", 0,
    module_methods, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__scanner(void) { return PyModuleDef_Init(&module); }

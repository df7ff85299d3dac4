/* Scalars in, framed records out: what a training loop logs, encoded in one call.
 * The Python twin is `python_records` in writer.py; tests check that both return the same bytes. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* only the checksums of the scanner are used */
#include "scan.h"

#define MAX_VARINT 10
/* Around a value: two keys and two lengths, its number with its key. */
#define VALUE_ROOM (2 + 2 * MAX_VARINT + 5)
/* Around an event: the frame, wall time, step, and the key and length of the summary. */
#define EVENT_ROOM (OVERHEAD + 9 + 1 + MAX_VARINT + 1 + MAX_VARINT)

typedef struct {
    uint8_t *at;
    size_t used, room;
} output;

static int reserve(output *out, size_t more) {
    if (out->room - out->used >= more) return 1;
    size_t room = (out->used + more) * 2;
    uint8_t *at = PyMem_Realloc(out->at, room);
    if (!at) {
        PyErr_NoMemory();
        return 0;
    }
    out->at = at;
    out->room = room;
    return 1;
}

static uint8_t *put_varint(uint8_t *p, uint64_t number) {
    for (; number > 0x7f; number >>= 7) *p++ = (uint8_t)(number | 0x80);
    *p++ = (uint8_t)number;
    return p;
}

static uint8_t *put_little(uint8_t *p, uint64_t bits, int octets) {
    for (int i = 0; i < octets; i++, bits >>= 8) *p++ = (uint8_t)bits;
    return p;
}

static size_t varint_size(uint64_t number) {
    size_t n = 1;
    while (number >>= 7) n++;
    return n;
}

static int put_value(output *out, PyObject *tag, PyObject *number) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(tag, &length);
    if (!text) return 0;
    double wide = PyFloat_AsDouble(number);
    if (wide == -1.0 && PyErr_Occurred()) return 0;
    if (!reserve(out, (size_t)length + VALUE_ROOM)) return 0;
    float narrow = (float)wide; /* beyond float32: infinite */
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    uint8_t *p = out->at + out->used;
    *p++ = 0x0a;
    p = put_varint(p, 1 + varint_size((uint64_t)length) + (size_t)length + 5);
    *p++ = 0x0a;
    p = put_varint(p, (uint64_t)length);
    memcpy(p, text, (size_t)length);
    p += length;
    *p++ = 0x15;
    p = put_little(p, bits, 4);
    out->used = (size_t)(p - out->at);
    return 1;
}

static int put_values(output *out, PyObject *tags, PyObject *numbers) {
    if (PyUnicode_Check(tags)) return put_value(out, tags, numbers);
    Py_ssize_t count = PyTuple_Size(tags);
    if (count < 0) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *number = PyTuple_GetItem(numbers, i);
        if (!number || !put_value(out, PyTuple_GetItem(tags, i), number)) return 0;
    }
    return 1;
}

/* Values are written after the room that the head of their record may need, then moved up to it. */
static int put_record(output *out, PyObject *entry) {
    long long step = PyLong_AsLongLong(PyTuple_GetItem(entry, 2));
    if (step == -1 && PyErr_Occurred()) return 0;
    double wall = PyFloat_AsDouble(PyTuple_GetItem(entry, 3));
    if (wall == -1.0 && PyErr_Occurred()) return 0;
    size_t start = out->used;
    if (!reserve(out, EVENT_ROOM)) return 0;
    out->used += EVENT_ROOM;
    if (!put_values(out, PyTuple_GetItem(entry, 0), PyTuple_GetItem(entry, 1))) return 0;
    size_t summary = out->used - start - EVENT_ROOM;
    if (!reserve(out, 4)) return 0;

    uint8_t *record = out->at + start, *p = record + HEADER;
    uint64_t bits;
    memcpy(&bits, &wall, 8);
    *p++ = 0x09;
    p = put_little(p, bits, 8);
    if (step) {
        *p++ = 0x10;
        p = put_varint(p, (uint64_t)step);
    }
    *p++ = 0x2a;
    p = put_varint(p, summary);
    memmove(p, record + EVENT_ROOM, summary);
    p += summary;
    size_t length = (size_t)(p - record) - HEADER;
    put_little(record, length, 8);
    put_little(record + 8, masked(crc32c(record, 8)), 4);
    p = put_little(p, masked(crc32c(record + HEADER, length)), 4);
    out->used = (size_t)(p - out->at);
    return 1;
}

static PyObject *module_records(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *entries;
    Py_ssize_t start;
    if (!PyArg_ParseTuple(args, "On", &entries, &start)) return NULL;
    output out = {NULL, 0, 0};
    Py_ssize_t count = PyList_Size(entries), i = start;
    if (count < 0) return NULL;
    if (start < 0) {
        PyErr_Format(PyExc_ValueError, "records start at 0 or later, not at %zd", start);
        return NULL;
    }
    for (; i < count; i++) {
        PyObject *entry = PyList_GetItem(entries, i); /* NULL if the list has become shorter */
        if (entry && (!PyTuple_Check(entry) || PyTuple_Size(entry) != 4)) break;
        if (!entry || !put_record(&out, entry)) {
            PyMem_Free(out.at);
            return NULL;
        }
    }
    PyObject *result = Py_BuildValue("y#n", out.at ? (char *)out.at : "", (Py_ssize_t)out.used, i);
    PyMem_Free(out.at);
    return result;
}

static PyMethodDef module_methods[] = {
    {"records", module_records, METH_VARARGS, "records(entries, start) -> (bytes, stop)"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *Py_UNUSED(module)) {
    scan_init();
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_encoder", "The C core of aboard.events.writer.", 0,
    module_methods, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__encoder(void) { return PyModuleDef_Init(&module); }

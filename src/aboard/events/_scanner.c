/* The scanning core as a Python type. All rules are in scan.h, pack.h and small.h; this file only
 * passes bytes in and chunks out, and releases the GIL meanwhile. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "pack.h"
#include "small.h"

#define VERSION 7 /* of what scanner.py expects of this module */

typedef struct {
    PyObject_HEAD
    scanner core;
    packed packed; /* valid only within a take; kept, since allocation is costly */
    int busy; /* a scanner serves one thread at a time */
} ScannerObject;

static int enter(ScannerObject *self) {
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "a scanner cannot be used by two threads at once");
        return 0;
    }
    return self->busy = 1;
}

/* Prepare the scanner for a file; 0 with an exception. */
static int begin(ScannerObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"damage_start", "known", "digest", "digest_only", "limits", NULL};
    long long damage_start = -1, max_unverified = MAX_UNVERIFIED, max_record = MAX_RECORD;
    unsigned long long digest = 0;
    int digest_only = 0;
    PyObject *known = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LOKp(LL)", names, &damage_start, &known,
                                     &digest, &digest_only, &max_unverified, &max_record))
        return 0;
    PyObject *iterator = known ? PyObject_GetIter(known) : NULL, *item;
    if (known && !iterator) return 0;
    scanner_reset(&self->core);
    self->core.damage_start = damage_start;
    self->core.digest = digest;
    self->core.digest_only = digest_only;
    self->core.max_unverified = max_unverified;
    self->core.max_record = max_record;
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
    return !PyErr_Occurred();
}

static PyObject *Scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ScannerObject *self = (ScannerObject *)alloc(type, 0);
    if (self && begin(self, args, kwargs)) return (PyObject *)self;
    Py_XDECREF((PyObject *)self);
    return NULL;
}

static PyObject *Scanner_reset(ScannerObject *self, PyObject *args, PyObject *kwargs) {
    if (!enter(self)) return NULL;
    int good = begin(self, args, kwargs);
    self->busy = 0;
    if (!good) return NULL;
    Py_RETURN_NONE;
}

static void Scanner_dealloc(ScannerObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    scanner_close(&self->core);
    packed_close(&self->packed);
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

/* One chunk of a part, as aboard.events.scanner.Chunk. */
static PyObject *new_chunk(const packed *p, const part *one, size_t from, size_t count) {
    const int64_t *steps = p->steps.at + one->start + from;
    int64_t even[] = {steps[0], 0};
    int is_even = rise_evenly(steps, count, &even[1]);
    int is_points = one->width != PLACE;
    const sketch *sketched = is_points ? p->sketches.at + one->sketches + from / CHUNK_VALUES : NULL;
    return Py_BuildValue("ny#y#y#y#", (Py_ssize_t)count, (char *)(is_even ? even : steps),
                         (Py_ssize_t)(is_even ? sizeof even : count * sizeof *steps),
                         (char *)(p->walls.at + one->start + from),
                         (Py_ssize_t)(count * sizeof *p->walls.at), (char *)payload_at(p, one, from),
                         (Py_ssize_t)(count * one->width), is_points ? (char *)sketched : "",
                         (Py_ssize_t)(is_points ? sizeof *sketched : 0));
}

static PyObject *new_chunks(const packed *p, const part *one) {
    PyObject *chunks = PyList_New(0);
    for (size_t from = 0; chunks && from < one->count; from += CHUNK_VALUES) {
        size_t left = one->count - from;
        PyObject *chunk = new_chunk(p, one, from, left < CHUNK_VALUES ? left : CHUNK_VALUES);
        if (!chunk || PyList_Append(chunks, chunk) < 0) Py_CLEAR(chunks);
        Py_XDECREF(chunk);
    }
    return chunks;
}

static PyObject *last_value(const packed *p, const part *one) {
    if (one->width == PLACE) Py_RETURN_NONE;
    return PyFloat_FromDouble(value_of(payload_at(p, one, 0), one->width, one->count - 1));
}

/* Every part that has values, as aboard.events.scanner.Part. */
static PyObject *new_parts(const packed *p) {
    PyObject *parts = PyList_New(0);
    for (size_t i = 0; parts && i < p->parts.count; i++) {
        const part *one = &p->parts.at[i];
        if (!one->count) continue;
        size_t first = one->start, last = first + one->count - 1;
        PyObject *item = Py_BuildValue(
            "nnLLLLNddNLN", (Py_ssize_t)one->series, (Py_ssize_t)one->count,
            (long long)p->steps.at[first], (long long)p->steps.at[last], (long long)one->min_step,
            (long long)one->max_step, PyBool_FromLong(one->rising), p->walls.at[last],
            one->max_wall, last_value(p, one), (long long)one->rows, new_chunks(p, one));
        if (!item || PyList_Append(parts, item) < 0) Py_CLEAR(parts);
        Py_XDECREF(item);
    }
    return parts;
}

typedef int (*packing)(scanner *, packed *);

static PyObject *take_parts(ScannerObject *self, packing pack) {
    int good;
    Py_BEGIN_ALLOW_THREADS
    good = pack(&self->core, &self->packed);
    Py_END_ALLOW_THREADS
    return good ? new_parts(&self->packed) : PyErr_NoMemory();
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
    scanner *s = &self->core;
    PyObject *points, *pointers = NULL, *damage = NULL, *result = NULL;
    if (!enter(self)) return NULL;
    points = take_parts(self, pack_points);
    if (points) pointers = take_parts(self, pack_pointers);
    if (pointers) damage = take_damage(s);
    if (damage)
        result = Py_BuildValue("OOOK", points, pointers, damage, (unsigned long long)s->events);
    if (result) s->points.count = s->pointers.count = s->damage.count = s->events = 0;
    Py_XDECREF(points);
    Py_XDECREF(pointers);
    Py_XDECREF(damage);
    self->busy = 0;
    return result;
}

static PyObject *new_series(const scanner *s, const series *one) {
    const char *metadata = one->has_metadata ? (char *)s->arena.at + one->metadata : NULL;
    return Py_BuildValue("y#y#iiNN", (char *)s->arena.at + one->tag, (Py_ssize_t)one->tag_length,
                         metadata, (Py_ssize_t)one->metadata_length, one->origin, one->class,
                         PyBool_FromLong(one->wide), PyBool_FromLong(one->unsure));
}

static PyObject *Scanner_series(ScannerObject *self, PyObject *args) {
    const scanner *s = &self->core;
    PyObject *numbers = NULL;
    if (!PyArg_ParseTuple(args, "|O!", &PyList_Type, &numbers) || !enter(self)) return NULL;
    Py_ssize_t count = numbers ? PyList_Size(numbers) : (Py_ssize_t)s->series.count;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        Py_ssize_t number = numbers ? PyLong_AsSsize_t(PyList_GetItem(numbers, i)) : i;
        PyObject *item = NULL;
        if (number >= 0 && number < (Py_ssize_t)s->series.count)
            item = new_series(s, &s->series.at[number]);
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "there is no series of that number");
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
static PyObject *get_again(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->core.again);
}
static PyObject *get_digest(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(self->core.digest & INT64_MAX);
}
static PyObject *get_first_wall(ScannerObject *self, void *Py_UNUSED(closure)) {
    if (!self->core.has_events) Py_RETURN_NONE;
    return PyFloat_FromDouble(self->core.first_wall);
}
static PyObject *get_series_count(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->core.series.count);
}
static PyObject *get_pending(ScannerObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->core.points.count + self->core.pointers.count);
}

static PyMethodDef Scanner_methods[] = {
    {"scan", (PyCFunction)Scanner_scan, METH_VARARGS, "scan(block, offset, end) -> next offset"},
    {"reset", (PyCFunction)(void (*)(void))Scanner_reset, METH_VARARGS | METH_KEYWORDS,
     "reset(...): begin another file; the arguments are those of the type"},
    {"take", (PyCFunction)Scanner_take, METH_NOARGS, "take() -> (points, pointers, damage, events) since the last take"},
    {"series", (PyCFunction)Scanner_series, METH_VARARGS,
     "series(numbers=all) -> [(tag, metadata, origin, class, wide, unsure)]"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Scanner_fields[] = {
    {"want", (getter)get_want, NULL, "bytes the next block must hold", NULL},
    {"damage_start", (getter)get_damage_start, NULL, "where open damage began, or -1", NULL},
    {"hold", (getter)get_hold, NULL, "first record that runs past the end, or -1", NULL},
    {"again", (getter)get_again, NULL, "whether to go on even from the end of the file", NULL},
    {"digest", (getter)get_digest, NULL, "of the places and checksums of all good records", NULL},
    {"first_wall", (getter)get_first_wall, NULL, "wall time of the first event, or None", NULL},
    {"series_count", (getter)get_series_count, NULL, "how many series there are", NULL},
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

static PyObject *module_sketch(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_ssize_t count;
    Py_buffer steps, walls, payload;
    sketch out;
    if (!PyArg_ParseTuple(args, "ny*y*y*", &count, &steps, &walls, &payload)) return NULL;
    int is_even = steps.len != 8 * count;
    int good = count > 0 && count <= PY_SSIZE_T_MAX / 8 && walls.len == 8 * count &&
               (!is_even || steps.len == 16) &&
               (payload.len == NARROW * count || payload.len == WIDE * count);
    if (good) {
        point_columns columns = {
            .count = (size_t)count,
            .width = payload.len == NARROW * count ? NARROW : WIDE,
            .steps = steps.buf,
            .walls = walls.buf,
            .payload = payload.buf,
            .is_even = is_even,
        };
        sketch_points(&columns, 0, &out);
    } else {
        PyErr_SetString(PyExc_ValueError, "the columns are not those of a chunk of points");
    }
    PyBuffer_Release(&steps);
    PyBuffer_Release(&walls);
    PyBuffer_Release(&payload);
    return good ? PyBytes_FromStringAndSize((char *)&out, sizeof out) : NULL;
}

/* The only chunk of a part, for the index; its sketch only if it has at least `least` values. */
static PyObject *small_chunk(const packed *p, const part *one, Py_ssize_t least) {
    const int64_t *steps = p->steps.at + one->start;
    int64_t even[] = {steps[0], 0};
    size_t count = one->count;
    int is_even = rise_evenly(steps, count, &even[1]);
    int is_sketched = one->width != PLACE && (Py_ssize_t)count >= least;
    return Py_BuildValue(
        "ny#y#y#y#", (Py_ssize_t)count,
        is_sketched ? (char *)(p->sketches.at + one->sketches) : "",
        (Py_ssize_t)(is_sketched ? sizeof(sketch) : 0), (char *)(is_even ? even : steps),
        (Py_ssize_t)(is_even ? sizeof even : count * sizeof *steps),
        (char *)(p->walls.at + one->start), (Py_ssize_t)(count * sizeof *p->walls.at),
        (char *)payload_at(p, one, 0), (Py_ssize_t)(count * one->width));
}

/* A part of a small file, as the index stores it: the columns of its segment and of its chunk, both
 * without ids. None if it is unusual: its tag is not UTF-8, or it needs more than one chunk. */
static PyObject *small_part(const scanner *s, const packed *p, const part *one, Py_ssize_t least) {
    const series *of = &s->series.at[one->series];
    size_t last = one->start + one->count - 1;
    if (one->count > CHUNK_VALUES) Py_RETURN_NONE;
    PyObject *tag =
        PyUnicode_DecodeUTF8((char *)s->arena.at + of->tag, (Py_ssize_t)of->tag_length, NULL);
    if (!tag) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *chunk = small_chunk(p, one, least), *segment;
    const char *metadata = of->has_metadata ? (char *)s->arena.at + of->metadata : NULL;
    int class = of->unsure ? CLASS_UNKNOWN : of->class;
    if (one->width == PLACE) {
        segment = Py_BuildValue(
            "Niiiy#nLLiLddOLOOOOOOOOO", tag, 1, of->origin, class, metadata,
            (Py_ssize_t)of->metadata_length, (Py_ssize_t)one->count, (long long)one->min_step,
            (long long)one->max_step, one->rising, (long long)p->steps.at[last], one->max_wall,
            p->walls.at[last], Py_None, (long long)one->rows, Py_None, Py_None, Py_None, Py_None,
            Py_None, Py_None, Py_None, Py_None, Py_None);
    } else {
        const sketch *k = p->sketches.at + one->sketches;
        segment = Py_BuildValue(
            "Niiiy#nLLiLdddLLddLdLdLL", tag, 0, of->origin, class, metadata,
            (Py_ssize_t)of->metadata_length, (Py_ssize_t)one->count, (long long)one->min_step,
            (long long)one->max_step, one->rising, (long long)p->steps.at[last], one->max_wall,
            p->walls.at[last], value_of(payload_at(p, one, 0), one->width, one->count - 1),
            (long long)one->rows, (long long)k->size, k->first_wall, k->low, (long long)k->low_step,
            k->high, (long long)k->high_step, k->total, (long long)k->nans,
            (long long)k->infinities);
    }
    PyObject *pair = chunk && segment ? PyTuple_Pack(2, segment, chunk) : NULL;
    Py_XDECREF(chunk);
    Py_XDECREF(segment);
    return pair;
}

/* Append the parts of a small file to a list; 0 on an error, -1 if one is unusual. */
static int add_small_parts(PyObject *list, const scanner *s, const packed *p, Py_ssize_t least) {
    for (size_t i = 1; i < p->parts.count; i++) { /* the first belongs to no series */
        if (!p->parts.at[i].count) continue;
        PyObject *item = small_part(s, p, &p->parts.at[i], least);
        int is_unusual = item == Py_None;
        int good = item && !is_unusual && !PyList_Append(list, item);
        Py_XDECREF(item);
        if (!good) return is_unusual ? -1 : 0;
    }
    return 1;
}

/* What the index stores of a small file; None if it cannot be read, is damaged or unusual. */
static PyObject *new_small(small_file *file, packed *p, Py_ssize_t least) {
    scanner *s = &file->core;
    if (!file->is_good) Py_RETURN_NONE;
    PyObject *parts = PyList_New(0);
    size_t records = 0;
    int good = parts != NULL;
    for (int form = 0; good == 1 && form < 2; form++) {
        if ((form ? pack_pointers : pack_points)(s, p)) {
            good = add_small_parts(parts, s, p, least);
        } else {
            PyErr_NoMemory();
            good = 0;
        }
    }
    if (good != 1) {
        Py_XDECREF(parts);
        if (!good) return NULL;
        Py_RETURN_NONE;
    }
    for (size_t i = 1; i < p->parts.count; i++) records += p->parts.at[i].count; /* the last packed */
    return Py_BuildValue("KnnLKNy#N", (unsigned long long)s->events, (Py_ssize_t)s->points.count,
                         (Py_ssize_t)records, (long long)file->reached,
                         (unsigned long long)(s->digest & INT64_MAX),
                         s->has_events ? PyFloat_FromDouble(s->first_wall) : Py_NewRef(Py_None),
                         (char *)file->tail, (Py_ssize_t)file->tail_length, parts);
}

/* Take (path, size) of each file; return how many were taken, or -1. */
static Py_ssize_t take_paths(PyObject *given, small_file *files, Py_ssize_t count, int64_t *most) {
    for (Py_ssize_t i = 0; i < count; i++) {
        long long size;
        PyObject *item = PyList_GetItem(given, i);
        if (!item || !PyArg_ParseTuple(item, "yL;files must hold (path, size)", &files[i].path, &size))
            return -1;
        if (size < 0 || size > MAX_UNVERIFIED) {
            PyErr_SetString(PyExc_ValueError, "this is not the size of a small file");
            return -1;
        }
        files[i].size = size;
        if (size > *most) *most = size;
    }
    return count;
}

static PyObject *module_scan_files(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given, *results = NULL;
    int64_t most = 1;
    Py_ssize_t least;
    packed p = {0};
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &given, &least)) return NULL;
    Py_INCREF(given);
    Py_ssize_t count = PyList_Size(given);
    small_file *files = calloc((size_t)count + 1, sizeof *files);
    uint8_t *room = NULL;
    if (!files) {
        PyErr_NoMemory();
    } else if (take_paths(given, files, count, &most) >= 0) {
        room = malloc((size_t)most);
        if (!room) PyErr_NoMemory();
    }
    if (room) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++) scan_small(&files[i], room);
        Py_END_ALLOW_THREADS
        results = PyList_New(0);
        for (Py_ssize_t i = 0; results && i < count; i++) {
            PyObject *item = new_small(&files[i], &p, least);
            if (!item || PyList_Append(results, item) < 0) Py_CLEAR(results);
            Py_XDECREF(item);
            scanner_close(&files[i].core);
            scanner_open(&files[i].core);
        }
        for (Py_ssize_t i = 0; i < count; i++) scanner_close(&files[i].core);
    }
    packed_close(&p);
    free(room);
    free(files);
    Py_DECREF(given);
    return results;
}

static PyMethodDef module_methods[] = {
    {"scan_files", module_scan_files, METH_VARARGS,
     "scan_files([(path, size)], least) -> [the fields of scanner.SmallFile, or None]"},
    {"sketch", module_sketch, METH_VARARGS, "sketch(size, steps, walls, payload) -> bytes"},
    {"crc32c", module_crc32c, METH_VARARGS, "crc32c(data) -> int"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    scan_init();
    PyObject *type = PyType_FromSpec(&Scanner_spec);
    if (!type) return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed ? failed : PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_scanner", "The C core of aboard.events.scanner.", 0,
    module_methods, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__scanner(void) { return PyModuleDef_Init(&module); }

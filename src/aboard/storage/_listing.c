/* Reads many directories in one call, or looks whether known ones changed, in several threads
 * without the GIL. A directory that is unusual, because it cannot be read, contains links, or has
 * names that are not UTF-8, is left to Python. */
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK (32 << 10)
#define STACK (256 << 10)
#define MOST_THREADS 16

/* As the kernel returns it; glibc's readdir would allocate memory for each directory. */
typedef struct {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
} kernel_entry;

typedef struct {
    size_t name; /* where it begins in the names of its directory */
    int is_file;
    int64_t size;
    unsigned long long time, inode;
} found;

typedef struct {
    const char *path;
    const char *known; /* the names of files in it, joined with '/' */
    struct stat status;
    int is_good;
    char *names;
    size_t names_used, names_size;
    found *entries;
    size_t count, entries_size;
} directory;

static void *grown(void *old, size_t *size, size_t needed, size_t width) {
    if (needed <= *size) return old;
    size_t more = *size ? 2 * *size : 16;
    while (more < needed) more *= 2;
    void *room = realloc(old, more * width);
    if (room) *size = more;
    return room;
}

static unsigned long long nanoseconds(struct timespec time) {
    return (unsigned long long)time.tv_sec * 1000000000 + (unsigned long long)time.tv_nsec;
}

static int add(directory *here, const char *name, const struct stat *status) {
    size_t length = strlen(name) + 1;
    char *names = grown(here->names, &here->names_size, here->names_used + length, 1);
    if (!names) return 0;
    here->names = names;
    found *entries = grown(here->entries, &here->entries_size, here->count + 1, sizeof(found));
    if (!entries) return 0;
    here->entries = entries;
    memcpy(names + here->names_used, name, length);
    found *one = &entries[here->count++];
    *one = (found){.name = here->names_used, .is_file = status != NULL};
    if (status) {
        one->size = status->st_size;
        one->time = nanoseconds(status->st_mtim);
        one->inode = status->st_ino;
    }
    here->names_used += length;
    return 1;
}

/* Whether 64 bits hold the nanoseconds since 1970. */
static int is_usual(struct timespec time) {
    return time.tv_sec >= 0 && time.tv_sec < INT64_MAX / 1000000000;
}

/* Return whether an entry needs nothing more than what was added. */
static int take(directory *here, int descriptor, const kernel_entry *entry, const char *part) {
    const char *name = entry->name;
    struct stat status;
    if (!strcmp(name, ".") || !strcmp(name, "..")) return 1;
    if (entry->type == DT_LNK) return 0;
    if (entry->type == DT_DIR) return add(here, name, NULL);
    int is_listed = strstr(name, part) != NULL;
    if (entry->type != DT_UNKNOWN && (entry->type != DT_REG || !is_listed)) return 1;
    if (fstatat(descriptor, name, &status, AT_SYMLINK_NOFOLLOW)) return errno == ENOENT;
    if (S_ISLNK(status.st_mode)) return 0;
    if (S_ISDIR(status.st_mode)) return add(here, name, NULL);
    if (!S_ISREG(status.st_mode) || !is_listed) return 1;
    return is_usual(status.st_mtim) && add(here, name, &status);
}

static int compare(const void *left, const void *right, void *names) {
    return strcmp((char *)names + ((found *)left)->name, (char *)names + ((found *)right)->name);
}

static void read_directory(directory *here, const char *part, char *block) {
    int descriptor = open(here->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) return;
    long got;
    int good = 1;
    while (good && (got = syscall(SYS_getdents64, descriptor, block, BLOCK)) != 0) {
        good = got > 0;
        for (long at = 0; good && at < got;) {
            kernel_entry *entry = (kernel_entry *)(block + at);
            good = take(here, descriptor, entry, part);
            at += entry->length;
        }
    }
    close(descriptor);
    if (here->count) qsort_r(here->entries, here->count, sizeof(found), compare, here->names);
    here->is_good = good;
}

/* Describe a directory and the files in it that are known, without reading it. */
static void look_at_directory(directory *here, const char *part, char *block) {
    (void)part;
    struct stat *own = &here->status, status;
    size_t length = strlen(here->path), more;
    if (stat(here->path, own) || !S_ISDIR(own->st_mode) || length >= BLOCK / 2) return;
    if (!is_usual(own->st_mtim) || !is_usual(own->st_ctim)) return;
    memcpy(block, here->path, length);
    block[length++] = '/';
    for (const char *name = here->known; *name; name += more + (name[more] == '/')) {
        more = (size_t)(strchrnul(name, '/') - name);
        if (more >= BLOCK / 2) return;
        memcpy(block + length, name, more);
        block[length + more] = 0;
        if (stat(block, &status)) {
            if (errno != ENOENT) return; /* else it was just deleted */
        } else if (S_ISREG(status.st_mode)) {
            if (!is_usual(status.st_mtim) || !add(here, block + length, &status)) return;
        }
    }
    here->is_good = 1;
}

/* What the threads of a call share. They take directories in order. */
typedef struct {
    directory *all;
    Py_ssize_t count, taken;
    Py_ssize_t left; /* entries that may still be read */
    void (*act)(directory *, const char *part, char *block);
    const char *part;
} work;

static void *work_on(void *given) {
    work *shared = given;
    _Alignas(kernel_entry) char block[BLOCK];
    while (__atomic_load_n(&shared->left, __ATOMIC_RELAXED) > 0) {
        Py_ssize_t place = __atomic_fetch_add(&shared->taken, 1, __ATOMIC_RELAXED);
        if (place >= shared->count) break;
        directory *one = &shared->all[place];
        shared->act(one, shared->part, block);
        __atomic_fetch_sub(&shared->left, (Py_ssize_t)one->count + 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Work in this thread and in up to `others` more, which get no signals. */
static void work_together(work *shared, int others) {
    pthread_t threads[MOST_THREADS];
    pthread_attr_t attributes;
    sigset_t all, before;
    int started = 0;
    if (others > 0 && !pthread_attr_init(&attributes)) {
        pthread_attr_setstacksize(&attributes, STACK);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (started < others && started < MOST_THREADS &&
               !pthread_create(&threads[started], &attributes, work_on, shared))
            started++;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    work_on(shared);
    while (started) pthread_join(threads[--started], NULL);
}

/* A tuple of name, size and version. */
static PyObject *new_file(const directory *here, const found *one) {
    char version[40];
    snprintf(version, sizeof version, "%llx.%llx", one->time, one->inode);
    return Py_BuildValue("sLs", here->names + one->name, (long long)one->size, version);
}

/* Describe the files, and name the directories, both sorted; None if a name is not UTF-8. */
static PyObject *contents(const directory *here) {
    PyObject *files = PyList_New(0), *below = PyList_New(0);
    for (size_t i = 0; files && below && i < here->count; i++) {
        const found *one = &here->entries[i];
        PyObject *item =
            one->is_file ? new_file(here, one) : PyUnicode_FromString(here->names + one->name);
        int failed = !item || PyList_Append(one->is_file ? files : below, item);
        Py_XDECREF(item);
        if (failed) break;
    }
    PyObject *pair = PyErr_Occurred() ? NULL : PyTuple_Pack(2, files, below);
    Py_XDECREF(files);
    Py_XDECREF(below);
    if (pair || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return pair;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* The mark of a directory, its device, and its files; None if a name is not UTF-8. */
static PyObject *sight(const directory *here) {
    char mark[60];
    snprintf(mark, sizeof mark, "%llx.%llx.%llx", nanoseconds(here->status.st_mtim),
             nanoseconds(here->status.st_ctim), (unsigned long long)here->status.st_ino);
    PyObject *held = contents(here);
    if (!held || held == Py_None) return held;
    PyObject *files = PyTuple_GetItem(held, 0); /* lent */
    PyObject *result =
        Py_BuildValue("sKO", mark, (unsigned long long)here->status.st_dev, files);
    Py_DECREF(held);
    return result;
}

/* Work on directories, and return what was made of each that was reached; `all` is released. */
static PyObject *results_of(work *shared, int threads, PyObject *(*made)(const directory *)) {
    Py_BEGIN_ALLOW_THREADS;
    work_together(shared, threads - 1);
    Py_END_ALLOW_THREADS;
    Py_ssize_t reached = shared->taken < shared->count ? shared->taken : shared->count;
    PyObject *result = PyList_New(reached);
    for (Py_ssize_t i = 0; result && i < reached; i++) {
        PyObject *one = shared->all[i].is_good ? made(&shared->all[i]) : Py_NewRef(Py_None);
        if (!one || PyList_SetItem(result, i, one)) Py_CLEAR(result);
    }
    for (Py_ssize_t i = 0; i < shared->count; i++) {
        free(shared->all[i].names);
        free(shared->all[i].entries);
    }
    return result;
}

/* Return the bytes of an item, which it keeps; NULL with an exception. */
static const char *bytes_of(PyObject *item) {
    char *bytes = NULL;
    return item && !PyBytes_AsStringAndSize(item, &bytes, NULL) ? bytes : NULL;
}

static PyObject *read_directories(PyObject *module, PyObject *args) {
    PyObject *paths, *result = NULL;
    work shared = {.act = read_directory};
    int threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!yni", &PyList_Type, &paths, &shared.part, &shared.left,
                          &threads))
        return NULL;
    shared.count = PyList_Size(paths);
    shared.all = calloc((size_t)shared.count + 1, sizeof(directory));
    if (!shared.all) return PyErr_NoMemory();
    int good = 1;
    for (Py_ssize_t i = 0; good && i < shared.count; i++) /* the caller holds the list */
        good = (shared.all[i].path = bytes_of(PyList_GetItem(paths, i))) != NULL;
    if (good) result = results_of(&shared, threads, contents);
    free(shared.all);
    return result;
}

static PyObject *look_at_directories(PyObject *module, PyObject *args) {
    PyObject *known, *result = NULL;
    work shared = {.act = look_at_directory, .left = PY_SSIZE_T_MAX};
    int threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!i", &PyList_Type, &known, &threads)) return NULL;
    shared.count = PyList_Size(known);
    shared.all = calloc((size_t)shared.count + 1, sizeof(directory));
    if (!shared.all) return PyErr_NoMemory();
    int good = 1;
    for (Py_ssize_t i = 0; good && i < shared.count; i++) {
        PyObject *item = PyList_GetItem(known, i); /* lent, as its parts are */
        directory *one = &shared.all[i];
        good = PyArg_ParseTuple(item, "yy;known must hold (path, names)", &one->path, &one->known);
    }
    if (good) result = results_of(&shared, threads, sight);
    free(shared.all);
    return result;
}

static PyMethodDef methods[] = {
    {"read_directories", read_directories, METH_VARARGS,
     "Read directories by path, until they have many entries; describe files with a part in their "
     "names."},
    {"look_at_directories", look_at_directories, METH_VARARGS,
     "Describe directories and files in them, given paths and names joined with '/'."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_listing", "Directories, many at a time.", 0, methods, NULL, NULL, NULL,
    NULL};

PyMODINIT_FUNC PyInit__listing(void) { return PyModule_Create(&module); }

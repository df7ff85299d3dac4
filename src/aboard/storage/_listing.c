/* Reads many directories in one call, in several threads without the GIL. A directory that is unusual, because it
 * cannot be read, contains links, or has names that are not UTF-8, is left to Python. */
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
    int64_t size, time;
    uint64_t inode;
} found;

typedef struct {
    const char *path;
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
        one->time = (int64_t)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
        one->inode = status->st_ino;
    }
    here->names_used += length;
    return 1;
}

/* Whether a time is one of which 64 bits hold the nanoseconds since 1970. */
static int has_usual_time(const struct stat *status) {
    int64_t seconds = status->st_mtim.tv_sec;
    return seconds >= 0 && seconds < INT64_MAX / 1000000000;
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
    return has_usual_time(&status) && add(here, name, &status);
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
    here->is_good = good;
}

static int compare(const void *left, const void *right, void *names) {
    return strcmp((char *)names + ((found *)left)->name, (char *)names + ((found *)right)->name);
}

/* What the threads of a call share. They take directories in order. */
typedef struct {
    directory *all;
    Py_ssize_t count, taken;
    Py_ssize_t left; /* entries that may still be read */
    const char *part;
} work;

static void *work_on(void *given) {
    work *shared = given;
    _Alignas(kernel_entry) char block[BLOCK];
    while (__atomic_load_n(&shared->left, __ATOMIC_RELAXED) > 0) {
        Py_ssize_t place = __atomic_fetch_add(&shared->taken, 1, __ATOMIC_RELAXED);
        if (place >= shared->count) break;
        directory *one = &shared->all[place];
        read_directory(one, shared->part, block);
        if (one->count) qsort_r(one->entries, one->count, sizeof(found), compare, one->names);
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

/* The names of directories, and a tuple of name, size and version for each file; both sorted. */
static PyObject *contents(const directory *here) {
    PyObject *files = PyList_New(0), *below = PyList_New(0);
    for (size_t i = 0; files && below && i < here->count; i++) {
        const found *one = &here->entries[i];
        const char *name = here->names + one->name;
        PyObject *list = below, *item;
        if (one->is_file) {
            char version[40];
            snprintf(version, sizeof version, "%llx.%llx", (unsigned long long)one->time,
                     (unsigned long long)one->inode);
            list = files;
            item = Py_BuildValue("sLs", name, (long long)one->size, version);
        } else {
            item = PyUnicode_FromString(name);
        }
        int failed = !item || PyList_Append(list, item);
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

static PyObject *read_directories(PyObject *module, PyObject *args) {
    PyObject *paths, *result = NULL;
    const char *part;
    int threads;
    Py_ssize_t most;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!yni", &PyList_Type, &paths, &part, &most, &threads)) return NULL;
    Py_ssize_t count = PyList_Size(paths);
    directory *all = calloc(count ? (size_t)count : 1, sizeof *all);
    if (!all) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *path = PyList_GetItem(paths, i); /* lent; the caller holds the list */
        char *bytes;
        if (PyBytes_AsStringAndSize(path, &bytes, NULL)) goto done;
        all[i].path = bytes;
    }
    work shared = {.all = all, .count = count, .left = most, .part = part};
    Py_BEGIN_ALLOW_THREADS;
    work_together(&shared, threads - 1);
    Py_END_ALLOW_THREADS;
    Py_ssize_t reached = shared.taken < count ? shared.taken : count;
    result = PyList_New(reached);
    for (Py_ssize_t i = 0; result && i < reached; i++) {
        PyObject *one = all[i].is_good ? contents(&all[i]) : Py_NewRef(Py_None);
        if (!one || PyList_SetItem(result, i, one)) Py_CLEAR(result);
    }
done:
    for (Py_ssize_t i = 0; i < count; i++) {
        free(all[i].names);
        free(all[i].entries);
    }
    free(all);
    return result;
}

static PyMethodDef methods[] = {
    {"read_directories", read_directories, METH_VARARGS,
     "Read directories by path, until they have many entries; describe files with a part in their names."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_listing", "Directories, many at a time.", 0, methods, NULL, NULL, NULL,
    NULL};

PyMODINIT_FUNC PyInit__listing(void) { return PyModule_Create(&module); }

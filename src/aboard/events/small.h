/* A small file, read and scanned at once. Many of them take one call from Python, without the
 * scanner for files that grow. */
#ifndef ABOARD_SMALL_H
#define ABOARD_SMALL_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scan.h"

#define TAIL_BYTES 256

/* It is good if it holds nothing but good records; another, which is rare, is read in blocks. */
typedef struct {
    const char *path;
    int64_t size;
    scanner core;
    int64_t reached;
    uint8_t tail[TAIL_BYTES]; /* the last bytes before what was reached */
    size_t tail_length;
    int is_good;
} small_file;

static int read_whole(const char *path, uint8_t *room, size_t size, size_t *got) {
    int good = 0;
    struct stat status;
    /* Without O_NONBLOCK a named pipe in a log directory would block forever. */
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) return 0;
    if (!fstat(descriptor, &status) && S_ISREG(status.st_mode)) {
        ssize_t more = 1;
        for (*got = 0; *got < size && more > 0; *got += more > 0 ? (size_t)more : 0)
            more = pread(descriptor, room + *got, size - *got, (off_t)*got);
        good = more >= 0;
    }
    close(descriptor);
    return good;
}

static void scan_small(small_file *file, uint8_t *room) {
    size_t got = 0;
    scanner *s = &file->core;
    scanner_open(s);
    if (!read_whole(file->path, room, (size_t)file->size, &got)) return;
    file->reached = scan_block(s, room, got, 0, (int64_t)got);
    if (file->reached < 0 || s->again || s->hold >= 0 || s->damage_start >= 0 || s->damage.count)
        return;
    file->tail_length = file->reached < TAIL_BYTES ? (size_t)file->reached : TAIL_BYTES;
    memcpy(file->tail, room + file->reached - file->tail_length, file->tail_length);
    file->is_good = 1;
}

#endif

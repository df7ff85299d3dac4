/* Fuzzes the scanning core alone, without Python.
 *
 * The input defines how to build an event file, how to deliver it, and when memory
 * runs out. The scan is compared with a simple reference, and with scans of the same
 * bytes delivered in every other way.
 *
 * Input: FORM BLOCKS CUT_LOW CUT_HIGH body. With bit 0 of FORM clear the body is
 * the file. Otherwise it is a list of pieces, `OP SIZE_LOW SIZE_HIGH bytes`, each
 * framed with correct checksums and then left intact or damaged, depending on OP;
 * random bytes would hardly ever pass the checksums and reach the parser.
 */
#define _GNU_SOURCE /* memfd_create */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t allocations_left = SIZE_MAX;

static int out_of_memory(void) {
    if (allocations_left == SIZE_MAX) return 0;
    return allocations_left == 0 || --allocations_left == 0;
}
static void *scarce_malloc(size_t n) { return out_of_memory() ? NULL : malloc(n); }
static void *scarce_realloc(void *p, size_t n) { return out_of_memory() ? NULL : realloc(p, n); }

/* So short that most records take the shortcut for long records. */
#define STRIDE 16
#define LONG_LENGTH 8
#define CHUNK_VALUES 8 /* so that a part has several */
#define malloc scarce_malloc
#define realloc scarce_realloc
#include "../src/aboard/events/pack.h"
#include "../src/aboard/events/small.h"
#undef malloc
#undef realloc

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                              \
        }                                                                         \
    } while (0)

/* ---- The file ------------------------------------------------------------- */

enum { FRAMED = 1, SCARCE = 2 };                  /* bits of FORM */
enum { BARE = 4, FLIPPED = 5, CUT = 6, WRONG = 7 }; /* OP & 7; below BARE a piece stays intact */

typedef struct {
    uint8_t *at;
    size_t size;
} octets;

typedef struct {
    const uint8_t *at;
    size_t left;
} input;

typedef struct {
    octets bytes;
    size_t *whole; /* offsets of the intact records */
    size_t whole_count;
} file;

static unsigned next_byte(input *in) {
    if (!in->left) return 0;
    in->left--;
    return *in->at++;
}

static unsigned next_short(input *in) {
    unsigned low = next_byte(in);
    return low | next_byte(in) << 8;
}

static void store(uint8_t *p, uint64_t value, int width) {
    for (int i = 0; i < width; i++) p[i] = (uint8_t)(value >> 8 * i);
}

static size_t put_record(uint8_t *out, const uint8_t *data, size_t n) {
    store(out, n, 8);
    store(out + 8, masked(crc32c(out, 8)), 4);
    memcpy(out + HEADER, data, n);
    store(out + HEADER + n, masked(crc32c(out + HEADER, n)), 4);
    return n + OVERHEAD;
}

/* The smallest piece is 3 bytes of input and becomes a record of 16. */
static file build(input *in, int framed) {
    file f = {{malloc(in->left * 6 + OVERHEAD), 0}, malloc((in->left + 1) * sizeof(size_t)), 0};
    if (!framed) {
        memcpy(f.bytes.at, in->at, in->left);
        f.bytes.size = in->left;
        return f;
    }
    while (in->left) {
        unsigned op = next_byte(in), where = op >> 3;
        size_t size = next_short(in);
        if (size > in->left) size = in->left;
        uint8_t *out = f.bytes.at + f.bytes.size;
        size_t total;
        if ((op & 7) == BARE) {
            memcpy(out, in->at, total = size);
        } else {
            total = put_record(out, in->at, size);
            size_t place = total * where / 32;
            if ((op & 7) < BARE) f.whole[f.whole_count++] = f.bytes.size;
            if ((op & 7) == FLIPPED) out[place] ^= (uint8_t)(1 << where % 8);
            if ((op & 7) == CUT) total = place;
            if ((op & 7) == WRONG) store(out + HEADER + size, where, 4);
        }
        in->at += size;
        in->left -= size;
        f.bytes.size += total;
    }
    return f;
}

/* ---- The result of a scan ------------------------------------------------- */

typedef struct {
    uint64_t points, pointers, damage, series; /* digests, order included */
    uint64_t point_count, pointer_count, damage_count, events;
    int64_t offset, damage_start; /* where to continue after the file has grown */
    int64_t damage_end;
} outcome;

static void fold(uint64_t *digest, const void *value, size_t n) {
    const uint8_t *p = value;
    while (n--) *digest = (*digest ^ *p++) * 0x100000001b3u;
}
#define FOLD(digest, value) fold(&(digest), &(value), sizeof(value))

/* ---- Sketches -------------------------------------------------------------- */

static int is_same_value(double a, double b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

/* Whether all steps after a point are greater than its step. */
static int is_left(const point_columns *c, size_t place) {
    for (size_t after = place + 1; after < c->count; after++)
        if (step_at(c, after) <= step_at(c, place)) return 0;
    return 1;
}

/* The sketch from its definition: first the points that are left, then the first of each kind. */
static sketch plain_sketch(const point_columns *c) {
    sketch out = {.low = NAN, .high = NAN};
    double totals[4] = {0};
    for (size_t i = 0; i < c->count; i++) {
        if (!is_left(c, i)) continue;
        double value = value_of(c->payload, c->width, i), wall = wall_at(c, i);
        int64_t step = step_at(c, i);
        if (!out.size++) out.first_step = step, out.first_wall = wall, out.first = value;
        out.last_step = step, out.last_wall = wall, out.last = value;
        if (isnan(value)) {
            if (!out.nans++) out.nan_step = step, out.nan_wall = wall;
        } else if (isinf(value) && value > 0) {
            if (!out.ups++) out.up_step = step, out.up_wall = wall;
        } else if (isinf(value)) {
            if (!out.downs++) out.down_step = step, out.down_wall = wall;
        } else {
            if (isnan(out.low) || value < out.low) out.low = value, out.low_step = step, out.low_wall = wall;
            if (isnan(out.high) || value > out.high) out.high = value, out.high_step = step, out.high_wall = wall;
        }
    }
    out.infinities = out.ups + out.downs;
    for (size_t i = c->count; i--;)
        if (is_left(c, i) && isfinite(value_of(c->payload, c->width, i)))
            totals[i & 3] += value_of(c->payload, c->width, i);
    out.total = (totals[0] + totals[1]) + (totals[2] + totals[3]);
    return out;
}

static void check_sketch(const point_columns *c, const sketch *got) {
    sketch plain = plain_sketch(c);
    CHECK(got->size == plain.size && got->size > 0);
    CHECK(got->first_step == plain.first_step && got->last_step == plain.last_step);
    CHECK(got->low_step == plain.low_step && got->high_step == plain.high_step);
    CHECK(got->nans == plain.nans && got->ups == plain.ups && got->downs == plain.downs);
    CHECK(got->infinities == plain.infinities);
    CHECK(got->nan_step == plain.nan_step && got->up_step == plain.up_step && got->down_step == plain.down_step);
    const double pairs[][2] = {
        {got->first, plain.first}, {got->last, plain.last}, {got->low, plain.low}, {got->high, plain.high},
        {got->total, plain.total}, {got->first_wall, plain.first_wall}, {got->last_wall, plain.last_wall},
        {got->low_wall, plain.low_wall}, {got->high_wall, plain.high_wall}, {got->nan_wall, plain.nan_wall},
        {got->up_wall, plain.up_wall}, {got->down_wall, plain.down_wall},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) CHECK(is_same_value(pairs[i][0], pairs[i][1]));
}

static uint8_t *copied(const uint8_t *at, size_t n) {
    return memcpy(malloc(n ? n : 1), at, n);
}

/* Columns of any bytes, as Python passes them; each in a copy of exactly its size. */
static void sketch_input(const uint8_t *data, size_t size, unsigned form) {
    size_t width = form & 4 ? WIDE : NARROW, is_even = form >> 3 & 1;
    size_t count = size / (16 + width);
    if (is_even) count = size < 16 ? 0 : (size - 16) / (8 + width);
    if (!count || (is_even && count == 2)) return; /* two steps are as long as a first and a stride */
    size_t steps = is_even ? 16 : 8 * count;
    uint8_t *columns[] = {copied(data, steps), copied(data + steps, 8 * count),
                          copied(data + steps + 8 * count, width * count)};
    point_columns c = {count, width, columns[0], columns[1], columns[2], (int)is_even};
    sketch got;
    sketch_points(&c, 0, &got);
    check_sketch(&c, &got);
    int rises = 1;
    for (size_t i = 1; i < count; i++) rises &= step_at(&c, i) > step_at(&c, i - 1);
    if (rises) {
        sketch_points(&c, 1, &got);
        check_sketch(&c, &got);
    }
    for (size_t i = 0; i < 3; i++) free(columns[i]);
}

static void check_sketches(const packed *p) {
    for (size_t i = 0; i < p->parts.count; i++) {
        const part *one = &p->parts.at[i];
        size_t number = one->sketches;
        for (size_t from = 0; from < one->count; from += CHUNK_VALUES) {
            size_t left = one->count - from;
            point_columns c = {.count = left < CHUNK_VALUES ? left : CHUNK_VALUES,
                               .width = one->width,
                               .steps = (uint8_t *)(p->steps.at + one->start + from),
                               .walls = (uint8_t *)(p->walls.at + one->start + from),
                               .payload = payload_at(p, one, from)};
            CHECK(number < p->sketches.count);
            check_sketch(&c, &p->sketches.at[number++]);
        }
    }
}

/* Compare packed columns with the values they were packed from, in file order. */
static void check_packed(const packed *p, size_t values) {
    size_t start = 0;
    int64_t stride = 0;
    for (size_t i = 0; i < p->parts.count; i++) {
        const part *one = &p->parts.at[i];
        CHECK(one->start == start && one->width <= p->room);
        start += one->count;
        for (size_t from = 0; from < one->count; from += CHUNK_VALUES) {
            size_t left = one->count - from, n = left < CHUNK_VALUES ? left : CHUNK_VALUES;
            const int64_t *steps = p->steps.at + one->start + from;
            if (rise_evenly(steps, n, &stride)) CHECK(steps[0] + stride * (int64_t)(n - 1) == steps[n - 1]);
        }
        for (size_t k = one->start; k < start; k++) {
            CHECK(p->steps.at[k] >= one->min_step && p->steps.at[k] <= one->max_step);
            CHECK(!(p->walls.at[k] > one->max_wall));
            CHECK(!one->rising || k == one->start || p->steps.at[k] > p->steps.at[k - 1]);
        }
    }
    CHECK(start == values);
}

static void take_packed(scanner *s) {
    packed points = {0}, pointers = {0};
    CHECK(pack_points(s, &points) && pack_pointers(s, &pointers));
    check_packed(&points, s->points.count);
    check_sketches(&points);
    check_packed(&pointers, s->pointers.count);
    CHECK(pack_points(s, &points)); /* which series belong to which parts is set by the last call */
    size_t *taken = calloc(s->series.count + 1, sizeof *taken);
    for (size_t i = 0; i < s->points.count; i++) {
        const point *one = &s->points.at[i];
        const part *mine = part_of(&points, s, one->series);
        size_t place = taken[one->series]++;
        uint8_t *payload = payload_at(&points, mine, place);
        double wide;
        float narrow;
        memcpy(&wide, payload, mine->width == WIDE ? WIDE : 0);
        memcpy(&narrow, payload, mine->width == NARROW ? NARROW : 0);
        double value = mine->width == WIDE ? wide : narrow;
        CHECK(points.steps.at[mine->start + place] == one->step);
        CHECK(value == one->value || (value != value && one->value != one->value));
    }
    free(taken);
    packed_close(&points);
    packed_close(&pointers);
}

/* Take what was scanned, as the Python type does, and check every part of it. */
static void take(scanner *s, const octets *whole, outcome *out) {
    for (size_t i = 0; i < s->points.count; i++) {
        const point *p = &s->points.at[i];
        CHECK(p->series >= 0 && (size_t)p->series < s->series.count);
        FOLD(out->points, p->series);
        FOLD(out->points, p->step);
        FOLD(out->points, p->wall);
        FOLD(out->points, p->value);
    }
    for (size_t i = 0; i < s->pointers.count; i++) {
        const pointer *p = &s->pointers.at[i];
        CHECK(p->series >= -1 && p->series < (int64_t)s->series.count);
        CHECK(p->offset >= 0 && p->length >= 0);
        CHECK((uint64_t)(p->offset + p->length + OVERHEAD) <= whole->size);
        CHECK(load64(whole->at + p->offset) == (uint64_t)p->length);
        FOLD(out->pointers, p->series);
        FOLD(out->pointers, p->step);
        FOLD(out->pointers, p->wall);
        FOLD(out->pointers, p->offset);
        FOLD(out->pointers, p->rows);
    }
    for (size_t i = 0; i < s->damage.count; i++) {
        const damage_span *d = &s->damage.at[i];
        CHECK(d->length > 0 && d->offset >= out->damage_end);
        out->damage_end = d->offset + d->length;
        CHECK((uint64_t)out->damage_end <= whole->size);
        FOLD(out->damage, d->offset);
        FOLD(out->damage, d->length);
    }
    take_packed(s);
    out->point_count += s->points.count;
    out->pointer_count += s->pointers.count;
    out->damage_count += s->damage.count;
    out->events += s->events;
    s->points.count = s->pointers.count = s->damage.count = 0;
    s->events = 0;
}

static void take_series(const scanner *s, outcome *out) {
    if (s->has_events) FOLD(out->series, s->first_wall);
    for (size_t i = 0; i < s->series.count; i++) {
        const series *one = &s->series.at[i];
        CHECK(one->tag + one->tag_length <= s->arena.count);
        CHECK(one->metadata + one->metadata_length <= s->arena.count);
        CHECK(one->class <= CLASS_OTHER && one->next < (int64_t)s->series.count);
        fold(&out->series, s->arena.at + one->tag, one->tag_length);
        fold(&out->series, s->arena.at + one->metadata, one->metadata_length);
        FOLD(out->series, one->class);
        FOLD(out->series, one->origin);
        FOLD(out->series, one->wide);
        FOLD(out->series, one->has_metadata);
    }
}

static void check_same(const outcome *a, const outcome *b) {
    CHECK(a->events == b->events);
    CHECK(a->point_count == b->point_count && a->points == b->points);
    CHECK(a->pointer_count == b->pointer_count && a->pointers == b->pointers);
    CHECK(a->damage_count == b->damage_count && a->damage == b->damage);
    CHECK(a->offset == b->offset && a->damage_start == b->damage_start);
}

/* Scan a copy, so that the sanitizer detects a read beyond either end of the block. */
static int64_t scan_copy(scanner *s, const uint8_t *at, size_t n, int64_t base, int64_t end) {
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, at, n);
    int64_t next = scan_block(s, copy, n, base, end);
    free(copy);
    return next;
}

static void finish(const scanner *s, int64_t reached, outcome *out) {
    out->offset = s->hold >= 0 ? s->hold : reached;
    out->damage_start = s->damage_start < out->offset ? s->damage_start : -1;
}

static outcome scan_whole(const octets *whole) {
    outcome out = {0};
    scanner s;
    scanner_open(&s);
    int64_t reached = scan_copy(&s, whole->at, whole->size, 0, (int64_t)whole->size);
    CHECK(reached >= 0);
    CHECK(whole->size < HEADER ? reached == 0 : whole->size - (uint64_t)reached < HEADER);
    /* An empty value takes two bytes of a record, and its pointer forty-eight. */
    CHECK(s.points.room + s.pointers.room <= 2 * (whole->size + 256));
    CHECK(s.arena.room <= 4 * (whole->size + 256) && s.series.room <= 2 * (whole->size + 256));
    take(&s, whole, &out);
    take_series(&s, &out);
    finish(&s, reached, &out);
    scanner_close(&s);
    return out;
}

/* ---- Other ways to deliver the same bytes --------------------------------- */

/* The state of a scanner that an index keeps: its tags and their classes. */
static scanner continued(const scanner *old, int64_t damage_start) {
    scanner s;
    scanner_open(&s);
    s.damage_start = damage_start;
    for (size_t i = 0; i < old->series.count; i++) {
        const series *one = &old->series.at[i];
        const uint8_t *tag = old->arena.at + one->tag;
        int32_t number = series_of(&s, (span){tag, tag + one->tag_length});
        CHECK(number == (int32_t)i);
        s.series.at[number].class = one->class;
    }
    return s;
}

/* Block by block, with sizes from `random`, like scan_blocks in scanner.py.
 * A few times, continue with a new scanner, as after a crash. Records from `long_from` on are long. */
static outcome scan_in_blocks(const octets *whole, uint32_t random, int restarts,
                              int64_t long_from) {
    outcome out = {0};
    scanner s;
    scanner_open(&s);
    s.max_unverified = long_from;
    int64_t end = (int64_t)whole->size, start = 0, reached, size;
    for (;;) {
        random = random * 1664525u + 1013904223u;
        size = 1 + (random >> 16) % (random >> 31 ? 24 : 400);
        if (size < s.want && s.want <= end - start) size = s.want;
        if (size > end - start) size = end - start;
        reached = scan_copy(&s, whole->at + start, (size_t)size, start, end);
        CHECK(s.again || (reached >= start && reached <= start + size));
        if (start + size >= end && !s.again) break;
        CHECK(s.again || reached > start || s.want > size);
        start = reached;
        if (random >> 8 & 1) take(&s, whole, &out);
        if (restarts && random >> 9 & 1) {
            restarts--;
            take(&s, whole, &out);
            finish(&s, reached, &out);
            scanner next = continued(&s, out.damage_start);
            scanner_close(&s);
            s = next;
            start = out.offset;
        }
    }
    take(&s, whole, &out);
    take_series(&s, &out);
    finish(&s, reached, &out);
    scanner_close(&s);
    return out;
}

/* First a part of the file, then the rest after the file has grown. */
static outcome scan_grown(const octets *whole, size_t first) {
    outcome out = {0};
    scanner s;
    scanner_open(&s);
    finish(&s, scan_copy(&s, whole->at, first, 0, (int64_t)first), &out);
    take(&s, whole, &out);
    scanner next = continued(&s, out.damage_start);
    scanner_close(&s);
    int64_t end = (int64_t)whole->size, start = out.offset;
    int64_t reached = scan_copy(&next, whole->at + start, (size_t)(end - start), start, end);
    take(&next, whole, &out);
    finish(&next, reached, &out);
    scanner_close(&next);
    return out;
}

/* Read a small file that was listed with `size` bytes; it may have grown or shrunk since. */
static void scan_as_small(const octets *whole, size_t size, size_t allocations) {
    char path[32];
    int held = memfd_create("events", MFD_CLOEXEC);
    CHECK(held >= 0 && write(held, whole->at, whole->size) == (ssize_t)whole->size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", held);
    uint8_t *room = malloc(size ? size : 1);
    small_file one = {.path = path, .size = (int64_t)size};
    allocations_left = allocations;
    scan_small(&one, room);
    allocations_left = SIZE_MAX;
    octets seen = {whole->at, size < whole->size ? size : whole->size};
    outcome all = scan_whole(&seen);
    if (one.is_good) {
        outcome out = {0};
        CHECK(one.reached == all.offset && all.damage_start < 0 && !all.damage_count);
        CHECK(one.tail_length == ((size_t)one.reached < TAIL_BYTES ? (size_t)one.reached : TAIL_BYTES));
        CHECK(!memcmp(one.tail, whole->at + one.reached - one.tail_length, one.tail_length));
        take(&one.core, &seen, &out);
        take_series(&one.core, &out);
        finish(&one.core, one.reached, &out);
        check_same(&all, &out);
        CHECK(all.series == out.series);
    } else {
        int is_clean = all.damage_start < 0 && !all.damage_count && seen.size - (size_t)all.offset < HEADER;
        CHECK(allocations != SIZE_MAX || !is_clean);
    }
    scanner_close(&one.core);
    free(room);
    close(held);
}

/* When memory runs out, the scan must report it and stay consistent; there is no other guarantee. */
static void scan_scarcely(const octets *whole, size_t allocations) {
    outcome out = {0};
    scanner s;
    scanner_open(&s);
    allocations_left = allocations;
    int64_t reached = scan_copy(&s, whole->at, whole->size, 0, (int64_t)whole->size);
    packed points = {0};
    pack_points(&s, &points);
    packed_close(&points);
    allocations_left = SIZE_MAX;
    CHECK(reached >= -1);
    take(&s, whole, &out);
    take_series(&s, &out);
    scanner_close(&s);
}

/* ---- The reference --------------------------------------------------------- */

/* The length of the valid record at `at` with its framing, or 0 if there is none. */
static size_t record_at(const octets *bytes, size_t at) {
    if (bytes->size - at < OVERHEAD) return 0;
    const uint8_t *p = bytes->at + at;
    uint64_t length = load64(p);
    if (length > bytes->size - at - OVERHEAD) return 0;
    if (load32(p + 8) != masked(~crc_software(~0u, p, 8))) return 0;
    if (load32(p + HEADER + length) != masked(~crc_software(~0u, p + HEADER, length))) return 0;
    return length + OVERHEAD;
}

typedef struct {
    outcome sum;  /* of the records, each scanned alone */
    int nested;   /* whether one starts inside another: a growing file is ambiguous then */
    size_t found; /* number of intact records that were found */
} reference;

static void add_gap(outcome *sum, size_t from, size_t to) {
    int64_t offset = (int64_t)from, length = (int64_t)(to - from);
    if (!length) return;
    FOLD(sum->damage, offset);
    FOLD(sum->damage, length);
    sum->damage_count++;
}

static reference refer(const file *f) {
    reference r = {{0}, 0, 0};
    size_t at = 0, last = 0, next_whole = 0, total;
    while (at < f->bytes.size) {
        if (!(total = record_at(&f->bytes, at))) {
            at++;
            continue;
        }
        /* An intact record is missed only if a valid one around it covers it. */
        for (; next_whole < f->whole_count && f->whole[next_whole] <= at; next_whole++) {
            CHECK(f->whole[next_whole] == at || f->whole[next_whole] < last);
            r.found += f->whole[next_whole] == at;
        }
        add_gap(&r.sum, last, at);
        octets record = {f->bytes.at + at, total};
        outcome alone = scan_whole(&record);
        CHECK(alone.events + alone.damage_count == 1 && alone.offset == (int64_t)total);
        r.sum.events += alone.events;
        r.sum.point_count += alone.point_count;
        r.sum.pointer_count += alone.pointer_count;
        if (alone.damage_count) add_gap(&r.sum, at, at + total);
        for (size_t inside = 1; inside < total; inside++)
            r.nested |= record_at(&f->bytes, at + inside) > 0;
        last = at += total;
    }
    for (; next_whole < f->whole_count; next_whole++) CHECK(f->whole[next_whole] < last);
    r.sum.damage_start = f->bytes.size >= HEADER && f->bytes.size - HEADER >= last ? (int64_t)last : -1;
    return r;
}

static void check_against(const outcome *scanned, const reference *r) {
    const outcome *sum = &r->sum;
    CHECK(scanned->events == sum->events && scanned->events <= INT64_MAX);
    CHECK(scanned->point_count + scanned->pointer_count == sum->point_count + sum->pointer_count);
    CHECK(scanned->damage_count == sum->damage_count && scanned->damage == sum->damage);
    CHECK(scanned->damage_start < 0 || scanned->damage_start == sum->damage_start);
    CHECK(scanned->events + scanned->damage_count >= r->found);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    scan_init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    unsigned form = next_byte(&in), blocks = next_byte(&in), cut = next_short(&in);
    const uint8_t *body = in.at;
    file f = build(&in, form & FRAMED);
    CHECK(crc_hardware(form, f.bytes.at, f.bytes.size) ==
          crc_software(form, f.bytes.at, f.bytes.size));

    outcome whole = scan_whole(&f.bytes);
    reference expected = refer(&f);
    check_against(&whole, &expected);

    outcome pieces = scan_in_blocks(&f.bytes, blocks, 0, MAX_UNVERIFIED);
    check_same(&whole, &pieces);
    CHECK(whole.series == pieces.series);
    outcome restarted = scan_in_blocks(&f.bytes, blocks, 8, MAX_UNVERIFIED);
    check_same(&whole, &restarted);
    outcome verified = scan_in_blocks(&f.bytes, blocks, 0, 16 + cut % 256);
    outcome again = scan_in_blocks(&f.bytes, blocks + 1, 0, 16 + cut % 256);
    check_same(&verified, &again);
    if (!expected.nested) {
        outcome grown = scan_grown(&f.bytes, f.bytes.size * cut / 65535);
        check_same(&whole, &grown);
    }
    scan_as_small(&f.bytes, (f.bytes.size + 64) * cut / 65535, SIZE_MAX);
    sketch_input(body, size < 4 ? 0 : size - 4, form);
    if (form & SCARCE) {
        scan_scarcely(&f.bytes, form >> 2);
        scan_as_small(&f.bytes, f.bytes.size, form >> 2);
    }
    free(f.bytes.at);
    free(f.whole);
    return 0;
}

/* The scanning core: a block of an event file in, columns out.
 *
 * Independent of Python, files and memory limits, so that it can be fuzzed
 * alone. The Python twin is fallback.py; tests check that both return the
 * same results.
 *
 * Terms. A *record* is a framed Event: u64 length | u32 masked crc of the
 * length | data | u32 masked crc of the data. A *series* is a tag of this
 * file, numbered in order of first appearance. A *point* is one scalar of a
 * series; every other value is a *pointer* to the record that holds it.
 * *Damage* is a span of bytes in which no good record starts.
 */
#ifndef ABOARD_SCAN_H
#define ABOARD_SCAN_H

#include "wire.h"

#define HEADER 12
#define OVERHEAD 16
/* Protobuf cannot serialize a message of 2 GiB or more: such a length is damage. */
#define MAX_LENGTH 0x7fffffffu
/* Checksums of records up to this length are quickly computed. */
#ifndef LONG_LENGTH
#define LONG_LENGTH 4096
#endif
/* A longer record is held in memory only after its checksum, computed piece by piece, is verified. */
#define MAX_UNVERIFIED (16 << 20)
/* A longer one is never held: it is skipped, and counts as damage. */
#define MAX_RECORD (256 << 20)
/* Longer shapes are not remembered; see `learn`. */
#define MAX_SHAPE 4096

/* ---- Series, points, pointers -------------------------------------------- */

/* Where a series' values live in their Event: the number of the field in
 * Summary.Value, or one of two kinds of Event that become a tag of their own. */
enum { SIMPLE = 2, OLD_HISTOGRAM = 3, IMAGE = 4, HISTOGRAM = 5, AUDIO = 6, TENSOR = 8, GRAPH = 104, RUN_METADATA = 108 };

/* What the metadata of a series says of it. */
enum { CLASS_UNKNOWN = 0, CLASS_SCALAR = 1, CLASS_OTHER = 2 };

typedef struct {
    size_t tag, metadata, shape; /* places in the arena */
    uint32_t tag_length, metadata_length;
    uint32_t shape_length; /* see `recognise`; 0 where none is known */
    uint32_t hash;
    int32_t next; /* the series seen after this one: usually right again */
    uint8_t class, origin, wide, has_metadata;
    uint8_t unsure; /* a single number was read while the class was unknown */
    uint32_t packing; /* of use only within a take; see pack.h */
} series;

typedef struct {
    int64_t step;
    double wall, value;
    int32_t series;
} point;

typedef struct {
    int64_t step, offset, length, rows;
    double wall;
    int32_t series;
} pointer;

typedef struct {
    int64_t offset, length;
} damage_span;

/* For what is small and runs for every record: compilers do not inline what is called twice. */
#define INLINE static inline __attribute__((always_inline))

#define GROWING(type) \
    struct {          \
        type *at;     \
        size_t count, room; \
    }

typedef struct {
    GROWING(series) series;
    GROWING(uint8_t) arena;
    GROWING(point) points;
    GROWING(pointer) pointers;
    GROWING(damage_span) damage;
    int32_t *slots; /* hash table of series numbers, -1 where free */
    size_t slot_count;
    int32_t last; /* the series of the previous value */
    uint64_t events;
    double first_wall; /* of the first event */
    int has_events;
    int64_t damage_start; /* where the damage now being searched began, or -1 */
    int64_t hold; /* the first record of the search that runs past the end, or -1 */
    int64_t want; /* bytes the next block must hold to make progress */
    crc_marks marks; /* of this block, once there is damage in it */
    int distrusts;   /* whether there is: the damage may be crafted to cost time */
    int has_damage;  /* whether there was any in the file, so far */
    uint64_t digest; /* of the places and checksums of all good records */
    int digest_only; /* whether only the digest is needed */
    int again;       /* whether to go on from what was returned, even from the end of the file */
    int64_t max_unverified, max_record;
    /* The long record that is being verified, or -1; its end, and the state of its checksum. */
    int64_t long_start, long_end;
    uint32_t long_state;
    int long_is_held; /* whether `hold` is this record */
    int64_t verified; /* the last long record that was found good, or -1 */
    int64_t doubted;  /* before here, in a bad long record, no other one is looked for */
} scanner;

/* Small, since each of many small files that are scanned in one call has its own lists. */
#define FIRST_ROOM 16

/* Make room for `more` elements; memory only ever doubles, never per record. */
static int grow(void **at, size_t *room, size_t count, size_t more, size_t size) {
    if (count + more <= *room) return 1;
    size_t wanted = *room ? *room * 2 : FIRST_ROOM;
    while (wanted < count + more) wanted *= 2;
    void *bigger = realloc(*at, wanted * size);
    if (!bigger) return 0;
    *at = bigger;
    *room = wanted;
    return 1;
}
#define ROOM(list, more) \
    grow((void **)&(list).at, &(list).room, (list).count, (more), sizeof *(list).at)

static void scanner_open(scanner *s) {
    memset(s, 0, sizeof *s);
    s->damage_start = s->hold = -1;
    s->long_start = s->verified = s->doubted = -1;
    s->max_unverified = MAX_UNVERIFIED;
    s->max_record = MAX_RECORD;
    s->last = -1;
}

static void scanner_close(scanner *s) {
    free(s->series.at);
    free(s->arena.at);
    free(s->points.at);
    free(s->pointers.at);
    free(s->damage.at);
    free(s->slots);
    free(s->marks.at);
}

/* Begin another file. The room for points is kept, since it is large and takes long to get. */
static void scanner_reset(scanner *s) {
    point *at = s->points.at;
    size_t room = s->points.room;
    s->points.at = NULL;
    scanner_close(s);
    scanner_open(s);
    s->points.at = at;
    s->points.room = room;
}

static int keep_bytes(scanner *s, span bytes, size_t *place, uint32_t *length) {
    size_t n = (size_t)(bytes.end - bytes.at);
    if (!ROOM(s->arena, n + 1)) return 0;
    *place = s->arena.count;
    *length = (uint32_t)n;
    if (n) memcpy(s->arena.at + s->arena.count, bytes.at, n);
    s->arena.count += n;
    return 1;
}

/* Keep a message whole, as its pieces one behind the other are. */
static int keep_pieces(scanner *s, pieces message, size_t *place, uint32_t *length) {
    field f;
    uint32_t more;
    size_t behind;
    if (!keep_bytes(s, message.piece, place, length)) return 0;
    while (next_field(&message.rest, &f) > 0)
        if (f.key == message.key) {
            if (!keep_bytes(s, f.bytes, &behind, &more)) return 0;
            *length += more;
        }
    return 1;
}

static uint32_t hash_of(const uint8_t *p, size_t n) {
    uint64_t h = n * 0x9e3779b97f4a7c15u;
    for (; n >= 8; n -= 8, p += 8) h = (h ^ load64(p)) * 0xff51afd7ed558ccdu, h ^= h >> 32;
    uint64_t rest = 0;
    while (n--) rest = rest << 8 | *p++;
    h = (h ^ rest) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h ^ h >> 32);
}

static int is_tag(const scanner *s, int32_t number, const uint8_t *tag, size_t n) {
    const series *one = &s->series.at[number];
    /* An empty tag may have no address, which memcmp must not be given. */
    return one->tag_length == n && (!n || memcmp(s->arena.at + one->tag, tag, n) == 0);
}

static int rehash(scanner *s) {
    size_t count = s->slot_count ? s->slot_count * 2 : 64;
    int32_t *slots = malloc(count * sizeof *slots);
    if (!slots) return 0;
    for (size_t i = 0; i < count; i++) slots[i] = -1;
    for (size_t i = 0; i < s->series.count; i++) {
        size_t slot = s->series.at[i].hash & (count - 1);
        while (slots[slot] >= 0) slot = (slot + 1) & (count - 1);
        slots[slot] = (int32_t)i;
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = count;
    return 1;
}

/* The number of a tag's series, made when new; -1 when out of memory. */
static int32_t series_of(scanner *s, span tag) {
    size_t n = (size_t)(tag.end - tag.at);
    if (s->last >= 0) {
        int32_t guess = s->series.at[s->last].next;
        if (guess >= 0 && is_tag(s, guess, tag.at, n)) return s->last = guess;
    }
    if (s->series.count * 2 >= s->slot_count && !rehash(s)) return -1;
    uint32_t hash = hash_of(tag.at, n);
    size_t slot = hash & (s->slot_count - 1);
    int32_t number;
    while ((number = s->slots[slot]) >= 0) {
        if (s->series.at[number].hash == hash && is_tag(s, number, tag.at, n)) break;
        slot = (slot + 1) & (s->slot_count - 1);
    }
    if (number < 0) {
        series one = {.hash = hash, .next = -1};
        if (s->series.count >= INT32_MAX || !ROOM(s->series, 1)) return -1;
        if (!keep_bytes(s, tag, &one.tag, &one.tag_length)) return -1;
        number = (int32_t)s->series.count;
        s->series.at[s->series.count++] = one;
        s->slots[slot] = number;
    }
    if (s->last >= 0) s->series.at[s->last].next = number;
    return s->last = number;
}

/* SummaryMetadata -> class; -1 when malformed. */
static int class_of(pieces metadata) {
    field f, g;
    int got, is_scalars = 0;
    uint64_t data_class = 0;
    while ((got = next_of_pieces(&metadata, &f)) > 0) {
        if (f.key == KEY(4, VARINT)) data_class = f.number;
        if (f.key != KEY(1, BYTES)) continue;
        int inner;
        while ((inner = next_field(&f.bytes, &g)) > 0)
            if (g.key == KEY(1, BYTES))
                is_scalars = g.bytes.end - g.bytes.at == 7 && memcmp(g.bytes.at, "scalars", 7) == 0;
        if (inner < 0) return -1;
    }
    if (got < 0) return -1;
    if (data_class) return data_class == 1 ? CLASS_SCALAR : CLASS_OTHER;
    return is_scalars ? CLASS_SCALAR : CLASS_OTHER;
}

/* ---- Tensors ------------------------------------------------------------- */

static double half_value(uint32_t bits, int exponent_bits) {
    /* bfloat16 is the upper half of a float; IEEE half has 5 exponent bits. */
    uint32_t out;
    if (exponent_bits == 8) {
        out = bits << 16;
    } else {
        uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
        if (exponent == 0) {
            double tiny = (double)fraction / 16777216.0;
            return sign ? -tiny : tiny;
        }
        out = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13;
    }
    float value;
    memcpy(&value, &out, 4);
    return value;
}

static double bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static double bits_to_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* How a numeric dtype is stored: its width in tensor_content, and the typed
 * field that holds it otherwise. Other dtypes have width 0: never a point. */
typedef struct {
    uint8_t width, typed, is_wide;
} dtype_info;

static dtype_info dtype_of(uint64_t dtype) {
    switch (dtype) {
    case 1: return (dtype_info){4, 5, 0};   /* float */
    case 2: return (dtype_info){8, 6, 1};   /* double */
    case 3: return (dtype_info){4, 7, 1};   /* int32 */
    case 4: return (dtype_info){1, 7, 0};   /* uint8 */
    case 5: return (dtype_info){2, 7, 0};   /* int16 */
    case 6: return (dtype_info){1, 7, 0};   /* int8 */
    case 9: return (dtype_info){8, 10, 1};  /* int64 */
    case 10: return (dtype_info){1, 11, 0}; /* bool */
    case 14: return (dtype_info){2, 13, 0}; /* bfloat16 */
    case 17: return (dtype_info){2, 7, 0};  /* uint16 */
    case 19: return (dtype_info){2, 13, 0}; /* half */
    case 22: return (dtype_info){4, 16, 1}; /* uint32 */
    case 23: return (dtype_info){8, 17, 1}; /* uint64 */
    default: return (dtype_info){0, 0, 0};
    }
}

/* The bits of one element, from either kind of storage, as a number. */
static double number_of(uint64_t dtype, uint64_t bits) {
    switch (dtype) {
    case 1: return bits_to_float((uint32_t)bits);
    case 2: return bits_to_double(bits);
    case 3: return (int32_t)bits;
    case 4: return (uint8_t)bits;
    case 5: return (int16_t)bits;
    case 6: return (int8_t)bits;
    case 9: return (double)(int64_t)bits;
    case 10: return bits != 0;
    case 14: return half_value((uint32_t)bits & 0xffff, 8);
    case 17: return (uint16_t)bits;
    case 19: return half_value((uint32_t)bits & 0xffff, 5);
    case 22: return (uint32_t)bits;
    default: return (double)bits;
    }
}

typedef struct {
    uint64_t dtype, bits;
    int64_t rows, elements; /* first dimension; -1 elements when there are too many */
    int rank, unknown;      /* whether the shape is */
    uint64_t stored; /* how many elements are stored; one may stand for all */
    const uint8_t *float_end; /* behind the bytes of the first, if it is a float */
} tensor;

static int read_shape(span shape, tensor *t) {
    field f, g;
    int got;
    while ((got = next_field(&shape, &f)) > 0) {
        if (f.key == KEY(3, VARINT)) t->unknown = f.number != 0;
        if (f.key != KEY(2, BYTES)) continue;
        int64_t size = 0;
        int inner;
        while ((inner = next_field(&f.bytes, &g)) > 0)
            if (g.key == KEY(1, VARINT)) size = (int64_t)g.number;
        if (inner < 0) return -1;
        if (t->rank++ == 0) t->rows = size;
        if (size < 0 || t->elements < 0 || (size && t->elements > MAX_LENGTH / size))
            t->elements = -1;
        else
            t->elements *= size;
    }
    return got;
}

/* Count the elements of a typed field and keep the bits of the first. */
static int read_typed(const field *f, uint32_t typed, tensor *t) {
    uint32_t wire = f->key & 7;
    if (f->key >> 3 != typed) return 0;
    uint32_t own = typed == 5 ? FIXED32 : typed == 6 ? FIXED64 : VARINT;
    if (wire == own) {
        if (t->stored++ == 0) {
            t->bits = f->number;
            if (own == FIXED32) t->float_end = f->bytes.end;
        }
        return 0;
    }
    if (wire != BYTES) return 0;
    span packed = f->bytes;
    size_t width = own == FIXED32 ? 4 : 8;
    while (packed.at < packed.end) {
        uint64_t bits;
        if (own == VARINT) {
            if (!read_varint(&packed, &bits)) return -1;
        } else {
            if ((size_t)(packed.end - packed.at) < width) return -1;
            bits = width == 4 ? load32(packed.at) : load64(packed.at);
            packed.at += width;
        }
        if (t->stored++ == 0) {
            t->bits = bits;
            if (own == FIXED32) t->float_end = packed.at;
        }
    }
    return 0;
}

static int read_tensor(pieces message, tensor *t) {
    field f;
    int got;
    span content = {0, 0};
    pieces rest = message;
    memset(t, 0, sizeof *t);
    t->elements = 1;
    t->rows = 1;
    while ((got = next_of_pieces(&rest, &f)) > 0) {
        if (f.key == KEY(1, VARINT)) t->dtype = f.number;
        if (f.key == KEY(2, BYTES) && read_shape(f.bytes, t) < 0) return -1;
        if (f.key == KEY(4, BYTES)) content = f.bytes;
    }
    if (got < 0) return -1;
    dtype_info info = dtype_of(t->dtype);
    if (t->unknown) t->elements = -1;
    if (!info.width || t->elements != 1) return 0;
    size_t n = (size_t)(content.end - content.at);
    if (n) {
        if (n != info.width) {
            t->stored = 2; /* not one element, whatever the shape says */
            return 0;
        }
        for (size_t i = n; i--;) t->bits = t->bits << 8 | content.at[i];
        t->stored = 1;
        if (t->dtype == 1) t->float_end = content.end;
        return 0;
    }
    rest = message; /* the dtype may come after the values: a second look */
    while ((got = next_of_pieces(&rest, &f)) > 0)
        if (read_typed(&f, info.typed, t) < 0) return -1;
    return got;
}

/* ---- Events -------------------------------------------------------------- */

typedef struct {
    int64_t step, offset, length;
    double wall;
} moment;

static int add_point(scanner *s, const moment *m, int32_t number, double value, int wide) {
    if (!ROOM(s->points, 1)) return -2;
    s->points.at[s->points.count++] = (point){m->step, m->wall, value, number};
    s->series.at[number].wide |= (uint8_t)wide;
    return 0;
}

static int add_pointer(scanner *s, const moment *m, int32_t number, int64_t rows) {
    if (!ROOM(s->pointers, 1)) return -2;
    s->pointers.at[s->pointers.count++] =
        (pointer){m->step, m->offset, m->length, rows, m->wall, number};
    return 0;
}

/* All of these return 0, -1 for a malformed message, -2 when out of memory. */

/* `float_end` is set behind the bytes of the value, if it is a point and a float. */
static int scan_value(scanner *s, const moment *m, span message, const uint8_t **float_end) {
    field f;
    pieces content = {{0, 0}, {0, 0}, 0}, metadata = content;
    span tag = {0, 0}, node = {0, 0};
    uint32_t simple = 0;
    int got;
    while ((got = next_field(&message, &f)) > 0) {
        switch (f.key) {
        case KEY(1, BYTES): tag = f.bytes; break;
        case KEY(7, BYTES): node = f.bytes; break;
        case KEY(9, BYTES): take_piece(&metadata, &f, message); break;
        case KEY(SIMPLE, FIXED32): simple = (uint32_t)f.number; /* fall through */
        case KEY(OLD_HISTOGRAM, BYTES):
        case KEY(IMAGE, BYTES):
        case KEY(HISTOGRAM, BYTES):
        case KEY(AUDIO, BYTES):
        case KEY(TENSOR, BYTES): take_piece(&content, &f, message); break;
        default: break;
        }
    }
    if (got < 0) return -1;
    if (tag.at == tag.end) tag = node; /* how files from before tags name a value */
    int origin = content.key == KEY(OLD_HISTOGRAM, BYTES) ? 0 : (int)(content.key >> 3);
    int class = metadata.key ? class_of(metadata) : CLASS_UNKNOWN;
    if (class < 0) return -1;
    tensor t;
    if (origin == TENSOR && read_tensor(content, &t) < 0) return -1;

    int32_t number = series_of(s, tag);
    if (number < 0) return -2;
    series *one = &s->series.at[number];
    if (!one->origin) one->origin = (uint8_t)origin;
    if (metadata.key && !one->has_metadata) {
        if (!keep_pieces(s, metadata, &one->metadata, &one->metadata_length)) return -2;
        one->has_metadata = 1;
        if (one->class == CLASS_UNKNOWN) one->class = (uint8_t)class;
        one->shape_length = 0;
    }
    switch (origin) {
    case SIMPLE:
        *float_end = content.piece.end;
        return add_point(s, m, number, bits_to_float(simple), 0);
    case IMAGE: return add_pointer(s, m, number, 3);
    case AUDIO: return add_pointer(s, m, number, 1);
    case TENSOR: break;
    default: return add_pointer(s, m, number, 0);
    }
    dtype_info info = dtype_of(t.dtype);
    int single = t.elements == 1 && t.stored <= 1 && info.width;
    if (single && one->class == CLASS_UNKNOWN) one->unsure = 1;
    if (single && (one->class == CLASS_SCALAR || (one->class == CLASS_UNKNOWN && t.rank == 0))) {
        *float_end = t.float_end;
        return add_point(s, m, number, number_of(t.dtype, t.bits), info.is_wide);
    }
    return add_pointer(s, m, number, t.rows);
}

static int scan_tagged(scanner *s, const moment *m, span tag, int origin) {
    int32_t number = series_of(s, tag);
    if (number < 0) return -2;
    series *one = &s->series.at[number];
    if (!one->origin) one->origin = (uint8_t)origin;
    if (one->class == CLASS_UNKNOWN) one->class = CLASS_OTHER;
    one->shape_length = 0;
    return add_pointer(s, m, number, 1);
}

/* ---- Shapes ----------------------------------------------------------------
 *
 * Most records are like an earlier one of their series but for the time, the step
 * and the value: wall time and step come first, then a summary whose last four
 * bytes are a float. What is between is the *shape* of the record. A record of the
 * shape that is expected next needs no parsing. */

/* Read the head of an event; the shape begins at what is returned, NULL if it has no such form. */
INLINE const uint8_t *read_head(span data, moment *m) {
    if (data.end - data.at < 16 || data.at[0] != KEY(1, FIXED64)) return NULL;
    m->wall = bits_to_double(load64(data.at + 1));
    m->step = 0;
    span rest = {data.at + 9, data.end};
    if (*rest.at == KEY(2, VARINT)) {
        uint64_t step;
        rest.at++;
        if (!read_varint(&rest, &step)) return NULL;
        m->step = (int64_t)step;
    }
    return rest.end - rest.at > 4 && *rest.at == KEY(5, BYTES) ? rest.at : NULL;
}

/* Add the point of a record that has the shape of the series expected next; 0 if it has not. */
static int recognise(scanner *s, span data, int *bad) {
    if (s->last < 0 || !s->has_events) return 0;
    int32_t guess = s->series.at[s->last].next;
    if (guess < 0) return 0;
    const series *one = &s->series.at[guess];
    moment m;
    const uint8_t *shape = one->shape_length ? read_head(data, &m) : NULL;
    if (!shape || (size_t)(data.end - 4 - shape) != one->shape_length) return 0;
    if (memcmp(shape, s->arena.at + one->shape, one->shape_length) != 0) return 0;
    s->last = guess;
    *bad = add_point(s, &m, guess, bits_to_float(load32(data.end - 4)), 0);
    return 1;
}

/* Remember the shape of an event that was parsed into one point, a float at its very end. */
static int learn(scanner *s, span data, int32_t number, const uint8_t *float_end) {
    series *one = &s->series.at[number];
    moment m;
    const uint8_t *shape = read_head(data, &m);
    if (one->shape_length || !shape || float_end != data.end) return 0;
    if (data.end - shape > MAX_SHAPE) return 0;
    /* The summary must be all that follows, or a later field might be what counts. */
    span rest = {shape + 1, data.end};
    uint64_t n;
    if (!read_varint(&rest, &n) || n != (uint64_t)(rest.end - rest.at)) return 0;
    return keep_bytes(s, (span){shape, data.end - 4}, &one->shape, &one->shape_length) ? 0 : -2;
}

static int scan_event(scanner *s, span message, int64_t offset) {
    field f;
    pieces what = {{0, 0}, {0, 0}, 0};
    moment m = {0, offset, message.end - message.at, 0.0};
    span whole = message;
    size_t points = s->points.count, pointers = s->pointers.count;
    const uint8_t *float_end = NULL;
    int got;
    while ((got = next_field(&message, &f)) > 0) {
        switch (f.key) {
        case KEY(1, FIXED64): m.wall = bits_to_double(f.number); break;
        case KEY(2, VARINT): m.step = (int64_t)f.number; break;
        case KEY(3, BYTES):
        case KEY(4, BYTES):
        case KEY(5, BYTES):
        case KEY(6, BYTES):
        case KEY(7, BYTES):
        case KEY(8, BYTES):
        case KEY(9, BYTES): take_piece(&what, &f, message); break;
        default: break;
        }
    }
    if (got < 0) return -1;
    if (!s->has_events) s->first_wall = m.wall;
    static const uint8_t graph_tag[] = "__run_graph__";
    if (what.key == KEY(5, BYTES)) {
        while ((got = next_of_pieces(&what, &f)) > 0)
            if (f.key == KEY(1, BYTES)) {
                int bad = scan_value(s, &m, f.bytes, &float_end);
                if (bad) return bad;
            }
        if (got == 0 && s->points.count == points + 1 && s->pointers.count == pointers)
            return learn(s, whole, s->points.at[points].series, float_end);
        return got;
    }
    if (what.key == KEY(4, BYTES))
        return scan_tagged(s, &m, (span){graph_tag, graph_tag + sizeof graph_tag - 1}, GRAPH);
    if (what.key == KEY(8, BYTES)) {
        span tag = {0, 0};
        while ((got = next_of_pieces(&what, &f)) > 0)
            if (f.key == KEY(1, BYTES)) tag = f.bytes;
        return got < 0 ? -1 : scan_tagged(s, &m, tag, RUN_METADATA);
    }
    return add_pointer(s, &m, -1, 0);
}

static int add_damage(scanner *s, int64_t offset, int64_t length) {
    if (!ROOM(s->damage, 1)) return 0;
    s->damage.at[s->damage.count++] = (damage_span){offset, length};
    return 1;
}

/* Whether the data of a record has the checksum behind it; -1 when out of memory.
 *
 * Where a bad header may follow another, each claiming all the rest of the block,
 * a long record's checksum is computed at a cost that does not depend on its length. */
static int has_checksum(scanner *s, const uint8_t *block, size_t start, size_t length) {
    int good = 1;
    uint32_t crc = s->distrusts && length > LONG_LENGTH
                       ? crc_of_piece(&s->marks, block, start, length, &good)
                       : crc32c(block + start, length);
    return good ? load32(block + start + length) == masked(crc) : -1;
}

static void begin_damage(scanner *s, int64_t offset) {
    if (s->damage_start < 0) s->damage_start = offset;
    s->distrusts = s->has_damage = 1;
}

/* Note that a good record starts at `offset`: if there was damage, it ends there. */
static int end_damage(scanner *s, int64_t offset, uint32_t checksum) {
    s->digest += ((uint64_t)checksum + 1) * (2 * (uint64_t)offset + 1);
    if (s->damage_start >= 0 && !add_damage(s, s->damage_start, offset - s->damage_start)) return 0;
    s->damage_start = s->hold = -1;
    return 1;
}

/* ---- Long records -----------------------------------------------------------
 *
 * A header may claim any length. What a long record claims to hold is read in blocks of
 * the usual size, of which only the checksum is kept. If it is right, the record is read
 * again, completely. If it is wrong, the search for the next good record continues
 * after the header; within the claimed length it skips other long records, so that
 * nothing is read more than a few times. */

static void begin_long(scanner *s, int64_t offset, int64_t total) {
    s->long_start = offset;
    s->long_end = offset + total;
    s->long_state = 0xffffffffu;
    s->long_is_held = s->hold < 0;
    if (s->long_is_held) s->hold = offset; /* from where a later scan must go on, till then */
}

/* Verify what the block holds of a long record, from `at` on; return where to go on, -1 when
 * out of memory. */
static int64_t scan_long(scanner *s, const uint8_t *block, size_t n, size_t at, int64_t base,
                         int64_t end) {
    int64_t start = s->long_start, left = s->long_end - 4 - base - (int64_t)at;
    if (s->long_end > end) { /* the file has become shorter */
        s->long_start = -1;
        return start;
    }
    size_t some = left < (int64_t)(n - at) ? (size_t)left : n - at;
    s->long_state = crc_add(s->long_state, block + at, some);
    at += some;
    if (n - at < 4) return base + (int64_t)at;
    uint32_t checksum = load32(block + at);
    s->long_start = -1;
    if (s->long_is_held) s->hold = -1;
    s->again = 1;
    if (checksum != masked(~s->long_state)) {
        s->doubted = s->long_end;
        begin_damage(s, start);
        return start + 1;
    }
    int64_t total = s->long_end - start;
    if (total <= s->max_record) {
        s->verified = start;
        s->want = total;
        return start;
    }
    if (!end_damage(s, start, checksum) || !add_damage(s, start, total)) return -1;
    return s->long_end;
}

/* Scan a block that starts at `base` of a file that ends at `end`.
 *
 * Returns the offset at which the next block must start, or -1 when out of
 * memory. Less than a record may be left over: it is read again. */
static int64_t scan_block(scanner *s, const uint8_t *block, size_t n, int64_t base, int64_t end) {
    size_t at = 0;
    s->want = HEADER;
    s->again = 0;
    s->marks.count = 0;
    s->distrusts = s->damage_start >= 0;
    s->has_damage |= s->distrusts;
    if (s->long_start >= 0) return scan_long(s, block, n, 0, base, end);
    for (; n - at >= HEADER; ) {
        const uint8_t *record = block + at;
        int64_t offset = base + (int64_t)at;
        uint64_t length = load64(record);
        if (length <= MAX_LENGTH && load32(record + 8) == masked(crc32c(record, 8))) {
            int64_t total = (int64_t)length + OVERHEAD;
            int is_long = total > s->max_unverified && offset != s->verified;
            int good = 0;
            if (total > end - offset) {
                /* Cut off by the end of the file. Usually the rest is still to
                 * be written; but if a good record follows, it never will be. */
                if (s->hold < 0) s->hold = offset;
            } else if (is_long) {
                if (offset >= s->doubted) {
                    begin_long(s, offset, total);
                    return scan_long(s, block, n, at + HEADER, base, end);
                }
            } else if ((uint64_t)total > n - at) {
                s->want = total;
                /* Otherwise each of many bad headers would cause another read. */
                if (s->has_damage && offset != s->verified) {
                    s->want *= 2;
                    if (s->want > end - offset) s->want = end - offset;
                }
                break;
            } else if ((good = has_checksum(s, block, at + HEADER, length)) != 0) {
                if (good < 0) return -1;
                if (!end_damage(s, offset, load32(record + HEADER + length))) return -1;
                size_t points = s->points.count, pointers = s->pointers.count;
                span data = {record + HEADER, record + HEADER + length};
                int bad = 0;
                if (!s->digest_only && !recognise(s, data, &bad)) bad = scan_event(s, data, offset);
                if (bad == -2) return -1;
                if (bad) { /* all of an event or nothing of it */
                    s->points.count = points;
                    s->pointers.count = pointers;
                    if (!add_damage(s, offset, total)) return -1;
                } else {
                    s->events++;
                    s->has_events = 1;
                }
                at += (size_t)total;
                continue;
            }
        }
        begin_damage(s, offset);
        at++;
    }
    return base + (int64_t)at;
}

#endif

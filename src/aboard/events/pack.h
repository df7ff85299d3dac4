/* What was scanned, packed: the values of each series together, in the columns of
 * which chunks are cut.
 *
 * A *part* is what one series got since the last take. Its columns are steps, wall
 * times and a *payload*: of a point its value, 32 bits wide where the series needs
 * no more; of a pointer its offset, length and rows. A *sketch* is what a few numbers
 * tell of the points of a chunk. The Python twin is in fallback.py.
 */
#ifndef ABOARD_PACK_H
#define ABOARD_PACK_H

#include <math.h>

#include "scan.h"

#ifndef CHUNK_VALUES
#define CHUNK_VALUES 4096
#endif

enum { NARROW = 4, WIDE = 8, PLACE = 24 }; /* the widths of a payload */

/* Of the points that a restart within the chunk leaves: those with no step at or below theirs
 * after them. `low` and `high` are the first of the smallest and of the largest finite values, NaN
 * if there are none; `nan`, `up` and `down` (infinities) are the first of theirs, or zero. Handed
 * out as it is; see scanner.py. */
typedef struct {
    int64_t size, first_step, last_step;
    double first_wall, last_wall, last, low;
    int64_t low_step;
    double high;
    int64_t high_step;
    double total; /* of the finite values, each four places apart added from the last to the first */
    int64_t nans, infinities, ups, downs;
    double first, low_wall, high_wall;
    int64_t nan_step;
    double nan_wall;
    int64_t up_step;
    double up_wall;
    int64_t down_step;
    double down_wall;
} sketch;

typedef struct {
    int32_t series;      /* -1 for what belongs to none */
    size_t start, count; /* its place in the columns */
    size_t width;        /* bytes of payload per value */
    size_t sketches;     /* the place of its first */
    int64_t min_step, max_step, rows;
    double max_wall; /* a NaN is not a time: minus infinity if there is no other */
    int rising;      /* whether every step is greater than the one before */
} part;

typedef struct {
    GROWING(part) parts; /* one per series that got a value */
    GROWING(int64_t) steps;
    GROWING(double) walls;
    GROWING(sketch) sketches; /* one per chunk of points */
    GROWING(uint8_t) payload; /* `room` bytes per value, of which a part uses its width */
    size_t room;
} packed;

static void packed_close(packed *p) {
    free(p->parts.at);
    free(p->steps.at);
    free(p->walls.at);
    free(p->sketches.at);
    free(p->payload.at);
}

/* Lay out the parts of values one after the other, by series: `packing` of a series is first the
 * number of its values, then the number of its part. Memory is reused. */
static int place_parts(packed *p, scanner *s, size_t orphans, size_t values, size_t room) {
    size_t start = orphans;
    p->room = room;
    p->parts.count = p->sketches.count = 0;
    if (!ROOM(p->steps, values) || !ROOM(p->walls, values) || !ROOM(p->payload, values * room) ||
        !ROOM(p->parts, 1))
        return 0;
    /* The first is for what belongs to no series. */
    p->parts.at[p->parts.count++] = (part){.series = -1, .max_wall = -INFINITY, .rising = 1};
    for (size_t i = 0; i < s->series.count; i++) {
        series *one = &s->series.at[i];
        if (!one->packing) continue;
        if (!ROOM(p->parts, 1)) return 0;
        p->parts.at[p->parts.count] =
            (part){.series = (int32_t)i, .start = start, .max_wall = -INFINITY, .rising = 1};
        start += one->packing;
        one->packing = (uint32_t)p->parts.count++;
    }
    return 1;
}

static part *part_of(const packed *p, const scanner *s, int32_t series) {
    return &p->parts.at[series < 0 ? 0 : s->series.at[series].packing];
}

static uint8_t *payload_at(const packed *p, const part *one, size_t place) {
    return p->payload.at + one->start * p->room + place * one->width;
}

/* Derive the ranges of a part from its columns. Nearly always both columns rise, and two counts,
 * of which no comparison waits for another, are all it takes. */
static void measure(const packed *p, part *one) {
    const int64_t *steps = p->steps.at + one->start;
    const double *walls = p->walls.at + one->start;
    size_t falls = 0, late = 0;
    for (size_t i = 1; i < one->count; i++) {
        falls += steps[i] <= steps[i - 1];
        late += !(walls[i] >= walls[i - 1]);
    }
    one->rising = !falls;
    one->min_step = one->max_step = steps[0];
    if (!falls) one->max_step = steps[one->count - 1];
    for (size_t i = 1; falls && i < one->count; i++) {
        if (steps[i] < one->min_step) one->min_step = steps[i];
        if (steps[i] > one->max_step) one->max_step = steps[i];
    }
    for (size_t i = late || one->count == 1 ? 0 : one->count - 1; i < one->count; i++)
        if (walls[i] > one->max_wall) one->max_wall = walls[i];
}

static void measure_parts(packed *p) {
    for (size_t i = 0; i < p->parts.count; i++)
        if (p->parts.at[i].count) measure(p, &p->parts.at[i]);
}

/* The columns of a chunk of points; of steps that rise evenly only the first and the stride. */
typedef struct {
    size_t count, width;
    const uint8_t *steps, *walls, *payload; /* of any alignment */
    int is_even;
} point_columns;

static inline int64_t step_at(const point_columns *c, size_t place) {
    int64_t step, stride;
    memcpy(&step, c->steps + (c->is_even ? 0 : 8 * place), 8);
    if (!c->is_even) return step;
    memcpy(&stride, c->steps + 8, 8);
    return (int64_t)((uint64_t)step + (uint64_t)stride * place);
}

static double wall_at(const point_columns *c, size_t place) {
    double wall;
    memcpy(&wall, c->walls + 8 * place, 8);
    return wall;
}

static inline double value_of(const uint8_t *payload, size_t width, size_t place) {
    float narrow;
    double wide;
    if (width == NARROW) return *(float *)memcpy(&narrow, payload + NARROW * place, NARROW);
    return *(double *)memcpy(&wide, payload + WIDE * place, WIDE);
}

static double sketched_value(const point_columns *c, size_t place) {
    double value = value_of(c->payload, c->width, place);
    return isnan(value) ? NAN : value; /* of one kind */
}

/* The result of a search: counts, sums and places. */
typedef struct {
    int64_t size, nans, ups, downs;
    double totals[4], low, high; /* four sums; see lanes */
    size_t first, low_at, high_at, nan_at, up_at, down_at;
} search;

/* Points in any order: from the last to the first, since later steps supersede a point. */
static inline void search_any(const point_columns *c, size_t width, search *found) {
    int64_t below = 0;
    search f = {.low = INFINITY, .high = -INFINITY};
    for (size_t i = c->count; i--;) {
        int64_t step = step_at(c, i);
        if (f.size && step >= below) continue;
        below = step;
        f.size++;
        f.first = i;
        double value = value_of(c->payload, width, i);
        if (isfinite(value)) {
            f.totals[i & 3] += value;
            if (value <= f.low) f.low = value, f.low_at = i;
            if (value >= f.high) f.high = value, f.high_at = i;
        } else if (isnan(value)) {
            f.nans++, f.nan_at = i;
        } else if (value > 0) {
            f.ups++, f.up_at = i;
        } else {
            f.downs++, f.down_at = i;
        }
    }
    *found = f;
}

/* Four of each, so that no addition or comparison waits for the one before. */
typedef struct {
    double totals[4], lows[4], highs[4];
} lanes;

INLINE void add_to_lane(lanes *l, size_t lane, double value) {
    l->totals[lane] += value;
    l->lows[lane] = value < l->lows[lane] ? value : l->lows[lane];
    l->highs[lane] = value > l->highs[lane] ? value : l->highs[lane];
}

/* The same, of points whose steps rise, as most do; 0 if a value, or a sum, is not finite. */
static inline int search_rising(const point_columns *c, size_t width, search *found) {
    search f = {.size = (int64_t)c->count, .low = INFINITY, .high = -INFINITY};
    lanes l = {{0}, {INFINITY, INFINITY, INFINITY, INFINITY},
               {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    size_t whole = c->count & ~(size_t)3;
    for (size_t lane = 0; lane < 3; lane++)
        if (whole + lane < c->count)
            add_to_lane(&l, lane, value_of(c->payload, width, whole + lane));
    for (size_t i = whole; i; i -= 4)
        for (size_t lane = 0; lane < 4; lane++)
            add_to_lane(&l, lane, value_of(c->payload, width, i - 4 + lane));
    for (size_t lane = 0; lane < 4; lane++) {
        if (!isfinite(l.totals[lane])) return 0;
        f.totals[lane] = l.totals[lane];
        if (l.lows[lane] < f.low) f.low = l.lows[lane];
        if (l.highs[lane] > f.high) f.high = l.highs[lane];
    }
    while (value_of(c->payload, width, f.low_at) != f.low) f.low_at++;
    while (value_of(c->payload, width, f.high_at) != f.high) f.high_at++;
    /* Zeros of both signs are equal. */
    f.low = value_of(c->payload, width, f.low_at);
    f.high = value_of(c->payload, width, f.high_at);
    *found = f;
    return 1;
}

/* The sketch of at least one point; `is_rising` if that is known. */
static void sketch_points(const point_columns *c, int is_rising, sketch *out) {
    search f;
    if (c->width == NARROW) {
        if (!is_rising || !search_rising(c, NARROW, &f)) search_any(c, NARROW, &f);
    } else {
        if (!is_rising || !search_rising(c, WIDE, &f)) search_any(c, WIDE, &f);
    }
    size_t last = c->count - 1;
    int has_finite = f.size > f.nans + f.ups + f.downs;
    *out = (sketch){
        .size = f.size,
        .first_step = step_at(c, f.first),
        .last_step = step_at(c, last),
        .first_wall = wall_at(c, f.first),
        .last_wall = wall_at(c, last),
        .last = sketched_value(c, last),
        .low = has_finite ? f.low : NAN,
        .low_step = has_finite ? step_at(c, f.low_at) : 0,
        .high = has_finite ? f.high : NAN,
        .high_step = has_finite ? step_at(c, f.high_at) : 0,
        .total = (f.totals[0] + f.totals[1]) + (f.totals[2] + f.totals[3]),
        .nans = f.nans,
        .infinities = f.ups + f.downs,
        .ups = f.ups,
        .downs = f.downs,
        .first = sketched_value(c, f.first),
        .low_wall = has_finite ? wall_at(c, f.low_at) : 0,
        .high_wall = has_finite ? wall_at(c, f.high_at) : 0,
        .nan_step = f.nans ? step_at(c, f.nan_at) : 0,
        .nan_wall = f.nans ? wall_at(c, f.nan_at) : 0,
        .up_step = f.ups ? step_at(c, f.up_at) : 0,
        .up_wall = f.ups ? wall_at(c, f.up_at) : 0,
        .down_step = f.downs ? step_at(c, f.down_at) : 0,
        .down_wall = f.downs ? wall_at(c, f.down_at) : 0,
    };
}

static int sketch_parts(packed *p) {
    for (size_t i = 0; i < p->parts.count; i++) {
        part *one = &p->parts.at[i];
        one->sketches = p->sketches.count;
        for (size_t from = 0; from < one->count; from += CHUNK_VALUES) {
            size_t left = one->count - from, at = one->start + from;
            point_columns columns = {
                .count = left < CHUNK_VALUES ? left : CHUNK_VALUES,
                .width = one->width,
                .steps = (uint8_t *)(p->steps.at + at),
                .walls = (uint8_t *)(p->walls.at + at),
                .payload = payload_at(p, one, from),
            };
            if (!ROOM(p->sketches, 1)) return 0;
            sketch_points(&columns, one->rising, &p->sketches.at[p->sketches.count++]);
        }
    }
    return 1;
}

static int pack_points(scanner *s, packed *p) {
    for (size_t i = 0; i < s->series.count; i++) s->series.at[i].packing = 0;
    for (size_t i = 0; i < s->points.count; i++) s->series.at[s->points.at[i].series].packing++;
    if (!place_parts(p, s, 0, s->points.count, WIDE)) return 0;
    for (size_t i = 1; i < p->parts.count; i++)
        p->parts.at[i].width = s->series.at[p->parts.at[i].series].wide ? WIDE : NARROW;
    /* Writes of bytes may change anything, as far as a compiler knows: read nothing twice. */
    const series *all = s->series.at;
    part *parts = p->parts.at;
    int64_t *steps = p->steps.at;
    double *walls = p->walls.at;
    uint8_t *payload = p->payload.at;
    for (const point *one = s->points.at, *end = one + s->points.count; one < end; one++) {
        part *mine = &parts[all[one->series].packing];
        size_t start = mine->start, place = mine->count++, width = mine->width;
        float narrow = (float)one->value;
        steps[start + place] = one->step;
        walls[start + place] = one->wall;
        if (width == WIDE) memcpy(payload + WIDE * (start + place), &one->value, WIDE);
        else memcpy(payload + WIDE * start + NARROW * place, &narrow, NARROW);
    }
    measure_parts(p);
    return sketch_parts(p);
}

static int pack_pointers(scanner *s, packed *p) {
    size_t orphans = 0;
    for (size_t i = 0; i < s->series.count; i++) s->series.at[i].packing = 0;
    for (size_t i = 0; i < s->pointers.count; i++) {
        int32_t series = s->pointers.at[i].series;
        if (series < 0) orphans++;
        else s->series.at[series].packing++;
    }
    if (!place_parts(p, s, orphans, s->pointers.count, PLACE)) return 0;
    for (size_t i = 0; i < p->parts.count; i++) p->parts.at[i].width = PLACE;
    for (size_t i = 0; i < s->pointers.count; i++) {
        const pointer *one = &s->pointers.at[i];
        /* No tensor has more rows than bytes, whatever its shape says. */
        int64_t rows = one->rows < 0 ? 0 : one->rows > one->length ? one->length : one->rows;
        int64_t row[] = {one->offset, one->length, rows};
        part *mine = part_of(p, s, one->series);
        p->steps.at[mine->start + mine->count] = one->step;
        p->walls.at[mine->start + mine->count] = one->wall;
        memcpy(payload_at(p, mine, mine->count++), row, sizeof row);
        if (rows > mine->rows) mine->rows = rows;
    }
    measure_parts(p);
    return 1;
}

/* Whether steps are evenly spaced or equal: then the first and the stride define them. */
static int rise_evenly(const int64_t *steps, size_t n, int64_t *stride) {
    if (n < 3) return 0;
    uint64_t gap = (uint64_t)steps[1] - (uint64_t)steps[0];
    for (size_t i = 1; i < n; i++)
        if (steps[i] < steps[i - 1] || (uint64_t)steps[i] - (uint64_t)steps[i - 1] != gap) return 0;
    *stride = (int64_t)gap;
    return 1;
}

#endif

/* What was scanned, packed: the values of each series together, in the columns of
 * which chunks are cut.
 *
 * A *part* is what one series got since the last take. Its columns are steps, wall
 * times and a *payload*: of a point its value, 32 bits wide where the series needs
 * no more; of a pointer its offset, length and rows. The Python twin is packing.py.
 */
#ifndef ABOARD_PACK_H
#define ABOARD_PACK_H

#include <math.h>

#include "scan.h"

#define CHUNK_VALUES 4096

enum { NARROW = 4, WIDE = 8, PLACE = 24 }; /* the widths of a payload */

typedef struct {
    size_t start, count; /* its place in the columns */
    size_t width;        /* bytes of payload per value */
    int64_t min_step, max_step, rows;
    double max_wall; /* a NaN is not a time: minus infinity if there is no other */
    int rising;      /* whether every step is greater than the one before */
} part;

typedef struct {
    GROWING(part) parts; /* one per series, the first for what belongs to none */
    GROWING(int64_t) steps;
    GROWING(double) walls;
    GROWING(uint8_t) payload; /* `room` bytes per value, of which a part uses its width */
    size_t room;
} packed;

static void packed_close(packed *p) {
    free(p->parts.at);
    free(p->steps.at);
    free(p->walls.at);
    free(p->payload.at);
}

/* Make room for so many values; memory once taken is used again for the next. */
static int make_room(packed *p, const scanner *s, size_t values, size_t room) {
    p->room = room;
    p->parts.count = 0;
    if (!ROOM(p->parts, s->series.count + 1) || !ROOM(p->steps, values) ||
        !ROOM(p->walls, values) || !ROOM(p->payload, values * room))
        return 0;
    while (p->parts.count < s->series.count + 1)
        p->parts.at[p->parts.count++] = (part){.max_wall = -INFINITY, .rising = 1};
    return 1;
}

/* Once `count` holds how much each part will get: lay the parts out, one behind the other. */
static void place_parts(packed *p) {
    size_t start = 0;
    for (size_t i = 0; i < p->parts.count; i++) {
        part *one = &p->parts.at[i];
        one->start = start;
        start += one->count;
        one->count = 0;
    }
}

static uint8_t *payload_at(const packed *p, const part *one, size_t place) {
    return p->payload.at + one->start * p->room + place * one->width;
}

/* Append a value to its part; return where its payload goes. */
static uint8_t *append(packed *p, int32_t series, int64_t step, double wall) {
    part *one = &p->parts.at[series + 1];
    size_t at = one->start + one->count;
    if (!one->count || step < one->min_step) one->min_step = step;
    if (!one->count || step > one->max_step) one->max_step = step;
    if (one->count && step <= p->steps.at[at - 1]) one->rising = 0;
    if (wall > one->max_wall) one->max_wall = wall;
    p->steps.at[at] = step;
    p->walls.at[at] = wall;
    return payload_at(p, one, one->count++);
}

static int pack_points(const scanner *s, packed *p) {
    if (!make_room(p, s, s->points.count, WIDE)) return 0;
    for (size_t i = 0; i < s->points.count; i++) p->parts.at[s->points.at[i].series + 1].count++;
    place_parts(p);
    for (size_t i = 0; i < s->series.count; i++)
        p->parts.at[i + 1].width = s->series.at[i].wide ? WIDE : NARROW;
    for (size_t i = 0; i < s->points.count; i++) {
        const point *one = &s->points.at[i];
        uint8_t *payload = append(p, one->series, one->step, one->wall);
        if (s->series.at[one->series].wide) {
            memcpy(payload, &one->value, WIDE);
        } else {
            float narrow = (float)one->value;
            memcpy(payload, &narrow, NARROW);
        }
    }
    return 1;
}

static int pack_pointers(const scanner *s, packed *p) {
    if (!make_room(p, s, s->pointers.count, PLACE)) return 0;
    for (size_t i = 0; i < s->pointers.count; i++) p->parts.at[s->pointers.at[i].series + 1].count++;
    place_parts(p);
    for (size_t i = 0; i < p->parts.count; i++) p->parts.at[i].width = PLACE;
    for (size_t i = 0; i < s->pointers.count; i++) {
        const pointer *one = &s->pointers.at[i];
        /* No tensor has more rows than bytes, whatever its shape says. */
        int64_t rows = one->rows < 0 ? 0 : one->rows > one->length ? one->length : one->rows;
        int64_t row[] = {one->offset, one->length, rows};
        memcpy(append(p, one->series, one->step, one->wall), row, sizeof row);
        part *mine = &p->parts.at[one->series + 1];
        if (rows > mine->rows) mine->rows = rows;
    }
    return 1;
}

/* Whether steps rise evenly, or not at all: then the first and the stride tell them. */
static int rise_evenly(const int64_t *steps, size_t n, int64_t *stride) {
    if (n < 3) return 0;
    uint64_t gap = (uint64_t)steps[1] - (uint64_t)steps[0];
    for (size_t i = 1; i < n; i++)
        if (steps[i] < steps[i - 1] || (uint64_t)steps[i] - (uint64_t)steps[i - 1] != gap) return 0;
    *stride = (int64_t)gap;
    return 1;
}

#endif

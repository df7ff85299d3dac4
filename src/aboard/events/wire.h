/* The wire format of protobuf: the fields of a message, one after the other. */
#ifndef ABOARD_WIRE_H
#define ABOARD_WIRE_H

#include "crc.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, GROUP = 3, GROUP_END = 4, FIXED32 = 5 };
#define MAX_GROUPS 100 /* one in another; protobuf goes no deeper */
#define KEY(field, wire) ((uint64_t)(field) << 3 | (wire))

typedef struct {
    const uint8_t *at, *end;
} span;

typedef struct {
    uint64_t key;    /* field number and wire type together */
    uint64_t number; /* of a varint, fixed32 or fixed64 */
    span bytes;      /* of a length-delimited or fixed32 field */
} field;

static int read_varint(span *s, uint64_t *out) {
    if (s->at < s->end && *s->at < 0x80) {
        *out = *s->at++;
        return 1;
    }
    uint64_t v = 0;
    for (int shift = 0; shift < 70 && s->at < s->end; shift += 7) {
        uint8_t b = *s->at++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) {
            *out = v;
            return 1;
        }
    }
    return 0;
}

/* One field of a message, or the ends of a group: 1 when read, 0 at its end, -1 when malformed. */
static int next_token(span *s, field *f) {
    if (s->at == s->end) return 0;
    if (!read_varint(s, &f->key) || f->key < 8) return -1;
    size_t left = (size_t)(s->end - s->at);
    switch (f->key & 7) {
    case VARINT:
        return read_varint(s, &f->number) ? 1 : -1;
    case FIXED64:
        if (left < 8) return -1;
        f->number = load64(s->at);
        s->at += 8;
        return 1;
    case FIXED32:
        if (left < 4) return -1;
        f->number = load32(s->at);
        f->bytes = (span){s->at, s->at + 4};
        s->at += 4;
        return 1;
    case BYTES: {
        uint64_t n;
        if (!read_varint(s, &n) || n > (uint64_t)(s->end - s->at)) return -1;
        f->bytes = (span){s->at, s->at + n};
        s->at += n;
        return 1;
    }
    case GROUP:
    case GROUP_END:
        return 1;
    default:
        return -1;
    }
}

/* Go to the end of the group that has just begun; none of the messages we know has any. */
static int skip_group(span *s, uint64_t number) {
    uint64_t open[MAX_GROUPS];
    size_t depth = 0;
    field f;
    open[depth++] = number;
    while (depth) {
        if (next_token(s, &f) <= 0) return -1;
        uint64_t wire = f.key & 7;
        if (wire == GROUP_END && open[--depth] != f.key >> 3) return -1;
        if (wire != GROUP) continue;
        if (depth == MAX_GROUPS) return -1;
        open[depth++] = f.key >> 3;
    }
    return 1;
}

/* One field of a message: 1 when read, 0 at its end, -1 when malformed. */
static int next_field(span *s, field *f) {
    int got = next_token(s, f);
    if (got <= 0 || (f->key & 7) < GROUP || (f->key & 7) == FIXED32) return got;
    return (f->key & 7) == GROUP ? skip_group(s, f->key >> 3) : -1;
}

/* A message that may be given in several fields of another, which protobuf takes together. */
typedef struct {
    span rest;    /* of the other message, behind the first piece */
    span piece;   /* what is left of the piece now read */
    uint64_t key; /* of the fields that are pieces */
} pieces;

static int next_of_pieces(pieces *p, field *f) {
    int got;
    while ((got = next_field(&p->piece, f)) == 0) {
        do {
            if ((got = next_field(&p->rest, f)) <= 0) return got;
        } while (f->key != p->key);
        p->piece = f->bytes;
    }
    return got;
}

/* Take a field for one more piece, or for the first if another field was set meanwhile. */
static void take_piece(pieces *p, const field *f, span rest) {
    if (p->key != f->key) *p = (pieces){rest, f->bytes, f->key};
}

#endif

/* CRC32C: of bytes that follow each other, and of any piece of a block at little cost.
 *
 * A *state* is what a checksum is while bytes are added to it, before it is inverted.
 * It is a polynomial over two elements, its highest power in the lowest bit, and bytes
 * act on it linearly; so the state behind a piece follows from the states before and
 * behind it, both counted from the start of the block.
 */
#ifndef ABOARD_CRC_H
#define ABOARD_CRC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u

static uint32_t crc_table[8][256];
static uint32_t crc_zeros[31]; /* what 1, 2, 4, ... zero bytes multiply a state by */

static uint32_t crc_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t power = 1u << 31; power; power >>= 1) {
        if (a & power) product ^= b;
        b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

static void crc_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = (c >> 1) ^ (POLYNOMIAL & (0u - (c & 1)));
        crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc_table[k][i] = crc_table[0][crc_table[k - 1][i] & 0xff] ^ (crc_table[k - 1][i] >> 8);
    crc_zeros[0] = 1u << (31 - 8);
    for (int k = 1; k < 31; k++) crc_zeros[k] = crc_times(crc_zeros[k - 1], crc_zeros[k - 1]);
}

static uint64_t load64(const uint8_t *p) {
    uint64_t v = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
#else
    memcpy(&v, p, 8);
#endif
    return v;
}

static uint32_t load32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t crc_software(uint32_t c, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v = load64(p) ^ c;
        c = crc_table[7][v & 0xff] ^ crc_table[6][v >> 8 & 0xff] ^ crc_table[5][v >> 16 & 0xff] ^
            crc_table[4][v >> 24 & 0xff] ^ crc_table[3][v >> 32 & 0xff] ^
            crc_table[2][v >> 40 & 0xff] ^ crc_table[1][v >> 48 & 0xff] ^ crc_table[0][v >> 56];
    }
    while (n--) c = crc_table[0][(c ^ *p++) & 0xff] ^ (c >> 8);
    return c;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t crc_hardware(uint32_t state, const uint8_t *p,
                                                               size_t n) {
    uint64_t c = state;
    for (; n >= 8; n -= 8, p += 8) c = __builtin_ia32_crc32di(c, load64(p));
    uint32_t d = (uint32_t)c;
    while (n--) d = __builtin_ia32_crc32qi(d, *p++);
    return d;
}
#define HAVE_CRC_HARDWARE __builtin_cpu_supports("sse4.2")
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t crc_hardware(uint32_t c, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) c = __crc32cd(c, load64(p));
    while (n--) c = __crc32cb(c, *p++);
    return c;
}
#define HAVE_CRC_HARDWARE 1
#else
#define crc_hardware crc_software
#define HAVE_CRC_HARDWARE 0
#endif

typedef uint32_t (*crc_function)(uint32_t, const uint8_t *, size_t);
static crc_function crc_add = crc_software;

static void scan_init(void) {
    crc_init();
    if (HAVE_CRC_HARDWARE) crc_add = crc_hardware;
}

static uint32_t crc32c(const uint8_t *p, size_t n) { return ~crc_add(0xffffffffu, p, n); }

static uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

/* ---- Any piece of a block -------------------------------------------------- */

#ifndef STRIDE
#define STRIDE 1024
#endif

/* The states at every STRIDE bytes of a block that begins with the state 0, as far as needed so
 * far; the memory is kept for the next block. */
typedef struct {
    uint32_t *at;
    size_t count, room;
} crc_marks;

/* The state at a place of the block; 0 in `good` when out of memory. */
static uint32_t crc_until(crc_marks *marks, const uint8_t *block, size_t place, int *good) {
    size_t last = place / STRIDE;
    if (last >= marks->room) {
        size_t room = marks->room ? marks->room : 256;
        while (room <= last) room *= 2;
        uint32_t *bigger = realloc(marks->at, room * sizeof *bigger);
        if (!bigger) return *good = 0;
        marks->at = bigger;
        marks->room = room;
    }
    for (; marks->count <= last; marks->count++) {
        size_t k = marks->count;
        marks->at[k] = k ? crc_add(marks->at[k - 1], block + (k - 1) * STRIDE, STRIDE) : 0;
    }
    return crc_add(marks->at[last], block + last * STRIDE, place - last * STRIDE);
}

/* The checksum of a piece, at a cost that hardly depends on its length. */
static uint32_t crc_of_piece(crc_marks *marks, const uint8_t *block, size_t start, size_t length,
                             int *good) {
    uint32_t state = 0xffffffffu ^ crc_until(marks, block, start, good);
    uint32_t until = crc_until(marks, block, start + length, good);
    for (int k = 0; length; k++, length >>= 1)
        if (length & 1) state = crc_times(crc_zeros[k], state);
    return ~(state ^ until);
}

#endif

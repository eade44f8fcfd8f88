/* Huffman decoding as ITU T.81 Annex F describes it. What makes it fast:
 * - The bytes are freed of their stuffing (FF 00) piece by piece, so that the reader takes eight at a time and looks at none.
 * - A table of 1024 entries, one for each value of the next 10 bits, gives for most coefficients run, value and length at once.
 *   A longer code, or one whose value's bits reach beyond these 10, takes a second step.
 * - One refill of 57 bits or more serves two coefficients, 26 bits each at most.
 * - Blocks outside the wanted region are read without being stored.
 */
#include "entropy.h"

#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#endif

enum {
    LOOK = 10,               /* bits that index a table */
    MCU_BYTES = 2600,        /* more than an MCU can take: 10 blocks of 64 coefficients of 26 bits, and one refill */
    PIECE_BYTES = 1 << 15,   /* of the file freed of stuffing at once: stays in the first-level cache with the tables */
    MAX_DC_BITS = 11, MAX_AC_BITS = 10 /* of a value in 8-bit baseline */
};

/* What the next bits mean. `kind`s below; `bits`: of code and value together (VALUE), else of the code alone.
 * Packed: bits | kind << 6 | run << 8 | value << 16 (signed); for MORE the value's size stands in place of the value. */
enum { LONG, VALUE, MORE, END };
#define PACK(bits, kind, run, value) ((int32_t)((uint32_t)(bits) | (kind) << 6 | (uint32_t)(run) << 8 | (uint32_t)(value) << 16))

typedef struct {
    int32_t look[1 << LOOK];
    int32_t limit[18]; /* first code of 16 bits that is longer than k bits; limit[17]: beyond all */
    int32_t offset[17]; /* added to a code of k bits it gives its symbol's place */
    uint8_t symbols[256];
    uint8_t lengths[17]; /* with symbols: what the table was made of */
    int is_dc, made;
} codes;

struct entropy {
    uint64_t window;     /* the next bits, the first one on top */
    int valid;           /* of them */
    const uint8_t *next; /* byte that comes into the window next */
    const uint8_t *ready; /* end of the bytes freed of stuffing */
    const uint8_t *source, *source_end;
    int at_marker; /* `source` stands at a marker, or at the end: nothing follows `ready` before a restart */
    int damaged;
    unsigned until_restart, restart, column;
    int last_dc[4];
    const codes *dc[4], *ac[4];
    entropy_scan scan;
    codes tables[8];
    uint8_t bytes[2 * PIECE_BYTES + MCU_BYTES];
};

static const uint8_t natural[64 + 16] = {
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, /* a run beyond the block: damaged, told afterwards */
};

entropy *entropy_new(void) { return calloc(1, sizeof(entropy)); }

void entropy_free(entropy *e) { free(e); }

int entropy_damaged(const entropy *e) { return e->damaged; }

const uint8_t *entropy_rest(const entropy *e) { return e->source; }

/* T.81 F.2.2.1: values of `size` bits; those whose first bit is 0 are negative. */
static inline int extend(uint32_t bits, int size) {
    return (int)bits + ((int)(bits >> (size - 1)) - 1) * ((1 << size) - 1);
}

static int make_codes(codes *t, entropy_codes from, int is_dc) {
    if (!from.lengths || !from.symbols) return -1;
    if (t->made && t->is_dc == is_dc && !memcmp(t->lengths, from.lengths, 17) && !memcmp(t->symbols, from.symbols, 256))
        return 0; /* files of one source share their tables */
    t->made = 0;
    memcpy(t->lengths, from.lengths, 17);
    memcpy(t->symbols, from.symbols, 256);
    memset(t->look, 0, sizeof t->look);
    int32_t code = 0;
    int place = 0;
    for (int bits = 1; bits <= 16; bits++) {
        t->offset[bits] = place - code;
        for (int k = 0; k < t->lengths[bits]; k++, code++, place++) {
            if (place > 255 || code >= 1 << bits) return -1;
            int symbol = t->symbols[place], run = is_dc ? 0 : symbol >> 4, size = is_dc ? symbol : symbol & 15;
            if (size > (is_dc ? MAX_DC_BITS : MAX_AC_BITS)) return -1;
            if (bits > LOOK) continue;
            int32_t first = code << (LOOK - bits);
            for (int32_t rest = 0; rest < 1 << (LOOK - bits); rest++) {
                int32_t *entry = &t->look[first + rest];
                if (!is_dc && size == 0 && run != 15)
                    /* EOB; runs 1 to 14 without a value are progressive JPEG's, and end a block in libjpeg too */
                    *entry = PACK(bits, END, 0, 0);
                else if (size == 0)
                    *entry = PACK(bits, MORE, run, 0);
                else if (bits + size <= LOOK)
                    *entry = PACK(bits + size, VALUE, run, (uint32_t)extend(rest >> (LOOK - bits - size) & ((1 << size) - 1), size));
                else
                    *entry = PACK(bits, MORE, run, size);
            }
        }
        t->limit[bits] = code << (16 - bits);
        code <<= 1;
    }
    t->limit[17] = 1 << 16;
    t->is_dc = is_dc;
    t->made = 1;
    return 0;
}

/* Copy bytes up to the next marker, or a piece of them, without the 00 that follows each FF. */
static void unstuff(entropy *e) {
    size_t kept = (size_t)(e->ready - e->next);
    memmove(e->bytes, e->next, kept);
    uint8_t *to = e->bytes + kept, *full = to + PIECE_BYTES;
    const uint8_t *from = e->source, *end = e->source_end;
    while (to < full) {
        size_t room = (size_t)(full - to), left = (size_t)(end - from), most = room < left ? room : left;
        const uint8_t *ff = most ? memchr(from, 0xFF, most) : NULL;
        size_t plain = ff ? (size_t)(ff - from) : most;
        memcpy(to, from, plain);
        to += plain, from += plain;
        if (!ff) {
            if (from == end) e->at_marker = 1;
            break;
        }
        if (end - from < 2 || from[1] != 0) {
            e->at_marker = 1;
            break;
        }
        *to++ = 0xFF;
        from += 2;
    }
    memset(to, 0, MCU_BYTES); /* what is read beyond the end of damaged data */
    e->source = from;
    e->next = e->bytes;
    e->ready = to;
}

static void start_segment(entropy *e) {
    e->window = 0;
    e->valid = 0;
    e->at_marker = 0;
    e->next = e->ready = e->bytes;
    memset(e->last_dc, 0, sizeof e->last_dc);
    e->until_restart = e->scan.restart_interval;
    unstuff(e);
}

int entropy_begin(entropy *e, const entropy_scan *scan) {
    e->scan = *scan;
    for (int b = 0; b < scan->blocks; b++) {
        int c = scan->component[b];
        if (make_codes(&e->tables[c], scan->dc[c], 1) || make_codes(&e->tables[4 + c], scan->ac[c], 0)) return -1;
        e->dc[c] = &e->tables[c];
        e->ac[c] = &e->tables[4 + c];
    }
    e->source = scan->data;
    e->source_end = scan->end;
    e->damaged = 0;
    e->restart = e->column = 0;
    start_segment(e);
    return 0;
}

/* Bits that are left before the end of what has been freed of stuffing; negative: more were read than there are. */
static inline ptrdiff_t bits_left(const entropy *e) { return 8 * (e->ready - e->next) + e->valid; }

/* The end of a restart interval: less than a byte is left, and the marker is the one that is due. */
static void restart(entropy *e) {
    const uint8_t *at = e->source;
    if (!e->at_marker || bits_left(e) > 7 || e->source_end - at < 2 || at[0] != 0xFF || at[1] != (0xD0 | e->restart)) {
        e->damaged = 1;
        return;
    }
    e->restart = (e->restart + 1) & 7;
    e->source = at + 2;
    start_segment(e);
}

static inline uint64_t eight_bytes(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return word;
#else
    return __builtin_bswap64(word);
#endif
}

/* A local copy of the reader, which the compiler keeps in registers. */
typedef struct {
    uint64_t window;
    const uint8_t *next;
    int valid;
} reader;

/* At least 56 valid bits: whole bytes are added; those of which only a part fits are read again next time. */
#define REFILL(r) ((r).window |= eight_bytes((r).next) >> (r).valid, (r).next += (63 - (r).valid) >> 3, (r).valid |= 56)
#define TAKE(r, n) ((r).window <<= (n), (r).valid -= (n))

/* A code longer than LOOK bits: its symbol, or -1. The code's bits are taken. */
static __attribute__((noinline)) int long_code(reader *r, const codes *t) {
    int32_t code = (int32_t)(r->window >> 48);
    int bits = LOOK + 1;
    while (bits <= 16 && code >= t->limit[bits]) bits++;
    if (bits > 16) return -1;
    TAKE(*r, bits);
    return t->symbols[((code >> (16 - bits)) + t->offset[bits]) & 255];
}

/* One block. `block` NULL: step over it. Returns not 0 where it is damaged. */
static inline __attribute__((always_inline)) int decode_block(reader *io, const codes *dc, const codes *ac, int *last_dc, int16_t *block) {
    reader r = *io;
    int k = 1, bad = 0;
    REFILL(r);
    int32_t entry = dc->look[r.window >> (64 - LOOK)];
    int kind = entry >> 6 & 3, size;
    TAKE(r, entry & 63);
    if (LIKELY(kind == VALUE)) {
        *last_dc += entry >> 16;
    } else {
        size = kind == MORE ? entry >> 16 : long_code(&r, dc);
        if (UNLIKELY(size < 0)) return 1;
        if (size) {
            *last_dc += extend((uint32_t)(r.window >> (64 - size)), size);
            TAKE(r, size);
        }
    }
    if (block) block[0] = (int16_t)*last_dc;

    /* One coefficient; the loop below refills before every other one. */
#define COEFFICIENT                                                       \
    entry = ac->look[r.window >> (64 - LOOK)];                            \
    kind = entry >> 6 & 3;                                                \
    TAKE(r, entry & 63);                                                  \
    if (LIKELY(kind == VALUE)) {                                          \
        k += entry >> 8 & 15;                                             \
        if (block) block[natural[k]] = (int16_t)(entry >> 16);            \
        k++;                                                              \
    } else if (kind == END) {                                             \
        break;                                                            \
    } else {                                                              \
        int run = entry >> 8 & 15;                                        \
        size = entry >> 16;                                               \
        if (kind == LONG) {                                               \
            int symbol = long_code(&r, ac);                               \
            if (UNLIKELY(symbol < 0)) {                                   \
                bad = 1;                                                  \
                break;                                                    \
            }                                                             \
            run = symbol >> 4, size = symbol & 15;                        \
            if (size == 0 && run != 15) break;                            \
        }                                                                 \
        k += run;                                                         \
        if (size) {                                                       \
            int value = extend((uint32_t)(r.window >> (64 - size)), size); \
            TAKE(r, size);                                                \
            if (block) block[natural[k]] = (int16_t)value;                \
        }                                                                 \
        k++;                                                              \
    }                                                                     \
    if (k > 63) break;

    for (;;) {
        REFILL(r);
        COEFFICIENT
        COEFFICIENT
    }
#undef COEFFICIENT
    *io = r;
    return bad | (k > 64);
}

void entropy_mcu(entropy *e, int16_t (*const *blocks)[64]) {
    if (e->damaged) return;
    if (e->scan.restart_interval) {
        if (e->until_restart == 0) {
            restart(e);
            if (e->damaged) return;
        }
        e->until_restart--;
    }
    if (e->ready - e->next < MCU_BYTES && !e->at_marker) unstuff(e);
    if (e->column < e->scan.first_column || e->column > e->scan.last_column) blocks = NULL;
    if (++e->column == e->scan.mcus_per_row) e->column = 0;
    reader r = {e->window, e->next, e->valid};
    int bad = 0;
    for (int b = 0; b < e->scan.blocks; b++) {
        int c = e->scan.component[b];
        if (blocks)
            bad |= decode_block(&r, e->dc[c], e->ac[c], &e->last_dc[c], *blocks[b]);
        else
            bad |= decode_block(&r, e->dc[c], e->ac[c], &e->last_dc[c], NULL);
    }
    e->window = r.window;
    e->next = r.next;
    e->valid = r.valid;
    if (UNLIKELY(bad || bits_left(e) < 0)) e->damaged = 1;
}

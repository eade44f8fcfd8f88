/* Huffman decoding as ITU T.81 Annex F describes it. What makes it fast:
 * - The bytes are freed of their stuffing (FF 00) piece by piece, so that the reader takes eight at a time and looks at none.
 * - A table of 1024 entries, one for each value of the next 10 bits, gives run, value and length of the codes that they hold
 *   whole, two coefficients and the block's end at most. What reaches beyond the 10 bits takes a second step.
 * - One refill, to 56 bits or more, serves two entries, 26 bits each at most.
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

/* What the next bits mean. Of one code, packed in 32 bits: bits | kind << 6 | run << 8 | value << 16 (signed).
 * `bits` are those of code and value together (VALUE), else of the code alone; for MORE the value's size stands in its place. */
enum { LONG, VALUE, MORE, END };
#define PACK(bits, kind, run, value) ((int32_t)((uint32_t)(bits) | (kind) << 6 | (uint32_t)(run) << 8 | (uint32_t)(value) << 16))

typedef struct {
    int32_t look[1 << LOOK]; /* by the next LOOK bits */
    int32_t limit[18];       /* first code of 16 bits that is longer than k bits; limit[17]: beyond all */
    int32_t offset[17];      /* added to a code of k bits it gives its symbol's place */
    uint8_t symbols[256];
    uint8_t lengths[17]; /* with symbols: what the table was made of */
    int is_dc, made;
} codes;

/* As many codes of coefficients as the next LOOK bits hold whole, two at most, and the end of the block behind them. 64 bits:
 *    0 .. 5   bits of all of it
 *    6 .. 7   VALUE, or the kind of the first code: then the entry of `codes` stands here, in the lower half
 *    8 .. 11  run before the first coefficient
 *   12 .. 16  from the first one's place to the second's; 0: there is none, and its value is the first one's once more
 *   17 .. 23  how far the block's place moves on
 *   24        the block ends here
 *   25 .. 31  how many places must be left in the block for that: one more where it ends
 *   32 .. 47, 48 .. 63  the values */
typedef struct {
    uint64_t look[1 << LOOK];
    codes single;
} coefficients;
#define ENDS ((uint64_t)1 << 24)

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
    const codes *dc[4];
    const coefficients *ac[4];
    entropy_scan scan;
    codes dc_tables[4];
    coefficients ac_tables[4];
    uint8_t bytes[2 * PIECE_BYTES + MCU_BYTES];
};

static const uint8_t natural[64] = {
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
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
        return 1; /* files of one source share their tables */
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

static uint64_t lower(int32_t entry) { return (uint32_t)entry; }

static int make_coefficients(coefficients *t, entropy_codes from) {
    const int made = make_codes(&t->single, from, 0);
    if (made) return made;
    for (int32_t next = 0; next < 1 << LOOK; next++) {
        const int32_t first = t->single.look[next];
        int bits = first & 63, run = first >> 8 & 15, place = run + 1;
        if ((first >> 6 & 3) != VALUE) {
            t->look[next] = lower(first);
            continue;
        }
        const uint64_t value = (uint16_t)(first >> 16);
        uint64_t entry = value << 48 | value << 32 | (uint64_t)run << 8 | VALUE << 6;
        /* What follows counts if all its bits are among the LOOK. */
        int32_t then = t->single.look[next << bits & ((1 << LOOK) - 1)];
        if ((then >> 6 & 3) == VALUE && (then & 63) <= LOOK - bits) {
            const int distance = (then >> 8 & 15) + 1;
            entry = (entry & 0xFFFFFFFFFFFF) | (uint64_t)(uint16_t)(then >> 16) << 48 | (uint64_t)distance << 12;
            bits += then & 63;
            place += distance;
            then = t->single.look[next << bits & ((1 << LOOK) - 1)];
        }
        if ((then >> 6 & 3) == END && (then & 63) <= LOOK - bits) {
            entry |= ENDS | (uint64_t)1 << 25;
            bits += then & 63;
        }
        t->look[next] = (entry + ((uint64_t)place << 25)) | (uint64_t)place << 17 | (uint64_t)bits;
    }
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
    for (int c = 0; c < scan->components; c++) {
        e->dc[c] = &e->dc_tables[c];
        e->ac[c] = &e->ac_tables[c];
        if (make_codes(&e->dc_tables[c], scan->dc[c], 1) < 0) return -1;
        for (int d = 0; d < c; d++)
            if (scan->ac[d].lengths == scan->ac[c].lengths) e->ac[c] = e->ac[d];
        if (e->ac[c] == &e->ac_tables[c] && make_coefficients(&e->ac_tables[c], scan->ac[c]) < 0) return -1;
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

/* A code of at least `bits` bits: its symbol, or -1. The code's bits are taken. */
static __attribute__((noinline)) int symbol_of(reader *r, const codes *t, int bits) {
    int32_t code = (int32_t)(r->window >> 48);
    while (bits <= 16 && code >= t->limit[bits]) bits++;
    if (bits > 16) return -1;
    TAKE(*r, bits);
    return t->symbols[((code >> (16 - bits)) + t->offset[bits]) & 255];
}

static inline int take_value(reader *r, int size) {
    const int value = extend((uint32_t)(r->window >> (64 - size)), size);
    TAKE(*r, size);
    return value;
}

/* One block. `block` NULL: step over it. Returns not 0 where it is damaged. */
static inline __attribute__((always_inline)) int decode_block(reader *io, const codes *dc, const coefficients *ac, int *last_dc, int16_t *block) {
    reader r = *io;
    int run, size, symbol;
    unsigned k = 1;
    uint64_t entry;
    REFILL(r);
    const int32_t first = dc->look[r.window >> (64 - LOOK)];
    TAKE(r, first & 63);
    if (LIKELY((first >> 6 & 3) == VALUE)) {
        *last_dc += first >> 16;
    } else {
        size = (first >> 6 & 3) == MORE ? first >> 16 : symbol_of(&r, dc, LOOK + 1);
        if (UNLIKELY(size < 0)) return 1;
        if (size) *last_dc += take_value(&r, size);
    }
    if (block) block[0] = (int16_t)*last_dc;

    /* One entry, of 26 bits at most; the loop below refills before every other one. */
#define COEFFICIENTS                                                                            \
    entry = ac->look[r.window >> (64 - LOOK)];                                                  \
    if (LIKELY((entry & 0xC0) == VALUE << 6 && k + (entry >> 25 & 127) <= 64)) {                \
        TAKE(r, entry & 63);                                                                    \
        if (block) {                                                                            \
            const unsigned place = k + (unsigned)(entry >> 8 & 15);                             \
            block[natural[place]] = (int16_t)(entry >> 32);                                     \
            block[natural[place + (entry >> 12 & 31)]] = (int16_t)(entry >> 48);                \
        }                                                                                       \
        k += entry >> 17 & 127;                                                                 \
        if (entry & ENDS) break;                                                                \
    } else if ((entry & 0xC0) == END << 6) {                                                    \
        TAKE(r, entry & 63);                                                                    \
        break;                                                                                  \
    } else {                                                                                    \
        if ((entry & 0xC0) == MORE << 6) {                                                      \
            TAKE(r, entry & 63);                                                                \
            run = entry >> 8 & 15, size = entry >> 16 & 15;                                     \
        } else { /* a long code, or more codes than the block takes */                          \
            symbol = symbol_of(&r, &ac->single, (entry & 0xC0) == VALUE << 6 ? 1 : LOOK + 1);   \
            if (UNLIKELY(symbol < 0)) return 1;                                                 \
            run = symbol >> 4, size = symbol & 15;                                              \
            if (size == 0 && run != 15) break;                                                  \
        }                                                                                       \
        k += (unsigned)run;                                                                     \
        if (UNLIKELY(k > 63)) {                                                                 \
            if (size || k > 63 + 15) return 1;                                                  \
        } else if (size) {                                                                      \
            const int value = take_value(&r, size);                                             \
            if (block) block[natural[k]] = (int16_t)value;                                      \
        }                                                                                       \
        k++;                                                                                    \
    }                                                                                           \
    if (k > 63) break;

    for (;;) {
        REFILL(r);
        COEFFICIENTS
        COEFFICIENTS
    }
#undef COEFFICIENTS
    *io = r;
    return k > 64;
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

/* Reads Huffman codes of JPEG files: the bits, and the tables that tell what they mean. The decoders of baseline files
 * (entropy.c) and of progressive files (progressive.c) share it.
 *
 * - The stuffing (FF 00) is removed from the bytes piece by piece, so that the reader takes eight bytes at a time unchecked.
 * - A table of 1024 entries, one for each value of the next 10 bits, gives run, value and length of a code that is whole within
 *   them. A code or value that is longer takes a second step.
 */
#ifndef DDLP_HUFFMAN_H
#define DDLP_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#define ALWAYS_INLINE inline
#endif

/* Compiles a function with BMI2, whose shifts leave the flags alone and take any register; chosen at run time
 * (variant_bmi2). */
#if defined(__x86_64__) && defined(__GNUC__)
#define DDLP_BMI2 __attribute__((target("bmi,bmi2,lzcnt,popcnt")))
#endif

enum {
    LOOK = 10,             /* bits that index a table */
    STEP_LOOK = 12,        /* bits that index the table for stepping over */
    MCU_BYTES = 2600,      /* more than an MCU can need: 10 blocks of 64 coefficients of 26 bits, and one refill */
    PIECE_BYTES = 1 << 15, /* of the file, whose stuffing is removed at once: they fit the first-level cache with the tables */
    MCU_BLOCKS = 10        /* the most in one MCU */
};

/* A Huffman table as a DHT marker gives it: lengths[k] codes of k bits (1 to 16), their symbols in order. */
typedef struct {
    const uint8_t *lengths, *symbols; /* 17 and 256 of them */
} huffman_source;

/* The meaning of the next bits. One code is packed in 32 bits: bits | kind << 6 | run << 8 | value << 16 (signed).
 * `bits` counts code and value together for VALUE, else the code alone. For MORE the value's size is in the value's place.
 * END: the block ends. In a progressive file it begins a run of 1 << run or more such blocks; `run` bits tell how many more. */
enum { LONG, VALUE, MORE, END };

typedef struct {
    int32_t look[1 << LOOK]; /* by the next LOOK bits */
    int32_t limit[18];       /* the first code, in 16 bits, that is longer than k bits; limit[17]: above all codes */
    int32_t offset[17];      /* a code of k bits plus this number is its symbol's place */
    uint8_t symbols[256];
    uint8_t lengths[17]; /* with symbols: the codes from which the table was made */
    int is_dc, made;
} codes;

/* Make a table. 1: the table has been made from the same codes already; -1: these are no codes of 8-bit JPEG. */
int huffman_codes(codes *, huffman_source from, int is_dc);

/* A code of at least `bits` bits at the window's top: its bits << 8 | its symbol; 0: there is no such code. */
int huffman_symbol(uint64_t window, const codes *, int bits);

/* The place in the block of the k-th coefficient in the file. */
extern const uint8_t huffman_natural[64];

/* A scan's bytes. */
typedef struct {
    uint64_t window;      /* the next bits, the first one on top */
    const uint8_t *next;  /* the byte that comes into the window next */
    int valid;            /* bits in the window */
    const uint8_t *ready; /* end of the bytes without stuffing */
    const uint8_t *source, *source_end;
    int at_marker; /* `source` is at a marker or at the end: nothing follows `ready` before a restart */
    unsigned restart; /* number of the restart marker that comes next */
    uint8_t bytes[2 * PIECE_BYTES + MCU_BYTES];
} bit_stream;

void stream_begin(bit_stream *, const uint8_t *data, const uint8_t *end);

/* Remove the stuffing from the next piece, if there is one. After that MCU_BYTES may be read; after the end there are zeros. */
void stream_more(bit_stream *);

/* End a restart interval. A result other than 0: more than a byte is left, or the marker is not the next one in turn. */
int stream_restart(bit_stream *);

/* The bits that are left of the bytes without stuffing; negative: more were read than there are. */
static inline ptrdiff_t bits_left(const bit_stream *s) { return 8 * (s->ready - s->next) + s->valid; }

/* A local copy of the reader, which the compiler keeps in registers. */
typedef struct {
    uint64_t window;
    const uint8_t *next;
    int valid;
} bit_reader;

#define READER(s) {(s)->window, (s)->next, (s)->valid}
#define KEEP(s, r) ((s)->window = (r).window, (s)->next = (r).next, (s)->valid = (r).valid)

static inline uint64_t eight_bytes(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return word;
#else
    return __builtin_bswap64(word);
#endif
}

/* Refills to at least 56 valid bits with whole bytes. A byte of which only a part fits is read again next time. */
#define REFILL(r) ((r).window |= eight_bytes((r).next) >> (r).valid, (r).next += (63 - (r).valid) >> 3, (r).valid |= 56)
#define TAKE(r, n) ((r).window <<= (unsigned)(n), (r).valid -= (int)(n))
#define PEEK(r, n) ((uint32_t)((r).window >> (64 - (n)))) /* n: 1 to 32 */

/* T.81 F.2.2.1: a value of `size` bits is negative if its first bit is 0. */
static inline int extend(uint32_t bits, int size) {
    return (int)bits + ((int)(bits >> (size - 1)) - 1) * ((1 << size) - 1);
}

/* Takes a DC difference of at most 27 bits, which the reader must have, and adds it to *dc. Other than 0: no such code. */
static ALWAYS_INLINE int take_dc(bit_reader *r, const codes *t, int *dc) {
    const int32_t first = t->look[PEEK(*r, LOOK)];
    int size;
    TAKE(*r, first & 63);
    if (LIKELY((first >> 6 & 3) == VALUE)) {
        *dc += first >> 16;
        return 0;
    }
    if ((first >> 6 & 3) == MORE) {
        size = first >> 16;
    } else {
        const int found = huffman_symbol(r->window, t, LOOK + 1);
        if (UNLIKELY(!found)) return 1;
        TAKE(*r, found >> 8);
        size = found & 255;
    }
    if (size) {
        *dc += extend(PEEK(*r, size), size);
        TAKE(*r, size);
    }
    return 0;
}

#endif

/* Reading Huffman codes of JPEG files: the bits, and tables that tell what they mean. Shared by the decoders of baseline
 * (entropy.c) and of progressive files (progressive.c).
 *
 * - The bytes are freed of their stuffing (FF 00) piece by piece, so that the reader takes eight at a time and looks at none.
 * - A table of 1024 entries, one for each value of the next 10 bits, gives run, value and length of the code that they hold
 *   whole. What reaches beyond the 10 bits takes a second step.
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

/* With the shifts of BMI2, which leave the flags alone and take any register; chosen at run time (variant_bmi2). */
#if defined(__x86_64__) && defined(__GNUC__)
#define DDLP_BMI2 __attribute__((target("bmi,bmi2,lzcnt,popcnt")))
#endif

enum {
    LOOK = 10,             /* bits that index a table */
    STEP_LOOK = 12,        /* bits that index the table for stepping over */
    MCU_BYTES = 2600,      /* more than an MCU can take: 10 blocks of 64 coefficients of 26 bits, and one refill */
    PIECE_BYTES = 1 << 15, /* of the file freed of stuffing at once: stays in the first-level cache with the tables */
    MCU_BLOCKS = 10        /* of one MCU at most */
};

/* A Huffman table as a DHT marker gives it: lengths[k] codes of k bits (1 to 16), their symbols in order. */
typedef struct {
    const uint8_t *lengths, *symbols; /* 17 and 256 of them */
} huffman_source;

/* What the next bits mean. Of one code, packed in 32 bits: bits | kind << 6 | run << 8 | value << 16 (signed).
 * `bits` are those of code and value together (VALUE), else of the code alone; for MORE the value's size stands in its place.
 * END: the block ends; a progressive file's run of such blocks has 1 << run or more, `run` bits follow that tell how many. */
enum { LONG, VALUE, MORE, END };

typedef struct {
    int32_t look[1 << LOOK]; /* by the next LOOK bits */
    int32_t limit[18];       /* first code of 16 bits that is longer than k bits; limit[17]: beyond all */
    int32_t offset[17];      /* added to a code of k bits it gives its symbol's place */
    uint8_t symbols[256];
    uint8_t lengths[17]; /* with symbols: what the table was made of */
    int is_dc, made;
} codes;

/* Make a table. 1: it was made of the same codes already; -1: these are no codes of 8-bit JPEG. */
int huffman_codes(codes *, huffman_source from, int is_dc);

/* A code of at least `bits` bits at the window's top: its bits << 8 | its symbol; 0: it is none. */
int huffman_symbol(uint64_t window, const codes *, int bits);

/* Place in the block of the coefficient that comes k-th. */
extern const uint8_t huffman_natural[64];

/* A scan's bytes. */
typedef struct {
    uint64_t window;      /* the next bits, the first one on top */
    const uint8_t *next;  /* byte that comes into the window next */
    int valid;            /* bits in the window */
    const uint8_t *ready; /* end of the bytes freed of stuffing */
    const uint8_t *source, *source_end;
    int at_marker; /* `source` stands at a marker, or at the end: nothing follows `ready` before a restart */
    unsigned restart; /* number of the restart marker that comes next */
    uint8_t bytes[2 * PIECE_BYTES + MCU_BYTES];
} bit_stream;

void stream_begin(bit_stream *, const uint8_t *data, const uint8_t *end);

/* Free the next piece of stuffing, if there is one: afterwards MCU_BYTES may be read, zeros behind the end. */
void stream_more(bit_stream *);

/* The end of a restart interval. Not 0: more than a byte is left, or the marker is not the one that is due. */
int stream_restart(bit_stream *);

/* Bits that are left before the end of what has been freed of stuffing; negative: more were read than there are. */
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

/* At least 56 valid bits: whole bytes are added; those of which only a part fits are read again next time. */
#define REFILL(r) ((r).window |= eight_bytes((r).next) >> (r).valid, (r).next += (63 - (r).valid) >> 3, (r).valid |= 56)
#define TAKE(r, n) ((r).window <<= (n), (r).valid -= (n))
#define PEEK(r, n) ((uint32_t)((r).window >> (64 - (n)))) /* n: 1 to 32 */

/* T.81 F.2.2.1: values of `size` bits; those whose first bit is 0 are negative. */
static inline int extend(uint32_t bits, int size) {
    return (int)bits + ((int)(bits >> (size - 1)) - 1) * ((1 << size) - 1);
}

/* A DC difference, of 27 bits at most, from a reader that has them: *dc is what it is added to. Not 0: no such code. */
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

/* Huffman decoding of baseline files, as in ITU T.81 Annex F. huffman.h and the following points say why it is fast:
 * - An entry of the table holds at most two coefficients and the block's end.
 * - One refill, to 56 bits or more, is enough for five entries that the table has whole.
 * - Blocks outside the wanted region are read without being stored.
 */
#include "jpeg/entropy.h"

#include <stdlib.h>

#include "jpeg/huffman.h"
#include "variant.h"

/* An entry holds the codes of coefficients that are whole within the next LOOK bits, two at most, and an end of the block
 * after them. 64 bits:
 *    0 .. 5   the number of bits of all codes
 *    6 .. 7   VALUE, or the kind of the first code: then the lower half is the entry of `codes`
 *    8 .. 11  run before the first coefficient
 *   12 .. 16  distance from the first coefficient's place to the second's; 0: there is no second, its value repeats the first
 *   17 .. 23  how far the place in the block moves on
 *   24        the block ends here
 *   25 .. 31  how many places must be left in the block: one more if the block ends here
 *   32 .. 47, 48 .. 63  the values */
typedef struct {
    uint64_t look[1 << LOOK];
    /* For blocks that are stepped over: the codes that begin and end within the next bits. The value of the last one may
     * reach beyond them. An entry is: bits of all codes | places by which the block moves on << 5, and PAST more if the
     * block ends. The table is made when a second file has the same codes, since that takes 25 us. */
    uint16_t steps[1 << STEP_LOOK];
    codes single;
    int has_steps;
} coefficients;
#define ENDS ((uint64_t)1 << 24)
enum { PAST = 128, NO_STEP = 64 << 5, MOST_STEP = 18 };

struct entropy {
    bit_stream stream;
    int damaged;
    int bmi2; /* variant_bmi2, looked up once a scan */
    unsigned until_restart, column;
    int last_dc[4];
    const codes *dc[4];
    const coefficients *ac[4];
    entropy_scan scan;
    codes dc_tables[4];
    coefficients ac_tables[4];
};

entropy *entropy_new(void) { return calloc(1, sizeof(entropy)); }

void entropy_free(entropy *e) { free(e); }

int entropy_damaged(const entropy *e) { return e->damaged; }

const uint8_t *entropy_rest(const entropy *e) { return e->stream.source; }

static uint64_t lower(int32_t entry) { return (uint32_t)entry; }

static void make_steps(coefficients *t) {
    for (int32_t next = 0; next < 1 << STEP_LOOK; next++) {
        int bits = 0, places = 0;
        for (;;) {
            const int32_t entry = t->single.look[(next << bits & ((1 << STEP_LOOK) - 1)) >> (STEP_LOOK - LOOK)];
            const int kind = entry >> 6 & 3, run = entry >> 8 & 15, size = kind == MORE ? entry >> 16 : 0;
            const int code = entry & 63; /* with its value, if that is within the bits too */
            if (kind == LONG || bits + code > STEP_LOOK || places + run + 1 > 63 || bits + code + size > MOST_STEP) break;
            bits += code + size;
            if (kind == END) {
                places += PAST;
                break;
            }
            places += run + 1;
            if (bits >= STEP_LOOK) break;
        }
        t->steps[next] = bits ? (uint16_t)(bits | places << 5) : NO_STEP;
    }
    t->has_steps = 1;
}

static int make_coefficients(coefficients *t, huffman_source from) {
    const int made = huffman_codes(&t->single, from, 0);
    if (made == 1 && !t->has_steps) make_steps(t);
    if (made) return made;
    t->has_steps = 0;
    for (int32_t next = 0; next < 1 << LOOK; next++) {
        const int32_t first = t->single.look[next];
        int bits = first & 63, run = first >> 8 & 15, place = run + 1;
        if ((first >> 6 & 3) != VALUE) {
            t->look[next] = lower(first);
            continue;
        }
        const uint64_t value = (uint16_t)(first >> 16);
        uint64_t entry = value << 48 | value << 32 | (uint64_t)run << 8 | VALUE << 6;
        /* The next code is added if all its bits are within the LOOK bits. */
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

int entropy_begin(entropy *e, const entropy_scan *scan) {
    e->scan = *scan;
    for (int c = 0; c < scan->components; c++) {
        e->dc[c] = &e->dc_tables[c];
        e->ac[c] = &e->ac_tables[c];
        if (huffman_codes(&e->dc_tables[c], scan->dc[c], 1) < 0) return -1;
        for (int d = 0; d < c; d++)
            if (scan->ac[d].lengths == scan->ac[c].lengths) e->ac[c] = e->ac[d];
        if (e->ac[c] == &e->ac_tables[c] && make_coefficients(&e->ac_tables[c], scan->ac[c]) < 0) return -1;
    }
    memset(e->last_dc, 0, sizeof e->last_dc);
    e->until_restart = scan->restart_interval;
    e->damaged = 0;
    e->bmi2 = variant_bmi2();
    e->column = 0;
    stream_begin(&e->stream, scan->data, scan->end);
    return 0;
}

/* Decodes one block. `block` NULL: none of it is kept. The result is not 0 if the block is damaged. */
static ALWAYS_INLINE int decode_block(bit_reader *io, const codes *dc, const coefficients *ac, int *last_dc, int16_t *block) {
    bit_reader r = *io;
    int run, size, found;
    unsigned k = 1;
    uint64_t entry;
    REFILL(r);
    if (UNLIKELY(take_dc(&r, dc, last_dc))) return 1;
    if (block) block[0] = (int16_t)*last_dc;

    /* Decodes one entry. An entry takes at most LOOK bits, so the number of bits left need not be checked in between. */
#define COEFFICIENTS                                                                 \
    entry = ac->look[PEEK(r, LOOK)];                                                 \
    if (UNLIKELY((entry & 0xC0) != VALUE << 6 || k + (entry >> 25 & 127) > 64)) goto other; \
    TAKE(r, entry & 63);                                                             \
    if (block) {                                                                     \
        const unsigned place = k + (unsigned)(entry >> 8 & 15);                      \
        block[huffman_natural[place]] = (int16_t)(entry >> 32);                      \
        block[huffman_natural[place + (entry >> 12 & 31)]] = (int16_t)(entry >> 48); \
    }                                                                                \
    k += entry >> 17 & 127;                                                          \
    if (entry & ENDS || k > 63) break;

    for (;;) {
        REFILL(r);
        COEFFICIENTS
        COEFFICIENTS
        COEFFICIENTS
        COEFFICIENTS
        COEFFICIENTS
        continue;
    other:
        if ((entry & 0xC0) == END << 6) {
            TAKE(r, entry & 63);
            break;
        }
        REFILL(r);
        if ((entry & 0xC0) == MORE << 6) {
            TAKE(r, entry & 63);
            run = entry >> 8 & 15, size = entry >> 16 & 15;
        } else { /* a long code, or more codes than fit into the block */
            found = huffman_symbol(r.window, &ac->single, (entry & 0xC0) == VALUE << 6 ? 1 : LOOK + 1);
            if (UNLIKELY(!found)) return 1;
            TAKE(r, found >> 8);
            run = found >> 4 & 15, size = found & 15;
            if (size == 0 && run != 15) break;
        }
        k += (unsigned)run;
        if (UNLIKELY(k > 63)) {
            if (size || k > 63 + 15) return 1;
        } else if (size) {
            if (block) block[huffman_natural[k]] = (int16_t)extend(PEEK(r, size), size);
            TAKE(r, size);
        }
        if (++k > 63) break;
    }
#undef COEFFICIENTS
    *io = r;
    return k > 64;
}

/* Steps over a block, with a table that has steps. */
static ALWAYS_INLINE int skip_block(bit_reader *io, const codes *dc, const coefficients *ac, int *last_dc) {
    bit_reader r = *io;
    unsigned k = 1, entry, next;
    REFILL(r);
    if (UNLIKELY(take_dc(&r, dc, last_dc))) return 1;
#define STEP                                    \
    entry = ac->steps[PEEK(r, STEP_LOOK)];      \
    next = k + (entry >> 5);                    \
    if (UNLIKELY(next > 63)) goto other;        \
    TAKE(r, entry & 31);                        \
    k = next;

    for (;;) {
        REFILL(r);
        STEP
        STEP
        STEP
        continue;
    other:
        if (LIKELY(next == 64 || (next >= PAST && next < PAST + 64))) {
            TAKE(r, entry & 31);
            break;
        }
        REFILL(r); /* a long code, or more codes than fit into the block */
        const int found = huffman_symbol(r.window, &ac->single, 1);
        const unsigned run = (unsigned)found >> 4 & 15, size = (unsigned)found & 15;
        if (UNLIKELY(!found)) return 1;
        TAKE(r, (found >> 8) + (int)size);
        if (size == 0 && run != 15) break;
        k += run;
        if (UNLIKELY(k > 63) && (size || k > 63 + 15)) return 1;
        if (++k > 63) break;
    }
#undef STEP
    *io = r;
    return k > 64;
}

static ALWAYS_INLINE int decode_mcu(entropy *e, int16_t (*const *blocks)[64]) {
    bit_reader r = READER(&e->stream);
    int bad = 0;
    for (int b = 0; b < e->scan.blocks; b++) {
        const int c = e->scan.component[b];
        const coefficients *ac = e->ac[c];
        if (blocks)
            bad |= decode_block(&r, e->dc[c], ac, &e->last_dc[c], *blocks[b]);
        else if (ac->has_steps)
            bad |= skip_block(&r, e->dc[c], ac, &e->last_dc[c]);
        else
            bad |= decode_block(&r, e->dc[c], ac, &e->last_dc[c], NULL);
    }
    KEEP(&e->stream, r);
    return bad;
}

static int decode_plain(entropy *e, int16_t (*const *blocks)[64]) { return decode_mcu(e, blocks); }

#if defined(DDLP_BMI2)
static DDLP_BMI2 int decode_bmi2(entropy *e, int16_t (*const *blocks)[64]) { return decode_mcu(e, blocks); }
#else
#define decode_bmi2 decode_plain
#endif

void entropy_mcu(entropy *e, int16_t (*const *blocks)[64]) {
    if (e->damaged) return;
    if (e->column < e->scan.first_column || e->column > e->scan.last_column) blocks = NULL;
    if (++e->column == e->scan.mcus_per_row) e->column = 0;
    if (e->scan.restart_interval) {
        if (e->until_restart == 0) {
            if ((e->damaged = stream_restart(&e->stream))) return;
            memset(e->last_dc, 0, sizeof e->last_dc);
            e->until_restart = e->scan.restart_interval;
        }
        e->until_restart--;
    }
    if (e->stream.ready - e->stream.next < MCU_BYTES) stream_more(&e->stream);
    const int bad = e->bmi2 ? decode_bmi2(e, blocks) : decode_plain(e, blocks);
    if (UNLIKELY(bad || bits_left(&e->stream) < 0)) e->damaged = 1;
}

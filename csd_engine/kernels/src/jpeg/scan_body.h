/* The four kinds of progressive scans: ITU T.81 G.1.2, G.2. The file that includes this one, behind scan.h, defines SCAN (the
 * function's name) and TARGETED (the processor that it is compiled for). huffman.h and the following points say why it is fast:
 * - Each block has 64 bits that tell which of its coefficients are not 0; the top bit is for the first one. A refining scan
 *   need not read the coefficients. These bits tell the place of the next new coefficient, the number of correction bits
 *   before it, and the coefficients that they correct. The changes are written once a block.
 * - A block outside the wanted part has only these 64 bits.
 */
#define TARGETED_INLINE static ALWAYS_INLINE TARGETED

/* The state that is kept from block to block. */
typedef struct {
    int last_dc[4];
    unsigned empty; /* the number of next blocks that have no new coefficient (EOBRUN) */
} memory;

#define TOP ((uint64_t)1 << 63)

/* The places of the coefficients from `first` to `last`. */
TARGETED_INLINE uint64_t band(int first, int last) { return ~(uint64_t)0 >> first & ~(uint64_t)0 << (63 - last); }

#if defined(DEPOSIT)
#define deposit DEPOSIT
#else
/* Moves the low bits, one after the other, to the places that are set in the mask, from the lowest one on. */
static inline uint64_t deposit(uint64_t bits, uint64_t mask) {
    uint64_t result = 0;
    for (; bits; bits >>= 1, mask &= mask - 1)
        if (bits & 1) result |= mask & -mask;
    return result;
}
#endif

/* Takes the number of blocks that an END code covers, this one included; up to 14 bits. */
TARGETED_INLINE unsigned take_empty(bit_reader *r, int run) {
    unsigned more = 0;
    if (run) {
        more = PEEK(*r, run);
        TAKE(*r, run);
    }
    return (1u << run) + more;
}

/* Takes the next code of an AC scan: kind VALUE with its value, MORE with value 0 for 16 zeros, or END. It needs 26 bits at
 * most (16 and a value of 10), or 30 with the number after an END (16 and 14). 30 bits are just what a refilled reader has
 * left for a second code. A result other than 0: there is no such code. */
TARGETED_INLINE int take_code(bit_reader *r, const codes *t, int *kind, int *run, int *value) {
    const int32_t entry = t->look[PEEK(*r, LOOK)];
    int size = entry >> 16;
    *kind = entry >> 6 & 3;
    *run = entry >> 8 & 15;
    *value = entry >> 16;
    TAKE(*r, entry & 63);
    if (LIKELY(*kind == VALUE || *kind == END)) return 0;
    if (*kind == LONG) {
        const int found = huffman_symbol(r->window, t, LOOK + 1);
        if (UNLIKELY(!found)) return 1;
        TAKE(*r, found >> 8);
        *run = found >> 4 & 15, size = found & 15;
        *kind = size ? VALUE : *run == 15 ? MORE : END;
    } else if (size) {
        *kind = VALUE;
    }
    *value = 0;
    if (size) {
        *value = extend(PEEK(*r, size), size);
        TAKE(*r, size);
    }
    return 0;
}

TARGETED_INLINE int first_ac(const progressive_scan *s, bit_reader *io, memory *m, uint64_t *known, int16_t *block) {
    bit_reader r = *io;
    const int last = s->last, scale = 1 << s->low;
    uint64_t found = 0;
    int k = s->first, kind, run, value;
    if (m->empty) {
        m->empty--;
        return 0;
    }
    for (;;) {
        REFILL(r);
#define COEFFICIENT                                                  \
    if (UNLIKELY(take_code(&r, s->ac, &kind, &run, &value))) return 1; \
    if (kind == END) {                                               \
        m->empty = take_empty(&r, run) - 1;                          \
        break;                                                       \
    }                                                                \
    k += run;                                                        \
    if (UNLIKELY(k > last)) return 1;                                \
    if (LIKELY(kind == VALUE)) {                                     \
        if (block) block[huffman_natural[k]] = (int16_t)(value * scale); \
        found |= TOP >> k;                                           \
    }                                                                \
    if (k++ == last) break;

        COEFFICIENT
        COEFFICIENT
#undef COEFFICIENT
    }
    *known |= found;
    *io = r;
    return 0;
}

/* Takes as many bits as are set in `mask` and puts them at its places, the first bit at the highest place. The reader must
 * have 32 bits or more. */
TARGETED_INLINE uint64_t take_at(bit_reader *r, uint64_t mask) {
    int count = __builtin_popcountll(mask);
    uint64_t bits;
    if (UNLIKELY(count > 32)) {
        bits = (uint64_t)PEEK(*r, 32) << (count - 32);
        TAKE(*r, 32);
        REFILL(*r);
        count -= 32;
        bits |= r->window >> 1 >> (63 - count);
    } else {
        bits = r->window >> 1 >> (63 - count);
    }
    TAKE(*r, count);
    return deposit(bits, mask);
}

TARGETED_INLINE int refine_ac(const progressive_scan *s, bit_reader *io, memory *m, uint64_t *known, int16_t *block) {
    bit_reader r = *io;
    const uint64_t were = *known;
    uint64_t rest = band(s->first, s->last), fresh = 0, less = 0, larger = 0;
    int kind, run, value;
    if (!m->empty) {
        do {
            REFILL(r);
            if (UNLIKELY(take_code(&r, s->ac, &kind, &run, &value))) return 1;
            if (kind == END) {
                m->empty = take_empty(&r, run);
                break;
            }
            if (UNLIKELY(kind == VALUE && value != 1 && value != -1)) return 1;
            const uint64_t zeros = rest & ~were;
            const int left = __builtin_popcountll(zeros) - 1 - run;
            if (UNLIKELY(left < 0)) return 1;
            const uint64_t here = deposit((uint64_t)1 << left, zeros);
            larger |= take_at(&r, rest & were & -here);
            if (kind == VALUE) {
                fresh |= here;
                less |= here & (uint64_t)(int64_t)(value >> 1);
            }
            rest &= here - 1;
        } while (rest);
    }
    if (m->empty) {
        REFILL(r);
        larger |= take_at(&r, rest & were);
        m->empty--;
    }
    *io = r;
    *known = were | fresh;
    if (!block) return 0;
    const int step = 1 << s->low;
    for (; larger; larger &= larger - 1) {
        int16_t *at = &block[huffman_natural[63 - __builtin_ctzll(larger)]];
        const int sign = *at >> 15;
        *at = (int16_t)(*at + (step ^ sign) - sign);
    }
    for (; fresh; fresh &= fresh - 1) {
        const int place = __builtin_ctzll(fresh), sign = -(int)(less >> place & 1);
        block[huffman_natural[63 - place]] = (int16_t)((step ^ sign) - sign); /* no branch, since signs can't be predicted */
    }
    return 0;
}

TARGETED_INLINE int first_dc(const progressive_scan *s, bit_reader *io, memory *m, int component, int16_t *block) {
    const int most = 32767 >> s->low; /* libjpeg's coefficients have 16 bits */
    int *dc = &m->last_dc[component];
    bit_reader r = *io;
    REFILL(r);
    if (UNLIKELY(take_dc(&r, s->dc[component], dc) || *dc > most || *dc < -most)) return 1;
    if (block) block[0] = (int16_t)(*dc * (1 << s->low));
    *io = r;
    return 0;
}

TARGETED_INLINE void refine_dc(const progressive_scan *s, bit_reader *r, int16_t *block) {
    REFILL(*r);
    if (block) block[0] = (int16_t)(block[0] | (int)PEEK(*r, 1) << s->low);
    TAKE(*r, 1);
}

/* The place of the block's coefficients; NULL: they are not kept. */
TARGETED_INLINE int16_t *kept(const component_blocks *c, unsigned row, unsigned column) {
    row -= c->kept_row, column -= c->kept_column;
    return row < c->kept_rows && column < c->kept_columns ? c->kept[(size_t)row * c->kept_columns + column] : NULL;
}

/* Decodes one MCU of a DC scan. */
TARGETED_INLINE int dc_mcu(const progressive_scan *s, bit_reader *r, memory *m, unsigned row, unsigned column) {
    const int alone = s->components == 1;
    for (int number = 0; number < s->components; number++) {
        const component_blocks *c = s->component[number];
        const unsigned across = alone ? 1 : c->across, down = alone ? 1 : c->down;
        for (unsigned y = 0; y < down; y++)
            for (unsigned x = 0; x < across; x++) {
                int16_t *block = kept(c, row * down + y, column * across + x);
                if (s->refines) refine_dc(s, r, block);
                else if (first_dc(s, r, m, number, block)) return 1;
            }
    }
    return 0;
}

enum { DC, FIRST_AC, REFINE_AC };

/* Decodes all MCUs of a scan of one kind. */
TARGETED_INLINE int decode(const progressive_scan *s, bit_stream *stream, const int kind) {
    const component_blocks *c = s->component[0];
    memory m;
    unsigned until_restart = s->restart_interval;
    bit_reader r = READER(stream);
    memset(&m, 0, sizeof m);
    for (unsigned row = 0; row < s->rows; row++) {
        uint64_t *known = c->known + (size_t)row * c->stride;
        for (unsigned column = 0; column < s->columns; column++) {
            if (s->restart_interval && !until_restart--) {
                KEEP(stream, r);
                if (stream_restart(stream)) return 1;
                r = (bit_reader)READER(stream);
                memset(&m, 0, sizeof m);
                until_restart = s->restart_interval - 1;
            }
            if (UNLIKELY(stream->ready - r.next < MCU_BYTES)) {
                KEEP(stream, r);
                stream_more(stream);
                if (bits_left(stream) < 0) return 1;
                r = (bit_reader)READER(stream);
            }
            int bad;
            if (kind == DC) bad = dc_mcu(s, &r, &m, row, column);
            else if (kind == FIRST_AC) bad = first_ac(s, &r, &m, known + column, kept(c, row, column));
            else bad = refine_ac(s, &r, &m, known + column, kept(c, row, column));
            if (UNLIKELY(bad)) return 1;
        }
    }
    KEEP(stream, r);
    return bits_left(stream) < 0;
}

static TARGETED int decode_dc(const progressive_scan *s, bit_stream *stream) { return decode(s, stream, DC); }
static TARGETED int decode_first(const progressive_scan *s, bit_stream *stream) { return decode(s, stream, FIRST_AC); }
static TARGETED int decode_refining(const progressive_scan *s, bit_stream *stream) { return decode(s, stream, REFINE_AC); }

int SCAN(const progressive_scan *s, bit_stream *stream) {
    if (s->first == 0) return decode_dc(s, stream);
    return s->refines ? decode_refining(s, stream) : decode_first(s, stream);
}

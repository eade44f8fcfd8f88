/* Tables of Huffman codes (ITU T.81 Annex C and F.2.2), and the reader that removes the stuffing from a scan's bytes. */
#include "jpeg/huffman.h"

enum { MAX_DC_BITS = 11, MAX_AC_BITS = 10 }; /* of a value in files of 8 bits */

#define PACK(bits, kind, run, value) ((int32_t)((uint32_t)(bits) | (kind) << 6 | (uint32_t)(run) << 8 | (uint32_t)(value) << 16))

const uint8_t huffman_natural[64] = {
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

int huffman_codes(codes *t, huffman_source from, int is_dc) {
    if (!from.lengths || !from.symbols) return -1;
    if (t->made && t->is_dc == is_dc && !memcmp(t->lengths, from.lengths, 17) && !memcmp(t->symbols, from.symbols, 256))
        return 1; /* files from one source have the same tables */
    t->made = 0;
    memcpy(t->lengths, from.lengths, 17);
    memcpy(t->symbols, from.symbols, 256);
    memset(t->look, 0, sizeof t->look);
    int32_t code = 0;
    int place = 0;
    for (int bits = 1; bits <= 16; bits++) {
        t->offset[bits] = place - code;
        for (int k = 0; k < t->lengths[bits]; k++, code++, place++) {
            if (place > 255 || code + 1 >= 1 << bits) return -1; /* no code is all ones (C.2): libjpeg refuses such a table */
            int symbol = t->symbols[place], run = is_dc ? 0 : symbol >> 4, size = is_dc ? symbol : symbol & 15;
            if (size > (is_dc ? MAX_DC_BITS : MAX_AC_BITS)) return -1;
            if (bits > LOOK) continue;
            int32_t first = code << (LOOK - bits);
            for (int32_t rest = 0; rest < 1 << (LOOK - bits); rest++) {
                int32_t *entry = &t->look[first + rest];
                if (!is_dc && size == 0 && run != 15)
                    /* EOB. Runs 1 to 14 without a value occur in progressive JPEG; in baseline libjpeg ends the block there
                     * too. */
                    *entry = PACK(bits, END, run, 0);
                else if (size == 0)
                    *entry = PACK(bits, MORE, run, 0);
                else if (bits + size <= LOOK)
                    *entry = PACK(bits + size, VALUE, run, extend((uint32_t)rest >> (LOOK - bits - size) & ((1u << size) - 1), size));
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

int huffman_symbol(uint64_t window, const codes *t, int bits) {
    const int32_t code = (int32_t)(window >> 48);
    while (bits <= 16 && code >= t->limit[bits]) bits++;
    if (bits > 16) return 0;
    return bits << 8 | t->symbols[((code >> (16 - bits)) + t->offset[bits]) & 255];
}

void stream_more(bit_stream *s) {
    if (s->at_marker) return;
    size_t kept = (size_t)(s->ready - s->next);
    memmove(s->bytes, s->next, kept);
    uint8_t *to = s->bytes + kept, *full = to + PIECE_BYTES;
    const uint8_t *from = s->source, *end = s->source_end;
    while (to < full) {
        size_t room = (size_t)(full - to), left = (size_t)(end - from), most = room < left ? room : left;
        const uint8_t *ff = most ? memchr(from, 0xFF, most) : NULL;
        size_t plain = ff ? (size_t)(ff - from) : most;
        memcpy(to, from, plain);
        to += plain, from += plain;
        if (!ff) {
            if (from == end) s->at_marker = 1;
            break;
        }
        if (end - from < 2 || from[1] != 0) {
            s->at_marker = 1;
            break;
        }
        *to++ = 0xFF;
        from += 2;
    }
    memset(to, 0, MCU_BYTES); /* these zeros are read beyond the end of damaged data */
    s->source = from;
    s->next = s->bytes;
    s->ready = to;
}

static void start_segment(bit_stream *s, const uint8_t *from) {
    s->source = from;
    s->window = 0;
    s->valid = 0;
    s->at_marker = 0;
    s->next = s->ready = s->bytes;
    stream_more(s);
}

void stream_begin(bit_stream *s, const uint8_t *data, const uint8_t *end) {
    s->source_end = end;
    s->restart = 0;
    start_segment(s, data);
}

int stream_restart(bit_stream *s) {
    const uint8_t *at = s->source;
    if (!s->at_marker || bits_left(s) > 7 || bits_left(s) < 0) return 1;
    if (s->source_end - at < 2 || at[0] != 0xFF || at[1] != (0xD0 | s->restart)) return 1;
    s->restart = (s->restart + 1) & 7;
    start_segment(s, at + 2);
    return 0;
}

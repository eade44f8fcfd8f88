/* Reads a progressive file's markers and scans: ITU T.81 B.2, G.1. It is strict: anything unusual is left to libjpeg, which
 * knows how to go on and what to report. */
#include "jpeg/progressive.h"

#include <stdlib.h>

#include "jpeg/huffman.h"
#include "memory.h"
#include "jpeg/scan.h"

enum {
    SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0, APP14 = 0xEE
};

enum {
    KEPT_BYTES = 2 << 20, /* memory that is kept from image to image */
    MOST_LOW = 5          /* with more missing bits a coefficient of 10 bits could need more than 16 */
};

/* A Huffman table in the file's form. */
typedef struct {
    uint8_t lengths[17], symbols[256];
    int defined;
} table;

struct progressive {
    bit_stream stream;
    codes dc_codes[4], ac_codes;
    table dc[4], ac[4];
    component_blocks components[3];
    int names[3]; /* the components' numbers in the file */
    int missing[3][64]; /* low bits that no scan has given yet; -1: all bits */
    int count;
    unsigned width, height, restart_interval, columns, rows; /* MCUs of the image */
    progressive_part part;
    unsigned row, column; /* the MCU that progressive_mcu gives next */
    int strayed;
    const uint8_t *first_scan, *end; /* in the file: the segment of the first SOS marker, and the end */
    uint8_t *header, *blocks;
    size_t header_room, blocks_room;
};

progressive *progressive_new(void) { return calloc(1, sizeof(progressive)); }

void progressive_free(progressive *p) {
    if (!p) return;
    free(p->header);
    free(p->blocks);
    free(p);
}

int progressive_strayed(const progressive *p) { return p->strayed; }

void progressive_done(progressive *p) {
    if (p->blocks_room <= KEPT_BYTES) return;
    free(p->blocks);
    p->blocks = NULL;
    p->blocks_room = 0;
}

static unsigned number(const uint8_t *at) { return (unsigned)at[0] << 8 | at[1]; }

static unsigned divided(unsigned value, unsigned by) { return (value + by - 1) / by; }

static int read_tables(progressive *p, const uint8_t *at, size_t length) {
    while (length > 16) {
        const int index = at[0];
        table *t = index & 0x10 ? &p->ac[index & 3] : &p->dc[index & 3];
        size_t count = 0;
        for (int bits = 1; bits <= 16; bits++) count += at[bits];
        if (index & ~0x13 || count > 256 || count > length - 17) return -1;
        memcpy(t->lengths + 1, at + 1, 16);
        memset(t->symbols, 0, sizeof t->symbols);
        memcpy(t->symbols, at + 17, count);
        t->defined = 1;
        at += 17 + count, length -= 17 + count;
    }
    return length ? -1 : 0;
}

static int read_restart_interval(progressive *p, const uint8_t *at, size_t length) {
    if (length != 2) return -1;
    p->restart_interval = number(at);
    return 0;
}

static int read_frame(progressive *p, const uint8_t *at) {
    unsigned across = 1, down = 1;
    p->height = number(at + 1), p->width = number(at + 3), p->count = at[5];
    for (int c = 0; c < p->count; c++) {
        component_blocks *blocks = &p->components[c];
        const uint8_t *of = at + 6 + 3 * c;
        p->names[c] = of[0];
        for (int d = 0; d < c; d++)
            if (p->names[d] == of[0]) return -1;
        blocks->across = of[1] >> 4, blocks->down = of[1] & 15;
        if (blocks->across < 1 || blocks->across > 4 || blocks->down < 1 || blocks->down > 4) return -1;
        if (p->count == 1) blocks->across = blocks->down = 1; /* an MCU of one component is a block */
        if (blocks->across > across) across = blocks->across;
        if (blocks->down > down) down = blocks->down;
    }
    p->columns = divided(p->width, 8 * across), p->rows = divided(p->height, 8 * down);
    for (int c = 0; c < p->count; c++) {
        component_blocks *blocks = &p->components[c];
        blocks->columns = divided(p->width * blocks->across, 8 * across);
        blocks->rows = divided(p->height * blocks->down, 8 * down);
        blocks->stride = p->columns * blocks->across;
    }
    return 0;
}

/* Writes a header for libjpeg: the segments of the file's header that it needs, tables that are never used, and the header
 * of one scan with all components. */
size_t progressive_header(progressive *p, const uint8_t *content, size_t size, const uint8_t **header) {
    static const uint8_t tables[] = {0xFF, DHT, 0, 38, 0x00, 1, [22] = 0x10, 1, [39] = 0};
    size_t at = 2;
    uint8_t *to;
    memset(p->dc, 0, sizeof p->dc), memset(p->ac, 0, sizeof p->ac);
    p->count = 0, p->restart_interval = 0;
    p->end = content + size;
    for (;;) { /* jpeg_header has checked that all segments lie in the file */
        size_t length, start;
        int marker, bad = 0;
        while (content[at] == 0xFF) at++;
        marker = content[at++];
        length = number(content + at) - 2, start = at + 2;
        if (marker == SOS) break;
        if (marker == SOF2) bad = read_frame(p, content + start);
        else if (marker == DHT) bad = read_tables(p, content + start, length);
        else if (marker == DRI) bad = read_restart_interval(p, content + start, length);
        if (bad) return 0;
        at = start + length;
    }
    if (!p->count || grow((void **)&p->header, &p->header_room, at + 64)) return 0;
    p->first_scan = content + at;
    to = p->header;
    *to++ = 0xFF, *to++ = SOI;
    for (at = 2;;) {
        size_t length;
        int marker;
        while (content[at] == 0xFF) at++;
        marker = content[at++];
        length = number(content + at);
        if (marker == SOS) break;
        if (marker == SOF2 || marker == DQT || marker == APP0 || marker == APP14) {
            *to++ = 0xFF, *to++ = marker == SOF2 ? SOF1 : (uint8_t)marker;
            memcpy(to, content + at, length);
            to += length;
        }
        at += length;
    }
    memcpy(to, tables, sizeof tables);
    to += sizeof tables;
    *to++ = 0xFF, *to++ = SOS, *to++ = 0, *to++ = (uint8_t)(6 + 2 * p->count), *to++ = (uint8_t)p->count;
    for (int c = 0; c < p->count; c++) *to++ = (uint8_t)p->names[c], *to++ = 0;
    *to++ = 0, *to++ = 63, *to++ = 0;
    *header = p->header;
    return (size_t)(to - p->header);
}

/* Gets memory for the blocks of the part, all zero. */
static int make_blocks(progressive *p, const progressive_part *part) {
    const unsigned rows = part->last_row + 1, kept_rows = rows - part->first_row;
    const unsigned kept_columns = part->last_column + 1 - part->first_column;
    size_t bytes = 0;
    uint8_t *at;
    for (int c = 0; c < p->count; c++) {
        component_blocks *blocks = &p->components[c];
        blocks->kept_row = part->first_row * blocks->down, blocks->kept_rows = kept_rows * blocks->down;
        blocks->kept_column = part->first_column * blocks->across, blocks->kept_columns = kept_columns * blocks->across;
        bytes += (size_t)blocks->kept_rows * blocks->kept_columns * sizeof *blocks->kept +
                 (size_t)rows * blocks->down * blocks->stride * sizeof *blocks->known;
    }
    if (grow((void **)&p->blocks, &p->blocks_room, bytes)) return -1;
    memset(p->blocks, 0, bytes);
    at = p->blocks;
    for (int c = 0; c < p->count; c++) {
        component_blocks *blocks = &p->components[c];
        blocks->kept = (void *)at;
        at += (size_t)blocks->kept_rows * blocks->kept_columns * sizeof *blocks->kept;
        blocks->known = (void *)at;
        at += (size_t)rows * blocks->down * blocks->stride * sizeof *blocks->known;
    }
    return 0;
}

/* Whether the scan may come next. If so, p->missing is set for the coefficients that it gives. */
static int in_order(progressive *p, const progressive_scan *s, int high) {
    if (s->first == 0 ? s->last != 0 : s->components != 1 || s->last < s->first || s->last > 63) return 0;
    if (s->low > MOST_LOW || (high && s->low != high - 1)) return 0;
    for (int number = 0; number < s->components; number++) {
        int *missing = p->missing[s->component[number] - p->components];
        if (s->first && missing[0] < 0) return 0;
        for (int k = s->first; k <= s->last; k++) {
            if (missing[k] != (high ? high : -1)) return 0;
            missing[k] = s->low;
        }
    }
    return 1;
}

/* Reads a scan's header, which begins after its marker; the scan's bytes follow. A result other than 0: it is unusual. */
static int read_scan(progressive *p, const uint8_t *at, size_t length, progressive_scan *s) {
    const progressive_part *part = &p->part;
    unsigned blocks = 0;
    int tables[3], previous = -1, high;
    memset(s, 0, sizeof *s);
    if (length < 1 || (s->components = at[0]) < 1 || s->components > p->count || length != 4 + 2 * (size_t)s->components) return -1;
    for (int number = 0; number < s->components; number++) {
        int c = previous + 1; /* in the frame's order */
        while (c < p->count && p->names[c] != at[1 + 2 * number]) c++;
        if (c == p->count) return -1;
        previous = c;
        s->component[number] = &p->components[c];
        tables[number] = at[2 + 2 * number];
        blocks += p->components[c].across * p->components[c].down;
    }
    at += 1 + 2 * s->components;
    s->first = at[0], s->last = at[1], high = at[2] >> 4, s->low = at[2] & 15;
    s->refines = high > 0;
    s->restart_interval = p->restart_interval;
    if (!in_order(p, s, high)) return -1;
    if (s->components > 1) {
        if (blocks > MCU_BLOCKS) return -1;
        s->columns = p->columns, s->rows = part->last_row + 1;
    } else {
        const component_blocks *only = s->component[0];
        const unsigned rows = (part->last_row + 1) * only->down;
        s->columns = only->columns, s->rows = rows < only->rows ? rows : only->rows;
    }
    for (int number = 0; number < s->components; number++) {
        const int dc = tables[number] >> 4, ac = tables[number] & 15;
        if (dc > 3 || ac > 3) return -1;
        if (s->first) {
            const table *t = &p->ac[ac];
            if (!t->defined || huffman_codes(&p->ac_codes, (huffman_source){t->lengths, t->symbols}, 0) < 0) return -1;
            s->ac = &p->ac_codes;
        } else if (!s->refines) {
            const table *t = &p->dc[dc];
            if (!t->defined || huffman_codes(&p->dc_codes[dc], (huffman_source){t->lengths, t->symbols}, 1) < 0) return -1;
            s->dc[number] = &p->dc_codes[dc];
        }
    }
    return 0;
}

/* The marker after a scan's bytes, without its FF; NULL: the file ends early. */
static const uint8_t *next_marker(const uint8_t *at, const uint8_t *end) {
    while (end - at >= 2 && (at = memchr(at, 0xFF, (size_t)(end - at - 1)))) {
        const int next = at[1];
        if (next != 0 && next != 0xFF && (next & 0xF8) != 0xD0) return at + 1;
        at += next == 0xFF ? 1 : 2;
    }
    return NULL;
}

/* Whether all bits of the ten lowest frequencies are there. If not, libjpeg smooths. */
static int complete(const progressive *p) {
    for (int c = 0; c < p->count; c++)
        for (int k = 0; k < 10; k++)
            if (p->missing[c][k]) return 0;
    return 1;
}

int progressive_read(progressive *p, const progressive_part *part) {
    const uint8_t *at = p->first_scan;
    int marker = SOS;
    if (part->first_row > part->last_row || part->last_row >= p->rows || part->first_column > part->last_column ||
        part->last_column >= p->columns || make_blocks(p, part))
        return -1;
    p->part = *part;
    p->row = p->column = 0;
    p->strayed = 0;
    memset(p->missing, -1, sizeof p->missing);
    for (;;) {
        const uint8_t *segment = at + 2;
        size_t length;
        int bad;
        if (p->end - at < 2 || (length = number(at)) < 2 || length > (size_t)(p->end - at)) return -1;
        at += length, length -= 2;
        if (marker == SOS) {
            progressive_scan scan;
            bad = read_scan(p, segment, length, &scan);
            if (bad) return -1;
            stream_begin(&p->stream, at, p->end);
            bad = scan_decode(&scan, &p->stream);
            if (!bad) at = next_marker(p->stream.source, p->end);
        } else {
            bad = marker == DHT ? read_tables(p, segment, length) : marker == DRI ? read_restart_interval(p, segment, length) : -1;
            if (!bad && (p->end - at < 2 || *at++ != 0xFF)) return -1;
            while (!bad && *at == 0xFF && at + 1 < p->end) at++;
        }
        if (bad || !at) return -1;
        marker = *at++;
        if (marker == EOI) return complete(p) ? 0 : -1;
    }
}

void progressive_mcu(progressive *p, int16_t (*const *blocks)[64]) {
    const unsigned row = p->row, column = p->column - p->part.first_column;
    if (++p->column == p->columns) p->column = 0, p->row++;
    if (!blocks) return;
    if (row < p->part.first_row || row > p->part.last_row) {
        p->strayed = 1;
        return;
    }
    if (column > p->part.last_column - p->part.first_column) return;
    for (int c = 0; c < p->count; c++) {
        const component_blocks *of = &p->components[c];
        for (unsigned y = 0; y < of->down; y++) {
            const size_t from = (size_t)((row - p->part.first_row) * of->down + y) * of->kept_columns + column * of->across;
            for (unsigned x = 0; x < of->across; x++) memcpy(*blocks++, of->kept[from + x], sizeof *of->kept);
        }
    }
}

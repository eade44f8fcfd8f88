/* Decodes a part of a JPEG with libjpeg.
 *
 * The rows have the same bits as in a decode of the whole image:
 * - Columns: fancy upsampling uses the neighbouring samples, so one more MCU is decoded where the neighbour lies in it.
 * - Rows: there is only one skip, from row 0. libjpeg-turbo's bugs with skips (its issue 915) are in skips that do not start
 *   at a row group's boundary. Rows below the region are not decoded; the data are only searched for misplaced markers.
 * - If libjpeg smooths over blocks that a progressive file has not sent yet, the whole image is decoded.
 *
 * - For a baseline file with one scan, our entropy decoder (entropy.c) replaces libjpeg's. The rest of libjpeg
 *   (dequantisation, inverse DCT, upsampling, colours) gets the same coefficients and works as always.
 * - Our decoder (progressive.c) reads a progressive file's scans. libjpeg gets a baseline file's header and, MCU by MCU,
 *   these coefficients. So libjpeg keeps no coefficients itself, and works on the region alone. If our decoder finds
 *   anything unusual, libjpeg gets the original file.
 *
 * An image for which libjpeg reports anything, even a warning, is refused at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "ddlp.h"
#include "jpeg/decoder.h"
#include "jpeg/libjpeg.h"
#include "memory.h"

/* Rows that are passed on at a time: few enough to stay in the first-level cache, and a multiple of the rows of vector
 * loops. */
#define BAND_ROWS 16

/* Rows begin this many bytes off the alignment of vector stores. If rows are aligned, libjpeg-turbo's colour conversion stores
 * past the cache, which is good for rows that are not read soon. These rows are read at once, so that would cost a tenth of the
 * whole time. */
#define OFF_ALIGNMENT 8

/* Each scan of a file is a walk through the whole image. Encoders make about ten; a file of more than these is left to Pillow,
 * whose decoding an engine can break off. */
#define MOST_SCANS 100

/* The decoding of one image. Each image gets a new decoder, since libjpeg keeps an image's tables for the next one. An image
 * without tables of its own would then be decoded, but Pillow fails on it. */
typedef struct {
    union { /* first: libjpeg's callbacks get its address */
        jpeg_common common;
        uint64_t room[JPEG_DECODER_BYTES / sizeof(uint64_t)];
    } decoder;
    const jpeg_library *jpeg;
    jpeg_facts facts; /* once the decoding has begun */
    jpeg_errors errors;
    jpeg_source source;
    jmp_buf give_up;
    int own_entropy; /* client_data replaces libjpeg's entropy decoder */
    int own_scans;   /* client_data is a `progressive`, and the source is only a header */
} decoding;

static void give_up(jpeg_common *decoder) { longjmp(((decoding *)decoder)->give_up, 1); }

static void on_message(jpeg_common *decoder, int level) {
    if (level < 0) give_up(decoder);
}

static void on_nothing(jpeg_common *decoder) { (void)decoder; }

static int on_end_of_data(jpeg_common *decoder) {
    give_up(decoder);
    return 0;
}

static void on_skip(jpeg_common *decoder, long count) {
    jpeg_source *source = decoder->src;
    if (count <= 0) return;
    if ((size_t)count > source->bytes_in_buffer) give_up(decoder);
    source->next_input_byte += count;
    source->bytes_in_buffer -= (size_t)count;
}

static int on_lost_restart(jpeg_common *decoder, int desired) {
    (void)desired;
    give_up(decoder);
    return 0;
}

/* Whether the library is built for this layout: else CreateDecompress reports an error. */
static int has_layout(const jpeg_library *jpeg, const jpeg_layout *layout) {
    decoding trial;
    memset(&trial, 0, sizeof trial);
    trial.decoder.common.err = jpeg->std_error(&trial.errors);
    trial.errors.error_exit = give_up;
    if (setjmp(trial.give_up)) return 0;
    jpeg->CreateDecompress(&trial.decoder.common, layout->version, layout->bytes);
    jpeg->destroy_decompress(&trial.decoder.common);
    return 1;
}

int decoder_load(void *library, jpeg_library *jpeg) {
    static const jpeg_layout *const layouts[] = {&ddlp_layout_62, &ddlp_layout_80};
#define FIND(name) \
    if (!(*(void **)&jpeg->name = dlsym(library, "jpeg_" #name))) return DDLP_NO_LIBJPEG
    FIND(std_error);
    FIND(CreateDecompress);
    FIND(destroy_decompress);
    FIND(read_header);
    FIND(start_decompress);
    FIND(crop_scanline);
    FIND(skip_scanlines);
    FIND(read_scanlines);
#undef FIND
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++)
        if (has_layout(jpeg, layouts[k])) {
            jpeg->layout = layouts[k];
            return 0;
        }
    return DDLP_NO_LIBJPEG;
}

/* Whether libjpeg smooths: it does for a progressive file in which some bits of low frequencies are missing. */
static int smooths(const jpeg_facts *facts) {
    if (!facts->progressive_mode || !facts->coef_bits) return 0;
    for (int component = 0; component < facts->num_components; component++)
        for (int coefficient = 0; coefficient < 10; coefficient++)
            if (facts->coef_bits[component][coefficient]) return 1;
    return 0;
}

/* Makes libjpeg decode no more columns than needed. Sets `first` and `columns` to the columns that rows then have.
 *
 * Fancy upsampling takes another sample's half for the first and the last column of an MCU only, so a neighbouring MCU is needed
 * where the region has such a column. libjpeg does not do it for rows of fewer than three samples: a piece of the last MCU gets
 * its neighbour too. */
static void narrow(decoding *d, const region *wanted, unsigned *first, unsigned *columns) {
    const unsigned mcu = 8u * (unsigned)d->facts.max_h_samp_factor; /* of the unscaled image */
    const unsigned width = d->facts.output_width;
    const unsigned left = (unsigned)wanted->left / mcu * mcu, end = (unsigned)(wanted->left + wanted->width);
    const int scaled = wanted->reduce > 1; /* an unscaled MCU is more than enough then */
    const int neighbour = scaled || left == (unsigned)wanted->left || left + mcu > width;
    unsigned right = scaled ? end + mcu : (end / mcu + 1) * mcu;
    *first = left && neighbour ? left - mcu : left;
    if (right > width) right = width;
    *columns = right - *first;
    if (*columns < width) d->jpeg->crop_scanline(&d->decoder.common, first, columns);
}

static int decode_mcu(jpeg_common *decoder, int16_t (**blocks)[64]) {
    entropy_mcu(decoder->client_data, blocks);
    return 1; /* damage is checked later: the rows are then discarded */
}

static int give_mcu(jpeg_common *decoder, int16_t (**blocks)[64]) {
    progressive_mcu(decoder->client_data, blocks);
    return 1;
}

/* Whether a function is libjpeg's own. No public header declares the structure, so its fields are checked in this way. A
 * function that passes is remembered in *checked. */
static int inside_libjpeg(const jpeg_library *jpeg, void *function, void **checked) {
    Dl_info theirs, known;
    if (function == *checked) return 1;
    if (!dladdr(function, &theirs) || !dladdr(*(void *const *)&jpeg->read_scanlines, &known) || theirs.dli_fbase != known.dli_fbase)
        return 0;
    *checked = function;
    return 1;
}

/* Whether libjpeg's entropy decoder, which has not begun yet, can be replaced. *mcu: columns of an MCU in the scaled image. */
static int replaceable(const decoding *d, const region *wanted, decoder_memory *memory, unsigned *mcu) {
    const jpeg_facts *facts = &d->facts;
    const jpeg_entropy *theirs = facts->entropy;
    /* An MCU of one component is a block, with any sampling factors. */
    const int samples = facts->comps_in_scan == 1 ? 1 : facts->max_h_samp_factor;
    *mcu = 8u * (unsigned)samples / (unsigned)wanted->reduce;
    if (facts->progressive_mode || facts->comps_in_scan < facts->num_components || facts->unread_marker) return 0;
    return *mcu && facts->blocks_in_MCU <= MCU_BLOCKS &&
           inside_libjpeg(d->jpeg, *(void *const *)&theirs->start_pass, &memory->checked[0]) &&
           inside_libjpeg(d->jpeg, *(void *const *)&theirs->decode_mcu, &memory->checked[1]);
}

/* The rows of MCUs that libjpeg asks for: it skips whole rows of interleaved MCUs, and reads one more of them on either side. */
static int wanted_rows(const jpeg_facts *facts, const region *wanted, unsigned *first, unsigned *last) {
    const unsigned lines = 8u * (unsigned)facts->max_v_samp_factor / (unsigned)wanted->reduce;
    const unsigned each = facts->comps_in_scan == 1 ? (unsigned)facts->max_v_samp_factor : 1;
    const unsigned top = (unsigned)wanted->top / (lines ? lines : 1);
    *first = (top ? top - 1 : 0) * each;
    *last = ((unsigned)(wanted->top + wanted->height - 1) / (lines ? lines : 1) + 2) * each - 1;
    if (*last >= facts->MCU_rows_in_scan) *last = facts->MCU_rows_in_scan - 1;
    return lines != 0;
}

/* Replaces libjpeg's entropy decoder by ours. 0: libjpeg's stays. */
static int take_over(decoding *d, const region *wanted, decoder_memory *memory, unsigned first, unsigned columns) {
    entropy *ours = memory->entropy;
    const jpeg_facts *facts = &d->facts;
    unsigned mcu;
    entropy_scan scan;
    if (!ours || !replaceable(d, wanted, memory, &mcu)) return 0;
    memset(&scan, 0, sizeof scan);
    scan.data = d->source.next_input_byte;
    scan.end = scan.data + d->source.bytes_in_buffer;
    scan.components = facts->comps_in_scan;
    scan.blocks = facts->blocks_in_MCU;
    for (int block = 0; block < scan.blocks; block++) scan.component[block] = facts->MCU_membership[block];
    for (int c = 0; c < facts->comps_in_scan; c++) {
        const jpeg_codes *dc = facts->dc_codes[c], *ac = facts->ac_codes[c];
        if (!dc || !ac) return 0;
        scan.dc[c].lengths = dc->lengths, scan.dc[c].symbols = dc->symbols;
        scan.ac[c].lengths = ac->lengths, scan.ac[c].symbols = ac->symbols;
    }
    scan.restart_interval = facts->restart_interval;
    scan.mcus_per_row = facts->MCUs_per_row;
    scan.first_column = first / mcu;
    scan.last_column = (first + columns - 1) / mcu;
    if (entropy_begin(ours, &scan)) return 0;
    d->decoder.common.client_data = ours;
    facts->entropy->decode_mcu = decode_mcu;
    return 1;
}

/* Reads all scans, and replaces libjpeg's entropy decoder by their coefficients. 0: that is not possible. */
static int take_scans(decoding *d, const region *wanted, decoder_memory *memory, unsigned first, unsigned columns) {
    progressive *ours = memory->progressive;
    progressive_part part;
    unsigned mcu;
    if (!wanted_rows(&d->facts, wanted, &part.first_row, &part.last_row) || !replaceable(d, wanted, memory, &mcu)) return 0;
    part.first_column = first / mcu;
    part.last_column = (first + columns - 1) / mcu;
    if (progressive_read(ours, &part)) return 0;
    d->decoder.common.client_data = ours;
    d->facts.entropy->decode_mcu = give_mcu;
    return 1;
}

static int rows_of(decoding *d, const region *wanted, decoder_memory *memory, rows_taker take, void *taker) {
    const jpeg_facts *facts = &d->facts;
    unsigned first = 0, columns = facts->output_width, row = 0;
    const unsigned top = (unsigned)wanted->top, end = top + (unsigned)wanted->height;
    size_t stride;
    uint8_t *rows[BAND_ROWS];
    int filled = 0;
    if (wanted->left < 0 || wanted->top < 0 || wanted->width < 1 || wanted->height < 1 || end > facts->output_height ||
        (unsigned)wanted->left + (unsigned)wanted->width > facts->output_width)
        return DDLP_JOB;
    if (!smooths(facts)) {
        narrow(d, wanted, &first, &columns);
        if (d->own_scans) {
            if (!take_scans(d, wanted, memory, first, columns)) return DDLP_DAMAGED;
            memory->own_entropy = 1;
        } else {
            memory->own_entropy = d->own_entropy = take_over(d, wanted, memory, first, columns);
        }
        if (top) row = d->jpeg->skip_scanlines(&d->decoder.common, top);
    }
    stride = ((size_t)columns * (size_t)wanted->channels + 63) & ~(size_t)63;
    if (grow((void **)&memory->bytes, &memory->room, OFF_ALIGNMENT + stride * BAND_ROWS + DDLP_SLACK)) return -ENOMEM;
    for (int i = 0; i < BAND_ROWS; i++) rows[i] = memory->bytes + OFF_ALIGNMENT + stride * (size_t)i;
    while (row < end) {
        const unsigned limit = row < top ? top : end; /* rows above the region are read only if skipping is not exact */
        const unsigned room = limit - row < (unsigned)(BAND_ROWS - filled) ? limit - row : (unsigned)(BAND_ROWS - filled);
        const unsigned got = d->jpeg->read_scanlines(&d->decoder.common, rows + filled, room);
        if (!got || (d->own_entropy && entropy_damaged(memory->entropy))) return DDLP_DAMAGED;
        if (d->own_scans && progressive_strayed(memory->progressive)) return DDLP_DAMAGED;
        row += got;
        if (row <= top) continue;
        filled += (int)got;
        if (filled == BAND_ROWS || row == end) {
            const uint8_t *from = rows[0] + ((size_t)wanted->left - first) * (size_t)wanted->channels;
            memory->given = 1;
            const int result = take(taker, from, (int64_t)stride, filled);
            if (result) return result;
            filled = 0;
        }
    }
    return 0;
}

/* Whether the data after the region can cause no more than a warning. Pillow reads on, and must have no error to report. */
static int ended_well(decoding *d) {
    const jpeg_facts *facts = &d->facts;
    const uint8_t *next = d->source.next_input_byte, *end = next + d->source.bytes_in_buffer;
    d->jpeg->layout->look(&d->decoder.common, &d->facts);
    /* Several scans were read to the end of the image before the first row. */
    if (d->own_scans || facts->progressive_mode || facts->comps_in_scan < facts->num_components) return 1;
    if (d->own_entropy) return jpeg_ends_well(entropy_rest(d->decoder.common.client_data), end);
    /* The marker at which the entropy decoder has just stopped is no longer in the source. */
    if (facts->unread_marker && (facts->unread_marker & 0xF8) != 0xD0) return facts->unread_marker == 0xD9;
    return jpeg_ends_well(next, end);
}

/* Decodes a file. With own_scans `content` is only a header, and our decoder gives the coefficients. */
static int decode_with(const jpeg_library *jpeg, const uint8_t *content, size_t size, int own_scans, const region *wanted,
                       decoder_memory *memory, rows_taker take, void *taker) {
    decoding d;
    jpeg_common *decoder = &d.decoder.common;
    int result;
    memset(&d.decoder, 0, sizeof d.decoder);
    d.jpeg = jpeg;
    memory->own_entropy = d.own_entropy = 0;
    d.own_scans = own_scans;
    decoder->err = jpeg->std_error(&d.errors);
    d.errors.error_exit = give_up;
    d.errors.emit_message = on_message;
    d.errors.output_message = on_nothing;
    if (setjmp(d.give_up)) {
        jpeg->destroy_decompress(decoder);
        return DDLP_DAMAGED;
    }
    jpeg->CreateDecompress(decoder, jpeg->layout->version, jpeg->layout->bytes);
    d.source.next_input_byte = content;
    d.source.bytes_in_buffer = size;
    d.source.init_source = on_nothing;
    d.source.fill_input_buffer = on_end_of_data;
    d.source.skip_input_data = on_skip;
    d.source.resync_to_restart = on_lost_restart;
    d.source.term_source = on_nothing;
    decoder->src = &d.source;
    if (jpeg->read_header(decoder, 1) != JPEG_HEADER_OK) give_up(decoder);
    jpeg->layout->want(decoder, (unsigned)wanted->reduce, wanted->channels == 1 ? JPEG_GRAYSCALE : JPEG_RGB);
    jpeg->start_decompress(decoder);
    jpeg->layout->look(decoder, &d.facts);
    result = rows_of(&d, wanted, memory, take, taker);
    if (!result && !ended_well(&d)) result = DDLP_DAMAGED;
    jpeg->destroy_decompress(decoder);
    return result;
}

int decoder_decode(const jpeg_library *jpeg, const uint8_t *content, size_t size, const region *wanted, decoder_memory *memory,
                   rows_taker take, void *taker) {
    const uint8_t *header;
    size_t length = 0;
    if (wanted->several_scans && jpeg_scans(content, content + size) > MOST_SCANS) return DDLP_KIND;
    if (wanted->several_scans && !memory->progressive) memory->progressive = progressive_new();
    if (wanted->several_scans && memory->progressive) length = progressive_header(memory->progressive, content, size, &header);
    if (length) {
        memory->given = 0;
        const int result = decode_with(jpeg, header, length, 1, wanted, memory, take, taker);
        progressive_done(memory->progressive);
        if (result != DDLP_DAMAGED || memory->given) return result;
    }
    return decode_with(jpeg, content, size, 0, wanted, memory, take, taker);
}

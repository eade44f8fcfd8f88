/* The part of libjpeg's binary interface that a decoder needs, as far as all versions have it: the others are in layout.h.
 *
 * It is written here so that a build needs no header of libjpeg, neither this computer's nor, in a cross-build, a board's.
 * Fields have their names in jpeglib.h, which describes them.
 */
#ifndef DDLP_LIBJPEG_H
#define DDLP_LIBJPEG_H

#include <stddef.h>
#include <stdint.h>

enum { JPEG_GRAYSCALE = 1, JPEG_RGB = 2 }; /* J_COLOR_SPACE */
enum { JPEG_HEADER_OK = 1 };
enum { JPEG_DECODER_BYTES = 1024 }; /* as many as struct jpeg_decompress_struct has in any layout, or more */

/* The beginning of struct jpeg_decompress_struct. libjpeg's functions get its address. */
typedef struct jpeg_common jpeg_common;

typedef struct {
    void (*error_exit)(jpeg_common *);
    void (*emit_message)(jpeg_common *, int level); /* level < 0: a warning */
    void (*output_message)(jpeg_common *);
    void (*format_message)(jpeg_common *, char *);
    void (*reset_error_mgr)(jpeg_common *);
    int msg_code;
    union {
        int i[8];
        char s[80];
    } msg_parm;
    int trace_level;
    long num_warnings;
    const char *const *jpeg_message_table;
    int last_jpeg_message;
    const char *const *addon_message_table;
    int first_addon_message, last_addon_message;
} jpeg_errors;

typedef struct {
    const uint8_t *next_input_byte;
    size_t bytes_in_buffer;
    void (*init_source)(jpeg_common *);
    int (*fill_input_buffer)(jpeg_common *);
    void (*skip_input_data)(jpeg_common *, long);
    int (*resync_to_restart)(jpeg_common *, int desired);
    void (*term_source)(jpeg_common *);
} jpeg_source;

struct jpeg_common {
    jpeg_errors *err;
    void *mem, *progress, *client_data;
    int is_decompressor, global_state;
    jpeg_source *src;
};

/* The beginning of struct jpeg_entropy_decoder (jpegint.h). */
typedef struct {
    void (*start_pass)(jpeg_common *);
    int (*decode_mcu)(jpeg_common *, int16_t (**blocks)[64]);
} jpeg_entropy;

/* The beginning of a Huffman table. */
typedef struct {
    uint8_t lengths[17], symbols[256];
} jpeg_codes;

/* What a decode that has begun wants to know of a decoder. */
typedef struct {
    unsigned output_width, output_height;
    int num_components;
    int (*coef_bits)[64];
    int progressive_mode;
    unsigned restart_interval;
    int max_h_samp_factor, max_v_samp_factor;
    int comps_in_scan;
    const jpeg_codes *dc_codes[4], *ac_codes[4]; /* of the scan's components; NULL: the file has none */
    unsigned MCUs_per_row, MCU_rows_in_scan;
    int blocks_in_MCU, MCU_membership[10];
    int unread_marker;
    jpeg_entropy *entropy;
} jpeg_facts;

/* One layout of struct jpeg_decompress_struct: layout.h. */
typedef struct {
    int version; /* JPEG_LIB_VERSION */
    size_t bytes;
    /* Before jpeg_start_decompress: decode at 1 / denominator of the size, to JPEG_GRAYSCALE or JPEG_RGB. */
    void (*want)(jpeg_common *, unsigned denominator, int colours);
    /* After it. */
    void (*look)(const jpeg_common *, jpeg_facts *facts);
} jpeg_layout;

extern const jpeg_layout ddlp_layout_62, ddlp_layout_80;

/* A loaded libjpeg. */
typedef struct {
    const jpeg_layout *layout;
    jpeg_errors *(*std_error)(jpeg_errors *);
    void (*CreateDecompress)(jpeg_common *, int version, size_t size);
    void (*destroy_decompress)(jpeg_common *);
    int (*read_header)(jpeg_common *, int require_image);
    int (*start_decompress)(jpeg_common *);
    void (*crop_scanline)(jpeg_common *, unsigned *left, unsigned *width);
    unsigned (*skip_scanlines)(jpeg_common *, unsigned count);
    unsigned (*read_scanlines)(jpeg_common *, uint8_t **rows, unsigned count);
} jpeg_library;

#endif

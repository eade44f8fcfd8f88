/* The part of libjpeg's binary interface that a decoder needs: the layout of its structures for LIBJPEG_ABI 62 (libjpeg 6.2, as
 * libjpeg-turbo has it nearly everywhere) or 80 (libjpeg 8, as Ubuntu builds it).
 *
 * It is written here so that a build needs no header of libjpeg, neither this computer's nor, in a cross-build, a board's. The
 * layouts are fixed: the library's so-name stands for them, and jpeg_CreateDecompress refuses a caller whose structure has
 * another size. tests/csd_engine/kernels/test_abi.py compares every offset with jpeglib.h, if there is one. Fields have their
 * names in jpeglib.h, which describes them.
 */
#ifndef DDLP_LIBJPEG_H
#define DDLP_LIBJPEG_H

#include <stddef.h>
#include <stdint.h>

#ifndef LIBJPEG_ABI
#error "LIBJPEG_ABI: 62 or 80"
#endif

enum { JPEG_GRAYSCALE = 1, JPEG_RGB = 2 }; /* J_COLOR_SPACE */
enum { JPEG_HEADER_OK = 1 };

typedef struct jpeg_decompress jpeg_decompress;

typedef struct {
    void (*error_exit)(jpeg_decompress *);
    void (*emit_message)(jpeg_decompress *, int level); /* level < 0: a warning */
    void (*output_message)(jpeg_decompress *);
    void (*format_message)(jpeg_decompress *, char *);
    void (*reset_error_mgr)(jpeg_decompress *);
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
    void (*init_source)(jpeg_decompress *);
    int (*fill_input_buffer)(jpeg_decompress *);
    void (*skip_input_data)(jpeg_decompress *, long);
    int (*resync_to_restart)(jpeg_decompress *, int desired);
    void (*term_source)(jpeg_decompress *);
} jpeg_source;

typedef struct {
    int component_id, component_index, h_samp_factor, v_samp_factor, quant_tbl_no, dc_tbl_no, ac_tbl_no;
    unsigned width_in_blocks, height_in_blocks;
#if LIBJPEG_ABI >= 70
    int DCT_h_scaled_size, DCT_v_scaled_size;
#else
    int DCT_scaled_size;
#endif
    unsigned downsampled_width, downsampled_height;
    int component_needed;
    int MCU_width, MCU_height, MCU_blocks, MCU_sample_width, last_col_width, last_row_height;
    void *quant_table, *dct_table;
} jpeg_component;

struct jpeg_decompress {
    jpeg_errors *err;
    void *mem, *progress, *client_data;
    int is_decompressor, global_state;
    jpeg_source *src;
    unsigned image_width, image_height;
    int num_components, jpeg_color_space, out_color_space;
    unsigned scale_num, scale_denom;
    double output_gamma;
    int buffered_image, raw_data_out, dct_method, do_fancy_upsampling, do_block_smoothing;
    int quantize_colors, dither_mode, two_pass_quantize, desired_number_of_colors;
    int enable_1pass_quant, enable_external_quant, enable_2pass_quant;
    unsigned output_width, output_height;
    int out_color_components, output_components, rec_outbuf_height, actual_number_of_colors;
    uint8_t **colormap;
    unsigned output_scanline;
    int input_scan_number;
    unsigned input_iMCU_row;
    int output_scan_number;
    unsigned output_iMCU_row;
    int (*coef_bits)[64];
    void *quant_tbl_ptrs[4], *dc_huff_tbl_ptrs[4], *ac_huff_tbl_ptrs[4];
    int data_precision;
    jpeg_component *comp_info;
#if LIBJPEG_ABI >= 80
    int is_baseline;
#endif
    int progressive_mode, arith_code;
    uint8_t arith_dc_L[16], arith_dc_U[16], arith_ac_K[16];
    unsigned restart_interval;
    int saw_JFIF_marker;
    uint8_t JFIF_major_version, JFIF_minor_version, density_unit;
    uint16_t X_density, Y_density;
    int saw_Adobe_marker;
    uint8_t Adobe_transform;
    int CCIR601_sampling;
    void *marker_list;
    int max_h_samp_factor, max_v_samp_factor;
#if LIBJPEG_ABI >= 70
    int min_DCT_h_scaled_size, min_DCT_v_scaled_size;
#else
    int min_DCT_scaled_size;
#endif
    unsigned total_iMCU_rows;
    void *sample_range_limit;
    int comps_in_scan;
    jpeg_component *cur_comp_info[4];
    unsigned MCUs_per_row, MCU_rows_in_scan;
    int blocks_in_MCU, MCU_membership[10];
    int Ss, Se, Ah, Al;
#if LIBJPEG_ABI >= 80
    int block_size;
    const int *natural_order;
    int lim_Se;
#endif
    int unread_marker;
    void *master, *main, *coef, *post, *inputctl, *marker, *entropy, *idct, *upsample, *cconvert, *cquantize;
};

#endif

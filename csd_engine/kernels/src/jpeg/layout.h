/* struct jpeg_decompress_struct of libjpeg for LIBJPEG_ABI 62 (libjpeg 6.2, as libjpeg-turbo has it nearly everywhere) or 80
 * (libjpeg 8, as Ubuntu builds it), and what has to know its fields' places. It is the body of layout62.c and layout80.c.
 *
 * The layouts are fixed: the library's so-name stands for them, and jpeg_CreateDecompress refuses a caller whose structure has
 * another size. tests/csd_engine/kernels/test_abi.py compares every offset with jpeglib.h, if there is one.
 */
#include <string.h>

#include "jpeg/libjpeg.h"

#ifndef LIBJPEG_ABI
#error "LIBJPEG_ABI: 62 or 80"
#endif

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

typedef struct {
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
} jpeg_decompress;

_Static_assert(sizeof(jpeg_decompress) <= JPEG_DECODER_BYTES, "room for a decoder");
_Static_assert(offsetof(jpeg_decompress, client_data) == offsetof(jpeg_common, client_data), "the common beginning");
_Static_assert(offsetof(jpeg_decompress, src) == offsetof(jpeg_common, src), "the common beginning");

static void want(jpeg_common *common, unsigned denominator, int colours) {
    jpeg_decompress *decoder = (jpeg_decompress *)common;
    decoder->scale_num = 1;
    decoder->scale_denom = denominator;
    decoder->out_color_space = colours;
}

static void look(const jpeg_common *common, jpeg_facts *facts) {
    const jpeg_decompress *decoder = (const jpeg_decompress *)common;
    memset(facts, 0, sizeof *facts);
    facts->output_width = decoder->output_width, facts->output_height = decoder->output_height;
    facts->num_components = decoder->num_components;
    facts->coef_bits = decoder->coef_bits;
    facts->progressive_mode = decoder->progressive_mode;
    facts->restart_interval = decoder->restart_interval;
    facts->max_h_samp_factor = decoder->max_h_samp_factor, facts->max_v_samp_factor = decoder->max_v_samp_factor;
    facts->comps_in_scan = decoder->comps_in_scan;
    for (int c = 0; c < decoder->comps_in_scan; c++) {
        facts->dc_codes[c] = decoder->dc_huff_tbl_ptrs[decoder->cur_comp_info[c]->dc_tbl_no & 3];
        facts->ac_codes[c] = decoder->ac_huff_tbl_ptrs[decoder->cur_comp_info[c]->ac_tbl_no & 3];
    }
    facts->MCUs_per_row = decoder->MCUs_per_row, facts->MCU_rows_in_scan = decoder->MCU_rows_in_scan;
    facts->blocks_in_MCU = decoder->blocks_in_MCU;
    memcpy(facts->MCU_membership, decoder->MCU_membership, sizeof facts->MCU_membership);
    facts->unread_marker = decoder->unread_marker;
    facts->entropy = decoder->entropy;
}

const jpeg_layout JPEG_LAYOUT = {LIBJPEG_ABI, sizeof(jpeg_decompress), want, look};

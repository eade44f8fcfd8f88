/* The operations of torchvision on tensors of bytes. */
#include <string.h>

#include "variant.h"

#define LOOPS torch_loops_c
#define TARGETED
#include "steps/torch_loops.h"

static const torch_loops *loops(void) {
#if defined(DDLP_X86)
    if (variant_used() >= VARIANT_AVX2 && processor() & PROCESSOR_FMA) return &torch_loops_fma;
#endif
    return &torch_loops_c;
}

/* Whose pixels, in the order of csd_engine/transforms/torch_pixels.py; GRID: with a fused product of matrices. */
enum { V1 = 1, V1_FUSED, V2_FUSED, V1_GRID, V1_FUSED_GRID, V2_FUSED_GRID };
enum { MKLS_PRODUCT = 400 }; /* multiplications; torch does fewer by itself */

static int is_v2(int whose) { return whose == V2_FUSED || whose == V2_FUSED_GRID; }

static int is_fused(int whose) { return whose != V1 && whose != V1_GRID; }

/* v1 adds no products of colours */
static int fused_colours(int whose) { return is_v2(whose); }

void torch_gray(const uint8_t *rgb, uint8_t *gray_ones, size_t count, int whose) {
    loops()->gray(rgb, gray_ones, count, fused_colours(whose));
}

void torch_brightness(picture *image, double factor) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = cut((float)i * (float)factor);
    colour_table(image, table);
}

void torch_contrast(picture *image, double factor, int whose) {
    const size_t count = (size_t)image->width * (size_t)image->height;
    const float rest = (float)(1.0 - factor);
    uint8_t part[COLOUR_PART], table[256];
    uint64_t sum = 0;
    for (size_t first = 0; first < count; first += COLOUR_PART) {
        const size_t n = count - first < COLOUR_PART ? count - first : COLOUR_PART;
        const uint8_t *gray_ones = image->channels == 1 ? image->pixels + first : part;
        if (image->channels == 3) torch_gray(image->pixels + 3 * first, part, n, whose);
        for (size_t i = 0; i < n; i++) sum += gray_ones[i];
    }
    const float mean = (float)sum / (float)count;
    for (int i = 0; i < 256; i++) table[i] = cut(add(mean, rest, (float)i * (float)factor, fused_colours(whose)));
    colour_table(image, table);
}

void torch_saturation(picture *image, double factor, int whose) {
    const size_t count = (size_t)image->width * (size_t)image->height;
    uint8_t gray_ones[COLOUR_PART], wide[3 * COLOUR_PART];
    if (image->channels == 1) return;
    for (size_t first = 0; first < count; first += COLOUR_PART) {
        const size_t n = count - first < COLOUR_PART ? count - first : COLOUR_PART;
        torch_gray(image->pixels + 3 * first, gray_ones, n, whose);
        for (size_t i = 0; i < n; i++) wide[3 * i] = wide[3 * i + 1] = wide[3 * i + 2] = gray_ones[i];
        loops()->blend(image->pixels + 3 * first, wide, (float)factor, (float)(1.0 - factor), 3 * n, fused_colours(whose));
    }
}

void torch_sharpness(picture *image, uint8_t *other, double factor, int whose) {
    const int32_t width = image->width, height = image->height;
    const int channels = image->channels;
    const ptrdiff_t row = (ptrdiff_t)width * channels;
    const size_t count = (size_t)row * (size_t)height, inner = (size_t)(row - 2 * channels);
    const float rest = (float)(1.0 - factor);
    if (width <= 2 || height <= 2) return;
    memcpy(other, image->pixels, count);
    for (int32_t y = 1; y < height - 1; y++)
        loops()->smooth(image->pixels + y * row + channels, row, channels, other + y * row + channels, inner);
    if (is_v2(whose)) loops()->sharpen(image->pixels, other, rest, count, is_fused(whose)); /* the border's stay */
    else loops()->blend(image->pixels, other, (float)factor, rest, count, 0);
}

void torch_hue(picture *image, double factor, int whose) {
    if (image->channels == 3)
        loops()->turn_hue(image->pixels, (size_t)image->width * (size_t)image->height, (float)factor, is_v2(whose));
}

void torch_autocontrast(picture *image, int whose) {
    uint32_t of[3][256];
    uint8_t table[3][256];
    colour_histograms(image, of);
    for (int c = 0; c < image->channels; c++) {
        int low, high;
        const int several = colour_range(of[c], &low, &high);
        const float range = (float)(high - low);
        for (int i = 0; i < 256; i++) {
            const float above = (float)(i - low);
            table[c][i] = !several ? (uint8_t)i
                          : is_v2(whose) ? cut(above / (range * (1.0f / 255))) : cut(above * (1.0f / range * 255.0f));
        }
    }
    colour_tables(image, table);
}

int torch_warp(const picture *image, uint8_t *out, const double *n) {
    const int whose = (int)n[0], filter = (int)n[1];
    torch_grid grid = {
        .pixels = image->pixels, .width = image->width, .height = image->height, 
        .fill = {(uint8_t)n[3], (uint8_t)n[4], (uint8_t)n[5], 0},
        .filled = n[2] != 0, .bilinear = filter != 0, .v2 = is_v2(whose),
        .fused_product = whose >= V1_GRID && 6 * (int64_t)image->width * image->height >= MKLS_PRODUCT,
    };
    if (whose < V1 || whose > V2_FUSED_GRID || filter < 0 || filter > 1) return DDLP_STEP;
    for (int k = 0; k < 6; k++) grid.matrix[k] = (float)n[6 + k] / (float)(0.5 * (k < 3 ? image->width : image->height));
    loops()->warp(&grid, out, image->channels, is_fused(whose));
    return 0;
}

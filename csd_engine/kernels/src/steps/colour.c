/* The operations of Pillow's ImageEnhance and ImageOps, and torchvision's hue, on interleaved bytes. */
#include <math.h>
#include <string.h>

#include "steps/steps.h"
#include "variant.h"

static size_t bytes_of(const picture *image) { return (size_t)image->width * (size_t)image->height * (size_t)image->channels; }

void colour_table(picture *image, const uint8_t *table) {
    const size_t count = bytes_of(image);
    for (size_t i = 0; i < count; i++) image->pixels[i] = table[image->pixels[i]];
}

void colour_tables(picture *image, uint8_t (*table)[256]) {
    const size_t count = bytes_of(image);
    if (image->channels == 1) {
        colour_table(image, table[0]);
        return;
    }
    for (size_t i = 0; i < count; i += 3)
        for (size_t c = 0; c < 3; c++) image->pixels[i + c] = table[c][image->pixels[i + c]];
}

/* Pillow does not clip for a factor between 0 and 1, but then no value is out of range. */
static uint8_t blended(int a, int b, float factor) {
    float value = (float)a + factor * (float)(b - a);
    value = value < 0 ? 0 : value;
    value = value > 255 ? 255 : value;
    return (uint8_t)(int32_t)value;
}

static void blend(const uint8_t *a, const uint8_t *b, float factor, uint8_t *out, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = blended(a[i], b[i], factor);
}

static void blend_with(uint8_t value, float factor, uint8_t *pixels, size_t count) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = blended(value, i, factor);
    for (size_t i = 0; i < count; i++) pixels[i] = table[pixels[i]];
}

static void saturate(const uint8_t *gray, float factor, uint8_t *pixels, size_t count) {
    uint8_t wide[3 * COLOUR_PART];
    for (size_t i = 0; i < count; i++) wide[3 * i] = wide[3 * i + 1] = wide[3 * i + 2] = gray[i];
    blend(wide, pixels, factor, pixels, 3 * count);
}

static void gray_of(const uint8_t *rgb, uint8_t *gray, size_t count) {
    for (size_t i = 0; i < count; i++) gray[i] = luma(rgb + 3 * i);
}

static void smooth(const uint8_t *in, ptrdiff_t row, int channels, uint8_t *restrict to, size_t count) {
    const uint8_t *below = in + row, *above = in - row;
    const float side = 1.0f / 13, middle = 5.0f / 13;
    for (const uint8_t *end = in + count; in < end; in++, below++, above++) {
        float sum = 0.5f; /* in Pillow's order */
        sum += (float)below[-channels] * side + (float)below[0] * side + (float)below[channels] * side;
        sum += (float)in[-channels] * side + (float)in[0] * middle + (float)in[channels] * side;
        sum += (float)above[-channels] * side + (float)above[0] * side + (float)above[channels] * side;
        sum = sum > 255 ? 255 : sum;
        *to++ = (uint8_t)(int32_t)sum;
    }
}

/* Converts to HSV and back as Pillow does. Pillow's mixture of float and double decides the last bit. */
static void turn_hue(uint8_t *rgb, size_t count, uint8_t shift, const hue_tables *tables) {
    for (const uint8_t *end = rgb + 3 * count; rgb < end; rgb += 3) {
        const uint8_t r = rgb[0], g = rgb[1], b = rgb[2];
        const uint8_t most = r > g ? (r > b ? r : b) : (g > b ? g : b), least = r < g ? (r < b ? r : b) : (g < b ? g : b);
        if (most == least) continue; /* no saturation: the pixel does not change */
        const float range = (float)(most - least);
        const float s = range / (float)most;
        const float rc = (float)(most - r) / range, gc = (float)(most - g) / range, bc = (float)(most - b) / range;
        const float h = r == most ? bc - gc : g == most ? (float)(2.0 + (double)rc - (double)bc) : (float)(4.0 + (double)gc - (double)rc);
        double turn = (double)h / 6.0 + 1.0;
        turn = turn >= 1.0 ? turn - 1.0 : turn;
        const uint8_t hue = (uint8_t)((uint8_t)(int)((double)(float)turn * 255.0) + shift);
        const uint8_t saturation = (uint8_t)(int)((double)s * 255.0);
        if (!saturation) {
            rgb[0] = rgb[1] = rgb[2] = most;
            continue;
        }
        const float f = tables->part[hue], fs = tables->share[saturation];
        const double v = (double)(float)most;
        const uint8_t p = (uint8_t)(int)(v * (1.0 - (double)fs) + 0.5);
        const uint8_t q = (uint8_t)(int)(v * (1.0 - (double)(fs * f)) + 0.5);
        const uint8_t t = (uint8_t)(int)(v * (1.0 - (double)fs * (1.0 - (double)f)) + 0.5);
        switch (tables->sector[hue]) {
        case 0: rgb[0] = most, rgb[1] = t, rgb[2] = p; break;
        case 1: rgb[0] = q, rgb[1] = most, rgb[2] = p; break;
        case 2: rgb[0] = p, rgb[1] = most, rgb[2] = t; break;
        case 3: rgb[0] = p, rgb[1] = q, rgb[2] = most; break;
        case 4: rgb[0] = t, rgb[1] = p, rgb[2] = most; break;
        default: rgb[0] = most, rgb[1] = p, rgb[2] = q; break;
        }
    }
}

const colour_loops colour_loops_c = {blend, blend_with, saturate, gray_of, smooth, turn_hue};

static const colour_loops *loops(void) {
#if defined(DDLP_X86)
    if (variant_used() >= VARIANT_AVX2) return &colour_loops_avx2;
#endif
    return &colour_loops_c;
}

void colour_blend(const uint8_t *a, const uint8_t *b, float factor, uint8_t *out, size_t count) {
    loops()->blend(a, b, factor, out, count);
}

void colour_gray(const uint8_t *rgb, uint8_t *gray, size_t count) { loops()->gray(rgb, gray, count); }

void colour_brightness(picture *image, float factor) { loops()->blend_with(0, factor, image->pixels, bytes_of(image)); }

void colour_contrast(picture *image, float factor) {
    const size_t count = (size_t)image->width * (size_t)image->height;
    uint8_t part[COLOUR_PART];
    uint64_t sum = 0;
    for (size_t first = 0; first < count; first += COLOUR_PART) {
        const size_t n = count - first < COLOUR_PART ? count - first : COLOUR_PART;
        const uint8_t *gray = image->channels == 1 ? image->pixels + first : part;
        uint32_t of_part = 0;
        if (image->channels == 3) colour_gray(image->pixels + 3 * first, part, n);
        for (size_t i = 0; i < n; i++) of_part += gray[i];
        sum += of_part;
    }
    loops()->blend_with((uint8_t)((double)sum / (double)count + 0.5), factor, image->pixels, bytes_of(image));
}

void colour_saturation(picture *image, float factor) {
    const size_t count = (size_t)image->width * (size_t)image->height;
    uint8_t gray[COLOUR_PART];
    if (image->channels == 1) return;
    for (size_t first = 0; first < count; first += COLOUR_PART) {
        const size_t n = count - first < COLOUR_PART ? count - first : COLOUR_PART;
        colour_gray(image->pixels + 3 * first, gray, n);
        loops()->saturate(gray, factor, image->pixels + 3 * first, n);
    }
}

void colour_smooth(const picture *image, uint8_t *out) {
    const int32_t width = image->width, height = image->height;
    const int channels = image->channels;
    const ptrdiff_t row = (ptrdiff_t)width * channels;
    if (width < 3 || height < 3) {
        memcpy(out, image->pixels, bytes_of(image));
        return;
    }
    memcpy(out, image->pixels, (size_t)row);
    for (int32_t y = 1; y < height - 1; y++) {
        const uint8_t *in = image->pixels + y * row;
        uint8_t *to = out + y * row;
        memcpy(to, in, (size_t)channels);
        loops()->smooth(in + channels, row, channels, to + channels, (size_t)(row - 2 * channels));
        memcpy(to + row - channels, in + row - channels, (size_t)channels);
    }
    memcpy(out + (height - 1) * row, image->pixels + (height - 1) * row, (size_t)row);
}

void colour_hue(picture *image, uint8_t shift) {
    hue_tables tables;
    if (image->channels == 1) return;
    for (int i = 0; i < 256; i++) {
        const double sixths = (double)(float)i * 6.0 / 255.0;
        const int whole = (int)sixths;
        tables.sector[i] = whole % 6;
        tables.part[i] = (float)(sixths - (double)(float)whole);
        tables.share[i] = (float)((double)(float)i / 255.0);
    }
    loops()->turn_hue(image->pixels, (size_t)image->width * (size_t)image->height, shift, &tables);
}

void colour_histograms(const picture *image, uint32_t (*of)[256]) {
    const size_t count = bytes_of(image);
    memset(of, 0, 3 * sizeof *of);
    if (image->channels == 1)
        for (size_t i = 0; i < count; i++) of[0][image->pixels[i]]++;
    else
        for (size_t i = 0; i < count; i += 3) of[0][image->pixels[i]]++, of[1][image->pixels[i + 1]]++, of[2][image->pixels[i + 2]]++;
}

int colour_range(const uint32_t *of, int *low, int *high) {
    *low = 0, *high = 255;
    while (*low < 255 && !of[*low]) ++*low;
    while (*high > 0 && !of[*high]) --*high;
    return *high > *low;
}

static void unchanged(uint8_t *table) {
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)i;
}

void colour_autocontrast(picture *image) {
    uint32_t of[3][256];
    uint8_t table[3][256];
    colour_histograms(image, of);
    for (int c = 0; c < image->channels; c++) {
        int low, high;
        if (!colour_range(of[c], &low, &high)) {
            unchanged(table[c]);
            continue;
        }
        const double scale = 255.0 / (high - low), offset = -low * scale;
        for (int i = 0; i < 256; i++) {
            const int value = (int)(i * scale + offset);
            table[c][i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
    colour_tables(image, table);
}

void colour_equalize(picture *image) {
    uint32_t of[3][256];
    uint8_t table[3][256];
    const uint32_t count = (uint32_t)image->width * (uint32_t)image->height;
    colour_histograms(image, of);
    for (int c = 0; c < image->channels; c++) {
        int last = 255;
        while (last > 0 && !of[c][last]) last--;
        const uint32_t step = (count - of[c][last]) / 255;
        if (!step) {
            unchanged(table[c]);
            continue;
        }
        uint32_t n = step / 2;
        for (int i = 0; i < 256; i++) {
            const uint32_t value = n / step;
            table[c][i] = (uint8_t)(value > 255 ? 255 : value);
            n += of[c][i];
        }
    }
    colour_tables(image, table);
}

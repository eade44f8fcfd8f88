/* The loops of torch.c. Included once for each instruction set, with LOOPS (the table's name), TARGETED (the processor that they
 * are compiled for) and perhaps FOUR, a vector of floats, with WIDENED (of four bytes), FUSED and ROUNDED. csd_engine/transforms/torch_pixels.py has the same, in the same order of operations. */
#include <stddef.h>
#include <string.h>

#include "steps/steps.h"

#if defined(FOUR)
#define INLINE INLINE_TARGETED
#else
#define INLINE static inline __attribute__((always_inline))
#endif

enum { PART = 64 }; /* pixels of a row whose positions are computed together */

/* a * b + c, rounded once or twice */
INLINE float add(float a, float b, float c, int fused) { return fused ? __builtin_fmaf(a, b, c) : a * b + c; }

INLINE uint8_t cut(float value) {
    value = value < 0 ? 0 : value;
    value = value > 255 ? 255 : value;
    return (uint8_t)(int32_t)value;
}

INLINE void gray_by(const uint8_t *rgb, uint8_t *gray, size_t count, int fused) {
    for (size_t i = 0; i < count; i++, rgb += 3)
        gray[i] = cut(add((float)rgb[2], 0.114f, add((float)rgb[1], 0.587f, (float)rgb[0] * 0.2989f, fused), fused));
}

TARGETED static void gray(const uint8_t *rgb, uint8_t *out, size_t count, int fused) {
    if (fused) gray_by(rgb, out, count, 1);
    else gray_by(rgb, out, count, 0);
}

INLINE void blend_by(uint8_t *pixels, const uint8_t *other, float factor, float rest, size_t count, int fused) {
    for (size_t i = 0; i < count; i++) pixels[i] = cut(add((float)other[i], rest, (float)pixels[i] * factor, fused));
}

TARGETED static void blend(uint8_t *pixels, const uint8_t *other, float factor, float rest, size_t count, int fused) {
    if (fused) blend_by(pixels, other, factor, rest, count, 1);
    else blend_by(pixels, other, factor, rest, count, 0);
}

INLINE void sharpen_by(uint8_t *pixels, const uint8_t *smooth, float rest, size_t count, int fused) {
    for (size_t i = 0; i < count; i++)
        pixels[i] = cut(add((float)(smooth[i] - pixels[i]), rest, (float)pixels[i], fused));
}

TARGETED static void sharpen(uint8_t *pixels, const uint8_t *smooth, float rest, size_t count, int fused) {
    if (fused) sharpen_by(pixels, smooth, rest, count, 1);
    else sharpen_by(pixels, smooth, rest, count, 0);
}

/* A mean of 3 x 3 values with 5 for the middle one, rounded; thirteenths are never halves. */
TARGETED static void smooth(const uint8_t *in, ptrdiff_t row, int channels, uint8_t *restrict to, size_t count) {
    const uint8_t *above = in - row, *below = in + row;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *a = above + i, *m = in + i, *b = below + i;
        const uint32_t sum = (uint32_t)(a[-channels] + a[0] + a[channels] + m[-channels] + 5 * m[0] + m[channels]
                                        + b[-channels] + b[0] + b[channels]);
        to[i] = (uint8_t)((2 * sum + 13) / 26);
    }
}

INLINE float within(float value) { return value < 0 ? 0 : value > 1 ? 1 : value; }

INLINE void turn_hue_by(uint8_t *rgb, size_t count, float factor, int v2) {
    const float part_of_255 = 1.0f / 255, sixth = 1.0f / 6;
    for (const uint8_t *end = rgb + 3 * count; rgb < end; rgb += 3) {
        float v[3], rise, fall, low, out[3];
        for (int c = 0; c < 3; c++) v[c] = v2 ? (float)rgb[c] * part_of_255 : (float)rgb[c] / 255.0f;
        const float most = v[0] > v[1] ? (v[0] > v[2] ? v[0] : v[2]) : (v[1] > v[2] ? v[1] : v[2]);
        const float least = v[0] < v[1] ? (v[0] < v[2] ? v[0] : v[2]) : (v[1] < v[2] ? v[1] : v[2]);
        const float range = most - least, divisor = most == least ? 1.0f : range, s = range / (most == least ? 1.0f : most);
        const float r = (most - v[0]) / divisor, g = (most - v[1]) / divisor, b = (most - v[2]) / divisor;
        float turn = most == v[0] ? b - g : most == v[1] ? r + 2.0f - b : g + 4.0f - r;
        turn = (v2 ? turn * sixth : turn / 6.0f) + 1.0f;
        turn = (turn >= 1.0f ? turn - 1.0f : turn) + factor;
        turn = turn >= 1.0f ? turn - 1.0f : turn < 0 ? turn + 1.0f : turn;
        const float sixths = turn * 6.0f;
        const int sector = (int)sixths;
        const float part = sixths - (float)sector, rest = 1.0f - s;
        fall = within(most * (1.0f - s * part));
        rise = within(most * (v2 ? s * part + rest : 1.0f - s * (1.0f - part)));
        low = within(most * rest);
        switch (sector % 6) {
        case 0: out[0] = most, out[1] = rise, out[2] = low; break;
        case 1: out[0] = fall, out[1] = most, out[2] = low; break;
        case 2: out[0] = low, out[1] = most, out[2] = rise; break;
        case 3: out[0] = low, out[1] = fall, out[2] = most; break;
        case 4: out[0] = rise, out[1] = low, out[2] = most; break;
        default: out[0] = most, out[1] = low, out[2] = fall; break;
        }
        for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)(int32_t)(out[c] * 255.999f);
    }
}

TARGETED static void turn_hue(uint8_t *rgb, size_t count, float factor, int v2) {
    if (v2) turn_hue_by(rgb, count, factor, 1);
    else turn_hue_by(rgb, count, factor, 0);
}

INLINE void nearest(const torch_grid *g, uint8_t *out, float x, float y, int channels) {
    const uint8_t *from = g->fill;
    if (x >= -1 && x <= (float)g->width && y >= -1 && y <= (float)g->height) { /* so the next lines round to integers */
        const int32_t column = (int32_t)((x + 12582912.0f) - 12582912.0f), line = (int32_t)((y + 12582912.0f) - 12582912.0f);
        if (column >= 0 && column < g->width && line >= 0 && line < g->height)
            from = g->pixels + ((size_t)line * (size_t)g->width + (size_t)column) * (size_t)channels;
    }
    for (int c = 0; c < channels; c++) out[c] = from[c];
}

INLINE int32_t floor_of(float value) {
    const int32_t whole = (int32_t)value;
    return whole - ((float)whole > value);
}

#if defined(FOUR)
/* A pixel of three channels that lies between four of the image. One byte after the last of them is read, and not used. */
INLINE void inner(const torch_grid *g, uint8_t *out, const uint8_t *at, ptrdiff_t row, const float share[4], int fused) {
    FOUR result = WIDENED(at) * share[0];
    const FOUR others[3] = {WIDENED(at + 3), WIDENED(at + row), WIDENED(at + row + 3)};
    for (int k = 0; k < 3; k++) result = fused ? FUSED(others[k], share[k + 1], result) : others[k] * share[k + 1] + result;
    if (g->filled) {
        const float covered = share[0] + share[1] + share[2] + share[3];
        const FOUR colour = WIDENED(g->fill);
        result = g->v2 ? (result - colour) * covered + colour : result * covered + (1.0f - covered) * colour;
    }
    const uint32_t bytes = ROUNDED(result);
    memcpy(out, &bytes, 3);
}
#endif

INLINE void bilinear(const torch_grid *g, uint8_t *out, float x, float y, int channels, int fused) {
    if (!(x >= -1 && x < (float)g->width && y >= -1 && y < (float)g->height)) {
        for (int c = 0; c < channels; c++) out[c] = g->fill[c];
        return;
    }
    const int32_t left = floor_of(x), top = floor_of(y);
    const float right_of = x - (float)left, below = y - (float)top, left_of = 1.0f - right_of, above = 1.0f - below;
    const float share[4] = {above * left_of, above * right_of, below * left_of, below * right_of};
    const int across[2] = {left >= 0, left + 1 < g->width}, down[2] = {top >= 0, top + 1 < g->height};
    const ptrdiff_t row = (ptrdiff_t)g->width * channels;
    const uint8_t *at = g->pixels + top * row + (ptrdiff_t)left * channels;
#if defined(FOUR)
    if (channels == 3 && (across[0] & across[1] & down[0] & down[1])) {
        inner(g, out, at, row, share, fused);
        return;
    }
#endif
    float covered = 0, value[4];
    int known[4];
    for (int k = 0; k < 4; k++) known[k] = across[k & 1] & down[k >> 1];
    for (int k = 0; k < 4; k++) covered += known[k] ? share[k] : 0.0f; /* products with 1 or 0 are exact */
    for (int c = 0; c < channels; c++) {
        for (int k = 0; k < 4; k++) value[k] = known[k] ? (float)at[(k >> 1) * row + (k & 1) * channels + c] : 0.0f;
        float result = value[0] * share[0];
        for (int k = 1; k < 4; k++) result = add(value[k], share[k], result, fused);
        if (g->filled) {
            const float colour = (float)g->fill[c];
            result = g->v2 ? (result - colour) * covered + colour : result * covered + (1.0f - covered) * colour;
        }
        out[c] = (uint8_t)(int32_t)((result + 12582912.0f) - 12582912.0f);
    }
}

/* The positions in the image of `count` pixels of a row, from this one on. */
INLINE void positions(const torch_grid *g, float *xs, float *ys, int32_t line, int32_t first, int count, int fused, int product) {
    const float *m = g->matrix, wide = (float)g->width / 2, high = (float)g->height / 2;
    const float middle = (float)(g->width - 1) / 2, y = (float)line - (float)(g->height - 1) / 2;
    for (int i = 0; i < count; i++) {
        const float x = (float)(first + i) - middle;
        xs[i] = add(add(y, m[1], x * m[0], product) + m[2] + 1.0f, wide, -0.5f, fused);
        ys[i] = add(add(y, m[4], x * m[3], product) + m[5] + 1.0f, high, -0.5f, fused);
    }
}

INLINE void warp_by(const torch_grid *g, uint8_t *out, int channels, int fused) {
    float xs[PART], ys[PART];
    for (int32_t line = 0; line < g->height; line++) {
        for (int32_t first = 0; first < g->width; first += PART) {
            const int count = g->width - first < PART ? g->width - first : PART;
            if (g->fused_product) positions(g, xs, ys, line, first, count, fused, 1);
            else positions(g, xs, ys, line, first, count, fused, 0);
            for (int i = 0; i < count; i++, out += channels) {
                if (g->bilinear) bilinear(g, out, xs[i], ys[i], channels, fused);
                else nearest(g, out, xs[i], ys[i], channels);
            }
        }
    }
}

TARGETED static void warp(const torch_grid *g, uint8_t *out, int channels, int fused) {
    if (channels == 3 && fused) warp_by(g, out, 3, 1);
    else if (channels == 3) warp_by(g, out, 3, 0);
    else warp_by(g, out, channels, fused);
}

const torch_loops LOOPS = {gray, blend, sharpen, smooth, turn_hue, warp};

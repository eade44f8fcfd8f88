/* The passes of torch's resampling of floats. The file that includes this one defines PASSES (the table's name), TARGETED (what
 * its functions are compiled for), LANES (floats of a vector), FUSED(a, b, c) (a * b + c of a vector, a float and a vector,
 * rounded once) and WIDENED(p) (four bytes as floats). No other terms fuse, since it is compiled without contraction. */
#include <string.h>

#include "resample/passes.h"

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float pixel __attribute__((vector_size(16), aligned(4), may_alias)); /* four channels */

enum { ROWS = FLOAT_LANES / 4, VECTORS = FLOAT_LANES / LANES, STRIPE = 32 };

/* Where the taps that fuse begin. torch's loop takes four by four after the first one, which don't. */
static inline __attribute__((always_inline)) int first_fused(const resample_axis *axis, int taps) {
    return axis->fused ? (taps - 1) / 4 * 4 + 1 : taps;
}

/* Adds `count` vectors of each tap, at `p` and `step` floats further on, times its coefficient. */
#define ADD_TAPS(sums, count, p, step, k, taps, fused_from) \
    do { \
        const float *at = (p); \
        for (int v = 0; v < (count); v++) (sums)[v] = ((const lanes *)at)[v] * (k)[0]; \
        int tap = 1; \
        for (at += (step); tap < (fused_from); tap++, at += (step)) \
            for (int v = 0; v < (count); v++) (sums)[v] += ((const lanes *)at)[v] * (k)[tap]; \
        for (; tap < (taps); tap++, at += (step)) \
            for (int v = 0; v < (count); v++) (sums)[v] = FUSED(((const lanes *)at)[v], (k)[tap], (sums)[v]); \
    } while (0)

TARGETED static void across(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count, int channels,
                            const resample_axis *axis) {
    const int inputs = axis->inputs, outputs = axis->outputs;
    for (int row = 0; row < count; row += ROWS, out += ROWS * out_stride, rows += ROWS * stride) {
        const int last = (count - row < ROWS ? count - row : ROWS) - 1; /* it is done again in place of missing ones */
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *p = rows + (r < last ? r : last) * stride;
            pixel *line = (pixel *)axis->line + r;
            for (int x = 0; x < inputs; x++, p += channels, line += ROWS) *line = WIDENED(p);
        }
        const float *k = axis->floats;
        for (int x = 0; x < outputs; x++, k += axis->room) {
            lanes sums[VECTORS];
            const int taps = axis->taps[x], fused = first_fused(axis, taps);
            ADD_TAPS(sums, VECTORS, axis->line + (ptrdiff_t)axis->start[x] * FLOAT_LANES, FLOAT_LANES, k, taps, fused);
            for (int r = 0; r < ROWS; r++) {
                float *to = (float *)(void *)(out + (r < last ? r : last) * out_stride) + x * channels;
                const pixel made = ((const pixel *)sums)[r];
                if (x + 4 <= outputs) *(pixel *)to = made; /* the next pixel overwrites what is too much */
                else for (int channel = 0; channel < channels; channel++) to[channel] = made[channel];
            }
        }
    }
}

/* Rounds half to even, and clips: adding 1.5 * 2**23 leaves no bits for fractions. */
static inline __attribute__((always_inline)) uint8_t rounded(float value) {
    const float one_and_a_half = 12582912.0f;
    int32_t whole, zero;
    value += one_and_a_half;
    memcpy(&whole, &value, sizeof whole);
    memcpy(&zero, &one_and_a_half, sizeof zero);
    whole -= zero;
    whole = whole > 0 ? whole : 0;
    return (uint8_t)(whole < 255 ? whole : 255);
}

TARGETED static void down(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const resample_axis *axis,
                          int output) {
    const float *rows = (const float *)(const void *)first, *k = axis->floats + (size_t)output * axis->room;
    const int taps = axis->taps[output], fused = first_fused(axis, taps);
    const size_t values = bytes / sizeof(float);
    size_t x = 0;
    for (; x + STRIPE <= values; x += STRIPE) {
        lanes sums[STRIPE / LANES];
        ADD_TAPS(sums, STRIPE / LANES, rows + x, stride / 4, k, taps, fused);
        for (int i = 0; i < STRIPE; i++) out[x + (size_t)i] = rounded(((const float *)sums)[i]);
    }
    for (; x < values; x++) {
        const float *p = rows + x;
        float sum = *p * k[0];
        int tap = 1;
        for (p += stride / 4; tap < fused; tap++, p += stride / 4) sum += *p * k[tap];
        for (; tap < taps; tap++, p += stride / 4) sum = __builtin_fmaf(*p, k[tap], sum);
        out[x] = rounded(sum);
    }
}

const resample_passes PASSES = {across, down};

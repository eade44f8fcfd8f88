/* The passes in portable C. They are the reference for the others, and big-endian and unknown processors run them. */
#include "resample/passes.h"

static inline __attribute__((always_inline)) void across_channels(uint8_t *restrict out, const uint8_t *restrict row,
                                                                  const int channels, const resample_axis *axis) {
    const int32_t *k = axis->plain;
    for (int x = 0; x < axis->outputs; x++, k += axis->room, out += channels) {
        const uint8_t *p = row + (ptrdiff_t)axis->start[x] * channels;
        uint32_t sums[3];
        for (int channel = 0; channel < channels; channel++) sums[channel] = 1u << (COEFFICIENT_BITS - 1);
        for (int tap = 0; tap < axis->taps[x]; tap++, p += channels)
            for (int channel = 0; channel < channels; channel++) sums[channel] += (uint32_t)k[tap] * p[channel];
        for (int channel = 0; channel < channels; channel++) out[channel] = clip_sum(sums[channel]);
    }
}

static void across(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count, int channels,
                   const resample_axis *axis) {
    for (int row = 0; row < count; row++, out += out_stride, rows += stride) {
        if (channels == 3) across_channels(out, rows, 3, axis);
        else across_channels(out, rows, 1, axis);
    }
}

static void down(uint8_t *restrict out, const uint8_t *restrict first, ptrdiff_t stride, size_t bytes,
                 const resample_axis *axis, int output) {
    enum { STRETCH = 256 }; /* values whose sums stay in the nearest cache */
    const int32_t *k = axis->plain + (size_t)output * axis->room;
    for (size_t begin = 0; begin < bytes; begin += STRETCH) {
        uint32_t sums[STRETCH];
        size_t length = bytes - begin < STRETCH ? bytes - begin : STRETCH;
        for (size_t x = 0; x < length; x++) sums[x] = 1u << (COEFFICIENT_BITS - 1);
        const uint8_t *p = first + begin;
        for (int tap = 0; tap < axis->taps[output]; tap++, p += stride) {
            uint32_t factor = (uint32_t)k[tap];
            for (size_t x = 0; x < length; x++) sums[x] += factor * p[x];
        }
        for (size_t x = 0; x < length; x++) out[begin + x] = clip_sum(sums[x]);
    }
}

const resample_passes passes_c = {across, down};

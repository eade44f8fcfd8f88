/* The passes with NEON, for 32-bit ARM (v7) and for aarch64. */
#include "resample/passes.h"

#if defined(DDLP_NEON)
#if defined(DDLP_SWITCH_NEON_ON) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("neon,d32"))), apply_to = function)
#elif defined(DDLP_SWITCH_NEON_ON)
#pragma GCC target("fpu=neon")
#endif
#include <arm_neon.h>
#include <string.h>

/* low[0], low[1], high[0], high[1] of two taps. The low parts are summed in 32 bits, the high parts in 16 bits. Those sums may
 * wrap, since they count times 2**16, modulo 2**32. */
static inline int16x4_t parts(const tap_pair *k) { return vld1_s16(k->low); }

static inline int16x4_t finish(int32x4_t low, int16x4_t high) {
    int32x4_t sum = vaddq_s32(low, vshlq_n_s32(vmovl_s16(high), 16));
    return vqmovn_s32(vshrq_n_s32(sum, COEFFICIENT_BITS));
}

static inline int16x8_t widen(uint8x8_t bytes) { return vreinterpretq_s16_u16(vmovl_u8(bytes)); }

/* Adds two taps of an RGB row: values 0..2 and 3..5 of v. */
static inline void add_pixels(int32x4_t *low, int16x4_t *high, int16x8_t v, int16x4_t k) {
    int16x4_t first = vget_low_s16(v), second = vget_low_s16(vextq_s16(v, v, 3));
    *low = vmlal_lane_s16(vmlal_lane_s16(*low, first, k, 0), second, k, 1);
    *high = vmla_lane_s16(vmla_lane_s16(*high, first, k, 2), second, k, 3);
}

/* Computes two rows together, since they have the same coefficients. */
static void across_rgb(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count,
                       const resample_axis *axis) {
    for (int row = 0; row < count; row += 2, out += 2 * out_stride, rows += 2 * stride) {
        ptrdiff_t step = row + 1 < count ? stride : 0, out_step = row + 1 < count ? out_stride : 0;
        const tap_pair *k = axis->split;
        uint8_t *to = out;
        for (int x = 0; x < axis->outputs; x++, to += 3) {
            const uint8_t *p = rows + (ptrdiff_t)axis->start[x] * 3;
            int32x4_t low0 = vdupq_n_s32(1 << (COEFFICIENT_BITS - 1)), low1 = low0;
            int16x4_t high0 = vdup_n_s16(0), high1 = high0;
            for (int pair = 0; pair < axis->pairs; pair++, p += 6, k++) {
                int16x4_t factors = parts(k);
                add_pixels(&low0, &high0, widen(vld1_u8(p)), factors);
                add_pixels(&low1, &high1, widen(vld1_u8(p + step)), factors);
            }
            uint8_t bytes[8];
            vst1_u8(bytes, vqmovun_s16(vcombine_s16(finish(low0, high0), finish(low1, high1))));
            if (x + 1 < axis->outputs) { /* the next pixel overwrites the fourth byte */
                memcpy(to + out_step, bytes + 4, 4);
                memcpy(to, bytes, 4);
            } else {
                memcpy(to + out_step, bytes + 4, 3);
                memcpy(to, bytes, 3);
            }
        }
    }
}

static void across(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count, int channels,
                   const resample_axis *axis) {
    if (channels == 3) across_rgb(out, out_stride, rows, stride, count, axis);
    else passes_c.across(out, out_stride, rows, stride, count, channels, axis);
}

static void down(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const resample_axis *axis,
                 int output) {
    const tap_pair *split = axis->split + (size_t)output * (size_t)axis->pairs;
    int taps = axis->taps[output];
    if (bytes < 16) {
        down_narrow(out, first, stride, bytes, axis, output);
        return;
    }
    for (size_t x = 0; x < bytes; x += 16) {
        if (x > bytes - 16) x = bytes - 16; /* the last vector overlaps the one before */
        const uint8_t *p = first + x;
        int32x4_t low0 = vdupq_n_s32(1 << (COEFFICIENT_BITS - 1)), low1 = low0, low2 = low0, low3 = low0;
        int16x8_t high0 = vdupq_n_s16(0), high1 = high0;
        for (int tap = 0; tap < taps; tap += 2, p += 2 * stride) {
            int16x4_t k = parts(split + tap / 2);
            uint8x16_t u = vld1q_u8(p), v = vld1q_u8(tap + 1 < taps ? p + stride : p); /* the other one counts times zero */
            int16x8_t u0 = widen(vget_low_u8(u)), u1 = widen(vget_high_u8(u));
            int16x8_t v0 = widen(vget_low_u8(v)), v1 = widen(vget_high_u8(v));
            low0 = vmlal_lane_s16(vmlal_lane_s16(low0, vget_low_s16(u0), k, 0), vget_low_s16(v0), k, 1);
            low1 = vmlal_lane_s16(vmlal_lane_s16(low1, vget_high_s16(u0), k, 0), vget_high_s16(v0), k, 1);
            low2 = vmlal_lane_s16(vmlal_lane_s16(low2, vget_low_s16(u1), k, 0), vget_low_s16(v1), k, 1);
            low3 = vmlal_lane_s16(vmlal_lane_s16(low3, vget_high_s16(u1), k, 0), vget_high_s16(v1), k, 1);
            high0 = vmlaq_lane_s16(vmlaq_lane_s16(high0, u0, k, 2), v0, k, 3);
            high1 = vmlaq_lane_s16(vmlaq_lane_s16(high1, u1, k, 2), v1, k, 3);
        }
        int16x8_t result0 = vcombine_s16(finish(low0, vget_low_s16(high0)), finish(low1, vget_high_s16(high0)));
        int16x8_t result1 = vcombine_s16(finish(low2, vget_low_s16(high1)), finish(low3, vget_high_s16(high1)));
        vst1q_u8(out + x, vcombine_u8(vqmovun_s16(result0), vqmovun_s16(result1)));
    }
}

const resample_passes passes_neon = {across, down};
#if defined(DDLP_SWITCH_NEON_ON) && defined(__clang__)
#pragma clang attribute pop
#endif
#endif

/* The two passes of resampling, for each instruction set. All compute the same bits. For torch's floats there are others:
 * between them a row has floats in the place of bytes. */
#ifndef DDLP_PASSES_H
#define DDLP_PASSES_H

#include <stddef.h>
#include <stdint.h>

#include "processor.h"
#include "resample/axis.h"
#include "variant.h"

/* Bytes after the last row given to `across` that are read, but not used. */
#define PASS_SLACK 16

typedef struct {
    /* The horizontal pass on `count` rows; out: count rows of axis->outputs pixels. Strides are in bytes, and may be negative.
     * The axis must be prepared with wide_reads. */
    void (*across)(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count, int channels,
                   const resample_axis *axis);
    /* One output row of the vertical pass, of rows of `bytes` bytes; `first`: the row of this output's first tap. */
    void (*down)(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const resample_axis *axis, int output);
} resample_passes;

extern const resample_passes passes_c, floats_c;
#if defined(DDLP_X86)
extern const resample_passes passes_sse2, passes_avx2, passes_vnni, floats_fma;
#elif defined(DDLP_NEON)
extern const resample_passes passes_neon;
#endif

static inline const resample_passes *passes_used(int filter) {
    if (axis_has_floats(filter)) {
#if defined(DDLP_X86)
        if (variant_used() >= VARIANT_AVX2 && processor() & PROCESSOR_FMA) return &floats_fma;
#endif
        return &floats_c;
    }
    switch (variant_used()) {
#if defined(DDLP_X86)
#if defined(DDLP_VNNI)
    case VARIANT_VNNI: return &passes_vnni;
#endif
    case VARIANT_AVX2: return &passes_avx2;
    case VARIANT_SSE2: return &passes_sse2;
#elif defined(DDLP_NEON)
    case VARIANT_NEON: return &passes_neon;
#endif
    default: return &passes_c;
    }
}

/* Sums are computed modulo 2**32. The true sum fits into int32: at most 255 * 2**22 * 1.6 with lanczos's lobes. */
static inline uint8_t clip_sum(uint32_t sum) {
    int32_t value = (int32_t)sum >> COEFFICIENT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Computes an output row of the vertical pass that is narrower than a vector. */
static inline void down_narrow(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const resample_axis *axis,
                               int output) {
    const int32_t *k = axis->plain + (size_t)output * axis->room;
    for (size_t x = 0; x < bytes; x++) {
        const uint8_t *p = first + x;
        uint32_t sum = 1u << (COEFFICIENT_BITS - 1);
        for (int tap = 0; tap < axis->taps[output]; tap++, p += stride) sum += (uint32_t)k[tap] * *p;
        out[x] = clip_sum(sum);
    }
}

#endif

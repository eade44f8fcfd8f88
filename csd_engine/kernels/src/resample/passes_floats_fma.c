/* The passes of floats with AVX2 and its fused multiply-adds. */
#include "processor.h"

#if defined(DDLP_X86)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

static inline __attribute__((always_inline)) int32_t four_bytes(const uint8_t *p) {
    int32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

#define PASSES floats_fma
#define TARGETED __attribute__((target("avx2,fma")))
#define LANES 8
#define FUSED(a, b, c) ((lanes)_mm256_fmadd_ps((__m256)(a), _mm256_set1_ps(b), (__m256)(c)))
#define WIDENED(p) ((pixel)_mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four_bytes(p)))))
#include "resample/passes_floats.h"
#endif

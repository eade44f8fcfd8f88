/* torch.c's loops with AVX2 and its fused multiply-adds. */
#include "processor.h"

#if defined(DDLP_X86)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE_TARGETED static inline __attribute__((always_inline, target("avx2,fma")))

typedef float four __attribute__((vector_size(16)));

INLINE_TARGETED four widened(const uint8_t *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return (four)_mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes)));
}

INLINE_TARGETED four multiply_add(four a, float b, four c) { return (four)_mm_fmadd_ps((__m128)a, _mm_set1_ps(b), (__m128)c); }

INLINE_TARGETED uint32_t rounded(four values) {
    const __m128i whole = _mm_cvtps_epi32((__m128)values), words = _mm_packus_epi32(whole, whole);
    return (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(words, words));
}

#define LOOPS torch_loops_fma
#define TARGETED __attribute__((target("avx2,fma")))
#define FOUR four
#define WIDENED(p) widened(p)
#define FUSED(a, b, c) multiply_add(a, b, c)
#define ROUNDED(values) rounded(values)
#include "steps/torch_loops.h"
#endif

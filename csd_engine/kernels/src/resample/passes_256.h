/* The passes with vectors of 256 bits. The file that includes this one defines PASSES (the table's name), TARGET and
 * MULTIPLY_ADD(sum, a, b) (32-bit sums of products of 16-bit pairs). It is compiled for baseline x86, and these functions are
 * called only if the processor has the target. */
#include <immintrin.h>
#include <string.h>

#include "resample/passes.h"

#define TARGETED __attribute__((target(TARGET)))
#define TARGETED_INLINE static inline __attribute__((always_inline, target(TARGET)))

TARGETED_INLINE __m256i broadcast(const void *four_bytes) {
    int32_t value;
    memcpy(&value, four_bytes, 4);
    return _mm256_set1_epi32(value);
}

TARGETED_INLINE __m256i two_rows(const uint8_t *first, const uint8_t *second) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first)),
                                   _mm_loadu_si128((const __m128i *)second), 1);
}

/* Computes one output pixel of four rows, as 16-bit values: lanes (row 0, row 2), (row 1, row 3), four values each.
 * 16 bytes hold two pairs of RGB taps; the fourth value of each pixel is zero. */
TARGETED_INLINE __m256i pixel_of_four_rows(const uint8_t *p, ptrdiff_t to1, ptrdiff_t to2, ptrdiff_t to3, const tap_pair *k,
                                       const int pairs) {
    const __m256i first_pair = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i second_pair = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    __m256i low01 = _mm256_set1_epi32(1 << (COEFFICIENT_BITS - 1)), low23 = low01;
    __m256i high01 = _mm256_setzero_si256(), high23 = high01;
    for (int pair = 0; pair < pairs; pair += 2, p += 12) {
        __m256i rows01 = two_rows(p, p + to1), rows23 = two_rows(p + to2, p + to3);
        __m256i v01 = _mm256_shuffle_epi8(rows01, first_pair), v23 = _mm256_shuffle_epi8(rows23, first_pair);
        __m256i low = broadcast(k[pair].low), high = broadcast(k[pair].high);
        low01 = MULTIPLY_ADD(low01, v01, low);
        high01 = MULTIPLY_ADD(high01, v01, high);
        low23 = MULTIPLY_ADD(low23, v23, low);
        high23 = MULTIPLY_ADD(high23, v23, high);
        if (pair + 1 == pairs) break;
        v01 = _mm256_shuffle_epi8(rows01, second_pair), v23 = _mm256_shuffle_epi8(rows23, second_pair);
        low = broadcast(k[pair + 1].low), high = broadcast(k[pair + 1].high);
        low01 = MULTIPLY_ADD(low01, v01, low);
        high01 = MULTIPLY_ADD(high01, v01, high);
        low23 = MULTIPLY_ADD(low23, v23, low);
        high23 = MULTIPLY_ADD(high23, v23, high);
    }
    low01 = _mm256_srai_epi32(_mm256_add_epi32(low01, _mm256_slli_epi32(high01, 16)), COEFFICIENT_BITS);
    low23 = _mm256_srai_epi32(_mm256_add_epi32(low23, _mm256_slli_epi32(high23, 16)), COEFFICIENT_BITS);
    return _mm256_packs_epi32(low01, low23);
}

/* Turns four pixels of four rows into bytes: even[lane 0, 1] gets 12 bytes of rows 0, 1, and odd those of rows 2, 3. */
TARGETED_INLINE void interleave(__m256i a, __m256i b, __m256i c, __m256i d, __m256i *even, __m256i *odd) {
    const __m256i drop_fourth = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    __m256 ab = _mm256_castsi256_ps(_mm256_packus_epi16(a, b)), cd = _mm256_castsi256_ps(_mm256_packus_epi16(c, d));
    *even = _mm256_shuffle_epi8(_mm256_castps_si256(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0))), drop_fourth);
    *odd = _mm256_shuffle_epi8(_mm256_castps_si256(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))), drop_fourth);
}

TARGETED_INLINE void across_pairs(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count,
                              const resample_axis *axis, const int pairs) {
    const int outputs = axis->outputs;
    const int32_t *start = axis->start;
    for (int row = 0; row < count; row += 4, out += 4 * out_stride, rows += 4 * stride) {
        /* if fewer than four rows are left, the last one replaces the missing ones */
        ptrdiff_t n1 = count - row > 1 ? 1 : 0, n2 = count - row > 2 ? 2 : n1, n3 = count - row > 3 ? 3 : n2;
        ptrdiff_t to1 = n1 * stride, to2 = n2 * stride, to3 = n3 * stride;
        uint8_t *out1 = out + n1 * out_stride, *out2 = out + n2 * out_stride, *out3 = out + n3 * out_stride;
        const tap_pair *k = axis->split;
        int x = 0;
#define PIXEL(i) pixel_of_four_rows(rows + (ptrdiff_t)start[x + (i)] * 3, to1, to2, to3, k + (i) * pairs, pairs)
        for (; x + 6 <= outputs; x += 4, k += 4 * pairs) { /* four bytes too many are written, within the row */
            __m256i even, odd;
            interleave(PIXEL(0), PIXEL(1), PIXEL(2), PIXEL(3), &even, &odd);
            _mm_storeu_si128((__m128i *)(out + 3 * x), _mm256_castsi256_si128(even));
            _mm_storeu_si128((__m128i *)(out1 + 3 * x), _mm256_extracti128_si256(even, 1));
            _mm_storeu_si128((__m128i *)(out2 + 3 * x), _mm256_castsi256_si128(odd));
            _mm_storeu_si128((__m128i *)(out3 + 3 * x), _mm256_extracti128_si256(odd, 1));
        }
        for (; x < outputs; x++, k += pairs) {
            const __m256i zero = _mm256_setzero_si256();
            __m256i even, odd;
            interleave(PIXEL(0), zero, zero, zero, &even, &odd);
            int32_t pixel = _mm_cvtsi128_si32(_mm256_castsi256_si128(even));
            int32_t pixel1 = _mm_cvtsi128_si32(_mm256_extracti128_si256(even, 1));
            int32_t pixel2 = _mm_cvtsi128_si32(_mm256_castsi256_si128(odd));
            int32_t pixel3 = _mm_cvtsi128_si32(_mm256_extracti128_si256(odd, 1));
            memcpy(out + 3 * x, &pixel, 3);
            memcpy(out1 + 3 * x, &pixel1, 3);
            memcpy(out2 + 3 * x, &pixel2, 3);
            memcpy(out3 + 3 * x, &pixel3, 3);
        }
#undef PIXEL
    }
}

TARGETED static void across(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count, int channels,
                        const resample_axis *axis) {
    if (channels != 3) {
        passes_sse2.across(out, out_stride, rows, stride, count, channels, axis);
        return;
    }
    switch (axis->pairs) { /* for the usual changes of size the inner loop is unrolled */
    case 1: across_pairs(out, out_stride, rows, stride, count, axis, 1); break;
    case 2: across_pairs(out, out_stride, rows, stride, count, axis, 2); break;
    case 3: across_pairs(out, out_stride, rows, stride, count, axis, 3); break;
    case 4: across_pairs(out, out_stride, rows, stride, count, axis, 4); break;
    default: across_pairs(out, out_stride, rows, stride, count, axis, axis->pairs);
    }
}

/* Adds the low parts by 16-bit multiply-adds, and the high parts by 8-bit ones. The 16-bit sums of the high parts may wrap,
 * since they count times 2**16, modulo 2**32. A pair of them can't saturate: 255 * (two neighbouring coefficients / 2**16) <
 * 2**15. */
TARGETED_INLINE void down_pairs(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const tap_pair *split,
                            const int pairs, int odd) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (COEFFICIENT_BITS - 1));
    const ptrdiff_t last = odd ? 0 : stride; /* an odd last tap also serves as its partner, times zero */
    for (size_t x = 0; x < bytes; x += 32) {
        if (x > bytes - 32) x = bytes - 32; /* the last vector overlaps the one before */
        const uint8_t *p = first + x;
        __m256i low0 = half, low1 = half, low2 = half, low3 = half, high0 = zero, high1 = zero;
        for (int pair = 0; pair < pairs; pair++, p += 2 * stride) {
            __m256i low = broadcast(split[pair].low), high = broadcast(split[pair].high_bytes);
            __m256i u = _mm256_loadu_si256((const __m256i *)p);
            __m256i v = _mm256_loadu_si256((const __m256i *)(p + (pair + 1 < pairs ? stride : last)));
            __m256i a = _mm256_unpacklo_epi8(u, v), b = _mm256_unpackhi_epi8(u, v);
            low0 = MULTIPLY_ADD(low0, _mm256_unpacklo_epi8(a, zero), low);
            low1 = MULTIPLY_ADD(low1, _mm256_unpackhi_epi8(a, zero), low);
            low2 = MULTIPLY_ADD(low2, _mm256_unpacklo_epi8(b, zero), low);
            low3 = MULTIPLY_ADD(low3, _mm256_unpackhi_epi8(b, zero), low);
            high0 = _mm256_add_epi16(high0, _mm256_maddubs_epi16(a, high));
            high1 = _mm256_add_epi16(high1, _mm256_maddubs_epi16(b, high));
        }
        low0 = _mm256_srai_epi32(_mm256_add_epi32(low0, _mm256_unpacklo_epi16(zero, high0)), COEFFICIENT_BITS);
        low1 = _mm256_srai_epi32(_mm256_add_epi32(low1, _mm256_unpackhi_epi16(zero, high0)), COEFFICIENT_BITS);
        low2 = _mm256_srai_epi32(_mm256_add_epi32(low2, _mm256_unpacklo_epi16(zero, high1)), COEFFICIENT_BITS);
        low3 = _mm256_srai_epi32(_mm256_add_epi32(low3, _mm256_unpackhi_epi16(zero, high1)), COEFFICIENT_BITS);
        _mm256_storeu_si256((__m256i *)(out + x), _mm256_packus_epi16(_mm256_packs_epi32(low0, low1),
                                                                     _mm256_packs_epi32(low2, low3)));
    }
}

TARGETED static void down(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const resample_axis *axis,
                      int output) {
    if (bytes < 32) {
        passes_sse2.down(out, first, stride, bytes, axis, output);
        return;
    }
    const tap_pair *split = axis->split + (size_t)output * (size_t)axis->pairs;
    int pairs = (axis->taps[output] + 1) / 2, odd = axis->taps[output] & 1;
    switch (pairs) {
    case 1: down_pairs(out, first, stride, bytes, split, 1, odd); break;
    case 2: down_pairs(out, first, stride, bytes, split, 2, odd); break;
    case 3: down_pairs(out, first, stride, bytes, split, 3, odd); break;
    case 4: down_pairs(out, first, stride, bytes, split, 4, odd); break;
    default: down_pairs(out, first, stride, bytes, split, pairs, odd);
    }
}

const resample_passes PASSES = {across, down};

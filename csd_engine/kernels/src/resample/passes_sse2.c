/* The passes with SSE2, which every x86-64 has. */
#include "resample/passes.h"

#if defined(DDLP_X86)
#include <emmintrin.h>
#include <string.h>

static inline __m128i broadcast(const int16_t pair[2]) {
    int32_t both;
    memcpy(&both, pair, 4);
    return _mm_set1_epi32(both);
}

/* The eight-bit results, as 16-bit values, of two vectors of sums, which are given in low and high parts. */
static inline __m128i finish(__m128i low0, __m128i high0, __m128i low1, __m128i high1) {
    low0 = _mm_srai_epi32(_mm_add_epi32(low0, _mm_slli_epi32(high0, 16)), COEFFICIENT_BITS);
    low1 = _mm_srai_epi32(_mm_add_epi32(low1, _mm_slli_epi32(high1, 16)), COEFFICIENT_BITS);
    return _mm_packs_epi32(low0, low1);
}

/* Computes two rows together: each row is half of the result. A pair of taps has 6 bytes of each row. */
static void across_rgb(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count,
                       const resample_axis *axis) {
    const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (COEFFICIENT_BITS - 1));
    for (int row = 0; row < count; row += 2, out += 2 * out_stride, rows += 2 * stride) {
        ptrdiff_t step = row + 1 < count ? stride : 0, out_step = row + 1 < count ? out_stride : 0;
        const tap_pair *k = axis->split;
        uint8_t *to = out;
        for (int x = 0; x < axis->outputs; x++, to += 3) {
            const uint8_t *p = rows + (ptrdiff_t)axis->start[x] * 3;
            __m128i low0 = half, low1 = half, high0 = zero, high1 = zero;
            for (int pair = 0; pair < axis->pairs; pair++, p += 6, k++) {
                __m128i v0 = _mm_loadl_epi64((const __m128i *)p), v1 = _mm_loadl_epi64((const __m128i *)(p + step));
                __m128i low = broadcast(k->low), high = broadcast(k->high);
                v0 = _mm_unpacklo_epi8(_mm_unpacklo_epi8(v0, _mm_srli_epi64(v0, 24)), zero);
                v1 = _mm_unpacklo_epi8(_mm_unpacklo_epi8(v1, _mm_srli_epi64(v1, 24)), zero);
                low0 = _mm_add_epi32(low0, _mm_madd_epi16(v0, low));
                high0 = _mm_add_epi32(high0, _mm_madd_epi16(v0, high));
                low1 = _mm_add_epi32(low1, _mm_madd_epi16(v1, low));
                high1 = _mm_add_epi32(high1, _mm_madd_epi16(v1, high));
            }
            __m128i bytes = _mm_packus_epi16(finish(low0, high0, low1, high1), zero);
            int32_t first = _mm_cvtsi128_si32(bytes), second = _mm_cvtsi128_si32(_mm_srli_si128(bytes, 4));
            size_t size = x + 1 < axis->outputs ? 4 : 3; /* the next pixel overwrites the fourth byte */
            if (size == 4) {
                memcpy(to + out_step, &second, 4);
                memcpy(to, &first, 4);
            } else {
                memcpy(to + out_step, &second, 3);
                memcpy(to, &first, 3);
            }
        }
    }
}

static inline int two_bytes(const uint8_t *p) {
    uint16_t both;
    memcpy(&both, p, 2);
    return both;
}

/* Computes four rows together: a vector has one value of each row. A pair of taps has two bytes of each row. */
static void across_grey(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count,
                        const resample_axis *axis) {
    const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (COEFFICIENT_BITS - 1));
    for (int row = 0; row < count; row += 4, out += 4 * out_stride, rows += 4 * stride) {
        /* if fewer than four rows are left, the last one replaces the missing ones */
        ptrdiff_t n1 = count - row > 1 ? 1 : 0, n2 = count - row > 2 ? 2 : n1, n3 = count - row > 3 ? 3 : n2;
        const tap_pair *k = axis->split;
        for (int x = 0; x < axis->outputs; x++) {
            const uint8_t *p = rows + axis->start[x];
            __m128i low = half, high = zero;
            for (int pair = 0; pair < axis->pairs; pair++, p += 2, k++) {
                __m128i v = _mm_cvtsi32_si128(two_bytes(p));
                v = _mm_insert_epi16(v, two_bytes(p + n1 * stride), 1);
                v = _mm_insert_epi16(v, two_bytes(p + n2 * stride), 2);
                v = _mm_insert_epi16(v, two_bytes(p + n3 * stride), 3);
                v = _mm_unpacklo_epi8(v, zero);
                low = _mm_add_epi32(low, _mm_madd_epi16(v, broadcast(k->low)));
                high = _mm_add_epi32(high, _mm_madd_epi16(v, broadcast(k->high)));
            }
            uint32_t bytes = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(finish(low, high, low, high), zero));
            out[x + n3 * out_stride] = (uint8_t)(bytes >> 24);
            out[x + n2 * out_stride] = (uint8_t)(bytes >> 16);
            out[x + n1 * out_stride] = (uint8_t)(bytes >> 8);
            out[x] = (uint8_t)bytes;
        }
    }
}

static void across(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count, int channels,
                   const resample_axis *axis) {
    if (channels == 3) across_rgb(out, out_stride, rows, stride, count, axis);
    else across_grey(out, out_stride, rows, stride, count, axis);
}

static void down(uint8_t *out, const uint8_t *first, ptrdiff_t stride, size_t bytes, const resample_axis *axis,
                 int output) {
    const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (COEFFICIENT_BITS - 1));
    const tap_pair *split = axis->split + (size_t)output * (size_t)axis->pairs;
    int taps = axis->taps[output];
    if (bytes < 16) {
        down_narrow(out, first, stride, bytes, axis, output);
        return;
    }
    for (size_t x = 0; x < bytes; x += 16) {
        if (x > bytes - 16) x = bytes - 16; /* the last vector overlaps the one before */
        const uint8_t *p = first + x;
        __m128i low0 = half, low1 = half, low2 = half, low3 = half, high0 = zero, high1 = zero, high2 = zero, high3 = zero;
        for (int tap = 0; tap < taps; tap += 2, p += 2 * stride) {
            const tap_pair *k = split + tap / 2;
            __m128i low = broadcast(k->low), high = broadcast(k->high);
            __m128i u = _mm_loadu_si128((const __m128i *)p);
            __m128i v = _mm_loadu_si128((const __m128i *)(tap + 1 < taps ? p + stride : p)); /* the other counts times zero */
            __m128i a = _mm_unpacklo_epi8(u, v), b = _mm_unpackhi_epi8(u, v);
            __m128i v0 = _mm_unpacklo_epi8(a, zero), v1 = _mm_unpackhi_epi8(a, zero);
            __m128i v2 = _mm_unpacklo_epi8(b, zero), v3 = _mm_unpackhi_epi8(b, zero);
            low0 = _mm_add_epi32(low0, _mm_madd_epi16(v0, low));
            low1 = _mm_add_epi32(low1, _mm_madd_epi16(v1, low));
            low2 = _mm_add_epi32(low2, _mm_madd_epi16(v2, low));
            low3 = _mm_add_epi32(low3, _mm_madd_epi16(v3, low));
            high0 = _mm_add_epi32(high0, _mm_madd_epi16(v0, high));
            high1 = _mm_add_epi32(high1, _mm_madd_epi16(v1, high));
            high2 = _mm_add_epi32(high2, _mm_madd_epi16(v2, high));
            high3 = _mm_add_epi32(high3, _mm_madd_epi16(v3, high));
        }
        _mm_storeu_si128((__m128i *)(out + x), _mm_packus_epi16(finish(low0, high0, low1, high1),
                                                               finish(low2, high2, low3, high3)));
    }
}

const resample_passes passes_sse2 = {across, down};
#endif

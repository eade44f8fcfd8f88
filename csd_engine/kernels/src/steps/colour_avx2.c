/* The loops of colour.c with AVX2, in the same order of operations. What is left after the last whole vector goes to colour.c. */
#include "steps/steps.h"
#include "variant.h"

#if defined(DDLP_X86)
#include <immintrin.h>
#include <string.h>

#define TARGETED __attribute__((target("avx2")))
#define TARGETED_INLINE static inline __attribute__((always_inline, target("avx2")))

/* Eight bytes as integers. */
TARGETED_INLINE __m256i eight(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)); }

TARGETED_INLINE __m256i cut(__m256 values) { return _mm256_cvttps_epi32(_mm256_min_ps(values, _mm256_set1_ps(255))); }

TARGETED_INLINE __m256i blended(__m256i a, __m256i b, __m256 factor) {
    const __m256 difference = _mm256_cvtepi32_ps(_mm256_sub_epi32(b, a));
    const __m256 value = _mm256_add_ps(_mm256_cvtepi32_ps(a), _mm256_mul_ps(factor, difference));
    return cut(_mm256_max_ps(value, _mm256_setzero_ps()));
}

/* Writes 32 integers of 0 to 255 as bytes. */
TARGETED_INLINE void store(uint8_t *out, __m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i lanes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    const __m256i bytes = _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)out, bytes);
}

TARGETED_INLINE void store_eight(uint8_t *out, __m256i a) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)(void *)out, _mm_packus_epi16(words, words));
}

TARGETED static void blend(const uint8_t *a, const uint8_t *b, float factor, uint8_t *out, size_t count) {
    const __m256 by = _mm256_set1_ps(factor);
    size_t i = 0;
#define BLENDED(k) blended(eight(a + i + (k)), eight(b + i + (k)), by)
    for (; i + 32 <= count; i += 32) store(out + i, BLENDED(0), BLENDED(8), BLENDED(16), BLENDED(24));
#undef BLENDED
    colour_loops_c.blend(a + i, b + i, factor, out + i, count - i);
}

TARGETED static void blend_with(uint8_t value, float factor, uint8_t *pixels, size_t count) {
    const __m256 by = _mm256_set1_ps(factor);
    const __m256i a = _mm256_set1_epi32(value);
    size_t i = 0;
#define BLENDED(k) blended(a, eight(pixels + i + (k)), by)
    for (; i + 32 <= count; i += 32) store(pixels + i, BLENDED(0), BLENDED(8), BLENDED(16), BLENDED(24));
#undef BLENDED
    if (i < count) colour_loops_c.blend_with(value, factor, pixels + i, count - i);
}

TARGETED static void saturate(const uint8_t *gray, float factor, uint8_t *pixels, size_t count) {
    const __m256 by = _mm256_set1_ps(factor);
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 1, 1, 1, 2, 2), second = _mm256_setr_epi32(2, 3, 3, 3, 4, 4, 4, 5);
    const __m256i third = _mm256_setr_epi32(5, 5, 6, 6, 6, 7, 7, 7);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256i values = eight(gray + i);
        uint8_t *to = pixels + 3 * i;
        store_eight(to, blended(_mm256_permutevar8x32_epi32(values, first), eight(to), by));
        store_eight(to + 8, blended(_mm256_permutevar8x32_epi32(values, second), eight(to + 8), by));
        store_eight(to + 16, blended(_mm256_permutevar8x32_epi32(values, third), eight(to + 16), by));
    }
    colour_loops_c.saturate(gray + i, factor, pixels + 3 * i, count - i);
}

/* luma: 38470 is no 16-bit number, so green counts twice by its half. */
TARGETED static void gray_of(const uint8_t *rgb, uint8_t *gray, size_t count) {
    const __m256i red_green = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1));
    const __m256i blue_green = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, -1, 1, -1, 5, -1, 4, -1, 8, -1, 7, -1, 11, -1, 10, -1));
    const __m256i by_red_green = _mm256_set1_epi32(19235 << 16 | 19595), by_blue_green = _mm256_set1_epi32(19235 << 16 | 7471);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const uint8_t *p = rgb + 3 * i;
        const __m256i pixels = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)),
            _mm_loadu_si128((const __m128i *)(const void *)(p + 12)), 1);
        const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(_mm256_shuffle_epi8(pixels, red_green), by_red_green),
                                             _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, blue_green), by_blue_green));
        store_eight(gray + i, _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(0x8000)), 16));
    }
    colour_loops_c.gray(rgb + 3 * i, gray + i, count - i);
}

TARGETED_INLINE __m256 of_eight(const uint8_t *p, float weight) {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(eight(p)), _mm256_set1_ps(weight));
}

/* Three pixels of a row, by their weights. */
TARGETED_INLINE __m256 of_row(const uint8_t *p, int channels, float side, float middle) {
    return _mm256_add_ps(_mm256_add_ps(of_eight(p - channels, side), of_eight(p, middle)), of_eight(p + channels, side));
}

TARGETED static void smooth(const uint8_t *in, ptrdiff_t row, int channels, uint8_t *restrict to, size_t count) {
    const float side = 1.0f / 13, middle = 5.0f / 13;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const uint8_t *p = in + i;
        __m256 sum = _mm256_add_ps(_mm256_set1_ps(0.5f), of_row(p + row, channels, side, side));
        sum = _mm256_add_ps(sum, of_row(p, channels, side, middle));
        store_eight(to + i, cut(_mm256_add_ps(sum, of_row(p - row, channels, side, side))));
    }
    colour_loops_c.smooth(in + i, row, channels, to + i, count - i);
}

/* Eight numbers in double precision: four and four. */
typedef struct {
    __m256d low, high;
} doubles;

TARGETED_INLINE doubles widened(__m256 v) {
    return (doubles){_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
}

TARGETED_INLINE __m256 narrowed(doubles v) { return _mm256_set_m128(_mm256_cvtpd_ps(v.high), _mm256_cvtpd_ps(v.low)); }

TARGETED_INLINE __m256i whole(doubles v) { return _mm256_set_m128i(_mm256_cvttpd_epi32(v.high), _mm256_cvttpd_epi32(v.low)); }

#define EACH(name, function)                                                                            \
    TARGETED_INLINE doubles name(doubles a, doubles b) {                                                \
        return (doubles){function(a.low, b.low), function(a.high, b.high)};                             \
    }
EACH(plus, _mm256_add_pd)
EACH(minus, _mm256_sub_pd)
EACH(times, _mm256_mul_pd)
EACH(over, _mm256_div_pd)
EACH(and, _mm256_and_pd)
#undef EACH

TARGETED_INLINE doubles all(double value) { return (doubles){_mm256_set1_pd(value), _mm256_set1_pd(value)}; }

TARGETED_INLINE __m256i chosen(__m256i mask, __m256i yes, __m256i no) { return _mm256_blendv_epi8(no, yes, mask); }

/* The hue, 0 to 255: see `turn_hue` of colour.c. Where there is no range it is any. */
TARGETED_INLINE __m256i hue_of(__m256i r, __m256i g, __m256i b, __m256i most, __m256 range) {
    const __m256 rc = _mm256_div_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(most, r)), range);
    const __m256 gc = _mm256_div_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(most, g)), range);
    const __m256 bc = _mm256_div_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(most, b)), range);
    const doubles red = widened(rc), green = widened(gc), blue = widened(bc);
    const __m256 from_green = narrowed(minus(plus(all(2), red), blue)), from_blue = narrowed(minus(plus(all(4), green), red));
    const __m256 is_red = _mm256_castsi256_ps(_mm256_cmpeq_epi32(r, most)), is_green = _mm256_castsi256_ps(_mm256_cmpeq_epi32(g, most));
    const __m256 h = _mm256_blendv_ps(_mm256_blendv_ps(from_blue, from_green, is_green), _mm256_sub_ps(bc, gc), is_red);
    const doubles turn = plus(over(widened(h), all(6)), all(1));
    const doubles beyond = {_mm256_cmp_pd(turn.low, _mm256_set1_pd(1), _CMP_GE_OQ), _mm256_cmp_pd(turn.high, _mm256_set1_pd(1), _CMP_GE_OQ)};
    return whole(times(widened(narrowed(minus(turn, and(beyond, all(1))))), all(255)));
}

TARGETED static void turn_hue(uint8_t *rgb, size_t count, uint8_t shift, const hue_tables *tables) {
    const __m256i take_red = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, -1, -1, 3, -1, -1, -1, 6, -1, -1, -1, 9, -1, -1, -1));
    const __m256i take_green = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, -1, -1, -1, 4, -1, -1, -1, 7, -1, -1, -1, 10, -1, -1, -1));
    const __m256i take_blue = _mm256_broadcastsi128_si256(_mm_setr_epi8(2, -1, -1, -1, 5, -1, -1, -1, 8, -1, -1, -1, 11, -1, -1, -1));
    const __m256i drop_fourth = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m256i byte = _mm256_set1_epi32(255), zero = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint8_t *to = rgb + 3 * i;
        const __m256i pixels = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)to)),
            _mm_loadu_si128((const __m128i *)(const void *)(to + 12)), 1);
        const __m256i r = _mm256_shuffle_epi8(pixels, take_red), g = _mm256_shuffle_epi8(pixels, take_green);
        const __m256i b = _mm256_shuffle_epi8(pixels, take_blue);
        const __m256i most = _mm256_max_epi32(_mm256_max_epi32(r, g), b), least = _mm256_min_epi32(_mm256_min_epi32(r, g), b);
        const __m256 range = _mm256_cvtepi32_ps(_mm256_sub_epi32(most, least)), value = _mm256_cvtepi32_ps(most);
        const __m256i gray = _mm256_cmpeq_epi32(most, least);
        /* A pixel without a range divides by zero, and its numbers are not used; masked, they are still places in the tables. */
        const __m256i hue = _mm256_and_si256(_mm256_add_epi32(hue_of(r, g, b, most, range), _mm256_set1_epi32(shift)), byte);
        const __m256i saturation = _mm256_and_si256(whole(times(widened(_mm256_div_ps(range, value)), all(255))), byte);
        const __m256i sector = _mm256_i32gather_epi32(tables->sector, hue, 4);
        const __m256 f = _mm256_i32gather_ps(tables->part, hue, 4), fs = _mm256_i32gather_ps(tables->share, saturation, 4);
        const doubles v = widened(value), s = widened(fs), half = all(0.5), unit = all(1);
        const __m256i p = whole(plus(times(v, minus(unit, s)), half));
        const __m256i q = whole(plus(times(v, minus(unit, widened(_mm256_mul_ps(fs, f)))), half));
        const __m256i t = whole(plus(times(v, minus(unit, times(s, minus(unit, widened(f))))), half));
        __m256i red = most, green = p, blue = q; /* sector 5 */
#define IN(k) _mm256_cmpeq_epi32(sector, _mm256_set1_epi32(k))
        green = chosen(IN(0), t, green), blue = chosen(IN(0), p, blue);
        red = chosen(IN(1), q, red), green = chosen(IN(1), most, green), blue = chosen(IN(1), p, blue);
        red = chosen(IN(2), p, red), green = chosen(IN(2), most, green), blue = chosen(IN(2), t, blue);
        red = chosen(IN(3), p, red), green = chosen(IN(3), q, green), blue = chosen(IN(3), most, blue);
        red = chosen(IN(4), t, red), blue = chosen(IN(4), most, blue);
#undef IN
        const __m256i pale = _mm256_or_si256(gray, _mm256_cmpeq_epi32(saturation, zero)); /* grey, or as good as grey */
        green = chosen(pale, most, green), red = chosen(pale, most, red), blue = chosen(pale, most, blue);
        const __m256i together = _mm256_or_si256(red, _mm256_or_si256(_mm256_slli_epi32(green, 8), _mm256_slli_epi32(blue, 16)));
        const __m256i bytes = _mm256_shuffle_epi8(together, drop_fourth);
        const __m128i first = _mm256_castsi256_si128(bytes), second = _mm256_extracti128_si256(bytes, 1);
        const int32_t last = _mm_extract_epi32(second, 2);
        _mm_storeu_si128((__m128i *)(void *)to, first);
        _mm_storel_epi64((__m128i *)(void *)(to + 12), second);
        memcpy(to + 20, &last, 4);
    }
    colour_loops_c.turn_hue(rgb + 3 * i, count - i, shift, tables);
}

const colour_loops colour_loops_avx2 = {blend, blend_with, saturate, gray_of, smooth, turn_hue};
#endif

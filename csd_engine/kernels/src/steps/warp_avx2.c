/* The samplers of warp.c with AVX2, for three channels: one pixel at a time, a channel in each lane, in the same order of
 * operations. Differences of bytes are exact as integers. A pixel whose neighbours do not all lie within the image goes back to
 * warp.c. */
#include "steps/steps.h"
#include "variant.h"

#if defined(DDLP_X86)
#include <immintrin.h>
#include <string.h>

#define TARGETED __attribute__((target("avx2")))
#define TARGETED_INLINE static inline __attribute__((always_inline, target("avx2")))

/* The three bytes from p on as integers; the fourth lane has the byte after them. */
TARGETED_INLINE __m128i pixel_at(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
}

TARGETED_INLINE void store_pixel(uint8_t *to, __m256d values) {
    const __m128i whole = _mm256_cvttpd_epi32(values);
    const int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(_mm_packus_epi32(whole, whole), whole));
    memcpy(to, &four, 2);
    to[2] = (uint8_t)(four >> 16);
}

/* a + (b - a) * d */
TARGETED_INLINE __m256d between(__m256d a, __m256d difference, __m256d d) {
    return _mm256_add_pd(a, _mm256_mul_pd(difference, d));
}

TARGETED void warp_bilinear_avx2(const picture *image, uint8_t *out, const double *xin, const double *yin, int count) {
    const ptrdiff_t row = (ptrdiff_t)image->width * 3;
    const double right = image->width - 1, bottom = image->height - 1;
    for (int i = 0; i < count; i++) {
        const double x = xin[i] - 0.5, y = yin[i] - 0.5;
        if (!(x >= 0 && y >= 0 && x < right && y < bottom)) {
            warp_bilinear(image, out + 3 * i, xin + i, yin + i, 1);
            continue;
        }
        const int whole_x = (int)x, whole_y = (int)y;
        const __m256d dx = _mm256_set1_pd(x - whole_x), dy = _mm256_set1_pd(y - whole_y);
        const uint8_t *upper = image->pixels + whole_y * row + whole_x * 3, *lower = upper + row;
        const __m128i a = pixel_at(upper), b = pixel_at(lower);
        const __m256d first = between(_mm256_cvtepi32_pd(a), _mm256_cvtepi32_pd(_mm_sub_epi32(pixel_at(upper + 3), a)), dx);
        const __m256d second = between(_mm256_cvtepi32_pd(b), _mm256_cvtepi32_pd(_mm_sub_epi32(pixel_at(lower + 3), b)), dx);
        store_pixel(out + 3 * i, between(first, _mm256_sub_pd(second, first), dy));
    }
}

/* p1 + d * (p2 + d * (p3 + d * p4)) */
TARGETED_INLINE __m256d polynomial(__m256d p1, __m256d p2, __m256d p3, __m256d p4, __m256d d) {
    p3 = _mm256_add_pd(p3, _mm256_mul_pd(d, p4));
    p2 = _mm256_add_pd(p2, _mm256_mul_pd(d, p3));
    return _mm256_add_pd(p1, _mm256_mul_pd(d, p2));
}

/* The cubic between the second and the third of four pixels that lie side by side. */
TARGETED_INLINE __m256d across(const uint8_t *p, __m256d d) {
    const __m128i four = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i v1 = _mm_cvtepu8_epi32(four), v2 = _mm_cvtepu8_epi32(_mm_srli_si128(four, 3));
    const __m128i v3 = _mm_cvtepu8_epi32(_mm_srli_si128(four, 6)), v4 = _mm_cvtepu8_epi32(_mm_srli_si128(four, 9));
    const __m128i p2 = _mm_sub_epi32(v3, v1), left = _mm_sub_epi32(v2, v1), right = _mm_sub_epi32(v3, v4);
    const __m128i p3 = _mm_sub_epi32(right, _mm_add_epi32(left, left)), p4 = _mm_sub_epi32(left, right);
    return polynomial(_mm256_cvtepi32_pd(v2), _mm256_cvtepi32_pd(p2), _mm256_cvtepi32_pd(p3), _mm256_cvtepi32_pd(p4), d);
}

/* As `cubic` of warp.c. */
TARGETED_INLINE __m256d down(__m256d v1, __m256d v2, __m256d v3, __m256d v4, __m256d d) {
    const __m256d left = _mm256_sub_pd(v1, v2), p2 = _mm256_sub_pd(v3, v1);
    const __m256d p3 = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(left, left), v3), v4);
    const __m256d p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v2, v1), v3), v4);
    return polynomial(v2, p2, p3, p4, d);
}

TARGETED void warp_bicubic_avx2(const picture *image, uint8_t *out, const double *xin, const double *yin, int count) {
    const ptrdiff_t row = (ptrdiff_t)image->width * 3;
    const double right = image->width - 2, bottom = image->height - 2;
    const __m256d most = _mm256_set1_pd(255), least = _mm256_setzero_pd();
    for (int i = 0; i < count; i++) {
        const double x = xin[i] - 0.5, y = yin[i] - 0.5;
        if (!(x >= 1 && y >= 1 && x < right && y < bottom)) {
            warp_bicubic(image, out + 3 * i, xin + i, yin + i, 1);
            continue;
        }
        const int whole_x = (int)x, whole_y = (int)y;
        const __m256d dx = _mm256_set1_pd(x - whole_x), dy = _mm256_set1_pd(y - whole_y);
        const uint8_t *p = image->pixels + (whole_y - 1) * row + (whole_x - 1) * 3;
        const __m256d value = down(across(p, dx), across(p + row, dx), across(p + 2 * row, dx), across(p + 3 * row, dx), dy);
        store_pixel(out + 3 * i, _mm256_min_pd(_mm256_max_pd(value, least), most));
    }
}
#endif

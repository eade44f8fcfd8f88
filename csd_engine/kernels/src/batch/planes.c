/* Turns pixels into planes: (count, 3) bytes into (3, count), sixteen pixels at a time if the processor can shuffle bytes. */
#include <stddef.h>
#include <string.h>

#include "ddlp.h"
#include "variant.h"

#if defined(DDLP_X86)
#include <immintrin.h>

/* For each third of 48 bytes: which of its bytes go to the places of one channel; -1 clears a place. */
#define LAY(channel, third, k) \
    ((channel) + 3 * (k) - 16 * (third) >= 0 && (channel) + 3 * (k) - 16 * (third) < 16 ? (channel) + 3 * (k) - 16 * (third) : -1)
#define MASK(channel, third)                                                                                    \
    _mm_setr_epi8(LAY(channel, third, 0), LAY(channel, third, 1), LAY(channel, third, 2), LAY(channel, third, 3), \
                  LAY(channel, third, 4), LAY(channel, third, 5), LAY(channel, third, 6), LAY(channel, third, 7), \
                  LAY(channel, third, 8), LAY(channel, third, 9), LAY(channel, third, 10), LAY(channel, third, 11), \
                  LAY(channel, third, 12), LAY(channel, third, 13), LAY(channel, third, 14), LAY(channel, third, 15))

__attribute__((target("ssse3"))) static size_t split_wide(const uint8_t *p, size_t count, uint8_t *out) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16, p += 48) {
        const __m128i a = _mm_loadu_si128((const void *)p), b = _mm_loadu_si128((const void *)(p + 16)),
                      c = _mm_loadu_si128((const void *)(p + 32));
#define PLANE(channel)                                                                                             \
    _mm_storeu_si128((void *)(out + (channel) * count + i),                                                        \
                     _mm_or_si128(_mm_shuffle_epi8(a, MASK(channel, 0)),                                           \
                                  _mm_or_si128(_mm_shuffle_epi8(b, MASK(channel, 1)), _mm_shuffle_epi8(c, MASK(channel, 2)))))
        PLANE(0);
        PLANE(1);
        PLANE(2);
#undef PLANE
    }
    return i;
}

static int can_shuffle(void) { return variant_used() == VARIANT_AVX2 || variant_used() == VARIANT_VNNI; }
#else
static size_t split_wide(const uint8_t *p, size_t count, uint8_t *out) { return (void)p, (void)count, (void)out, 0; }
static int can_shuffle(void) { return 0; }
#endif

void ddlp_planes(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, uint8_t *out) {
    const size_t pixels_each = (size_t)count, bytes = pixels_each * (size_t)channels;
    const int wide = channels == 3 && can_shuffle();
    for (int64_t image = 0; image < images; image++, pixels += bytes, out += bytes) {
        size_t i = wide ? split_wide(pixels, pixels_each, out) : 0;
        for (; i < pixels_each; i++)
            for (int32_t channel = 0; channel < channels; channel++)
                out[(size_t)channel * pixels_each + i] = pixels[i * (size_t)channels + (size_t)channel];
    }
}

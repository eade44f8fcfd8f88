/* Looks values up in a table, with about one load from the nearest cache for each, or by permutations (table_permuted.c).
 *
 * On x86 one store of 16 bytes replaces four or eight small ones, which would otherwise be the limit. A large result is
 * stored past the caches. They would fetch each line before it is overwritten, and drop it before it is read. */
#include <stddef.h>

#include "ddlp.h"
#include "batch/table.h"
#include "variant.h"

enum {
    STREAMED_BYTES = 1 << 18, /* results of this size or more are stored past the caches */
    STRETCH = 512,            /* pixels whose channels are looked up one after the other: they stay in the nearest cache */
    LINE = 64                 /* bytes of a cache line: a streamed line that is written in part costs twice as much */
};

#if defined(DDLP_X86)
#include <emmintrin.h>

static inline void store(void *out, __m128i values, int streamed) {
    if (streamed) _mm_stream_si128(out, values);
    else _mm_storeu_si128(out, values);
}

static inline __m128i four(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b)),
                              _mm_unpacklo_epi32(_mm_cvtsi32_si128((int)c), _mm_cvtsi32_si128((int)d)));
}

/* Looks up value number j. The bytes of the values lie `step` bytes apart, and the values use `tables` tables in turn. */
#define VALUE(j) table[256 * ((j) % tables) + p[(j) * step]]
#define PAIR(j) (VALUE(j) | (uint32_t)VALUE((j) + 1) << 16)
#define VECTOR_4(j) four(VALUE(j), VALUE((j) + 1), VALUE((j) + 2), VALUE((j) + 3))
#define VECTOR_2(j) four(PAIR(j), PAIR((j) + 2), PAIR((j) + 4), PAIR((j) + 6))

/* Looks up as many values as fill whole vectors, `tables` vectors at a time, and returns their number. */
#define VECTORS(bytes, element)                                                                                            \
    static inline __attribute__((always_inline)) size_t vectors_##bytes(                                                   \
        element *out, const uint8_t *p, size_t step, size_t count, const element *table, const size_t tables,              \
        const int streamed) {                                                                                              \
        const size_t each = 16 / bytes, together = each * tables;                                                          \
        size_t i = 0;                                                                                                      \
        if (streamed && (uintptr_t)out % 16) return 0;                                                                     \
        for (; i + together <= count; i += together, p += together * step)                                                 \
            for (size_t j = 0; j < together; j += each) store(out + i + j, VECTOR_##bytes(j), streamed);                   \
        return i;                                                                                                          \
    }
VECTORS(4, uint32_t)
VECTORS(2, uint16_t)
#else
#define vectors_4(out, p, step, count, table, tables, streamed) ((void)(streamed), (size_t)0)
#define vectors_2(out, p, step, count, table, tables, streamed) ((void)(streamed), (size_t)0)
#endif

/* Looks up one channel of some pixels; its values are written side by side. */
#define CHANNEL(bytes, element)                                                                                            \
    static void channel_##bytes(const table_job *job, int channel, element *restrict out, const uint8_t *restrict p,       \
                                size_t count) {                                                                            \
        const size_t step = (size_t)job->channels, line = job->permuted ? LINE : 16;                                       \
        const element *restrict table = (const element *)job->values + 256 * channel;                                      \
        size_t i = 0;                                                                                                      \
        if (job->streamed)                                                                                                 \
            while (i < count && (uintptr_t)(out + i) % line) out[i] = table[p[i * step]], i++;                             \
        if (job->permuted)                                                                                                 \
            i += (size_t)table_permuted(job, channel, p + i * step, (int64_t)(count - i), out + i);                        \
        else                                                                                                               \
            i += step == 3 ? vectors_##bytes(out + i, p + i * 3, 3, count - i, table, 1, job->streamed)                    \
                           : vectors_##bytes(out + i, p + i * step, step, count - i, table, 1, job->streamed);             \
        for (; i < count; i++) out[i] = table[p[i * step]];                                                                \
    }

/* Looks up pixels whose channels stay side by side. */
#define PIXELS(bytes, element)                                                                                             \
    static void pixels_##bytes(element *restrict out, const uint8_t *restrict p, size_t count, size_t channels,            \
                               const element *restrict table, int streamed) {                                              \
        size_t values = count * channels, i = 0;                                                                           \
        if (channels == 3) i = vectors_##bytes(out, p, 1, values, table, 3, streamed);                                     \
        for (; i < values; i += channels)                                                                                  \
            for (size_t channel = 0; channel < channels; channel++)                                                        \
                out[i + channel] = table[256 * channel + p[i + channel]];                                                  \
    }

#define IMAGES(bytes, element)                                                                                             \
    static void images_##bytes(const table_job *job, element *out, const uint8_t *p, size_t images, size_t count) {        \
        const size_t channels = (size_t)job->channels;                                                                     \
        if (job->channels_last && channels > 1) {                                                                          \
            pixels_##bytes(out, p, images * count, channels, job->values, job->streamed);                                  \
            return;                                                                                                        \
        }                                                                                                                  \
        for (size_t image = 0; image < images; image++, out += count * channels, p += count * channels) {                  \
            size_t length = (size_t)(-(uintptr_t)out % LINE) / bytes; /* later stretches begin at a cache line */  \
            for (size_t i = 0; i < count; i += length, length = STRETCH) {                                                 \
                if (length > count - i) length = count - i;                                                                \
                for (size_t channel = 0; channel < channels; channel++)                                                    \
                    channel_##bytes(job, (int)channel, out + channel * count + i, p + i * channels + channel, length);     \
            }                                                                                                              \
        }                                                                                                                  \
    }

#define ELEMENTS(bytes, element) CHANNEL(bytes, element) PIXELS(bytes, element) IMAGES(bytes, element)
ELEMENTS(2, uint16_t)
ELEMENTS(4, uint32_t)

void table_begin(table_job *job, int64_t results, int32_t channels, const void *table, int32_t element_bytes,
                 int32_t channels_last) {
    job->values = table;
    job->channels = channels, job->element_bytes = element_bytes, job->channels_last = channels_last;
    job->streamed = results * element_bytes >= STREAMED_BYTES && variant_used() != VARIANT_C;
    job->permuted = table_permute(job);
}

void table_apply(const table_job *job, const uint8_t *pixels, int64_t images, int64_t count, void *out) {
    switch (job->element_bytes) {
    case 2: images_2(job, out, pixels, (size_t)images, (size_t)count); break;
    case 4: images_4(job, out, pixels, (size_t)images, (size_t)count); break;
    }
}

void table_end(const table_job *job) {
#if defined(DDLP_X86)
    if (job->streamed) _mm_sfence(); /* the next thread that reads them must see the values */
#else
    (void)job;
#endif
}

void ddlp_table(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, const void *table,
                int32_t element_bytes, int32_t channels_last, void *out) {
    table_job job;
    table_begin(&job, images * count * channels, channels, table, element_bytes, channels_last);
    table_apply(&job, pixels, images, count, out);
    table_end(&job);
}

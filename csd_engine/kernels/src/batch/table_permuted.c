/* Looks values of one channel up in a table, 64 at a time, by permutations of bytes (AVX-512 VBMI). A value takes a third of
 * a cycle instead of a cycle.
 *
 * A table of 256 bytes takes four registers, so a whole table of four-byte elements fits into registers. The first bytes of
 * 64 values are looked up at once, then the second bytes, and so on. Then the bytes are interleaved to elements.
 * Interleaving works within quarters of a register. So the pixels' bytes are first put in the order that this needs, in the
 * same step that takes one channel's bytes out of the pixels. */
#include "ddlp.h"
#include "processor.h"
#include "batch/table.h"
#include "variant.h"

#if defined(DDLP_VNNI)
#include <immintrin.h>

#define PERMUTING __attribute__((target("avx512f,avx512bw,avx512vbmi")))
#define INLINE static inline __attribute__((always_inline)) PERMUTING

#define BYTES_OF(element)                                                                                       \
    for (int channel = 0; channel < job->channels; channel++)                                                   \
        for (int byte = 0; byte < (int)sizeof(element); byte++)                                                 \
            for (int i = 0; i < 256; i++)                                                                       \
                job->bytes[channel][byte][i] = (uint8_t)(((const element *)job->values)[256 * channel + i] >> 8 * byte);

PERMUTING static void make_ready(table_job *job) {
    if (job->element_bytes == 4) {
        BYTES_OF(uint32_t)
    } else {
        BYTES_OF(uint16_t)
    }
    /* Element e of the result's vector v comes from byte e % each of quarter e / each, after the bytes of earlier vectors. */
    const int each = 16 / job->element_bytes;
    for (int i = 0; i < PERMUTED_AT_ONCE; i++) {
        const int quarter = i / 16, vector = i % 16 / each, pixel = 4 * each * vector + each * quarter + i % each;
        job->order[i] = (uint8_t)(pixel * job->channels);
    }
}

int table_permute(table_job *job) {
    if (job->channels != 1 && (job->channels != 3 || job->channels_last)) return 0;
    if (variant_used() != VARIANT_VNNI || !(processor() & PROCESSOR_VBMI)) return 0;
    make_ready(job); /* a separate function: code that is compiled for such a processor must not run on another */
    return 1;
}

/* Gathers the bytes at the places in `order` after p; the last place is 63 * step. */
INLINE __m512i gather(const uint8_t *p, int step, __m512i order, __mmask64 beyond) {
    const __m512i first = _mm512_loadu_si512(p);
    if (step == 1) return _mm512_permutexvar_epi8(order, first);
    const __m512i both = _mm512_permutex2var_epi8(first, order, _mm512_loadu_si512(p + 64));
    const __m512i last = _mm512_maskz_loadu_epi8(~(__mmask64)0 >> 2, p + 128); /* no byte after the channel's last is read */
    return _mm512_mask_permutexvar_epi8(both, beyond, order, last);
}

INLINE __m512i look_up(const __m512i *table, __m512i places, __mmask64 upper) {
    const __m512i low = _mm512_permutex2var_epi8(table[0], places, table[1]);
    return _mm512_mask_mov_epi8(low, upper, _mm512_permutex2var_epi8(table[2], places, table[3]));
}

INLINE void put(void *out, __m512i values, int streamed) {
    if (streamed) _mm512_stream_si512(out, values);
    else _mm512_storeu_si512(out, values);
}

INLINE int64_t permuted(const table_job *job, const uint8_t (*bytes)[256], const uint8_t *p, const int step, int64_t count,
                        uint8_t *out, const int element_bytes, const int streamed) {
    __m512i table[PERMUTED_BYTES][4];
    for (int byte = 0; byte < element_bytes; byte++)
        for (int part = 0; part < 4; part++) table[byte][part] = _mm512_loadu_si512(bytes[byte] + 64 * part);
    const __m512i order = _mm512_loadu_si512(job->order);
    const __mmask64 beyond = _mm512_movepi8_mask(order);
    int64_t i = 0;
    for (; i + PERMUTED_AT_ONCE <= count; i += PERMUTED_AT_ONCE, p += PERMUTED_AT_ONCE * step) {
        const __m512i places = gather(p, step, order, beyond);
        const __mmask64 upper = _mm512_movepi8_mask(places);
        const __m512i a = look_up(table[0], places, upper), b = look_up(table[1], places, upper);
        const __m512i front = _mm512_unpacklo_epi8(a, b), back = _mm512_unpackhi_epi8(a, b);
        uint8_t *to = out + i * element_bytes;
        if (element_bytes == 2) {
            put(to, front, streamed), put(to + 64, back, streamed);
            continue;
        }
        const __m512i c = look_up(table[2], places, upper), d = look_up(table[3], places, upper);
        const __m512i upper_front = _mm512_unpacklo_epi8(c, d), upper_back = _mm512_unpackhi_epi8(c, d);
        put(to, _mm512_unpacklo_epi16(front, upper_front), streamed);
        put(to + 64, _mm512_unpackhi_epi16(front, upper_front), streamed);
        put(to + 128, _mm512_unpacklo_epi16(back, upper_back), streamed);
        put(to + 192, _mm512_unpackhi_epi16(back, upper_back), streamed);
    }
    return i;
}

/* The same loop for each kind of table. */
#define KIND(size, channels_, past)                                                                            \
    if (job->element_bytes == (size) && job->channels == (channels_) && !job->streamed == !(past))             \
        return permuted(job, job->bytes[channel], p, channels_, count, out, size, past);

PERMUTING int64_t table_permuted(const table_job *job, int channel, const uint8_t *p, int64_t count, void *out) {
    KIND(4, 3, 1)
    KIND(4, 3, 0)
    KIND(2, 3, 1)
    KIND(2, 3, 0)
    KIND(4, 1, 1)
    KIND(4, 1, 0)
    KIND(2, 1, 1)
    KIND(2, 1, 0)
    return 0;
}
#else
int table_permute(table_job *job) { return (void)job, 0; }

int64_t table_permuted(const table_job *job, int channel, const uint8_t *p, int64_t count, void *out) {
    return (void)job, (void)channel, (void)p, (void)count, (void)out, 0;
}
#endif

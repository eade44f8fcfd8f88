/* The keyed generator's numbers (csd_engine/arithmetic/keyed.py): BLAKE2b (RFC 7693) with a digest of 64 bytes and a personalization, of
 * one block each: seed, epoch, index, occurrence and counter, then zeros.
 *
 * Several rows are computed side by side, one in each lane of a vector, since all operations are the same for all rows. */
#include <string.h>

#include "ddlp.h"
#include "variant.h"

#if defined(DDLP_X86)
enum { LANES = 4 };
#elif defined(__aarch64__)
enum { LANES = 2 };
#else
enum { LANES = 1 }; /* 32-bit processors compute lanes one after another in pairs of registers: more code, and no faster */
#endif
enum { ROUNDS = 12, MESSAGE_BYTES = 40, GIVEN = 5 /* words of the block that are not zero */ };

typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

static const uint64_t INITIAL[8] = {
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
};

/* The parameter block: digest length 64, fan-out and depth 1; bytes 48 to 63 are "ddlp keyed 1", little-endian. */
static const uint64_t PARAMETERS[8] = {0x01010040, 0, 0, 0, 0, 0, 0x79656B20706C6464, 0x0000000031206465};

static const uint8_t ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

#define ROTATED(word, right) (((word) >> (right)) | ((word) << (64 - (right))))

/* The mixing function on four words of the state and two of the block. */
#define MIX(a, b, c, d, k)                        \
    do {                                          \
        a += b + block[order[2 * (k)]];           \
        d = ROTATED(d ^ a, 32);                   \
        c += d;                                   \
        b = ROTATED(b ^ c, 24);                   \
        a += b + block[order[2 * (k) + 1]];       \
        d = ROTATED(d ^ a, 16);                   \
        c += d;                                   \
        b = ROTATED(b ^ c, 63);                   \
    } while (0)

/* Computes the digests of LANES rows; keys and out have one row after the other. */
static inline __attribute__((always_inline)) void digest(uint64_t seed, uint64_t epoch, const uint64_t *keys, uint64_t *out) {
    const lanes zero = {0};
    lanes block[16] = {{0}}, v[16] = {{0}};
    block[0] += seed;
    block[1] += epoch;
    for (int lane = 0; lane < LANES; lane++)
        for (int word = 2; word < GIVEN; word++) block[word][lane] = keys[3 * lane + word - 2];
    for (int word = 0; word < 8; word++) {
        v[word] = zero + (INITIAL[word] ^ PARAMETERS[word]);
        v[word + 8] = zero + INITIAL[word];
    }
    v[12] ^= MESSAGE_BYTES;
    v[14] = ~v[14]; /* the last block */
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *const order = ORDER[round % 10];
        MIX(v[0], v[4], v[8], v[12], 0);
        MIX(v[1], v[5], v[9], v[13], 1);
        MIX(v[2], v[6], v[10], v[14], 2);
        MIX(v[3], v[7], v[11], v[15], 3);
        MIX(v[0], v[5], v[10], v[15], 4);
        MIX(v[1], v[6], v[11], v[12], 5);
        MIX(v[2], v[7], v[8], v[13], 6);
        MIX(v[3], v[4], v[9], v[14], 7);
    }
    for (int word = 0; word < 8; word++) {
        const lanes found = v[word] ^ v[word + 8] ^ (INITIAL[word] ^ PARAMETERS[word]);
        for (int lane = 0; lane < LANES; lane++) out[8 * lane + word] = found[lane];
    }
}

static inline __attribute__((always_inline)) void digest_all(uint64_t seed, uint64_t epoch, const uint64_t *keys,
                                                             int64_t count, uint64_t *out) {
    for (; count >= LANES; count -= LANES, keys += 3 * LANES, out += 8 * LANES) digest(seed, epoch, keys, out);
    if (count > 0) {
        uint64_t last[3 * LANES] = {0}, digests[8 * LANES];
        memcpy(last, keys, (size_t)count * 3 * sizeof *keys);
        digest(seed, epoch, last, digests);
        memcpy(out, digests, (size_t)count * 8 * sizeof *out);
    }
}

#if defined(DDLP_X86)
__attribute__((target("avx2"))) static void digest_all_wide(uint64_t seed, uint64_t epoch, const uint64_t *keys, int64_t count,
                                                            uint64_t *out) {
    digest_all(seed, epoch, keys, count, out);
}
#endif

void ddlp_keyed(uint64_t seed, uint64_t epoch, const uint64_t *keys, int64_t count, uint64_t *out) {
#if defined(DDLP_X86)
    if (variant_used() >= VARIANT_AVX2) { digest_all_wide(seed, epoch, keys, count, out); return; }
#endif
    digest_all(seed, epoch, keys, count, out);
}

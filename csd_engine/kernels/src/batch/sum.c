/* The batch file's checksum: acc = acc * multiplier + block, word by word (csd_engine/batchfile/checksum.py), and an image's in
 * the cache, which begins in the same way.
 *
 * Some blocks at a time are added to a word while it is in a register, so that only the data must be waited for. The compiler
 * vectorizes the loop. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ddlp.h"
#include "variant.h"

enum { WORDS = 4096, TOGETHER = 4 }; /* words of a block of 16 KiB: acc stays in the first-level cache; blocks of one pass */
enum { READ_BLOCKS = 16 };           /* blocks that are read, then added while they are still in the second-level cache */
enum { LINE = 16 };                  /* words that one prefetch loads */

static const uint32_t MULTIPLIER = 0x9E3779BB;
static const uint64_t WEIGHT = 0x9E3779B97F4A7C15; /* of an image's pairs of words: its multiples, made odd */

static inline __attribute__((always_inline)) uint32_t little_endian(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    return word;
}

/* `ahead`: the distance in bytes from the added data to the memory that is prefetched into the second-level cache; 0: none
 * is. */
static inline __attribute__((always_inline)) void add(uint32_t *restrict acc, const uint8_t *restrict data,
                                                      const int blocks, const int64_t ahead) {
    for (size_t line = 0; line < WORDS; line += LINE) {
        if (ahead) /* a prefetch never faults, even beyond the memory's end */
            for (int block = 0; block < blocks; block++)
                __builtin_prefetch((const void *)((uintptr_t)(data + 4 * ((size_t)block * WORDS + line)) + (uintptr_t)ahead), 0, 2);
        for (size_t i = line; i < line + LINE; i++) {
            uint32_t value = acc[i];
            for (int block = 0; block < blocks; block++)
                value = value * MULTIPLIER + little_endian(data + 4 * ((size_t)block * WORDS + i));
            acc[i] = value;
        }
    }
}

static inline __attribute__((always_inline)) void add_all(uint32_t *acc, const uint8_t *data, int64_t blocks, int64_t ahead) {
    if (ahead)
        for (; blocks >= TOGETHER; blocks -= TOGETHER, data += 4 * TOGETHER * WORDS) add(acc, data, TOGETHER, ahead);
    for (; blocks >= TOGETHER; blocks -= TOGETHER, data += 4 * TOGETHER * WORDS) add(acc, data, TOGETHER, 0);
    for (; blocks > 0; blocks--, data += 4 * WORDS) add(acc, data, 1, 0);
}

/* The same loop, compiled for instruction sets that are chosen at run time. */
#if defined(DDLP_VNNI)
#if defined(__clang__)
__attribute__((target("avx512f"), min_vector_width(512)))
#else
__attribute__((target("avx512f,prefer-vector-width=512")))
#endif
static void add_all_widest(uint32_t *acc, const uint8_t *data, int64_t blocks, int64_t ahead) {
    add_all(acc, data, blocks, ahead);
}
#endif

#if defined(DDLP_X86)
enum { WIDE = VARIANT_AVX2 };
__attribute__((target("avx2")))
#elif defined(DDLP_SWITCH_NEON_ON)
enum { WIDE = VARIANT_NEON };
#if defined(__clang__)
__attribute__((target("neon,d32")))
#else
__attribute__((target("fpu=neon")))
#endif
#else
enum { WIDE = -1 };
#endif
static void add_all_wide(uint32_t *acc, const uint8_t *data, int64_t blocks, int64_t ahead) {
    add_all(acc, data, blocks, ahead);
}

static void sum(uint32_t *acc, const uint8_t *data, int64_t blocks, int64_t ahead) {
    int variant = variant_used();
#if defined(DDLP_VNNI)
    if (variant == VARIANT_VNNI) { add_all_widest(acc, data, blocks, ahead); return; } /* all with VNNI have AVX-512F */
#endif
    if (variant == WIDE) add_all_wide(acc, data, blocks, ahead);
    else add_all(acc, data, blocks, ahead);
}

void ddlp_sum(uint32_t *acc, const uint8_t *data, int64_t blocks) { sum(acc, data, blocks, 0); }

/* Adds a last block of `rest` bytes, padded with zeros. */
static void sum_rest(uint32_t *acc, const uint8_t *data, int64_t rest) {
    uint8_t last[4 * WORDS] = {0};
    memcpy(last, data, (size_t)rest);
    sum(acc, last, 1, 0);
}

static uint64_t image_sum(const uint8_t *image, int64_t size) {
    uint32_t acc[WORDS] = {0};
    const int64_t blocks = size / (4 * WORDS), rest = size - blocks * 4 * WORDS;
    sum(acc, image, blocks, 0);
    if (rest) sum_rest(acc, image + size - rest, rest);
    uint64_t total = 0, weight = 0;
    for (int i = 0; i < WORDS; i += 2) {
        weight += WEIGHT;
        total += (acc[i] | (uint64_t)acc[i + 1] << 32) * (weight | 1);
    }
    return total;
}

void ddlp_image_sums(const uint8_t *const *images, const int64_t *sizes, int64_t count, uint64_t *sums) {
    for (int64_t i = 0; i < count; i++) sums[i] = image_sum(images[i], sizes[i]);
}

/* Reads `wanted` bytes, or fewer at the file's end. Returns their number, or -errno. */
static int64_t fill(int fd, uint8_t *out, int64_t wanted) {
    int64_t done = 0;
    while (done < wanted) {
        const ssize_t got = read(fd, out + done, (size_t)(wanted - done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (!got) break;
        done += got;
    }
    return done;
}

/* On some processors the system's copy stores past the caches. There the memory for the next piece is prefetched into the
 * second-level cache while a piece is added. The copy then stores into the cache, which saves more time than the sum takes. On
 * other processors the prefetch would cost a tenth. */
int64_t ddlp_read_sum(int fd, uint8_t *out, int64_t blocks, uint32_t *acc) {
    const int bring = variant_copies_past_caches();
    int64_t done = 0;
    while (blocks > 0) {
        const int64_t step = blocks < READ_BLOCKS ? blocks : READ_BLOCKS, got = fill(fd, out + done, step * 4 * WORDS);
        if (got < 0) return got;
        sum(acc, out + done, got / (4 * WORDS), bring && blocks > step ? step * 4 * WORDS : 0);
        done += got;
        if (got < step * 4 * WORDS) break;
        blocks -= step;
    }
    return done;
}

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

void ddlp_populate(uint8_t *memory, int64_t size) {
    const long page = sysconf(_SC_PAGESIZE);
    const uintptr_t end = (uintptr_t)memory + (uintptr_t)size, begin = ((uintptr_t)memory + (uintptr_t)page - 1) & -(uintptr_t)page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE); /* older systems refuse this advice */
}

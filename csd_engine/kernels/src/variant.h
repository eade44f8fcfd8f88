/* The instruction set that the kernels use: the best one of this processor, or one that a test has forced. */
#ifndef DDLP_VARIANT_H
#define DDLP_VARIANT_H

#if defined(__x86_64__) || (defined(__i386__) && defined(__SSE2__))
#define DDLP_X86 1
#if defined(__clang__) || __GNUC__ >= 8
#define DDLP_VNNI 1
#endif
#endif
/* NEON: every aarch64 has it. On 32-bit ARM it is looked for at run time, since some NAS processors of v7 lack it.
 * Big-endian NEON numbers its lanes in reverse, so portable C does the work there. The same holds for a compiler that can't
 * switch NEON on. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#if defined(__aarch64__) || (defined(__arm__) && (defined(__ARM_NEON) || defined(__ARM_NEON__)))
#define DDLP_NEON 1
#elif defined(__arm__) && defined(__ARM_FP) && __ARM_ARCH >= 7 && defined(__GNUC__) && (!defined(__clang__) || __clang_major__ >= 18)
#define DDLP_NEON 1
#define DDLP_SWITCH_NEON_ON 1
#endif
#endif

/* from the slowest to the fastest */
enum { VARIANT_C, VARIANT_SSE2, VARIANT_AVX2, VARIANT_VNNI, VARIANT_NEON };

/* Never fails. The first calls may come from several threads at once. */
int variant_used(void);

/* Whether to use BMI2: the processor has a fast one, and no variant older than AVX2 is forced. */
int variant_bmi2(void);

/* Whether the system's copy of a file's bytes stores past the caches, unless the target lines are in a cache. */
int variant_copies_past_caches(void);

#endif

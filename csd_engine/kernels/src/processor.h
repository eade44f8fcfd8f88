/* The kind of this processor, and its features by cpuid. zig's __builtin_cpu_supports can't be used: it answers no to everything. */
#ifndef DDLP_PROCESSOR_H
#define DDLP_PROCESSOR_H

/* What the compiler can be asked for: DDLP_X86 with SSE2, DDLP_VNNI, DDLP_NEON. */
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

/* Instruction sets that the processor has and the system lets programs use, and the processor's maker. */
enum {
    PROCESSOR_AVX2 = 1,
    PROCESSOR_BMI2 = 2,
    PROCESSOR_VNNI = 4,  /* AVX-512 with VL and VNNI */
    PROCESSOR_VBMI = 8,  /* AVX-512 with BW and VBMI */
    PROCESSOR_AMD = 16,
    PROCESSOR_ZEN = 32,  /* AMD's family 17h: Zen, Zen+, Zen 2 */
    PROCESSOR_FMA = 64,
};

/* All flags that apply; 0 on a processor other than x86. cpuid is read once: in a virtual machine the hypervisor answers,
 * slowly. */
int processor(void);

#endif

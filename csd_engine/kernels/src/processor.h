/* The features of this processor, from cpuid. zig's __builtin_cpu_supports can't be used: it answers no to everything. */
#ifndef DDLP_PROCESSOR_H
#define DDLP_PROCESSOR_H

/* Instruction sets that the processor has and the system lets programs use, and the processor's maker. */
enum {
    PROCESSOR_AVX2 = 1,
    PROCESSOR_BMI2 = 2,
    PROCESSOR_VNNI = 4,  /* AVX-512 with VL and VNNI */
    PROCESSOR_VBMI = 8,  /* AVX-512 with BW and VBMI */
    PROCESSOR_AMD = 16,
    PROCESSOR_ZEN = 32,  /* AMD's family 17h: Zen, Zen+, Zen 2 */
};

/* All flags that apply; 0 on a processor other than x86. cpuid is read once: in a virtual machine the hypervisor answers,
 * slowly. */
int processor(void);

#endif

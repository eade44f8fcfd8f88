/* What this processor has, by its own word: what zig links as __builtin_cpu_supports answers no to everything. */
#ifndef DDLP_PROCESSOR_H
#define DDLP_PROCESSOR_H

/* Instruction sets that the system lets programs use as well, and whose processor it is. */
enum {
    PROCESSOR_AVX2 = 1,
    PROCESSOR_BMI2 = 2,
    PROCESSOR_VNNI = 4,  /* AVX-512 with VL and VNNI */
    PROCESSOR_VBMI = 8,  /* AVX-512 with BW and VBMI */
    PROCESSOR_AMD = 16,
    PROCESSOR_ZEN = 32,  /* AMD's family 17h: Zen, Zen+, Zen 2 */
};

/* All that apply; 0 where it is no x86. Asked once: in a virtual machine the answers come from the hypervisor, slowly. */
int processor(void);

#endif

#include "processor.h"

#if defined(DDLP_X86)
#include <cpuid.h>
#include <stdint.h>

enum { ASKED = 1 << 30 };
enum { AVX_STATE = 6, AVX512_STATE = 0xe6 }; /* registers that the system saves, in XCR0 */

static uint32_t bit(uint32_t word, int number) { return word >> number & 1; }

static uint32_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int ask(void) {
    uint32_t a, b, c, d, saved;
    int found = ASKED;
    const uint32_t leaves = __get_cpuid_max(0, 0);
    if (leaves < 1) return found;
    __cpuid(0, a, b, c, d);
    const int amd = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
    __cpuid(1, a, b, c, d);
    if (amd) found |= PROCESSOR_AMD;
    if (amd && (a >> 8 & 15) + (a >> 20 & 255) == 0x17) found |= PROCESSOR_ZEN;
    saved = bit(c, 27) ? saved_registers() : 0;
    if (bit(c, 12) && (saved & AVX_STATE) == AVX_STATE) found |= PROCESSOR_FMA;
    if (leaves < 7) return found;
    __cpuid_count(7, 0, a, b, c, d);
    if (bit(b, 8)) found |= PROCESSOR_BMI2;
    if (bit(b, 5) && (saved & AVX_STATE) == AVX_STATE) found |= PROCESSOR_AVX2;
    if (bit(b, 16) && (saved & AVX512_STATE) == AVX512_STATE) {
        if (bit(b, 31) && bit(c, 11)) found |= PROCESSOR_VNNI;
        if (bit(b, 30) && bit(c, 1)) found |= PROCESSOR_VBMI;
    }
    return found;
}

int processor(void) {
    static int found;
    int known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!known) {
        known = ask();
        __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    }
    return known;
}
#else
int processor(void) { return 0; }
#endif

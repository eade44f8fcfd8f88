#include "variant.h"

#include <string.h>

#include "ddlp.h"
#include "processor.h"

#if defined(__arm__) && defined(DDLP_NEON)
#include <sys/auxv.h>
#define HWCAP_NEON (1 << 12) /* <asm/hwcap.h> */
#endif

static const char *const names[] = {"c", "sse2", "avx2", "vnni", "neon"};

static int chosen = -1; /* -1: not looked up yet */

static int available(int variant) {
#if defined(DDLP_X86)
#if defined(DDLP_VNNI)
    if (variant == VARIANT_VNNI) return (processor() & PROCESSOR_VNNI) != 0;
#endif
    if (variant == VARIANT_AVX2) return (processor() & PROCESSOR_AVX2) != 0;
    return variant == VARIANT_C || variant == VARIANT_SSE2;
#elif defined(DDLP_NEON)
#if defined(__arm__)
    if (variant == VARIANT_NEON) return (getauxval(AT_HWCAP) & HWCAP_NEON) != 0;
#endif
    return variant == VARIANT_C || variant == VARIANT_NEON;
#else
    return variant == VARIANT_C;
#endif
}

int variant_used(void) {
    int variant = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (variant < 0) {
        variant = VARIANT_NEON;
        while (!available(variant)) variant--;
        __atomic_store_n(&chosen, variant, __ATOMIC_RELAXED);
    }
    return variant;
}

int variant_bmi2(void) {
    /* AMD's first Zen processors take a hundred cycles or more for pdep. */
    return variant_used() >= VARIANT_AVX2 && (processor() & (PROCESSOR_BMI2 | PROCESSOR_ZEN)) == PROCESSOR_BMI2;
}

int variant_copies_past_caches(void) {
    return !(processor() & PROCESSOR_AMD); /* seen on Intel's processors, not on Zen 4: there the lines are fetched in vain */
}

const char *ddlp_variant(void) { return names[variant_used()]; }

int ddlp_choose(const char *name) {
    for (int variant = 0; variant <= VARIANT_NEON; variant++) {
        if (strcmp(name, names[variant]) == 0 && available(variant)) {
            __atomic_store_n(&chosen, variant, __ATOMIC_RELAXED);
            return 0;
        }
    }
    return DDLP_JOB;
}

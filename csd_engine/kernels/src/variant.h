/* The instruction set that the kernels use: the best one of this processor, or one that a test has forced. */
#ifndef DDLP_VARIANT_H
#define DDLP_VARIANT_H

#include "processor.h"

/* from the slowest to the fastest */
enum { VARIANT_C, VARIANT_SSE2, VARIANT_AVX2, VARIANT_VNNI, VARIANT_NEON };

/* Never fails. The first calls may come from several threads at once. */
int variant_used(void);

/* Whether to use BMI2: the processor has a fast one, and no variant older than AVX2 is forced. */
int variant_bmi2(void);

/* Whether the system's copy of a file's bytes stores past the caches, unless the target lines are in a cache. */
int variant_copies_past_caches(void);

#endif

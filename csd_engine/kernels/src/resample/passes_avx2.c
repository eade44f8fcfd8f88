/* The passes with AVX2. */
#include "variant.h"

#if defined(DDLP_X86)
#define PASSES passes_avx2
#define TARGET "avx2"
#define MULTIPLY_ADD(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#include "resample/passes_256.h"
#endif

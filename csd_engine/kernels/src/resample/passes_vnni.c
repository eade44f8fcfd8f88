/* The passes with AVX-512's multiply-and-accumulate, on vectors of AVX2's width. They take a seventh less time. */
#include "variant.h"

#if defined(DDLP_VNNI)
#define PASSES passes_vnni
#define TARGET "avx2,avx512vl,avx512vnni"
#define MULTIPLY_ADD(sum, a, b) _mm256_dpwssd_epi32(sum, a, b)
#include "resample/passes_256.h"
#endif

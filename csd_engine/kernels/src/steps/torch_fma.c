/* torch.c's loops with AVX2 and its fused multiply-adds. */
#include "processor.h"

#if defined(DDLP_X86)
#define LOOPS torch_loops_fma
#define TARGETED __attribute__((target("avx2,fma")))
#include "steps/torch_loops.h"
#endif

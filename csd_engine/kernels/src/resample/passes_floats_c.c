/* The passes of floats in portable C. */
#include <math.h>

#define PASSES floats_c
#define TARGETED
#define LANES 4
#define FUSED(a, b, c) \
    ((lanes){fmaf((a)[0], b, (c)[0]), fmaf((a)[1], b, (c)[1]), fmaf((a)[2], b, (c)[2]), fmaf((a)[3], b, (c)[3])})
#define WIDENED(p) ((pixel){(p)[0], (p)[1], (p)[2], (p)[3]})
#include "resample/passes_floats.h"

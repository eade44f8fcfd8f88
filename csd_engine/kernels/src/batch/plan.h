/* Turns a pipeline's operators into a job for one image. The draws are those of csd_engine/transforms, with the keyed
 * generator's numbers. */
#ifndef DDLP_PLAN_H
#define DDLP_PLAN_H

#include "ddlp.h"

/* csd_engine/transforms/fileplan.py's FileKind; the operators are operators.py's and masks.py's. */
enum {
    PLAN_RESIZED_CROP = 0, /* crop with a share low .. high and a ratio ratio_low .. ratio_high, resized to height x width */
    PLAN_RESIZE = 1,       /* to height x width */
    PLAN_SHORTER = 2,      /* the shorter side to `height`, the longer one to at most `width`, unless `width` is 0 */
    PLAN_LONGER = 3,       /* the longer side to `width` */
    PLAN_CENTER_CROP = 4,  /* height x width */
    PLAN_CROP = 5,         /* height x width at a random place */
    PLAN_ACROSS = 6,       /* mirror left-right with this `chance` */
    PLAN_DOWN = 7,         /* mirror top-bottom with this `chance` */
    PLAN_HOLES = 8,        /* `height` boxes of `width` pixels */
    PLAN_ERASE = 9         /* with this `chance` one box with a share and a ratio */
};

typedef struct {
    int32_t kind;
    int32_t height, width;
    int32_t filter; /* ddlp_job's */
    int32_t box;    /* the operator's first box */
    double chance, low, high, ratio_low, ratio_high;
    double log_low, log_high; /* the ratios' natural logarithms, as keyed.py computes them */
} plan_operator;

struct ddlp_plan {
    const plan_operator *operators;
    int64_t operator_count;
    int32_t channels;      /* ddlp_job's */
    int32_t boxes;         /* the number for each sample */
    int32_t pillow13;      /* whether the order of the passes is Pillow 13's */
    int32_t fast;          /* decode="fast" */
    int32_t height, width; /* of the result */
};

#endif

/* The draws for each sample of a batch: csd_engine/transforms/draws.py's steps, with the keyed generator's numbers. */
#ifndef DDLP_DRAWS_H
#define DDLP_DRAWS_H

#include "ddlp.h"

/* draws.py's DrawKind. */
enum { STEP_MOVE = 0, STEP_ROW = 1, STEP_COLUMN = 2, STEP_ACROSS = 3, STEP_DOWN = 4, STEP_HOLE = 5 };

typedef struct {
    int32_t kind;
    int64_t numbers[4];
    double chance;
} ddlp_step;

typedef struct {
    const ddlp_step *steps;
    int64_t step_count;
    uint64_t seed, epoch;
    const int64_t *occurrences; /* [count] the sample's key, together with its index */
    int32_t *boxes;             /* [count][masks][4], the steps fill their own boxes; NULL: there are none */
    int64_t masks;
} ddlp_draws;

/* Draw where each sample's window lies (ddlp_windows_job). DDLP_STEP: a step is unknown, and nothing was written. */
int draws_run(const ddlp_draws *draws, const int64_t *indices, int64_t count, int64_t *tops, int64_t *lefts, uint8_t *across,
              uint8_t *down);

#endif

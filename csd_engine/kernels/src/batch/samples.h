/* The samples of one call that makes many: each is drawn by a plan, made by the kernel, and converted to the batch's type.
 * files.c makes them of files, pixels.c of pixels. */
#ifndef DDLP_SAMPLES_H
#define DDLP_SAMPLES_H

#include "batch/plan.h"

/* The place of a call's samples. */
typedef struct {
    uint8_t *out;      /* plan->height x plan->width pixels of plan->channels bytes each, without gaps; */
    const void *table; /* unless NULL, `out` has the results of ddlp_table */
    int32_t element_bytes, channels_last;
    int32_t planes; /* 1: `out` has the results of ddlp_planes */
    int32_t *boxes; /* plan->boxes x 4 for each sample, or NULL */
} ddlp_samples;

/* Draw the job for the call's `nth` sample; size and key are those of ddlp_plan_job. The sample's bytes go to job->out. */
int samples_draw(ddlp_context *context, const ddlp_samples *to, const ddlp_plan *plan, const int32_t size[2],
                 const uint64_t key[4], int64_t nth, ddlp_job *job);

/* Convert that sample's bytes, once the job is done. */
void samples_finish(const ddlp_samples *to, const ddlp_plan *plan, int64_t nth, const ddlp_job *job);

#endif

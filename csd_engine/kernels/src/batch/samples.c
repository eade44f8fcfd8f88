#include "batch/samples.h"

#include <errno.h>

#include "context.h"

static int64_t pixels_of(const ddlp_plan *plan) { return (int64_t)plan->height * plan->width; }

int samples_draw(ddlp_context *context, const ddlp_samples *to, const ddlp_plan *plan, const int32_t size[2],
                 const uint64_t key[4], int64_t nth, ddlp_job *job) {
    const int64_t bytes = pixels_of(plan) * plan->channels;
    const int result = ddlp_plan_job(plan, size, key, job, to->boxes ? to->boxes + 4 * plan->boxes * nth : NULL);
    if (result) return result;
    job->out = to->table || to->planes ? context_scratch(context, (size_t)bytes) : to->out + nth * bytes;
    job->out_stride = (int64_t)plan->width * plan->channels;
    return job->out ? 0 : -ENOMEM;
}

void samples_finish(const ddlp_samples *to, const ddlp_plan *plan, int64_t nth, const ddlp_job *job) {
    const int64_t pixels = pixels_of(plan), bytes = pixels * plan->channels;
    if (to->table)
        ddlp_table(job->out, 1, pixels, plan->channels, to->table, to->element_bytes, to->channels_last,
                   to->out + nth * bytes * to->element_bytes);
    else if (to->planes)
        ddlp_planes(job->out, 1, pixels, plan->channels, to->out + nth * bytes);
}

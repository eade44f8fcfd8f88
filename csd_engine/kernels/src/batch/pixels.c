#include "batch/pixels.h"

#include <errno.h>

#include "clock.h"
#include "context.h"

enum { BAND_ROWS = 16 /* rows that are packed at a time: they stay in the nearest cache */ };

/* Packs the pixels of one row. */
static void pack(uint8_t *out, const uint8_t *from, const ddlp_image *image, int32_t count, int32_t channels) {
    const ptrdiff_t pixel = (ptrdiff_t)image->pixel, channel = image->channels == 1 ? 0 : (ptrdiff_t)image->channel;
    for (int32_t x = 0; x < count; x++, from += pixel)
        for (int32_t c = 0; c < channels; c++) *out++ = from[c * channel];
}

/* Does the job on an image that is not packed: planes, a mirrored array, grey that becomes RGB. */
static int resample_strided(ddlp_context *context, const ddlp_image *image, const ddlp_job *job) {
    resample_state *s = context_resample(context);
    int result = resample_begin(s, job);
    if (result) return result;
    const int64_t stride = (int64_t)s->columns * job->channels;
    const uint8_t *from = (const uint8_t *)(uintptr_t)image->first + (job->top + s->first_row) * (ptrdiff_t)image->row +
                          (job->left + s->first_column) * (ptrdiff_t)image->pixel;
    uint8_t *band = context_band(context, (size_t)stride * BAND_ROWS + RESAMPLE_SLACK);
    if (!band) return -ENOMEM;
    for (int32_t row = 0; row < s->rows; row += BAND_ROWS) {
        const int count = s->rows - row < BAND_ROWS ? s->rows - row : BAND_ROWS;
        for (int k = 0; k < count; k++, from += (ptrdiff_t)image->row)
            pack(band + k * stride, from, image, s->columns, job->channels);
        result = resample_rows(s, band, stride, count);
        if (result) return result;
    }
    return resample_end(s);
}

static int make_next(ddlp_context *context, const ddlp_pixels_job *job, const ddlp_plan *plan, int64_t nth) {
    const int64_t k = job->next;
    const ddlp_image *image = job->images + k;
    const int32_t size[2] = {image->width, image->height};
    const uint64_t key[4] = {job->seed, job->epoch, (uint64_t)job->indices[k], (uint64_t)job->occurrences[k]};
    ddlp_job one;
    if (image->channels != plan->channels && image->channels != 1) return DDLP_JOB; /* Pillow converts colours to grey */
    int result = samples_draw(context, &job->to, plan, size, key, nth, &one);
    if (result) return result;
    if (one.left < 0 || one.top < 0 || one.width > image->width - one.left || one.height > image->height - one.top) return DDLP_JOB;
    const int packed = image->channels == plan->channels && image->pixel == plan->channels &&
                       (image->channel == 1 || image->channels == 1) && image->row >= (int64_t)image->width * plan->channels;
    result = packed ? ddlp_resample(context, (const uint8_t *)(uintptr_t)image->first, image->row, &one)
                    : resample_strided(context, image, &one);
    if (!result) samples_finish(&job->to, plan, nth, &one);
    return result;
}

int ddlp_pixels(ddlp_context *context, ddlp_pixels_job *job) {
    const int64_t began = now_ns(), first = job->next;
    ddlp_plan plan = *job->plan;
    plan.fast = 0;
    for (; job->next < job->end; job->next++) {
        if (job->next > first && now_ns() - began >= job->enough_ns) return 0;
        const int result = make_next(context, job, &plan, job->next - first);
        if (result) return result;
    }
    return 0;
}

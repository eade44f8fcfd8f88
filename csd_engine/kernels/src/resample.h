/* Pillow's resampling of 8-bit images (BILINEAR, BICUBIC, antialiased), bit for bit, of rows that come one band at a time.
 *
 * Only the part of the resized image that the job keeps is computed, from the input that it needs; flips cost nothing.
 * Where an axis keeps its size, its pass is left out, as in Pillow. Beside the coefficients, memory is the rows that the
 * vertical pass has not finished with: twice its support, and some.
 *
 *     resample_begin(state, job);   push rows first_row .. first_row + rows - 1 of the crop, each from first_column on
 *     resample_rows(state, ...);    as often as wanted
 *     resample_end(state);
 */
#ifndef DDLP_RESAMPLE_H
#define DDLP_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "axis.h"
#include "ddlp.h"
#include "passes.h"

/* Bytes behind the last row of a pushed band that must be readable; what they hold does not matter. */
#define RESAMPLE_SLACK PASS_SLACK

typedef struct {
    int32_t first_column, columns, first_row, rows; /* what is to be pushed, relative to the job's crop */

    /* private; all zero to begin with */
    int32_t channels, flip, across, down, down_first, out_rows; /* across, down: the axis changes its size */
    int32_t pushed, written;                                    /* rows so far */
    uint8_t *out;                                               /* where output row 0 belongs */
    ptrdiff_t out_stride;                                       /* negative: flipped vertically */
    const resample_passes *passes;
    resample_axis x, y;
    uint8_t *window; /* rows window_first .. window_first + window_rows - 1 of those that the vertical pass reads */
    size_t window_room;
    ptrdiff_t window_stride;
    int32_t window_first, window_rows, window_most;
    uint8_t *band; /* rows between the vertical pass and the horizontal one or a flip */
    size_t band_room;
    int32_t band_rows;
} resample_state;

/* 0; DDLP_JOB: not a job that can be done; -ENOMEM. */
int resample_begin(resample_state *state, const ddlp_job *job);

/* The next `count` rows, `stride` bytes apart. 0; DDLP_JOB: more than state->rows. */
int resample_rows(resample_state *state, const uint8_t *rows, int64_t stride, int count);

/* DDLP_JOB: rows are missing. */
int resample_end(resample_state *state);

void resample_free(resample_state *state);

/* All of it on an image in memory; nothing is read outside of the crop. */
int resample_memory(resample_state *state, const uint8_t *pixels, int64_t stride, const ddlp_job *job);

#endif

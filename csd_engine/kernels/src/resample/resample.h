/* Resampling of 8-bit images, bit for bit, for rows that come one band at a time: Pillow's (all filters but NEAREST), and torch's.
 *
 * Only the part of the resized image that the job keeps is computed, from the input that it needs. Flips cost nothing. If an
 * axis keeps its size, its pass is left out, as in Pillow. Besides the coefficients, memory holds the rows that the vertical
 * pass still needs: a little more than twice its support.
 *
 *     resample_begin(state, job);   push rows first_row .. first_row + rows - 1 of the crop, each from first_column on
 *     resample_rows(state, ...);    as often as wanted
 *     resample_end(state);
 */
#ifndef DDLP_RESAMPLE_H
#define DDLP_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "resample/axis.h"
#include "ddlp.h"
#include "resample/passes.h"

/* Bytes after the last row of a pushed band that must be readable. Their content does not matter. */
#define RESAMPLE_SLACK PASS_SLACK

typedef struct {
    int32_t first_column, columns, first_row, rows; /* the rows and columns to push, relative to the job's crop */

    /* private; all zero at first */
    int32_t channels, flip, across, down, down_first, out_rows; /* across, down: the axis changes its size */
    int32_t copies;                                             /* further rows that are the first one (torch_resample.py) */
    int32_t pushed, written;                                    /* rows pushed and written so far */
    uint8_t *out;                                               /* the place of output row 0 */
    ptrdiff_t out_stride;                                       /* negative: flipped vertically */
    const resample_passes *passes;
    resample_axis x, y;
    uint8_t *window; /* rows window_first .. window_first + window_rows - 1 of the vertical pass's input */
    size_t window_room;
    ptrdiff_t window_stride;
    int32_t window_first, window_rows, window_most;
    uint8_t *band; /* rows between the vertical pass and the horizontal pass or a flip */
    size_t band_room;
    int32_t band_rows;
} resample_state;

/* 0; DDLP_JOB: the job can't be done; -ENOMEM. */
int resample_begin(resample_state *state, const ddlp_job *job);

/* Push the next `count` rows, `stride` bytes apart. 0; DDLP_JOB: there are more than state->rows. */
int resample_rows(resample_state *state, const uint8_t *rows, int64_t stride, int count);

/* Finish the output. 0; DDLP_JOB: rows are missing. */
int resample_end(resample_state *state);

void resample_free(resample_state *state);

/* Do all of it on an image in memory. Nothing is read outside of the crop. */
int resample_memory(resample_state *state, const uint8_t *pixels, int64_t stride, const ddlp_job *job);

#endif

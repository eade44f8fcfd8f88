#include "resample/resample.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "resample/rows.h"

enum {
    WINDOW_BYTES = 1 << 18, /* rows between the passes stay in a core's second-level cache */
    BAND_ROWS = 8,          /* rows that the horizontal pass takes together, or a multiple of them */
    MOST_PIXELS = 1 << 16,  /* of a side: no JPEG has more, and the workspace grows with the change of size */
};

static int kept_within(int32_t first, int32_t kept, int32_t full) {
    return first >= 0 && kept >= 1 && full >= 1 && full < MOST_PIXELS && first <= full - kept;
}

static int is_possible(const ddlp_job *job) {
    int same = job->full_width == job->width && job->full_height == job->height;
    return (job->channels == 1 || job->channels == 3) && job->left >= 0 && job->top >= 0 && job->width >= 1 &&
           job->height >= 1 && job->width < MOST_PIXELS && job->height < MOST_PIXELS &&
           kept_within(job->out_left, job->out_width, job->full_width) &&
           kept_within(job->out_top, job->out_height, job->full_height) && job->out != NULL &&
           (axis_support(job->filter) > 0.0 || (job->filter == DDLP_NO_RESIZE && same));
}

/* Prepares the coefficients of the axes that change, and sets which input they need. Floats go through both passes: where an
 * axis keeps its size each weight is 1 or 0. */
static int prepare_axes(resample_state *s, const ddlp_job *job) {
    const int floats = axis_has_floats(job->filter);
    const int alike = floats && job->full_width == 1 && job->full_height != job->height;
    s->across = job->full_width != job->width || floats;
    s->down = job->full_height != job->height || floats;
    s->copies = alike ? job->out_height - 1 : 0;
    s->first_column = job->out_left;
    s->columns = job->out_width;
    s->first_row = job->out_top;
    s->rows = job->out_height;
    if (s->across) {
        const axis_geometry g = {job->width, job->full_width, job->out_left, job->out_width, job->filter,
                                 job->flip_horizontal != 0, 1};
        if (axis_prepare(&s->x, &g)) return -ENOMEM;
        s->first_column = s->x.first;
        s->columns = s->x.inputs;
    }
    if (s->down) {
        axis_geometry g = {job->height, job->full_height, job->out_top, job->out_height, job->filter, 0, 0};
        if (alike) g.kept_first = 0, g.kept = 1;
        if (axis_prepare(&s->y, &g)) return -ENOMEM;
        s->first_row = s->y.first;
        s->rows = s->y.inputs;
    }
    return 0;
}

int resample_begin(resample_state *s, const ddlp_job *job) {
    if (!is_possible(job)) return DDLP_JOB;
    int result = prepare_axes(s, job);
    if (result) return result;
    s->channels = job->channels;
    s->flip = job->flip_horizontal != 0;
    s->down_first = s->down && ((job->vertical_first && !axis_is_torchs(job->filter)) || !s->across); /* torch: across first */
    s->out_rows = job->out_height - s->copies;
    s->out_stride = (ptrdiff_t)(job->flip_vertical ? -job->out_stride : job->out_stride);
    s->out = job->flip_vertical ? job->out + (job->out_height - 1) * (ptrdiff_t)job->out_stride : job->out;
    s->passes = passes_used(job->filter);
    s->pushed = s->written = s->window_first = s->window_rows = s->band_rows = 0;
    if (!s->down) return 0;

    /* Room for one output row's taps and many more rows, so that rows seldom have to move to the window's start. */
    size_t row = (size_t)(s->down_first ? s->columns : job->out_width) * (size_t)s->channels;
    if (axis_has_floats(job->filter)) row *= sizeof(float);
    size_t most = WINDOW_BYTES / row, least = (size_t)s->y.most + 4 * BAND_ROWS;
    if (most < least) most = least;
    if (most > (size_t)s->rows) most = (size_t)s->rows;
    if (most > (SIZE_MAX - PASS_SLACK) / row) return -ENOMEM; /* 32 bits */
    s->window_stride = (ptrdiff_t)row;
    s->window_most = (int32_t)most;
    if (grow((void **)&s->window, &s->window_room, row * most + PASS_SLACK)) return -ENOMEM;
    if (s->down_first && grow((void **)&s->band, &s->band_room, row * BAND_ROWS + PASS_SLACK)) return -ENOMEM;
    return 0;
}

static uint8_t *next_out(const resample_state *s) { return s->out + s->written * s->out_stride; }

/* Writes rows that need no more vertical pass to the output. */
static void finish_rows(resample_state *s, const uint8_t *rows, ptrdiff_t stride, int count) {
    if (s->across) s->passes->across(next_out(s), s->out_stride, rows, stride, count, s->channels, &s->x);
    else copy_rows(next_out(s), s->out_stride, rows, stride, count, s->columns, s->channels, s->flip);
    s->written += count;
}

static void flush_band(resample_state *s) {
    finish_rows(s, s->band, s->window_stride, s->band_rows);
    s->band_rows = 0;
}

/* Computes all output rows whose taps lie within rows first .. first + count - 1 of the vertical pass's input. */
static void pass_down(resample_state *s, const uint8_t *rows, ptrdiff_t stride, int first, int count) {
    size_t bytes = (size_t)s->window_stride;
    for (;;) {
        int output = s->written + s->band_rows;
        if (output >= s->out_rows || s->y.start[output] + s->y.taps[output] > first + count) return;
        const uint8_t *taps = rows + (s->y.start[output] - first) * stride;
        if (s->down_first && (s->across || s->flip)) {
            s->passes->down(s->band + s->band_rows * s->window_stride, taps, stride, bytes, &s->y, output);
            if (++s->band_rows == BAND_ROWS) flush_band(s);
        } else {
            s->passes->down(next_out(s), taps, stride, bytes, &s->y, output);
            s->written++;
        }
    }
}

/* Drops the rows that no later output needs, if the window is full. */
static void make_room(resample_state *s) {
    if (s->window_rows < s->window_most) return;
    int output = s->written + s->band_rows;
    int dropped = (output < s->out_rows ? s->y.start[output] : s->rows) - s->window_first;
    if (dropped > s->window_rows) dropped = s->window_rows;
    s->window_first += dropped;
    s->window_rows -= dropped;
    memmove(s->window, s->window + dropped * s->window_stride, (size_t)(s->window_rows * s->window_stride));
}

int resample_rows(resample_state *s, const uint8_t *rows, int64_t row_stride, int count) {
    ptrdiff_t stride = (ptrdiff_t)row_stride;
    if (count < 0 || count > s->rows - s->pushed) return DDLP_JOB;
    s->pushed += count;
    if (!s->down) {
        finish_rows(s, rows, stride, count);
        return 0;
    }
    if (s->down_first && count == s->rows) { /* all rows come at once: none must be kept */
        pass_down(s, rows, stride, 0, count);
        return 0;
    }
    while (count > 0) {
        make_room(s);
        int taken = s->window_most - s->window_rows;
        if (taken > count) taken = count;
        uint8_t *place = s->window + s->window_rows * s->window_stride;
        if (s->down_first) copy_rows(place, s->window_stride, rows, stride, taken, s->columns, s->channels, 0);
        else s->passes->across(place, s->window_stride, rows, stride, taken, s->channels, &s->x);
        s->window_rows += taken;
        rows += taken * stride;
        count -= taken;
        pass_down(s, s->window, s->window_stride, s->window_first, s->window_rows);
    }
    return 0;
}

int resample_end(resample_state *s) {
    if (s->band_rows) flush_band(s);
    for (int copy = 1; copy <= s->copies; copy++) memcpy(s->out + copy * s->out_stride, s->out, (size_t)s->channels);
    return s->pushed == s->rows && s->written == s->out_rows ? 0 : DDLP_JOB;
}

void resample_free(resample_state *s) {
    axis_free(&s->x);
    axis_free(&s->y);
    free(s->window);
    free(s->band);
    memset(s, 0, sizeof *s);
}

/* The horizontal pass reads a few bytes after a row's end. So the last rows are copied into a buffer with room after them. */
int resample_memory(resample_state *s, const uint8_t *pixels, int64_t row_stride, const ddlp_job *job) {
    int result = resample_begin(s, job);
    if (result) return result;
    ptrdiff_t stride = (ptrdiff_t)row_stride, row = (ptrdiff_t)s->columns * s->channels;
    if (stride < row && s->rows > 1) return DDLP_JOB;
    pixels += (job->top + s->first_row) * stride + (ptrdiff_t)(job->left + s->first_column) * s->channels;
    if (!s->across || s->down_first) {
        result = resample_rows(s, pixels, stride, s->rows);
        return result ? result : resample_end(s);
    }
    int last = (int)(PASS_SLACK / row) + 1;
    if (last > s->rows) last = s->rows;
    if (grow((void **)&s->band, &s->band_room, (size_t)(last * row) + PASS_SLACK)) return -ENOMEM;
    copy_rows(s->band, row, pixels + (s->rows - last) * stride, stride, last, s->columns, s->channels, 0);
    result = resample_rows(s, pixels, stride, s->rows - last);
    if (result == 0) result = resample_rows(s, s->band, row, last);
    return result ? result : resample_end(s);
}

#include "batch/windows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "resample/rows.h"
#include "batch/table.h"
#include "variant.h"

typedef struct ddlp_windows_job windows_job;

#define INLINE static inline __attribute__((always_inline)) /* so that a function is compiled for each instruction set */
enum {
    LINE = 64,
    AHEAD = 2,         /* samples that are prefetched, so that nothing waits for memory */
    SMALL_BYTES = 8192 /* the largest sample that is handled as a whole */
};

/* The source position for a position outside of 0..length - 1 (csd_engine.transforms.primitives). */
static int64_t border_position(int64_t position, int64_t length, int mode) {
    if (mode == WINDOWS_EDGE || length == 1) return position < 0 ? 0 : position >= length ? length - 1 : position;
    int64_t period = mode == WINDOWS_REFLECT ? 2 * (length - 1) : 2 * length;
    int64_t folded = position % period;
    if (folded < 0) folded += period;
    if (mode == WINDOWS_REFLECT) return folded < length ? folded : period - folded;
    return folded < length ? folded : period - 1 - folded;
}

INLINE void fill_pixels(uint8_t *out, int64_t count, const uint8_t *fill, int channels) {
    int same = 1;
    for (int channel = 1; channel < channels; channel++) same &= fill[channel] == fill[0];
    if (same) { /* mostly black borders */
        memset(out, fill[0], (size_t)(count * channels));
        return;
    }
    for (int64_t x = 0; x < count; x++)
        for (int channel = 0; channel < channels; channel++) *out++ = fill[channel];
}

INLINE void copy_pixel(uint8_t *out, const uint8_t *pixel, const windows_job *job) {
    for (int channel = 0; channel < job->channels; channel++) out[channel] = pixel[channel * job->channel_stride];
}

/* Turns three planes, as in torchvision's CIFAR, into pixels. */
INLINE void interleave(uint8_t *restrict out, const uint8_t *restrict first, const uint8_t *restrict second,
                       const uint8_t *restrict third, int64_t count) {
    for (int64_t x = 0; x < count; x++) {
        out[3 * x] = first[x];
        out[3 * x + 1] = second[x];
        out[3 * x + 2] = third[x];
    }
}

/* Copies `count` pixels that lie inside of the sample. */
INLINE void copy_pixels(uint8_t *restrict out, const uint8_t *restrict pixels, int64_t count, const windows_job *job) {
    if (job->channel_stride == 1 && job->pixel_stride == job->channels) {
        memcpy(out, pixels, (size_t)(count * job->channels));
    } else if (job->channels == 3 && job->pixel_stride == 1) {
        interleave(out, pixels, pixels + job->channel_stride, pixels + 2 * job->channel_stride, count);
    } else {
        for (int64_t x = 0; x < count; x++) copy_pixel(out + x * job->channels, pixels + x * job->pixel_stride, job);
    }
}

/* Copies one line of a window, not mirrored. */
INLINE void copy_line(uint8_t *out, const uint8_t *line, int64_t left, const windows_job *job) {
    int channels = job->channels;
    int64_t width = job->out_width, begin = left < 0 ? -left : 0, end = job->width - left;
    if (begin > width) begin = width;
    if (end > width) end = width;
    if (end < begin) end = begin;
    if (begin > 0 || end < width) {
        if (job->padding_mode == WINDOWS_CONSTANT) {
            fill_pixels(out, begin, job->fill, channels);
            fill_pixels(out + end * channels, width - end, job->fill, channels);
        } else {
            for (int64_t x = 0; x < width; x++) {
                if (x == begin) x = end;
                if (x == width) break;
                int64_t column = border_position(left + x, job->width, job->padding_mode);
                copy_pixel(out + x * channels, line + column * job->pixel_stride, job);
            }
        }
    }
    if (end > begin) copy_pixels(out + begin * channels, line + (left + begin) * job->pixel_stride, end - begin, job);
}

INLINE void copy_window(const windows_job *job, int64_t i, const uint8_t *sample, uint8_t *out, uint8_t *scratch) {
    int across = job->across && job->across[i], down = job->down && job->down[i];
    int64_t bytes = (int64_t)job->out_width * job->channels;
    for (int64_t row = 0; row < job->out_height; row++, out += bytes) {
        int64_t y = job->tops[i] + (down ? job->out_height - 1 - row : row);
        if (y < 0 || y >= job->height) {
            if (job->padding_mode == WINDOWS_CONSTANT) {
                fill_pixels(out, job->out_width, job->fill, job->channels);
                continue;
            }
            y = border_position(y, job->height, job->padding_mode);
        }
        copy_line(across ? scratch : out, sample + y * job->line_stride, job->lefts[i], job);
        if (across) mirror_row(out, scratch, job->out_width, job->channels);
    }
}

/* Whether samples are small and without gaps. */
INLINE int small(const windows_job *job) {
    const int64_t bytes = (int64_t)job->height * job->width * job->channels;
    return job->sample_stride == bytes && bytes <= SMALL_BYTES;
}

/* Prefetches a small sample before its turn, since an array's samples lie anywhere in memory. */
INLINE void ask_for(const windows_job *job, int64_t i) {
    if (i >= job->count) return;
    const uint8_t *sample = job->rows + job->indices[i] * job->sample_stride;
    for (int64_t at = 0; at < job->sample_stride; at += LINE) __builtin_prefetch(sample + at);
}

/* `scratch`: room for a line, a small sample and a window. A table is applied to each window while it is in the nearest
 * cache. */
INLINE void copy_windows(const windows_job *job, uint8_t *scratch) {
    const int64_t pixels = (int64_t)job->out_height * job->out_width, bytes = pixels * job->channels;
    const int ahead = small(job) ? AHEAD : 0;
    table_job values;
    if (job->table)
        table_begin(&values, job->count * bytes, job->channels, job->table, job->element_bytes, job->channels_last);
    /* Small planes are turned into pixels as a whole, since a single line is shorter than a vector. */
    const int64_t plane = (int64_t)job->height * job->width;
    const int whole = small(job) && job->channels == 3 && job->pixel_stride == 1 && job->line_stride == job->width;
    windows_job pixelwise = *job;
    if (whole) pixelwise.pixel_stride = 3, pixelwise.channel_stride = 1, pixelwise.line_stride = 3 * (int64_t)job->width;
    uint8_t *sample_room = scratch + (size_t)job->out_width * (size_t)job->channels, *window = sample_room + SMALL_BYTES;
    uint8_t *out = job->out;
    for (int64_t i = 0; i < ahead; i++) ask_for(job, i);
    for (int64_t i = 0; i < job->count; i++) {
        const uint8_t *sample = job->rows + job->indices[i] * job->sample_stride;
        if (ahead) ask_for(job, i + ahead);
        if (whole) {
            interleave(sample_room, sample, sample + job->channel_stride, sample + 2 * job->channel_stride, plane);
            sample = sample_room;
        }
        copy_window(&pixelwise, i, sample, job->table ? window : out, scratch);
        if (job->table) table_apply(&values, window, 1, pixels, out);
        out += job->table ? bytes * job->element_bytes : bytes;
    }
    if (job->table) table_end(&values);
}

#if defined(DDLP_X86)
__attribute__((target("avx2"))) static void copy_windows_wide(const windows_job *job, uint8_t *scratch) {
    copy_windows(job, scratch);
}
#endif

/* Runs a job whose windows are known. */
static int run(const windows_job *job, uint8_t *scratch) {
    for (int64_t i = 0; i < job->count; i++)
        if (job->tops[i] != (int32_t)job->tops[i] || job->lefts[i] != (int32_t)job->lefts[i]) return DDLP_JOB;
#if defined(DDLP_X86)
    if (variant_used() >= VARIANT_AVX2) {
        copy_windows_wide(job, scratch);
        return 0;
    }
#endif
    copy_windows(job, scratch);
    return 0;
}

int ddlp_windows(const ddlp_windows_job *job) {
    if (job->height < 1 || job->width < 1 || job->channels < 1 || job->out_height < 1 || job->out_width < 1 ||
        job->padding_mode < WINDOWS_CONSTANT || job->padding_mode > WINDOWS_SYMMETRIC ||
        (job->table && job->element_bytes != 2 && job->element_bytes != 4))
        return DDLP_JOB;
    for (int64_t i = 0; i < job->count; i++)
        if (job->indices[i] < 0 || job->indices[i] >= job->samples) return DDLP_JOB;
    const size_t line = (size_t)job->out_width * (size_t)job->channels, count = (size_t)job->count;
    const size_t drawn = job->draws ? count * (2 * sizeof(int64_t) + 2) : 0;
    uint8_t *room = malloc(drawn + line + SMALL_BYTES + (job->table ? line * (size_t)job->out_height : 0));
    if (!room) return -ENOMEM;
    windows_job given = *job;
    int result = 0;
    if (job->draws) {
        int64_t *tops = (int64_t *)room, *lefts = tops + count;
        uint8_t *across = (uint8_t *)(lefts + count), *down = across + count;
        result = draws_run(job->draws, job->indices, job->count, tops, lefts, across, down);
        given.tops = tops, given.lefts = lefts, given.across = across, given.down = down;
    }
    if (!result) result = run(&given, room + drawn);
    free(room);
    return result;
}

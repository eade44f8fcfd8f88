#include "windows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

typedef struct ddlp_windows_job windows_job;

/* The source position that a position outside of 0..length - 1 shows (csd_engine.transforms.primitives). */
static int64_t border_position(int64_t position, int64_t length, int mode) {
    if (mode == WINDOWS_EDGE || length == 1) return position < 0 ? 0 : position >= length ? length - 1 : position;
    int64_t period = mode == WINDOWS_REFLECT ? 2 * (length - 1) : 2 * length;
    int64_t folded = position % period;
    if (folded < 0) folded += period;
    if (mode == WINDOWS_REFLECT) return folded < length ? folded : period - folded;
    return folded < length ? folded : period - 1 - folded;
}

static void fill_pixels(uint8_t *out, int64_t count, const uint8_t *fill, int channels) {
    if (channels == 1) {
        memset(out, fill[0], (size_t)count);
        return;
    }
    for (int64_t x = 0; x < count; x++)
        for (int channel = 0; channel < channels; channel++) *out++ = fill[channel];
}

static void copy_pixel(uint8_t *out, const uint8_t *pixel, const windows_job *job) {
    for (int channel = 0; channel < job->channels; channel++) out[channel] = pixel[channel * job->channel_stride];
}

/* `count` pixels that lie inside of the sample. */
static void copy_pixels(uint8_t *restrict out, const uint8_t *restrict pixels, int64_t count, const windows_job *job) {
    if (job->channel_stride == 1 && job->pixel_stride == job->channels) {
        memcpy(out, pixels, (size_t)(count * job->channels));
    } else if (job->channels == 3 && job->pixel_stride == 1) { /* planes, as torchvision's CIFAR has them */
        const uint8_t *second = pixels + job->channel_stride, *third = second + job->channel_stride;
        for (int64_t x = 0; x < count; x++) {
            out[3 * x] = pixels[x];
            out[3 * x + 1] = second[x];
            out[3 * x + 2] = third[x];
        }
    } else {
        for (int64_t x = 0; x < count; x++) copy_pixel(out + x * job->channels, pixels + x * job->pixel_stride, job);
    }
}

/* One line of a window, not mirrored. */
static void copy_line(uint8_t *out, const uint8_t *line, int64_t left, const windows_job *job) {
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

static void copy_window(const windows_job *job, int64_t i, uint8_t *out, uint8_t *scratch) {
    const uint8_t *sample = job->rows + job->indices[i] * job->sample_stride;
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

int ddlp_windows(const ddlp_windows_job *job) {
    if (job->height < 1 || job->width < 1 || job->channels < 1 || job->out_height < 1 || job->out_width < 1 ||
        job->padding_mode < WINDOWS_CONSTANT || job->padding_mode > WINDOWS_SYMMETRIC)
        return DDLP_JOB;
    for (int64_t i = 0; i < job->count; i++)
        if (job->indices[i] < 0 || job->indices[i] >= job->samples || job->tops[i] != (int32_t)job->tops[i] ||
            job->lefts[i] != (int32_t)job->lefts[i])
            return DDLP_JOB;
    size_t line = (size_t)job->out_width * (size_t)job->channels, window = line * (size_t)job->out_height;
    uint8_t *scratch = job->across ? malloc(line) : NULL;
    if (job->across && !scratch) return -ENOMEM;
    for (int64_t i = 0; i < job->count; i++) copy_window(job, i, job->out + (size_t)i * window, scratch);
    free(scratch);
    return 0;
}

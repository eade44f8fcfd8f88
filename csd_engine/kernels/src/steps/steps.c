#include "steps/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { MOST_PIXELS = 1 << 28, MOST_SIDE = 65535 /* csd_engine/transforms/checks.py */ };

static int fits(int64_t width, int64_t height) {
    return width > 0 && height > 0 && width <= MOST_SIDE && height <= MOST_SIDE && width * height <= MOST_PIXELS;
}

/* Whether these numbers are sides or places of an image, which can be added as integers. */
static int are_sides(const double *n, int count) {
    for (int i = 0; i < count; i++)
        if (!(n[i] >= 0 && n[i] <= (double)MOST_SIDE)) return 0;
    return 1;
}

uint8_t *steps_other(step_state *state, int32_t width, int32_t height, int32_t channels) {
    const int other = !state->used;
    const size_t bytes = (size_t)width * (size_t)height * (size_t)channels + STEP_SLACK;
    return grow((void **)&state->memory[other], &state->room[other], bytes) ? NULL : state->memory[other];
}

void steps_swap(step_state *state, int32_t width, int32_t height, int32_t channels) {
    state->used = !state->used;
    state->image = (picture){state->memory[state->used], width, height, channels};
}

int steps_begin(step_state *state, const uint8_t *pixels, const int32_t size[3]) {
    if (!fits(size[0], size[1]) || (size[2] != 1 && size[2] != 3)) return DDLP_STEP;
    uint8_t *copy = steps_other(state, size[0], size[1], size[2]);
    if (!copy) return -ENOMEM;
    memcpy(copy, pixels, (size_t)size[0] * (size_t)size[1] * (size_t)size[2]);
    steps_swap(state, size[0], size[1], size[2]);
    return 0;
}

static int crop(step_state *state, const double *n) {
    const picture *image = &state->image;
    if (!are_sides(n, 4)) return DDLP_STEP;
    const int64_t left = (int64_t)n[0], top = (int64_t)n[1], width = (int64_t)n[2], height = (int64_t)n[3];
    const size_t channels = (size_t)image->channels, from = (size_t)image->width * channels, to = (size_t)width * channels;
    if (!fits(width, height) || left + width > image->width || top + height > image->height) return DDLP_STEP;
    const uint8_t *first = image->pixels + (size_t)top * from + (size_t)left * channels;
    for (int64_t y = 0; y < height; y++) memmove(image->pixels + (size_t)y * to, first + (size_t)y * from, to);
    state->image.width = (int32_t)width, state->image.height = (int32_t)height;
    return 0;
}

static void copy_pixel(uint8_t *to, const uint8_t *from, int channels) {
    to[0] = from[0];
    if (channels == 3) to[1] = from[1], to[2] = from[2];
}

static int mirror(step_state *state, int left_right) {
    const picture *image = &state->image;
    const int channels = image->channels;
    const size_t row = (size_t)image->width * (size_t)channels;
    uint8_t *out = steps_other(state, image->width, image->height, channels);
    if (!out) return -ENOMEM;
    for (int32_t y = 0; y < image->height; y++) {
        const uint8_t *from = image->pixels + row * (size_t)y;
        if (!left_right) {
            memcpy(out + row * (size_t)(image->height - 1 - y), from, row);
            continue;
        }
        uint8_t *to = out + row * (size_t)y + row - channels;
        for (int32_t x = 0; x < image->width; x++, to -= channels, from += channels) copy_pixel(to, from, channels);
    }
    steps_swap(state, image->width, image->height, channels);
    return 0;
}

/* The corners and the middle, one below the other; for ten crops those of the mirrored image follow. */
static int crops(step_state *state, const double *n) {
    const picture *image = &state->image;
    const int channels = image->channels, mirrored = (int)n[4], count = mirrored ? 10 : 5;
    const int64_t height = (int64_t)n[0], width = (int64_t)n[1], left = (int64_t)n[2], top = (int64_t)n[3];
    if (!fits(width, height) || !fits(width, height * count)) return DDLP_STEP;
    const int64_t right = image->width - width, bottom = image->height - height;
    if (right < 0 || bottom < 0 || left < 0 || left > right || top < 0 || top > bottom || mirrored < 0 || mirrored > 2) return DDLP_STEP;
    const int64_t lefts[] = {0, right, 0, right, left}, tops[] = {0, 0, bottom, bottom, top};
    uint8_t *out = steps_other(state, (int32_t)width, (int32_t)(height * count), channels);
    if (!out) return -ENOMEM;
    const size_t row = (size_t)width * (size_t)channels, whole = (size_t)image->width * (size_t)channels;
    for (int k = 0; k < count; k++) {
        const int by = k < 5 ? 0 : mirrored;
        const int64_t x = by == 1 ? right - lefts[k % 5] : lefts[k % 5]; /* where it lies in the image as it is */
        for (int64_t y = 0; y < height; y++, out += row) {
            const int64_t from_y = tops[k % 5] + y;
            const uint8_t *from = image->pixels + (size_t)(by == 2 ? image->height - 1 - from_y : from_y) * whole + (size_t)(x * channels);
            if (by != 1) {
                memcpy(out, from, row);
                continue;
            }
            uint8_t *to = out + row - channels;
            for (int64_t at = 0; at < width; at++, to -= channels, from += channels) copy_pixel(to, from, channels);
        }
    }
    steps_swap(state, (int32_t)width, (int32_t)(height * count), channels);
    return 0;
}

static int turn(step_state *state, int quarters) {
    const picture *image = &state->image;
    const int channels = image->channels;
    const int32_t w = image->width, h = image->height, width = quarters == 2 ? w : h, height = quarters == 2 ? h : w;
    uint8_t *out = quarters < 1 || quarters > 3 ? NULL : steps_other(state, width, height, channels);
    if (quarters < 1 || quarters > 3) return DDLP_STEP;
    if (!out) return -ENOMEM;
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++) {
            const int32_t from_x = quarters == 1 ? w - 1 - y : quarters == 2 ? w - 1 - x : y;
            const int32_t from_y = quarters == 1 ? x : quarters == 2 ? h - 1 - y : h - 1 - x;
            copy_pixel(out + ((size_t)y * (size_t)width + (size_t)x) * (size_t)channels,
                       image->pixels + ((size_t)from_y * (size_t)w + (size_t)from_x) * (size_t)channels, channels);
        }
    steps_swap(state, width, height, channels);
    return 0;
}

/* The source position of a padded axis' position, as in `border_indices` of csd_engine/transforms/primitives.py. */
static int64_t folded(int64_t at, int64_t length, int mode) {
    if (mode == PAD_EDGE || length == 1) return at < 0 ? 0 : at >= length ? length - 1 : at;
    const int64_t period = mode == PAD_REFLECT ? 2 * (length - 1) : 2 * length;
    at = ((at % period) + period) % period;
    return at < length ? at : mode == PAD_REFLECT ? period - at : period - 1 - at;
}

static int pad(step_state *state, const double *n) {
    const picture *image = &state->image;
    const int channels = image->channels, mode = (int)n[4];
    if (!are_sides(n, 4)) return DDLP_STEP;
    const int64_t left = (int64_t)n[0], top = (int64_t)n[1], right = (int64_t)n[2], bottom = (int64_t)n[3];
    const int64_t width = left + image->width + right, height = top + image->height + bottom;
    const uint8_t colour[3] = {(uint8_t)n[5], (uint8_t)n[6], (uint8_t)n[7]};
    if (!fits(width, height) || mode < 0 || mode > PAD_SYMMETRIC) return DDLP_STEP;
    uint8_t *out = steps_other(state, (int32_t)width, (int32_t)height, channels), *to = out;
    if (!out) return -ENOMEM;
    for (int64_t y = -top; y < image->height + bottom; y++) {
        const int outside = y < 0 || y >= image->height;
        const int64_t from_y = mode == PAD_CONSTANT ? (outside ? 0 : y) : folded(y, image->height, mode);
        const uint8_t *from = image->pixels + (size_t)from_y * (size_t)image->width * (size_t)channels;
        for (int64_t x = -left; x < image->width + right; x++, to += channels) {
            if (x == 0 && !(outside && mode == PAD_CONSTANT)) {
                memcpy(to, from, (size_t)image->width * (size_t)channels);
                to += (size_t)(image->width - 1) * (size_t)channels, x = image->width - 1;
            } else if (mode == PAD_CONSTANT) {
                copy_pixel(to, colour, channels);
            } else {
                copy_pixel(to, from + folded(x, image->width, mode) * channels, channels);
            }
        }
    }
    steps_swap(state, (int32_t)width, (int32_t)height, channels);
    return 0;
}

static int gray(step_state *state, int channels, int whose) {
    const picture *image = &state->image;
    const size_t count = (size_t)image->width * (size_t)image->height;
    if (channels != 1 && channels != 3) return DDLP_STEP;
    uint8_t *out = steps_other(state, image->width, image->height, channels);
    if (!out) return -ENOMEM;
    if (image->channels == 1) memcpy(out, image->pixels, count);
    else if (whose) torch_gray(image->pixels, out, count, whose);
    else colour_gray(image->pixels, out, count);
    for (size_t i = channels == 1 ? 0 : count; i-- > 0;) out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = out[i]; /* from the end */
    steps_swap(state, image->width, image->height, channels);
    return 0;
}

static int resize(step_state *state, resample_state *resample, const double *n) {
    const picture *image = &state->image;
    const int64_t height = (int64_t)n[0], width = (int64_t)n[1];
    ddlp_job job = {.width = image->width, .height = image->height, .filter = (int32_t)n[2], .reduce = 1, .channels = image->channels};
    const int64_t lost = image->height - height;
    if (!fits(width, height)) return DDLP_STEP;
    job.vertical_first = n[3] != 0 && lost > 0 && lost > 2 * (image->width - width); /* resample.py's vertical_first */
    job.full_width = job.out_width = (int32_t)width, job.full_height = job.out_height = (int32_t)height;
    job.out = steps_other(state, job.full_width, job.full_height, image->channels);
    job.out_stride = width * image->channels;
    if (!job.out) return -ENOMEM;
    const int result = resample_memory(resample, image->pixels, (int64_t)image->width * image->channels, &job);
    if (!result) steps_swap(state, job.full_width, job.full_height, image->channels);
    return result;
}

static int sharpness(step_state *state, double factor, int whose) {
    picture *image = &state->image;
    uint8_t *out = steps_other(state, image->width, image->height, image->channels);
    if (!out) return -ENOMEM;
    if (whose) {
        torch_sharpness(image, out, factor, whose);
        return 0;
    }
    colour_smooth(image, out);
    colour_blend(out, image->pixels, (float)factor, image->pixels, (size_t)image->width * (size_t)image->height * (size_t)image->channels);
    return 0;
}

static int warp(step_state *state, const ddlp_step_numbers *step) {
    const picture *image = &state->image;
    const double *n = step->n;
    const int filter = (int)n[2];
    const uint8_t colour[3] = {(uint8_t)n[3], (uint8_t)n[4], (uint8_t)n[5]};
    if (!fits((int64_t)n[0], (int64_t)n[1])) return DDLP_STEP;
    const int32_t width = (int32_t)n[0], height = (int32_t)n[1];
    uint8_t *out = steps_other(state, width, height, image->channels);
    if (!out) return -ENOMEM;
    const int result = step->kind == STEP_AFFINE ? warp_affine(image, out, width, height, filter, colour, n + 6)
                                                 : warp_perspective(image, out, width, height, filter, colour, n + 6);
    if (!result) steps_swap(state, width, height, image->channels);
    return result;
}

static int moved_on_a_grid(step_state *state, const double *n) {
    const picture *image = &state->image;
    uint8_t *out = steps_other(state, image->width, image->height, image->channels);
    if (!out) return -ENOMEM;
    const int result = torch_warp(image, out, n);
    if (!result) steps_swap(state, image->width, image->height, image->channels);
    return result;
}

static int blurred(step_state *state, const ddlp_step_numbers *step) {
    const picture *image = &state->image;
    uint8_t *out = steps_other(state, image->width, image->height, image->channels);
    if (!out) return -ENOMEM;
    const int result = blur(state, (int)step->n[0], (int)step->n[1], step->data, out);
    if (!result) steps_swap(state, image->width, image->height, image->channels);
    return result;
}

static int run(step_state *state, resample_state *resample, const ddlp_step_numbers *step) {
    picture *image = &state->image;
    const double *n = step->n;
    switch (step->kind) {
    case STEP_CROP: return crop(state, n);
    case STEP_MIRROR: return mirror(state, (int)n[0]);
    case STEP_PAD: return pad(state, n);
    case STEP_GRAY: return gray(state, (int)n[0], (int)n[1]);
    case STEP_RESIZE: return resize(state, resample, n);
    case STEP_TURN: return turn(state, (int)n[0]);
    case STEP_TABLE: colour_table(image, step->data); return 0;
    case STEP_BRIGHTNESS: n[1] != 0 ? torch_brightness(image, n[0]) : colour_brightness(image, (float)n[0]); return 0;
    case STEP_CONTRAST: n[1] != 0 ? torch_contrast(image, n[0], (int)n[1]) : colour_contrast(image, (float)n[0]); return 0;
    case STEP_SATURATION: n[1] != 0 ? torch_saturation(image, n[0], (int)n[1]) : colour_saturation(image, (float)n[0]); return 0;
    case STEP_SHARPNESS: return sharpness(state, n[0], (int)n[1]);
    case STEP_HUE: n[1] != 0 ? torch_hue(image, n[0], (int)n[1]) : colour_hue(image, (uint8_t)n[0]); return 0;
    case STEP_AUTOCONTRAST: n[0] != 0 ? torch_autocontrast(image, (int)n[0]) : colour_autocontrast(image); return 0;
    case STEP_EQUALIZE: colour_equalize(image); return 0;
    case STEP_AFFINE: case STEP_PERSPECTIVE: return warp(state, step);
    case STEP_CROPS: return crops(state, n);
    case STEP_BLUR: return blurred(state, step);
    case STEP_GRID: return moved_on_a_grid(state, n);
    default: return DDLP_STEP;
    }
}

int steps_run(step_state *state, resample_state *resample, const ddlp_step_numbers *steps, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        const int result = run(state, resample, steps + k);
        if (result) return result;
    }
    return 0;
}

void steps_free(step_state *state) {
    free(state->memory[0]);
    free(state->memory[1]);
    free(state->numbers);
}

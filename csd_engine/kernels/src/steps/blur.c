/* A Gaussian blur in two passes of single precision. Borders are reflected, and the result is rounded half to even.
 *
 * torchvision blurs tensors by one convolution in two dimensions, in its library's order of operations. The results differ by 1
 * if a sum is so close to a half that rounding decides. The order here is fixed, so every computer makes the same bits.
 */
#include <errno.h>
#include <math.h>

#include "memory.h"
#include "steps/steps.h"

enum { BLOCK = 32 }; /* values that are summed together, in registers */

static int32_t reflected(int32_t at, int32_t length) { return at < 0 ? -at : at >= length ? 2 * (length - 1) - at : at; }

/* sums[i] = the middle tap, then pairs from the inside out; rows[k]: the input of tap k - radius for i = 0. */
static void taps(const float *const *rows, int radius, const float *weights, size_t first, size_t n, float *sums) {
    float sum[BLOCK];
    const float *middle = rows[radius] + first;
    if (n < BLOCK) {
        for (size_t i = 0; i < n; i++) {
            float one = weights[radius] * middle[i];
            for (int k = 1; k <= radius; k++) one += weights[radius + k] * (rows[radius - k][first + i] + rows[radius + k][first + i]);
            sums[i] = one;
        }
        return;
    }
    for (int i = 0; i < BLOCK; i++) sum[i] = weights[radius] * middle[i];
    for (int k = 1; k <= radius; k++) {
        const float weight = weights[radius + k], *before = rows[radius - k] + first, *behind = rows[radius + k] + first;
        for (int i = 0; i < BLOCK; i++) sum[i] += weight * (before[i] + behind[i]);
    }
    for (int i = 0; i < BLOCK; i++) sums[i] = sum[i];
}

static void line(const float *const *rows, int radius, const float *weights, size_t count, float *sums) {
    for (size_t first = 0; first < count; first += BLOCK)
        taps(rows, radius, weights, first, count - first < BLOCK ? count - first : BLOCK, sums + first);
}

int blur(step_state *state, int taps_across, int taps_down, const float *weights, uint8_t *out) {
    const picture *image = &state->image;
    const int channels = image->channels, across = taps_across / 2, down = taps_down / 2;
    const size_t row = (size_t)image->width * (size_t)channels, height = (size_t)image->height;
    if (taps_across < 1 || taps_down < 1 || !(taps_across & 1) || !(taps_down & 1) || across >= image->width || down >= image->height)
        return DDLP_STEP;
    const size_t padded = row + 2 * (size_t)across * (size_t)channels, most = (size_t)(across > down ? across : down) * 2 + 1;
    const size_t floats = row * height + padded + row, pointers = most * sizeof(float *);
    if (grow((void **)&state->numbers, &state->numbers_room, pointers + floats * sizeof(float))) return -ENOMEM;
    const float **rows = (const float **)(void *)state->numbers;
    float *passed = (float *)(void *)((uint8_t *)state->numbers + pointers), *wide = passed + row * height, *sums = wide + padded;
    for (int k = 0; k < taps_across; k++) rows[k] = wide + (size_t)k * (size_t)channels;
    for (size_t y = 0; y < height; y++) {
        const uint8_t *in = image->pixels + y * row;
        float *middle = wide + across * channels;
        for (size_t i = 0; i < row; i++) middle[i] = (float)in[i];
        for (int32_t x = 1; x <= across; x++)
            for (int c = 0; c < channels; c++) {
                middle[-x * channels + c] = (float)in[reflected(-x, image->width) * channels + c];
                middle[(image->width - 1 + x) * channels + c] = (float)in[reflected(image->width - 1 + x, image->width) * channels + c];
            }
        line(rows, across, weights, row, passed + y * row);
    }
    for (int32_t y = 0; y < image->height; y++) {
        for (int k = 0; k < taps_down; k++) rows[k] = passed + row * (size_t)reflected(y + k - down, image->height);
        line(rows, down, weights + taps_across, row, sums);
        for (size_t i = 0; i < row; i++) {
            const float value = rintf(sums[i]);
            out[(size_t)y * row + i] = value >= 255 ? 255 : (uint8_t)(int32_t)value;
        }
    }
    return 0;
}

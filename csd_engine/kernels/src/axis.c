#include "axis.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddlp.h"
#include "memory.h"

static double bilinear(double x) {
    if (x < 0.0) x = -x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Keys' cubic with a = -1/2, its terms in Pillow's order: other orders round differently. */
static double bicubic(double x) {
    const double a = -0.5;
    if (x < 0.0) x = -x;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

/* Fills plain[0 ..] and returns the number of taps; *start gets the first tap's input. Outer zeros are left out. */
static int one_output(int32_t *plain, int *start, double *weights, int output, int inputs, double scale, double support,
                      int filter) {
    double center = (output + 0.5) * scale, inverse = 1.0 / (scale < 1.0 ? 1.0 : scale), total = 0.0;
    int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
    if (low < 0) low = 0;
    if (high > inputs) high = inputs;
    int count = high - low;
    for (int tap = 0; tap < count; tap++) {
        double x = (tap + low - center + 0.5) * inverse;
        weights[tap] = filter == DDLP_BICUBIC ? bicubic(x) : bilinear(x);
        total += weights[tap];
    }
    int begin = count, end = 0;
    for (int tap = 0; tap < count; tap++) {
        double weight = total != 0.0 ? weights[tap] / total : weights[tap];
        double scaled = weight * (1 << COEFFICIENT_BITS);
        plain[tap] = (int32_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
        if (plain[tap] != 0) {
            if (begin == count) begin = tap;
            end = tap + 1;
        }
    }
    if (begin >= end) { /* nothing but zeros: one tap of them */
        begin = 0;
        end = 1;
    }
    memmove(plain, plain + begin, sizeof *plain * (size_t)(end - begin));
    *start = low + begin;
    return end - begin;
}

static tap_pair split_pair(const int32_t *plain) {
    tap_pair pair;
    for (int i = 0; i < 2; i++) {
        int32_t low = (int32_t)((plain[i] & 0xffff) ^ 0x8000) - 0x8000;
        int32_t high = (plain[i] - low) / 65536;
        pair.low[i] = (int16_t)low;
        pair.high[i] = (int16_t)high;
        pair.high_bytes[i] = pair.high_bytes[i + 2] = (int8_t)high;
    }
    return pair;
}

static int reserve(resample_axis *axis, size_t outputs, size_t taps) {
    if (grow((void **)&axis->start, &axis->start_room, outputs * sizeof *axis->start) ||
        grow((void **)&axis->taps, &axis->taps_room, outputs * sizeof *axis->taps) ||
        grow((void **)&axis->plain, &axis->plain_room, outputs * taps * sizeof *axis->plain) ||
        grow((void **)&axis->split, &axis->split_room, outputs * (taps / 2) * sizeof *axis->split) ||
        grow((void **)&axis->weights, &axis->weights_room, taps * sizeof *axis->weights))
        return -ENOMEM;
    return 0;
}

int axis_prepare(resample_axis *axis, int inputs, int outputs, int kept_first, int kept, int filter, int reversed,
                 int wide_reads) {
    double scale = (double)inputs / outputs;
    double support = (filter == DDLP_BICUBIC ? 2.0 : 1.0) * (scale < 1.0 ? 1.0 : scale);
    size_t room = ((size_t)ceil(support) * 2 + 2) & ~(size_t)1; /* Pillow's bound, made even */
    if (reserve(axis, (size_t)kept, room)) return -ENOMEM;

    int most = 1, first = inputs, last = 0;
    for (int output = 0; output < kept; output++) {
        int place = reversed ? kept - 1 - output : output, start;
        int taps = one_output(axis->plain + place * room, &start, axis->weights, kept_first + output, inputs, scale,
                              support, filter);
        axis->start[place] = start;
        axis->taps[place] = taps;
        if (taps > most) most = taps;
        if (start < first) first = start;
        if (start + taps > last) last = start + taps;
    }
    axis->first = first;
    axis->inputs = last - first;
    axis->outputs = kept;
    axis->most = most;
    axis->pairs = (most + 1) / 2;

    size_t width = 2 * (size_t)axis->pairs; /* rows of `plain` move together: from `room` apart to `width` apart */
    for (size_t output = 0; output < (size_t)kept; output++) {
        int32_t *plain = axis->plain + output * width;
        size_t taps = (size_t)axis->taps[output], shift = 0;
        int start = axis->start[output] - first;
        if (wide_reads && (size_t)start + width > (size_t)axis->inputs) { /* begin further left, with zeros */
            size_t fitting = (size_t)axis->inputs > width ? (size_t)axis->inputs - width : 0;
            shift = (size_t)start - fitting;
        }
        memmove(plain + shift, axis->plain + output * room, taps * sizeof *plain);
        memset(plain, 0, shift * sizeof *plain);
        memset(plain + shift + taps, 0, (width - shift - taps) * sizeof *plain);
        axis->start[output] = start - (int32_t)shift;
        axis->taps[output] = (int32_t)(taps + shift);
        for (size_t pair = 0; pair < width / 2; pair++)
            axis->split[output * (width / 2) + pair] = split_pair(plain + 2 * pair);
    }
    return 0;
}

void axis_free(resample_axis *axis) {
    free(axis->start);
    free(axis->taps);
    free(axis->plain);
    free(axis->split);
    free(axis->weights);
    memset(axis, 0, sizeof *axis);
}

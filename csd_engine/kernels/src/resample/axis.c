#include "resample/axis.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddlp.h"
#include "memory.h"

/* Pillow's filters, their terms in Pillow's order: other orders round differently. The sine is the C library's, as in Pillow.
 * C libraries differ in its last bit; rounding to COEFFICIENT_BITS hides that. */
static inline double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static inline double bilinear(double x) {
    double weight = 1.0 - fabs(x);
    return weight > 0.0 ? weight : 0.0;
}

static inline double hamming(double x) {
    x = fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x = x * M_PI;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

/* Keys' cubic with a = -1/2. */
static inline double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    double near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1, far = (((x - 5) * x + 8) * x - 4) * a;
    return x < 1.0 ? near : x < 2.0 ? far : 0.0;
}

static inline double sinc(double x) {
    if (x == 0.0) return 1.0;
    x = x * M_PI;
    return sin(x) / x;
}

static inline double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

enum { TOGETHER = 32 }; /* outputs computed side by side: long loops without branches, which compilers vectorize */

typedef struct {
    double scale, support, inverse;
    int bits;                              /* of the coefficients' fractions */
    int room;                              /* taps that fit: at least as many as there are */
    int low[TOGETHER];                     /* first tap of each output */
    double center[TOGETHER], count[TOGETHER], total[TOGETHER];
    double *weights;                       /* [room][TOGETHER] */
} stretch;

static inline __attribute__((always_inline)) void weigh(stretch *s, const int filter) {
    for (int i = 0; i < TOGETHER; i++) s->total[i] = 0.0;
    for (int tap = 0; tap < s->room; tap++) {
        double *restrict weights = s->weights + (ptrdiff_t)tap * TOGETHER;
        const double number = tap, inverse = s->inverse;
        for (int i = 0; i < TOGETHER; i++) {
            double x = (tap + s->low[i] - s->center[i] + 0.5) * inverse;
            double weight = filter == DDLP_BILINEAR ? bilinear(x) : filter == DDLP_BICUBIC ? bicubic(x)
                          : filter == DDLP_LANCZOS ? lanczos(x) : filter == DDLP_HAMMING ? hamming(x) : box(x);
            weight = number < s->count[i] ? weight : 0.0;
            weights[i] = weight;
            s->total[i] += weight;
        }
    }
}

int axis_is_torchs(int filter) { return filter >= DDLP_TORCH_BILINEAR && filter <= DDLP_FUSED_BICUBIC; }

int axis_has_floats(int filter) { return axis_is_torchs(filter) && filter >= DDLP_FLOAT_BILINEAR; }

/* Pillow's filter that weighs as this one of torch's does. */
static int shape_of(int filter) {
    return !axis_is_torchs(filter) ? filter : (filter - DDLP_TORCH_BILINEAR) % 2 ? DDLP_BICUBIC : DDLP_BILINEAR;
}

/* Computes the weights of outputs output .. output + TOGETHER - 1; their sum is s->total. Sets s->low, s->count. */
static void reckon(stretch *s, int output, int inputs, int filter) {
    for (int i = 0; i < TOGETHER; i++) {
        s->center[i] = (output + i + 0.5) * s->scale;
        int low = (int)(s->center[i] - s->support + 0.5), high = (int)(s->center[i] + s->support + 0.5);
        s->low[i] = low > 0 ? low : 0;
        s->count[i] = (high < inputs ? high : inputs) - s->low[i];
    }
    switch (shape_of(filter)) { /* each loop is compiled for its filter */
    case DDLP_BILINEAR: weigh(s, DDLP_BILINEAR); break;
    case DDLP_BICUBIC: weigh(s, DDLP_BICUBIC); break;
    case DDLP_LANCZOS: weigh(s, DDLP_LANCZOS); break;
    case DDLP_HAMMING: weigh(s, DDLP_HAMMING); break;
    default: weigh(s, DDLP_BOX);
    }
    for (int i = 0; i < TOGETHER; i++) s->total[i] = s->total[i] != 0.0 ? s->total[i] : 1.0;
}

/* Makes coefficients of the weights, which are truncated later: then they are rounded. */
static void scale_up(stretch *s) {
    const double one = 1 << s->bits;
    for (int tap = 0; tap < s->room; tap++) {
        double *restrict weights = s->weights + (ptrdiff_t)tap * TOGETHER;
        for (int i = 0; i < TOGETHER; i++) {
            double scaled = weights[i] / s->total[i] * one;
            weights[i] = scaled + (scaled < 0.0 ? -0.5 : 0.5);
        }
    }
}

/* The bits that torch gives to coefficients: as many as the largest one of all outputs leaves in 16 bits. */
static int torch_bits(stretch *s, const axis_geometry *g) {
    double largest = 0.0;
    for (int output = 0; output < g->outputs; output += TOGETHER) {
        reckon(s, output, g->inputs, g->filter);
        const int here = g->outputs - output < TOGETHER ? g->outputs - output : TOGETHER;
        for (int tap = 0; tap < s->room; tap++)
            for (int i = 0; i < here; i++) {
                const double weight = s->weights[(ptrdiff_t)tap * TOGETHER + i] / s->total[i];
                if (weight > largest) largest = weight;
            }
    }
    int bits = 0;
    while (bits < COEFFICIENT_BITS && (int)(0.5 + largest * (1 << (bits + 1))) < 1 << 15) bits++;
    return bits;
}

/* Rounds the coefficients of output i of the stretch, with zeros after the taps. Returns the number of taps without the outer
 * zeros. */
static int one_output(int32_t *restrict plain, int32_t *start, const stretch *s, int i) {
    const int32_t up = 1 << (COEFFICIENT_BITS - s->bits); /* all passes have coefficients of one number of bits */
    for (int tap = 0; tap < s->room; tap++) plain[tap] = (int32_t)s->weights[(ptrdiff_t)tap * TOGETHER + i] * up;
    int count = (int)s->count[i], zeros = 0;
    while (count > 1 && plain[count - 1] == 0) count--;
    while (zeros < count - 1 && plain[zeros] == 0) zeros++;
    if (zeros) {
        memmove(plain, plain + zeros, sizeof *plain * (size_t)(count - zeros));
        memset(plain + count - zeros, 0, sizeof *plain * (size_t)zeros);
    }
    *start = s->low[i] + zeros;
    return count - zeros;
}

static tap_pair split_pair(const int32_t *plain) {
    tap_pair pair;
    for (int i = 0; i < 2; i++) {
        int32_t low = (int32_t)((plain[i] & 0xffff) ^ 0x8000) - 0x8000;
        int32_t high = (plain[i] - low) >> 16;
        pair.low[i] = (int16_t)low;
        pair.high[i] = (int16_t)high;
        pair.high_bytes[i] = pair.high_bytes[i + 2] = (int8_t)high;
    }
    return pair;
}

static int reserve_places(resample_axis *axis, size_t outputs) {
    return grow((void **)&axis->start, &axis->start_room, outputs * sizeof *axis->start) ||
           grow((void **)&axis->taps, &axis->taps_room, outputs * sizeof *axis->taps);
}

static int reserve(resample_axis *axis, size_t outputs, size_t taps) {
    if (reserve_places(axis, outputs) || grow((void **)&axis->plain, &axis->plain_room, outputs * taps * sizeof *axis->plain) ||
        grow((void **)&axis->split, &axis->split_room, outputs * (taps / 2) * sizeof *axis->split) ||
        grow((void **)&axis->weights, &axis->weights_room, TOGETHER * taps * sizeof *axis->weights))
        return -ENOMEM;
    return 0;
}

/* Moves an output's taps to the left and puts zeros first, so that `width` taps end at the last input. */
static void begin_further_left(resample_axis *axis, int output, int width) {
    int32_t *plain = axis->plain + (size_t)output * axis->room;
    int start = axis->inputs > width ? axis->inputs - width : 0, shift = axis->start[output] - start;
    memmove(plain + shift, plain, sizeof *plain * (size_t)axis->taps[output]);
    memset(plain, 0, sizeof *plain * (size_t)shift);
    axis->start[output] = start;
    axis->taps[output] += shift;
}

double axis_support(int filter) {
    if (axis_has_floats(filter) && FLT_EVAL_METHOD) return 0.0; /* x87 rounds floats too late */
    switch (shape_of(filter)) {
    case DDLP_BOX: return 0.5;
    case DDLP_BILINEAR:
    case DDLP_HAMMING: return 1.0;
    case DDLP_BICUBIC: return 2.0;
    case DDLP_LANCZOS: return 3.0;
    default: return 0.0;
    }
}

static inline float multiply_add(float a, float b, float c, int fused) { return fused ? fmaf(a, b, c) : a * b + c; }

/* The weight of a float at a distance of at least 0. */
static float float_weight(float x, int shape, int fused) {
    if (shape == DDLP_BILINEAR) return x < 1.0f ? 1.0f - x : 0.0f;
    if (x < 1.0f) return multiply_add(multiply_add(1.5f, x, -2.5f, fused) * x, x, 1.0f, fused);
    return x < 2.0f ? multiply_add(multiply_add(x - 5.0f, x, 8.0f, fused), x, -4.0f, fused) * -0.5f : 0.0f;
}

/* Makes the coefficients of torch's filters for floats. Their terms are doubles where torch's are. */
static int prepare_floats(resample_axis *axis, const axis_geometry *g) {
    const int shape = shape_of(g->filter), fused = g->filter >= DDLP_FUSED_BILINEAR;
    const float scale = (float)g->inputs / (float)g->outputs;
    const double widened = scale < 1.0f ? 1.0 : scale;
    const float support = (float)(axis_support(g->filter) * widened), inverse = (float)(1.0 / widened);
    const int room = (int)ceilf(support) * 2 + 1;
    if (reserve_places(axis, (size_t)g->kept) ||
        grow((void **)&axis->floats, &axis->floats_room, (size_t)g->kept * (size_t)room * sizeof *axis->floats)) return -ENOMEM;
    int most = 1, first = g->inputs, last = 0;
    for (int output = 0; output < g->kept; output++) {
        const int place = g->reversed ? g->kept - 1 - output : output;
        const float center = (float)((double)scale * (g->kept_first + output + 0.5));
        int low = (int)((double)(center - support) + 0.5), high = (int)((double)(center + support) + 0.5);
        if (low < 0) low = 0;
        if (high > g->inputs) high = g->inputs;
        const int taps = high - low < room ? high - low : room;
        float *k = axis->floats + (size_t)place * (size_t)room, total = 0.0f;
        for (int tap = 0; tap < taps; tap++) {
            const float x = (float)(((double)((float)(low + tap) - center) + 0.5) * (double)inverse);
            total += k[tap] = float_weight(fabsf(x), shape, fused);
        }
        for (int tap = 0; tap < taps && total != 0.0f; tap++) k[tap] /= total;
        axis->start[place] = low, axis->taps[place] = taps;
        if (taps > most) most = taps;
        if (low < first) first = low;
        if (high > last) last = high;
    }
    for (int output = 0; output < g->kept; output++) axis->start[output] -= first;
    axis->first = first, axis->inputs = last - first, axis->outputs = g->kept, axis->most = most;
    axis->room = (size_t)room, axis->fused = fused;
    if (!g->wide_reads) return 0; /* no horizontal pass */
    return grow((void **)&axis->line, &axis->line_room, (size_t)axis->inputs * FLOAT_LANES * sizeof *axis->line);
}

int axis_prepare(resample_axis *axis, const axis_geometry *g) {
    if (memcmp(&axis->geometry, g, sizeof *g) == 0) return 0;
    memset(&axis->geometry, 0, sizeof axis->geometry);
    if (axis_has_floats(g->filter)) {
        if (prepare_floats(axis, g)) return -ENOMEM;
        axis->geometry = *g;
        return 0;
    }
    stretch s;
    s.scale = (double)g->inputs / g->outputs;
    const double widened = s.scale < 1.0 ? 1.0 : s.scale;
    s.inverse = 1.0 / widened;
    s.support = axis_support(g->filter) * widened;
    s.room = ((int)ceil(s.support) * 2 + 2) & ~1; /* Pillow's bound, made even */
    if (reserve(axis, (size_t)g->kept, (size_t)s.room)) return -ENOMEM;
    s.weights = axis->weights;
    s.bits = axis_is_torchs(g->filter) ? torch_bits(&s, g) : COEFFICIENT_BITS;

    int most = 1, first = g->inputs, last = 0;
    for (int output = 0; output < g->kept; output++) {
        if (output % TOGETHER == 0) {
            reckon(&s, g->kept_first + output, g->inputs, g->filter);
            scale_up(&s);
        }
        int place = g->reversed ? g->kept - 1 - output : output;
        int taps = one_output(axis->plain + (size_t)place * (size_t)s.room, axis->start + place, &s, output % TOGETHER);
        axis->taps[place] = taps;
        if (taps > most) most = taps;
        if (axis->start[place] < first) first = axis->start[place];
        if (axis->start[place] + taps > last) last = axis->start[place] + taps;
    }
    axis->first = first;
    axis->inputs = last - first;
    axis->outputs = g->kept;
    axis->most = most;
    axis->pairs = (most + 1) / 2;
    axis->room = (size_t)s.room;

    tap_pair *split = axis->split;
    for (int output = 0; output < g->kept; output++) {
        axis->start[output] -= first;
        if (g->wide_reads && axis->start[output] + 2 * axis->pairs > axis->inputs)
            begin_further_left(axis, output, 2 * axis->pairs);
        const int32_t *plain = axis->plain + (size_t)output * axis->room;
        for (int pair = 0; pair < axis->pairs; pair++) *split++ = split_pair(plain + 2 * pair);
    }
    axis->geometry = *g;
    return 0;
}

void axis_free(resample_axis *axis) {
    free(axis->start);
    free(axis->taps);
    free(axis->plain);
    free(axis->split);
    free(axis->weights);
    free(axis->floats);
    free(axis->line);
    memset(axis, 0, sizeof *axis);
}

/* Coefficients of one axis of Pillow's resampling (libImaging/Resample.c: precompute_coeffs, normalize_coeffs_8bpc), and of
 * torch's (ATen's UpSampleKernel.cpp): those for bytes have fewer bits, those for floats are floats. */
#ifndef DDLP_AXIS_H
#define DDLP_AXIS_H

#include <stddef.h>
#include <stdint.h>

/* An output sample is (sum of tap * coefficient + half) >> COEFFICIENT_BITS, clipped to 0..255. */
enum { COEFFICIENT_BITS = 22 };

/* A coefficient k is split exactly: k = high * 2**16 + low, low in -2**15 .. 2**15 - 1, high in -128 .. 127, so that
 * multiply-adds of 16 and of 8 bits compute the sum exactly. Two taps are side by side, as those instructions need them. */
typedef struct {
    int16_t low[2];
    int16_t high[2];
    int8_t high_bytes[4]; /* high[0], high[1], high[0], high[1] */
} tap_pair;

/* The resampling of `inputs` samples to `outputs`. Only outputs kept_first .. kept_first + kept - 1 are computed. */
typedef struct {
    int inputs, outputs, kept_first, kept, filter;
    int reversed;   /* last output first */
    int wide_reads; /* `pairs` pairs of taps from each `start` on stay within the inputs, or end one sample after them */
} axis_geometry;

typedef struct {
    axis_geometry geometry; /* for which the other fields were made; all zero: none */
    int first, inputs;  /* input samples that the kept outputs need: first .. first + inputs - 1 */
    int outputs;        /* kept outputs */
    int pairs;          /* pairs of taps per output, the same for all */
    int most;           /* largest number of taps */
    int32_t *start;     /* [outputs] first tap, relative to `first` */
    int32_t *taps;      /* [outputs] number of taps, 1 .. 2 * pairs */
    int32_t *plain;     /* [outputs][room] coefficients, zeros after the last tap; room >= 2 * pairs */
    tap_pair *split;    /* [outputs][pairs] the same, split */
    double *weights;    /* workspace */
    size_t room;
    int fused;          /* of torch's filters for floats: whether multiply-adds round once */
    float *floats;      /* [outputs][room] their coefficients, in the place of `plain` and `split` */
    float *line;        /* [inputs][FLOAT_LANES] room for the rows that the horizontal pass takes together, with wide_reads */
    size_t start_room, plain_room, split_room, weights_room, taps_room, floats_room, line_room; /* bytes held */
} resample_axis;

/* Four rows of a pixel with four channels each. */
enum { FLOAT_LANES = 16 };

/* Whether this is one of torch's filters; whether it is one of those for floats. */
int axis_is_torchs(int filter);
int axis_has_floats(int filter);

/* How far this filter reaches, in input samples if there are as many outputs; 0: there is no such filter. */
double axis_support(int filter);

/* 0, or -ENOMEM. Memory is kept for the next call. A call with the same geometry as the last one returns at once. */
int axis_prepare(resample_axis *axis, const axis_geometry *geometry);
void axis_free(resample_axis *axis);

#endif

/* Steps on a small image in memory, one after the other. They are the part of a pipeline after the crop and the resize.
 *
 * Each gives Pillow's bits; primitives.py, colour_steps.py and warp_steps.py of csd_engine/transforms have the same steps by
 * Pillow. If torchvision itself does not use Pillow for a step, its file here defines the bits. All arithmetic is that of IEEE,
 * so every computer makes the same bits.
 */
#ifndef DDLP_STEPS_H
#define DDLP_STEPS_H

#include <stddef.h>

#include "ddlp.h"
#include "resample/resample.h"

/* The numbers of a step, in `n`; the steps in csd_engine/transforms give them by `for_kernel`. */
enum {
    STEP_CROP = 0,          /* left, top, width, height */
    STEP_MIRROR = 1,        /* 1: left-right, 0: top-bottom */
    STEP_PAD = 2,           /* left, top, right, bottom, a PAD_ mode, colour (3) */
    STEP_GRAY = 3,          /* channels of the result, 1 or 3; whose pixels (torch.c), as of all steps with this number */
    STEP_RESIZE = 4,        /* height, width, filter, 1 if the passes have Pillow 13's order */
    STEP_TURN = 5,          /* quarter turns against the clock, 1 to 3 */
    STEP_TABLE = 6,         /* data: 256 bytes, for every channel */
    STEP_BRIGHTNESS = 7,    /* factor, whose */
    STEP_CONTRAST = 8,      /* factor, whose */
    STEP_SATURATION = 9,    /* factor, whose */
    STEP_SHARPNESS = 10,    /* factor, whose */
    STEP_HUE = 11,          /* a number that is added to the hue, in 255ths of a turn (torch's: in turns), whose */
    STEP_AUTOCONTRAST = 12, /* whose */
    STEP_EQUALIZE = 13,
    STEP_AFFINE = 14,       /* width, height, filter (0: nearest), colour (3), 6 coefficients */
    STEP_PERSPECTIVE = 15,  /* width, height, filter, colour (3), 8 coefficients */
    STEP_BLUR = 16,         /* taps across, taps down (odd); data: float weights, those across, then those down */
    STEP_CROPS = 17,        /* height, width, left and top of the middle one; 0: five, 1: ten, 2: ten, the last upside down */
    STEP_GRID = 18          /* whose, filter (0: nearest, 1: bilinear), 1 if it has a colour, colour (3), 6 coefficients */
};

enum { PAD_CONSTANT = 0, PAD_EDGE = 1, PAD_REFLECT = 2, PAD_SYMMETRIC = 3 };

enum { STEP_NUMBERS = 14 };

enum { STEP_SLACK = 16 };

struct ddlp_step_numbers {
    int32_t kind, unused;
    double n[STEP_NUMBERS];
    const void *data;
};

/* An image without gaps between rows. */
typedef struct {
    uint8_t *pixels;
    int32_t width, height, channels;
} picture;

/* A thread's memory for steps; all zero at first. */
typedef struct {
    picture image;      /* the current image, in memory[used] */
    uint8_t *memory[2];
    size_t room[2];
    int used;
    float *numbers;     /* for the blur */
    size_t numbers_room;
} step_state;

/* The other memory, large enough for an image of this size; NULL without memory. */
uint8_t *steps_other(step_state *state, int32_t width, int32_t height, int32_t channels);

/* Make the image in the other memory the current one. */
void steps_swap(step_state *state, int32_t width, int32_t height, int32_t channels);

/* Begin with a copy of this image; `size`: its width, height, channels. 0; DDLP_STEP: no such image; -ENOMEM. */
int steps_begin(step_state *state, const uint8_t *pixels, const int32_t size[3]);

/* Run all steps; `resample` is for STEP_RESIZE. 0; DDLP_STEP: a step is unknown or does not fit; -ENOMEM. */
int steps_run(step_state *state, resample_state *resample, const ddlp_step_numbers *steps, int64_t count);

void steps_free(step_state *state);

/* colour.c: these change the image in place. */
void colour_table(picture *image, const uint8_t *table);
void colour_brightness(picture *image, float factor);
void colour_contrast(picture *image, float factor);
void colour_saturation(picture *image, float factor);
void colour_hue(picture *image, uint8_t shift);
void colour_autocontrast(picture *image);
void colour_equalize(picture *image);

/* How often each value stands in each channel. */
void colour_histograms(const picture *image, uint32_t (*of)[256]);

/* The lowest and the highest value of a channel, by how often each stands there. Returns whether it has several. */
int colour_range(const uint32_t *of, int *low, int *high);

/* Applies a table to each channel. */
void colour_tables(picture *image, uint8_t (*table)[256]);

/* 8 bits of luma, as in Pillow's conversion to mode L. */
static inline uint8_t luma(const uint8_t *rgb) {
    return (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/* What takes most of their time, for each instruction set; all of them give the same bits. The loops with AVX2 read and write
 * vectors within their arrays, but `gray` and `turn_hue` may read
 * up to STEP_SLACK bytes after the pixels, and don't use these. */
enum { COLOUR_PART = 256 }; /* pixels that are made grey together */
typedef struct {
    int sector[256];  /* the sixth of the circle that a hue lies in */
    float part[256];  /* where in that sixth, 0 to 1 */
    float share[256]; /* a saturation as 0 to 1 */
} hue_tables;
typedef struct {
    /* as colour_blend */
    void (*blend)(const uint8_t *a, const uint8_t *b, float factor, uint8_t *out, size_t count);
    /* the same with an image of one value */
    void (*blend_with)(uint8_t value, float factor, uint8_t *pixels, size_t count);
    /* the same with a grey image: a byte for each of at most COLOUR_PART pixels */
    void (*saturate)(const uint8_t *gray, float factor, uint8_t *pixels, size_t count);
    /* as colour_gray */
    void (*gray)(const uint8_t *rgb, uint8_t *gray, size_t count);
    /* `count` values of a row, smoothed; in: the first of them */
    void (*smooth)(const uint8_t *in, ptrdiff_t row, int channels, uint8_t *restrict to, size_t count);
    /* turns the hue of `count` pixels */
    void (*turn_hue)(uint8_t *rgb, size_t count, uint8_t shift, const hue_tables *tables);
} colour_loops;
extern const colour_loops colour_loops_c;
extern const colour_loops colour_loops_avx2; /* on x86 */

/* out[i] = a[i] + factor * (b[i] - a[i]), clipped and cut to a byte as in Pillow's Image.blend; out may be a or b. */
void colour_blend(const uint8_t *a, const uint8_t *b, float factor, uint8_t *out, size_t count);

/* gray[i] = luma(rgb + 3 * i) */
void colour_gray(const uint8_t *rgb, uint8_t *gray, size_t count);

/* Write the image, smoothed as by Pillow's ImageFilter.SMOOTH, into `out`. */
void colour_smooth(const picture *image, uint8_t *out);

/* warp.c: `out` gets `width` x `height` pixels. Pixels from outside the image have the colour. */
int warp_affine(const picture *image, uint8_t *out, int32_t width, int32_t height, int filter, const uint8_t colour[3],
                const double a[6]);
int warp_perspective(const picture *image, uint8_t *out, int32_t width, int32_t height, int filter, const uint8_t colour[3],
                     const double a[8]);

/* Write `count` pixels of a row, taken from the image at these positions. Those outside it stay as they are. */
typedef void warp_sampler(const picture *image, uint8_t *out, const double *xin, const double *yin, int count);
warp_sampler warp_nearest, warp_bilinear, warp_bicubic;

/* warp_avx2.c: the same for three channels. Up to STEP_SLACK bytes after the image are read, and not used. */
warp_sampler warp_bilinear_avx2, warp_bicubic_avx2;

/* blur.c: writes the blurred image into `out`. 0; DDLP_STEP: the image is smaller than the reflected border; -ENOMEM. */
int blur(step_state *state, int taps_across, int taps_down, const float *weights, uint8_t *out);

/* torch.c: the pixels of torchvision on tensors of bytes (csd_engine/transforms/torch_pixels.py). Whose they are is a number:
 * 0 Pillow's; torch's of v1: 1, of v1 with fused multiply-adds: 2, of v2 with them: 3. These change the image in place. */
void torch_brightness(picture *image, double factor);
void torch_contrast(picture *image, double factor, int whose);
void torch_saturation(picture *image, double factor, int whose);
void torch_hue(picture *image, double factor, int whose);
void torch_autocontrast(picture *image, int whose);

/* gray[i]: the luma of pixel i */
void torch_gray(const uint8_t *rgb, uint8_t *gray, size_t count, int whose);

/* Sharpens the image; `other` has room for it. */
void torch_sharpness(picture *image, uint8_t *other, double factor, int whose);

/* n: as of STEP_GRID. `out` gets an image of the same size. */
int torch_warp(const picture *image, uint8_t *out, const double *n);

/* A map of pixels by a grid of positions, as torch.nn.functional.grid_sample does it. */
typedef struct {
    const uint8_t *pixels;
    int32_t width, height;
    float matrix[6]; /* to positions of -1 to 1 */
    uint8_t fill[4]; /* of three channels */
    int filled, bilinear, v2, fused_product; /* the matrix product that makes the positions */
} torch_grid;

/* `smooth` is called for rows without their first and last pixel. `fused`: products are added with one rounding. */
typedef struct {
    void (*gray)(const uint8_t *rgb, uint8_t *gray, size_t count, int fused);
    void (*blend)(uint8_t *pixels, const uint8_t *other, float factor, float rest, size_t count, int fused);
    void (*sharpen)(uint8_t *pixels, const uint8_t *smooth, float rest, size_t count, int fused);
    void (*smooth)(const uint8_t *in, ptrdiff_t row, int channels, uint8_t *restrict to, size_t count);
    void (*turn_hue)(uint8_t *rgb, size_t count, float factor, int v2);
    void (*warp)(const torch_grid *grid, uint8_t *out, int channels, int fused);
} torch_loops;
extern const torch_loops torch_loops_c;
extern const torch_loops torch_loops_fma; /* on x86 */

#endif

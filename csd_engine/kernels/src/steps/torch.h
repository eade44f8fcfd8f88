/* The steps whose pixels are those of torchvision on tensors of bytes: csd_engine/transforms/torch_pixels.py.
 *
 * Whose they are is a number: 0 Pillow's (steps.h); torch's of v1: 1, of v1 with fused multiply-adds: 2, of v2 with them: 3. */
#ifndef DDLP_STEPS_TORCH_H
#define DDLP_STEPS_TORCH_H

#include "steps/steps.h"

enum { TORCH_LAST = 3 };

/* A map of pixels by a grid of positions, as torch.nn.functional.grid_sample does it. */
typedef struct {
    const uint8_t *pixels;
    int32_t width, height;
    float matrix[6]; /* to positions of -1 to 1 */
    uint8_t fill[4]; /* of three channels */
    int filled, bilinear, v2;
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

/* These change the image in place. */
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

#endif

/* Pillow's Image.transform (AFFINE and PERSPECTIVE; nearest, bilinear, bicubic), in its own order of operations. */
#include <math.h>
#include <string.h>

#include "steps/steps.h"
#include "variant.h"

enum { NEAREST = 0, BILINEAR = 2, BICUBIC = 3 }; /* Image.Resampling's numbers */
enum { PART = 64 }; /* pixels of a row whose positions are computed together */

static int floor_of(double v) { return v < 0 ? (int)floor(v) : (int)v; }

static int32_t within(int at, int32_t length) { return at < 0 ? 0 : at < length ? at : length - 1; }

static void pixel(uint8_t *to, const uint8_t *from, int channels) {
    to[0] = from[0];
    if (channels == 3) to[1] = from[1], to[2] = from[2];
}

static void fill(uint8_t *out, size_t count, int channels, const uint8_t colour[3]) {
    if (channels == 1 || (colour[0] == colour[1] && colour[0] == colour[2])) {
        memset(out, colour[0], count * (size_t)channels);
        return;
    }
    for (size_t i = 0; i < count; i++) pixel(out + i * (size_t)channels, colour, channels);
}

/* NaN counts as outside, too. */
static int outside(const picture *image, double xin, double yin) {
    return !(xin >= 0 && yin >= 0 && xin < image->width && yin < image->height);
}

static void nearest(const picture *image, uint8_t *to, double xin, double yin) {
    if (outside(image, xin, yin)) return;
    pixel(to, image->pixels + ((size_t)(int)yin * (size_t)image->width + (size_t)(int)xin) * (size_t)image->channels, image->channels);
}

static void bilinear(const picture *image, uint8_t *to, double xin, double yin) {
    const int channels = image->channels;
    if (outside(image, xin, yin)) return;
    xin -= 0.5, yin -= 0.5;
    const int x = floor_of(xin), y = floor_of(yin);
    const double dx = xin - x, dy = yin - y;
    const size_t row = (size_t)image->width * (size_t)channels;
    const uint8_t *upper = image->pixels + row * (size_t)within(y, image->height);
    const uint8_t *lower = y + 1 >= 0 && y + 1 < image->height ? image->pixels + row * (size_t)(y + 1) : upper;
    const size_t left = (size_t)within(x, image->width) * (size_t)channels, right = (size_t)within(x + 1, image->width) * (size_t)channels;
    for (size_t c = 0; c < (size_t)channels; c++) {
        const int a = upper[left + c], b = lower[left + c];
        const double first = a + (upper[right + c] - a) * dx, second = b + (lower[right + c] - b) * dx;
        to[c] = (uint8_t)(int)(first + (second - first) * dy);
    }
}

static double cubic(double v1, double v2, double v3, double v4, double d) {
    const double p1 = v2, p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
    return p1 + d * (p2 + d * (p3 + d * p4));
}

static void bicubic(const picture *image, uint8_t *to, double xin, double yin) {
    const int channels = image->channels;
    if (outside(image, xin, yin)) return;
    xin -= 0.5, yin -= 0.5;
    const int x = floor_of(xin), y = floor_of(yin);
    const double dx = xin - x, dy = yin - y;
    const size_t row = (size_t)image->width * (size_t)channels;
    size_t at[4];
    const uint8_t *rows[4];
    for (int k = 0; k < 4; k++) at[k] = (size_t)within(x - 1 + k, image->width) * (size_t)channels;
    rows[0] = image->pixels + row * (size_t)within(y - 1, image->height);
    for (int k = 1; k < 4; k++) {
        const int line = y - 1 + k;
        rows[k] = line >= 0 && line < image->height ? image->pixels + row * (size_t)line : rows[k - 1];
    }
    for (int c = 0; c < channels; c++) {
        double v[4];
        for (int k = 0; k < 4; k++) {
            const uint8_t *in = rows[k] + c;
            v[k] = k && rows[k] == rows[k - 1] ? v[k - 1] : cubic(in[at[0]], in[at[1]], in[at[2]], in[at[3]], dx);
        }
        const double value = cubic(v[0], v[1], v[2], v[3], dy);
        to[c] = value <= 0 ? 0 : value >= 255 ? 255 : (uint8_t)(int)value;
    }
}

void warp_nearest(const picture *image, uint8_t *out, const double *xin, const double *yin, int count) {
    for (int i = 0; i < count; i++) nearest(image, out + i * image->channels, xin[i], yin[i]);
}

void warp_bilinear(const picture *image, uint8_t *out, const double *xin, const double *yin, int count) {
    for (int i = 0; i < count; i++) bilinear(image, out + i * image->channels, xin[i], yin[i]);
}

void warp_bicubic(const picture *image, uint8_t *out, const double *xin, const double *yin, int count) {
    for (int i = 0; i < count; i++) bicubic(image, out + i * image->channels, xin[i], yin[i]);
}

static warp_sampler *sampler_of(int filter, int channels) {
#if defined(DDLP_X86)
    if (variant_used() >= VARIANT_AVX2 && channels == 3 && filter != NEAREST)
        return filter == BILINEAR ? warp_bilinear_avx2 : filter == BICUBIC ? warp_bicubic_avx2 : NULL;
#endif
    (void)channels;
    return filter == NEAREST ? warp_nearest : filter == BILINEAR ? warp_bilinear : filter == BICUBIC ? warp_bicubic : NULL;
}

/* Takes the nearest pixels, without rotation or shear. Positions are summed up, as in Pillow. */
static void scaled(const picture *image, uint8_t *out, int32_t width, int32_t height, const double a[6]) {
    const int channels = image->channels;
    double yo = a[5] + a[4] * 0.5;
    for (int32_t y = 0; y < height; y++, yo += a[4]) {
        double xo = a[2] + a[0] * 0.5;
        for (int32_t x = 0; x < width; x++, xo += a[0])
            nearest(image, out + ((size_t)y * (size_t)width + (size_t)x) * (size_t)channels, xo, yo);
    }
}

static int in_fixed(const double a[6], int x, int y) {
    return fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
}

static uint32_t fixed(double v) { return (uint32_t)(int64_t)floor(v * 65536.0 + 0.5); }

/* Takes the nearest pixels by fixed-point numbers with 16 bits before and after the point. Sums are unsigned, so they may
 * overflow 32 bits. It is compiled for each number of channels. */
static inline __attribute__((always_inline)) void in_fixed_point(const picture *image, uint8_t *out, int32_t width, int32_t height,
                                                                 const double a[6], const int channels) {
    const uint32_t a0 = fixed(a[0]), a1 = fixed(a[1]), a3 = fixed(a[3]), a4 = fixed(a[4]);
    const uint32_t columns = (uint32_t)image->width, rows = (uint32_t)image->height;
    uint32_t a2 = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5), a5 = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    for (int32_t y = 0; y < height; y++, a2 += a1, a5 += a4) {
        uint32_t xx = a2, yy = a5;
        for (int32_t x = 0; x < width; x++, xx += a0, yy += a3, out += channels) {
            const uint32_t xin = (uint32_t)((int32_t)xx >> 16), yin = (uint32_t)((int32_t)yy >> 16); /* large if negative */
            if (xin < columns && yin < rows)
                pixel(out, image->pixels + ((size_t)yin * columns + xin) * (size_t)channels, channels);
        }
    }
}

static void affine_fixed(const picture *image, uint8_t *out, int32_t width, int32_t height, const double a[6]) {
    if (image->channels == 3) in_fixed_point(image, out, width, height, a, 3);
    else in_fixed_point(image, out, width, height, a, 1);
}

static void affine_nearest(const picture *image, uint8_t *out, int32_t width, int32_t height, const double a[6]) {
    if (a[1] == 0 && a[3] == 0) {
        scaled(image, out, width, height, a);
    } else if (in_fixed(a, 0, 0) && in_fixed(a, width, height) && in_fixed(a, 0, height) && in_fixed(a, width, 0)) {
        affine_fixed(image, out, width, height, a);
    } else {
        double xo = a[2] + a[1] * 0.5 + a[0] * 0.5, yo = a[5] + a[4] * 0.5 + a[3] * 0.5;
        for (int32_t y = 0; y < height; y++, xo += a[1], yo += a[4]) {
            double xx = xo, yy = yo;
            for (int32_t x = 0; x < width; x++, xx += a[0], yy += a[3], out += image->channels) nearest(image, out, xx, yy);
        }
    }
}

int warp_affine(const picture *image, uint8_t *out, int32_t width, int32_t height, int filter, const uint8_t colour[3],
                const double a[6]) {
    const int channels = image->channels;
    warp_sampler *const take = sampler_of(filter, channels);
    double xs[PART], ys[PART];
    if (!take) return DDLP_STEP;
    fill(out, (size_t)width * (size_t)height, channels, colour);
    if (filter == NEAREST) {
        affine_nearest(image, out, width, height, a);
        return 0;
    }
    for (int32_t y = 0; y < height; y++) {
        const double yin = y + 0.5, across = a[1] * yin, down = a[4] * yin;
        for (int32_t first = 0; first < width; first += PART) {
            const int count = width - first < PART ? width - first : PART;
            for (int i = 0; i < count; i++) {
                const double xin = first + i + 0.5;
                xs[i] = a[0] * xin + across + a[2], ys[i] = a[3] * xin + down + a[5];
            }
            take(image, out, xs, ys, count);
            out += count * channels;
        }
    }
    return 0;
}

int warp_perspective(const picture *image, uint8_t *out, int32_t width, int32_t height, int filter, const uint8_t colour[3],
                     const double a[8]) {
    const int channels = image->channels;
    warp_sampler *const take = sampler_of(filter, channels);
    double xs[PART], ys[PART];
    if (!take) return DDLP_STEP;
    fill(out, (size_t)width * (size_t)height, channels, colour);
    for (int32_t y = 0; y < height; y++) {
        const double yin = y + 0.5;
        for (int32_t first = 0; first < width; first += PART) {
            const int count = width - first < PART ? width - first : PART;
            for (int i = 0; i < count; i++) {
                const double xin = first + i + 0.5, depth = a[6] * xin + a[7] * yin + 1;
                xs[i] = (a[0] * xin + a[1] * yin + a[2]) / depth, ys[i] = (a[3] * xin + a[4] * yin + a[5]) / depth;
            }
            take(image, out, xs, ys, count);
            out += count * channels;
        }
    }
    return 0;
}

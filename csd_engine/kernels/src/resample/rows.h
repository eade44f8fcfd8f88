/* Copies or mirrors rows of pixels. */
#ifndef DDLP_ROWS_H
#define DDLP_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void mirror_row(uint8_t *restrict out, const uint8_t *restrict row, ptrdiff_t width, ptrdiff_t channels) {
    const uint8_t *pixel = row + (width - 1) * channels;
    if (channels == 1) {
        for (ptrdiff_t x = 0; x < width; x++) *out++ = *pixel--;
        return;
    }
    if (channels == 3 && width > 1) { /* four bytes at a time: the next pixel overwrites the extra byte */
        memcpy(out, pixel, 3);
        for (ptrdiff_t x = 1; x + 1 < width; x++) memcpy(out + 3 * x, pixel - 3 * x, 4);
        memcpy(out + 3 * (width - 1), row, 3);
        return;
    }
    for (ptrdiff_t x = 0; x < width; x++, out += channels, pixel -= channels)
        for (ptrdiff_t channel = 0; channel < channels; channel++) out[channel] = pixel[channel];
}

static inline void copy_rows(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count,
                             ptrdiff_t width, ptrdiff_t channels, int mirrored) {
    for (int row = 0; row < count; row++, out += out_stride, rows += stride) {
        if (mirrored) mirror_row(out, rows, width, channels);
        else memcpy(out, rows, (size_t)(width * channels));
    }
}

#endif

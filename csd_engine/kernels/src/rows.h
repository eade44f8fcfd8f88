/* Rows of pixels, copied or mirrored. */
#ifndef DDLP_ROWS_H
#define DDLP_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void mirror_row(uint8_t *restrict out, const uint8_t *restrict row, ptrdiff_t width, ptrdiff_t channels) {
    row += (width - 1) * channels;
    if (channels == 3) {
        for (ptrdiff_t x = 0; x < width; x++, out += 3, row -= 3) {
            out[0] = row[0];
            out[1] = row[1];
            out[2] = row[2];
        }
    } else {
        for (ptrdiff_t x = 0; x < width; x++, row -= 2 * channels)
            for (ptrdiff_t channel = 0; channel < channels; channel++) *out++ = *row++;
    }
}

static inline void copy_rows(uint8_t *out, ptrdiff_t out_stride, const uint8_t *rows, ptrdiff_t stride, int count,
                             ptrdiff_t width, ptrdiff_t channels, int mirrored) {
    for (int row = 0; row < count; row++, out += out_stride, rows += stride) {
        if (mirrored) mirror_row(out, rows, width, channels);
        else memcpy(out, rows, (size_t)(width * channels));
    }
}

#endif

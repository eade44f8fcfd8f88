/* Progressive JPEG: all scans of a file are read into the coefficients of the wanted blocks. libjpeg then gets the
 * coefficients as if they came from a baseline file. */
#ifndef DDLP_PROGRESSIVE_H
#define DDLP_PROGRESSIVE_H

#include <stddef.h>
#include <stdint.h>

/* The wanted blocks: first and last row and column, all included, in MCUs of an interleaved scan (with one component: in
 * blocks). */
typedef struct {
    unsigned first_row, last_row, first_column, last_column;
} progressive_part;

typedef struct progressive progressive;

progressive *progressive_new(void); /* NULL without memory */
void progressive_free(progressive *);

/* Read the header of a file that jpeg_header accepts. 0: the file is not progressive, or this decoder can't do it. Else
 * *header is the header of a baseline file with the same size, colours and quantisation, and one scan; the result is its
 * size. The header lies in the decoder's memory. */
size_t progressive_header(progressive *, const uint8_t *content, size_t size, const uint8_t **header);

/* Read the scans of that file. A result other than 0: something is unusual or damaged, or the last bits of low frequencies are
 * missing (libjpeg then smooths). Below the last row nothing is decoded; the data are only searched for markers. */
int progressive_read(progressive *, const progressive_part *);

/* Copy the coefficients of the image's next MCU into `blocks`, in natural order; NULL: step over it. Blocks outside the part
 * are not changed. */
void progressive_mcu(progressive *, int16_t (*const *blocks)[64]);

/* Whether the caller asked for blocks of a row outside the part. */
int progressive_strayed(const progressive *);

/* Free the memory of a large image. */
void progressive_done(progressive *);

#endif

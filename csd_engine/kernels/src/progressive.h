/* Progressive JPEG: all scans of a file are read into the coefficients of the wanted blocks, which libjpeg then gets as if
 * they came from a baseline file. */
#ifndef DDLP_PROGRESSIVE_H
#define DDLP_PROGRESSIVE_H

#include <stddef.h>
#include <stdint.h>

/* The blocks that are wanted, in MCUs of an interleaved scan (of one component: blocks): first and last row and column, all
 * included. */
typedef struct {
    unsigned first_row, last_row, first_column, last_column;
} progressive_part;

typedef struct progressive progressive;

progressive *progressive_new(void); /* NULL without memory */
void progressive_free(progressive *);

/* Look at the header of a file that jpeg_header has found plain. 0: not a progressive one, or nothing that this decoder does.
 * Else *header is made of it, what a baseline file of the same size, colours and quantisation would begin with, all in one
 * scan; its size. It lies in the decoder's memory. */
size_t progressive_header(progressive *, const uint8_t *content, size_t size, const uint8_t **header);

/* Read the scans of that file. Not 0: something is unusual or damaged, or the last bits of low frequencies are missing (then
 * libjpeg smooths). Below the last row nothing is decoded, only looked through for markers. */
int progressive_read(progressive *, const progressive_part *);

/* The next MCU of the image, from the first one on: its coefficients, in natural order, into `blocks`; NULL: step over it.
 * Outside the part blocks are left as they are. */
void progressive_mcu(progressive *, int16_t (*const *blocks)[64]);

/* Whether blocks of a row outside the part were asked for. */
int progressive_strayed(const progressive *);

/* Give back the memory of a large image. */
void progressive_done(progressive *);

#endif

/* Decoding a part of a JPEG, whose rows are passed on, and what is looked up in a file before it. */
#ifndef DDLP_DECODER_H
#define DDLP_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "jpeg/entropy.h"
#include "jpeg/libjpeg.h"
#include "jpeg/progressive.h"

/* Bytes after the last row of a band that may be read, but are not used: vector loads reach that far. */
#define DDLP_SLACK 64

/* The part to decode: `height` rows from `top`, `width` columns from `left`, of the image scaled by 1 / reduce. */
typedef struct {
    int left, top, width, height;
    int reduce, channels;
    int several_scans; /* as in ddlp_read's info */
} region;

/* Takes the region's rows in order, `count` at a time, `stride` bytes from one to the next. DDLP_SLACK bytes follow them. A
 * result other than 0 ends the decoding and is decode's result. */
typedef int (*rows_taker)(void *taker, const uint8_t *rows, int64_t stride, int count);

/* The memory that is kept between images: a growing buffer for a few decoded rows, and the entropy decoders with their
 * tables. */
typedef struct {
    uint8_t *bytes;
    size_t room;
    entropy *entropy;  /* NULL: libjpeg's decoder is used */
    progressive *progressive; /* made for the first progressive file */
    int own_entropy;   /* whether one of our decoders read the last image */
    int given;         /* whether rows of it have been passed on */
    void *checked[2];  /* functions of libjpeg's entropy decoder, found to be libjpeg's own */
} decoder_memory;

/* region.c: look libjpeg's functions up in the dlopen()ed library. 0, or DDLP_NO_LIBJPEG: some are missing, or it has another
 * interface. */
int decoder_load(void *library, jpeg_library *jpeg);

/* region.c: decode. 0, a ddlp_refusal, -ENOMEM, or the result of `take`. The region must lie inside the image. */
int decoder_decode(const jpeg_library *jpeg, const uint8_t *content, size_t size, const region *, decoder_memory *,
                   rows_taker take, void *taker);

/* header.c: check a JPEG's header. info: as in ddlp_read. 0, DDLP_HEADER or DDLP_KIND. */
int jpeg_header(const uint8_t *content, size_t size, int32_t info[4]);

/* orientation.c: for a file that jpeg_header accepts. 0 if the file is plainly upright, else 1. */
int jpeg_turned(const uint8_t *content, size_t size);

/* header.c: the scans of a file, or more: markers of scans within other segments count too. */
int jpeg_scans(const uint8_t *at, const uint8_t *end);

/* header.c: whether only entropy-coded data and restart markers come between `at` and an end-of-image marker. */
int jpeg_ends_well(const uint8_t *at, const uint8_t *end);

#endif

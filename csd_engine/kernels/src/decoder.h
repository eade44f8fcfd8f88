/* Between context.c and the two builds of region.h: decode a part of a JPEG and hand its rows on. */
#ifndef DDLP_DECODER_H
#define DDLP_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "entropy.h"
#include "progressive.h"

/* Bytes that may be read (not used) behind the last row of a band: vector loads run over. */
#define DDLP_SLACK 64

/* What to decode: `height` rows from `top`, `width` columns from `left`, of the image scaled by 1 / reduce. */
typedef struct {
    int left, top, width, height;
    int reduce, channels;
    int several_scans; /* as ddlp_read says */
} region;

/* Takes the region's rows, in order, `count` at a time, `stride` bytes from one to the next, followed by DDLP_SLACK bytes.
 * Another result than 0 ends the decoding and is decode's result. */
typedef int (*rows_taker)(void *taker, const uint8_t *rows, int64_t stride, int count);

/* What is kept between images: a few rows as decoded, which grow, and the entropy decoder with its tables. */
typedef struct {
    uint8_t *bytes;
    size_t room;
    entropy *entropy;  /* NULL: libjpeg's is used */
    progressive *progressive; /* made for the first progressive file */
    int own_entropy;   /* whether the last image was read by ours */
    int given;         /* whether rows of it have been handed on */
    void *checked[2];  /* libjpeg's entropy decoder, last seen to be libjpeg's */
} decoder_memory;

/* One build of region.h. */
typedef struct {
    /* Look libjpeg's functions up in the dlopen()ed library: 0, or DDLP_NO_LIBJPEG (missing ones, another interface). */
    int (*load)(void *library);
    /* 0, a ddlp_refusal, -ENOMEM, or what `take` returned. The region must lie inside the image. */
    int (*decode)(const uint8_t *content, size_t size, const region *, decoder_memory *, rows_taker take, void *taker);
} decoder_kind;

extern const decoder_kind ddlp_decoder_62, ddlp_decoder_80;

/* header.c: look at a JPEG's header. info: as ddlp_read's. 0, DDLP_HEADER or DDLP_KIND. */
int jpeg_header(const uint8_t *content, size_t size, int32_t info[4]);

/* header.c: whether from `at` on only entropy-coded data and restart markers come before an end-of-image marker. */
int jpeg_ends_well(const uint8_t *at, const uint8_t *end);

#endif

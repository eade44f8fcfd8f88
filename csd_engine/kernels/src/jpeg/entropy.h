/* The entropy decoder of baseline JPEG. It takes half of the time, which neither a region nor SIMD instructions can save: a
 * code's place is known only after all codes before it. This one replaces libjpeg's, and is nearly twice as fast. */
#ifndef DDLP_ENTROPY_H
#define DDLP_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

#include "jpeg/huffman.h"

/* One scan that holds all components. */
typedef struct {
    const uint8_t *data, *end;                 /* the file's bytes after the SOS marker */
    int components;                            /* 1 to 4 */
    int blocks;                                /* in one MCU */
    int component[MCU_BLOCKS];             /* 0 to 3, of each block */
    huffman_source dc[4], ac[4];                /* of each component */
    unsigned restart_interval, mcus_per_row;   /* restart_interval 0: none */
    unsigned first_column, last_column;        /* MCU columns whose coefficients are wanted, both included */
} entropy_scan;

typedef struct entropy entropy;

entropy *entropy_new(void); /* NULL without memory */
void entropy_free(entropy *);

/* Begin a scan. A result other than 0: its tables are not those of a baseline JPEG. */
int entropy_begin(entropy *, const entropy_scan *);

/* Decode the next MCU into `blocks`, which are zero, with coefficients in natural order. blocks NULL: only step over the MCU.
 * Damage (an invalid code, data that end early, a marker out of place) is remembered, see `entropy_damaged`. */
void entropy_mcu(entropy *, int16_t (*const *blocks)[64]);
int entropy_damaged(const entropy *);

/* The first byte of the file that has not been read yet. */
const uint8_t *entropy_rest(const entropy *);

#endif

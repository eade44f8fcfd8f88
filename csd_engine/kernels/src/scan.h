/* Between progressive.c, which walks through a file, and scan.c, which decodes one of its scans. */
#ifndef DDLP_SCAN_H
#define DDLP_SCAN_H

#include "huffman.h"

/* The blocks of one component. */
typedef struct {
    unsigned across, down;    /* in an MCU of an interleaved scan */
    unsigned columns, rows;   /* blocks that the component has by itself */
    unsigned stride;          /* blocks in a row of whole MCUs */
    unsigned kept_column, kept_row, kept_columns, kept_rows; /* those whose coefficients are kept */
    uint64_t *known;          /* of each block, `stride` a row: which coefficients are not 0, in coded order from the top */
    int16_t (*kept)[64];      /* coefficients in natural order, kept_columns a row */
} component_blocks;

/* One scan: T.81 G.1. */
typedef struct {
    component_blocks *component[4];
    const codes *dc[4]; /* of each component, for a first DC scan */
    const codes *ac;    /* for AC scans, which have one component */
    int components;
    int first, last;            /* band of coefficients */
    int low;                    /* bits still missing afterwards (Al) */
    int refines;                /* these bits only make known ones more exact (Ah > 0) */
    unsigned columns, rows;     /* MCUs; rows: as many as are wanted */
    unsigned restart_interval;  /* 0: none */
} progressive_scan;

/* Decode the scan whose bytes the stream begins with. Not 0: damaged. */
int scan_decode(const progressive_scan *, bit_stream *);

/* The same for any processor, and for those with BMI2 (variant_bmi2). */
int scan_plain(const progressive_scan *, bit_stream *);
int scan_bmi2(const progressive_scan *, bit_stream *);

#endif

/* The interface between progressive.c, which goes through a file, and scan.c, which decodes one of its scans. */
#ifndef DDLP_SCAN_H
#define DDLP_SCAN_H

#include "jpeg/huffman.h"

/* The blocks of one component. */
typedef struct {
    unsigned across, down;    /* in an MCU of an interleaved scan */
    unsigned columns, rows;   /* blocks that the component has by itself */
    unsigned stride;          /* blocks in a row of whole MCUs */
    unsigned kept_column, kept_row, kept_columns, kept_rows; /* the blocks whose coefficients are kept */
    uint64_t *known;          /* [rows][stride], which coefficients of a block are not 0, in coded order from the top bit */
    int16_t (*kept)[64];      /* coefficients in natural order, kept_columns a row */
} component_blocks;

/* One scan: T.81 G.1. */
typedef struct {
    component_blocks *component[4];
    const codes *dc[4]; /* for each component, in a first DC scan */
    const codes *ac;    /* for AC scans, which have one component */
    int components;
    int first, last;            /* band of coefficients */
    int low;                    /* bits that are still missing after this scan (Al) */
    int refines;                /* the scan makes known coefficients more exact (Ah > 0) */
    unsigned columns, rows;     /* MCUs; rows: only the wanted ones */
    unsigned restart_interval;  /* 0: none */
} progressive_scan;

/* Decode the scan at the beginning of the stream. A result other than 0: the scan is damaged. */
int scan_decode(const progressive_scan *, bit_stream *);

/* Do the same on any processor, and on processors with BMI2 (variant_bmi2). */
int scan_plain(const progressive_scan *, bit_stream *);
int scan_bmi2(const progressive_scan *, bit_stream *);

#endif

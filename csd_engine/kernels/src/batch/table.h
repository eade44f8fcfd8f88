/* ddlp_table in parts, for a caller that gets the pixels of one image after the other. */
#ifndef DDLP_TABLE_H
#define DDLP_TABLE_H

#include <stdint.h>

enum { PERMUTED_CHANNELS = 3, PERMUTED_BYTES = 4, PERMUTED_AT_ONCE = 64 };

/* A prepared table. To prepare it takes as long as a few hundred values. */
typedef struct {
    const void *values;
    int32_t channels, element_bytes, channels_last;
    int streamed; /* a large result is stored past the caches */
    int permuted; /* the next two fields are set (table_permuted.c) */
    uint8_t order[PERMUTED_AT_ONCE];
    uint8_t bytes[PERMUTED_CHANNELS][PERMUTED_BYTES][256]; /* the first byte of all of a channel's values, the second, ... */
} table_job;

/* `results`: how many values there will be in all. Everything else as ddlp_table. */
void table_begin(table_job *job, int64_t results, int32_t channels, const void *table, int32_t element_bytes,
                 int32_t channels_last);

void table_apply(const table_job *job, const uint8_t *pixels, int64_t images, int64_t count, void *out);

/* Call it after the last part, before another thread uses the result. */
void table_end(const table_job *job);

/* Prepare a table for permutations. 0: this processor has none, or they do not fit this table. */
int table_permute(table_job *job);

/* Look up some of a channel's `count` values, from the first on, and return how many. Their bytes lie job->channels apart.
 * `out` must begin at a cache line if the result is streamed. */
int64_t table_permuted(const table_job *job, int channel, const uint8_t *p, int64_t count, void *out);

#endif

/* ddlp_table in parts: for who has the pixels of one image after the other. */
#ifndef DDLP_TABLE_H
#define DDLP_TABLE_H

#include <stdint.h>

enum { PERMUTED_CHANNELS = 3, PERMUTED_BYTES = 4, PERMUTED_AT_ONCE = 64 };

/* A table, made ready. Beginning costs as much as a few hundred values. */
typedef struct {
    const void *values;
    int32_t channels, element_bytes, channels_last;
    int streamed; /* a large result goes past the caches */
    int permuted; /* what follows is there (table_permuted.c) */
    uint8_t order[PERMUTED_AT_ONCE];
    uint8_t bytes[PERMUTED_CHANNELS][PERMUTED_BYTES][256]; /* the first byte of all of a channel's values, the second, ... */
} table_job;

/* `results`: how many values there will be in all. Everything else as ddlp_table. */
void table_begin(table_job *job, int64_t results, int32_t channels, const void *table, int32_t element_bytes,
                 int32_t channels_last);

void table_apply(const table_job *job, const uint8_t *pixels, int64_t images, int64_t count, void *out);

/* After the last part, before anybody is told of it. */
void table_end(const table_job *job);

/* Make a table ready for permutations. 0: this processor has none, or they do not fit such a table. */
int table_permute(table_job *job);

/* Some of a channel's `count` values, from the first on, whose bytes lie job->channels apart; returns how many. `out` begins a
 * cache line where the result is streamed. */
int64_t table_permuted(const table_job *job, int channel, const uint8_t *p, int64_t count, void *out);

#endif

/* The memory of a context that other files use, besides its decoder. */
#ifndef DDLP_CONTEXT_H
#define DDLP_CONTEXT_H

#include <stddef.h>

#include "ddlp.h"
#include "index.h"
#include "resample.h"
#include "steps.h"

/* A buffer of at least this many bytes, valid until the next call; NULL without memory. */
uint8_t *context_scratch(ddlp_context *context, size_t bytes);

/* The same with a buffer of its own, for a few rows of pixels. Decoding uses it too. */
uint8_t *context_band(ddlp_context *context, size_t bytes);

/* The context's memory for steps.h, and its resampler, which is free between two samples. */
step_state *context_steps(ddlp_context *context);
resample_state *context_resample(ddlp_context *context);

/* The bytes that were read of files, and the time for those of them that were read while a sample was made. */
typedef struct {
    int64_t read_bytes, fetch_ns;
} context_counts;

/* Begin a call that makes many samples: counts from 0, no file, no index made. */
context_counts *context_begin(ddlp_context *context);

/* Forget the file last read: it is about to be closed. */
void context_forget(ddlp_context *context);

/* The index by which the file last read is read, or room for one between two files. */
jpeg_index *context_index(ddlp_context *context);

/* Add the index that the last sample made to those of this call, with the time of the file's last change. Returns its bytes; 0:
 * there is none. */
size_t context_add_index(ddlp_context *context, uint64_t changed);

/* This call's indexes, one behind the other; valid until the context's next call. */
const uint8_t *context_indexes(const ddlp_context *context);

#endif

/* The memory of a context that other files use, besides its decoder. */
#ifndef DDLP_CONTEXT_H
#define DDLP_CONTEXT_H

#include <stddef.h>

#include "ddlp.h"
#include "resample/resample.h"

/* A buffer of at least this many bytes, valid until the next call; NULL without memory. */
uint8_t *context_scratch(ddlp_context *context, size_t bytes);

/* The same with a buffer of its own, for a few rows of pixels. Decoding uses it too. */
uint8_t *context_band(ddlp_context *context, size_t bytes);

/* The context's resampler, which is free between two samples. */
resample_state *context_resample(ddlp_context *context);

/* Forget the file last read. A call that makes many samples begins with it. */
void context_forget(ddlp_context *context);

#endif

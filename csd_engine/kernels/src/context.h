/* What a context has for others beside its decoder. */
#ifndef DDLP_CONTEXT_H
#define DDLP_CONTEXT_H

#include <stddef.h>

#include "ddlp.h"

/* Room for so many bytes, until the next call for other ones; NULL without memory. */
uint8_t *context_scratch(ddlp_context *context, size_t bytes);

#endif

/* ddlp_table in parts: for who has the pixels of one image after the other. */
#ifndef DDLP_TABLE_H
#define DDLP_TABLE_H

#include <stdint.h>

/* Whether a result of so many values goes past the caches. */
int table_is_streamed(int64_t values, int32_t element_bytes);

/* As ddlp_table. */
void table_apply(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, const void *table,
                 int32_t element_bytes, int32_t channels_last, int streamed, void *out);

/* After the last part, before anybody is told of it. */
void table_done(int streamed);

#endif

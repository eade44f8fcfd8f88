#include <stddef.h>

#include "ddlp.h"

#define LOOK_UP(name, element)                                                                                            \
    static void name(const uint8_t *restrict pixels, size_t count, size_t channels, const element *restrict table,         \
                     int channels_last, element *restrict out) {                                                           \
        for (size_t channel = 0; channel < channels; channel++) {                                                          \
            const element *values = table + 256 * channel;                                                                 \
            element *to = channels_last ? out + channel : out + channel * count;                                           \
            size_t step = channels_last ? channels : 1;                                                                    \
            for (size_t i = 0; i < count; i++) to[i * step] = values[pixels[i * channels + channel]];                      \
        }                                                                                                                  \
    }

LOOK_UP(look_up_1, uint8_t)
LOOK_UP(look_up_2, uint16_t)
LOOK_UP(look_up_4, uint32_t)

void ddlp_table(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, const void *table,
                int32_t element_bytes, int32_t channels_last, void *out) {
    size_t values = (size_t)count * (size_t)channels;
    uint8_t *to = out;
    for (int64_t image = 0; image < images; image++, pixels += values, to += values * (size_t)element_bytes) {
        switch (element_bytes) {
        case 1: look_up_1(pixels, (size_t)count, (size_t)channels, table, channels_last, to); break;
        case 2: look_up_2(pixels, (size_t)count, (size_t)channels, table, channels_last, (uint16_t *)to); break;
        case 4: look_up_4(pixels, (size_t)count, (size_t)channels, table, channels_last, (uint32_t *)to); break;
        }
    }
}

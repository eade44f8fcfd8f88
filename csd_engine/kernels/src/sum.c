#include <string.h>

#include "ddlp.h"

enum { WORDS = 16384 }; /* of a block of 64 KiB */

static const uint32_t MULTIPLIER = 0x9E3779BB; /* csd_engine/checksum.py's */

void ddlp_sum(uint32_t *acc, const uint8_t *data, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, data += 4 * WORDS) {
        for (size_t i = 0; i < WORDS; i++) {
            uint32_t word;
            memcpy(&word, data + 4 * i, 4);
            acc[i] = acc[i] * MULTIPLIER + word;
        }
    }
}

/* Finds whether a JPEG file says that its image must be turned for display.
 *
 * Pillow finds that in the Exif segment's first directory, else in an XMP packet. A file that is not plainly upright is left to
 * Pillow: one with a damaged directory, with several Exif segments, or with a packet that names an orientation.
 */
#define _GNU_SOURCE
#include <string.h>

#include "jpeg/decoder.h"

enum { APP1 = 0xE1, SOS = 0xDA, ORIENTATION = 0x0112, SHORT = 3, ENTRY_BYTES = 12 };

static unsigned two(const uint8_t *at, int large_first) {
    return large_first ? (unsigned)at[0] << 8 | at[1] : (unsigned)at[1] << 8 | at[0];
}

static size_t four(const uint8_t *at, int large_first) {
    const size_t first = two(at, large_first), second = two(at + 2, large_first);
    return large_first ? first << 16 | second : second << 16 | first;
}

/* 0: the directory says upright, or has no orientation. */
static int exif_turns(const uint8_t *data, size_t length) {
    if (length < 8 || (memcmp(data, "II*", 4) && memcmp(data, "MM\0*", 4))) return 1;
    const int large_first = data[0] == 'M';
    const size_t at = four(data + 4, large_first);
    if (at < 8 || at > length - 2) return 1;
    const unsigned count = two(data + at, large_first);
    if ((length - at - 2) / ENTRY_BYTES < count) return 1;
    for (unsigned k = 0; k < count; k++) {
        const uint8_t *entry = data + at + 2 + (size_t)k * ENTRY_BYTES;
        if (two(entry, large_first) != ORIENTATION) continue;
        if (two(entry + 2, large_first) != SHORT || four(entry + 4, large_first) != 1 || two(entry + 8, large_first) != 1) return 1;
    }
    return 0;
}

int jpeg_turned(const uint8_t *content, size_t size) {
    size_t at = 2;
    int exifs = 0;
    for (;;) { /* jpeg_header has checked that the segments up to the first scan are whole */
        while (at < size && content[at] == 0xFF) at++;
        if (at > size || size - at < 3) return 1;
        const int marker = content[at++];
        const size_t length = (size_t)two(content + at, 1);
        if (length < 2 || length > size - at) return 1;
        const uint8_t *segment = content + at + 2;
        at += length;
        if (marker == SOS) return 0;
        if (marker != APP1) continue;
        if (length >= 8 && !memcmp(segment, "Exif\0", 6)) {
            if (exifs++ || exif_turns(segment + 6, length - 8)) return 1;
        } else if (memmem(segment, length - 2, "rientation", 10)) {
            return 1;
        }
    }
}

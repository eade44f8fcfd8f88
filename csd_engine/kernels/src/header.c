/* The header of a JPEG file, read strictly.
 *
 * Pillow parses the header in Python before libjpeg gets it, and refuses some damaged headers that libjpeg would take. The
 * kernel must never decode a file that Pillow would refuse. So it takes only headers in which Pillow's parser finds no
 * fault, and leaves all others to Pillow.
 */
#include <string.h>

#include "ddlp.h"
#include "decoder.h"

enum {
    SOF0 = 0xC0, SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD,
    APP0 = 0xE0, APP2 = 0xE2, APP13 = 0xED, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE
};

static int number(const uint8_t *at) { return at[0] << 8 | at[1]; }

static int starts(const uint8_t *segment, size_t length, const char *with, size_t count) {
    return length >= count && !memcmp(segment, with, count);
}

/* Pillow walks through Photoshop's resources. It fails at a resource whose name would begin after the segment's end. */
static int photoshop_is_plain(const uint8_t *segment, size_t length) {
    size_t at = 14;
    while (at + 4 <= length && !memcmp(segment + at, "8BIM", 4)) {
        at += 6;
        if (at > length) return 1; /* too short for the number before the name: Pillow ends its walk there */
        if (at == length) return 0;
        at += 1 + segment[at];
        at += at & 1;
        if (at + 4 > length) return 1;
        size_t size = (size_t)number(segment + at) << 16 | (size_t)number(segment + at + 2);
        if (size > length - at - 4) return 1;
        at += 4 + size;
        at += at & 1;
    }
    return 1;
}

static int application_is_plain(int marker, const uint8_t *segment, size_t length) {
    if (marker == APP0 && starts(segment, length, "JFIF", 4)) return length >= 14;
    if (marker == APP14 && starts(segment, length, "Adobe", 5)) return length >= 12;
    if (marker == APP2 && starts(segment, length, "ICC_PROFILE", 12)) return length >= 14;
    if (marker == APP2 && starts(segment, length, "MPF", 4)) return 0; /* several pictures in one file */
    if (marker == APP13 && starts(segment, length, "Photoshop 3.0", 14)) return photoshop_is_plain(segment, length);
    return 1;
}

int jpeg_header(const uint8_t *content, size_t size, int32_t info[4]) {
    size_t at = 2;
    memset(info, 0, 4 * sizeof *info);
    if (size < 4 || content[0] != 0xFF || content[1] != SOI) return DDLP_HEADER;
    for (;;) {
        size_t length;
        int marker;
        const uint8_t *segment;
        if (at >= size || content[at] != 0xFF) return DDLP_HEADER;
        while (at < size && content[at] == 0xFF) at++; /* any number of FF may lead a marker */
        if (size - at < 3) return DDLP_HEADER;
        marker = content[at++];
        length = (size_t)number(content + at);
        if (length < 2 || length > size - at) return DDLP_HEADER;
        segment = content + at + 2;
        at += length;
        length -= 2;
        switch (marker) {
        case SOF0: case SOF1: case SOF2:
            if (info[2] || length < 6 || length != 6 + 3 * (size_t)segment[5]) return DDLP_HEADER;
            if (segment[0] != 8 || (segment[5] != 1 && segment[5] != 3)) return DDLP_KIND;
            info[0] = number(segment + 3), info[1] = number(segment + 1), info[2] = segment[5];
            if (!info[0] || !info[1]) return DDLP_HEADER;
            if ((int64_t)info[0] * info[1] > DDLP_MOST_PIXELS) return DDLP_KIND;
            info[3] = marker == SOF2;
            break;
        case SOS:
            if (length && segment[0] < info[2]) info[3] = 1;
            return info[2] ? 0 : DDLP_HEADER;
        case DHT: case DQT: case DRI: case COM:
            break;
        default:
            if (marker >= SOF0 && marker < SOI && marker != DHT) return DDLP_KIND; /* another way of coding */
            if (marker < APP0 || marker > APP15 || !application_is_plain(marker, segment, length)) return DDLP_HEADER;
        }
    }
}

int jpeg_ends_well(const uint8_t *at, const uint8_t *end) {
    while (end - at >= 2 && (at = memchr(at, 0xFF, (size_t)(end - at - 1)))) {
        int next = at[1];
        if (next == EOI) return 1;
        if (next != 0 && next != 0xFF && (next & 0xF8) != 0xD0) return 0;
        at += next == 0xFF ? 1 : 2; /* 0: a coded FF; FF: leads a marker; D0 to D7: restart */
    }
    return 0;
}

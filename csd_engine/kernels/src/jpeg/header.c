/* The header of a JPEG file, read strictly.
 *
 * Pillow parses the header in Python before libjpeg gets it, and refuses some damaged headers that libjpeg would take. The
 * kernel must never decode a file that Pillow would refuse, or of which it would warn. So it takes only headers in which
 * Pillow's parser finds no fault, and leaves all others to Pillow.
 */
#include <string.h>

#include "ddlp.h"
#include "jpeg/decoder.h"

enum {
    SOF0 = 0xC0, SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD,
    APP0 = 0xE0, APP1 = 0xE1, APP2 = 0xE2, APP13 = 0xED, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE
};

enum { X_RESOLUTION = 0x011A, RESOLUTION_UNIT = 0x0128, SHORT = 3, RATIONAL = 5, ENTRY_BYTES = 12 }; /* of Exif's directory */

static int number(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* A number of Exif's, of 2 or 4 bytes. */
static size_t exif_number(const uint8_t *at, int bytes, int large_first) {
    size_t found = 0;
    for (int k = 0; k < bytes; k++) found = found << 8 | at[large_first ? k : bytes - 1 - k];
    return found;
}

/* Bytes of a value of one of Exif's types; 0: Pillow passes over an entry of this type. */
static size_t exif_bytes(size_t type) {
    static const uint8_t bytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

/* Whether Pillow reads the first directory without a warning or an error. It looks for the resolution there. */
static int exif_is_plain(const uint8_t *data, size_t length) {
    if (length < 8 || (memcmp(data, "II*", 4) && memcmp(data, "MM\0*", 4))) return 0;
    const int large_first = data[0] == 'M';
    const size_t at = exif_number(data + 4, 4, large_first);
    size_t values = 0;
    if (at < 8 || length < 6 || at > length - 6) return 0;
    const size_t count = exif_number(data + at, 2, large_first);
    if ((length - at - 6) / ENTRY_BYTES < count) return 0;
    for (size_t k = 0; k < count; k++) {
        const uint8_t *entry = data + at + 2 + k * ENTRY_BYTES;
        const size_t tag = exif_number(entry, 2, large_first), type = exif_number(entry + 2, 2, large_first);
        const size_t many = exif_number(entry + 4, 4, large_first), from = exif_number(entry + 8, 4, large_first);
        const size_t of_one = exif_bytes(type);
        if (tag == X_RESOLUTION && (type != RATIONAL || many != 1)) return 0;
        if (tag == RESOLUTION_UNIT && (type != SHORT || many != 1)) return 0;
        if (!of_one) continue;
        if (many > length / of_one) return 0;
        if (many * of_one <= 4) continue;
        values += many * of_one;
        if (values > length || from > length - many * of_one) return 0;
    }
    return 1;
}

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

/* Whether the segment says how many pixels the image has to an inch or centimetre. Pillow then does not look for it in Exif. */
static int tells_resolution(int marker, const uint8_t *segment, size_t length) {
    return marker == APP0 && starts(segment, length, "JFIF", 4) && (segment[7] == 1 || segment[7] == 2);
}

int jpeg_header(const uint8_t *content, size_t size, int32_t info[4]) {
    size_t at = 2;
    int resolution = 0, exifs = 0, exif_plain = 1;
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
            return info[2] && (resolution || exif_plain) ? 0 : DDLP_HEADER;
        case DHT: case DQT: case DRI: case COM:
            break;
        default:
            if (marker >= SOF0 && marker < SOI && marker != DHT) return DDLP_KIND; /* another way of coding */
            if (marker < APP0 || marker > APP15 || !application_is_plain(marker, segment, length)) return DDLP_HEADER;
            resolution |= tells_resolution(marker, segment, length);
            if (marker == APP1 && starts(segment, length, "Exif\0", 6)) /* Pillow joins several */
                exif_plain = !exifs++ && exif_is_plain(segment + 6, length - 6);
        }
    }
}

int jpeg_scans(const uint8_t *at, const uint8_t *end) {
    int found = 0;
    while (end - at >= 2 && (at = memchr(at, 0xFF, (size_t)(end - at - 1)))) found += *++at == SOS;
    return found;
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

#include "index.h"

#include <errno.h>
#include <string.h>

#include "ddlp.h"
#include "memory.h"

enum { POINT_BYTES = 7 /* of a usual one */, MOST_POINT_BYTES = 10 + 5 * INDEX_COMPONENTS, SHARE = 100 };

static const uint8_t magic[4] = {'D', 'J', 'I', 2};

uint32_t index_step(uint64_t file_bytes, uint64_t mcus) {
    uint64_t points = file_bytes / SHARE / POINT_BYTES + 1;
    if (points > INDEX_MOST_POINTS) points = INDEX_MOST_POINTS;
    return (uint32_t)((mcus + points - 1) / points);
}

int index_room(jpeg_index *index, uint64_t count) {
    return grow((void **)&index->points, &index->room, (size_t)count * sizeof *index->points);
}

int index_place(jpeg_index *index, const uint8_t *data, const uint8_t *end) {
    const uint8_t *at = data;
    uint64_t plain = 0; /* bytes without stuffing before `at` */
    uint32_t k = 0;
    while (k < index->count) {
        const uint8_t *ff = at < end ? memchr(at, 0xFF, (size_t)(end - at)) : NULL;
        const uint8_t *until = ff ? ff : end;
        for (; k < index->count && index->points[k].bit / 8 - plain <= (uint64_t)(until - at); k++) {
            const uint64_t byte = (uint64_t)(at - data) + (index->points[k].bit / 8 - plain);
            index->points[k].bit = 8 * byte + index->points[k].bit % 8;
        }
        if (k == index->count) return 0;
        if (!ff || end - ff < 2) return 1;
        plain += (uint64_t)(ff - at) + (ff[1] == 0);
        at = ff + 2;
        if (ff[1] && (ff[1] & 0xF8) != 0xD0) return 1;
    }
    return 0;
}

uint64_t index_hash(const uint8_t *bytes, size_t size) {
    uint64_t hash = 0xCBF29CE484222325u ^ size;
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        for (size_t k = 0; k < 8 && at + k < size; k++) word |= (uint64_t)bytes[at + k] << 8 * k;
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

static uint8_t *put(uint8_t *at, uint64_t value, int bytes) {
    for (int k = 0; k < bytes; k++) *at++ = (uint8_t)(value >> 8 * k);
    return at;
}

static uint64_t get(const uint8_t **at, int bytes) {
    uint64_t value = 0;
    for (int k = 0; k < bytes; k++) value |= (uint64_t)*(*at)++ << 8 * k;
    return value;
}

static uint8_t *put_short(uint8_t *at, uint64_t value) {
    for (; value > 127; value >>= 7) *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

/* A result other than 0: there is no such number before `end`. */
static int get_short(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        if (*at == end) return 1;
        const uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 0;
    }
    return 1;
}

size_t index_most_bytes(const jpeg_index *index) { return INDEX_HEADER_BYTES + (size_t)index->count * MOST_POINT_BYTES; }

size_t index_pack(const jpeg_index *index, uint8_t *out) {
    uint8_t *at = out + 12;
    memcpy(out, magic, sizeof magic);
    at = put(at, index->file_bytes, 8), at = put(at, index->changed, 8), at = put(at, index->header_hash, 8);
    at = put(at, index->header_bytes, 4);
    at = put(at, index->width, 2), at = put(at, index->height, 2), at = put(at, index->step, 4), at = put(at, index->count, 4);
    at = put(at, index->components, 1);
    for (uint32_t k = 1; k < index->count; k++) {
        const index_point *last = index->points + k - 1, *point = last + 1;
        at = put_short(at, point->bit - last->bit);
        for (uint32_t c = 0; c < index->components; c++) {
            const int64_t change = (int64_t)point->dc[c] - last->dc[c];
            at = put_short(at, change < 0 ? (uint64_t)-change << 1 | 1 : (uint64_t)change << 1);
        }
    }
    put(out + 4, index_hash(out + 12, (size_t)(at - out) - 12), 8);
    return (size_t)(at - out);
}

int index_parse(jpeg_index *index, const uint8_t *bytes, size_t size) {
    const uint8_t *at = bytes + 4, *end = bytes + size;
    index->count = 0;
    if (size < INDEX_HEADER_BYTES || memcmp(bytes, magic, sizeof magic)) return DDLP_INDEX;
    if (get(&at, 8) != index_hash(bytes + 12, size - 12)) return DDLP_INDEX;
    index->file_bytes = get(&at, 8), index->changed = get(&at, 8), index->header_hash = get(&at, 8);
    index->header_bytes = (uint32_t)get(&at, 4);
    index->width = (uint32_t)get(&at, 2), index->height = (uint32_t)get(&at, 2), index->step = (uint32_t)get(&at, 4);
    const uint64_t count = get(&at, 4);
    index->components = (uint32_t)get(&at, 1);
    if (!index->step || !count || count > INDEX_MOST_POINTS || (index->components != 1 && index->components != 3) ||
        index->header_bytes > index->file_bytes)
        return DDLP_INDEX;
    if (index_room(index, count)) return -ENOMEM;
    const uint64_t bits = 8 * (index->file_bytes - index->header_bytes);
    memset(index->points, 0, sizeof *index->points);
    for (uint64_t k = 1; k < count; k++) {
        const index_point *last = index->points + k - 1;
        index_point *point = index->points + k;
        uint64_t value;
        if (get_short(&at, end, &value) || value > bits - last->bit) return DDLP_INDEX;
        point->bit = last->bit + value;
        for (uint32_t c = 0; c < index->components; c++) {
            if (get_short(&at, end, &value) || value > 1u << 20) return DDLP_INDEX;
            const int32_t size_of = (int32_t)(value >> 1);
            point->dc[c] = last->dc[c] + (value & 1 ? -size_of : size_of);
            if (point->dc[c] < -32768 || point->dc[c] > 32767) return DDLP_INDEX;
        }
    }
    if (at != end) return DDLP_INDEX;
    index->count = (uint32_t)count;
    return 0;
}

void index_part(const jpeg_index *index, int64_t top, int64_t bottom, uint64_t *from, uint64_t *until) {
    enum { MARGIN = 32 /* rows: two usual MCUs */ };
    const int64_t height = index->height + !index->height, first = (top > MARGIN ? top - MARGIN : 0) * index->count / height;
    const int64_t end = (bottom + MARGIN) * index->count / height + 1;
    *from = index->header_bytes + index->points[first < index->count ? first : index->count - 1].bit / 8;
    *until = end < index->count ? index->header_bytes + index->points[end].bit / 8 + 2 : index->file_bytes;
}

/* The index of a baseline JPEG: where its coded data stand every few MCUs. With it a part of the image is decoded from the first
 * MCU that is needed to the last one, and most of what lies beside it is neither decoded nor read.
 *
 * It is a by-product of decoding. Who makes one decodes the file to its end, so damage anywhere in the file is found then.
 * As bytes, all numbers little-endian, it takes about 1 % of the file:
 *
 *     "DJI" and the version, 2      4 bytes
 *     hash of all that follows      8
 *     bytes of the file             8
 *     the file's last change        8     nanoseconds since 1970; files.c alone knows and checks it, else 0
 *     hash of the file's header     8     up to the first coded byte
 *     bytes of the header           4
 *     width, height                 2, 2  pixels
 *     MCUs from point to point      4
 *     points                        4
 *     components                    1     1 or 3
 *     for each point but the first one, variable-length: the bits from the last point to this one in the file, then for each
 *     component its DC value less that at the last point, with the sign in the lowest bit
 */
#ifndef DDLP_INDEX_H
#define DDLP_INDEX_H

#include <stddef.h>
#include <stdint.h>

enum { INDEX_HEADER_BYTES = 53, INDEX_COMPONENTS = 3, INDEX_MOST_POINTS = 1 << 16 };

/* The state before an MCU, and before a restart marker that stands there. */
typedef struct {
    uint64_t bit; /* of the coded data: in a made index's points without stuffing and markers, else in the file */
    int32_t dc[INDEX_COMPONENTS];
} index_point;

/* Point k stands before MCU k * step. All zero: none. */
typedef struct {
    uint64_t file_bytes, changed, header_hash;
    uint32_t header_bytes, width, height, step, count, components;
    index_point *points;
    size_t room;
} jpeg_index;

/* The MCUs between two points, so that a file of this size with so many MCUs has an index of about 1 %. */
uint32_t index_step(uint64_t file_bytes, uint64_t mcus);

/* Make room for the points. 0 or -ENOMEM. */
int index_room(jpeg_index *, uint64_t count);

/* Turn the points' places without stuffing into places in the file. A result other than 0: the data end before. */
int index_place(jpeg_index *, const uint8_t *data, const uint8_t *end);

/* Write the index as bytes; returns their number. `out` has room for index_most_bytes. */
size_t index_pack(const jpeg_index *, uint8_t *out);
size_t index_most_bytes(const jpeg_index *);

/* Read an index from bytes that may be damaged. 0; DDLP_INDEX; -ENOMEM. */
int index_parse(jpeg_index *, const uint8_t *bytes, size_t size);

/* The bytes of the file, nearly, that the image's rows from `top` on, and before `bottom`, need: to have them read ahead. */
void index_part(const jpeg_index *, int64_t top, int64_t bottom, uint64_t *from, uint64_t *until);

uint64_t index_hash(const uint8_t *bytes, size_t size);

#endif

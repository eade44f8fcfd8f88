/* Read progressive files' scans, all of each and a part: one line with a hash of the coefficients, and
 * how often there were any, for each way to decode.
 *
 *     coefficients FILE...
 *
 * The lines must agree from one processor to another. Contents lie in memory of their size, for sanitizers. */
#include <stdio.h>
#include <stdlib.h>

#include "ddlp.h"
#include "jpeg/decoder.h"

static uint64_t hash;
static long done;

static void add(const void *bytes, size_t count) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ p[i]) * 1099511628211u;
}

static uint8_t *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) exit(2);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size);
    if (!data || fread(data, 1, *size, file) != *size) exit(2);
    fclose(file);
    return data;
}

/* The whole image of `columns` x `rows` MCUs is asked for, of which the part has coefficients. */
static void read_part(progressive *p, const progressive_part *part, unsigned columns, unsigned rows) {
    int16_t memory[MCU_BLOCKS][64], (*blocks[MCU_BLOCKS])[64];
    for (int b = 0; b < MCU_BLOCKS; b++) blocks[b] = &memory[b];
    const int result = progressive_read(p, part);
    add(&result, sizeof result);
    if (result) return;
    done++;
    for (unsigned row = 0; row < rows; row++)
        for (unsigned column = 0; column < columns; column++) {
            memset(memory, 0, sizeof memory);
            progressive_mcu(p, row >= part->first_row && row <= part->last_row ? blocks : NULL);
            add(memory, sizeof memory);
        }
    if (progressive_strayed(p)) exit(3);
}

int main(int count, char **files) {
    static const char *const variants[] = {"c", "avx2", "neon"};
    for (int variant = 0; variant < 3; variant++) {
        if (ddlp_choose(variants[variant])) continue;
        progressive *p = progressive_new();
        hash = 14695981039346656037u, done = 0;
        for (int number = 1; number < count; number++) {
            size_t size;
            const uint8_t *header;
            int32_t info[4];
            uint8_t *data = load(files[number], &size);
            if (jpeg_header(data, size, info) || !progressive_header(p, data, size, &header)) return 4;
            /* MCUs of 16 x 16 pixels, or blocks: the files are 4:2:0, or grey. */
            const unsigned side = info[2] == 1 ? 8 : 16;
            const unsigned columns = ((unsigned)info[0] + side - 1) / side, rows = ((unsigned)info[1] + side - 1) / side;
            const progressive_part whole = {0, rows - 1, 0, columns - 1}, part = {rows / 3, rows / 2, columns / 4, columns / 2};
            read_part(p, &whole, columns, rows);
            read_part(p, &part, columns, rows);
            for (size_t end = size / 2; end < size; end += 97) { /* damaged: the same refusals */
                uint8_t *damaged = malloc(size);
                if (!damaged) return 2;
                memcpy(damaged, data, size);
                damaged[end] ^= 0x55;
                if (progressive_header(p, damaged, size, &header)) read_part(p, &part, columns, rows);
                free(damaged);
            }
            free(data);
        }
        printf("%s %016llx %ld\n", variants[variant], (unsigned long long)hash, done);
        progressive_done(p);
        progressive_free(p);
    }
    return 0;
}

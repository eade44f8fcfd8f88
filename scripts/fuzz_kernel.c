/* Feed damaged JPEGs to the kernel, for sanitizers to watch: fuzz LIBJPEG SEED ROUNDS FILE...
 *
 * Each round changes some bytes of one of the files and runs a few random jobs on it, with an output buffer that has not a
 * byte to spare. Prints how many samples were made and how many refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddlp.h"

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
}

static uint8_t *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(1 << 20);
    if (!file || !data) exit(2);
    *size = fread(data, 1, 1 << 20, file);
    fclose(file);
    return data;
}

/* One or some bytes changed, the header more often; the tail cut off at times. */
static size_t damage(uint8_t *data, size_t size) {
    static const uint8_t favourites[] = {0x00, 0xFF, 0xD9, 0xD0, 0xD8, 0xDA, 0xC4, 0x01, 0x7F, 0x80, 0x11, 0x44};
    for (uint32_t count = draw(6); count > 0; count--) {
        const uint32_t at = draw(draw(2) ? (uint32_t)size : size < 700 ? (uint32_t)size : 700);
        if (draw(2)) data[at] = favourites[draw(sizeof favourites)];
        else data[at] ^= (uint8_t)(1u << draw(8));
    }
    return draw(4) ? size : draw((uint32_t)size);
}

static int random_job(ddlp_context *context, const int32_t info[4]) {
    ddlp_job job;
    const int reduce = 1 << draw(4), width = (info[0] + reduce - 1) / reduce, height = (info[1] + reduce - 1) / reduce;
    uint8_t *out;
    int result;
    memset(&job, 0, sizeof job);
    job.reduce = reduce;
    job.channels = info[2] == 1 && draw(2) ? 1 : 3;
    job.left = (int32_t)draw((uint32_t)width), job.top = (int32_t)draw((uint32_t)height);
    job.width = 1 + (int32_t)draw((uint32_t)(width - job.left)), job.height = 1 + (int32_t)draw((uint32_t)(height - job.top));
    job.filter = (int32_t)(draw(3) + 1) % 4;
    if (job.filter == 1) job.filter = 0;
    job.full_width = job.filter ? 1 + (int32_t)draw(200) : job.width;
    job.full_height = job.filter ? 1 + (int32_t)draw(200) : job.height;
    job.out_left = (int32_t)draw((uint32_t)job.full_width), job.out_top = (int32_t)draw((uint32_t)job.full_height);
    job.out_width = 1 + (int32_t)draw((uint32_t)(job.full_width - job.out_left));
    job.out_height = 1 + (int32_t)draw((uint32_t)(job.full_height - job.out_top));
    job.flip_horizontal = (int32_t)draw(2), job.flip_vertical = (int32_t)draw(2), job.vertical_first = (int32_t)draw(2);
    job.out_stride = (int64_t)job.out_width * job.channels;
    out = malloc((size_t)(job.out_stride * job.out_height));
    if (!out) exit(2);
    job.out = out;
    result = ddlp_sample(context, &job);
    free(out);
    return result;
}

int main(int count, char **arguments) {
    const int rounds = count > 4 ? atoi(arguments[3]) : 0, files = count - 4;
    uint8_t *contents[64];
    size_t sizes[64];
    long made = 0, refused = 0;
    if (files < 1 || files > 64 || ddlp_use_jpeg(arguments[1])) {
        fprintf(stderr, "fuzz LIBJPEG SEED ROUNDS FILE... (64 at most)\n");
        return 2;
    }
    state = 0x9E3779B97F4A7C15u + (uint64_t)atoi(arguments[2]);
    for (int i = 0; i < files; i++) contents[i] = load(arguments[4 + i], &sizes[i]);
    for (int round = 0; round < rounds; round++) {
        const int file = (int)draw((uint32_t)files);
        uint8_t *data = malloc(sizes[file]);
        size_t size;
        int32_t info[4];
        ddlp_context *context = ddlp_new(); /* afresh: its buffers then are no larger than this file needs */
        if (!data || !context) return 2;
        memcpy(data, contents[file], sizes[file]);
        size = damage(data, sizes[file]);
        if (ddlp_take(context, data, (int64_t)size, info) || (int64_t)info[0] * info[1] > 1 << 18) refused++;
        else
            for (int jobs = 0; jobs < 3; jobs++) {
                if (random_job(context, info)) refused++;
                else made++;
            }
        ddlp_free(context);
        free(data);
    }
    for (int i = 0; i < files; i++) free(contents[i]);
    printf("%ld made, %ld refused\n", made, refused);
    return 0;
}

/* Feed damaged JPEGs to the kernel under sanitizers: fuzz LIBJPEG SEED ROUNDS FILE...
 *
 * Each file is tried once as it is. Then each round changes some bytes of one of them. A try runs a few random jobs on the file,
 * sometimes also a random batch. The output buffers have exactly the size that is needed. Prints how many samples were made and
 * how many refused.
 *
 * With -DGUIDED and clang's -fsanitize=fuzzer, libFuzzer makes the files instead, by the code that they reach. The jobs follow
 * from a file's bytes. The environment's FUZZ_LIBJPEG names the libjpeg. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "batch/files.h"

#ifdef GUIDED /* many small tries */
enum { MOST_PIXELS = 1 << 12, MOST_SIDE = 24, JOBS = 1, BATCH_OF = 8 };
#else
enum { MOST_PIXELS = 1 << 18, MOST_SIDE = 200, JOBS = 3, BATCH_OF = 4 };
#endif

static uint64_t state;
/* Samples made, samples and files refused, files that their Exif turns, and samples made by an index that may be damaged, by
 * themselves and in a batch. */
static long made, refused, turned, batched;

static uint32_t draw(uint32_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
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
    job.full_width = job.filter ? 1 + (int32_t)draw(MOST_SIDE) : job.width;
    job.full_height = job.filter ? 1 + (int32_t)draw(MOST_SIDE) : job.height;
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

/* Makes a batch of the same file several times, with operators of all kinds. Refused samples are left out. */
static void random_batch(ddlp_context *context, const uint8_t *data, size_t size) {
    enum { FILES = 3, BOXES = 2 };
    const int file = memfd_create("fuzz", MFD_CLOEXEC);
    char path[32];
    const char *paths[FILES] = {path, path, path};
    plan_operator operators[3];
    ddlp_plan plan;
    ddlp_files_job job;
    int64_t keys[FILES], sizes[FILES], offsets[FILES], parts[FILES];
    int32_t descriptors[FILES] = {-1, -1, -1}, shared[FILES], upright[FILES];
    const uint8_t before[64] = {0};
    const size_t offset = draw(2) ? draw(sizeof before) : 0; /* the file is a part of a larger one */
    memset(operators, 0, sizeof operators), memset(&plan, 0, sizeof plan), memset(&job, 0, sizeof job);
    if (file < 0 || write(file, before, offset) != (ssize_t)offset || write(file, data, size) != (ssize_t)size) exit(2);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    plan.height = 1 + (int32_t)draw(MOST_SIDE), plan.width = 1 + (int32_t)draw(MOST_SIDE), plan.channels = draw(4) ? 3 : 1;
    plan.boxes = BOXES, plan.fast = (int32_t)draw(2), plan.operators = operators, plan.operator_count = 3;
    operators[0].kind = (int32_t)draw(draw(2) ? 2 : 6), operators[1].kind = 6 + (int32_t)draw(2), operators[2].kind = 8 + (int32_t)draw(2);
    for (int k = 0; k < 3; k++) {
        operators[k].height = plan.height, operators[k].width = plan.width, operators[k].filter = 2 + (int32_t)draw(2);
        operators[k].chance = 0.5, operators[k].low = draw(100) / 100.0, operators[k].high = operators[k].low + draw(100) / 100.0;
        operators[k].ratio_low = 0.5, operators[k].ratio_high = 2, operators[k].log_low = -0.7, operators[k].log_high = 0.7;
    }
    operators[2].height = BOXES - (operators[2].box = (int32_t)draw(BOXES));
    const int kind = (int)draw(3), element = kind == 1 ? 2 << draw(2) : 1;
    const size_t sample = (size_t)plan.height * (size_t)plan.width * (size_t)plan.channels;
    uint8_t *out = malloc(FILES * sample * (size_t)element), *table = malloc(256 * (size_t)(plan.channels * element));
    int32_t *boxes = malloc(FILES * BOXES * 4 * sizeof *boxes);
    if (!out || !table || !boxes) exit(2);
    memset(table, 7, 256 * (size_t)(plan.channels * element));
    for (int k = 0; k < FILES; k++) {
        keys[k] = (int64_t)draw(1000);
        offsets[k] = (int64_t)offset, parts[k] = draw(2) ? (int64_t)size : -1;
        if (!draw(8)) offsets[k] = (int64_t)draw(200) - 100 + (draw(2) ? 0 : INT64_MAX - 100);
        if (!draw(8)) parts[k] = (int64_t)draw(2000) - 1000 + (draw(2) ? 0 : INT64_MAX - 1000);
        shared[k] = draw(2) ? file : -1, upright[k] = (int32_t)draw(2);
    }
    if (offset || draw(2)) job.offsets = offsets, job.parts = parts, job.shared = shared, job.upright = upright;
    job.plan = &plan, job.count = job.end = FILES, job.indices = job.occurrences = keys, job.paths = paths, job.sizes = sizes;
    job.descriptors = descriptors, job.beneath_count = -1, job.ahead = (int64_t)draw(3), job.enough_ns = 1 + draw(2) * 1000000000;
    job.most_bytes = 1 << 20, job.most_pixels = 1 << 18, job.most_memory = draw(4) ? INT64_MAX : 1;
    job.to.table = kind == 1 ? table : NULL, job.to.element_bytes = element, job.to.channels_last = (int32_t)draw(2);
    job.to.planes = kind == 2;
    for (int64_t first = 0; first < FILES; first = job.next) {
        job.to.out = out + (size_t)first * sample * (size_t)element, job.to.boxes = boxes + first * BOXES * 4;
        const int result = ddlp_files(context, &job);
        made += job.next - first, batched += job.next - first;
        if (result) job.next++, refused++;
    }
    for (int k = 0; k < FILES; k++)
        if (descriptors[k] >= 0) exit(3); /* all must be closed by now */
    close(file);
    free(out), free(table), free(boxes);
}

static void try_file(const uint8_t *data, size_t size) {
    int32_t info[4];
    ddlp_context *context = ddlp_new(); /* a new one, so that its buffers are no larger than this file needs */
    if (!context) exit(2);
    const int taken = ddlp_take(context, data, (int64_t)size, info);
    turned += ddlp_turned(context);
    if (taken || (int64_t)info[0] * info[1] > MOST_PIXELS) refused++;
    else
        for (int jobs = 0; jobs < JOBS; jobs++) {
            if (random_job(context, info)) refused++;
            else made++;
        }
    if (!draw(BATCH_OF)) random_batch(context, data, size);
    ddlp_free(context);
}

#ifdef GUIDED
int LLVMFuzzerInitialize(int *count, char ***arguments) {
    const char *library = getenv("FUZZ_LIBJPEG");
    (void)count, (void)arguments;
    if (!library || ddlp_use_jpeg(library)) exit(2);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    state = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) state = (state ^ data[i]) * 0x100000001B3u;
    state |= 1; /* xorshift stays at 0 */
    try_file(data, size);
    return 0;
}
#else
static uint8_t *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(1 << 20);
    if (!file || !data) exit(2);
    *size = fread(data, 1, 1 << 20, file);
    fclose(file);
    return realloc(data, *size + !*size);
}

/* Changes some bytes, more often in the header; sometimes cuts the tail off. */
static size_t damage(uint8_t *data, size_t size) {
    static const uint8_t favourites[] = {0x00, 0xFF, 0xD9, 0xD0, 0xD8, 0xDA, 0xC4, 0x01, 0x7F, 0x80, 0x11, 0x44};
    for (uint32_t count = draw(6); count > 0; count--) {
        const uint32_t at = draw(draw(2) ? (uint32_t)size : size < 700 ? (uint32_t)size : 700);
        if (draw(2)) data[at] = favourites[draw(sizeof favourites)];
        else data[at] ^= (uint8_t)(1u << draw(8));
    }
    return draw(4) ? size : draw((uint32_t)size);
}

int main(int count, char **arguments) {
    enum { MOST_FILES = 4096 };
    const int rounds = count > 4 ? atoi(arguments[3]) : 0, files = count - 4;
    static uint8_t *contents[MOST_FILES];
    static size_t sizes[MOST_FILES];
    if (files < 1 || files > MOST_FILES || ddlp_use_jpeg(arguments[1])) {
        fprintf(stderr, "fuzz LIBJPEG SEED ROUNDS FILE... (%d at most)\n", MOST_FILES);
        return 2;
    }
    state = 0x9E3779B97F4A7C15u + (uint64_t)atoi(arguments[2]);
    for (int i = 0; i < files; i++) contents[i] = load(arguments[4 + i], &sizes[i]);
    for (int round = 0; round < files + rounds; round++) {
        const int file = round < files ? round : (int)draw((uint32_t)files);
        uint8_t *data = malloc(sizes[file] + !sizes[file]);
        if (!data) return 2;
        memcpy(data, contents[file], sizes[file]);
        try_file(data, round < files ? sizes[file] : damage(data, sizes[file]));
        free(data);
    }
    for (int i = 0; i < files; i++) free(contents[i]);
    printf("%ld made, %ld refused, %ld turned, %ld in a batch\n", made, refused, turned, batched);
    return 0;
}
#endif

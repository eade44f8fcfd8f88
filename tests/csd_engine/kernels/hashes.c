/* Random work for the kernel's loops, for each variant of the processor it runs on: one line of hashes of all results.
 *
 * The lines must agree from variant to variant and from one processor to another. All buffers are exactly as long as
 * promised, so that a sanitizer sees a read or write beyond them. Images go through whole, and in bands of random heights.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch/plan.h"
#include "resample/resample.h"
#include "steps/steps.h"
#include "batch/windows.h"

static uint64_t state, hash;

static uint32_t below(uint32_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 11) % n;
}

static void add(const void *bytes, size_t count) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ p[i]) * 1099511628211u;
}

static uint8_t *random_bytes(size_t count) {
    uint8_t *bytes = malloc(count);
    for (size_t i = 0; i < count; i++) bytes[i] = below(3) ? below(256) : 255 * below(2);
    return bytes;
}

static void check(int fine, const char *what) {
    if (fine) return;
    printf("%s\n", what);
    exit(1);
}

/* Each band in memory of its own, with the promised slack and not a byte more. */
static void in_bands(resample_state *s, const uint8_t *pixels, int64_t stride, const ddlp_job *job) {
    check(resample_begin(s, job) == 0, "begin");
    size_t row = (size_t)s->columns * s->channels;
    for (int done = 0, count; done < s->rows; done += count) {
        count = 1 + below(below(2) ? 3 : 40);
        if (count > s->rows - done) count = s->rows - done;
        uint8_t *band = malloc(row * count + RESAMPLE_SLACK);
        for (int y = 0; y < count; y++)
            memcpy(band + y * row, pixels + (job->top + s->first_row + done + y) * stride +
                                       (job->left + s->first_column) * s->channels, row);
        memset(band + row * count, 255, RESAMPLE_SLACK);
        check(resample_rows(s, band, row, count) == 0, "rows");
        free(band);
    }
    check(resample_rows(s, pixels, stride, 1) == DDLP_JOB, "a row too many was taken");
    check(resample_end(s) == 0, "end");
}

static void one_resample(resample_state *s) {
    static const uint32_t limits[] = {9, 60, 300};
    uint32_t limit = limits[below(3)];
    int width = 1 + below(limit), height = 1 + below(limit);
    ddlp_job job;
    memset(&job, 0, sizeof job);
    job.channels = below(3) ? 3 : 1;
    job.width = 1 + below(width), job.height = 1 + below(height);
    job.left = below(width - job.width + 1), job.top = below(height - job.height + 1);
    job.full_width = below(8) ? 1 + below(limits[below(3)]) : (uint32_t)job.width;
    job.full_height = below(8) ? 1 + below(limits[below(3)]) : (uint32_t)job.height;
    job.out_width = 1 + below(job.full_width), job.out_height = 1 + below(job.full_height);
    job.out_left = below(job.full_width - job.out_width + 1), job.out_top = below(job.full_height - job.out_height + 1);
    job.filter = below(2) ? 2 + below(2) : 8 + below(4); /* the others' coefficients take a sine, or have fewer bits */
    job.flip_horizontal = below(2), job.flip_vertical = below(2), job.vertical_first = below(2);
    job.out_stride = job.out_width * job.channels;
    size_t size = (size_t)job.out_stride * job.out_height;
    uint8_t *pixels = random_bytes((size_t)width * height * job.channels), *whole = malloc(size), *banded = malloc(size);
    job.out = whole;
    check(resample_memory(s, pixels, width * job.channels, &job) == 0, "refused");
    job.out = banded;
    in_bands(s, pixels, width * job.channels, &job);
    check(memcmp(whole, banded, size) == 0, "bands make other pixels");
    add(whole, size);
    free(pixels), free(whole), free(banded);
}

/* An image of 1200 x 1500 to 1000 x 50, the same band over and over: what is held of it must not grow with it. */
static void large(resample_state *s, int vertical_first) {
    enum { WIDTH = 1200, HEIGHT = 1500, BAND = 20, MOST_BYTES = 1 << 20 };
    ddlp_job job;
    memset(&job, 0, sizeof job);
    job.width = WIDTH, job.height = HEIGHT, job.full_width = job.out_width = 1000, job.full_height = job.out_height = 50;
    job.filter = 2, job.channels = 3, job.vertical_first = vertical_first, job.out_stride = 3000;
    uint8_t *out = job.out = malloc(3000 * 50), *band = random_bytes(3 * WIDTH * BAND + RESAMPLE_SLACK);
    check(resample_begin(s, &job) == 0, "begin");
    for (int y = 0; y < HEIGHT; y += BAND) check(resample_rows(s, band, 3 * WIDTH, BAND) == 0, "rows");
    check(resample_end(s) == 0, "end");
    check(s->window_room + s->band_room < MOST_BYTES, "too much of a large image is held");
    add(out, 3000 * 50);
    free(out), free(band);
}

static void one_split(void) {
    size_t images = 1 + below(2), count = 1 + below(40000), channels = 1 + below(4), values = images * count * channels;
    uint8_t *pixels = random_bytes(values), *out = malloc(values);
    ddlp_planes(pixels, images, count, channels, out);
    add(out, values);
    free(pixels), free(out);
}

static void one_table(int element_bytes, int channels_last, size_t channels, size_t count) {
    const size_t images = 1 + below(2), values = images * count * channels;
    uint8_t *pixels = random_bytes(values), *table = random_bytes(256 * channels * element_bytes), *out = NULL;
    check(posix_memalign((void **)&out, 64, values * element_bytes) == 0, "memory");
    ddlp_table(pixels, images, count, channels, table, element_bytes, channels_last, out);
    add(out, values * element_bytes);
    free(pixels), free(table), free(out);
}

static void one_sum(void) {
    int64_t blocks = below(7);
    uint8_t *acc = random_bytes(16384), *data = random_bytes(16384 * blocks + 1);
    ddlp_sum((uint32_t *)acc, data + 1, blocks);
    add(acc, 16384);
    free(acc), free(data);
}

static void one_image_sum(void) {
    int64_t sizes[3] = {below(100), 16384 * (int64_t)below(4), below(70000)};
    uint8_t *images[3];
    uint64_t sums[3];
    for (int i = 0; i < 3; i++) images[i] = random_bytes(sizes[i]);
    ddlp_image_sums((const uint8_t *const *)images, sizes, 3, sums);
    add(sums, sizeof sums);
    for (int i = 0; i < 3; i++) free(images[i]);
}

static void one_read_sum(void) {
    int64_t size = 16384 * (int64_t)below(60) + below(9), blocks = size / 16384;
    uint8_t *acc = random_bytes(16384), *data = random_bytes(size), *out = malloc(size + 16385), *sum = malloc(16384);
    FILE *file = tmpfile();
    fwrite(data, 1, size, file), fflush(file), rewind(file);
    memcpy(sum, acc, 16384);
    ddlp_populate(out, size + 16385);
    /* the file ends before the block does */
    check(ddlp_read_sum(fileno(file), out + 1, blocks + 1, (uint32_t *)acc) == size, "read to the end");
    check(memcmp(data, out + 1, size) == 0, "what was read");
    ddlp_sum((uint32_t *)sum, data, blocks);
    check(memcmp(sum, acc, 16384) == 0, "the sum of what was read");
    add(acc, 16384);
    fclose(file);
    free(acc), free(data), free(out), free(sum);
}

static void one_window(int mode) {
    struct ddlp_windows_job job;
    memset(&job, 0, sizeof job);
    job.height = 1 + below(12), job.width = 1 + below(12), job.channels = 1 + below(4), job.samples = 1;
    job.padding_mode = mode, job.count = 1, job.out_height = 1 + below(12), job.out_width = 1 + below(12);
    job.channel_stride = 1, job.pixel_stride = job.channels, job.line_stride = job.width * job.channels;
    int64_t index = 0, top = (int)below(40) - 20, left = (int)below(40) - 20;
    uint8_t flags[2] = {below(2), below(2)};
    size_t size = (size_t)job.out_height * job.out_width * job.channels;
    uint8_t *rows = random_bytes(job.height * job.line_stride), *fill = random_bytes(job.channels), *out = malloc(size);
    job.rows = rows, job.fill = fill, job.out = out, job.indices = &index, job.tops = &top, job.lefts = &left;
    job.across = flags, job.down = flags + 1;
    check(ddlp_windows(&job) == 0, "window refused");
    add(out, size);
    job.element_bytes = 2 << below(2), job.channels_last = below(2);
    size_t elements = size * job.element_bytes;
    uint8_t *table = random_bytes(256 * job.channels * job.element_bytes), *values = malloc(elements);
    job.table = table, job.out = values;
    check(ddlp_windows(&job) == 0, "window with a table refused");
    add(values, elements);
    free(rows), free(fill), free(out), free(table), free(values);
}

static void one_draw(void) {
    int64_t count = below(10);
    uint8_t *keys = random_bytes(24 * count), *out = malloc(64 * count);
    uint64_t seed = below(1000), epoch = below(1000);
    ddlp_keyed(seed, epoch, (uint64_t *)keys, count, (uint64_t *)out);
    add(out, 64 * count);
    free(keys), free(out);
}

/* Windows whose places are drawn, several groups of streams of them, and boxes. */
static void one_batch(void) {
    struct ddlp_windows_job job;
    ddlp_draws draws;
    ddlp_step steps[14];
    memset(&job, 0, sizeof job), memset(&draws, 0, sizeof draws), memset(steps, 0, sizeof steps);
    job.height = 6, job.width = 5, job.channels = 3, job.samples = 4, job.out_height = 9, job.out_width = 7;
    job.channel_stride = 1, job.pixel_stride = 3, job.line_stride = 15, job.sample_stride = 90, job.count = below(150);
    draws.steps = steps, draws.step_count = below(15), draws.masks = 2, draws.seed = below(1000), draws.epoch = below(1000);
    for (int64_t k = 0; k < draws.step_count; k++) {
        steps[k].kind = (int)below(6), steps[k].chance = below(100) / 100.0;
        for (int i = 0; i < 4; i++) steps[k].numbers[i] = (steps[k].kind == STEP_HOLE && !i ? 0 : 1) + (int64_t)below(2);
    }
    size_t size = (size_t)job.count * 9 * 7 * 3, boxes = (size_t)job.count * 2 * 4 * sizeof(int32_t);
    int64_t *indices = malloc((size_t)job.count * sizeof *indices), *occurrences = malloc((size_t)job.count * sizeof *occurrences);
    for (int64_t i = 0; i < job.count; i++) indices[i] = below(4), occurrences[i] = below(3);
    uint8_t *rows = random_bytes(4 * 90), *fill = random_bytes(3), *out = malloc(size);
    draws.boxes = calloc(boxes + 1, 1), draws.occurrences = occurrences;
    job.rows = rows, job.fill = fill, job.out = out, job.indices = indices, job.draws = &draws;
    check(ddlp_windows(&job) == 0, "drawn windows refused");
    add(out, size);
    add((uint8_t *)draws.boxes, boxes);
    free(indices), free(occurrences), free(rows), free(fill), free(out), free(draws.boxes);
}

/* An image's job and boxes, drawn by operators in any order: some fit the image, others do not. */
static int one_plan(void) {
    static const uint32_t limits[] = {9, 300, 65535};
    plan_operator operators[6];
    ddlp_plan plan;
    ddlp_job job;
    memset(operators, 0, sizeof operators), memset(&plan, 0, sizeof plan);
    plan.operators = operators, plan.operator_count = 1 + below(6), plan.channels = 3, plan.boxes = 3;
    plan.pillow13 = below(2), plan.fast = below(2), plan.height = 1 + below(30), plan.width = 1 + below(30);
    for (int64_t k = 0; k < plan.operator_count; k++) {
        plan_operator *o = operators + k;
        o->kind = below(10), o->filter = 2 + below(2), o->box = below(2), o->chance = below(100) / 100.0;
        o->height = plan.height + below(2) * below(40), o->width = plan.width + below(2) * below(40);
        if (o->kind == PLAN_HOLES) o->height = 1 + below(2);
        o->low = below(100) / 100.0, o->high = o->low + below(100) / 100.0;
        o->ratio_low = (1 + below(100)) / 50.0, o->ratio_high = o->ratio_low * (1 + below(4));
        o->log_low = below(100) / 50.0 - 1, o->log_high = o->log_low + below(100) / 70.0;
    }
    const uint32_t limit = limits[below(3)];
    const int32_t size[2] = {1 + below(limit), 1 + below(limit < 3000 ? limit : 3000)};
    const uint64_t key[4] = {below(1000), below(1000), below(1000), below(3)};
    int32_t *boxes = malloc(12 * sizeof *boxes);
    const int result = ddlp_plan_job(&plan, size, key, &job, boxes);
    if (!result) {
        job.out = NULL, job.out_stride = 0;
        check(job.left >= 0 && job.top >= 0 && job.left + job.width <= size[0] && job.top + job.height <= size[1], "outside");
        add(&job, offsetof(ddlp_job, out)), add(boxes, 12 * sizeof *boxes);
    }
    free(boxes);
    return !result;
}

/* Colours, filters and warps of an image, large enough for whole vectors and for what is left after them. */
static void some_steps(resample_state *resample) {
    static const double factors[] = {0, 0.3, 1, 1.7, -2.5, 40};
    static const int kinds[] = {STEP_BRIGHTNESS, STEP_CONTRAST, STEP_SATURATION, STEP_SHARPNESS, STEP_HUE,       STEP_GRAY,
                                STEP_AUTOCONTRAST, STEP_EQUALIZE, STEP_BLUR,     STEP_AFFINE,    STEP_PERSPECTIVE, STEP_GRID};
    static float weights[] = {0.25f, 0.5f, 0.25f, 0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
    const int32_t size[3] = {1 + (int32_t)below(90), 1 + (int32_t)below(70), below(4) ? 3 : 1};
    uint8_t *pixels = random_bytes((size_t)size[0] * (size_t)size[1] * (size_t)size[2]);
    step_state s;
    memset(&s, 0, sizeof s);
    check(steps_begin(&s, pixels, size) == 0, "begin of steps");
    for (int round = 0; round < 3; round++) {
        ddlp_step_numbers step = {.kind = kinds[below(sizeof kinds / sizeof *kinds)], .data = weights};
        const int warps = step.kind == STEP_AFFINE || step.kind == STEP_PERSPECTIVE;
        step.n[0] = step.kind == STEP_HUE ? below(256) : step.kind == STEP_GRAY ? 1 + 2 * below(2) : factors[below(6)];
        const int whose = (int)below(7); /* Pillow's pixels, or torch's in six ways */
        if (step.kind == STEP_HUE && whose) step.n[0] = (below(101) - 50.0) / 100;
        step.n[step.kind == STEP_AUTOCONTRAST ? 0 : 1] = whose;
        if (step.kind == STEP_BLUR) step.n[0] = 3, step.n[1] = 5;
        if (step.kind == STEP_GRID) {
            step.n[0] = whose ? whose : 1, step.n[1] = below(2), step.n[2] = below(2);
            for (int i = 3; i < 6; i++) step.n[i] = below(256);
            for (int i = 6; i < 12; i++) step.n[i] = (below(4001) - 2000.0) / 1000;
        }
        if (warps) {
            step.n[0] = 1 + below(90), step.n[1] = 1 + below(70), step.n[2] = below(3) ? 2 + below(2) : 0;
            for (int i = 3; i < 6; i++) step.n[i] = below(256);
            for (int i = 6; i < 12; i++) step.n[i] = below(3) ? (below(4001) - 2000.0) / 1000 : i % 4 == 2;
            step.n[8] += below(40), step.n[11] += below(40);
            step.n[12] = (below(2001) - 1000.0) / 100000, step.n[13] = (below(2001) - 1000.0) / 100000;
        }
        const int result = steps_run(&s, resample, &step, 1);
        check(!result || (step.kind == STEP_BLUR && result == DDLP_STEP), "a step was refused"); /* the image may be too small for a blur */
        add(s.image.pixels, (size_t)s.image.width * (size_t)s.image.height * (size_t)s.image.channels);
    }
    steps_free(&s);
    free(pixels);
}

int main(int count, char **arguments) {
    static const char *const variants[] = {"c", "sse2", "avx2", "vnni", "neon"};
    int rounds = count > 1 ? atoi(arguments[1]) : 100;
    for (int variant = 0; variant < 5; variant++) {
        if (ddlp_choose(variants[variant])) continue;
        resample_state s;
        memset(&s, 0, sizeof s);
        state = 88172645463325252u;
        hash = 14695981039346656037u;
        printf("%s", variants[variant]);
        for (int i = 0; i < rounds; i++) one_resample(&s);
        large(&s, 0);
        large(&s, 1);
        for (int i = 0; i < 10 * rounds; i++) some_steps(&s);
        resample_free(&s);
        printf(" %016llx", (unsigned long long)hash);
        for (int i = 0; i < 8; i++) {
            const size_t channels = 1 + below(4);
            one_table(2 << i % 2, i / 2 % 2, channels, 1 + below(40000));
        }
        for (int i = 0; i < 8; i++) /* whole vectors up to the very end; small results, and large ones that pass by the caches */
            one_table(2 << i % 2, 0, i & 2 ? 3 : 1, 64 * (1 + below(9)) + (i & 4 ? 1 << 17 : 0));
        for (int i = 0; i < 4; i++) one_split();
        printf(" %016llx", (unsigned long long)hash);
        for (int i = 0; i < 4; i++) one_sum();
        for (int i = 0; i < 3; i++) one_image_sum();
        for (int i = 0; i < 3; i++) one_read_sum();
        for (int i = 0; i < 4 * rounds; i++) one_window(i % 4);
        for (int i = 0; i < 10; i++) one_draw(), one_batch();
        int planned = 0;
        for (int i = 0; i < 40 * rounds; i++) planned += one_plan();
        check(planned > rounds, "hardly any plan fits");
        printf(" %016llx\n", (unsigned long long)hash);
    }
    return 0;
}

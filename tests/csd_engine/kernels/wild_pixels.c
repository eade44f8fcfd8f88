/* Runs random operators on random images in memory, of all strides, for the sanitizers to watch: wild_pixels SEED ROUNDS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch/pixels.h"

enum { IMAGES = 3, BOXES = 2, MOST_SIDE = 60 };

static uint64_t state;

static uint32_t below(uint32_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % bound);
}

static int32_t side(void) { return 1 + (int32_t)below(below(3) ? MOST_SIDE : 4); }

/* Memory of just the image's size: a byte too far is noticed. */
static uint8_t *random_image(ddlp_image *image) {
    const int channels = below(3) ? 3 : 1, across = below(3) == 0, down = below(3) == 0, last = below(3) == 0;
    const int64_t width = side(), height = side(), plane = width * height, gap = below(4) ? 0 : below(9);
    const int planes = channels == 3 && below(3) == 0;
    const int64_t row = planes ? width : width * channels + gap, bytes = planes ? plane * channels : row * (height - 1) + width * channels;
    uint8_t *memory = malloc((size_t)bytes), *first = memory;
    if (!memory) exit(2);
    for (int64_t i = 0; i < bytes; i++) memory[i] = (uint8_t)below(256);
    *image = (ddlp_image){.row = row, .pixel = planes ? 1 : channels, .channel = planes ? plane : 1,
                          .width = (int32_t)width, .height = (int32_t)height, .channels = channels};
    if (across) first += (width - 1) * image->pixel, image->pixel *= -1;
    if (down) first += (height - 1) * row, image->row *= -1;
    if (last && channels == 3) first += 2 * image->channel, image->channel *= -1;
    image->first = (uint64_t)(uintptr_t)first;
    return memory;
}

static long made, refused;

static void random_batch(ddlp_context *context) {
    ddlp_image images[IMAGES];
    uint8_t *memory[IMAGES];
    int64_t keys[IMAGES];
    plan_operator operators[3];
    ddlp_plan plan = {.operators = operators, .operator_count = 3, .boxes = BOXES};
    memset(operators, 0, sizeof operators);
    plan.height = side(), plan.width = side(), plan.channels = below(3) ? 3 : 1, plan.fast = (int32_t)below(2), plan.pillow13 = (int32_t)below(2);
    operators[0].kind = (int32_t)below(6), operators[1].kind = 6 + (int32_t)below(2), operators[2].kind = 8 + (int32_t)below(2);
    for (int k = 0; k < 3; k++) {
        operators[k].height = plan.height, operators[k].width = plan.width, operators[k].filter = 2 + (int32_t)below(10);
        operators[k].chance = 0.5, operators[k].low = below(100) / 100.0, operators[k].high = operators[k].low + below(100) / 100.0;
        operators[k].ratio_low = 0.5, operators[k].ratio_high = 2, operators[k].log_low = -0.7, operators[k].log_high = 0.7;
    }
    operators[2].height = BOXES - (operators[2].box = (int32_t)below(BOXES));
    for (int k = 0; k < IMAGES; k++) memory[k] = random_image(&images[k]), keys[k] = (int64_t)below(1000);
    const int kind = (int)below(3), element = kind == 1 ? 2 << below(2) : 1;
    const size_t sample = (size_t)plan.height * (size_t)plan.width * (size_t)plan.channels;
    uint8_t *out = malloc(IMAGES * sample * (size_t)element), *table = calloc(256, (size_t)(plan.channels * element));
    int32_t *boxes = malloc(IMAGES * BOXES * 4 * sizeof *boxes);
    if (!out || !table || !boxes) exit(2);
    ddlp_pixels_job job = {.plan = &plan, .seed = below(99), .images = images, .indices = keys, .occurrences = keys, .end = IMAGES,
                           .enough_ns = 1 + below(2) * 1000000000};
    job.to.table = kind == 1 ? table : NULL, job.to.element_bytes = element, job.to.channels_last = (int32_t)below(2);
    job.to.planes = kind == 2;
    for (int64_t first = 0; first < IMAGES; first = job.next) {
        job.to.out = out + (size_t)first * sample * (size_t)element, job.to.boxes = boxes + first * BOXES * 4;
        const int result = ddlp_pixels(context, &job);
        made += job.next - first;
        if (result) job.next++, refused++;
    }
    free(out), free(table), free(boxes);
    for (int k = 0; k < IMAGES; k++) free(memory[k]);
}

int main(int argc, char **argv) {
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    for (long round = argc > 2 ? atol(argv[2]) : 1000; round > 0; round--) {
        ddlp_context *context = ddlp_new(); /* a new one, so that its buffers are no larger than these images need */
        if (!context) exit(2);
        random_batch(context);
        ddlp_free(context);
    }
    printf("%ld done, %ld refused\n", made, refused);
    return 0;
}

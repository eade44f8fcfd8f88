/* Runs random steps with plausible and with wild numbers on random images, for the sanitizers to watch: wild_steps SEED ROUNDS. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "steps/steps.h"

static uint64_t state;

static uint32_t below(uint32_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % bound);
}

static double number(void) {
    static const double wild[] = {-1, 0, 1, 2, 3, 1e9, -1e9, 1e300, -1e300, 0.5, 70000, 65535};
    switch (below(4)) {
    case 0: return wild[below(sizeof wild / sizeof *wild)];
    case 1: return below(20) ? below(60) : NAN;
    default: return below(200) / 10.0 - 4;
    }
}

int main(int argc, char **argv) {
    static float weights[512];
    static uint8_t table[256], out[400 * 400 * 3];
    long done = 0, refused = 0;
    ddlp_context *context = ddlp_new();
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    for (int i = 0; i < 512; i++) weights[i] = 1.0f / 255;
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(255 - i);
    for (long round = argc > 2 ? atol(argv[2]) : 1000; round > 0; round--) {
        const int32_t size[3] = {1 + (int32_t)below(50), 1 + (int32_t)below(50), below(2) ? 3 : 1};
        const size_t bytes = (size_t)size[0] * (size_t)size[1] * (size_t)size[2];
        uint8_t *pixels = malloc(bytes); /* of just this size: a byte too far is noticed */
        ddlp_step_numbers steps[4];
        const int64_t count = 1 + below(4);
        for (size_t i = 0; i < bytes; i++) pixels[i] = (uint8_t)below(256);
        for (int64_t k = 0; k < count; k++) {
            steps[k] = (ddlp_step_numbers){.kind = (int32_t)below(19)};
            for (int n = 0; n < STEP_NUMBERS; n++) steps[k].n[n] = number();
            if (steps[k].kind == STEP_AFFINE || steps[k].kind == STEP_PERSPECTIVE)
                steps[k].n[0] = 1 + below(60), steps[k].n[1] = 1 + below(60), steps[k].n[2] = below(5);
            if (steps[k].kind == STEP_RESIZE) steps[k].n[0] = below(90), steps[k].n[1] = below(90), steps[k].n[2] = 2 + below(2);
            if (steps[k].kind == STEP_GRID) steps[k].n[0] = below(8), steps[k].n[1] = below(3);
            else if (below(2)) steps[k].n[steps[k].kind == STEP_AUTOCONTRAST ? 0 : 1] = below(8); /* whose pixels */
            if (steps[k].kind == STEP_BLUR) steps[k].n[0] = below(80), steps[k].n[1] = below(80);
            steps[k].data = steps[k].kind == STEP_TABLE ? (const void *)table : weights;
        }
        const int32_t made[3] = {size[0], size[1], size[2]};
        if (ddlp_steps(context, pixels, size, steps, count, out, made, 400 * 3)) refused++;
        else done++;
        free(pixels);
    }
    ddlp_free(context);
    printf("%ld done, %ld refused\n", done, refused);
    return 0;
}

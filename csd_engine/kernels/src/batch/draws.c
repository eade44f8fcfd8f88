#include "batch/draws.h"

#include <string.h>

enum { TOGETHER = 64, NUMBERS = 8 /* of a digest */ };

/* The streams of some samples. All of them have drawn the same number of numbers. */
typedef struct {
    uint64_t seed, epoch;
    int64_t count, used;
    uint64_t keys[TOGETHER][3], numbers[TOGETHER][NUMBERS];
} streams;

/* The place of the next number among each sample's numbers. */
static int64_t next_number(streams *s) {
    if (s->used % NUMBERS == 0) {
        for (int64_t i = 0; i < s->count; i++) s->keys[i][2] = (uint64_t)(s->used / NUMBERS);
        ddlp_keyed(s->seed, s->epoch, s->keys[0], s->count, s->numbers[0]);
    }
    return s->used++ % NUMBERS;
}

/* (number * bound) >> 64, for a bound below 2**32. */
static int64_t below(uint64_t number, uint64_t bound) {
    return (int64_t)(((number >> 32) * bound + ((number & 0xFFFFFFFF) * bound >> 32)) >> 32);
}

/* Moves by a number below `bound`, or by bound - 1 minus the number if that axis is mirrored. */
static void move_by_draws(streams *s, int64_t bound, int64_t *begins, const uint8_t *mirrored) {
    const int64_t at = next_number(s);
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t drawn = below(s->numbers[i][at], (uint64_t)bound);
        begins[i] += mirrored[i] ? bound - 1 - drawn : drawn;
    }
}

static void mirror_by_draws(streams *s, double chance, uint8_t *mirrored) {
    const int64_t at = next_number(s);
    for (int64_t i = 0; i < s->count; i++) mirrored[i] ^= (double)(s->numbers[i][at] >> 11) * 0x1p-53 < chance;
}

/* Draws one axis of each sample's box; `stride`: from one sample's box to the next sample's. */
static void clip_by_draws(streams *s, int64_t half, int64_t length, int32_t *low, int64_t stride) {
    const int64_t at = next_number(s);
    for (int64_t i = 0; i < s->count; i++, low += stride) {
        const int64_t centre = below(s->numbers[i][at], (uint64_t)length);
        low[0] = (int32_t)(centre > half ? centre - half : 0);
        low[2] = (int32_t)(centre + half < length ? centre + half : length);
    }
}

static void run_step(const ddlp_step *step, streams *s, int64_t *tops, int64_t *lefts, uint8_t *across, uint8_t *down,
                     int32_t *boxes, int64_t masks) {
    const int64_t *n = step->numbers;
    switch (step->kind) {
    case STEP_MOVE:
        for (int64_t i = 0; i < s->count; i++) tops[i] += n[down[i]], lefts[i] += n[2 + across[i]];
        break;
    case STEP_ROW: move_by_draws(s, n[0], tops, down); break;
    case STEP_COLUMN: move_by_draws(s, n[0], lefts, across); break;
    case STEP_ACROSS: mirror_by_draws(s, step->chance, across); break;
    case STEP_DOWN: mirror_by_draws(s, step->chance, down); break;
    default:
        clip_by_draws(s, n[1], n[2], boxes + 4 * n[0], 4 * masks);
        clip_by_draws(s, n[1], n[3], boxes + 4 * n[0] + 1, 4 * masks);
    }
}

static int is_known(const ddlp_step *step, const ddlp_draws *draws) {
    const int64_t *n = step->numbers, most = (int64_t)1 << 32;
    switch (step->kind) {
    case STEP_MOVE: case STEP_ACROSS: case STEP_DOWN: return 1;
    case STEP_ROW: case STEP_COLUMN: return n[0] >= 1 && n[0] < most;
    case STEP_HOLE:
        return draws->boxes && n[0] >= 0 && n[0] < draws->masks && n[1] >= 0 && n[2] >= 1 && n[2] < most && n[3] >= 1 && n[3] < most;
    default: return 0;
    }
}

int draws_run(const ddlp_draws *draws, const int64_t *indices, int64_t count, int64_t *tops, int64_t *lefts, uint8_t *across,
              uint8_t *down) {
    for (int64_t k = 0; k < draws->step_count; k++)
        if (!is_known(draws->steps + k, draws)) return DDLP_STEP;
    memset(tops, 0, (size_t)count * sizeof *tops);
    memset(lefts, 0, (size_t)count * sizeof *lefts);
    memset(across, 0, (size_t)count);
    memset(down, 0, (size_t)count);
    for (int64_t begin = 0; begin < count; begin += TOGETHER) {
        streams s = {.seed = draws->seed, .epoch = draws->epoch, .count = count - begin < TOGETHER ? count - begin : TOGETHER};
        for (int64_t i = 0; i < s.count; i++) {
            s.keys[i][0] = (uint64_t)indices[begin + i];
            s.keys[i][1] = (uint64_t)draws->occurrences[begin + i];
        }
        int32_t *boxes = draws->boxes ? draws->boxes + 4 * draws->masks * begin : NULL;
        for (int64_t k = 0; k < draws->step_count; k++)
            run_step(draws->steps + k, &s, tops + begin, lefts + begin, across + begin, down + begin, boxes, draws->masks);
    }
    return 0;
}

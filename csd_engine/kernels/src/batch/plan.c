#include "batch/plan.h"

#include <math.h>
#include <string.h>

enum {
    MAX_SIDE = 65535, MAX_PIXELS = 1 << 28, /* csd_engine/transforms/checks.py */
    NUMBERS = 8,                            /* of a digest */
    ATTEMPTS = 10                           /* torchvision's */
};

/* The constants of keyed.py. The operations have the same order too, so the bits are the same everywhere. */
static const double LN2_HIGH = 0x1.62e42fee00000p-1, LN2_LOW = 0x1.a39ef35793c76p-33, INVERSE_LN2 = 0x1.71547652b82fep+0;

/* The random numbers of one sample. */
typedef struct {
    uint64_t seed, epoch, key[3], numbers[NUMBERS];
    int used;
} stream;

static uint64_t next_number(stream *s) {
    if (s->used == NUMBERS) {
        ddlp_keyed(s->seed, s->epoch, s->key, 1, s->numbers);
        s->key[2]++;
        s->used = 0;
    }
    return s->numbers[s->used++];
}

static double uniform(stream *s, double low, double high) {
    return low + (high - low) * ((double)(next_number(s) >> 11) * 0x1p-53);
}

/* In single precision, as torch draws. */
static double single(stream *s, double low, double high) { return (float)uniform(s, low, high); }

/* A number below `bound`, which is itself below 2**32. */
static int32_t below(stream *s, int32_t bound) {
    const uint64_t number = next_number(s), low = (number & 0xFFFFFFFF) * (uint64_t)bound >> 32;
    return (int32_t)(((number >> 32) * (uint64_t)bound + low) >> 32);
}

static double exponential(double x) {
    if (x < -745.2) return 0;
    const double k = floor(fmin(x, 800) * INVERSE_LN2 + 0.5), r = (x - k * LN2_HIGH) - k * LN2_LOW;
    double total = 1;
    for (int n = 14; n > 0; n--) total = 1 + r * total / n;
    return ldexp(total, (int)k);
}

/* The plan of one image while it is drawn. */
typedef struct {
    ddlp_job *job;
    int32_t height, width; /* of the image */
    int crops;             /* before the resize */
} canvas;

static int resized(canvas *c, int32_t height, int32_t width) {
    if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE || (int64_t)height * width > MAX_PIXELS) return DDLP_JOB;
    c->height = height, c->width = width;
    return 0;
}

static int crop(canvas *c, int32_t top, int32_t left, int32_t height, int32_t width) {
    ddlp_job *job = c->job;
    if (!top && !left && height == c->height && width == c->width) return 0;
    /* The crop is given in the flipped image; the job has its place in the image before the flip. */
    job->out_left += job->flip_horizontal ? c->width - left - width : left;
    job->out_top += job->flip_vertical ? c->height - top - height : top;
    c->crops++;
    return resized(c, height, width);
}

/* Makes the part that is kept so far the job's crop, for an image that is not yet resized. */
static void keep(canvas *c) {
    ddlp_job *job = c->job;
    job->left += job->out_left, job->top += job->out_top;
    job->out_left = job->out_top = 0;
    job->full_width = job->width = c->width, job->full_height = job->height = c->height;
}

static int resize(canvas *c, int32_t height, int32_t width, int32_t filter) {
    ddlp_job *job = c->job;
    if (height == c->height && width == c->width) return 0;
    if (job->filter || job->flip_horizontal || job->flip_vertical) return DDLP_JOB;
    keep(c);
    job->filter = filter, job->full_height = height, job->full_width = width;
    return resized(c, height, width);
}

/* Draws the sides of a rectangle, for RandomResizedCrop and RandomErasing. */
static void draw_sides(stream *s, const plan_operator *o, const canvas *c, double *of_ratio, double *of_inverse) {
    const double area = (double)((int64_t)c->height * c->width) * single(s, o->low, o->high);
    const double ratio = (float)exponential(single(s, o->log_low, o->log_high));
    *of_ratio = rint(sqrt(area * ratio)), *of_inverse = rint(sqrt(area / ratio));
}

static int random_crop(canvas *c, stream *s, int32_t height, int32_t width) {
    const int32_t top = below(s, c->height - height + 1), left = below(s, c->width - width + 1);
    return crop(c, top, left, height, width);
}

static int crop_by_ratio(canvas *c, const plan_operator *o, stream *s) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        double width, height;
        draw_sides(s, o, c, &width, &height);
        if (width > 0 && width <= c->width && height > 0 && height <= c->height)
            return random_crop(c, s, (int32_t)height, (int32_t)width);
    }
    int32_t height = c->height, width = c->width;
    const double ratio = (double)width / height;
    if (ratio < o->ratio_low) height = (int32_t)rint(width / o->ratio_low);
    else if (ratio > o->ratio_high) width = (int32_t)rint(height * o->ratio_high);
    return crop(c, (c->height - height) / 2, (c->width - width) / 2, height, width);
}

/* torchvision's _compute_resized_output_size. */
static int resize_side(canvas *c, const plan_operator *o) {
    const int64_t least = c->height < c->width ? c->height : c->width, most = c->height < c->width ? c->width : c->height;
    int64_t shorter = o->height, longer;
    if (o->kind == PLAN_LONGER) {
        shorter = (int64_t)((double)(o->width * least) / (double)most), longer = o->width;
    } else {
        longer = (int64_t)((double)(shorter * most) / (double)least);
        if (o->width && longer > o->width) shorter = (int64_t)((double)(o->width * shorter) / (double)longer), longer = o->width;
    }
    if (longer > MAX_SIDE) return DDLP_JOB;
    const int upright = c->width <= c->height;
    return resize(c, (int32_t)(upright ? longer : shorter), (int32_t)(upright ? shorter : longer), o->filter);
}

/* Half of the number, rounded half to even. */
static int32_t middle(int32_t left_over) { return left_over / 2 + (left_over % 4 == 3); }

static void place(int32_t *box, int32_t top, int32_t left, int32_t bottom, int32_t right) {
    box[0] = top, box[1] = left, box[2] = bottom, box[3] = right;
}

static void holes(const canvas *c, const plan_operator *o, stream *s, int32_t *box) {
    const int32_t half = o->width / 2;
    for (int32_t hole = 0; hole < o->height; hole++, box += 4) {
        const int32_t y = below(s, c->height), x = below(s, c->width);
        place(box, y > half ? y - half : 0, x > half ? x - half : 0, y + half < c->height ? y + half : c->height,
              x + half < c->width ? x + half : c->width);
    }
}

static void erase(const canvas *c, const plan_operator *o, stream *s, int32_t *box) {
    if (!(uniform(s, 0, 1) < o->chance)) return;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        double height, width;
        draw_sides(s, o, c, &height, &width);
        if (height < c->height && width < c->width) {
            const int32_t h = (int32_t)height, w = (int32_t)width, top = below(s, c->height - h + 1);
            const int32_t left = below(s, c->width - w + 1);
            place(box, top, left, top + h, left + w);
            return;
        }
    }
}

static int draw(canvas *c, const plan_operator *o, stream *s, int32_t *boxes) {
    int result;
    switch (o->kind) {
    case PLAN_RESIZED_CROP:
        result = crop_by_ratio(c, o, s);
        return result ? result : resize(c, o->height, o->width, o->filter);
    case PLAN_RESIZE: return resize(c, o->height, o->width, o->filter);
    case PLAN_SHORTER: case PLAN_LONGER: return resize_side(c, o);
    case PLAN_CENTER_CROP:
        if (o->height > c->height || o->width > c->width) return DDLP_JOB; /* it needs borders, which are left to Pillow */
        return crop(c, middle(c->height - o->height), middle(c->width - o->width), o->height, o->width);
    case PLAN_CROP:
        if (o->height > c->height || o->width > c->width) return DDLP_JOB;
        return random_crop(c, s, o->height, o->width);
    case PLAN_ACROSS: c->job->flip_horizontal ^= uniform(s, 0, 1) < o->chance; return 0;
    case PLAN_DOWN: c->job->flip_vertical ^= uniform(s, 0, 1) < o->chance; return 0;
    case PLAN_HOLES: holes(c, o, s, boxes + 4 * o->box); return 0;
    case PLAN_ERASE: erase(c, o, s, boxes + 4 * o->box); return 0;
    default: return DDLP_STEP;
    }
}

static int32_t up(int32_t number, int32_t by) { return (number + by - 1) / by; }

/* decode="fast" (reduced.py): chooses the largest reduction that leaves the crop at least as large as its resized result. */
static void reduce(ddlp_job *job, int crops) {
    if (!job->filter || crops > 1) return;
    for (int32_t by = 8; by > 1; by /= 2) {
        if (job->width < by * job->full_width || job->height < by * job->full_height) continue;
        const int32_t right = up(job->left + job->width, by), bottom = up(job->top + job->height, by);
        job->reduce = by;
        job->left /= by, job->top /= by;
        job->width = right - job->left, job->height = bottom - job->top;
        if (job->width == job->full_width && job->height == job->full_height) job->filter = DDLP_NO_RESIZE;
        return;
    }
}

int ddlp_plan_job(const ddlp_plan *plan, const int32_t size[2], const uint64_t key[4], ddlp_job *job, int32_t *boxes) {
    stream s = {.seed = key[0], .epoch = key[1], .key = {key[2], key[3], 0}, .used = NUMBERS};
    canvas c = {.job = job};
    memset(job, 0, sizeof *job);
    if (plan->boxes) memset(boxes, 0, (size_t)plan->boxes * 4 * sizeof *boxes);
    int before = -1; /* crops before the resize */
    if (resized(&c, size[1], size[0])) return DDLP_JOB;
    job->reduce = 1, job->channels = plan->channels;
    keep(&c);
    for (int64_t k = 0; k < plan->operator_count; k++) {
        const int result = draw(&c, plan->operators + k, &s, boxes);
        if (result) return result;
        if (job->filter && before < 0) before = c.crops;
    }
    job->out_width = c.width, job->out_height = c.height;
    if (c.width != plan->width || c.height != plan->height) return DDLP_JOB;
    if (plan->fast) reduce(job, before);
    if (!job->filter) { /* without a resize the kept part is the crop */
        job->left += job->out_left, job->top += job->out_top, job->out_left = job->out_top = 0;
        job->width = job->full_width = job->out_width, job->height = job->full_height = job->out_height;
    } else if (plan->pillow13) {
        const int32_t lost = job->height - job->full_height;
        job->vertical_first = lost > 0 && lost > 2 * (job->width - job->full_width);
    }
    return 0;
}

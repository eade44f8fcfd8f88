/* Contexts, and the calls on them: read a file, look at its header, make a sample. */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64 /* files of more than 2 GiB on 32-bit computers too */
#undef _TIME_BITS
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "ddlp.h"
#include "jpeg/decoder.h"
#include "memory.h"
#include "resample/resample.h"
#include "steps/steps.h"

#if DDLP_SLACK < RESAMPLE_SLACK
#error "bands of decoded rows must be followed by as many bytes as resample.c may read"
#endif

enum { KEPT_BYTES = 4 << 20 /* of a file's buffer: up to this size it is kept for a next file of any size */ };

struct ddlp_context {
    uint8_t *content;
    int64_t size;
    size_t room;
    int32_t info[4]; /* of the content; zeros: the kernel does not take it */
    decoder_memory memory;
    resample_state resample;
    step_state steps;
    uint8_t *scratch;
    size_t scratch_room;
};

/* Set once by ddlp_use_jpeg, before other threads use the library. Without a layout: not yet. */
static jpeg_library jpeg;

int ddlp_abi(void) { return DDLP_ABI; }

const char *ddlp_sources(void) { return DDLP_SOURCES; }

const char *ddlp_made(void) { return DDLP_ORIGIN "compiled with " DDLP_COMPILER; }

int ddlp_use_jpeg(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return -ENOENT;
    /* The library is never closed: decoding needs it until the process ends. */
    jpeg_library loaded;
    memset(&loaded, 0, sizeof loaded);
    const int result = decoder_load(library, &loaded);
    if (!result) jpeg = loaded;
    return result;
}

ddlp_context *ddlp_new(void) {
    ddlp_context *context = calloc(1, sizeof(ddlp_context));
    if (context) context->memory.entropy = entropy_new();
    return context;
}

void ddlp_free(ddlp_context *context) {
    if (!context) return;
    resample_free(&context->resample);
    steps_free(&context->steps);
    free(context->memory.bytes);
    entropy_free(context->memory.entropy);
    progressive_free(context->memory.progressive);
    free(context->content);
    free(context->scratch);
    free(context);
}

/* Makes room for a file of this size. The context's former content is lost. A large file's memory is not kept for small
 * ones. */
static int make_room(ddlp_context *context, int64_t size) {
    context->size = 0;
    memset(context->info, 0, sizeof context->info);
    if (size < 0) return -EINVAL;
    if ((uint64_t)size > SIZE_MAX / 2) return -ENOMEM;
    if (context->room > KEPT_BYTES && (size_t)size < context->room / 4) {
        free(context->content);
        context->content = NULL;
        context->room = 0;
    }
    return grow((void **)&context->content, &context->room, (size_t)size);
}

static int look(ddlp_context *context, int32_t info[4]) {
    const int result = jpeg_header(context->content, (size_t)context->size, info);
    if (!result) memcpy(context->info, info, sizeof context->info);
    return result;
}

int ddlp_read(ddlp_context *context, int fd, int64_t offset, int64_t size, int32_t info[4]) {
    int result = make_room(context, size);
    if (result) return result;
    if (offset < 0 || offset > INT64_MAX - size) return -EINVAL;
    while (context->size < size) {
        const ssize_t got =
            pread(fd, context->content + context->size, (size_t)(size - context->size), (off_t)(offset + context->size));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (!got) return DDLP_DAMAGED; /* the file became shorter meanwhile */
        context->size += got;
    }
    return look(context, info);
}

int ddlp_take(ddlp_context *context, const uint8_t *data, int64_t size, int32_t info[4]) {
    const int result = make_room(context, size);
    if (result) return result;
    if (size) memcpy(context->content, data, (size_t)size);
    context->size = size;
    return look(context, info);
}

int ddlp_turned(const ddlp_context *context) {
    return !context->info[0] || jpeg_turned(context->content, (size_t)context->size);
}

void context_forget(ddlp_context *context) {
    memset(context->info, 0, sizeof context->info);
    context->size = 0;
}

uint8_t *context_scratch(ddlp_context *context, size_t bytes) {
    return grow((void **)&context->scratch, &context->scratch_room, bytes) ? NULL : context->scratch;
}

uint8_t *context_band(ddlp_context *context, size_t bytes) {
    return grow((void **)&context->memory.bytes, &context->memory.room, bytes) ? NULL : context->memory.bytes;
}

resample_state *context_resample(ddlp_context *context) { return &context->resample; }

const uint8_t *ddlp_content(const ddlp_context *context, int64_t *size) {
    *size = context->size;
    return context->content;
}

int ddlp_own_entropy(const ddlp_context *context) { return context->memory.own_entropy; }

static int take_rows(void *resample, const uint8_t *rows, int64_t stride, int count) {
    return resample_rows(resample, rows, stride, count);
}

int ddlp_sample(ddlp_context *context, const ddlp_job *job) {
    const int reduce = job->reduce;
    const int32_t *info = context->info;
    region wanted;
    int result;
    if (!jpeg.layout) return DDLP_NO_LIBJPEG;
    if (!info[0]) return DDLP_HEADER;
    if ((reduce != 1 && reduce != 2 && reduce != 4 && reduce != 8) || (job->channels != 3 && job->channels != 1)) return DDLP_JOB;
    if (job->channels == 1 && info[2] != 1) return DDLP_JOB; /* Pillow converts colours to grey in another way than libjpeg */
    if (job->left < 0 || job->top < 0 || job->width < 1 || job->height < 1 ||
        job->width > (info[0] + reduce - 1) / reduce - job->left || job->height > (info[1] + reduce - 1) / reduce - job->top)
        return DDLP_JOB;
    result = resample_begin(&context->resample, job);
    if (result) return result;
    wanted.left = job->left + context->resample.first_column;
    wanted.width = context->resample.columns;
    wanted.top = job->top + context->resample.first_row;
    wanted.height = context->resample.rows;
    wanted.reduce = reduce;
    wanted.channels = job->channels;
    wanted.several_scans = info[3];
    result = decoder_decode(&jpeg, context->content, (size_t)context->size, &wanted, &context->memory, take_rows, &context->resample);
    if (!result) result = resample_end(&context->resample);
    return result;
}

int ddlp_resample(ddlp_context *context, const uint8_t *pixels, int64_t stride, const ddlp_job *job) {
    return resample_memory(&context->resample, pixels, stride, job);
}

int ddlp_steps(ddlp_context *context, const uint8_t *pixels, const int32_t size[3], const ddlp_step_numbers *steps, int64_t count,
               uint8_t *out, const int32_t out_size[3], int64_t out_stride) {
    int result = steps_begin(&context->steps, pixels, size);
    if (!result) result = steps_run(&context->steps, &context->resample, steps, count);
    if (result) return result;
    const picture *image = &context->steps.image;
    if (image->width != out_size[0] || image->height != out_size[1] || image->channels != out_size[2]) return DDLP_STEP;
    const size_t row = (size_t)image->width * (size_t)image->channels;
    for (int32_t y = 0; y < image->height; y++) memcpy(out + y * out_stride, image->pixels + (size_t)y * row, row);
    return 0;
}

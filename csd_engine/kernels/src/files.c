#define _GNU_SOURCE
#undef _TIME_BITS /* with 64 of them clock_gettime has another name, which older C libraries do not know */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "context.h"

enum { COEFFICIENT_BYTES = 6 /* a pixel's three; csd_engine/prepare/sample.py counts the same */ };

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether what was opened lies where it may: its real name, not what its path says a moment later. */
static int lies_beneath(const ddlp_files_job *job, int descriptor) {
    char link[32], real[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, real, sizeof real);
    if (length < 0 || length > PATH_MAX) return 0;
    for (int64_t k = 0; k < job->beneath_count; k++) {
        const size_t prefix = strlen(job->beneath[k]);
        if ((size_t)length >= prefix && !memcmp(real, job->beneath[k], prefix)) return 1;
    }
    return 0;
}

/* Open a file of the job; -errno. */
static int open_one(ddlp_files_job *job, int64_t k) {
    const int descriptor = open(job->paths[k], O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us */
    if (descriptor < 0) return -errno;
    /* Not fstat: a cross-compiled kernel must not name it, C libraries before glibc 2.33 have no such symbol. What is no regular
     * file has no end, one far away, or cannot be read. */
    const off_t size = lseek(descriptor, 0, SEEK_END);
    int result = size < 0 ? -errno : size > job->most_bytes ? -EFBIG : 0;
    if (!result && job->beneath_count >= 0 && !lies_beneath(job, descriptor)) result = -EXDEV;
    if (result) {
        close(descriptor);
        return result;
    }
    job->descriptors[k] = descriptor;
    job->sizes[k] = size;
    return 0;
}

/* In their order: one that cannot be opened keeps those behind it waiting, which would take the descriptor that it needs at its
 * turn. -errno of the file whose turn it is. */
static int open_ahead(ddlp_files_job *job) {
    int64_t end = job->next + job->ahead + 1;
    if (end > job->count) end = job->count;
    if (job->opened < job->next) job->opened = job->next; /* Pillow's turn is over */
    for (; job->opened < end; job->opened++) {
        const int result = open_one(job, job->opened);
        if (result) return job->opened == job->next ? result : 0;
        if (job->opened > job->next)
            (void)posix_fadvise(job->descriptors[job->opened], 0, 0, POSIX_FADV_WILLNEED); /* some file systems have none */
    }
    return 0;
}

/* The file whose turn it is, into the context; closed in any case. */
static int read_next(ddlp_context *context, ddlp_files_job *job, int32_t info[4]) {
    const int64_t k = job->next;
    int result = open_ahead(job);
    if (result) return result;
    result = ddlp_read(context, job->descriptors[k], job->sizes[k], info);
    close(job->descriptors[k]);
    job->descriptors[k] = -1;
    return result;
}

/* It is the call's `nth`. */
static int make_next(ddlp_context *context, const ddlp_files_job *job, int64_t nth, const int32_t info[4]) {
    const ddlp_plan *plan = job->plan;
    const int64_t k = job->next, pixels = (int64_t)plan->height * plan->width, bytes = pixels * plan->channels;
    const int64_t image = (int64_t)info[0] * info[1];
    const uint64_t key[4] = {job->seed, job->epoch, (uint64_t)job->indices[k], (uint64_t)job->occurrences[k]};
    ddlp_job one;
    if (image > job->most_pixels) return DDLP_JOB;
    int result = ddlp_plan_job(plan, info, key, &one, job->boxes ? job->boxes + 4 * plan->boxes * nth : NULL);
    if (result) return result;
    if (info[3] && image * COEFFICIENT_BYTES >= job->most_memory) return DDLP_LARGE;
    const int at_once = !job->table && !job->planes;
    one.out = at_once ? job->out + nth * bytes : context_scratch(context, (size_t)bytes);
    one.out_stride = (int64_t)plan->width * plan->channels;
    if (!one.out) return -ENOMEM;
    result = ddlp_sample(context, &one);
    if (result || at_once) return result;
    if (job->table)
        ddlp_table(one.out, 1, pixels, plan->channels, job->table, job->element_bytes, job->channels_last,
                   job->out + nth * bytes * job->element_bytes);
    else
        ddlp_planes(one.out, 1, pixels, plan->channels, job->out + nth * bytes);
    return 0;
}

int ddlp_files(ddlp_context *context, ddlp_files_job *job) {
    const int64_t began = now_ns(), first = job->next;
    while (job->next < job->end) {
        int32_t info[4];
        const int64_t before = now_ns();
        if (job->next > first && before - began >= job->enough_ns) return 0;
        int result = read_next(context, job, info);
        job->reading_ns += now_ns() - before;
        if (!result) result = make_next(context, job, job->next - first, info);
        if (result) return result;
        job->next++;
    }
    return 0;
}

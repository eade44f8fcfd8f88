#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64 /* files of more than 2 GiB on 32-bit computers too */
#include "batch/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "context.h"

enum { COEFFICIENT_BYTES = 6 /* of a pixel's three; the same as in csd_engine/prepare/sample.py */ };

/* Whether an opened file lies in an allowed place. Its real name is checked: the path may lead to another file a moment
 * later. */
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

static int64_t offset_of(const ddlp_files_job *job, int64_t k) { return job->offsets ? job->offsets[k] : 0; }

/* The descriptor of a file that is open for several samples, or -1. */
static int shared_of(const ddlp_files_job *job, int64_t k) { return job->offsets ? job->shared[k] : -1; }

/* The number of bytes of a sample in a file of `size` bytes; -errno. */
static int64_t bytes_of(const ddlp_files_job *job, int64_t k, int64_t size) {
    const int64_t offset = offset_of(job, k), part = job->offsets ? job->parts[k] : -1;
    if (offset < 0 || offset > size || part > size - offset || part < -1) return -ERANGE;
    const int64_t bytes = part < 0 ? size - offset : part;
    return bytes > job->most_bytes ? -EFBIG : bytes;
}

/* Opens a file of the job; 0, or -errno. */
static int open_one(ddlp_files_job *job, int64_t k) {
    const int shared = shared_of(job, k);
    /* O_NONBLOCK: a FIFO must not block us. */
    const int descriptor = shared >= 0 ? shared : open(job->paths[k], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return -errno;
    /* fstat is not used: C libraries before glibc 2.33 have no such symbol, so a cross-compiled kernel must not need it. A file
     * that is not regular has no end, or one far away, or can't be read. */
    const off_t size = lseek(descriptor, 0, SEEK_END);
    const int64_t bytes = size < 0 ? -errno : bytes_of(job, k, size);
    int result = bytes < 0 ? (int)bytes : 0;
    if (!result && shared < 0 && job->beneath_count >= 0 && !lies_beneath(job, descriptor)) result = -EXDEV;
    if (result) {
        if (shared < 0) close(descriptor);
        return result;
    }
    if (shared < 0) job->descriptors[k] = descriptor;
    job->sizes[k] = bytes;
    return 0;
}

/* The descriptor of a file that was opened. */
static int descriptor_of(const ddlp_files_job *job, int64_t k) {
    const int shared = shared_of(job, k);
    return shared >= 0 ? shared : job->descriptors[k];
}

/* Asks the disk for a file that is opened ahead. Some file systems do not support it. */
static void ask_for(const ddlp_files_job *job, int64_t k) {
    (void)posix_fadvise(descriptor_of(job, k), (off_t)offset_of(job, k), (off_t)job->sizes[k], POSIX_FADV_WILLNEED);
}

/* Opens the next files in their order, up to one that can't be opened: later files could take the descriptor that it needs
 * at its turn. 0, or -errno of the file whose turn it is. */
static int open_ahead(ddlp_files_job *job) {
    int64_t end = job->next + job->ahead + 1;
    if (end > job->count) end = job->count;
    if (job->opened < job->next) job->opened = job->next; /* Pillow's turn is over */
    for (; job->opened < end; job->opened++) {
        const int64_t k = job->opened;
        const int result = open_one(job, k);
        if (result) return k == job->next ? result : 0;
        if (k > job->next) ask_for(job, k);
    }
    return 0;
}

static void close_next(ddlp_files_job *job) {
    int32_t *descriptor = &job->descriptors[job->next];
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}

/* Makes the sample of the file that was read, the `nth` of this call. */
static int sample_next(ddlp_context *context, ddlp_files_job *job, int64_t nth, const int32_t info[4]) {
    const int64_t k = job->next, image = (int64_t)info[0] * info[1];
    const uint64_t key[4] = {job->seed, job->epoch, (uint64_t)job->indices[k], (uint64_t)job->occurrences[k]};
    ddlp_job one;
    if (job->offsets && job->upright[k] && ddlp_turned(context)) return DDLP_KIND;
    if (image > job->most_pixels) return DDLP_JOB;
    int result = samples_draw(context, &job->to, job->plan, info, key, nth, &one);
    if (result) return result;
    if (info[3] && image * COEFFICIENT_BYTES >= job->most_memory) return DDLP_LARGE;
    result = ddlp_sample(context, &one);
    if (result) return result;
    samples_finish(&job->to, job->plan, nth, &one);
    return 0;
}

/* Reads the file whose turn it is into the context, and makes its sample. */
static int make_next(ddlp_context *context, ddlp_files_job *job, int64_t nth) {
    const int64_t k = job->next, before = now_ns();
    int32_t info[4];
    int result = open_ahead(job);
    if (!result) result = ddlp_read(context, descriptor_of(job, k), offset_of(job, k), job->sizes[k], info);
    close_next(job);
    job->reading_ns += now_ns() - before;
    return result ? result : sample_next(context, job, nth, info);
}

int ddlp_files(ddlp_context *context, ddlp_files_job *job) {
    const int64_t began = now_ns(), first = job->next;
    int result = 0;
    context_forget(context);
    while (!result && job->next < job->end && (job->next == first || now_ns() - began < job->enough_ns)) {
        result = make_next(context, job, job->next - first);
        close_next(job);
        if (!result) job->next++;
    }
    return result;
}

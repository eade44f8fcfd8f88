#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64 /* files of more than 2 GiB on 32-bit computers too */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* Finds the time of a file's last change, nanoseconds since 1970. A result of 0: the system does not tell it. Older C libraries
 * have no statx. */
static int changed_at(int descriptor, uint64_t *changed) {
#ifdef SYS_statx
    enum { STATX_MTIME = 0x40 };
    struct {
        uint32_t mask, block_bytes;
        uint64_t before[13];
        int64_t seconds;
        uint32_t nanoseconds;
        uint32_t after[33];
    } found; /* the kernel's struct statx */
    if (!syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, STATX_MTIME, &found) && found.mask & STATX_MTIME) {
        *changed = (uint64_t)found.seconds * 1000000000 + found.nanoseconds;
        return 1;
    }
#endif
    (void)descriptor, (void)changed;
    return 0;
}

/* The descriptor of a file that was opened. */
static int descriptor_of(const ddlp_files_job *job, int64_t k) {
    const int shared = shared_of(job, k);
    return shared >= 0 ? shared : job->descriptors[k];
}

static int has_index(const ddlp_files_job *job, int64_t k) { return job->indexes && job->indexes[k]; }

static void key_of(const ddlp_files_job *job, int64_t k, uint64_t key[4]) {
    key[0] = job->seed, key[1] = job->epoch, key[2] = (uint64_t)job->indices[k], key[3] = (uint64_t)job->occurrences[k];
}

/* Asks the disk for a file that is opened ahead: with an index for its header, and nearly for what its sample will need. */
static void ask_for(ddlp_context *context, const ddlp_files_job *job, int64_t k) {
    const int descriptor = descriptor_of(job, k);
    const int64_t offset = offset_of(job, k);
    uint64_t from = 0, until = (uint64_t)job->sizes[k], key[4];
    jpeg_index *index = context_index(context);
    if (has_index(job, k) && !index_parse(index, job->indexes[k], (size_t)job->index_bytes[k]) && index->file_bytes == until) {
        const int32_t size[2] = {(int32_t)index->width, (int32_t)index->height};
        int32_t *boxes = (int32_t *)(void *)context_scratch(context, sizeof *boxes * (size_t)(4 * job->plan->boxes + 1));
        ddlp_job one;
        key_of(job, k, key);
        if (boxes && !ddlp_plan_job(job->plan, size, key, &one, boxes)) {
            (void)posix_fadvise(descriptor, (off_t)offset, (off_t)index->header_bytes, POSIX_FADV_WILLNEED);
            index_part(index, (int64_t)one.top * one.reduce, ((int64_t)one.top + one.height) * one.reduce, &from, &until);
        }
    }
    /* Some file systems do not support it. */
    (void)posix_fadvise(descriptor, (off_t)(offset + (int64_t)from), (off_t)(until - from), POSIX_FADV_WILLNEED);
}

/* Opens the next files in their order, up to one that can't be opened: later files could take the descriptor that it needs
 * at its turn. 0, or -errno of the file whose turn it is. */
static int open_ahead(ddlp_context *context, ddlp_files_job *job) {
    int64_t end = job->next + job->ahead + 1;
    if (end > job->count) end = job->count;
    if (job->opened < job->next) job->opened = job->next; /* Pillow's turn is over */
    for (; job->opened < end; job->opened++) {
        const int64_t k = job->opened;
        const int result = open_one(job, k);
        if (result) return k == job->next ? result : 0;
        if (k > job->next) ask_for(context, job, k);
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
    uint64_t key[4];
    ddlp_job one;
    if (job->offsets && job->upright[k] && ddlp_turned(context)) return DDLP_KIND;
    if (image > job->most_pixels) return DDLP_JOB;
    key_of(job, k, key);
    int result = samples_draw(context, &job->to, job->plan, info, key, nth, &one);
    if (result) return result;
    if (info[3] && image * COEFFICIENT_BYTES >= job->most_memory) return DDLP_LARGE;
    result = ddlp_sample(context, &one);
    if (result) return result;
    samples_finish(&job->to, job->plan, nth, &one);
    job->coded_bits += ddlp_coded_bits(context);
    return 0;
}

/* Makes it by the index, from a file that was last changed at that time. */
static int sample_by_index(ddlp_context *context, ddlp_files_job *job, int64_t nth, uint64_t changed) {
    const int64_t k = job->next, before = now_ns();
    int32_t info[4];
    int result = ddlp_read_indexed(context, descriptor_of(job, k), offset_of(job, k), job->sizes[k], job->indexes[k],
                                   job->index_bytes[k], info);
    job->reading_ns += now_ns() - before;
    if (!result) result = context_index(context)->changed == changed ? sample_next(context, job, nth, info) : DDLP_INDEX;
    context_forget(context);
    return result;
}

/* Reads the file whose turn it is into the context, and makes its sample. */
static int make_next(ddlp_context *context, ddlp_files_job *job, int64_t nth) {
    const int64_t k = job->next;
    int64_t before = now_ns();
    uint64_t changed = 0;
    int32_t info[4];
    int result = open_ahead(context, job);
    const int dated = !result && (has_index(job, k) || job->made_bytes) && changed_at(descriptor_of(job, k), &changed);
    if (job->made_bytes) job->made_bytes[k] = 0;
    if (dated && has_index(job, k)) {
        job->reading_ns += now_ns() - before;
        const int by_index = sample_by_index(context, job, nth, changed);
        if (by_index <= 0) return by_index;
        before = now_ns();
    }
    if (!result) result = ddlp_read(context, descriptor_of(job, k), offset_of(job, k), job->sizes[k], info);
    close_next(job);
    job->reading_ns += now_ns() - before;
    if (result) return result;
    if (!dated || !job->made_bytes) return sample_next(context, job, nth, info);
    ddlp_want_index(context, 1);
    result = sample_next(context, job, nth, info);
    ddlp_want_index(context, 0);
    if (!result) job->made_bytes[k] = (int64_t)context_add_index(context, changed);
    return result;
}

int ddlp_files(ddlp_context *context, ddlp_files_job *job) {
    const int64_t began = now_ns(), first = job->next;
    const context_counts *counts = context_begin(context);
    int result = 0;
    while (!result && job->next < job->end && (job->next == first || now_ns() - began < job->enough_ns)) {
        result = make_next(context, job, job->next - first);
        close_next(job);
        if (!result) job->next++;
    }
    job->made = context_indexes(context);
    job->reading_ns += counts->fetch_ns, job->read_bytes += counts->read_bytes;
    return result;
}

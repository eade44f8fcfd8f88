/* Many files of a data set in one call, which opens, reads, draws, decodes, resamples each one and converts it to the batch's
 * type. A file may be a part of a larger one. If the larger one is open already, it is neither opened nor closed.
 *
 * Files are opened `ahead` of their turn, so that the disk begins to read them. A file that can't be opened then is tried again
 * at its turn. The caller closes the files that are open at the end: descriptors from `next` on that are not -1.
 */
#ifndef DDLP_FILES_H
#define DDLP_FILES_H

#include "batch/samples.h"

struct ddlp_files_job {
    const ddlp_plan *plan;
    uint64_t seed, epoch;
    int64_t count;                       /* of files */
    const int64_t *indices, *occurrences; /* [count] each file's key, together with seed and epoch */
    const char *const *paths;            /* [count] */
    const int64_t *offsets;              /* [count] where a part begins in the file at its path; NULL: each is a whole file */
    const int64_t *parts;                /* [count] with offsets: the part's bytes; -1: up to that file's end */
    const int32_t *shared;               /* [count] with offsets: descriptor of the file at its path; -1: it is not open */
    const int32_t *upright;              /* [count] with offsets; 1: an image that may need turning is refused (DDLP_KIND) */
    const char *const *beneath;          /* [beneath_count] real directories that end in "/": a file that really lies */
    int64_t beneath_count;               /* outside all of them is refused (EXDEV). -1: any place is allowed */
    int32_t *descriptors;                /* [count] -1: not open */
    int64_t *sizes;                      /* [count] bytes of the files that are open, or of parts of open files */
    int64_t ahead;
    int64_t opened;                      /* how many files, from the first on, were opened or tried */
    int64_t next;                        /* the file whose turn it is: the call's first one; on return the first one not made */
    int64_t end;                         /* where the call stops, at most count */
    int64_t enough_ns;                   /* the call also stops after a file once this time has passed */
    int64_t most_bytes, most_pixels;     /* limits for a file or part (EFBIG), and for an image (DDLP_JOB) */
    int64_t most_memory;                 /* limit in bytes for all coefficients of an image (DDLP_LARGE) */
    ddlp_samples to;    /* this call's samples */
    int64_t reading_ns;  /* the time for opening and reading is added to it */
};

#endif

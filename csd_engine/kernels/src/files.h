/* Many files of a data set in one call: each is opened, read, drawn for, decoded, resampled and brought to the batch's type.
 *
 * Files are opened `ahead` of their turn, so that the disk has been asked for them. What could not be opened then is tried
 * again at its turn. The caller closes what is open at the end: descriptors from `next` on that are not -1.
 */
#ifndef DDLP_FILES_H
#define DDLP_FILES_H

#include "plan.h"

struct ddlp_files_job {
    const ddlp_plan *plan;
    uint64_t seed, epoch;
    int64_t count;                       /* of files */
    const int64_t *indices, *occurrences; /* [count] with seed and epoch each file's key */
    const char *const *paths;            /* [count] */
    const char *const *beneath;          /* [beneath_count] real directories with "/" behind them: a file that really lies */
    int64_t beneath_count;               /* outside all of them is refused (EXDEV). -1: any place will do */
    int32_t *descriptors;                /* [count] -1: not open */
    int64_t *sizes;                      /* [count] bytes of those that are open */
    int64_t ahead;
    int64_t opened;                      /* so many files from the first on were opened, or tried */
    int64_t next;                        /* which file's turn it is: the call's first one; on return how far it went */
    int64_t end;                         /* where the call stops: not beyond count */
    int64_t enough_ns;                   /* or after a file that was made so long after the call began */
    int64_t most_bytes, most_pixels;     /* of a file (EFBIG), of an image (DDLP_JOB) */
    int64_t most_memory;                 /* bytes for the coefficients of all of an image (DDLP_LARGE) */
    uint8_t *out;      /* this call's samples, plan->height x plan->width pixels of plan->channels bytes, without gaps; or, */
    const void *table; /* unless NULL, what ddlp_table makes of them, */
    int32_t element_bytes, channels_last;
    int32_t planes;     /* or ddlp_planes */
    int32_t *boxes;     /* this call's, each plan->boxes x 4, or NULL */
    int64_t reading_ns; /* added to: what opening and reading took */
};

#endif

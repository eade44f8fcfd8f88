/* Many images in memory in one call, which draws, resamples and converts each to the batch's type: files.h without files and
 * without decoding. Of an image only the rows and columns are read that its sample needs. */
#ifndef DDLP_PIXELS_H
#define DDLP_PIXELS_H

#include "batch/samples.h"

/* One image. Its strides are in bytes and may be anything: a packed image has 3 and 1 between pixels and channels. */
typedef struct {
    uint64_t first; /* address of the first pixel's first channel */
    int64_t row, pixel, channel;
    int32_t width, height;
    int32_t channels; /* 1 or 3. The one of a grey image is repeated where the plan has three */
    int32_t unused;
} ddlp_image;

struct ddlp_pixels_job {
    const ddlp_plan *plan; /* `fast` is for JPEGs and does nothing here */
    uint64_t seed, epoch;
    const ddlp_image *images;             /* one for each sample, as the keys */
    const int64_t *indices, *occurrences; /* each image's key, together with seed and epoch */
    int64_t next;                         /* the image whose turn it is: the call's first one; on return the first one not made */
    int64_t end, enough_ns;               /* the call stops at `end`, or after a sample once this time has passed */
    ddlp_samples to;
};

#endif

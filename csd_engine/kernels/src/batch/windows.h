/* Many samples of one array in one call: a window is cut out of each, with borders if needed, and mirrored. The windows are
 * written one after the other. */
#ifndef DDLP_WINDOWS_H
#define DDLP_WINDOWS_H

#include "batch/draws.h"

/* The content of borders outside a sample, with numpy.pad's and torchvision's names. Windows may reach any distance outside. */
enum { WINDOWS_CONSTANT = 0, WINDOWS_EDGE = 1, WINDOWS_REFLECT = 2, WINDOWS_SYMMETRIC = 3 };

struct ddlp_windows_job {
    const uint8_t *rows; /* `samples` samples of height x width pixels of `channels` bytes; all strides in bytes */
    int64_t sample_stride, line_stride, pixel_stride, channel_stride;
    int64_t samples;
    int32_t height, width, channels;
    int32_t padding_mode;
    int64_t count;
    const int64_t *indices;      /* [count] which sample; if one is outside 0..samples - 1, DDLP_JOB and nothing is written */
    const int64_t *tops, *lefts; /* [count] the window's corner in the sample, before flips; negative: in the border */
    const uint8_t *across, *down; /* [count] 0 or 1: the window is mirrored left-right, top-bottom; NULL: none is */
    const ddlp_draws *draws;      /* NULL, or the draws that make the last four fields, which are NULL then */
    const uint8_t *fill;          /* [channels] for WINDOWS_CONSTANT */
    int32_t out_height, out_width;
    void *out; /* count x out_height x out_width x channels bytes, without gaps; with a table the results of ddlp_table */
    const void *table; /* NULL: none */
    int32_t element_bytes, channels_last; /* as in ddlp_table */
};

#endif

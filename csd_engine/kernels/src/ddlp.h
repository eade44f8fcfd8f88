/* The kernel's C interface: from a JPEG file to a finished uint8 sample in one call, with Pillow's exact bits.
 *
 * One plain shared library, loaded with ctypes, which lets go of the GIL during a call. It links nothing but libc and libm;
 * libjpeg is loaded at run time, the file that Pillow has loaded, so that both decode with the same code.
 *
 * Results, unless said otherwise: 0 is fine; > 0 (a ddlp_refusal) means that the kernel does not do this one and Pillow has
 * to; < 0 is -errno. Nothing is written beyond the job's rows, but after a refusal their content is undefined.
 *
 * Threads: a context serves one thread at a time. ddlp_use_jpeg and ddlp_choose are called before others use the library;
 * from then on all shared state is read only, so a forked child may go on with its copy.
 */
#ifndef DDLP_H
#define DDLP_H

#include <stdint.h>

#if defined(__GNUC__)
#define DDLP_API __attribute__((visibility("default")))
#else
#define DDLP_API
#endif

#ifndef DDLP_SOURCES
#define DDLP_SOURCES ""
#endif

/* The compiler that made the library, and where it came from: "came with the wheel, "; by compilers.py and setup.py. */
#ifndef DDLP_COMPILER
#if defined(__clang__)
#define DDLP_COMPILER "clang " __clang_version__
#else
#define DDLP_COMPILER "gcc " __VERSION__
#endif
#endif
#ifndef DDLP_ORIGIN
#define DDLP_ORIGIN ""
#endif

/* Changes with every incompatible change of this file; library.py refuses another one. */
#define DDLP_ABI 7

typedef enum {
    DDLP_NO_LIBJPEG = 1,  /* ddlp_use_jpeg was not called or failed */
    DDLP_HEADER = 2,      /* no JPEG, or a header that is not plain: a damaged segment, several pictures (MPO) */
    DDLP_KIND = 3,        /* a kind left to Pillow: CMYK, 12 bits, arithmetic or lossless coding, more than DDLP_MOST_PIXELS */
    DDLP_DAMAGED = 4,     /* an error or warning of libjpeg, or a file that breaks off */
    DDLP_JOB = 5,         /* the job does not fit the image, or is none that the kernel knows */
    DDLP_STEP = 6,        /* a step of draws.h, or an operator of plan.h, that is none */
    DDLP_LARGE = 7        /* decoding it takes more memory than the job allows */
} ddlp_refusal;

/* Pillow warns of decompression bombs above this (Image.MAX_IMAGE_PIXELS). */
#define DDLP_MOST_PIXELS 89478485

/* Pillow's numbers (Image.Resampling). */
enum { DDLP_NO_RESIZE = 0, DDLP_BILINEAR = 2, DDLP_BICUBIC = 3 };

/* What to make of one image: crop, resize, keep a part of the result, flip. All sizes in pixels. */
typedef struct {
    int32_t left, top, width, height;        /* the crop, in the decoded image (after `reduce`) */
    int32_t full_width, full_height;         /* the crop is resized to this size; without resize the crop's own */
    int32_t filter;                          /* DDLP_NO_RESIZE, DDLP_BILINEAR or DDLP_BICUBIC */
    int32_t out_left, out_top;               /* the part of the resized image that is kept, before flipping */
    int32_t out_width, out_height;
    int32_t flip_horizontal, flip_vertical;  /* 0 or 1 */
    int32_t vertical_first;                  /* 0 or 1: which pass of the resize comes first (each rounds to 8 bits) */
    int32_t reduce;                          /* JPEG scaling as by Pillow's draft(): 1, 2, 4 or 8 */
    int32_t channels;                        /* 3 (RGB; grey files are replicated) or 1 (grey files only) */
    uint8_t *out;                            /* out_height rows of out_width * channels bytes */
    int64_t out_stride;                      /* bytes from row to row */
} ddlp_job;

/* Many samples of one array in one call. */
typedef struct ddlp_windows_job ddlp_windows_job;

/* What is drawn for each image of a data set, and many of its files in one call: plan.h and files.h. */
typedef struct ddlp_plan ddlp_plan;
typedef struct ddlp_files_job ddlp_files_job;

/* One thread's buffers and decoder, kept between images. */
typedef struct ddlp_context ddlp_context;

/* DDLP_ABI of the library. */
DDLP_API int ddlp_abi(void);

/* A hash of what the library was made from, by build.py; empty: not known. */
DDLP_API const char *ddlp_sources(void);

/* How it was made, for a person: "compiled with gcc 12.2.0". */
DDLP_API const char *ddlp_made(void);

/* What the inner loops use on this processor: "vnni" (AVX-512), "avx2", "sse2", "neon" or "c". */
DDLP_API const char *ddlp_variant(void);

/* Force a variant (for tests, before other threads use the library). DDLP_JOB: this processor has no such thing. */
DDLP_API int ddlp_choose(const char *variant);

/* Load libjpeg from this file (NULL: look in the program itself), once per process. -ENOENT: can't be loaded; DDLP_NO_LIBJPEG: it is not
 * libjpeg-turbo with the interface of libjpeg 6.2 or 8. */
DDLP_API int ddlp_use_jpeg(const char *path);

/* A context; NULL without memory. */
DDLP_API ddlp_context *ddlp_new(void);
DDLP_API void ddlp_free(ddlp_context *context);

/* Read `size` bytes from the start of the file `fd` into the context and look at the JPEG header. A file that turns out
 * shorter is DDLP_DAMAGED. info: width, height, components (1 or 3), 1 if decoding needs memory for
 * all of the image's coefficients (several scans) else 0. After DDLP_HEADER, DDLP_KIND and DDLP_DAMAGED the bytes that were
 * read can still be had from ddlp_content, so that Pillow need not read them again. */
DDLP_API int ddlp_read(ddlp_context *context, int fd, int64_t size, int32_t info[4]);

/* The same with bytes from memory, which are copied. */
DDLP_API int ddlp_take(ddlp_context *context, const uint8_t *data, int64_t size, int32_t info[4]);

/* The bytes last read or taken; valid until the next ddlp_read, ddlp_take or ddlp_free. */
DDLP_API const uint8_t *ddlp_content(const ddlp_context *context, int64_t *size);

/* 1 if one of our entropy decoders has read the last sample, 0 if it was libjpeg's (baseline in several scans, a
 * progressive file that is unusual or whose low frequencies are not all there). For tests. */
DDLP_API int ddlp_own_entropy(const ddlp_context *context);

/* Decode what the job needs of the file last read or taken, resample, flip, write job->out. May be called again. */
DDLP_API int ddlp_sample(ddlp_context *context, const ddlp_job *job);

/* The same on pixels in memory: the whole image's rows of width * channels bytes, of which the job names a crop; the
 * caller answers for the crop lying inside. `reduce` is ignored. */
DDLP_API int ddlp_resample(ddlp_context *context, const uint8_t *pixels, int64_t stride, const ddlp_job *job);

/* out = table[channel][pixel]: `images` images of `count` pixels of `channels` bytes each; table: channels x 256 elements of
 * element_bytes (2 or 4); out: channels_last ? (images, count, channels) : (images, channels, count) elements. */
DDLP_API void ddlp_table(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, const void *table,
                         int32_t element_bytes, int32_t channels_last, void *out);

/* The bytes as they are, a channel's together: (images, count, channels) -> (images, channels, count). */
DDLP_API void ddlp_planes(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, uint8_t *out);

/* csd_engine/batchfile/checksum.py's Horner step over `blocks` blocks of 16 KiB; acc: 4096 words. */
DDLP_API void ddlp_sum(uint32_t *acc, const uint8_t *data, int64_t blocks);

/* The same on blocks that are read from the file `fd`, from where it stands, into `out`, and added while they are in the
 * cache. Returns the bytes read: fewer where the file ends, of which the last, incomplete block is not added. -errno. */
DDLP_API int64_t ddlp_read_sum(int fd, uint8_t *out, int64_t blocks, uint32_t *acc);

/* A whole file of exactly head_bytes + body_bytes, and the sum of its body, whose last block ends with zeros. 0; 1: it has
 * another size; -errno. What is no regular file gives one of these, too. */
DDLP_API int64_t ddlp_read_file(const char *path, uint8_t *head, int64_t head_bytes, uint8_t *body, int64_t body_bytes,
                                uint32_t *acc);

/* csd_engine/keyed.py's numbers: keys: count x (index, occurrence, counter); out: count x 8. In this computer's byte order. */
DDLP_API void ddlp_keyed(uint64_t seed, uint64_t epoch, const uint64_t *keys, int64_t count, uint64_t *out);

/* Have the system give this memory its pages now, where it can: in one go, and before they are read into, so that the cache can
 * be made ready for them. What it holds stays. */
DDLP_API void ddlp_populate(uint8_t *memory, int64_t size);

/* Crop with padding and flip many samples of an array into a batch; the job is described in windows.h. */
DDLP_API int ddlp_windows(const ddlp_windows_job *job);

/* The job for an image of size (width, height) and key (seed, epoch, index, occurrence), all but where it goes; boxes:
 * plan->boxes x 4, filled, or NULL without any. DDLP_JOB: this image's plan is left to Pillow, which may have a complaint. */
DDLP_API int ddlp_plan_job(const ddlp_plan *plan, const int32_t size[2], const uint64_t key[4], ddlp_job *job, int32_t *boxes);

/* Open, read, draw, decode and finish files one after the other; described in files.h. */
DDLP_API int ddlp_files(ddlp_context *context, ddlp_files_job *job);

#endif

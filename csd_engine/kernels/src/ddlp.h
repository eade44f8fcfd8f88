/* The kernel's C interface: from a JPEG file to a finished uint8 sample in one call, with Pillow's exact bits.
 *
 * It is one plain shared library, loaded with ctypes, which releases the GIL during a call. It links only libc and libm.
 * libjpeg is loaded at run time, from the file that Pillow has loaded, so that both decode with the same code.
 *
 * Results, unless a comment says otherwise: 0 is success; > 0 (a ddlp_refusal) means that the kernel refuses and Pillow must
 * do the work; < 0 is -errno. Nothing is written outside the job's rows, but after a refusal their content is undefined.
 *
 * Threads: a context serves one thread at a time. ddlp_use_jpeg and ddlp_choose are called before other threads use the
 * library. After that all shared state is read only, so a forked child may go on with its copy.
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

/* The compiler that made the library, and where it came from ("came with the wheel, "). compilers.py and setup.py set them. */
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
#define DDLP_ABI 14

typedef enum {
    DDLP_NO_LIBJPEG = 1,  /* ddlp_use_jpeg was not called or failed */
    DDLP_HEADER = 2,      /* no JPEG, or a header that is not plain: a damaged segment, several pictures (MPO) */
    DDLP_KIND = 3,        /* a kind for Pillow: CMYK, 12 bits, arithmetic or lossless coding, more than DDLP_MOST_PIXELS */
    DDLP_DAMAGED = 4,     /* an error or warning of libjpeg, or a file that ends early */
    DDLP_JOB = 5,         /* the job does not fit the image, or the kernel does not know it */
    DDLP_STEP = 6,        /* a step of draws.h or steps.h, or an operator of plan.h, is unknown or does not fit */
    DDLP_LARGE = 7        /* decoding the image takes more memory than the job allows */
} ddlp_refusal;

/* Pillow warns of decompression bombs above this (Image.MAX_IMAGE_PIXELS). */
#define DDLP_MOST_PIXELS 89478485

/* Pillow's numbers (Image.Resampling); then torch's: of bytes, whose coefficients are rounded to 16 bits, and of floats, without
 * and with fused multiply-adds. csd_engine/transforms/torch_resample.py defines them. */
enum { DDLP_NO_RESIZE = 0, DDLP_LANCZOS = 1, DDLP_BILINEAR = 2, DDLP_BICUBIC = 3, DDLP_BOX = 4, DDLP_HAMMING = 5,
       DDLP_TORCH_BILINEAR = 6, DDLP_TORCH_BICUBIC = 7, DDLP_FLOAT_BILINEAR = 8, DDLP_FLOAT_BICUBIC = 9,
       DDLP_FUSED_BILINEAR = 10, DDLP_FUSED_BICUBIC = 11 };

/* What to do with one image: crop, resize, keep a part of the result, flip. All sizes are in pixels. */
typedef struct {
    int32_t left, top, width, height;        /* the crop, in the decoded image (after `reduce`) */
    int32_t full_width, full_height;         /* the crop is resized to this size; without a resize it is the crop's size */
    int32_t filter;                          /* DDLP_NO_RESIZE, or by which filter */
    int32_t out_left, out_top;               /* the part of the resized image that is kept, before flipping */
    int32_t out_width, out_height;
    int32_t flip_horizontal, flip_vertical;  /* 0 or 1 */
    int32_t vertical_first;                  /* 0 or 1: which pass of the resize comes first (each rounds to 8 bits) */
    int32_t reduce;                          /* JPEG scaling as in Pillow's draft(): 1, 2, 4 or 8 */
    int32_t channels;                        /* 3 (RGB; grey files are replicated) or 1 (grey files only) */
    uint8_t *out;                            /* out_height rows of out_width * channels bytes */
    int64_t out_stride;                      /* bytes from row to row */
} ddlp_job;

/* Many samples of one array in one call. */
typedef struct ddlp_windows_job ddlp_windows_job;

/* The operators to draw for each image of a data set (plan.h), and many of its files (files.h) or of its images in memory
 * (pixels.h) in one call. */
typedef struct ddlp_plan ddlp_plan;
typedef struct ddlp_files_job ddlp_files_job;
typedef struct ddlp_pixels_job ddlp_pixels_job;

/* One step on an image in memory: steps.h. */
typedef struct ddlp_step_numbers ddlp_step_numbers;

/* One thread's buffers and decoder, kept between images. */
typedef struct ddlp_context ddlp_context;

/* The library's DDLP_ABI. */
DDLP_API int ddlp_abi(void);

/* build.py's hash of the sources that the library was made from; empty: not known. */
DDLP_API const char *ddlp_sources(void);

/* How the library was made, in words: "compiled with gcc 12.2.0". */
DDLP_API const char *ddlp_made(void);

/* The instruction set of the inner loops on this processor: "vnni" (AVX-512), "avx2", "sse2", "neon" or "c". */
DDLP_API const char *ddlp_variant(void);

/* Force a variant (for tests, before other threads use the library). DDLP_JOB: this processor does not have it. */
DDLP_API int ddlp_choose(const char *variant);

/* Load libjpeg from this file (NULL: look in the program itself), once per process. -ENOENT: it can't be loaded;
 * DDLP_NO_LIBJPEG: it is not libjpeg-turbo with the interface of libjpeg 6.2 or 8. */
DDLP_API int ddlp_use_jpeg(const char *path);

/* Make a context; NULL without memory. */
DDLP_API ddlp_context *ddlp_new(void);
DDLP_API void ddlp_free(ddlp_context *context);

/* Read `size` bytes of the file `fd`, from `offset` on, into the context, and check the JPEG header. DDLP_DAMAGED if the
 * file is shorter. info: width, height, components (1 or 3), then 1 if decoding needs memory for all of the image's
 * coefficients (several scans), else 0. After DDLP_HEADER, DDLP_KIND and DDLP_DAMAGED, ddlp_content still gives the bytes
 * that were read, so that Pillow need not read them again. */
DDLP_API int ddlp_read(ddlp_context *context, int fd, int64_t offset, int64_t size, int32_t info[4]);

/* Do the same with bytes from memory, which are copied. */
DDLP_API int ddlp_take(ddlp_context *context, const uint8_t *data, int64_t size, int32_t info[4]);

/* 0 if the JPEG last read or taken is plainly upright, 1 if Pillow must check its orientation. */
DDLP_API int ddlp_turned(const ddlp_context *context);

/* The bytes last read or taken; valid until the next ddlp_read, ddlp_take or ddlp_free. */
DDLP_API const uint8_t *ddlp_content(const ddlp_context *context, int64_t *size);

/* 1 if one of our entropy decoders has read the last sample, 0 if libjpeg's has (for a baseline file in several scans, or for a
 * progressive file that is unusual or lacks some low frequencies). For tests. */
DDLP_API int ddlp_own_entropy(const ddlp_context *context);

/* Decode the part that the job needs of the file last read or taken, resample, flip, write job->out. May be called again. */
DDLP_API int ddlp_sample(ddlp_context *context, const ddlp_job *job);

/* Do the same on pixels in memory: rows of width * channels bytes of the whole image. The caller makes sure that the job's crop
 * lies inside the image. `reduce` is ignored. */
DDLP_API int ddlp_resample(ddlp_context *context, const uint8_t *pixels, int64_t stride, const ddlp_job *job);

/* Run steps on an image in memory, which does not change. `size`: its width, height, channels; rows have no gaps. The result
 * must have out_size. DDLP_STEP: a step does not fit, or the result has another size. */
DDLP_API int ddlp_steps(ddlp_context *context, const uint8_t *pixels, const int32_t size[3], const ddlp_step_numbers *steps,
                        int64_t count, uint8_t *out, const int32_t out_size[3], int64_t out_stride);

/* out = table[channel][pixel]: `images` images of `count` pixels of `channels` bytes each; table: channels x 256 elements of
 * element_bytes (2 or 4); out: channels_last ? (images, count, channels) : (images, channels, count) elements. */
DDLP_API void ddlp_table(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, const void *table,
                         int32_t element_bytes, int32_t channels_last, void *out);

/* Bring the bytes of each channel together: (images, count, channels) -> (images, channels, count). */
DDLP_API void ddlp_planes(const uint8_t *pixels, int64_t images, int64_t count, int32_t channels, uint8_t *out);

/* Do the Horner step of csd_engine/batchfile/checksum.py over `blocks` blocks of 16 KiB; acc: 4096 words. */
DDLP_API void ddlp_sum(uint32_t *acc, const uint8_t *data, int64_t blocks);

/* The checksum of csd_engine/cache/segments.py for `count` images, each of sizes[i] bytes at images[i]. */
DDLP_API void ddlp_image_sums(const uint8_t *const *images, const int64_t *sizes, int64_t count, uint64_t *sums);

/* Read blocks from the position of the file `fd` into `out`, and add them in the same way while they are in the cache. Returns
 * the bytes read, or -errno. At the file's end there are fewer; a last, incomplete block is not added. */
DDLP_API int64_t ddlp_read_sum(int fd, uint8_t *out, int64_t blocks, uint32_t *acc);

/* Draw csd_engine/arithmetic/keyed.py's numbers. keys: count x (index, occurrence, counter); out: count x 8, in this computer's byte
 * order. */
DDLP_API void ddlp_keyed(uint64_t seed, uint64_t epoch, const uint64_t *keys, int64_t count, uint64_t *out);

/* Make the system map the pages of this memory now, if it can. They are mapped at once, and before data are read into them, so
 * that the cache can be prepared for them. The content does not change. */
DDLP_API void ddlp_populate(uint8_t *memory, int64_t size);

/* Crop with padding and flip many samples of an array into a batch; windows.h describes the job. */
DDLP_API int ddlp_windows(const ddlp_windows_job *job);

/* Make the job for an image of size (width, height) and key (seed, epoch, index, occurrence), without its destination. boxes:
 * plan->boxes x 4, filled, or NULL if there are none. DDLP_JOB: this image is left to Pillow, which may report an error. */
DDLP_API int ddlp_plan_job(const ddlp_plan *plan, const int32_t size[2], const uint64_t key[4], ddlp_job *job, int32_t *boxes);

/* Open, read, draw, decode and finish files one after the other; files.h describes the job. */
DDLP_API int ddlp_files(ddlp_context *context, ddlp_files_job *job);

/* Do the same with images in memory; pixels.h describes the job. */
DDLP_API int ddlp_pixels(ddlp_context *context, ddlp_pixels_job *job);

#endif

/* Which instruction set the kernels use: the best one of this processor, or the one a test has forced. */
#ifndef DDLP_VARIANT_H
#define DDLP_VARIANT_H

#if defined(__x86_64__) || (defined(__i386__) && defined(__SSE2__))
#define DDLP_X86 1
#endif
/* big-endian NEON numbers its lanes the other way round: portable C does the work there */
#if (defined(__ARM_NEON) || defined(__ARM_NEON__)) && (!defined(__BYTE_ORDER__) || __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#define DDLP_NEON 1
#endif

enum { VARIANT_C, VARIANT_SSE2, VARIANT_AVX2, VARIANT_NEON };

/* Never fails. The first calls may come from several threads at once. */
int variant_used(void);

#endif

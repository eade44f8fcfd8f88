/* Time, for what makes many samples. */
#ifndef DDLP_CLOCK_H
#define DDLP_CLOCK_H

#include <stdint.h>

/* The time of a clock that never goes back. */
int64_t now_ns(void);

#endif

#define _GNU_SOURCE
#undef _TIME_BITS /* with 64 time bits clock_gettime has another name, which older C libraries do not know */
#include "clock.h"

#include <time.h>

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

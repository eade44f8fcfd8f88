/* A slow spool, without a slow disk: LD_PRELOAD it, name the spool in $DDLP_SPOOL, and write microseconds (int64) into
 * $DDLP_SPOOL_DELAY. Each call that writes, reserves, cuts, links, renames or removes a file below the spool takes so much longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *delay_us;
static const char *spool;
static size_t length;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DDLP_SPOOL_DELAY");
    spool = getenv("DDLP_SPOOL");
    const int file = path && spool ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *delay_us, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) length = strlen(spool), delay_us = found;
    close(file);
}

static void wait_if_slow(int descriptor) {
    if (!delay_us || *delay_us <= 0 || descriptor < 0) return;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t size = readlink(link, path, sizeof path);
    if (size < (ssize_t)length || memcmp(path, spool, length) || (size > (ssize_t)length && path[length] != '/')) return;
    const struct timespec pause = {*delay_us / 1000000, *delay_us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

#define SLOW(result, name, descriptor, parameters, arguments)              \
    result name parameters {                                               \
        static result(*real) parameters;                                   \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);              \
        wait_if_slow(descriptor);                                          \
        return real arguments;                                             \
    }

SLOW(ssize_t, write, file, (int file, const void *data, size_t size), (file, data, size))
SLOW(ssize_t, pwrite, file, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
SLOW(ssize_t, pwrite64, file, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
SLOW(int, posix_fallocate, file, (int file, off_t from, off_t size), (file, from, size))
SLOW(int, posix_fallocate64, file, (int file, off64_t from, off64_t size), (file, from, size))
SLOW(int, ftruncate, file, (int file, off_t size), (file, size))
SLOW(int, ftruncate64, file, (int file, off64_t size), (file, size))
SLOW(int, linkat, at, (int at, const char *old, int to, const char *new, int flags), (at, old, to, new, flags))
SLOW(int, renameat, at, (int at, const char *old, int to, const char *new), (at, old, to, new))
SLOW(int, unlinkat, at, (int at, const char *name, int flags), (at, name, flags))

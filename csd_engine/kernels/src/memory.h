/* Buffers that grow and are kept for the next image. */
#ifndef DDLP_MEMORY_H
#define DDLP_MEMORY_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* The room to ask for. */
static inline size_t with_spare(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    return bytes; /* so that an access to the first byte after it is noticed */
#else
    return bytes + bytes / 4 + 64;
#endif
}

/* Makes *buffer at least `bytes` long (contents are lost when it moves, new memory is zero); 0 or -ENOMEM. */
static inline int grow(void **buffer, size_t *room, size_t bytes) {
    if (*room >= bytes && *buffer) return 0;
    free(*buffer);
    const size_t wanted = with_spare(bytes);
    *buffer = calloc(1, wanted);
    *room = *buffer ? wanted : 0;
    return *buffer ? 0 : -ENOMEM;
}

#endif

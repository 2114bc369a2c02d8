/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/framing.h - finds requests that two servers could read differently.
 *
 * A proxy and this server must agree where a request ends and for whom it is; else a client gets a
 * second request past the proxy's checks.  The HTTP library is lenient: it takes lines that end in
 * LF alone, a CR or a NUL within a line, and reads the lines between chunks without a word to its
 * handler.  So every byte that the library receives on a watched socket passes here first, and
 * what RFC 9112 forbids is a fault of the request that it stands in.  Bytes are looked at, never
 * changed or held back: the server refuses the request when the library hands it over.
 *
 * The library receives by recv(), which it has no option to replace.  This module therefore defines
 * recv for the whole process; sockets that are not watched are passed on.
 *
 * Thread: a socket's state belongs to the I/O thread that reads it.
 */
#pragma once

#include "base/base.h"

/* What has been read of a connection; all zero: nothing. */
struct hzp_framing {
    int part; /* enum in framing.c; 0: between requests */
    const char *fault;
    uint64_t requests; /* begun; a fault is of the last one */
    uint64_t left;     /* bytes of the body or chunk */
    /* the line: */
    char text[32]; /* a name or value's beginning */
    size_t n;
    int words;
    char last;
    int field; /* enum in framing.c */
    /* the header: */
    bool http11, trailer, sized, coded;
    int hosts;
};

/* Reads on; after a fault nothing more is read. */
void hzp_framing_read(struct hzp_framing *f, const char *data, size_t bytes);

/* ---- of sockets ---- */

/* From here to hzp_framing_unwatch() what recv() reads of the socket is read here, too. */
void hzp_framing_watch(int fd);
void hzp_framing_unwatch(int fd); /* not watched: no effect */
/* The library has handed over another request's header. */
void hzp_framing_next(int fd);
/* What is wrong with the request last handed over, as far as it has come, or with one before it,
 * for the answer; NULL: nothing. */
const char *hzp_framing_fault(int fd);

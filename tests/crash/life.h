/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/life.h - one life of a learning server, in a process of its own, and what it told
 * its clients before it was killed.
 *
 * Engine, trainer and state (api/learn/state.h) are the real ones; the clients are a thread that
 * posts bodies as fast as they are accepted.  Every fact that a client could have read is
 * written to a pipe after it became true, so the pipe of a killed child contains exactly what
 * was promised.
 *
 * Thread: as said; the parent has one.
 */
#pragma once

#include "api/learn/state.h"

enum { CRASH_VOCAB = 37, CRASH_TOKENS = 8, CRASH_PASSES = 3 };

enum crash_kind {
    CRASH_STARTED,  /* a: first version id, b: last sequence number, c: queued again, d: trained
                     * again, e: checkpoint id */
    CRASH_ACCEPTED, /* a..b: sequence numbers, c: the number of the body's first text */
    CRASH_SERVED,   /* a: a version's id, b: its optimizer step */
    CRASH_SAVED,    /* a: a checkpoint's id */
    CRASH_REFUSED,  /* a body, because of the disk */
    CRASH_ERROR,    /* text */
};

struct crash_told {
    enum crash_kind kind;
    uint64_t a, b, c, d, e;
    bool read_only; /* STARTED: the log cannot be written, nothing but this version is published */
    char text[200];
};

struct crash_life {
    const char *model_dir, *state_dir;
    int fd;             /* of the pipe */
    uint64_t next_text; /* numbers of the texts it posts, each used once */
    bool post;          /* false: posts nothing, learns what is left, and ends by itself */
    int32_t bodies;     /* posts as many, learns them, and ends by itself; 0: until it is killed */
    bool look;          /* opens the state, tells what it holds, and ends */
    bool disk_fails;    /* errors of the disk are to be expected: they end nothing once it runs */
    /* Called with each fact before it goes to the pipe; NULL: nothing. */
    void (*note)(const void *fact, size_t size);
};

/* Runs the server in the calling process, which ends with it. */
HZP_NORETURN void crash_live(const struct crash_life *life);

/* The tokens of text n: the digits of its number, so that the text can be recognized. */
void crash_text(uint64_t n, int32_t token[CRASH_TOKENS]);

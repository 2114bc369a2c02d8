/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/disk.h - a disk that fails on demand, and that remembers in which order it was
 * written.
 *
 * Linked into a test program, it takes the place of open, write, fsync, rename and the like: for
 * the program's own code and for SQLite, which calls them through the same names.  Below one
 * watched directory each call is counted, may fail, and may be recorded on a tape.  A sync does
 * nothing there, so that tests are fast; what a power cut would leave of a tape is made by
 * tests/crash/cut.h.
 *
 * The memory is shared with child processes: a parent sets up what its child is to meet, and reads
 * the tape and the counts when the child has ended.
 *
 * Thread: any; one lock inside.  Setting up: one thread.
 */
#pragma once

#include "base/base.h"

enum disk_call {
    DISK_OPEN,     /* tape: path; whether created, truncated */
    DISK_WRITE,    /* handle, at, data */
    DISK_TRUNCATE, /* handle, at: the new size */
    DISK_SYNC,     /* handle */
    DISK_RENAME,   /* path, to */
    DISK_UNLINK,   /* path; of a file or a directory */
    DISK_MKDIR,    /* path */
    DISK_LINK,     /* path, to */
    DISK_READ,     /* only counted */
    DISK_NOTE,     /* only on the tape: data */
    DISK_CALLS
};

enum { DISK_PATH = 100 };

/* One call on the tape.  Paths are relative to the watched directory, "" is that itself. */
struct disk_op {
    enum disk_call call;
    bool created, truncated;
    bool failed;    /* a sync that was refused: what was written before is not on disk */
    int32_t handle; /* of an open file: the tape's index of its DISK_OPEN */
    int64_t at;
    size_t data, size; /* where in the tape's data, and how much */
    char path[DISK_PATH], to[DISK_PATH];
};

/* Watches what is below `dir` (an absolute path), in this process and its children. */
void disk_watch(const char *dir);

/* From now on; all counts are 0 again. */
struct disk_fault {
    uint32_t calls; /* a bit for each enum disk_call that may fail; 0: none */
    int64_t nth;    /* which of these calls fails, from 0 on */
    bool forever;   /* and all after it */
    bool cut;       /* a write takes half, and the next one of its file fails */
    int error;      /* errno */
};
void disk_fail(const struct disk_fault *fault);
/* How many calls there were of those in the mask, since disk_fail(). */
int64_t disk_count(uint32_t calls);

/* Begins an empty tape. */
void disk_record(void);
/* Takes all but the first `ops` calls off the tape. */
void disk_rewind(int32_t ops);
/* Puts something the test wants to find again on the tape. */
void disk_note(const void *data, size_t size);
int32_t disk_ops(void);
const struct disk_op *disk_op(int32_t i);
const void *disk_data(const struct disk_op *op);

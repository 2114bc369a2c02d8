/* SPDX-License-Identifier: Apache-2.0 */
/* base/cache.h - files in the user's cache, $XDG_CACHE_HOME/hzpserve or ~/.cache/hzpserve, which
 * may be lost, and the thread that keeps one of them up to date.
 *
 * Thread: path and put: any.  A saver: as its functions say.
 */
#pragma once

#include "base/err.h"
#include "base/thread.h"

/* The path of the file of that name; false: there is no place for it, and ret is "". */
bool hzp_cache_path(char *ret, size_t size, const char *format, ...) HZP_PRINTF(3, 4);

/* Writes the file whole or not at all, and makes its folder.  Several processes and threads may
 * write it at a time.  HZP_EIO. */
int hzp_cache_put(const char *path, const void *data, size_t size, struct hzp_err_text *reterr);

/* Saves what changes within a time together, on a thread of its own that the first change
 * starts. */
struct hzp_saver {
    const char *name;   /* the thread's */
    uint64_t gather_ns; /* the time */
    void (*save)(void *ctx);
    void *ctx;
    struct hzp_wake wake;
    pthread_t thread;
    bool runs; /* else fini saves */
    atomic_bool ends;
};

void hzp_saver_init(struct hzp_saver *s, const char *name, uint64_t gather_ns,
                    void (*save)(void *ctx), void *ctx);
/* Something has changed; one thread at a time. */
void hzp_saver_poke(struct hzp_saver *s);
/* Saves the last changes. */
void hzp_saver_fini(struct hzp_saver *s);

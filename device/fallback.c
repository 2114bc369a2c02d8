/* SPDX-License-Identifier: Apache-2.0 */
#include "device/fallback.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/backend.h"

/* Cases counted within this time are written together. */
static const uint64_t GATHER_NS = 1000000000;

enum { LINE = HZP_FALLBACK_REASON + 128, PATH = 4096 };
static const char MAGIC[] = "hzpserve fallbacks 1\n";

struct hzp_fallbacks {
    atomic_uint_fast64_t count[HZP_FALLBACK_COUNT];
    char path[PATH];      /* "": nothing is kept */
    struct hzp_lock lock; /* protects shape, shapes and changed */
    struct hzp_fallback_shape shape[HZP_FALLBACK_SHAPES_MAX];
    int shapes;
    bool changed;
    struct hzp_wake wake; /* wakes the writer */
    pthread_t writer;
    bool writes; /* the writer thread was started */
    atomic_bool ends;
};

static const char *const names[] = {
#define X(name, help) #name,
    HZP_FALLBACKS(X)
#undef X
};

const char *hzp_fallback_name(enum hzp_fallback kind)
{
    return names[kind];
}

/* ---- the file ---- */

/* False: there is no place for it. */
static bool path_of(const char *backend, int ordinal, const char *id, char ret[PATH])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *rest = "";
    char number[16];
    snprintf(number, sizeof(number), "%d", ordinal);
    if (!cache || cache[0] != '/') {
        cache = getenv("HOME");
        rest = "/.cache";
    }
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(ret, PATH, "%s%s/hzpserve/fallbacks-%s-%s", cache, rest, backend,
                     id[0] ? id : number);
    if (n < 0 || n >= PATH)
        ret[0] = 0;
    return ret[0] != 0;
}

/* Creates the folder of the file, and the one above it.  If it fails, so does the write. */
static void folders_make(const char *path)
{
    char folder[PATH];
    snprintf(folder, sizeof(folder), "%s", path);
    *strrchr(folder, '/') = 0;
    char *name = strrchr(folder, '/');
    *name = 0;
    mkdir(folder, 0700);
    *name = '/';
    mkdir(folder, 0700);
}

/* Writes what has changed; a copy is made under the lock, so that counting waits for no disk. */
static void save(struct hzp_fallbacks *f)
{
    char *text = hzp_xmalloc(HZP_FALLBACK_SHAPES_MAX * LINE);
    size_t size = (size_t)snprintf(text, LINE, "%s", MAGIC);
    hzp_lock_take(&f->lock);
    bool changed = f->changed;
    f->changed = false;
    for (int i = 0; i < f->shapes; i++) {
        const struct hzp_fallback_shape *s = &f->shape[i];
        size +=
            (size_t)snprintf(text + size, LINE,
                             "%s %" PRId32 " %" PRId32 " %" PRId32 " %" PRIu64 " %" PRId64 " %s\n",
                             names[s->kind], s->m, s->n, s->k, s->count, s->last, s->reason);
    }
    hzp_lock_release(&f->lock);
    if (changed) {
        folders_make(f->path);
        struct hzp_err_text why; /* what cannot be kept is still counted and logged */
        char own[PATH + 16];     /* another process may write at the same time */
        snprintf(own, sizeof(own), "%s.%ld", f->path, (long)getpid());
        if (hzp_file_put(own, text, size, &why) < 0)
            hzp_log(HZP_LOG_DEBUG, "engine", "fallbacks are not kept: %s", why.text);
        else if (rename(own, f->path) < 0)
            unlink(own);
    }
    free(text);
}

static void *writer_main(void *arg)
{
    struct hzp_fallbacks *f = arg;
    while (!atomic_load(&f->ends)) {
        hzp_wake_wait(&f->wake, UINT64_MAX);
        uint64_t now = hzp_now_ns(), until = now + GATHER_NS;
        for (; now < until && !atomic_load(&f->ends); now = hzp_now_ns())
            hzp_wake_wait(&f->wake, until - now);
        save(f);
    }
    return NULL;
}

static bool kind_of(const char *name, enum hzp_fallback *ret)
{
    for (int kind = 0; kind < HZP_FALLBACK_COUNT; kind++)
        if (strcmp(names[kind], name) == 0) {
            *ret = (enum hzp_fallback)kind;
            return true;
        }
    return false;
}

int hzp_fallbacks_last(const char *backend, int ordinal, const char *id,
                       struct hzp_fallback_shape ret[HZP_FALLBACK_SHAPES_MAX])
{
    char path[PATH], line[LINE + 1], name[16];
    int shapes = 0, begin;
    struct stat info;
    int fd =
        path_of(backend, ordinal, id, path) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    FILE *file = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? fdopen(fd, "r") : NULL;
    if (!file && fd >= 0)
        close(fd);
    if (!file)
        return 0;
    bool ours = fgets(line, sizeof(line), file) && strcmp(line, MAGIC) == 0;
    while (ours && shapes < HZP_FALLBACK_SHAPES_MAX && fgets(line, sizeof(line), file)) {
        struct hzp_fallback_shape *s = &ret[shapes];
        memset(s, 0, sizeof(*s));
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%15s %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNu64 " %" SCNd64 " %n",
                   name, &s->m, &s->n, &s->k, &s->count, &s->last, &begin) != 6 ||
            !kind_of(name, &s->kind))
            continue;
        snprintf(s->reason, sizeof(s->reason), "%.*s", HZP_FALLBACK_REASON - 1, line + begin);
        shapes++;
    }
    fclose(file);
    return shapes;
}

/* ---- counting ---- */

struct hzp_fallbacks *hzp_fallbacks_create(const char *backend, int ordinal, const char *id)
{
    struct hzp_fallbacks *f = hzp_xcalloc(1, sizeof(*f));
    hzp_lock_init(&f->lock, HZP_LOCK_FALLBACKS);
    hzp_wake_init(&f->wake);
    if (path_of(backend, ordinal, id, f->path))
        unlink(f->path); /* the previous run's, if there is one */
    return f;
}

void hzp_fallbacks_destroy(struct hzp_fallbacks *f)
{
    if (!f)
        return;
    atomic_store(&f->ends, true);
    hzp_wake_poke(&f->wake);
    if (f->writes)
        pthread_join(f->writer, NULL);
    if (f->path[0])
        save(f);
    hzp_wake_fini(&f->wake);
    hzp_lock_fini(&f->lock);
    free(f);
}

/* Adds one case to its shape; returns whether the shape is new.  False, too: there is no room to
 * remember it. */
static bool remember(struct hzp_fallbacks *f, enum hzp_fallback kind, int32_t m, int32_t n,
                     int32_t k, const char *reason)
{
    int i = 0;
    hzp_lock_take(&f->lock);
    while (i < f->shapes && (f->shape[i].kind != kind || f->shape[i].m != m || f->shape[i].n != n ||
                             f->shape[i].k != k))
        i++;
    bool room = i < HZP_FALLBACK_SHAPES_MAX, new = room &&i == f->shapes;
    if (room) {
        struct hzp_fallback_shape *s = &f->shape[i];
        if (new)
            *s = (struct hzp_fallback_shape){.kind = kind, .m = m, .n = n, .k = k};
        if (new)
            snprintf(s->reason, sizeof(s->reason), "%s", reason);
        s->count++;
        s->last = (int64_t)time(NULL);
        f->shapes += new;
        f->changed = true;
    }
    hzp_lock_release(&f->lock);
    return new;
}

void hzp_device_fallback(struct hzp_device *dev, enum hzp_fallback kind, int32_t m, int32_t n,
                         int32_t k, const char *reason)
{
    struct hzp_fallbacks *f = dev->fallbacks;
    if (!f)
        return; /* the device is being opened or closed */
    atomic_fetch_add_explicit(&f->count[kind], 1, memory_order_relaxed);
    bool new = remember(f, kind, m, n, k, reason);
    if (f->path[0]) {
        if (!f->writes) /* if the thread cannot be started, closing writes the file */
            f->writes = hzp_thread_start(&f->writer, "hzp-slower", writer_main, f) == HZP_OK;
        hzp_wake_poke(&f->wake);
    }
    if (!new)
        return;
    hzp_log(HZP_LOG_WARN, dev->backend->name,
            "fallback kind=%s shape=%" PRId32 "x%" PRId32 "x%" PRId32 ": %s", names[kind], m, n, k,
            reason);
    if (f->shapes == HZP_FALLBACK_SHAPES_MAX)
        hzp_log(HZP_LOG_WARN, dev->backend->name, "further fallbacks are counted and not logged");
}

uint64_t hzp_device_fallbacks(const struct hzp_device *dev, enum hzp_fallback kind)
{
    struct hzp_fallbacks *f = dev->fallbacks;
    return f ? atomic_load_explicit(&f->count[kind], memory_order_relaxed) : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "device/fallback.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/cache.h"
#include "base/log.h"
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
    struct hzp_saver saver;
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
    char number[16];
    snprintf(number, sizeof(number), "%d", ordinal);
    return hzp_cache_path(ret, PATH, "fallbacks-%s-%s", backend, id[0] ? id : number);
}

/* Writes what has changed; a copy is made under the lock, so that counting waits for no disk. */
static void save(void *ctx)
{
    struct hzp_fallbacks *f = ctx;
    HZP_FREED char *text = hzp_xmalloc(HZP_FALLBACK_SHAPES_MAX * LINE);
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
    struct hzp_err_text why; /* what cannot be kept is still counted and logged */
    if (changed && f->path[0] && hzp_cache_put(f->path, text, size, &why) < 0)
        hzp_log(HZP_LOG_DEBUG, "engine", "fallbacks are not kept: %s", why.text);
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
    hzp_saver_init(&f->saver, "hzp-slower", GATHER_NS, save, f);
    if (path_of(backend, ordinal, id, f->path))
        unlink(f->path); /* the previous run's, if there is one */
    return f;
}

void hzp_fallbacks_destroy(struct hzp_fallbacks *f)
{
    if (!f)
        return;
    hzp_saver_fini(&f->saver);
    hzp_lock_fini(&f->lock);
    free(f);
}

/* Adds one case to its shape; returns whether the shape is new.  False, too: there is no room to
 * remember it. */
static bool remember(struct hzp_fallbacks *f, enum hzp_fallback kind, int32_t m, int32_t n,
                     int32_t k, const char *reason)
{
    int i = 0;
    HZP_LOCKED(&f->lock);
    while (i < f->shapes && (f->shape[i].kind != kind || f->shape[i].m != m || f->shape[i].n != n ||
                             f->shape[i].k != k))
        i++;
    if (i == HZP_FALLBACK_SHAPES_MAX)
        return false;
    struct hzp_fallback_shape *s = &f->shape[i];
    bool new = i == f->shapes;
    if (new) {
        *s = (struct hzp_fallback_shape){.kind = kind, .m = m, .n = n, .k = k};
        snprintf(s->reason, sizeof(s->reason), "%s", reason);
        f->shapes++;
    }
    s->count++;
    s->last = (int64_t)time(NULL);
    f->changed = true;
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
    if (f->path[0])
        hzp_saver_poke(&f->saver);
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

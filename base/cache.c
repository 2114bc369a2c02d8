/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cache.h"

#include <sys/stat.h>

#include "base/file.h"

bool hzp_cache_path(char *ret, size_t size, const char *format, ...)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *rest = "";
    char name[NAME_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    if (!cache || cache[0] != '/') {
        cache = getenv("HOME");
        rest = "/.cache";
    }
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(ret, size, "%s%s/hzpserve/%s", cache, rest, name);
    if (n < 0 || (size_t)n >= size)
        ret[0] = 0;
    return ret[0] != 0;
}

/* Makes the folder, and the one above it.  If it fails, so does the write. */
static void make_folders(char *path)
{
    char *end = strrchr(path, '/');
    *end = 0;
    char *above = strrchr(path, '/');
    *above = 0;
    mkdir(path, 0700);
    *above = '/';
    mkdir(path, 0700);
    *end = '/';
}

int hzp_cache_put(const char *path, const void *data, size_t size, struct hzp_err_text *reterr)
{
    static _Atomic unsigned parts;
    char own[PATH_MAX];
    if (snprintf(own, sizeof(own), "%s.%ld-%u", path, (long)getpid(), parts++) >= (int)sizeof(own))
        return hzp_fail(reterr, HZP_EIO, "%s: the path is too long", path);
    make_folders(own);
    return hzp_file_put_by(path, own, 0600, data, size, reterr);
}

void hzp_saver_init(struct hzp_saver *s, const char *name, uint64_t gather_ns,
                    void (*save)(void *ctx), void *ctx)
{
    *s = (struct hzp_saver){.name = name, .gather_ns = gather_ns, .save = save, .ctx = ctx};
    hzp_wake_init(&s->wake);
}

static void *run(void *arg)
{
    struct hzp_saver *s = arg;
    while (!atomic_load(&s->ends)) {
        hzp_wake_wait(&s->wake, UINT64_MAX);
        uint64_t now = hzp_now_ns(), until = now + s->gather_ns;
        for (; now < until && !atomic_load(&s->ends); now = hzp_now_ns())
            hzp_wake_wait(&s->wake, until - now);
        s->save(s->ctx);
    }
    return NULL;
}

void hzp_saver_poke(struct hzp_saver *s)
{
    if (!s->runs)
        s->runs = hzp_thread_start(&s->thread, s->name, run, s) == HZP_OK;
    hzp_wake_poke(&s->wake);
}

void hzp_saver_fini(struct hzp_saver *s)
{
    atomic_store(&s->ends, true);
    hzp_wake_poke(&s->wake);
    if (s->runs)
        pthread_join(s->thread, NULL);
    s->save(s->ctx);
    hzp_wake_fini(&s->wake);
}

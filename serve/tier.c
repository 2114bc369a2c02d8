/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/tier.h"

#include "base/log.h"
#include "base/ring.h"
#include "base/thread.h"

#include <fcntl.h>
#include <pthread.h>

enum { NONE = -1 };
enum store { HOST, FILE_STORE, STORES };

struct job {
    bool read, ok, spill_ok;
    int32_t page, slot;           /* slot: of the entry when the job was posted */
    int32_t spill_from, spill_to; /* before that: moved from one slot to the other; NONE: no */
    int32_t entry, spilled; /* the entries; they may hold something else by the time it is done */
    uint64_t id, spilled_id;
    uint64_t ns; /* how long reading took */
};

struct entry {
    bool used;
    int32_t slot;
    uint64_t id, before, hash, oldest;
    int32_t next;         /* in its bucket */
    int32_t newer, older; /* in the list of its store */
};

struct list {
    int32_t newest, oldest;
};

struct hzp_tier {
    /* fixed after create */
    struct hzp_tier_config config;
    size_t page_bytes;
    int32_t page_rows, slots[STORES], entries; /* slots of host memory are the first */
    uint64_t buckets;
    int fd;

    /* engine thread */
    struct entry *entry; /* [entries] */
    int32_t *token;      /* [entries][page_rows] */
    int32_t *bucket;     /* [buckets] */
    struct list lru[STORES];
    int32_t *free_slot[STORES], free_slots[STORES];
    int32_t *free_entry, free_entries;
    struct job job[HZP_TIER_JOBS], *free_job[HZP_TIER_JOBS];
    int32_t free_jobs;
    double read_ns[STORES]; /* average for a page; 0: not measured yet */
    struct hzp_tier_stats stats;
    bool told; /* that copying has failed */

    /* the tier's thread */
    char *host;    /* [slots of host][page_bytes] */
    char *staging; /* [page_bytes] */
    uint64_t *sum; /* [entries] by slot */
    pthread_t thread;
    bool started;

    /* between both */
    struct hzp_ring *todo, *done;
    struct hzp_wake wake;
    _Atomic bool stop;
};

/* ---- the tier's thread ---- */

static uint64_t sum_of(const char *bytes, size_t n)
{
    uint64_t sum = 0x9e3779b97f4a7c15u ^ n, word;
    for (size_t i = 0; i < n; i += sizeof(word)) {
        word = 0;
        memcpy(&word, bytes + i, HZP_MIN(sizeof(word), n - i));
        sum = (sum ^ word) * 0xbf58476d1ce4e5b9u;
        sum ^= sum >> 31;
    }
    return sum;
}

static bool file_io(const struct hzp_tier *t, int32_t slot, char *bytes, bool writes)
{
    off_t at = (off_t)(slot - t->slots[HOST]) * (off_t)t->page_bytes;
    for (size_t n = 0; n < t->page_bytes;) {
        ssize_t r = writes ? pwrite(t->fd, bytes + n, t->page_bytes - n, at + (off_t)n)
                           : pread(t->fd, bytes + n, t->page_bytes - n, at + (off_t)n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        n += (size_t)r;
    }
    return true;
}

static char *host_slot(const struct hzp_tier *t, int32_t slot)
{
    return t->host + (size_t)slot * t->page_bytes;
}

static bool store(struct hzp_tier *t, int32_t slot, char *bytes)
{
    t->sum[slot] = sum_of(bytes, t->page_bytes);
    if (slot >= t->slots[HOST])
        return file_io(t, slot, bytes, true);
    memcpy(host_slot(t, slot), bytes, t->page_bytes);
    return true;
}

/* Reads a slot into the staging page and checks it. */
static bool load(struct hzp_tier *t, int32_t slot)
{
    if (slot < t->slots[HOST])
        memcpy(t->staging, host_slot(t, slot), t->page_bytes);
    else if (!file_io(t, slot, t->staging, false))
        return false;
    return sum_of(t->staging, t->page_bytes) == t->sum[slot];
}

/* Copying to the slot failed: what it held before must not be read in place of the page. */
static void spoil(struct hzp_tier *t, int32_t slot)
{
    t->sum[slot] = ~t->sum[slot];
}

static void run(struct hzp_tier *t, struct job *job)
{
    struct hzp_kvpool *pool = t->config.pool;
    uint64_t begin = hzp_now_ns();
    if (job->spill_from != NONE)
        job->spill_ok = load(t, job->spill_from) && store(t, job->spill_to, t->staging);
    if (job->read)
        job->ok =
            load(t, job->slot) && hzp_kvpool_write_page(pool, job->page, t->staging) == HZP_OK;
    else
        job->ok = hzp_kvpool_read_page(pool, job->page, t->staging) == HZP_OK &&
                  store(t, job->slot, t->staging);
    if (job->spill_from != NONE && !job->spill_ok)
        spoil(t, job->spill_to);
    if (!job->read && !job->ok)
        spoil(t, job->slot);
    job->ns = hzp_now_ns() - begin;
}

bool hzp_tier_work(struct hzp_tier *t)
{
    struct job *job = hzp_ring_pop(t->todo);
    if (!job)
        return false;
    run(t, job);
    int r = hzp_ring_push(t->done, job);
    HZP_ASSERT(r == HZP_OK); /* it has room for all jobs */
    if (t->config.wake)
        t->config.wake(t->config.wake_ctx);
    return true;
}

static void *work(void *arg)
{
    struct hzp_tier *t = arg;
    while (!atomic_load(&t->stop))
        if (!hzp_tier_work(t))
            hzp_wake_wait(&t->wake, 1000000000);
    return NULL;
}

/* ---- create ---- */

/* A file without a name in the directory. */
static int open_file(struct hzp_tier *t, struct hzp_err_text *reterr)
{
    char path[4096];
    t->fd = open(t->config.dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (t->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        snprintf(path, sizeof(path), "%s/.hzpserve-prefix-XXXXXX", t->config.dir);
        t->fd = mkostemp(path, O_CLOEXEC);
        if (t->fd >= 0)
            unlink(path);
    }
    if (t->fd >= 0)
        return HZP_OK;
    return hzp_fail_param(reterr, HZP_EIO, "--prefix-file", "--prefix-file: no file in %s: %s",
                          t->config.dir, strerror(errno));
}

static int size_stores(struct hzp_tier *t, struct hzp_err_text *reterr)
{
    static const char *const option[] = {"--prefix-bytes host", "--prefix-bytes file"};
    const size_t bytes[] = {t->config.host_bytes, t->config.file_bytes};
    for (int s = 0; s < STORES; s++) {
        size_t pages = bytes[s] / t->page_bytes;
        if (bytes[s] && !pages)
            return hzp_fail_param(reterr, HZP_EINVAL, "--prefix-bytes",
                                  "%s does not hold one page of %zu bytes", option[s],
                                  t->page_bytes);
        t->slots[s] = (int32_t)HZP_MIN(pages, (size_t)1 << 24);
        t->entries += t->slots[s];
    }
    return HZP_OK;
}

static void create_index(struct hzp_tier *t)
{
    size_t n = (size_t)t->entries;
    t->buckets = 1;
    while (t->buckets < (uint64_t)t->entries)
        t->buckets *= 2;
    t->entry = hzp_xcalloc(n, sizeof(*t->entry));
    t->token = hzp_xcalloc(n * (size_t)t->page_rows, sizeof(*t->token));
    t->sum = hzp_xcalloc(n, sizeof(*t->sum));
    t->bucket = hzp_xcalloc(t->buckets, sizeof(*t->bucket));
    for (uint64_t i = 0; i < t->buckets; i++)
        t->bucket[i] = NONE;
    t->free_entry = hzp_xcalloc(n, sizeof(*t->free_entry));
    for (int32_t i = 0; i < t->entries; i++)
        t->free_entry[t->free_entries++] = t->entries - 1 - i;
    for (int s = 0; s < STORES; s++) {
        t->lru[s] = (struct list){NONE, NONE};
        t->free_slot[s] = hzp_xcalloc((size_t)t->slots[s] + 1, sizeof(*t->free_slot[s]));
        for (int32_t i = t->slots[s] - 1; i >= 0; i--)
            t->free_slot[s][t->free_slots[s]++] = i + (s == HOST ? 0 : t->slots[HOST]);
    }
    for (int i = 0; i < HZP_TIER_JOBS; i++)
        t->free_job[t->free_jobs++] = &t->job[i];
}

int hzp_tier_create(const struct hzp_tier_config *config, struct hzp_tier **ret,
                    struct hzp_err_text *reterr)
{
    struct hzp_tier *t = hzp_xcalloc(1, sizeof(*t));
    t->config = *config;
    t->fd = -1;
    t->page_bytes = hzp_kvpool_page_bytes(config->pool);
    t->page_rows = hzp_kvpool_page_rows(config->pool);
    t->todo = hzp_ring_create(HZP_TIER_JOBS);
    t->done = hzp_ring_create(HZP_TIER_JOBS);
    hzp_wake_init(&t->wake);
    int r = size_stores(t, reterr);
    if (r == HZP_OK && t->slots[FILE_STORE])
        r = open_file(t, reterr);
    if (r == HZP_OK) {
        create_index(t);
        t->staging = malloc(t->page_bytes);
        t->host = t->slots[HOST] ? malloc((size_t)t->slots[HOST] * t->page_bytes) : NULL;
        if (!t->staging || (t->slots[HOST] && !t->host))
            r = hzp_fail_param(reterr, HZP_ENOMEM, "--prefix-bytes",
                               "no memory for --prefix-bytes host");
    }
    if (r == HZP_OK && !config->threadless) {
        r = hzp_thread_start(&t->thread, "hzp-tier", work, t);
        t->started = r == HZP_OK;
    }
    if (r < 0) {
        hzp_tier_destroy(t);
        return r;
    }
    *ret = t;
    return HZP_OK;
}

void hzp_tier_stop(struct hzp_tier *t)
{
    if (!t || !t->started)
        return;
    atomic_store(&t->stop, true);
    hzp_wake_poke(&t->wake);
    pthread_join(t->thread, NULL);
    t->started = false;
}

void hzp_tier_destroy(struct hzp_tier *t)
{
    if (!t)
        return;
    hzp_tier_stop(t);
    if (t->fd >= 0)
        close(t->fd);
    hzp_ring_destroy(t->todo);
    hzp_ring_destroy(t->done);
    hzp_wake_fini(&t->wake);
    for (int s = 0; s < STORES; s++)
        free(t->free_slot[s]);
    free(t->free_entry);
    free(t->entry);
    free(t->token);
    free(t->bucket);
    free(t->sum);
    free(t->staging);
    free(t->host);
    free(t);
}

void hzp_tier_set_wake(struct hzp_tier *t, void (*wake)(void *ctx), void *ctx)
{
    HZP_ASSERT(t->free_jobs == HZP_TIER_JOBS); /* the thread reads it with a job */
    t->config.wake = wake;
    t->config.wake_ctx = ctx;
}

/* ---- the index: engine thread ---- */

static enum store store_of(const struct hzp_tier *t, int32_t slot)
{
    return slot < t->slots[HOST] ? HOST : FILE_STORE;
}

static void list_add(struct hzp_tier *t, int32_t entry)
{
    struct list *list = &t->lru[store_of(t, t->entry[entry].slot)];
    t->entry[entry].newer = NONE;
    t->entry[entry].older = list->newest;
    *(list->newest != NONE ? &t->entry[list->newest].newer : &list->oldest) = entry;
    list->newest = entry;
}

static void list_remove(struct hzp_tier *t, int32_t entry)
{
    struct entry *e = &t->entry[entry];
    struct list *list = &t->lru[store_of(t, e->slot)];
    *(e->newer != NONE ? &t->entry[e->newer].older : &list->newest) = e->older;
    *(e->older != NONE ? &t->entry[e->older].newer : &list->oldest) = e->newer;
}

static void give_slot_back(struct hzp_tier *t, int32_t slot)
{
    enum store s = store_of(t, slot);
    t->free_slot[s][t->free_slots[s]++] = slot;
}

static void forget(struct hzp_tier *t, int32_t entry)
{
    struct entry *e = &t->entry[entry];
    int32_t *at = &t->bucket[e->hash & (t->buckets - 1)];
    while (*at != entry)
        at = &t->entry[*at].next;
    *at = e->next;
    list_remove(t, entry);
    give_slot_back(t, e->slot);
    e->used = false;
    t->free_entry[t->free_entries++] = entry;
    t->stats.pages--;
}

/* A free slot of the store, if need be that of the entry used longest ago; NONE: it has none. */
static int32_t take_slot(struct hzp_tier *t, enum store s)
{
    if (!t->free_slots[s] && t->lru[s].oldest != NONE)
        forget(t, t->lru[s].oldest);
    return t->free_slots[s] ? t->free_slot[s][--t->free_slots[s]] : NONE;
}

/* A slot for a new page; what must leave host memory for it moves to the file. */
static int32_t make_room(struct hzp_tier *t, struct job *job)
{
    int32_t victim = t->lru[HOST].oldest;
    job->spill_from = job->spill_to = NONE;
    if (!t->slots[HOST])
        return take_slot(t, FILE_STORE);
    if (t->free_slots[HOST] || !t->slots[FILE_STORE])
        return take_slot(t, HOST);
    struct entry *e = &t->entry[victim];
    job->spilled = victim;
    job->spilled_id = e->id;
    job->spill_from = e->slot;
    job->spill_to = take_slot(t, FILE_STORE);
    list_remove(t, victim);
    e->slot = job->spill_to;
    list_add(t, victim);
    return job->spill_from;
}

static void post(struct hzp_tier *t, struct job *job)
{
    int r = hzp_ring_push(t->todo, job);
    HZP_ASSERT(r == HZP_OK); /* it has room for all jobs */
    hzp_wake_poke(&t->wake);
}

int32_t hzp_tier_find(const struct hzp_tier *t, const struct hzp_tier_page *what, uint64_t *ret_id,
                      uint64_t *ret_oldest)
{
    size_t rows = (size_t)t->page_rows;
    int32_t found = NONE;
    for (int32_t i = t->bucket[what->hash & (t->buckets - 1)]; i != NONE; i = t->entry[i].next) {
        const struct entry *e = &t->entry[i];
        if (e->hash == what->hash && e->before == what->before && e->oldest >= what->oldest &&
            (found == NONE || e->oldest > t->entry[found].oldest) &&
            !memcmp(t->token + (size_t)i * rows, what->token, rows * sizeof(*t->token)))
            found = i;
    }
    if (found != NONE) {
        *ret_id = t->entry[found].id;
        *ret_oldest = t->entry[found].oldest;
    }
    return found;
}

bool hzp_tier_put(struct hzp_tier *t, const struct hzp_tier_page *what, int32_t page,
                  bool *ret_posted)
{
    hzp_assert_engine_thread();
    uint64_t id, oldest;
    *ret_posted = false;
    int32_t there = hzp_tier_find(t, what, &id, &oldest);
    if (there != NONE && (id == what->id || oldest > what->oldest)) /* it, or one found before it */
        return true;
    if (!t->free_jobs)
        return false;
    if (there != NONE) /* the same tokens under another name, which nothing refers to any more */
        forget(t, there);
    struct job *job = t->free_job[--t->free_jobs];
    int32_t slot = make_room(t, job), entry = t->free_entry[--t->free_entries];
    struct entry *e = &t->entry[entry];
    int32_t *bucket = &t->bucket[what->hash & (t->buckets - 1)];
    *e = (struct entry){.used = true,
                        .slot = slot,
                        .id = what->id,
                        .before = what->before,
                        .hash = what->hash,
                        .oldest = what->oldest,
                        .next = *bucket};
    *bucket = entry;
    memcpy(t->token + (size_t)entry * (size_t)t->page_rows, what->token,
           (size_t)t->page_rows * sizeof(*t->token));
    list_add(t, entry);
    t->stats.pages++;
    job->read = false;
    job->page = page;
    job->slot = slot;
    job->entry = entry;
    job->id = what->id;
    post(t, job);
    *ret_posted = true;
    return true;
}

bool hzp_tier_get(struct hzp_tier *t, int32_t entry, int32_t page)
{
    hzp_assert_engine_thread();
    if (!t->free_jobs)
        return false;
    struct job *job = t->free_job[--t->free_jobs];
    *job = (struct job){.read = true,
                        .page = page,
                        .slot = t->entry[entry].slot,
                        .spill_from = NONE,
                        .spill_to = NONE,
                        .entry = entry,
                        .id = t->entry[entry].id};
    list_remove(t, entry);
    list_add(t, entry);
    post(t, job);
    return true;
}

int32_t hzp_tier_room(const struct hzp_tier *t)
{
    return t->free_jobs;
}

double hzp_tier_read_ns(const struct hzp_tier *t, int32_t entry)
{
    return t->read_ns[store_of(t, t->entry[entry].slot)];
}

/* ---- jobs that are done ---- */

static void forget_failed(struct hzp_tier *t, int32_t entry, uint64_t id)
{
    t->stats.failed++;
    if (t->entry[entry].used && t->entry[entry].id == id)
        forget(t, entry);
    if (!t->told)
        hzp_log(HZP_LOG_WARN, "serve", "prefix tier: a page was not copied%s%s",
                t->config.dir ? ": is there room in " : "", t->config.dir ? t->config.dir : "");
    t->told = true;
}

bool hzp_tier_done(struct hzp_tier *t, struct hzp_tier_done *ret)
{
    hzp_assert_engine_thread();
    struct job *job = hzp_ring_pop(t->done);
    if (!job)
        return false;
    double *read_ns = &t->read_ns[store_of(t, job->slot)];
    if (job->spill_from != NONE && !job->spill_ok)
        forget_failed(t, job->spilled, job->spilled_id);
    if (!job->ok)
        forget_failed(t, job->entry, job->id);
    else if (job->read)
        *read_ns += ((double)job->ns - *read_ns) / (*read_ns > 0 ? 8 : 1);
    t->stats.read += job->ok && job->read;
    t->stats.written += job->ok && !job->read;
    *ret = (struct hzp_tier_done){.page = job->page, .read = job->read, .ok = job->ok};
    t->free_job[t->free_jobs++] = job;
    return true;
}

void hzp_tier_forget(struct hzp_tier *t, uint64_t oldest)
{
    hzp_assert_engine_thread();
    for (int32_t i = 0; t->stats.pages && i < t->entries; i++)
        if (t->entry[i].used && t->entry[i].oldest < oldest)
            forget(t, i);
}

void hzp_tier_read_stats(const struct hzp_tier *t, struct hzp_tier_stats *ret)
{
    *ret = t->stats;
}

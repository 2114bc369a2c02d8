/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sites/sites.h"

#include "base/hash.h"
#include "base/log.h"

enum { BEHIND = 8 /* messages */ };

/* Whose turn it is; by the thread: READY, SOON, APPLIED, NONE; by the engine: APPLY, KEPT, LOST. */
enum turn { NONE, SOON /* if nothing is learned */, READY, APPLY, APPLIED, KEPT, LOST };

struct hzp_sites {
    char url[HZP_SITES_MAX][HZP_PIPE_ENDPOINT];
    struct hzp_rounds_config config;
    const struct hzp_layout *layout;
    struct hzp_site_parts parts;
    struct hzp_site_rounds *rounds;
    struct hzp_pipe *in, *out[HZP_SITES_MAX];
    struct hzp_sites_host host;
    pthread_t thread;
    bool started, begun, asks; /* begun: it has read its weights; asks: for the loan */
    struct hzp_border_call loan;
    struct hzp_version *draft;
    const struct hzp_version *from;
    uint32_t applied; /* the sites in the average */
    _Atomic int turn;
    _Atomic int64_t updates, samples;
    atomic_bool stopping;
    uint64_t told_ns; /* when a bad message was last logged */
    struct hzp_lock lock;
    struct hzp_rounds_stats stats;
};

/* --- Opening ---------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* All sites number all addresses in the same order. */
static int read_urls(struct hzp_sites *s, const struct hzp_sites_config *c,
                     struct hzp_err_text *reterr)
{
    if (c->sites < 2 || c->sites > HZP_SITES_MAX)
        return hzp_fail_param(reterr, HZP_EINVAL, "--mesh",
                              "--mesh takes the addresses of 2 to %d sites, this one's first; "
                              "it got %d",
                              HZP_SITES_MAX, c->sites);
    for (int i = 0; i < c->sites; i++) {
        const char *url = c->url[i], *port = strrchr(url, ':');
        int number = port ? atoi(port + 1) : 0;
        if (strncmp(url, "tcp://", 6) != 0 || port < url + 7 || number < 1 || number > 65535)
            return hzp_fail_param(reterr, HZP_EINVAL, "--mesh",
                                  "--mesh: \"%s\" is not tcp://HOST:PORT", url);
        if (!c->key && !hzp_pipe_loopback(url))
            return hzp_fail_param(reterr, HZP_EINVAL, "--mesh",
                                  "--mesh: %s is another machine's, and there is no key: set "
                                  "HZP_MESH_KEY to what `openssl rand -hex 32` prints, on all "
                                  "sites",
                                  url);
        snprintf(s->url[i], sizeof(s->url[i]), "%s", url);
    }
    qsort(s->url, (size_t)c->sites, sizeof(s->url[0]), compare);
    for (int i = 0; i < c->sites; i++) {
        s->config.self = strcmp(s->url[i], c->url[0]) ? s->config.self : i;
        if (i && !strcmp(s->url[i], s->url[i - 1]))
            return hzp_fail_param(reterr, HZP_EINVAL, "--mesh", "--mesh: %s is given twice",
                                  s->url[i]);
    }
    return HZP_OK;
}

static bool send_to(void *ctx, int site, const void *data, size_t bytes)
{
    struct hzp_sites *s = ctx;
    return hzp_pipe_send(s->out[site], NULL, data, bytes) == HZP_OK;
}

/* What all sites must agree in. */
static uint64_t mesh_of(const struct hzp_sites *s, const struct hzp_sites_config *c)
{
    char rule[128];
    snprintf(rule, sizeof(rule), "%.9g %d %d", c->share, c->rounds.coding == HZP_SITE_F32,
             HZP_SITE_BLOCK);
    uint64_t hash = hzp_fnv(HZP_FNV, c->model, strlen(c->model));
    hash = hzp_fnv(hash, rule, strlen(rule));
    for (int32_t u = 0; u < c->layout->units; u++)
        hash = hzp_fnv(hash, &c->layout->unit[u].elements, sizeof(size_t));
    return hzp_fnv(hash, s->url, (size_t)c->sites * sizeof(s->url[0]));
}

static int open_pipes(struct hzp_sites *s, const char *key, struct hzp_err_text *reterr)
{
    struct hzp_pipe_place at = {.open = true, .queue = BEHIND};
    if (key)
        HZP_TRY(hzp_pipe_read_key("HZP_MESH_KEY", key, at.key, reterr));
    for (int i = 0; i < s->config.limits.sites; i++) {
        bool self = i == s->config.self;
        snprintf(at.endpoint, sizeof(at.endpoint), "%s", s->url[i]);
        HZP_TRY((self ? hzp_pipe_listen : hzp_pipe_connect)(&at, HZP_SITE_MESSAGE_MAX,
                                                            self ? &s->in : &s->out[i], reterr));
    }
    return HZP_OK;
}

int hzp_sites_open(const struct hzp_sites_config *c, struct hzp_sites **ret,
                   struct hzp_err_text *reterr)
{
    struct hzp_sites *s = hzp_xcalloc(1, sizeof(*s));
    int64_t blocks = (int64_t)(c->layout->elements / HZP_SITE_BLOCK);
    int r;
    hzp_lock_init(&s->lock, HZP_LOCK_SITES);
    s->layout = c->layout;
    s->config = c->rounds;
    HZP_TRY_GOTO(read_urls(s, c, reterr));
    hzp_site_parts_make(blocks, c->share, 1, &s->parts);
    s->config.limits = (struct hzp_site_limits){mesh_of(s, c), c->sites, &s->parts};
    s->config.began = (hzp_now_ns() ^ (uint64_t)getpid() << 48) | 1;
    s->config.quorum = c->rounds.quorum ? c->rounds.quorum : c->sites / 2 + 1;
    s->config.send = send_to;
    s->config.ctx = s;
    if (s->config.quorum > c->sites)
        HZP_TRY_GOTO(hzp_fail_param(reterr, HZP_EINVAL, "--mesh",
                                    "--mesh quorum=%d: there are %d sites", s->config.quorum,
                                    c->sites));
    HZP_TRY_GOTO(open_pipes(s, c->key, reterr));
    r = hzp_rounds_create(&s->config, &s->rounds);
    if (r < 0)
        HZP_TRY_GOTO(hzp_fail_param(reterr, r, "--mesh", "--mesh: no memory for %zu bytes",
                                    hzp_rounds_bytes(&s->config)));
    hzp_log(HZP_LOG_INFO, "mesh", "site=%d sites=%d address=%s host_memory_bytes=%zu",
            s->config.self, c->sites, s->url[s->config.self], hzp_rounds_bytes(&s->config));
    *ret = s;
    return HZP_OK;
out:
    hzp_sites_close(s);
    return r;
}

void hzp_sites_close(struct hzp_sites *s)
{
    if (!s)
        return;
    HZP_ASSERT(!s->started);
    for (int i = 0; i < HZP_SITES_MAX; i++)
        hzp_pipe_close(s->out[i]);
    hzp_pipe_close(s->in);
    hzp_rounds_destroy(s->rounds);
    hzp_site_parts_free(&s->parts);
    hzp_lock_fini(&s->lock);
    free(s);
}

/* --- Weights ---------------------------------------------------------------------------------- */

/* One unit of weights and residuals, and in host memory: itself, or copies. */
struct held {
    struct hzp_unit_view weights, residual, host[2];
    void *owned[2];
};

static int hold(struct hzp_sites *s, const struct hzp_version *v, int32_t u, struct held *ret)
{
    struct hzp_device *dev = hzp_weights_device(s->host.weights);
    *ret = (struct held){.weights = hzp_version_unit(s->host.weights, v, u)};
    HZP_TRY(hzp_unit_read(dev, &ret->weights, &ret->host[0], &ret->owned[0]));
    if (!s->host.residual)
        return HZP_OK;
    ret->residual = hzp_unit_view(s->host.residual, u);
    int r = hzp_unit_read(dev, &ret->residual, &ret->host[1], &ret->owned[1]);
    if (r < 0)
        free(ret->owned[0]);
    return r;
}

/* Copies that were written go back to the device, where no step uses a draft in a merge. */
static int let_go(struct hzp_sites *s, struct held *h, bool written)
{
    struct hzp_device *dev = hzp_weights_device(s->host.weights);
    const struct hzp_unit_view *view[] = {&h->weights, &h->residual};
    int r = HZP_OK;
    for (int i = 0; i < 2; i++) {
        if (written && h->owned[i] && r >= 0)
            r = hzp_device_copy(dev, view[i]->base, h->owned[i], hzp_unit_bytes(view[i]));
        free(h->owned[i]);
    }
    return r;
}

static int copy_version(struct hzp_sites *s)
{
    struct hzp_device *dev = hzp_weights_device(s->host.weights);
    for (int32_t u = 0; u < s->layout->units; u++) {
        struct hzp_unit_view from = hzp_version_unit(s->host.weights, s->from, u);
        struct hzp_unit_view to = hzp_version_unit(s->host.weights, s->draft, u);
        HZP_TRY(hzp_device_copy(dev, to.base, from.base, hzp_unit_bytes(&to)));
    }
    return HZP_OK;
}

/* What is done with block i of a list; weights and residual are its places. */
typedef void block_fn(struct hzp_sites *s, int64_t i, void *weights, int16_t *residual, float *to);

/* Calls fn for each of the blocks, which ascend; block NULL: for all. */
static int each_block(struct hzp_sites *s, const struct hzp_version *v, const uint32_t *block,
                      int64_t count, block_fn *fn, bool writes, float *to)
{
    int64_t i = 0;
    for (int32_t u = 0; u < s->layout->units && i < count; u++) {
        const struct hzp_unit *unit = &s->layout->unit[u];
        int64_t first = (int64_t)(unit->before / HZP_SITE_BLOCK);
        int64_t end = first + (int64_t)(unit->elements / HZP_SITE_BLOCK);
        struct held h;
        if ((block ? block[i] : i) >= end)
            continue;
        HZP_TRY(hold(s, v, u, &h));
        for (; i < count && (block ? block[i] : i) < end; i++) {
            size_t at = (size_t)((block ? block[i] : i) - first) * HZP_SITE_BLOCK;
            char *weights = (char *)h.host[0].base + at * hzp_dtype_size(h.weights.type);
            int16_t *residual = h.host[1].base ? (int16_t *)h.host[1].base + at : NULL;
            fn(s, i, weights, residual, to);
        }
        HZP_TRY(let_go(s, &h, writes));
    }
    return HZP_OK;
}

static void read_block(struct hzp_sites *s, int64_t i, void *weights, int16_t *residual, float *to)
{
    hzp_site_load(weights, residual, to + i * HZP_SITE_BLOCK);
}

static void apply_block(struct hzp_sites *s, int64_t i, void *weights, int16_t *residual,
                        float *unused)
{
    float w[HZP_SITE_BLOCK];
    hzp_site_load(weights, residual, w);
    if (hzp_rounds_apply(s->rounds, i, w)) /* otherwise the block stays */
        hzp_site_store(w, weights, residual);
}

/* --- The thread ------------------------------------------------------------------------------- */

static void warn(const char *what, int r)
{
    hzp_log(HZP_LOG_WARN, "mesh", "%s: %s", what, hzp_err_name(r));
}

/* The weights are wanted: for the start, or a round.  True: they have been read. */
static bool borrow(struct hzp_sites *s)
{
    const uint32_t *block = NULL;
    int64_t count = s->parts.blocks;
    float *to =
        s->begun ? hzp_rounds_wants(s->rounds, &block, &count) : hzp_rounds_agreed(s->rounds);
    int r;
    if (!to && !s->asks)
        return false;
    if (!s->asks) {
        s->loan = (struct hzp_border_call){.fn = s->host.lend, .ctx = s->host.ctx};
        hzp_loop_post(s->host.loop, &s->loan);
        s->asks = true;
    }
    if (!hzp_loop_ended(s->host.loop, &s->loan, &r))
        return false;
    s->asks = false;
    if (r < 0)
        return false; /* the loop has ended */
    if (to)           /* the round may be over */
        r = each_block(s, *s->host.lent, block, count, read_block, false, to);
    hzp_loop_call(s->host.loop, s->host.give_back, s->host.ctx);
    if (r < 0)
        warn("the weights could not be read", r);
    return to && r >= 0;
}

static void apply(struct hzp_sites *s)
{
    int64_t count;
    const uint32_t *block = hzp_rounds_average(s->rounds, &count);
    int copied = s->from ? copy_version(s) : HZP_OK;
    int r = copied < 0 ? HZP_OK : each_block(s, s->draft, block, count, apply_block, true, NULL);
    if (copied < 0)
        warn("the version that serves could not be copied", copied);
    if (r < 0)
        warn("an average was applied in part", r);
    s->applied = copied < 0 ? 0 : hzp_rounds_sites(s->rounds);
    atomic_store(&s->turn, APPLIED);
    hzp_loop_poke(s->host.loop);
}

static void tell(const struct hzp_sites *s, bool kept)
{
    const struct hzp_rounds_stats *now = &s->stats;
    hzp_log(kept ? HZP_LOG_INFO : HZP_LOG_WARN, "mesh",
            "round=%" PRId64 " part=%d sites=%x drift=%.4g: %s", now->round, now->part, s->applied,
            now->drift, kept ? "in a version" : "refused with its draft");
}

static void take_turn(struct hzp_sites *s)
{
    int turn = atomic_load(&s->turn), ready;
    if (turn == APPLY)
        apply(s);
    if (turn == KEPT || turn == LOST) {
        tell(s, turn == KEPT);
        hzp_rounds_applied(s->rounds, turn == KEPT);
        atomic_store(&s->turn, NONE);
    }
    if (turn != NONE && turn != SOON)
        return;
    ready = hzp_rounds_ready(s->rounds, false)  ? READY
            : hzp_rounds_ready(s->rounds, true) ? SOON
                                                : NONE;
    /* The engine may have taken SOON meanwhile. */
    if (ready != turn && atomic_compare_exchange_strong(&s->turn, &turn, ready))
        hzp_loop_poke(s->host.loop);
}

static void receive(struct hzp_sites *s, uint64_t now)
{
    const uint64_t seldom_ns = 10000000000u;
    const char *data;
    size_t bytes;
    struct hzp_err_text why;
    char host[HZP_PIPE_HOST];
    for (int i = 0; i < 64 && hzp_pipe_receive(s->in, NULL, &data, &bytes); i++) {
        if (hzp_rounds_receive(s->rounds, data, bytes, now, &why) >= 0)
            continue;
        if (!s->told_ns || now - s->told_ns > seldom_ns) {
            hzp_pipe_host(s->in, host);
            hzp_log(HZP_LOG_WARN, "mesh", "a message from %s is refused: %s", host, why.text);
            s->told_ns = now;
        }
    }
}

static void *run(void *arg)
{
    struct hzp_sites *s = arg;
    bool waits = false;
    while (!atomic_load(&s->stopping)) {
        hzp_pipe_wait(s->in, waits || s->asks ? 5 : 50);
        uint64_t now = hzp_now_ns();
        receive(s, now);
        hzp_rounds_note(s->rounds, atomic_load(&s->updates), atomic_load(&s->samples));
        if (borrow(s)) {
            if (s->begun)
                hzp_rounds_sampled(s->rounds);
            s->begun = true;
        }
        take_turn(s);
        waits = s->begun && hzp_rounds_turn(s->rounds, now);
        hzp_lock_take(&s->lock);
        hzp_rounds_read_stats(s->rounds, now, &s->stats);
        hzp_lock_release(&s->lock);
    }
    return NULL;
}

int hzp_sites_start(struct hzp_sites *s, const struct hzp_sites_host *host)
{
    s->host = *host;
    HZP_TRY(hzp_thread_start(&s->thread, "hzp-mesh", run, s));
    s->started = true;
    return HZP_OK;
}

void hzp_sites_stop(struct hzp_sites *s)
{
    if (!s || !s->started)
        return;
    atomic_store(&s->stopping, true);
    hzp_loop_close_borders(s->host.loop);
    hzp_pipe_poke(s->in);
    pthread_join(s->thread, NULL);
    if (s->asks)
        hzp_loop_cancel(s->host.loop, &s->loan);
    s->started = false;
}

/* --- The engine's side ------------------------------------------------------------------------ */

bool hzp_sites_ready(struct hzp_sites *s, bool idle)
{
    int turn = atomic_load(&s->turn);
    return turn == READY || (turn == SOON && idle);
}

void hzp_sites_apply(struct hzp_sites *s, struct hzp_version *draft, const struct hzp_version *from)
{
    s->draft = draft;
    s->from = from;
    atomic_store(&s->turn, APPLY);
    hzp_pipe_poke(s->in);
}

bool hzp_sites_applied(struct hzp_sites *s)
{
    return atomic_load(&s->turn) == APPLIED;
}

uint32_t hzp_sites_in(const struct hzp_sites *s)
{
    return s->applied;
}

void hzp_sites_ended(struct hzp_sites *s, bool kept)
{
    atomic_store(&s->turn, kept ? KEPT : LOST);
    hzp_pipe_poke(s->in);
}

void hzp_sites_note(struct hzp_sites *s, int64_t updates, int64_t samples)
{
    atomic_fetch_add(&s->updates, updates);
    atomic_fetch_add(&s->samples, samples);
}

void hzp_sites_read_stats(struct hzp_sites *s, struct hzp_rounds_stats *ret)
{
    HZP_LOCKED(&s->lock);
    *ret = s->stats;
}

int hzp_sites_count(const struct hzp_sites *s, int *ret_self)
{
    *ret_self = s->config.self;
    return s->config.limits.sites;
}

const char *hzp_sites_name(const struct hzp_sites *s, int site)
{
    return s->url[site];
}

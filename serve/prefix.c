/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/prefix.h"

#include "base/thread.h"
#include "serve/request.h"

enum { NONE = -1 };

/* What is known of a page; a page that is not kept is not `kept`. */
struct entry {
    bool kept;      /* it is in the table, can be matched */
    bool held;      /* it is the cache's: kept, or was until a swap and is still in use */
    uint64_t hash;  /* over all tokens from the first one on */
    int32_t before; /* the page before; NONE: it is the first */
    /* names its contents for ever (tier.h); 0: of no kept page; before_id: of the page before, or
     * of the layers (id_of) */
    uint64_t id, before_id;
    int32_t index; /* in its sequence: how many pages are before it */
    int32_t depth;
    uint32_t hits;   /* how often it was found, halved at each swap */
    uint64_t oldest; /* version of its rows and of those before them */
    bool copied;     /* a tier has it, or had */
    bool copying;    /* a tier reads it: it is neither let go nor given out */
    bool loading;    /* a tier writes it: it is not in the table yet */
    int32_t refs;
    uint64_t step;        /* the last step that may read it */
    int32_t next;         /* in its bucket */
    int32_t newer, older; /* in the list of idle pages */
};

/* Idle pages; all of them can be given out, except those of `cooling`. */
struct list {
    int32_t newest, oldest, count;
};

struct hzp_prefix {
    /* fixed after create */
    struct hzp_kvpool *pool;
    bool on;
    int32_t pages, page_rows, stale_max;
    uint64_t buckets; /* a power of two */

    struct entry *entry; /* [pages] */
    int32_t *token;      /* [pages][page_rows] of kept pages */
    int32_t *bucket;     /* [buckets] the first page; NONE */
    int32_t *scratch;    /* [page_rows] */
    struct list idle;    /* oldest: released first */
    struct list cooling; /* idle, and a step in flight may still read them */
    /* The versions that served last, newest first, as far as each was made from the next. */
    uint64_t served[HZP_PREFIX_STALE_MAX + 1];
    int32_t versions;
    uint64_t ended; /* newest step that has ended */
    uint64_t additions, evicted, ids;
    struct hzp_tier *tier; /* NULL: none */
    int32_t copying;       /* pages that are */
    /* Pages that are copied back, in the order in which they were asked for. */
    uint64_t asked, fetched;
    int32_t loading[HZP_TIER_JOBS]; /* [asked - fetched], a ring that begins at `fetched` */
    int32_t kept;
};

void hzp_prefix_create(struct hzp_kvpool *pool, bool on, int32_t stale_max, struct hzp_prefix **ret)
{
    HZP_ASSERT(stale_max >= 0 && stale_max <= HZP_PREFIX_STALE_MAX);
    struct hzp_prefix *p = hzp_xcalloc(1, sizeof(*p));
    p->pool = pool;
    p->on = on;
    p->stale_max = stale_max;
    p->pages = hzp_kvpool_pages(pool);
    p->page_rows = hzp_kvpool_page_rows(pool);
    p->buckets = 1;
    p->idle = p->cooling = (struct list){NONE, NONE, 0};
    if (on) {
        while (p->buckets < (uint64_t)p->pages)
            p->buckets *= 2;
        size_t tokens = (size_t)p->pages * (size_t)p->page_rows;
        p->token = hzp_xcalloc(tokens, sizeof(*p->token));
        p->scratch = hzp_xcalloc((size_t)p->page_rows, sizeof(*p->scratch));
        p->entry = hzp_xcalloc((size_t)p->pages, sizeof(*p->entry));
    }
    p->bucket = hzp_xcalloc(p->buckets, sizeof(*p->bucket));
    for (uint64_t i = 0; i < p->buckets; i++)
        p->bucket[i] = NONE;
    *ret = p;
}

/* ---- lists of idle pages ---- */

static void list_add(struct hzp_prefix *p, struct list *list, int32_t page)
{
    struct entry *e = &p->entry[page];
    e->newer = NONE;
    e->older = list->newest;
    if (list->newest != NONE)
        p->entry[list->newest].newer = page;
    else
        list->oldest = page;
    list->newest = page;
    list->count++;
}

static void list_remove(struct hzp_prefix *p, struct list *list, int32_t page)
{
    struct entry *e = &p->entry[page];
    *(e->newer != NONE ? &p->entry[e->newer].older : &list->newest) = e->older;
    *(e->older != NONE ? &p->entry[e->older].newer : &list->oldest) = e->newer;
    list->count--;
}

static struct list *list_of(struct hzp_prefix *p, int32_t page)
{
    return p->entry[page].step > p->ended ? &p->cooling : &p->idle;
}

/* ---- the table ---- */

static uint64_t hash_more(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* The name of a page before one of these tokens; before the first, that of their layers. */
static uint64_t id_of(const struct hzp_prefix *p, int32_t page,
                      const struct hzp_prefix_tokens *tokens)
{
    uint64_t first = tokens->depth ? UINT64_MAX - (uint64_t)tokens->depth : 0;
    return page == NONE ? first : p->entry[page].id;
}

int32_t hzp_prefix_token(const struct hzp_prefix_tokens *tokens, int32_t i)
{
    return i < tokens->prompt_count ? tokens->prompt[i]
                                    : tokens->out[i - tokens->prompt_count].token;
}

/* Reads the tokens of page `index` into the scratch row; returns the hash up to its end. */
static uint64_t read_page(const struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens,
                          int32_t index, uint64_t hash)
{
    for (int32_t i = 0; i < p->page_rows; i++) {
        p->scratch[i] = hzp_prefix_token(tokens, index * p->page_rows + i);
        hash = hash_more(hash, (uint32_t)p->scratch[i]);
    }
    return hash;
}

/* The kept page with the scratch row's tokens behind the page before_id, of no version older than
 * `oldest`, and of these the freshest one; NONE: there is none. */
static int32_t find(const struct hzp_prefix *p, uint64_t hash, uint64_t before_id, uint64_t oldest)
{
    size_t bytes = (size_t)p->page_rows * sizeof(*p->token);
    int32_t found = NONE;
    for (int32_t page = p->bucket[hash & (p->buckets - 1)]; page != NONE;
         page = p->entry[page].next) {
        const struct entry *e = &p->entry[page];
        if (e->hash == hash && e->before_id == before_id && e->oldest >= oldest &&
            (found == NONE || e->oldest > p->entry[found].oldest) &&
            !memcmp(p->token + (size_t)page * (size_t)p->page_rows, p->scratch, bytes))
            found = page;
    }
    return found;
}

static int32_t *tokens_of(const struct hzp_prefix *p, int32_t page)
{
    return p->token + (size_t)page * (size_t)p->page_rows;
}

static void table_add(struct hzp_prefix *p, int32_t page)
{
    struct entry *e = &p->entry[page];
    int32_t *bucket = &p->bucket[e->hash & (p->buckets - 1)];
    e->kept = true;
    e->next = *bucket;
    *bucket = page;
    p->kept++;
    p->additions++;
}

static void table_remove(struct hzp_prefix *p, int32_t page)
{
    struct entry *e = &p->entry[page];
    int32_t *at = &p->bucket[e->hash & (p->buckets - 1)];
    while (*at != page)
        at = &p->entry[*at].next;
    *at = e->next;
    e->kept = false;
    e->id = 0;
    p->kept--;
}

/* The page is no longer the cache's. */
static void let_go(struct hzp_prefix *p, int32_t page)
{
    HZP_ASSERT(!p->entry[page].copying);
    if (p->entry[page].kept)
        table_remove(p, page);
    p->entry[page].held = p->entry[page].loading = false;
    p->entry[page].id = 0;
    hzp_kvpool_release(p->pool, &page, 1);
}

void hzp_prefix_destroy(struct hzp_prefix *p)
{
    if (!p)
        return;
    for (int32_t page = 0; p->on && page < p->pages; page++) { /* the tier has ended */
        p->entry[page].copying = false;
        if (p->entry[page].loading)
            let_go(p, page);
    }
    hzp_prefix_ended(p, UINT64_MAX);
    while (p->idle.count) {
        int32_t page = p->idle.oldest;
        list_remove(p, &p->idle, page);
        let_go(p, page);
    }
    free(p->entry);
    free(p->token);
    free(p->bucket);
    free(p->scratch);
    free(p);
}

/* ---- versions and steps ---- */

/* Notes the version; returns the oldest one whose pages stay. */
static uint64_t note_version(struct hzp_prefix *p, uint64_t version, uint64_t parent)
{
    if (p->versions && parent != p->served[0])
        p->versions = 0;
    p->versions = HZP_MIN(p->versions + 1, p->stale_max + 1);
    memmove(p->served + 1, p->served, (size_t)(p->versions - 1) * sizeof(*p->served));
    p->served[0] = version;
    return p->served[p->versions - 1];
}

void hzp_prefix_serve(struct hzp_prefix *p, uint64_t version, uint64_t parent)
{
    if (p->versions && version == p->served[0])
        return;
    uint64_t oldest = note_version(p, version, parent);
    for (int32_t page = 0; p->kept && page < p->pages; page++) {
        struct entry *e = &p->entry[page];
        e->hits /= 2;
        if (e->kept && e->oldest < oldest)
            table_remove(p, page);
    }
    for (int32_t page = p->idle.oldest, newer; page != NONE; page = newer) {
        newer = p->entry[page].newer;
        if (p->entry[page].kept || p->entry[page].copying)
            continue;
        list_remove(p, &p->idle, page);
        let_go(p, page);
    }
    if (p->tier)
        hzp_tier_forget(p->tier, oldest);
}

void hzp_prefix_ended(struct hzp_prefix *p, uint64_t step)
{
    int32_t page = p->cooling.oldest;
    while (page != NONE) {
        int32_t newer = p->entry[page].newer;
        if (p->entry[page].step <= step) {
            list_remove(p, &p->cooling, page);
            if (p->entry[page].kept || p->entry[page].copying)
                list_add(p, &p->idle, page);
            else
                let_go(p, page);
        }
        page = newer;
    }
    p->ended = step;
}

uint64_t hzp_prefix_additions(const struct hzp_prefix *p)
{
    return p->additions;
}

/* ---- tiers ---- */

void hzp_prefix_use_tier(struct hzp_prefix *p, struct hzp_tier *tier)
{
    HZP_ASSERT(!p->kept);
    p->tier = p->on ? tier : NULL;
}

static struct hzp_tier_page tier_page(const struct hzp_prefix *p, int32_t page)
{
    const struct entry *e = &p->entry[page];
    return (struct hzp_tier_page){.id = e->id,
                                  .before = e->before_id,
                                  .hash = e->hash,
                                  .oldest = e->oldest,
                                  .token = tokens_of(p, page)};
}

/* Gives a page that will be kept its name.  If the serving version has computed the same rows
 * before, it is theirs, so that what the tier has behind them can be found. */
static void name_page(struct hzp_prefix *p, int32_t page)
{
    struct entry *e = &p->entry[page];
    uint64_t id, oldest;
    e->id = ++p->ids;
    if (!p->tier || e->oldest < p->served[0])
        return;
    struct hzp_tier_page what = tier_page(p, page);
    if (hzp_tier_find(p->tier, &what, &id, &oldest) == NONE)
        return;
    e->id = id;
    e->copied = true;
}

static bool kept_as(const struct hzp_prefix *p, uint64_t hash, uint64_t id)
{
    for (int32_t i = p->bucket[hash & (p->buckets - 1)]; i != NONE; i = p->entry[i].next)
        if (p->entry[i].id == id)
            return true;
    return false;
}

/* A page that the tier has written, or not, can be matched from now on, or is free. */
static void end_loading(struct hzp_prefix *p, int32_t page, bool ok)
{
    struct entry *e = &p->entry[page];
    HZP_ASSERT(e->loading && p->loading[p->fetched % HZP_TIER_JOBS] == page);
    p->fetched++;
    p->additions++;
    bool there = kept_as(p, e->hash, e->id); /* another sequence has computed it meanwhile */
    if (!ok || there || e->oldest < p->served[p->versions - 1]) {
        let_go(p, page);
        return;
    }
    e->loading = false;
    e->copied = true;
    table_add(p, page);
    list_add(p, &p->idle, page);
}

static void end_copying(struct hzp_prefix *p, int32_t page, bool ok)
{
    struct entry *e = &p->entry[page];
    e->copying = false;
    e->copied &= ok;
    p->copying--;
    if (e->refs || e->kept || e->step > p->ended)
        return;
    list_remove(p, &p->idle, page);
    let_go(p, page);
}

/* While few pages are free: copies those that will be given out next. */
static void copy_ahead(struct hzp_prefix *p)
{
    enum { AHEAD = 32 };
    int32_t page = p->idle.oldest;
    if (hzp_kvpool_free_pages(p->pool) > p->pages / 4)
        return;
    for (int i = 0; i < AHEAD && page != NONE; i++, page = p->entry[page].newer) {
        struct entry *e = &p->entry[page];
        struct hzp_tier_page what = tier_page(p, page);
        bool posted;
        if (!e->kept || e->copied || e->copying)
            continue;
        /* half of the jobs are left for reading */
        if (hzp_tier_room(p->tier) <= HZP_TIER_JOBS / 2 ||
            !hzp_tier_put(p->tier, &what, page, &posted))
            return;
        e->copied = true;
        e->copying = posted;
        p->copying += posted;
    }
}

void hzp_prefix_turn(struct hzp_prefix *p)
{
    struct hzp_tier_done done;
    if (!p->tier)
        return;
    while (hzp_tier_done(p->tier, &done))
        if (done.read)
            end_loading(p, done.page, done.ok);
        else
            end_copying(p, done.page, done.ok);
    copy_ahead(p);
}

uint64_t hzp_prefix_fetched(const struct hzp_prefix *p)
{
    return p->fetched;
}

/* When the page of this name has been copied back; 0: it is not being. */
static uint64_t loading_until(const struct hzp_prefix *p, uint64_t id)
{
    for (uint64_t n = p->fetched; n < p->asked; n++)
        if (p->entry[p->loading[n % HZP_TIER_JOBS]].id == id)
            return n + 1;
    return 0;
}

/* A page that a tier has, and what it will be here. */
struct fetch {
    int32_t from; /* the tier's entry */
    struct entry entry;
};

/* Has one page copied back.  False: there is no page for it. */
static bool load(struct hzp_prefix *p, const struct fetch *fetch,
                 const struct hzp_prefix_tokens *tokens)
{
    int32_t page = hzp_prefix_take(p);
    if (page < 0)
        return false;
    p->entry[page] = fetch->entry;
    read_page(p, tokens, fetch->entry.index, 0);
    memcpy(tokens_of(p, page), p->scratch, (size_t)p->page_rows * sizeof(*p->token));
    bool posted = hzp_tier_get(p->tier, fetch->from, page);
    HZP_ASSERT(posted); /* the caller has asked for room */
    p->loading[p->asked++ % HZP_TIER_JOBS] = page;
    return true;
}

/* The pages of the tier that continue the chain; *ret_until: of those on their way already. */
static int32_t chain_of_tier(struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens,
                             int32_t from, int32_t most, int32_t before, struct fetch *ret,
                             uint64_t *ret_until)
{
    uint64_t before_id = id_of(p, before, tokens),
             hash = before == NONE ? 0 : p->entry[before].hash;
    int32_t n = 0, room = hzp_tier_room(p->tier);
    for (int32_t i = from; i < most && n < room; i++) {
        struct hzp_tier_page what = {
            .before = before_id, .oldest = tokens->oldest, .token = p->scratch};
        uint64_t id, oldest;
        what.hash = hash = read_page(p, tokens, i, hash);
        int32_t here = find(p, hash, before_id, tokens->oldest), there;
        if (here != NONE) {
            before_id = p->entry[here].id;
            before = here;
            continue;
        }
        there = hzp_tier_find(p->tier, &what, &id, &oldest);
        if (there == NONE)
            break;
        uint64_t until = loading_until(p, id);
        *ret_until = HZP_MAX(*ret_until, until);
        if (!until)
            ret[n++] = (struct fetch){there,
                                      {.held = true,
                                       .loading = true,
                                       .hash = hash,
                                       .before = before,
                                       .id = id,
                                       .before_id = before_id,
                                       .index = i,
                                       .depth = tokens->depth,
                                       .oldest = oldest,
                                       .newer = NONE,
                                       .older = NONE}};
        before_id = id;
        before = NONE;
    }
    return n;
}

uint64_t hzp_prefix_fetch(struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens,
                          int32_t from, int32_t most, const int32_t *page, double row_ns)
{
    hzp_assert_engine_thread();
    struct fetch fetch[HZP_TIER_JOBS];
    int32_t before = from ? page[from - 1] : NONE, loaded = 0;
    uint64_t until = 0;
    if (!p->tier || (before != NONE && !p->entry[before].kept))
        return 0;
    int32_t n = chain_of_tier(p, tokens, from, most, before, fetch, &until);
    if (!n)
        return until;
    double read_ns = hzp_tier_read_ns(p->tier, fetch[0].from);
    int32_t queued = HZP_TIER_JOBS - hzp_tier_room(p->tier);
    if (read_ns > 0 && row_ns > 0 && read_ns * (queued + n) >= row_ns * n * p->page_rows)
        return until;
    while (loaded < n && load(p, &fetch[loaded], tokens))
        loaded++;
    return loaded ? p->asked : until;
}

/* ---- matching and keeping ---- */

/* Where a search for kept pages stands: behind the page `before`. */
struct search {
    const struct hzp_prefix_tokens *tokens;
    uint64_t hash;
    int32_t before;
};

static struct search search_from(const struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens,
                                 int32_t from, const int32_t *page)
{
    int32_t before = from ? page[from - 1] : NONE;
    return (struct search){tokens, from ? p->entry[before].hash : 0, before};
}

/* Goes on to page `index`, if it is kept. */
static bool search_next(const struct hzp_prefix *p, struct search *search, int32_t index)
{
    bool behind = search->before == NONE || p->entry[search->before].kept;
    if (!p->kept || !behind || (index + 1) * p->page_rows > search->tokens->count)
        return false;
    search->hash = read_page(p, search->tokens, index, search->hash);
    search->before =
        find(p, search->hash, id_of(p, search->before, search->tokens), search->tokens->oldest);
    return search->before != NONE;
}

int32_t hzp_prefix_match(struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens, int32_t from,
                         int32_t most, int32_t *page, int32_t *ret_used)
{
    hzp_assert_engine_thread();
    int32_t n = from;
    if (hzp_kvpool_backing(p->pool))
        most = hzp_prefix_peek(p, tokens, from, most, page, ret_used);
    *ret_used = 0;
    if (!p->on)
        return n;
    struct search search = search_from(p, tokens, from, page);
    for (; n < most && search_next(p, &search, n); n++) {
        struct entry *e = &p->entry[search.before];
        page[n] = search.before;
        e->before = n ? page[n - 1] : NONE; /* not known of a page that a tier has given back */
        *ret_used += e->refs > 0;
        if (!e->refs)
            list_remove(p, list_of(p, search.before), search.before);
        e->refs++;
        hzp_kvpool_hold(p->pool, search.before);
    }
    return n;
}

int32_t hzp_prefix_peek(const struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens,
                        int32_t from, int32_t most, const int32_t *page, int32_t *ret_used)
{
    int32_t n = from, end = from, used = 0, backed = from; /* in a row, up to n */
    *ret_used = 0;
    if (!p->on)
        return n;
    struct search search = search_from(p, tokens, from, page);
    while (n < most && search_next(p, &search, n)) {
        used += p->entry[search.before].refs > 0;
        backed = hzp_kvpool_backed(p->pool, search.before) ? backed + 1 : 0;
        n++;
        if (backed < n - hzp_kvpool_first(p->pool, n * p->page_rows))
            continue; /* the next row would read a page that is not */
        end = n;
        *ret_used = used;
    }
    return end;
}

uint64_t hzp_prefix_oldest(const struct hzp_prefix *p, int32_t page)
{
    return p->entry[page].oldest;
}

/* Another page is kept in place of this one, which is not backed, under its name. */
static uint64_t take_place(struct hzp_prefix *p, int32_t page)
{
    uint64_t id = p->entry[page].id;
    table_remove(p, page);
    if (!p->entry[page].refs && list_of(p, page) == &p->idle) {
        list_remove(p, &p->idle, page);
        let_go(p, page);
    }
    return id;
}

bool hzp_prefix_keep(struct hzp_prefix *p, const struct hzp_prefix_tokens *tokens,
                     const int32_t *page, int32_t index)
{
    hzp_assert_engine_thread();
    if (!p->on)
        return false;
    int32_t before = index ? page[index - 1] : NONE, own = page[index];
    HZP_ASSERT((index + 1) * p->page_rows <= tokens->count);
    HZP_ASSERT(before == NONE || p->entry[before].held);
    if (before != NONE && !p->entry[before].kept)
        return false; /* computed by the version before the last swap */
    uint64_t hash = read_page(p, tokens, index, before == NONE ? 0 : p->entry[before].hash);
    uint64_t oldest = p->served[0];
    if (before != NONE)
        oldest = HZP_MIN(oldest, p->entry[before].oldest);
    int32_t there = find(p, hash, id_of(p, before, tokens), oldest);
    if (there != NONE && (hzp_kvpool_backed(p->pool, there) || !hzp_kvpool_backed(p->pool, own)))
        return false;
    HZP_ASSERT(!p->entry[own].held);
    uint64_t id = there == NONE ? 0 : take_place(p, there);
    p->entry[own] = (struct entry){.held = true,
                                   .hash = hash,
                                   .before = before,
                                   .before_id = id_of(p, before, tokens),
                                   .index = index,
                                   .depth = tokens->depth,
                                   .oldest = oldest,
                                   .refs = 1,
                                   .newer = NONE,
                                   .older = NONE};
    memcpy(tokens_of(p, own), p->scratch, (size_t)p->page_rows * sizeof(*p->token));
    if (id)
        p->entry[own].id = id;
    else
        name_page(p, own);
    table_add(p, own);
    return true;
}

void hzp_prefix_release(struct hzp_prefix *p, const int32_t *page, int32_t count, uint64_t step)
{
    hzp_assert_engine_thread();
    for (int32_t i = count - 1; i >= 0; i--) {
        struct entry *e = &p->entry[page[i]];
        HZP_ASSERT(e->held && e->refs > 0);
        e->step = HZP_MAX(e->step, step);
        if (--e->refs)
            continue;
        if (e->kept || e->copying || e->step > p->ended)
            list_add(p, list_of(p, page[i]), page[i]);
        else
            let_go(p, page[i]);
    }
}

/* ---- what is worth computing again ---- */

void hzp_prefix_count(struct hzp_prefix *p, const int32_t *page, int32_t count, uint32_t hits)
{
    for (int32_t i = 0; i < count; i++) {
        struct entry *e = &p->entry[page[i]];
        e->hits = hits > UINT32_MAX - e->hits ? UINT32_MAX : e->hits + hits;
    }
}

/* A page for the choice of the hottest. */
struct candidate {
    uint32_t hits;
    int32_t index, page;
};

static int hotter(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->hits != y->hits)
        return x->hits > y->hits ? -1 : 1;
    if (x->index != y->index)
        return x->index > y->index ? -1 : 1; /* the end of a chain: it takes those before along */
    return x->page < y->page ? -1 : x->page > y->page;
}

/* The page before, if it is kept; NONE: it is the first, or its chain is broken. */
static int32_t kept_before(const struct hzp_prefix *p, int32_t page)
{
    const struct entry *e = &p->entry[page];
    bool there =
        e->before != NONE && p->entry[e->before].kept && p->entry[e->before].id == e->before_id;
    return there ? e->before : NONE;
}

/* Adds the page, and those before it that are not chosen yet, if there is room for all of them. */
static bool choose_chain(const struct hzp_prefix *p, int32_t page, bool *chosen, int32_t *room)
{
    int32_t more = 0, at = page, first = page;
    for (; at != NONE && !chosen[at]; at = kept_before(p, at), more++)
        first = at;
    bool whole = at != NONE || p->entry[first].index == 0;
    if (!more || !whole || more > *room)
        return false;
    for (at = page; at != NONE && !chosen[at]; at = kept_before(p, at))
        chosen[at] = true;
    *room -= more;
    return true;
}

static struct hzp_prefix_hot copy_chain(const struct hzp_prefix *p, int32_t page)
{
    size_t rows = (size_t)p->page_rows;
    struct hzp_prefix_hot hot = {.count = (p->entry[page].index + 1) * p->page_rows,
                                 .hits = p->entry[page].hits,
                                 .depth = p->entry[page].depth};
    hot.token = hzp_xmalloc((size_t)hot.count * sizeof(*hot.token));
    for (int32_t at = page; at != NONE; at = kept_before(p, at))
        memcpy(hot.token + (size_t)p->entry[at].index * rows, p->token + (size_t)at * rows,
               rows * sizeof(*hot.token));
    return hot;
}

int32_t hzp_prefix_hottest(const struct hzp_prefix *p, int32_t rows_max, struct hzp_prefix_hot *ret,
                           int32_t most)
{
    int32_t room = rows_max / p->page_rows, n = 0, count = 0;
    if (!p->kept || !room)
        return 0;
    HZP_FREED struct candidate *from = hzp_xmalloc((size_t)p->kept * sizeof(*from));
    HZP_FREED bool *chosen = hzp_xcalloc((size_t)p->pages, sizeof(*chosen));
    for (int32_t page = 0; page < p->pages; page++)
        if (p->entry[page].kept && p->entry[page].hits)
            from[n++] = (struct candidate){p->entry[page].hits, p->entry[page].index, page};
    qsort(from, (size_t)n, sizeof(*from), hotter);
    for (int32_t i = 0; i < n && count < most && room; i++)
        if (choose_chain(p, from[i].page, chosen, &room))
            ret[count++] = copy_chain(p, from[i].page);
    return count;
}

/* ---- pages for sequences ---- */

int32_t hzp_prefix_take(struct hzp_prefix *p)
{
    bool need = !hzp_kvpool_free_pages(p->pool) && hzp_kvpool_backs_left(p->pool) > 0;
    int32_t page = need ? p->idle.oldest : NONE;
    while (page != NONE && p->entry[page].copying)
        page = p->entry[page].newer;
    if (page != NONE) {
        list_remove(p, &p->idle, page);
        let_go(p, page);
        p->evicted++;
    }
    return hzp_kvpool_take(p->pool);
}

int32_t hzp_prefix_available(const struct hzp_prefix *p)
{
    /* some that are copied may not be idle: then it is more */
    int32_t pages = hzp_kvpool_free_pages(p->pool) + HZP_MAX(p->idle.count - p->copying, 0);
    int32_t backs = hzp_kvpool_backs_left(p->pool);
    return HZP_MIN(pages, backs);
}

void hzp_prefix_read_stats(const struct hzp_prefix *p, struct hzp_prefix_stats *ret)
{
    *ret = (struct hzp_prefix_stats){.idle = p->idle.count + p->cooling.count +
                                             (int32_t)(p->asked - p->fetched),
                                     .kept = p->kept,
                                     .evicted = p->evicted};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sites/rounds.h"

enum { OUT = 4, CONTROL_MAX = sizeof(struct hzp_site_header) + HZP_SITES_MAX * 24 };

static const uint64_t hello_ns = 1000000000, quiet_ns = 15000000000u, settled_ns = 2000000000,
                      again_ns = 1000000000; /* after a round that came to nothing */

enum stage { NONE, SAMPLE, EXCHANGE, READY };
static const char *const stage_name[] = {"none", "sample", "exchange", "ready"};

struct peer {
    uint64_t began;                         /* its process; 0: not known */
    uint64_t heard_ns, changed_ns, busy_ns; /* 0: never; updates changed; busy since, 0: is not */
    int64_t round, updates, before;         /* before: updates when the newest round began */
    int32_t news, left;
    uint64_t id; /* of the agreed average of the part behind its round */
    /* its message of the round in progress */
    char *data;
    int64_t got, weight; /* blocks */
    uint64_t sum;
    bool whole, declined;
    int64_t sent; /* blocks of this site's that it was sent; -1: it gets none */
    struct {      /* messages that wait for room */
        char data[CONTROL_MAX];
        size_t bytes;
    } out[OUT];
    int first, count;
};

struct hzp_site_rounds {
    struct hzp_rounds_config is;
    struct peer peer[HZP_SITES_MAX];
    float *agreed, *error, *ema;   /* [blocks * 64]; ema NULL: the delta rule */
    float *w, *average;            /* of the part: this site's, and the round's result */
    int64_t *sent_at;              /* [parts] this site's samples in the part's last average */
    int64_t updates, samples;      /* so far */
    int64_t sample_updates, taken; /* when the part was given; samples that its weight counts */
    enum stage stage;
    int64_t round; /* the newest that it was in, 0: none; in progress unless NONE */
    int32_t part, left;
    enum hzp_site_coding coding; /* of the round's pieces */
    int leader;
    bool committed;
    uint64_t id, new_id; /* of the part's agreed average; of the commit's */
    uint64_t begun_ns, hello_at, not_before;
    struct hzp_site_entry entry[HZP_SITES_MAX];
    int32_t entries;
    uint64_t next_id; /* of the part behind next_of, which is a round; 0: not known */
    int64_t next_of;
    struct hzp_rounds_stats stats;
    char scratch[HZP_SITE_MESSAGE_MAX];
};

static int64_t part_blocks(const struct hzp_rounds_config *c, int32_t part)
{
    int64_t blocks;
    hzp_site_part(c->limits.parts, part, &blocks);
    return blocks;
}

/* Of a site's message of the round: none where it has learned nothing. */
static int64_t message_blocks(const struct hzp_site_rounds *r, const struct peer *p)
{
    return p->weight ? part_blocks(&r->is, r->part) : 0;
}

static bool open_round(const struct hzp_site_rounds *r)
{
    return r->stage == SAMPLE || r->stage == EXCHANGE;
}

static size_t all_elements(const struct hzp_rounds_config *c)
{
    return (size_t)c->limits.parts->blocks * HZP_SITE_BLOCK;
}

/* --- Creation --------------------------------------------------------------------------------- */

/* Elements of a part; none has more than the first. */
static size_t part_elements(const struct hzp_rounds_config *c)
{
    return (size_t)part_blocks(c, 0) * HZP_SITE_BLOCK;
}

size_t hzp_rounds_bytes(const struct hzp_rounds_config *c)
{
    return sizeof(float) *
           (all_elements(c) * (c->ema ? 3 : 2) + part_elements(c) * (2 + (size_t)c->limits.sites));
}

int hzp_rounds_create(const struct hzp_rounds_config *config, struct hzp_site_rounds **ret)
{
    struct hzp_site_rounds *r = hzp_xcalloc(1, sizeof(*r));
    size_t all = all_elements(config), part = part_elements(config);
    r->is = *config;
    r->sent_at = hzp_xcalloc((size_t)config->limits.parts->parts, sizeof(*r->sent_at));
    r->agreed = calloc(1, hzp_rounds_bytes(config)); /* and all that follows */
    if (!r->agreed) {
        hzp_rounds_destroy(r);
        return HZP_ENOMEM;
    }
    r->error = r->agreed + all;
    r->ema = config->ema ? r->error + all : NULL;
    r->w = r->error + all * (config->ema ? 2 : 1);
    r->average = r->w + part;
    for (int s = 0; s < config->limits.sites; s++) {
        r->peer[s].data = (char *)(r->average + part * (1 + (size_t)s));
        r->peer[s].sent = -1;
    }
    *ret = r;
    return HZP_OK;
}

void hzp_rounds_destroy(struct hzp_site_rounds *r)
{
    if (!r)
        return;
    free(r->agreed);
    free(r->sent_at);
    free(r);
}

float *hzp_rounds_agreed(struct hzp_site_rounds *r)
{
    return r->agreed;
}

/* --- Who is there ----------------------------------------------------------------------------- */

static bool alive(const struct hzp_site_rounds *r, int s, uint64_t now)
{
    const struct peer *p = &r->peer[s];
    return s == r->is.self || (p->heard_ns && now - p->heard_ns < quiet_ns);
}

static int64_t newest_round(const struct hzp_site_rounds *r)
{
    int64_t newest = r->round;
    for (int s = 0; s < r->is.limits.sites; s++)
        newest = HZP_MAX(newest, r->peer[s].round);
    return newest;
}

/* It has missed all parts, or its weight is not yet full. */
static bool late(const struct hzp_site_rounds *r, int s)
{
    bool behind = r->round + r->is.limits.parts->parts < newest_round(r);
    return s == r->is.self ? r->left > 0 || behind : r->peer[s].left > 0;
}

static int leader(const struct hzp_site_rounds *r, uint64_t now)
{
    int first = -1, late_one = -1;
    for (int s = r->is.limits.sites - 1; s >= 0; s--) {
        if (alive(r, s, now))
            *(late(r, s) ? &late_one : &first) = s;
    }
    return first >= 0 ? first : late_one;
}

/* In the round: without those that have declined it. */
static int count_alive(const struct hzp_site_rounds *r, uint64_t now, bool in_round)
{
    int count = 0;
    for (int s = 0; s < r->is.limits.sites; s++)
        count += alive(r, s, now) && !(in_round && r->peer[s].declined);
    return count;
}

static int32_t part_of(const struct hzp_site_rounds *r, int64_t round)
{
    return (int32_t)((round - 1) % r->is.limits.parts->parts);
}

/* Of the part's agreed average; or of one that lies block by block at `average`. */
static uint64_t id_of(const struct hzp_site_rounds *r, int32_t part, const float *average)
{
    int64_t count;
    const uint32_t *block = hzp_site_part(r->is.limits.parts, part, &count);
    uint64_t id = 0;
    for (int64_t i = 0; i < count; i++)
        id = id * 31 + hzp_site_id(average ? average + i * HZP_SITE_BLOCK
                                           : r->agreed + (size_t)block[i] * HZP_SITE_BLOCK,
                                   HZP_SITE_BLOCK);
    return id;
}

/* Of the part of the next round: kept, because it goes over all of it. */
static uint64_t next_id(struct hzp_site_rounds *r)
{
    int64_t newest = newest_round(r);
    if (!r->next_id || r->next_of != newest)
        r->next_id = id_of(r, part_of(r, newest + 1), NULL);
    r->next_of = newest;
    return r->next_id;
}

/* --- Sending ---------------------------------------------------------------------------------- */

static bool put(struct hzp_site_rounds *r, int s, const void *data, size_t bytes)
{
    bool sent = r->is.send(r->is.ctx, s, data, bytes);
    r->stats.bytes_sent += sent ? bytes : 0;
    return sent;
}

static struct hzp_site_header of_round(const struct hzp_site_rounds *r, enum hzp_site_kind kind)
{
    return (struct hzp_site_header){.kind = (uint8_t)kind,
                                    .coding = (uint8_t)r->coding,
                                    .from = (uint8_t)r->is.self,
                                    .mesh = r->is.limits.mesh,
                                    .began = r->is.began,
                                    .id = r->id,
                                    .round = r->round,
                                    .part = r->part};
}

/* To one site, s, or all others, -1. */
static void tell(struct hzp_site_rounds *r, int s, struct hzp_site_header h)
{
    char data[CONTROL_MAX];
    if (h.kind == HZP_SITE_COMMIT)
        memcpy(data + sizeof(h), r->entry, (size_t)h.count * sizeof(r->entry[0]));
    size_t bytes = hzp_site_seal(data, &h, NULL);
    for (int to = 0; to < r->is.limits.sites; to++) {
        struct peer *p = &r->peer[to];
        if (to == r->is.self || (s >= 0 && s != to))
            continue;
        if (!p->count && put(r, to, data, bytes))
            continue;
        if (h.kind == HZP_SITE_HELLO) /* the next one says more */
            continue;
        if (p->count == OUT) { /* it has not read the oldest for long */
            p->first = (p->first + 1) % OUT;
            p->count--;
        }
        int at = (p->first + p->count++) % OUT;
        memcpy(p->out[at].data, data, bytes);
        p->out[at].bytes = bytes;
    }
}

static void say_hello(struct hzp_site_rounds *r, uint64_t now)
{
    struct hzp_site_header h = of_round(r, HZP_SITE_HELLO);
    h.round = newest_round(r);
    h.number = r->updates;
    h.first = r->left ? r->left : late(r, r->is.self);
    h.count = r->stage != NONE;
    h.part = 0;
    for (int32_t k = 0; k < r->is.limits.parts->parts; k++)
        h.part += r->samples > r->sent_at[k];
    h.id = next_id(r);
    r->hello_at = now + hello_ns;
    struct peer *self = &r->peer[r->is.self];
    self->changed_ns = self->updates != r->updates ? now : self->changed_ns;
    self->updates = r->updates;
    self->news = h.part;
    tell(r, -1, h);
}

/* One message with blocks [first, first + count) of this site's. */
static size_t make_piece(struct hzp_site_rounds *r, int64_t first, int64_t *ret_count,
                         uint64_t *ret_sum)
{
    const struct peer *self = &r->peer[r->is.self];
    int64_t left = message_blocks(r, self) - first;
    size_t each = hzp_site_block_bytes(r->coding);
    struct hzp_site_header h = of_round(r, HZP_SITE_PIECE);
    h.number = self->weight;
    h.first = first;
    h.count = (int32_t)HZP_MIN(left, (int64_t)HZP_SITE_PIECE_MAX);
    *ret_count = h.count;
    memcpy(r->scratch + sizeof(h), self->data + (size_t)first * each, (size_t)h.count * each);
    return hzp_site_seal(r->scratch, &h, ret_sum);
}

/* True: something waits for room. */
static bool pump(struct hzp_site_rounds *r, int s)
{
    struct peer *p = &r->peer[s];
    for (; p->count; p->count--, p->first = (p->first + 1) % OUT)
        if (!put(r, s, p->out[p->first].data, p->out[p->first].bytes))
            return true;
    int64_t all = message_blocks(r, &r->peer[r->is.self]);
    while (p->sent >= 0) { /* also when the round is decided: others wait for it */
        int64_t count;
        size_t bytes = make_piece(r, p->sent, &count, NULL);
        if (!put(r, s, r->scratch, bytes))
            return true;
        p->sent = p->sent + count < all ? p->sent + count : -1;
    }
    return false;
}

/* --- A round ---------------------------------------------------------------------------------- */

static void end_round(struct hzp_site_rounds *r)
{
    r->stage = NONE;
    r->hello_at = 0; /* so that the next may begin */
    r->next_id = 0;
}

/* The round is over for this site, which has not got its average. */
static void miss(struct hzp_site_rounds *r)
{
    r->stats.missed++;
    end_round(r);
}

static void begin(struct hzp_site_rounds *r, int64_t round, int32_t part,
                  enum hzp_site_coding coding, int by, uint64_t now)
{
    if (!r->round && by != r->is.self && round > r->is.limits.parts->parts && r->is.join)
        r->left = r->is.join + HZP_SITE_RAMP; /* it comes to rounds that others have begun */
    r->stage = SAMPLE;
    r->round = round;
    r->part = part;
    r->coding = coding;
    r->leader = by;
    r->id = id_of(r, part, NULL);
    r->begun_ns = now;
    r->committed = false;
    for (int s = 0; s < r->is.limits.sites; s++) {
        struct peer *p = &r->peer[s];
        p->got = p->weight = 0;
        p->sum = 0;
        p->whole = p->declined = false;
        p->sent = -1;
        p->before = p->updates;
    }
}

/* A message of a round that this site is not in.  True: it is now. */
static bool join(struct hzp_site_rounds *r, const struct hzp_site_header *h, uint64_t now)
{
    int by = leader(r, now);
    bool free = r->stage == NONE || (r->stage == EXCHANGE && !r->committed);
    bool same = h->coding == HZP_SITE_F32 || h->id == id_of(r, h->part, NULL);
    if (h->round <= r->round || by == r->is.self || (h->kind == HZP_SITE_BEGIN && h->from != by))
        return false;
    if (!free || !same) {
        struct hzp_site_header no = of_round(r, HZP_SITE_DECLINE);
        no.round = h->round;
        no.part = h->part;
        tell(r, h->from, no);
        r->stats.missed += h->kind == HZP_SITE_BEGIN;
        return false;
    }
    r->stats.missed += r->stage == EXCHANGE;
    begin(r, h->round, h->part, (enum hzp_site_coding)h->coding, by, now);
    return true;
}

float *hzp_rounds_wants(struct hzp_site_rounds *r, const uint32_t **ret_block, int64_t *ret_count)
{
    *ret_block = hzp_site_part(r->is.limits.parts, r->part, ret_count);
    return r->stage == SAMPLE ? r->w : NULL;
}

void hzp_rounds_sampled(struct hzp_site_rounds *r)
{
    struct peer *self = &r->peer[r->is.self];
    int64_t piece, blocks;
    const uint32_t *block = hzp_site_part(r->is.limits.parts, r->part, &blocks);
    size_t each = hzp_site_block_bytes(r->coding);
    HZP_ASSERT(r->stage == SAMPLE);
    r->sample_updates = r->updates;
    r->taken = r->samples;
    self->weight = hzp_site_weight(r->samples - r->sent_at[r->part], r->left);
    for (int64_t i = 0; i < blocks && self->weight; i++) {
        size_t at = (size_t)block[i] * HZP_SITE_BLOCK;
        hzp_site_encode(r->coding, r->w + i * HZP_SITE_BLOCK, r->agreed + at, r->error + at,
                        self->data + (size_t)i * each);
    }
    for (int64_t at = 0; at < message_blocks(r, self); at += piece) {
        uint64_t sum;
        make_piece(r, at, &piece, &sum);
        self->sum += sum;
    }
    self->whole = true;
    r->stage = EXCHANGE;
    for (int s = 0; s < r->is.limits.sites; s++)
        r->peer[s].sent = s == r->is.self ? -1 : 0;
}

static void take_piece(struct hzp_site_rounds *r, const struct hzp_site_header *h,
                       const void *payload)
{
    struct peer *p = &r->peer[h->from];
    size_t each = hzp_site_block_bytes(r->coding);
    bool fits = h->round == r->round && h->part == r->part && h->coding == r->coding &&
                h->first == p->got && !p->whole && open_round(r);
    if (!fits || (p->got && h->number != p->weight))
        return; /* of another round, or one before it was lost: the message stays incomplete */
    memcpy(p->data + (size_t)p->got * each, payload, (size_t)h->count * each);
    p->weight = h->number;
    p->got += h->count;
    p->sum += h->count ? h->check : 0;
    p->whole = p->got == message_blocks(r, p);
}

/* Computes the average of the entries; false: a value is not finite. */
static bool average(struct hzp_site_rounds *r)
{
    int64_t blocks, weight[HZP_SITES_MAX];
    const uint32_t *block = hzp_site_part(r->is.limits.parts, r->part, &blocks);
    size_t each = hzp_site_block_bytes(r->coding);
    float y[HZP_SITES_MAX][HZP_SITE_BLOCK];
    const float *values[HZP_SITES_MAX];
    double square = 0;
    for (int64_t i = 0; i < blocks; i++) {
        float *to = r->average + i * HZP_SITE_BLOCK;
        for (int32_t e = 0; e < r->entries; e++) {
            values[e] = y[e];
            weight[e] = r->entry[e].weight;
            if (!hzp_site_decode(r->coding, r->peer[r->entry[e].from].data + (size_t)i * each,
                                 r->agreed + (size_t)block[i] * HZP_SITE_BLOCK, y[e]))
                return false;
        }
        hzp_site_average(values, weight, r->entries, HZP_SITE_BLOCK, to);
        for (int j = 0; j < HZP_SITE_BLOCK; j++) {
            double apart = (double)r->w[i * HZP_SITE_BLOCK + j] - (double)to[j];
            square += apart * apart;
        }
    }
    r->stats.drift = sqrt(square / (double)(blocks * HZP_SITE_BLOCK));
    return true;
}

/* The average is agreed on. */
static void agree(struct hzp_site_rounds *r)
{
    struct peer *self = &r->peer[r->is.self];
    int64_t blocks;
    const uint32_t *block = hzp_site_part(r->is.limits.parts, r->part, &blocks);
    size_t each = hzp_site_block_bytes(r->coding);
    float y[HZP_SITE_BLOCK];
    bool in = hzp_rounds_sites(r) >> r->is.self & 1;
    for (int64_t i = 0; i < blocks; i++) {
        size_t at = (size_t)block[i] * HZP_SITE_BLOCK;
        float *error = r->error + at;
        if (r->coding == HZP_SITE_F32) {
            memset(error, 0, sizeof(y));
        } else if (in) {
            hzp_site_decode(r->coding, self->data + (size_t)i * each, r->agreed + at, y);
            hzp_site_keep_error(r->w + i * HZP_SITE_BLOCK, r->agreed + at, y, HZP_SITE_BLOCK,
                                error);
        }
        memcpy(r->agreed + at, r->average + i * HZP_SITE_BLOCK, sizeof(y));
    }
    if (in)
        r->sent_at[r->part] = r->taken;
    r->left = HZP_MAX(r->left - 1, 0);
    if (in || !self->weight)
        r->stage = READY;
    else
        miss(r);
}

static void give_up(struct hzp_site_rounds *r, uint64_t now)
{
    r->stats.given_up++;
    r->not_before = now + again_ns;
    for (int s = 0; s < r->is.limits.sites; s++)
        r->peer[s].sent = -1;
    tell(r, -1, of_round(r, HZP_SITE_COMMIT));
    end_round(r);
}

/* Leader: whether the round ends, and how. */
static void decide(struct hzp_site_rounds *r, uint64_t now)
{
    bool over = now - r->begun_ns > r->is.limit_ns, missing = false;
    int whole = 0;
    r->entries = 0;
    for (int s = 0; s < r->is.limits.sites; s++) {
        const struct peer *p = &r->peer[s];
        missing = missing || (alive(r, s, now) && !p->declined && !p->whole);
        whole += p->whole;
        if (p->whole && p->weight)
            r->entry[r->entries++] = (struct hzp_site_entry){s, p->weight, p->sum};
    }
    bool hopeless = count_alive(r, now, true) < r->is.quorum;
    if (missing && !over && !hopeless)
        return;
    if (whole < r->is.quorum || !r->entries || r->stage != EXCHANGE || !average(r)) {
        give_up(r, now);
        return;
    }
    struct hzp_site_header h = of_round(r, HZP_SITE_COMMIT);
    h.id = id_of(r, r->part, r->average);
    h.count = r->entries;
    tell(r, -1, h);
    agree(r);
}

static void take_commit(struct hzp_site_rounds *r, const struct hzp_site_header *h,
                        const void *payload)
{
    if (h->round != r->round || h->from != r->leader || !open_round(r))
        return;
    if (!h->count) {
        r->stats.given_up++;
        end_round(r);
        return;
    }
    r->committed = true;
    r->new_id = h->id;
    r->entries = h->count;
    memcpy(r->entry, payload, (size_t)h->count * sizeof(r->entry[0]));
}

/* Another site than the leader: the commit is there; whether everything in it is. */
static void finish(struct hzp_site_rounds *r)
{
    bool same = true;
    for (int32_t e = 0; e < r->entries && same; e++) {
        const struct peer *p = &r->peer[r->entry[e].from];
        if (!p->whole)
            return;
        same = p->weight == r->entry[e].weight && p->sum == r->entry[e].sum;
    }
    if (same && average(r) && id_of(r, r->part, r->average) == r->new_id)
        agree(r);
    else
        miss(r);
}

/* Whether the next round is due. */
static bool due(const struct hzp_site_rounds *r, uint64_t now)
{
    bool many = false, news = false, settled = true;
    for (int s = 0; s < r->is.limits.sites; s++) {
        const struct peer *p = &r->peer[s];
        if (!alive(r, s, now))
            continue;
        many = many || p->updates - p->before >= r->is.every;
        news = news || p->news > 0;
        settled = settled && now - p->changed_ns >= settled_ns;
    }
    return many || (news && settled);
}

/* This site leads, and may begin a round. */
static void lead(struct hzp_site_rounds *r, uint64_t now)
{
    enum hzp_site_coding coding = r->is.coding;
    int64_t newest = newest_round(r);
    bool busy = r->stage != NONE;
    if (!due(r, now) || count_alive(r, now, false) < r->is.quorum)
        return;
    for (int s = 0; s < r->is.limits.sites; s++) {
        const struct peer *p = &r->peer[s];
        if (s == r->is.self || !alive(r, s, now))
            continue;
        bool lags = p->busy_ns || p->round < newest;
        busy = busy || (lags && (!p->busy_ns || now - p->busy_ns < r->is.limit_ns));
        if (p->round != newest || p->id != next_id(r))
            coding = HZP_SITE_F32;
    }
    if (busy) {
        bool many = false;
        for (int s = 0; s < r->is.limits.sites; s++)
            many = many || r->peer[s].updates - r->peer[s].before >= r->is.every;
        for (int s = 0; s < r->is.limits.sites && many; s++)
            r->peer[s].before = r->peer[s].updates;
        r->stats.skipped += many;
        return;
    }
    if (now < r->not_before)
        return;
    begin(r, newest + 1, part_of(r, newest + 1), coding, r->is.self, now);
    tell(r, -1, of_round(r, HZP_SITE_BEGIN));
}

/* --- The interface ---------------------------------------------------------------------------- */

void hzp_rounds_note(struct hzp_site_rounds *r, int64_t updates, int64_t samples)
{
    r->updates = updates;
    r->samples = samples;
}

static void take_hello(struct hzp_site_rounds *r, const struct hzp_site_header *h, uint64_t now)
{
    struct peer *p = &r->peer[h->from];
    bool busy = h->count || h->round < newest_round(r);
    p->changed_ns = h->number != p->updates ? now : p->changed_ns;
    p->busy_ns = !busy ? 0 : p->busy_ns ? p->busy_ns : now;
    p->round = h->round;
    p->updates = h->number;
    p->left = (int32_t)h->first;
    p->news = h->part;
    p->id = h->id;
}

/* The site has begun again: it knows nothing of the round. */
static void note_restart(struct hzp_site_rounds *r, int s, uint64_t began)
{
    struct peer *p = &r->peer[s];
    p->began = began;
    p->before = 0;
    p->sent = -1;
    p->declined = p->declined || !p->whole;
    if (open_round(r) && r->leader == s)
        miss(r);
}

int hzp_rounds_receive(struct hzp_site_rounds *r, const void *data, size_t bytes, uint64_t now,
                       struct hzp_err_text *reterr)
{
    struct hzp_site_header h;
    const void *payload;
    int e = hzp_site_read(data, bytes, &r->is.limits, &h, &payload, reterr);
    if (e >= 0 && h.from == r->is.self)
        e = hzp_fail(reterr, HZP_EFORMAT, "it comes from a site with this one's address");
    r->stats.bytes_received += bytes;
    r->stats.bad_messages += e < 0;
    if (e < 0)
        return e;
    struct peer *p = &r->peer[h.from];
    p->heard_ns = now;
    if (p->began != h.began)
        note_restart(r, h.from, h.began);
    if (h.kind == HZP_SITE_HELLO)
        take_hello(r, &h, now);
    else if (h.kind == HZP_SITE_DECLINE)
        p->declined = p->declined || h.round == r->round;
    else if (h.kind == HZP_SITE_COMMIT)
        take_commit(r, &h, payload);
    else if (h.round > r->round)
        join(r, &h, now);
    if (h.kind == HZP_SITE_PIECE)
        take_piece(r, &h, payload);
    return HZP_OK;
}

bool hzp_rounds_turn(struct hzp_site_rounds *r, uint64_t now)
{
    bool waits = false;
    if (now >= r->hello_at)
        say_hello(r, now);
    if (open_round(r) && r->leader == r->is.self)
        decide(r, now);
    else if (r->stage == EXCHANGE && r->committed)
        finish(r);
    if (open_round(r) && now - r->begun_ns > 2 * r->is.limit_ns)
        miss(r); /* the leader is gone, or a message */
    if (leader(r, now) == r->is.self)
        lead(r, now);
    for (int s = 0; s < r->is.limits.sites; s++)
        waits = (s != r->is.self && pump(r, s)) || waits;
    return waits;
}

bool hzp_rounds_ready(const struct hzp_site_rounds *r, bool idle)
{
    return r->stage == READY && (idle || r->updates + 1 - r->sample_updates >= r->is.delay);
}

const uint32_t *hzp_rounds_average(const struct hzp_site_rounds *r, int64_t *ret_count)
{
    return hzp_site_part(r->is.limits.parts, r->part, ret_count);
}

bool hzp_rounds_apply(struct hzp_site_rounds *r, int64_t i, float *w)
{
    size_t at = (size_t)i * HZP_SITE_BLOCK;
    int64_t count;
    uint32_t block = hzp_rounds_average(r, &count)[i];
    float *ema = r->ema ? r->ema + (size_t)block * HZP_SITE_BLOCK : NULL;
    return hzp_site_apply(w, r->average + at, r->w + at, ema, hzp_site_ema(r->stats.applied));
}

uint32_t hzp_rounds_sites(const struct hzp_site_rounds *r)
{
    uint32_t sites = 0;
    for (int32_t e = 0; e < r->entries; e++)
        sites |= 1u << r->entry[e].from;
    return sites;
}

void hzp_rounds_applied(struct hzp_site_rounds *r, bool kept)
{
    HZP_ASSERT(r->stage == READY);
    r->stats.applied += kept;
    r->stats.refused += !kept;
    end_round(r);
}

void hzp_rounds_read_stats(const struct hzp_site_rounds *r, uint64_t now,
                           struct hzp_rounds_stats *ret)
{
    *ret = r->stats;
    ret->round = r->round;
    ret->part = r->part;
    ret->left = r->left;
    ret->sites = r->is.limits.sites;
    ret->stage = stage_name[r->stage];
    ret->leader = leader(r, now);
    for (int s = 0; s < r->is.limits.sites; s++) {
        const struct peer *p = &r->peer[s];
        bool self = s == r->is.self;
        ret->site[s].alive = alive(r, s, now);
        ret->alive += ret->site[s].alive;
        ret->site[s].silent_s = self ? 0 : p->heard_ns ? (double)(now - p->heard_ns) / 1e9 : -1;
        ret->site[s].round = self ? r->round : p->round;
        ret->site[s].updates = self ? r->updates : p->updates;
        ret->site[s].left = self ? r->left : p->left;
    }
}

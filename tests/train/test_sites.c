/* SPDX-License-Identifier: Apache-2.0 */
/* The rule of sites (train/sites/rule.h), its messages and its rounds, on a virtual clock: sites
 * that learn quadratics, between which links are slow, cut, or damage what they carry. */
#include "train/sites/rounds.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 103, ELEMENTS = BLOCKS * HZP_SITE_BLOCK, LINES = 4096 };

static const uint64_t second = 1000000000;

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* --- The rule --------------------------------------------------------------------------------- */

static void test_parts(void **state)
{
    const double share[] = {1, 0.5, 0.3, 0.05, 0.004};
    for (int i = 0; i < HZP_COUNT(share); i++) {
        struct hzp_site_parts a, b;
        int seen[BLOCKS] = {0};
        int64_t least = BLOCKS, most = 0;
        hzp_site_parts_make(BLOCKS, share[i], 7, &a);
        hzp_site_parts_make(BLOCKS, share[i], 7, &b);
        int parts = (int)ceil(1 / share[i]);
        assert_int_equal(a.parts, HZP_MIN(parts, BLOCKS));
        assert_memory_equal(a.order, b.order, BLOCKS * sizeof(*a.order));
        for (int32_t k = 0; k < a.parts; k++) {
            int64_t count;
            const uint32_t *block = hzp_site_part(&a, k, &count);
            least = HZP_MIN(least, count);
            most = HZP_MAX(most, count);
            for (int64_t j = 0; j < count; j++)
                seen[block[j]]++;
        }
        for (int j = 0; j < BLOCKS; j++)
            assert_int_equal(seen[j], 1);
        assert_true(most - least <= 1);
        hzp_site_parts_free(&a);
        hzp_site_parts_free(&b);
    }
}

static void test_codes(void **state)
{
    uint32_t seed = 3;
    char data[256];
    float w[64], agreed[64], error[64] = {0}, y[64];
    for (int round = 0; round < 1000; round++) {
        float largest = 0;
        float size = ldexpf(1, (int)(draw(&seed) % 60) - 40);
        for (int i = 0; i < 64; i++) {
            agreed[i] = (float)((int)(draw(&seed) % 2001) - 1000) / 1000;
            w[i] = agreed[i] + size * (float)((int)(draw(&seed) % 2001) - 1000) / 1000;
            largest = fmaxf(largest, fabsf(w[i] - agreed[i]));
        }
        hzp_site_encode(HZP_SITE_INT8, w, agreed, error, data);
        assert_true(hzp_site_decode(HZP_SITE_INT8, data, agreed, y));
        /* a step is 1/127 of the largest, and its scale has 8 bits */
        for (int i = 0; i < 64; i++)
            assert_true(fabsf(w[i] - y[i]) <= largest / 127 * 0.51f + 3e-7f);
        hzp_site_encode(HZP_SITE_F32, w, agreed, error, data);
        assert_true(hzp_site_decode(HZP_SITE_F32, data, agreed, y));
        assert_memory_equal(y, w, sizeof(y));
    }
    w[5] = NAN;
    hzp_site_encode(HZP_SITE_INT8, w, agreed, error, data);
    assert_true(hzp_site_decode(HZP_SITE_INT8, data, agreed, y));
    assert_memory_equal(y, agreed, sizeof(y)); /* such a block says nothing */
    data[0] = data[1] = (char)0x7f;
    data[2] = 100;
    assert_false(hzp_site_decode(HZP_SITE_INT8, data, agreed, y)); /* 3e38 * 100 */
}

static void test_error_feedback(void **state)
{
    /* What one message loses comes with the next ones: their mean is exact. */
    float w[64], agreed[64] = {0}, error[64] = {0}, y[64];
    double sum[64] = {0};
    char data[256];
    for (int i = 0; i < 64; i++)
        w[i] = 1.0f / (float)(i + 3);
    for (int round = 0; round < 1000; round++) {
        hzp_site_encode(HZP_SITE_INT8, w, agreed, error, data);
        assert_true(hzp_site_decode(HZP_SITE_INT8, data, agreed, y));
        hzp_site_keep_error(w, agreed, y, 64, error);
        for (int i = 0; i < 64; i++)
            sum[i] += (double)y[i];
    }
    for (int i = 0; i < 64; i++)
        assert_true(fabs(sum[i] / 1000 - (double)w[i]) < 5e-6);
}

static void test_apply(void **state)
{
    float w[64], sent[64], average[64], ema[64] = {0};
    for (int i = 0; i < 64; i++) {
        sent[i] = 0.1f * (float)i;
        average[i] = 1.7f - 0.3f * (float)i;
        w[i] = i % 2 ? sent[i] : sent[i] + 0.25f;
    }
    assert_true(hzp_site_apply(w, average, sent, NULL, 0));
    for (int i = 0; i < 64; i++)
        if (i % 2) /* nothing was learned meanwhile: the average, bit for bit */
            assert_memory_equal(&w[i], &average[i], sizeof(w[i]));
        else
            assert_true(fabsf(w[i] - (average[i] + 0.25f)) < 3e-6f);
    for (int i = 0; i < 64; i++)
        w[i] = sent[i] + 0.5f;
    assert_true(hzp_site_apply(w, average, sent, ema, 0.75f));
    for (int i = 0; i < 64; i++)
        assert_true(fabsf(ema[i] - 0.125f) < 1e-6f && fabsf(w[i] - average[i] - ema[i]) < 1e-6f);
    assert_true(fabsf(hzp_site_ema(0) - 0.5f) < 1e-6f && fabsf(hzp_site_ema(5000) - 0.99f) < 1e-6f);
    float before[64];
    memcpy(before, w, sizeof(w));
    average[63] = 3.4e38f;
    assert_false(hzp_site_apply(w, average, sent, NULL, 0));
    assert_memory_equal(before, w, sizeof(w));
    assert_int_equal(hzp_site_weight(10, 0), 200); /* in full */
    assert_int_equal(hzp_site_weight(10, 21), 0);
    assert_int_equal(hzp_site_weight(10, 5), 150);
}

static void test_masters(void **state)
{
    uint16_t bf16[64], bf16_again[64];
    int16_t residual[64], residual_again[64];
    float w[64];
    uint32_t seed = 11;
    for (int i = 0; i < 64; i++) {
        bf16[i] = (uint16_t)(0x3f00 + draw(&seed) % 64);
        residual[i] = (int16_t)draw(&seed);
    }
    hzp_site_load(bf16, residual, w);
    hzp_site_store(w, bf16_again, residual_again);
    assert_memory_equal(residual, residual_again, sizeof(residual));
    assert_memory_equal(bf16, bf16_again, sizeof(bf16));
}

/* --- Sites on a virtual clock ----------------------------------------------------------------- */

struct line { /* a message on its way */
    uint64_t at;
    int from, to;
    size_t bytes;
    char *data;
};

struct world;

struct site {
    struct world *world;
    int number;
    struct hzp_site_rounds *rounds; /* NULL: the process is dead */
    float w[ELEMENTS], optimum;
    int64_t updates, samples, each; /* samples of an update; 0: it learns nothing */
    int64_t agreed_rounds;
    int lazy; /* ticks between which it gives its part; 0: at each */
};

struct world {
    uint64_t now, delay_ns;
    double bytes_per_ns; /* 0: any */
    int sites, cut;      /* cut: sites [0, cut) do not reach the others; 0: they do */
    int ticks, damage;   /* one of so many messages has a wrong bit; 0: none */
    uint64_t busy_until[HZP_SITES_MAX][HZP_SITES_MAX];
    struct line line[LINES];
    int lines;
    uint64_t sent, began;
    uint32_t seed;
    struct hzp_rounds_config config;
    struct hzp_site_parts parts;
    struct site site[HZP_SITES_MAX];
    /* a model of the rule: what is agreed and each site's error, in other words than rule.c */
    bool models;
    float agreed[ELEMENTS], error[HZP_SITES_MAX][ELEMENTS], taken[HZP_SITES_MAX][ELEMENTS];
    int64_t counted[HZP_SITES_MAX][BLOCKS];
    int64_t weight[HZP_SITES_MAX];
    float expected[ELEMENTS];
    int given, compared;
};

static bool send_line(void *ctx, int to, const void *data, size_t bytes)
{
    struct site *from = ctx;
    struct world *w = from->world;
    uint64_t *busy = &w->busy_until[from->number][to];
    bool cut = w->cut && (from->number < w->cut) != (to < w->cut);
    if (cut || !w->site[to].rounds)
        return false;
    if (*busy > w->now + 2 * second || w->lines == LINES)
        return false; /* what a socket holds is bounded */
    *busy = HZP_MAX(*busy, w->now);
    if (w->bytes_per_ns > 0)
        *busy += (uint64_t)((double)bytes / w->bytes_per_ns);
    struct line *l = &w->line[w->lines++];
    *l = (struct line){*busy + w->delay_ns, from->number, to, bytes, hzp_xmalloc(bytes)};
    memcpy(l->data, data, bytes);
    if (w->damage && draw(&w->seed) % (uint32_t)w->damage == 0)
        l->data[draw(&w->seed) % bytes] ^= (char)(1 << draw(&w->seed) % 8);
    w->sent++;
    return true;
}

static void start(struct world *w, int s)
{
    struct site *site = &w->site[s];
    struct hzp_rounds_config config = w->config;
    config.self = s;
    config.ctx = site;
    config.send = send_line;
    config.began = ++w->began;
    site->world = w;
    site->number = s;
    site->updates = site->samples = 0;
    assert_int_equal(hzp_rounds_create(&config, &site->rounds), HZP_OK);
    memcpy(hzp_rounds_agreed(site->rounds), site->w, sizeof(site->w));
}

static void kill_site(struct world *w, int s)
{
    hzp_rounds_destroy(w->site[s].rounds);
    w->site[s].rounds = NULL;
    for (int i = 0; i < w->lines; i++) /* its connections end */
        if (w->line[i].from == s || w->line[i].to == s) {
            free(w->line[i].data);
            memmove(&w->line[i], &w->line[i + 1], (size_t)(--w->lines - i) * sizeof(w->line[0]));
            i--;
        }
}

static struct world *make_world(int sites, double share, enum hzp_site_coding coding)
{
    struct world *w = hzp_xcalloc(1, sizeof(*w));
    w->now = second;
    w->delay_ns = 50000000;
    w->sites = sites;
    w->seed = 5;
    hzp_site_parts_make(BLOCKS, share, 1, &w->parts);
    w->config = (struct hzp_rounds_config){.limits = {99, sites, &w->parts},
                                           .coding = coding,
                                           .every = 20,
                                           .quorum = sites / 2 + 1,
                                           .join = 10,
                                           .limit_ns = 60 * second};
    for (int s = 0; s < sites; s++) {
        w->site[s].optimum = (float)s;
        w->site[s].each = 1;
        for (int i = 0; i < ELEMENTS; i++)
            w->site[s].w[i] = w->agreed[i] = (float)i / ELEMENTS;
        start(w, s);
    }
    return w;
}

static void free_world(struct world *w)
{
    for (int s = 0; s < w->sites; s++)
        kill_site(w, s);
    hzp_site_parts_free(&w->parts);
    free(w);
}

static void deliver(struct world *w)
{
    for (;;) { /* messages of one connection stay in order: the oldest of those due first */
        int next = -1;
        for (int i = 0; i < w->lines; i++)
            if (w->line[i].at <= w->now && (next < 0 || w->line[i].at < w->line[next].at))
                next = i;
        if (next < 0)
            return;
        struct line l = w->line[next];
        memmove(&w->line[next], &w->line[next + 1],
                (size_t)(--w->lines - next) * sizeof(w->line[0]));
        bool cut = w->cut && (l.from < w->cut) != (l.to < w->cut);
        struct hzp_err_text text;
        if (!cut && w->site[l.to].rounds) {
            int r = hzp_rounds_receive(w->site[l.to].rounds, l.data, l.bytes, w->now, &text);
            assert_true(r >= 0 || w->damage);
        }
        free(l.data);
    }
}

/* The average of a block as the rule says it, from what was logged: in double, with codes that are
 * looked for instead of computed. */
static void model_block(struct world *w, uint32_t block, int32_t part)
{
    for (int i = 0; i < 64; i++) {
        size_t at = block * 64u + (size_t)i;
        w->expected[at] = 0;
    }
    double sum[64] = {0}, total = 0;
    for (int s = 0; s < w->sites; s++) {
        float *x = &w->taken[s][block * 64], *a = &w->agreed[block * 64];
        float *e = &w->error[s][block * 64], d[64], largest = 0;
        if (!w->weight[s])
            continue;
        for (int i = 0; i < 64; i++) {
            d[i] = x[i] - a[i];
            d[i] = d[i] + e[i];
            largest = fmaxf(largest, fabsf(d[i]));
        }
        int exponent;
        double fraction = frexp((double)(largest / 127), &exponent);
        double scale = ldexp(ceil(ldexp(fraction, 8)), exponent - 8); /* 8 bits, upwards */
        for (int i = 0; i < 64; i++) {
            double q = scale > 0 ? nearbyint((double)(d[i] / (float)scale)) : 0;
            float y = (float)((double)a[i] + scale * q);
            sum[i] += (double)w->weight[s] * (double)y;
            float part_of_it = y - a[i];
            e[i] = d[i] - part_of_it;
        }
        total += (double)w->weight[s];
        w->counted[s][part] = w->site[s].samples;
    }
    for (int i = 0; i < 64; i++)
        w->expected[block * 64 + (unsigned)i] = (float)(sum[i] / total);
}

/* All sites have given their part: the model takes it. */
static void model_round(struct world *w, const uint32_t *block, int64_t count, int32_t part)
{
    if (!w->models || ++w->given < w->sites)
        return;
    w->given = 0;
    for (int64_t i = 0; i < count; i++)
        model_block(w, block[i], part);
    for (int64_t i = 0; i < count; i++)
        memcpy(&w->agreed[block[i] * 64], &w->expected[block[i] * 64], 64 * sizeof(float));
}

static void give(struct world *w, struct site *s)
{
    const uint32_t *block;
    int64_t count;
    float *to = hzp_rounds_wants(s->rounds, &block, &count);
    struct hzp_rounds_stats stats;
    if (!to || (s->lazy && w->ticks % s->lazy))
        return;
    hzp_rounds_read_stats(s->rounds, w->now, &stats);
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * 64, &s->w[block[i] * 64], 64 * sizeof(float));
    hzp_rounds_sampled(s->rounds);
    if (!w->models)
        return;
    memcpy(w->taken[s->number], s->w, sizeof(s->w));
    w->weight[s->number] = s->samples - w->counted[s->number][stats.part];
    model_round(w, block, count, stats.part);
}

static void apply(struct world *w, struct site *s, bool idle)
{
    int64_t count;
    if (!hzp_rounds_ready(s->rounds, idle))
        return;
    const uint32_t *block = hzp_rounds_average(s->rounds, &count);
    for (int64_t i = 0; i < count; i++) {
        float expected[64], *x = &s->w[block[i] * 64];
        for (int j = 0; j < 64 && w->models; j++) {
            float move = w->expected[block[i] * 64 + (unsigned)j];
            float sent = w->taken[s->number][block[i] * 64 + (unsigned)j];
            move -= sent;
            expected[j] = x[j] == sent ? w->expected[block[i] * 64 + (unsigned)j] : x[j] + move;
        }
        assert_true(hzp_rounds_apply(s->rounds, i, x));
        if (w->models)
            assert_memory_equal(expected, x, sizeof(expected));
        w->compared += w->models;
    }
    hzp_rounds_applied(s->rounds, true);
    s->agreed_rounds++;
}

/* An update a second. */
static void learn(struct world *w, struct site *s)
{
    for (int i = 0; i < ELEMENTS; i++)
        s->w[i] += 0.02f * (s->optimum - s->w[i]);
    s->samples += s->each;
    apply(w, s, false);
    s->updates++;
    hzp_rounds_note(s->rounds, s->updates, s->samples);
}

static void advance(struct world *w)
{
    w->now += second / 20;
    w->ticks++;
    deliver(w);
    for (int s = 0; s < w->sites; s++) {
        struct site *site = &w->site[s];
        if (!site->rounds)
            continue;
        hzp_rounds_turn(site->rounds, w->now);
        give(w, site);
        if (!site->each)
            apply(w, site, true);
        else if ((w->ticks + s * 5) % 20 == 0)
            learn(w, site);
    }
}

static void run(struct world *w, int seconds)
{
    for (int tick = 0; tick < seconds * 20; tick++)
        advance(w);
}

static struct hzp_rounds_stats stats_of(const struct world *w, int s)
{
    struct hzp_rounds_stats ret;
    hzp_rounds_read_stats(w->site[s].rounds, w->now, &ret);
    return ret;
}

static double mean(const struct site *s)
{
    double sum = 0;
    for (int i = 0; i < ELEMENTS; i++)
        sum += (double)s->w[i];
    return sum / ELEMENTS;
}

/* At a moment when no round is in flight. */
static bool same_agreed(struct world *w, int a, int b)
{
    for (int tick = 0; tick < 4000; tick++) {
        if (stats_of(w, a).stage[0] == 'n' && stats_of(w, b).stage[0] == 'n' &&
            stats_of(w, a).round == stats_of(w, b).round)
            break;
        advance(w);
    }
    return !memcmp(hzp_rounds_agreed(w->site[a].rounds), hzp_rounds_agreed(w->site[b].rounds),
                   ELEMENTS * sizeof(float));
}

/* All of the weights at once, as they are, at each update, before the next one: that is
 * synchronous averaging. */
static void test_synchronous(void **state)
{
    struct world *w = make_world(2, 1, HZP_SITE_F32);
    float plain[2][ELEMENTS];
    w->config.every = 1;
    for (int s = 0; s < 2; s++) {
        kill_site(w, s);
        start(w, s);
        memcpy(plain[s], w->site[s].w, sizeof(plain[s]));
    }
    w->delay_ns = 0;
    run(w, 0);
    for (int update = 0; update < 50; update++) {
        for (int s = 0; s < 2; s++) {
            struct site *site = &w->site[s];
            for (int i = 0; i < ELEMENTS; i++)
                site->w[i] += 0.02f * (site->optimum - site->w[i]);
            for (int i = 0; i < ELEMENTS; i++)
                plain[s][i] += 0.02f * (site->optimum - plain[s][i]);
            site->samples += s + 1;
            hzp_rounds_note(site->rounds, ++site->updates, site->samples);
        }
        for (int i = 0; i < ELEMENTS; i++) { /* weights 1 : 2 */
            double sum = (double)plain[0][i] + 2 * (double)plain[1][i];
            plain[0][i] = plain[1][i] = (float)(sum / 3);
        }
        for (int tick = 0; tick < 60; tick++) {
            w->now += second / 20;
            deliver(w);
            for (int s = 0; s < 2; s++) {
                hzp_rounds_turn(w->site[s].rounds, w->now);
                give(w, &w->site[s]);
                apply(w, &w->site[s], true);
            }
        }
        for (int s = 0; s < 2; s++) {
            assert_int_equal(w->site[s].agreed_rounds, update + 1);
            assert_memory_equal(w->site[s].w, plain[s], sizeof(plain[s]));
        }
    }
    free_world(w);
}

static void test_model(void **state)
{
    struct world *w = make_world(3, 0.25, HZP_SITE_INT8);
    w->models = true;
    w->config.delay = 3;
    for (int s = 0; s < 3; s++) {
        kill_site(w, s);
        start(w, s);
        w->site[s].each = 1 + s;
    }
    run(w, 1000);
    for (int s = 0; s < 3; s++) {
        struct hzp_rounds_stats stats = stats_of(w, s);
        assert_true(stats.applied > 40 && !stats.missed && !stats.given_up);
        assert_true(same_agreed(w, 0, s));
    }
    assert_true(w->compared > 3 * 40 * BLOCKS / 4);
    free_world(w);
}

static void test_converges(void **state)
{
    for (int ema = 0; ema < 2; ema++) {
        struct world *w = make_world(2, 0.25, HZP_SITE_INT8);
        w->config.ema = ema;
        for (int s = 0; s < 2; s++) {
            kill_site(w, s);
            start(w, s);
        }
        w->site[1].each = 3;
        run(w, 4000);
        float *agreed = hzp_rounds_agreed(w->site[0].rounds);
        assert_true(same_agreed(w, 0, 1));
        for (int i = 0; i < ELEMENTS; i++)
            assert_true(fabsf(agreed[i] - 0.75f) < 0.02f);
        free_world(w);
    }
}

/* A site that learns nothing gets what the other has learned, all of it, soon after. */
static void test_idle_site(void **state)
{
    struct world *w = make_world(2, 0.25, HZP_SITE_INT8);
    w->site[1].each = 0;
    w->site[0].lazy = 7; /* so that it has all of the other's message before it has sent its own */
    w->site[0].optimum = 5;
    run(w, 30);
    w->site[0].each = 0; /* and then nobody */
    uint64_t updates = (uint64_t)w->site[0].updates;
    run(w, 60);
    assert_int_equal(w->site[0].updates, updates);
    struct hzp_rounds_stats stats = stats_of(w, 0);
    assert_true(fabs(mean(&w->site[0]) - mean(&w->site[1])) < 0.02);
    int64_t rounds = stats.round;
    run(w, 600); /* there is no news any more */
    assert_int_equal(stats_of(w, 0).round, rounds);
    assert_int_equal(stats_of(w, 1).given_up, stats.given_up);
    free_world(w);
}

static void test_quorum(void **state)
{
    struct world *w = make_world(3, 0.25, HZP_SITE_INT8);
    kill_site(w, 0);
    kill_site(w, 2);
    run(w, 300);
    assert_int_equal(stats_of(w, 1).round, 0);
    start(w, 2);
    run(w, 300);
    assert_true(stats_of(w, 1).applied > 5 && stats_of(w, 2).applied > 5);
    assert_int_equal(stats_of(w, 1).leader, 1);
    free_world(w);
}

static void test_partition(void **state)
{
    struct world *w = make_world(3, 0.25, HZP_SITE_INT8);
    run(w, 300);
    int64_t before = stats_of(w, 0).applied;
    assert_true(before > 5);
    w->cut = 2; /* 0 and 1 go on; 2 learns alone */
    run(w, 1800);
    int64_t there = stats_of(w, 0).applied, alone = stats_of(w, 2).applied;
    assert_true(there > before + 60 && alone <= before + 1);
    assert_int_equal(stats_of(w, 0).site[2].alive, 0);
    assert_true(fabs(mean(&w->site[2]) - 2) < 0.01); /* its own optimum */
    w->cut = 0;
    run(w, 600);
    assert_int_equal(stats_of(w, 2).left, 0); /* it was not late: it has learned, too */
    assert_true(stats_of(w, 2).applied > alone + 15);
    for (int s = 1; s < 3; s++)
        assert_true(same_agreed(w, 0, s));
    assert_int_equal(stats_of(w, 2).leader, 0);
    assert_true(mean(&w->site[2]) < 1.6 && mean(&w->site[0]) > 0.4);
    free_world(w);
}

/* The site that leads dies at any instant of a round. */
static void test_killed(void **state)
{
    for (int instant = 0; instant < 24; instant++) {
        struct world *w = make_world(3, 0.5, HZP_SITE_INT8);
        run(w, 100);
        w->bytes_per_ns = 4e-6; /* a round takes seconds */
        int64_t round = stats_of(w, 0).round;
        for (int i = 0; i < 600 && stats_of(w, 0).round == round; i++)
            run(w, 1);
        for (int i = 0; i < instant; i++) {
            w->now += second / 10;
            deliver(w);
            for (int s = 0; s < 3; s++) {
                hzp_rounds_turn(w->site[s].rounds, w->now);
                give(w, &w->site[s]);
            }
        }
        kill_site(w, 0);
        w->bytes_per_ns = 0;
        int64_t applied = stats_of(w, 1).applied;
        run(w, 400);
        assert_true(stats_of(w, 1).applied > applied + 5);
        assert_int_equal(stats_of(w, 2).leader, 1);
        assert_true(same_agreed(w, 1, 2));
        for (int i = 0; i < ELEMENTS; i++)
            w->site[0].w[i] = 0.5f;
        start(w, 0); /* it is late now: it receives, and does not lead */
        run(w, 60);
        assert_true(stats_of(w, 0).left > HZP_SITE_RAMP);
        assert_int_equal(stats_of(w, 0).leader, 1);
        assert_int_equal(stats_of(w, 1).leader, 1);
        run(w, 1200);
        assert_int_equal(stats_of(w, 0).left, 0);
        assert_int_equal(stats_of(w, 2).leader, 0);
        for (int s = 1; s < 3; s++)
            assert_true(same_agreed(w, 0, s));
        free_world(w);
    }
}

/* A site is back before the others have missed it: the round that it was in ends at once. */
static void test_restarted(void **state)
{
    struct world *w = make_world(2, 0.5, HZP_SITE_INT8);
    w->config.join = 0;
    for (int which = 0; which < 2; which++) {
        int64_t round = stats_of(w, which).round;
        w->bytes_per_ns = 2e-6;
        for (int i = 0; i < 4000 && stats_of(w, 1 - which).round == round; i++)
            advance(w);
        run(w, 1);
        kill_site(w, which);
        start(w, which);
        w->bytes_per_ns = 0;
        int64_t applied = stats_of(w, 1 - which).applied;
        run(w, 50); /* less than the limit */
        assert_true(stats_of(w, 1 - which).applied > applied);
        assert_true(same_agreed(w, 0, 1));
    }
    free_world(w);
}

/* A round takes longer than `every` updates: the next ones are skipped. */
static void test_slow(void **state)
{
    struct world *w = make_world(2, 1, HZP_SITE_INT8);
    w->config.every = 5;
    for (int s = 0; s < 2; s++) {
        kill_site(w, s);
        start(w, s);
    }
    w->bytes_per_ns = 0.7e-6; /* about 10 s a round */
    run(w, 600);
    assert_true(stats_of(w, 0).skipped > 5 && stats_of(w, 0).applied > 8);
    w->bytes_per_ns = 0;
    assert_true(same_agreed(w, 0, 1));
    free_world(w);
}

static void test_damage(void **state)
{
    struct world *w = make_world(3, 0.25, HZP_SITE_INT8);
    w->damage = 8;
    run(w, 1500);
    int64_t bad = 0;
    for (int s = 0; s < 3; s++)
        bad += stats_of(w, s).bad_messages;
    assert_true(bad > 100 && stats_of(w, 0).applied > 10);
    w->damage = 0;
    run(w, 200);
    for (int s = 1; s < 3; s++)
        assert_true(same_agreed(w, 0, s));
    free_world(w);
}

static void test_foreign(void **state)
{
    struct world *w = make_world(2, 0.5, HZP_SITE_INT8);
    struct hzp_err_text text;
    char data[HZP_SITE_MESSAGE_MAX] = {0};
    struct hzp_site_header h = {.kind = HZP_SITE_HELLO, .from = 1, .mesh = 98};
    struct hzp_site_rounds *r = w->site[0].rounds;
    size_t bytes = hzp_site_seal(data, &h, NULL);
    assert_int_equal(hzp_rounds_receive(r, data, bytes, w->now, &text), HZP_EFORMAT);
    assert_non_null(strstr(text.text, "another model"));
    h.mesh = 99;
    h.from = 2;
    bytes = hzp_site_seal(data, &h, NULL);
    assert_int_equal(hzp_rounds_receive(r, data, bytes, w->now, &text), HZP_EFORMAT);
    h.from = 0;
    bytes = hzp_site_seal(data, &h, NULL);
    assert_int_equal(hzp_rounds_receive(r, data, bytes, w->now, &text), HZP_EFORMAT);
    h.from = 1;
    bytes = hzp_site_seal(data, &h, NULL);
    assert_int_equal(hzp_rounds_receive(r, data, bytes, w->now, &text), HZP_OK);
    assert_int_equal(hzp_rounds_receive(r, data, bytes - 1, w->now, &text), HZP_EFORMAT);
    assert_int_equal(stats_of(w, 0).bad_messages, 4);
    free_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_codes),
        cmocka_unit_test(test_error_feedback), cmocka_unit_test(test_apply),
        cmocka_unit_test(test_masters),        cmocka_unit_test(test_synchronous),
        cmocka_unit_test(test_model),          cmocka_unit_test(test_converges),
        cmocka_unit_test(test_idle_site),      cmocka_unit_test(test_quorum),
        cmocka_unit_test(test_partition),      cmocka_unit_test(test_killed),
        cmocka_unit_test(test_slow),           cmocka_unit_test(test_restarted),
        cmocka_unit_test(test_damage),         cmocka_unit_test(test_foreign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

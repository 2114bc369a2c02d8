/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that compute each step together: rank 0 schedules requests that come, leave, are preempted
 * and find each other's prompts, publishes versions between steps, and tells the others each step's
 * record; they build the same plan and draw the same tokens, over thousands of random steps, while
 * versions are swapped.  Each rank holds the whole model, so that what a rank computes shows which
 * version it read; or its slice (weights/tensor_slice.h), and then all tokens are those that one
 * rank with the whole model draws.
 *
 * Or they learn: rank 0 puts slices of training's chains into the steps, the others make the same
 * chains from the record, each updates its part, and a version is what all of them have learned.
 * With slices of the model the losses are those of one rank.
 *
 * A rank that does something else is found out and named: other weights, a swap that comes late, an
 * element that changes within a version, another shape of plans, another chain, another learning
 * rate, one that does not learn; and one that is gone. */
#include "base/thread.h"
#include "nanobatch/loop.h"
#include "nanobatch/member.h"
#include "nanobatch/plan/plan.h"
#include "serve/scheduler.h"
#include "tests/fixture/model.h"
#include "tests/serve/seeded.h"
#include "tests/sim/group_links.h"
#include "tests/sim/learner.h"
#include "text/grammar/grammar.h"
#include "text/grammar/regular.h"
#include "weights/tensor_slice.h"
#include "tests/links/links.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 48, POSITIONS = 64, PAGE_ROWS = 4, PAGES = 24, RUNNING = 7, RANKS_MAX = 8 };
enum { LIVES = 12 };

/* What one rank does wrong, in step or version AT. */
enum wrong {
    NOTHING,
    OTHER_WEIGHTS,
    LATE_SWAP,
    CHANGES_INSIDE,
    OTHER_SHAPE,
    GONE,
    OTHER_CHAIN,
    OTHER_RATE,
    LEARNS_NOT,
    WRONGS
};
enum { AT = 40 };

struct scene {
    const char *device;
    int ranks, threads;
    bool slices; /* each rank has its part of the model */
    bool learns; /* versions are what the group has learned; otherwise their contents are given */
    const struct hzp_plan_shape *shape;
    enum hzp_run_ahead ahead;
    enum wrong wrong;
    uint64_t steps; /* at least so many */
};

struct rank {
    const struct scene *scene;
    int number;
    struct hzp_link *link[LINKS];
    struct fixture_model m;
    struct hzp_layout whole;
    struct hzp_units host; /* of the whole model */
    struct hzp_kvpool *pool;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_member *member;
    struct learner learner;
    pthread_t thread;
    int result;
    struct hzp_err_text text;
    uint64_t steps, swaps, mixed, newest; /* of a member */
};

struct world {
    struct scene scene;
    struct hzp_link *link[LINKS][RANKS_MAX];
    struct rank rank[RANKS_MAX];
    struct hzp_scheduler *scheduler;
    struct hzp_step_link *records;
    struct hzp_loop *loop;
    struct hzp_source writer;
    struct hzp_token_rules in_turn;
    struct hzp_lexicon *lexicon;
    struct hzp_request *live[LIVES];
    int lives, turns;
    uint64_t told; /* the hash of all tokens, and of the versions that drew them */
    uint64_t random, swaps, refs, hiddens, masks, ended[HZP_REQUEST_FAILED + 1], tokens;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "test_group: %s: %s\n", #call, hzp_err_name(must_));                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "test_group: line %d: %s\n", __LINE__, #condition);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const struct hzp_model_config model_config = {.family = "llama",
                                                     .layers = 4,
                                                     .width = 16,
                                                     .inner = 24,
                                                     .vocab = VOCAB,
                                                     .heads = {8, 8, 8},
                                                     .positions = POSITIONS,
                                                     .norm_eps = 1e-5f,
                                                     .rope_theta = 10000,
                                                     .bos = -1,
                                                     .eos = {3, 8},
                                                     .eos_count = 2};

static const struct hzp_batch_config batch_max = {.rows_max = 32,
                                                  .segs_max = RUNNING + 1,
                                                  .page_stride = POSITIONS / PAGE_ROWS,
                                                  .logits_max = 16,
                                                  .edits_max = 400,
                                                  .masks_max = RUNNING,
                                                  .mask_words = hzp_mask_words(VOCAB),
                                                  .hidden_cols = 16,
                                                  .hidden_type = HZP_F32,
                                                  .layers = 4};

static struct hzp_step_limits limits = {.lines = RUNNING + 1,
                                        .vocab = VOCAB,
                                        .pages = PAGES,
                                        .page_rows = PAGE_ROWS,
                                        .positions = POSITIONS};

/* Two nano-batches on lanes of their own. */
static const struct hzp_plan_shape two_lanes = {
    .nanos = 2,
    .weight = {3, 1},
    .lane = {{[HZP_KIND_DECODE] = HZP_LANE_COMPUTE},
             {HZP_LANE_COPY, HZP_LANE_COPY, HZP_LANE_COPY, HZP_LANE_COPY}},
};

/* ---- versions ---- */

static uint64_t seed_of(uint64_t version)
{
    return version * 7919 + 5;
}

/* Publishes the next version, whose contents follow from its id. */
static void publish_next(struct rank *r, uint64_t last_step)
{
    struct hzp_version *draft = fixture_begin(&r->m);
    struct hzp_version *current = hzp_weights_current(r->m.weights);
    uint64_t id = current ? current->record.id + 1 : 1;
    bool wrong = r->scene->wrong == OTHER_WEIGHTS && r->number == 1 && id == AT;
    fixture_units_random(NULL, &r->host, seed_of(id + wrong), 0.25f);
    for (int32_t u = 0; u < r->whole.units; u++) {
        struct hzp_unit_view from = hzp_unit_view(&r->host, u);
        struct hzp_unit_view to = hzp_version_unit(r->m.weights, draft, u);
        if (r->scene->slices)
            hzp_tensor_slice_cut(&r->whole, &r->m.layout, u, sizeof(float), from.base, to.base);
        else
            memcpy(to.base, from.base, hzp_unit_bytes(&to));
    }
    fixture_publish(&r->m, draft, last_step);
}

/* ---- a member ---- */

static int publish(void *ctx, uint64_t id, struct hzp_err_text *reterr)
{
    struct rank *r = ctx;
    if (r->scene->wrong == LATE_SWAP && r->number == 1 && id == AT)
        return HZP_OK;
    if (r->scene->learns) {
        r->swaps += learner_publish(&r->learner, r->newest);
        return HZP_OK;
    }
    while (hzp_weights_current(r->m.weights)->record.id < id) {
        publish_next(r, r->newest);
        r->swaps++;
    }
    return HZP_OK;
}

static int chain(void *ctx, const struct hzp_step_record *record, const struct hzp_plan **ret,
                 struct hzp_err_text *reterr)
{
    struct rank *r = ctx;
    return learner_chain(&r->learner, record, ret, reterr);
}

static void ran(void *ctx, const struct hzp_step_record *record, const struct hzp_version *version,
                const struct hzp_batch *batch)
{
    struct rank *r = ctx;
    r->mixed += version->record.id != record->version;
    r->mixed += batch->rows == 0 && !record->training.chain;
    r->newest = record->step;
    r->steps++;
    if (record->training.chain)
        learner_ran(&r->learner, record->training.to);
    if (r->scene->wrong == CHANGES_INSIDE && r->number == 1 && r->steps >= AT)
        for (int32_t i = 0; i < 16 * 24; i++)
            ((float *)hzp_version_mat(r->m.weights, version, HZP_DOWN, 1).ptr)[i] += 3;
}

static void open_rank(struct rank *r)
{
    struct fixture_config fixture = {
        .device = r->scene->device,
        .threads = r->scene->threads,
        .config = model_config,
        .store = {.type = HZP_F32, .slots = 3, .max_staleness = 1, .first_id = 1},
        .positions = POSITIONS,
        .tensor = r->scene->slices ? r->link[SERVE] : NULL,
        .tensor_train = r->link[TRAIN]};
    hzp_layout_make(&model_config, &r->whole);
    r->host = fixture_units(&r->whole, HZP_F32);
    fixture_open(&r->m, &fixture);
    publish_next(r, 0);
    MUST(hzp_kvpool_create(r->m.model, PAGES, PAGE_ROWS, &r->pool));
    MUST(hzp_batch_create(r->m.dev, &batch_max, &r->batch));
    MUST(hzp_serve_space_create(r->m.model, batch_max.rows_max, batch_max.logits_max, &r->space));
    if (r->scene->learns)
        learner_open(&r->learner, &r->m);
    if (r->number == 1 && r->scene->wrong == OTHER_RATE)
        r->learner.lr *= 3;
    r->learner.cuts_short = r->number == 1 && r->scene->wrong == OTHER_CHAIN;
}

static void close_rank(struct rank *r)
{
    learner_close(&r->learner);
    hzp_serve_space_destroy(r->space);
    hzp_batch_destroy(r->batch);
    hzp_kvpool_destroy(r->pool);
    fixture_close(&r->m);
    fixture_units_free(&r->host);
    hzp_layout_free(&r->whole);
}

static void *member_main(void *arg)
{
    struct rank *r = arg;
    bool gone = r->scene->wrong == GONE && r->number == 1;
    open_rank(r);
    struct hzp_member_config config = {.model = r->m.model,
                                       .space = r->space,
                                       .batch = r->batch,
                                       .kv = hzp_kvpool_layers(r->pool),
                                       .limits = limits,
                                       .shapes = {.shape = r->scene->shape},
                                       .link = r->link[RECORDS],
                                       .check_plans = true,
                                       .publish = publish,
                                       .chain = chain,
                                       .ran = ran,
                                       .ctx = r};
    if (r->scene->wrong == OTHER_SHAPE && r->number == 1)
        config.shapes.shape = &hzp_plan_sequential;
    if (r->scene->wrong == LEARNS_NOT && r->number == 1)
        config.chain = NULL;
    MUST(hzp_member_create(&config, &r->member));
    do {
        r->result = hzp_member_turn(r->member, &r->text);
    } while (r->result > 0 && !(gone && r->steps == AT));
    if (r->result < 0)
        fail_together(r->link);
    struct hzp_member_stats stats;
    hzp_member_read_stats(r->member, &stats);
    CHECK(stats.steps == r->steps);
    hzp_member_destroy(r->member);
    for (int i = 0; i < LINKS && gone; i++) {
        hzp_link_close(r->link[i]);
        r->link[i] = NULL;
    }
    close_rank(r);
    return NULL;
}

/* ---- rank 0 ---- */

static int32_t pick(struct world *w, int32_t below)
{
    return (int32_t)seeded(&w->random, (uint32_t)below);
}

static bool writer_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    struct world *w = HZP_CONTAINER_OF(source, struct world, writer);
    w->refs += (uint64_t)offer->batch->refs;
    w->hiddens += (uint64_t)offer->batch->hiddens;
    w->masks += (uint64_t)offer->batch->masks;
    struct hzp_slice slice;
    if (!w->scene.learns || !learner_offer(&w->rank[0].learner, 1 + pick(w, 30), &slice))
        return false;
    hzp_offer_add(offer, &slice);
    return true;
}

static void writer_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct world *w = HZP_CONTAINER_OF(source, struct world, writer);
    struct hzp_weights_stats stats;
    hzp_weights_read_stats(w->rank[0].m.weights, &stats);
    if (outcome->status >= 0 && w->scene.learns) {
        for (int32_t i = 0; i < offer->slices; i++)
            learner_ran(&w->rank[0].learner, offer->slice[i].to);
        w->swaps += learner_publish(&w->rank[0].learner, step->number);
        return;
    }
    if (outcome->status < 0 || pick(w, 10) || !stats.slots_free)
        return;
    publish_next(&w->rank[0], step->number);
    w->swaps++;
}

/* Tokens below the half of the vocabulary and others in turn. */
static void open_grammar(struct world *w)
{
    static const char regex[] = "(?:[A-X][Y-p])+"; /* token t is the byte 'A' + t */
    static char byte[VOCAB];
    struct hzp_token_text text[VOCAB];
    int32_t to;
    for (int i = 0; i < VOCAB; i++) {
        byte[i] = (char)('A' + i);
        text[i] = (struct hzp_token_text){&byte[i], 1, false};
    }
    hzp_lexicon_create(text, VOCAB, &w->lexicon);
    struct hzp_rules *rules = hzp_rules_create();
    int32_t root = hzp_rules_add(rules, "root", 4);
    MUST(hzp_regex_rules(rules, rules->rule[root].first, regex, sizeof(regex) - 1, HZP_SPELL_PLAIN,
                         false, &to, NULL));
    hzp_rules_empty(rules, to, rules->rule[root].last);
    struct hzp_grammar *grammar;
    MUST(hzp_grammar_create(rules, root, w->lexicon, &grammar, NULL));
    w->in_turn.constraint = hzp_grammar_constraint(grammar);
    hzp_rules_destroy(rules);
}

static void open_first(struct world *w)
{
    struct rank *r = &w->rank[0];
    struct hzp_scheduler_config scheduler = {.running_max = RUNNING,
                                             .waiting_max = 64,
                                             .waiting_tokens_max = 1 << 20,
                                             .prefill_rows_max = 16,
                                             .prefix_cache = true,
                                             .rewarm_rows = 32,
                                             .edits_max = 400};
    struct hzp_step_link_config records = {
        .link = r->link[RECORDS], .max = batch_max, .limits = limits};
    open_rank(r);
    MUST(hzp_scheduler_create(&scheduler, r->m.model, r->pool, &w->scheduler));
    if (w->scene.ranks > 1)
        w->records = hzp_step_link_create(&records);
    w->writer = (struct hzp_source){.name = "writer",
                                    .slices = w->scene.learns,
                                    .offer = writer_offer,
                                    .deliver = writer_deliver};
    struct hzp_loop_config loop = {.model = r->m.model,
                                   .space = r->space,
                                   .batch = r->batch,
                                   .source = {hzp_scheduler_source(w->scheduler), &w->writer},
                                   .sources = 2,
                                   .shape = w->scene.shape,
                                   .run_ahead = w->scene.ahead,
                                   .check_plans = true,
                                   .group = w->records};
    MUST(hzp_loop_create(&loop, &w->loop));
    MUST(hzp_loop_warm_up(w->loop, hzp_kvpool_layers(r->pool), NULL));
    open_grammar(w);
}

static void close_first(struct world *w)
{
    hzp_loop_destroy(w->loop);
    hzp_step_link_destroy(w->records);
    hzp_scheduler_destroy(w->scheduler);
    for (int i = 0; i < w->lives; i++)
        hzp_request_destroy(w->live[i]);
    hzp_constraint_unref(w->in_turn.constraint);
    hzp_lexicon_destroy(w->lexicon);
    close_rank(&w->rank[0]);
}

/* Requests of all kinds; many prompts begin alike. */
static struct hzp_request *make_request(struct world *w)
{
    int32_t prompt[POSITIONS], count = 1 + pick(w, 24), tokens = 1 + pick(w, 38);
    int32_t alike = pick(w, 2) ? pick(w, count + 1) : 0, of = pick(w, 3);
    bool pooled = pick(w, 9) == 0;
    struct hzp_request *rq;
    for (int32_t k = 0; k < count; k++)
        prompt[k] = k < alike ? (k * 5 + of) % VOCAB : pick(w, VOCAB);
    MUST(hzp_request_create(prompt, count, pooled ? 0 : tokens, pooled ? 0 : pick(w, 4),
                            !pooled && pick(w, 4) == 0, &rq));
    if (pooled)
        MUST(hzp_request_pool(rq, HZP_POOLING_MEAN, 16));
    rq->demands.depth = pick(w, 2) ? 0 : pick(w, HZP_DEPTH_PARTS);
    rq->sampling = (struct hzp_sampling){.temperature = pick(w, 2) ? 0.9f : 0,
                                         .top_p = pick(w, 3) ? 1 : 0.7f,
                                         .repetition = pick(w, 4) ? 1 : 1.3f,
                                         .presence = pick(w, 4) ? 0 : 0.7f,
                                         .seed = (uint64_t)pick(w, 1 << 30)};
    rq->ignore_eos = pick(w, 3) > 0;
    if (pick(w, 3) == 0) {
        rq->bias_token[0] = pick(w, VOCAB);
        rq->bias[rq->biases++] = 2;
    }
    if (!pooled && pick(w, 5) == 0)
        rq->tokens = &w->in_turn;
    return rq;
}

static void note_tokens(struct world *w, const struct hzp_request *rq)
{
    int32_t count = atomic_load(&rq->out_count);
    for (int32_t i = 0; i < count; i++) {
        const int32_t is[] = {rq->out[i].token, (int32_t)rq->out[i].version};
        w->told = hzp_hash_numbers(w->told, is, 2);
    }
    w->told = hzp_hash_numbers(w->told, &count, 1);
    w->tokens += (uint64_t)count;
}

/* For a time clients leave early, then none does: the pages that requests are predicted to need do
 * not suffice, and some are preempted. */
static bool leaves(struct world *w)
{
    return w->turns / 200 % 2 == 0 && pick(w, 25) == 0;
}

/* The clients between two turns. */
static void clients(struct world *w, bool more)
{
    w->turns++;
    for (int i = 0; i < w->lives;) {
        struct hzp_request *rq = w->live[i];
        if (leaves(w))
            atomic_store(&rq->cancel, true);
        if (!hzp_request_final(rq)) {
            i++;
            continue;
        }
        w->ended[atomic_load(&rq->state)]++;
        note_tokens(w, rq);
        hzp_request_destroy(rq);
        w->live[i] = w->live[--w->lives];
    }
    while (more && w->lives < LIVES && pick(w, 3)) {
        w->live[w->lives] = make_request(w);
        MUST(hzp_scheduler_submit(w->scheduler, w->live[w->lives], NULL));
        w->lives++;
    }
}

/* Turns until so many steps have run and all requests have ended, or the group fails. */
static int turns(struct world *w)
{
    struct hzp_loop_stats stats = {0};
    int r;
    do {
        hzp_loop_read_stats(w->loop, &stats);
        clients(w, stats.steps < w->scene.steps);
        r = hzp_loop_turn(w->loop);
    } while (r >= 0 && (w->lives > 0 || stats.steps < w->scene.steps));
    if (r < 0)
        return r;
    hzp_loop_stop(w->loop, false);
    return hzp_loop_run(w->loop);
}

static void run(struct world *w, const struct scene *scene)
{
    struct hzp_err_text text;
    memset(w, 0, sizeof(*w));
    w->scene = *scene;
    w->random = 11;
    for (int k = 0; k < LINKS; k++)
        MUST(hzp_link_open_local(scene->ranks, 0, 0, w->link[k], &text));
    for (int i = 0; i < scene->ranks; i++) {
        w->rank[i].scene = &w->scene;
        w->rank[i].number = i;
        for (int k = 0; k < LINKS; k++)
            w->rank[i].link[k] = w->link[k][i];
    }
    for (int i = 1; i < scene->ranks; i++)
        MUST(hzp_thread_start(&w->rank[i].thread, "member", member_main, &w->rank[i]));
    open_first(w);
    w->rank[0].result = turns(w);
    if (w->rank[0].result < 0)
        fail_together(w->rank[0].link);
    for (int i = 1; i < scene->ranks; i++)
        pthread_join(w->rank[i].thread, NULL);
}

static void end(struct world *w)
{
    close_first(w);
    for (int i = 0; i < w->scene.ranks; i++)
        for (int k = 0; k < LINKS; k++)
            hzp_link_close(w->rank[i].link[k]);
}

/* ---- what must hold ---- */

/* What the ranks have learned: each the same, and of slices what one rank with the whole model
 * learns. */
static void check_learned(const struct world *w)
{
    enum { FIRST = 30 };
    static double alone[FIRST];
    const struct learner *first = &w->rank[0].learner;
    CHECK(first->updates > FIRST && first->told[FIRST] < 0.9 * first->told[0]);
    for (int i = 1; i < w->scene.ranks; i++) {
        const struct learner *l = &w->rank[i].learner;
        CHECK(l->updates == first->updates);
        CHECK(!memcmp(l->told, first->told, sizeof(l->told)));
        CHECK(!memcmp(l->sum, first->sum, sizeof(l->sum)));
    }
    double worst = 0;
    for (int k = 0; k < FIRST; k++) {
        if (w->scene.ranks == 1)
            alone[k] = first->told[k];
        else if (w->scene.slices)
            worst = fmax(worst, fabs(first->told[k] / alone[k] - 1));
    }
    printf("    learned: %d updates, loss %.4f to %.4f, of one rank's off by %.1e\n",
           first->updates, first->told[0], first->told[FIRST], worst);
    CHECK(worst < 1e-4);
}

/* Returns the hash of all tokens. */
static uint64_t all_compute_the_same(const struct scene *scene)
{
    struct world w;
    struct hzp_scheduler_stats s;
    struct hzp_loop_stats loop;
    run(&w, scene);
    hzp_scheduler_read_stats(w.scheduler, &s);
    hzp_loop_read_stats(w.loop, &loop);
    printf("%s, %d ranks%s: %llu steps, %llu swaps, %llu tokens, %llu rows drawn ahead, "
           "%llu masks, %llu hidden states, %llu canceled, %llu preempted, %llu prompt tokens "
           "found\n",
           scene->device, scene->ranks, scene->slices ? " of slices" : "",
           (unsigned long long)loop.steps, (unsigned long long)w.swaps,
           (unsigned long long)w.tokens, (unsigned long long)w.refs, (unsigned long long)w.masks,
           (unsigned long long)w.hiddens, (unsigned long long)w.ended[HZP_REQUEST_CANCELED],
           (unsigned long long)s.preempted, (unsigned long long)s.prefix_hits);
    for (int i = 0; i < scene->ranks; i++) {
        struct rank *r = &w.rank[i];
        if (r->result < 0)
            fprintf(stderr, "test_group: rank %d: %s\n", i, r->text.text);
        CHECK(r->result == 0);
        CHECK(i == 0 || (r->steps == loop.steps && r->mixed == 0));
        CHECK(i == 0 || w.swaps - r->swaps <= 1); /* one may fall behind the last step */
    }
    CHECK(w.ended[HZP_REQUEST_FAILED] == 0 && w.ended[HZP_REQUEST_CANCELED] > 0);
    CHECK(loop.steps >= scene->steps && w.swaps > scene->steps / 50 && s.prefix_hits > 0);
    CHECK((s.preempted > 0 || scene->steps < 3000) && w.masks > 0 && w.hiddens > 0);
    if (scene->learns)
        check_learned(&w);
    CHECK((w.refs > 0) == (scene->ahead == HZP_AHEAD_ALWAYS));
    uint64_t told = w.told;
    end(&w);
    return told;
}

/* What rank 1 does wrong ends the group, all ranks know whose fault it is, and all requests fail.
 * says NULL: what the link says of a rank that is gone. */
static void is_found_out(enum wrong wrong, bool learns, const char *says)
{
    struct scene scene = {.device = "ref",
                          .ranks = 3,
                          .wrong = wrong,
                          .learns = learns,
                          .shape = learns ? NULL : &two_lanes,
                          .steps = 4000};
    struct world w;
    struct hzp_link_state state;
    run(&w, &scene);
    hzp_link_state(w.link[RECORDS][0], &state);
    printf("wrong %d: %s\n", wrong, state.why);
    CHECK(w.rank[0].result < 0 && w.rank[2].result == HZP_EIO);
    CHECK(state.failed && strstr(state.why, says ? says : "") && state.failed_rank == 1);
    CHECK(strstr(w.rank[2].text.text, says ? says : "rank 1"));
    CHECK(w.rank[1].steps < 2 * AT || learns || wrong == LATE_SWAP || wrong == OTHER_WEIGHTS);
    hzp_scheduler_abort(w.scheduler);
    for (int i = 0; i < w.lives; i++)
        CHECK(hzp_request_final(w.live[i]));
    end(&w);
}

int main(void)
{
    limits.work_bytes = learner_room();
    const struct scene scenes[] = {
        {.device = "ref", .ranks = 8, .shape = NULL, .steps = 3000},
        {.device = "ref", .ranks = 2, .shape = &two_lanes, .steps = 1000},
        {.device = "cpu",
         .ranks = 2,
         .threads = 2,
         .shape = &two_lanes,
         .ahead = HZP_AHEAD_ALWAYS,
         .steps = 600},
    };
    for (int i = 0; i < HZP_COUNT(scenes); i++)
        all_compute_the_same(&scenes[i]);
    struct scene one = {.device = "ref", .ranks = 1, .steps = 1500};
    uint64_t told = all_compute_the_same(&one);
    for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2) {
        struct scene slices = {.device = "ref", .ranks = ranks, .slices = true, .steps = one.steps};
        CHECK(all_compute_the_same(&slices) == told);
    }
    struct scene alone = {.device = "ref", .ranks = 1, .learns = true, .steps = 2000};
    all_compute_the_same(&alone);
    for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2) {
        struct scene slices = {
            .device = "ref", .ranks = ranks, .slices = true, .learns = true, .steps = 2000};
        all_compute_the_same(&slices);
    }
    struct scene on_cpu = {
        .device = "cpu", .ranks = 2, .threads = 1, .slices = true, .learns = true, .steps = 1500};
    all_compute_the_same(&on_cpu);
    struct scene whole = {.device = "ref", .ranks = 8, .learns = true, .steps = 2000};
    all_compute_the_same(&whole);
    is_found_out(OTHER_CHAIN, true, "made another plan");
    is_found_out(OTHER_RATE, true, "drew other tokens");
    is_found_out(LATE_SWAP, true, "serves on rank 0");
    is_found_out(GONE, true, NULL);
    is_found_out(LEARNS_NOT, true, "this rank does not");
    is_found_out(OTHER_WEIGHTS, false, "drew other tokens");
    is_found_out(LATE_SWAP, false, "serves on rank 0");
    is_found_out(CHANGES_INSIDE, false, "drew other tokens");
    is_found_out(OTHER_SHAPE, false, "made another plan");
    is_found_out(GONE, false, NULL);
    return 0;
}

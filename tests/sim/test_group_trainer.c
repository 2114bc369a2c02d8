/* SPDX-License-Identifier: Apache-2.0 */
/* The product's trainer in a group that computes each step together: rank 0 serves requests and
 * learns from a queue, the others make its chains from the records (train/learner/by_step.h), each
 * updates its slice of the model.
 *
 * Losses, norms, and the weights of every version are those that one rank with the whole model
 * learns, but for rounding, also where updates are not finite, and where a gate refuses some; no
 * step reads two versions.  What a
 * rank does wrong shows: another plan (less to learn in a micro-batch, micro-batches that are
 * forgotten) ends the group; another learning rate, and a micro-batch that counts nothing, give
 * other weights than one rank's. */
#include "base/thread.h"
#include "device/bf16.h"
#include "nanobatch/loop.h"
#include "nanobatch/member.h"
#include "nanobatch/model/work.h"
#include "serve/scheduler.h"
#include "tests/fixture/model.h"
#include "tests/sim/group_links.h"
#include "tests/sim/group_samples.h"
#include "train/learner/by_step.h"
#include "train/history/snapshot.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"
#include "tests/links/links.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 48, POSITIONS = 64, PAGE_ROWS = 4, PAGES = 64, RUNNING = 4, RANKS_MAX = 8 };
enum { UPDATES = 64, VERSIONS = UPDATES + 2, REQUESTS = 12, SAVES = 4 };

/* What rank 1 does wrong. */
enum wrong { NOTHING, LEARNS_LESS, FORGETS, OTHER_RATE, LEARNS_NOTHING, SAVES_LESS };

struct scene {
    int ranks;
    enum hzp_dtype type;
    int32_t publish_every, slots, max_staleness;
    uint64_t idle_ns; /* 1: one item a step */
    bool qk_norm;
    const struct hzp_plan_shape *shape; /* of steps without training; NULL: sequential */
    bool bursts; /* a sample's weights are so large that its gradient is not finite */
    enum wrong wrong;
    bool saves;     /* what has been learned, while more is, and at the end */
    double gate;    /* nats by which a held-out loss may rise; 0: no gate */
    bool by_lesson; /* each sample is one */
    float skip;     /* share of the layers that micro-batches leave out, of eight, with swaps */
};

/* The elements of a version of a rank's slice, as floats; NULL: not seen. */
struct rank {
    const struct scene *scene;
    int number;
    struct hzp_link *link[LINKS];
    struct fixture_model m;
    struct hzp_layout whole;
    struct hzp_kvpool *pool;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_learner_by_step *learner; /* of a member */
    struct hzp_learner_by_step_stats stats;
    struct hzp_micro *micro; /* for what is done wrong */
    char *work;
    pthread_t thread;
    int result;
    struct hzp_err_text text;
    uint64_t mixed, newest;
    char **unit[VERSIONS];                    /* [units] of the version */
    struct hzp_units last[HZP_STATE_WEIGHTS]; /* moments and residuals at the end, if saved */
};

struct world {
    struct scene scene;
    struct hzp_link *link[LINKS][RANKS_MAX];
    struct rank rank[RANKS_MAX];
    struct hzp_sample_queue *queue;
    struct hzp_trainer *trainer;
    struct hzp_scheduler *scheduler;
    struct hzp_step_link *records;
    struct hzp_loop *loop;
    struct hzp_request *live[REQUESTS];
    int32_t submitted, served;
    struct hzp_update_report report[UPDATES];
    int32_t reports;
    pthread_t saver;
    struct hzp_layout layout;          /* of the whole model */
    struct hzp_snapshot *saved[SAVES]; /* by the saver: the first ones, and the last */
    uint64_t saved_id[SAVES];
    int saves;
    struct group_gate gate;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "test_group_trainer: %s: %s\n", #call, hzp_err_name(must_));           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "test_group_trainer: line %d: %s\n", __LINE__, #condition);            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Two nano-batches, whose exchanges have a lane of their own. */
static const struct hzp_plan_shape two_lanes = {
    .nanos = 2, .weight = {1, 1}, .order = HZP_ORDER_LAYERS, .network_lane = HZP_LANE_NETWORK};

static const struct hzp_batch_config batch_max = {.rows_max = 16,
                                                  .segs_max = RUNNING + 1,
                                                  .page_stride = POSITIONS / PAGE_ROWS,
                                                  .logits_max = 8,
                                                  .edits_max = 400,
                                                  .masks_max = RUNNING,
                                                  .mask_words = hzp_mask_words(VOCAB),
                                                  .hidden_cols = 16,
                                                  .hidden_type = HZP_F32};

/* The whole model. */
static struct hzp_model_config config_of(const struct scene *scene)
{
    struct hzp_model_config config = {.layers = scene->skip > 0 ? 8 : 2,
                                      .width = 16,
                                      .inner = 24,
                                      .vocab = VOCAB,
                                      .heads = {8, 8, 8},
                                      .positions = POSITIONS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .qk_norm = scene->qk_norm,
                                      .bos = -1};
    strcpy(config.family, scene->qk_norm ? "qwen3" : "llama");
    return config;
}

static struct hzp_recipe recipe_of(const struct scene *scene)
{
    return (struct hzp_recipe){.lr = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .decay = 0.01f,
                               .clip = 1,
                               .schedule = HZP_LR_CONSTANT,
                               .update_tokens = 64, /* several micro-batches */
                               .micro_rows = 24,
                               .publish_every = scene->publish_every,
                               .skip = scene->skip,
                               .swap = scene->skip > 0,
                               .moment_type = HZP_F32};
}

static struct hzp_step_limits limits_of(const struct scene *scene)
{
    struct hzp_recipe recipe = recipe_of(scene);
    return (struct hzp_step_limits){.lines = RUNNING + 1,
                                    .vocab = VOCAB,
                                    .pages = PAGES,
                                    .page_rows = PAGE_ROWS,
                                    .positions = POSITIONS,
                                    .work_bytes = hzp_learner_work_room(&recipe)};
}

/* ---- every rank ---- */

/* The first version: of the whole model, of which each rank keeps its slice. */
static void publish_first(struct rank *r)
{
    struct hzp_units host = fixture_units(&r->whole, r->scene->type);
    struct hzp_version *draft = fixture_begin(&r->m);
    size_t size = hzp_dtype_size(r->scene->type);
    fixture_units_random(NULL, &host, 7, 0.25f);
    for (int32_t u = 0; u < r->whole.units; u++) {
        struct hzp_unit_view from = hzp_unit_view(&host, u);
        struct hzp_unit_view to = hzp_version_unit(r->m.weights, draft, u);
        if (r->scene->ranks > 1)
            hzp_tensor_slice_cut(&r->whole, &r->m.layout, u, size, from.base, to.base);
        else
            memcpy(to.base, from.base, hzp_unit_bytes(&to));
    }
    fixture_publish(&r->m, draft, 0);
    fixture_units_free(&host);
}

/* Copies a version's elements when it is first seen. */
static void keep(struct rank *r, const struct hzp_version *v)
{
    uint64_t id = v->record.id;
    if (id >= VERSIONS || r->unit[id])
        return;
    r->unit[id] = calloc((size_t)r->m.layout.units, sizeof(char *));
    for (int32_t u = 0; u < r->m.layout.units; u++) {
        struct hzp_unit_view view = hzp_version_unit(r->m.weights, v, u);
        r->unit[id][u] = malloc(hzp_unit_bytes(&view));
        memcpy(r->unit[id][u], view.base, hzp_unit_bytes(&view));
    }
}

static void open_rank(struct rank *r)
{
    const struct scene *scene = r->scene;
    struct fixture_config fixture = {.device = "ref",
                                     .config = config_of(scene),
                                     .store = {.type = scene->type,
                                               .slots = scene->slots,
                                               .max_staleness = scene->max_staleness,
                                               .first_id = 1},
                                     .tensor = scene->ranks > 1 ? r->link[SERVE] : NULL,
                                     .tensor_train = r->link[TRAIN]};
    hzp_layout_make(&fixture.config, &r->whole);
    fixture_open(&r->m, &fixture);
    publish_first(r);
    MUST(hzp_kvpool_create(r->m.model, PAGES, PAGE_ROWS, &r->pool));
    MUST(hzp_batch_create(r->m.dev, &batch_max, &r->batch));
    MUST(hzp_serve_space_create(r->m.model, batch_max.rows_max, batch_max.logits_max, &r->space));
}

static void close_rank(struct rank *r)
{
    hzp_serve_space_destroy(r->space);
    hzp_batch_destroy(r->batch);
    hzp_kvpool_destroy(r->pool);
    fixture_close(&r->m);
    hzp_layout_free(&r->whole);
}

/* At the end. */
static void keep_state(struct rank *r, const struct hzp_train_space *space)
{
    for (int p = 0; p < HZP_STATE_WEIGHTS; p++) {
        const struct hzp_units *part = hzp_train_space_part(space, (enum hzp_state_part)p);
        if (part && r->scene->saves)
            r->last[p] = fixture_units_read(r->m.dev, part);
    }
}

/* ---- a member ---- */

/* The record with other work than rank 0's. */
static void do_wrong(struct rank *r, struct hzp_step_record *record)
{
    struct hzp_work work;
    struct hzp_step_training *t = &record->training;
    if (r->scene->wrong == NOTHING || r->number != 1 || !t->work_bytes)
        return;
    const struct hzp_work_limits limits = {VOCAB, POSITIONS, r->m.layout.config.layers};
    MUST(hzp_work_read(t->work, t->work_bytes, &limits, &work, r->micro, NULL));
    if (work.kind == HZP_WORK_UPDATE && r->scene->wrong == OTHER_RATE)
        work.hyper.lr *= 1.2f;
    if (work.kind == HZP_WORK_MICRO && r->scene->wrong == FORGETS)
        work.first = true;
    if (work.kind == HZP_WORK_MICRO && r->scene->wrong == LEARNS_LESS)
        r->micro->learned = 1;
    if (work.kind == HZP_WORK_UPDATE && r->scene->wrong == SAVES_LESS)
        work.saves = false;
    if (work.kind == HZP_WORK_MICRO && !work.first && r->scene->wrong == LEARNS_NOTHING) {
        memset(r->micro->weight, 0, sizeof(float) * (size_t)r->micro->learned);
        r->micro->loss.weight = r->micro->weight;
    }
    t->work_bytes = hzp_work_write(&work, r->micro, r->work);
    t->work = r->work;
}

static int chain(void *ctx, const struct hzp_step_record *record, const struct hzp_plan **ret,
                 struct hzp_err_text *reterr)
{
    struct rank *r = ctx;
    struct hzp_step_record mine = *record;
    do_wrong(r, &mine);
    return hzp_learner_by_step_chain(r->learner, &mine, ret, reterr);
}

static void ran(void *ctx, const struct hzp_step_record *record, const struct hzp_version *version,
                const struct hzp_batch *batch)
{
    struct rank *r = ctx;
    r->mixed += version->record.id != record->version;
    r->newest = version->record.id;
    keep(r, version);
    hzp_learner_by_step_ran(r->learner, record, version, batch);
}

static int publish(void *ctx, uint64_t id, struct hzp_err_text *reterr)
{
    struct rank *r = ctx;
    return hzp_learner_by_step_publish(r->learner, id, reterr);
}

static void *member_main(void *arg)
{
    struct rank *r = arg;
    struct hzp_member *member;
    open_rank(r);
    struct hzp_learner_config learner = {.recipe = recipe_of(r->scene),
                                         .model = r->m.model,
                                         .quantum_flops = 20000,
                                         .undoes = r->scene->gate > 0 || r->scene->by_lesson};
    MUST(hzp_learner_by_step_create(&learner, &r->learner));
    MUST(hzp_micro_create(r->m.dev, learner.recipe.micro_rows, &r->micro));
    r->work = malloc((size_t)hzp_learner_work_room(&learner.recipe));
    struct hzp_member_config config = {.model = r->m.model,
                                       .space = r->space,
                                       .batch = r->batch,
                                       .kv = hzp_kvpool_layers(r->pool),
                                       .limits = limits_of(r->scene),
                                       .shapes = {.shape = r->scene->shape},
                                       .link = r->link[RECORDS],
                                       .check_plans = true,
                                       .publish = publish,
                                       .chain = chain,
                                       .ran = ran,
                                       .ctx = r};
    MUST(hzp_member_create(&config, &member));
    r->result = hzp_member_run(member, &r->text);
    if (r->result < 0)
        fail_together(r->link);
    keep_state(r, hzp_learner_by_step_learner(r->learner)->space);
    hzp_learner_by_step_read_stats(r->learner, &r->stats);
    hzp_member_destroy(member);
    hzp_learner_by_step_destroy(r->learner);
    hzp_micro_destroy(r->micro);
    free(r->work);
    close_rank(r);
    return NULL;
}

/* ---- rank 0 ---- */

static void on_update(void *ctx, const struct hzp_update_report *report)
{
    struct world *w = ctx;
    if (w->reports < UPDATES)
        w->report[w->reports++] = *report;
    keep(&w->rank[0], hzp_weights_current(w->rank[0].m.weights));
}

static void push(struct world *w, int64_t s)
{
    struct hzp_sample *sample = group_sample(s, w->scene.bursts && s == 20);
    sample->sequence_number = sample->lesson = s;
    MUST(hzp_sample_queue_reserve(w->queue, 1, sample->count));
    hzp_sample_queue_push(w->queue, &sample, 1);
}

/* Takes a copy of what has been learned, from time to time, and when nothing more is. */
static void *saver_main(void *arg)
{
    struct world *w = arg;
    struct hzp_err_text text;
    struct hzp_border_call finished = {.fn = hzp_trainer_finished, .ctx = w->trainer};
    bool last;
    int ended;
    hzp_loop_post(w->loop, &finished);
    do {
        int i = HZP_MIN(w->saves, SAVES - 1);
        if (i == SAVES - 1)
            hzp_loop_await(w->loop, &finished);
        last = hzp_loop_ended(w->loop, &finished, &ended);
        if (hzp_loop_call(w->loop, hzp_trainer_freeze, w->trainer) < 0) {
            CHECK(w->scene.wrong != NOTHING); /* the group has ended */
            break;
        }
        struct hzp_version *v = hzp_trainer_frozen(w->trainer);
        int r = hzp_snapshot_take(w->saved[i], w->trainer, v, &text);
        if (r < 0 && w->scene.wrong == NOTHING) {
            fprintf(stderr, "test_group_trainer: %s\n", text.text);
            exit(1);
        }
        last |= r < 0; /* the group has ended */
        w->saved_id[i] = v->record.id;
        w->saves++;
        hzp_loop_call(w->loop, hzp_trainer_thaw, w->trainer);
    } while (!last);
    hzp_loop_cancel(w->loop, &finished);
    hzp_loop_call(w->loop, hzp_trainer_let_end, w->trainer);
    return NULL;
}

static void open_first(struct world *w)
{
    const struct scene *scene = &w->scene;
    struct rank *r = &w->rank[0];
    struct hzp_err_text text = {0};
    struct hzp_scheduler_config scheduler = {.running_max = RUNNING,
                                             .waiting_max = 64,
                                             .waiting_tokens_max = 1 << 20,
                                             .prefill_rows_max = 8,
                                             .prefix_cache = true,
                                             .edits_max = 400};
    struct hzp_sample_queue_config queue = {.samples_max = 1000,
                                            .tokens_max = 100000,
                                            .passes = 5,
                                            .by_lesson = scene->by_lesson,
                                            .seed = 5};
    struct hzp_step_link_config records = {
        .link = r->link[RECORDS], .max = batch_max, .limits = limits_of(scene)};
    open_rank(r);
    group_gate_open(&w->gate, scene->gate);
    MUST(hzp_sample_queue_create(&queue, &w->queue));
    struct hzp_trainer_config trainer = {.recipe = recipe_of(scene),
                                         .model = r->m.model,
                                         .whole = scene->ranks > 1 ? &r->whole.config : NULL,
                                         .group = r->link[RECORDS],
                                         .queue = w->queue,
                                         .quantum_flops = 20000,
                                         .half_rows = scene->gate > 0 ? 24 : 4,
                                         .gate = scene->gate > 0 ? &w->gate.gate : NULL,
                                         .on_update = on_update,
                                         .ctx = w};
    MUST(hzp_trainer_create(&trainer, &w->trainer, &text));
    MUST(hzp_scheduler_create(&scheduler, r->m.model, r->pool, &w->scheduler));
    if (scene->ranks > 1)
        w->records = hzp_step_link_create(&records);
    struct hzp_loop_config loop = {
        .model = r->m.model,
        .space = r->space,
        .batch = r->batch,
        .source = {hzp_scheduler_source(w->scheduler), hzp_trainer_source(w->trainer)},
        .sources = 2,
        .policy = {.train_share = 1, .train_max = 1},
        .idle_ns = scene->idle_ns,
        .shape = scene->shape,
        .check_plans = true,
        .group = w->records};
    MUST(hzp_loop_create(&loop, &w->loop));
    MUST(hzp_loop_warm_up(w->loop, hzp_kvpool_layers(r->pool), NULL));
    keep(r, hzp_weights_current(r->m.weights));
    if (!scene->saves)
        return;
    MUST(hzp_trainer_keep_slices(w->trainer));
    hzp_trainer_set_loop(w->trainer, w->loop);
    for (int i = 0; i < SAVES; i++)
        MUST(hzp_snapshot_create(&w->layout, scene->type, HZP_F32, &w->saved[i]));
    MUST(hzp_thread_start(&w->saver, "saver", saver_main, w));
}

static void close_first(struct world *w)
{
    hzp_loop_destroy(w->loop);
    hzp_step_link_destroy(w->records);
    hzp_trainer_destroy(w->trainer);
    hzp_sample_queue_destroy(w->queue);
    hzp_scheduler_destroy(w->scheduler);
    for (int i = 0; i < w->submitted; i++)
        hzp_request_destroy(w->live[i]);
    group_gate_close(&w->gate);
    close_rank(&w->rank[0]);
}

static void submit(struct world *w)
{
    int32_t prompt[16], count = 4 + w->submitted;
    struct hzp_request *rq;
    for (int32_t k = 0; k < count; k++)
        prompt[k] = (k * 5 + w->submitted) % VOCAB;
    MUST(hzp_request_create(prompt, count, 24, 0, false, &rq));
    rq->sampling = (struct hzp_sampling){
        .temperature = w->submitted % 2 ? 0.9f : 0, .top_p = 1, .repetition = 1, .seed = 5};
    rq->ignore_eos = true;
    MUST(hzp_scheduler_submit(w->scheduler, rq, NULL));
    w->live[w->submitted++] = rq;
}

/* Requests come while others are computed; the samples are there, because how many of them an
 * update draws must not depend on the ranks' steps. */
static int turns(struct world *w)
{
    struct hzp_sample_queue_stats queue;
    int r, quiet = 0;
    for (int64_t sample = 1; sample <= 48; sample++)
        push(w, sample);
    for (int turn = 0; quiet < 3 && turn < 20000000; turn++) {
        if (w->submitted < REQUESTS && turn % 9 == 4)
            submit(w);
        r = hzp_loop_turn(w->loop);
        if (r < 0)
            return r;
        hzp_sample_queue_read_stats(w->queue, &queue);
        bool waits = queue.samples; /* while the trainer is frozen */
        quiet = r == 0 && !waits && w->submitted == REQUESTS ? quiet + 1 : 0;
    }
    CHECK(quiet == 3);
    hzp_trainer_finish(w->trainer);
    hzp_loop_stop(w->loop, false);
    return hzp_loop_run(w->loop);
}

static void run(struct world *w, const struct scene *scene)
{
    struct hzp_err_text text;
    memset(w, 0, sizeof(*w));
    struct hzp_model_config whole = config_of(scene);
    w->scene = *scene;
    hzp_layout_make(&whole, &w->layout);
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
    if (scene->saves)
        pthread_join(w->saver, NULL);
    keep_state(&w->rank[0], hzp_trainer_space(w->trainer));
    for (int i = 1; i < scene->ranks; i++)
        pthread_join(w->rank[i].thread, NULL);
    for (int i = 0; i < w->submitted; i++)
        w->served += atomic_load(&w->live[i]->state) == HZP_REQUEST_LENGTH;
    if (w->rank[0].result < 0)
        hzp_scheduler_abort(w->scheduler);
    close_first(w);
}

static void end(struct world *w)
{
    for (int i = 0; i < w->scene.ranks; i++) {
        struct rank *r = &w->rank[i];
        for (int id = 0; id < VERSIONS; id++) {
            for (int32_t u = 0; r->unit[id] && u < 4; u++)
                free(r->unit[id][u]);
            free(r->unit[id]);
        }
        for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
            if (r->last[p].layout)
                fixture_units_free(&r->last[p]);
        for (int k = 0; k < LINKS; k++)
            hzp_link_close(r->link[k]);
    }
    for (int i = 0; i < SAVES; i++)
        hzp_snapshot_destroy(w->saved[i]);
    hzp_layout_free(&w->layout);
}

/* ---- what must hold ---- */

/* The largest difference between the slices' elements and those of the whole model, of version
 * id. */
static double worst_of(const struct world *one, const struct world *w, uint64_t id, int *ret_seen)
{
    double worst = 0;
    struct hzp_layout whole, slice;
    struct hzp_model_config config = config_of(&w->scene);
    size_t size = hzp_dtype_size(w->scene.type);
    hzp_layout_make(&config, &whole);
    for (int i = 0; i < w->scene.ranks; i++) {
        if (!w->rank[i].unit[id]) /* it fell behind the last step */
            continue;
        hzp_layout_make_slice(&config, (struct hzp_tensor_slice){i, w->scene.ranks}, &slice);
        for (int32_t u = 0; u < slice.units; u++) {
            size_t count = slice.unit[u].elements;
            char *cut = malloc(count * size);
            hzp_tensor_slice_cut(&whole, &slice, u, size, one->rank[0].unit[id][u], cut);
            for (size_t k = 0; k < count; k++) {
                double a, b;
                if (size == 4) {
                    a = (double)((float *)cut)[k];
                    b = (double)((float *)w->rank[i].unit[id][u])[k];
                } else {
                    a = (double)hzp_bf16_to_f32(((uint16_t *)cut)[k]);
                    b = (double)hzp_bf16_to_f32(((uint16_t *)w->rank[i].unit[id][u])[k]);
                }
                worst = fmax(worst, fabs(a - b));
            }
            free(cut);
        }
        ++*ret_seen;
        hzp_layout_free(&slice);
    }
    hzp_layout_free(&whole);
    return worst;
}

/* Whether each rank's unit u of a part is its slice of the whole one's. */
static bool same_slice(const struct hzp_units *whole, const struct hzp_layout *slice, int32_t u,
                       const void *own)
{
    size_t size = hzp_dtype_size(whole->type), bytes = slice->unit[u].elements * size;
    char *cut = malloc(bytes);
    hzp_tensor_slice_cut(whole->layout, slice, u, size, hzp_unit_view(whole, u).base, cut);
    bool same = memcmp(cut, own, bytes) == 0;
    free(cut);
    return same;
}

/* What was saved is what the ranks had: weights of each version, and the last state. */
static void check_saved(const struct world *w)
{
    struct hzp_layout slice;
    struct hzp_model_config config = config_of(&w->scene);
    int seen = 0, kept = HZP_MIN(w->saves, SAVES);
    CHECK(w->saves > 2);
    for (int r = 0; r < w->scene.ranks; r++) {
        const struct rank *rank = &w->rank[r];
        hzp_layout_make_slice(&config, (struct hzp_tensor_slice){r, w->scene.ranks}, &slice);
        for (int32_t u = 0; u < slice.units; u++) {
            for (int i = 0; i < kept; i++) {
                const struct hzp_units *weights = &w->saved[i]->part[HZP_STATE_WEIGHTS];
                char **unit = rank->unit[w->saved_id[i]];
                CHECK(!unit || same_slice(weights, &slice, u, unit[u]));
                seen += unit != NULL;
            }
            for (int p = 0; p < HZP_STATE_WEIGHTS; p++)
                CHECK(!rank->last[p].layout ||
                      same_slice(&w->saved[kept - 1]->part[p], &slice, u, rank->last[p].base[u]));
        }
        hzp_layout_free(&slice);
    }
    CHECK(seen > w->scene.ranks);
    printf("saved %d times, the last of version %d\n", w->saves, (int)w->saved_id[kept - 1]);
}

struct off {
    double loss, norm, weights;
    int seen;              /* versions on ranks */
    int skipped, rejected; /* rejected: of the skipped */
};

/* What a gate made of both. */
static void compare_gates(const struct hzp_update_report *one, const struct hzp_update_report *w,
                          struct off *off)
{
    CHECK(w->rejected == one->rejected && isfinite(w->gate_after) == isfinite(one->gate_after));
    off->rejected += w->rejected;
    if (!isfinite(one->gate_after))
        return;
    off->loss = fmax(off->loss, fabs(w->gate_before / one->gate_before - 1));
    off->loss = fmax(off->loss, fabs(w->gate_after / one->gate_after - 1));
}

static struct off compare(const struct world *one, const struct world *w)
{
    struct off off = {0};
    CHECK(w->reports == one->reports);
    for (int k = 0; k < w->reports; k++) {
        CHECK(w->report[k].learned_tokens == one->report[k].learned_tokens &&
              w->report[k].skipped == one->report[k].skipped &&
              w->report[k].version == one->report[k].version);
        off.skipped += w->report[k].skipped;
        compare_gates(&one->report[k], &w->report[k], &off);
        if (w->report[k].skipped)
            continue;
        off.loss = fmax(off.loss, fabs(w->report[k].loss / one->report[k].loss - 1));
        off.norm = fmax(off.norm, fabs(w->report[k].grad_norm / one->report[k].grad_norm - 1));
    }
    for (uint64_t id = 1; id < VERSIONS && one->rank[0].unit[id]; id++)
        off.weights = fmax(off.weights, worst_of(one, w, id, &off.seen));
    return off;
}

static void all_learn(const struct scene *scene, double bound, double weights_bound)
{
    struct scene alone = *scene;
    struct world one, w;
    alone.ranks = 1;
    alone.shape = NULL;
    alone.saves = false;
    run(&one, &alone);
    run(&w, scene);
    struct off off = compare(&one, &w);
    printf(
        "%d ranks, %s%s, published every %d, %d slots, %s: %d updates, loss %.4f to %.4f, off by "
        "%.1e, norm %.1e, weights %.1e in %d versions of ranks, %d not finite, %d rejected\n",
        scene->ranks, scene->type == HZP_F32 ? "f32" : "bf16",
        scene->qk_norm ? ", normed heads" : "", scene->publish_every, scene->slots,
        scene->idle_ns == 1 ? "item by item" : "in slices", w.reports, w.report[0].loss,
        w.report[w.reports - 1].loss, off.loss, off.norm, off.weights, off.seen,
        off.skipped - off.rejected, off.rejected);
    for (int i = 0; i < scene->ranks; i++) {
        const struct rank *r = &w.rank[i];
        if (r->result < 0)
            fprintf(stderr, "test_group_trainer: rank %d: %s\n", i, r->text.text);
        CHECK(r->result == 0 && r->mixed == 0);
        CHECK(i == 0 || (r->stats.updates == (uint64_t)(w.reports - off.skipped + off.rejected) &&
                         r->stats.skipped == (uint64_t)(off.skipped - off.rejected) &&
                         r->stats.undone == (uint64_t)off.rejected));
        CHECK(i == 0 || r->stats.micros > 2 * r->stats.updates);
        CHECK(i == 0 || (r->stats.halved > 0) == (scene->gate == 0)); /* 24: of no micro-batch */
        uint64_t each = scene->by_lesson ? 5 : (uint64_t)scene->publish_every; /* updates */
        CHECK(i == 0 || (r->stats.evaluations > 2 * r->stats.updates / each) == (scene->gate > 0));
        CHECK(i == 0 ||
              r->stats.publications + 1 >= (r->stats.updates - each * r->stats.undone) / each);
    }
    CHECK(one.served == REQUESTS && w.served == REQUESTS);
    CHECK(w.reports >= 10 &&
          w.report[w.reports - 1].loss < (off.rejected ? 0.98 : 0.9) * w.report[0].loss);
    CHECK(scene->by_lesson ||
          off.seen >= scene->ranks * ((w.reports - off.skipped) / scene->publish_every));
    CHECK(off.seen > scene->ranks);
    CHECK((off.skipped > off.rejected) == scene->bursts);
    CHECK(scene->gate > 0 || !off.rejected);
    CHECK(scene->gate == 0 || scene->gate > 10 || off.rejected);
    CHECK(off.loss < bound && off.norm < 10 * bound && off.weights < weights_bound);
    if (scene->saves)
        check_saved(&w);
    end(&one);
    end(&w);
}

/* What is wrong on rank 1 gives other weights than one rank's. */
static void shows(enum wrong wrong, double weights_bound)
{
    struct scene scene = {.ranks = 2,
                          .type = HZP_F32,
                          .publish_every = 1,
                          .slots = 2,
                          .max_staleness = 1,
                          .idle_ns = 1000000000};
    struct scene alone = scene;
    struct world one, w;
    alone.ranks = 1;
    scene.wrong = wrong;
    run(&one, &alone);
    run(&w, &scene);
    struct off off = compare(&one, &w);
    printf("wrong %d: loss off by %.1e, weights %.1e\n", wrong, off.loss, off.weights);
    CHECK(off.weights > 10 * weights_bound);
    end(&one);
    end(&w);
}

/* Rank 1 makes another plan, or learns something else, which a checkpoint shows: the group ends,
 * and all know why. */
static void is_found_out(enum wrong wrong)
{
    struct scene scene = {.ranks = 4,
                          .type = HZP_F32,
                          .publish_every = 1,
                          .slots = 2,
                          .max_staleness = 1,
                          .idle_ns = 1000000000,
                          .wrong = wrong,
                          .saves = wrong == OTHER_RATE,
                          .gate = wrong == SAVES_LESS ? 0.01 : 0};
    struct hzp_link_state state;
    struct world w;
    run(&w, &scene);
    hzp_link_state(w.link[RECORDS][0], &state);
    printf("wrong %d: %s\n", scene.wrong, state.why);
    CHECK(w.rank[0].result < 0 && w.rank[2].result == HZP_EIO && w.rank[3].result == HZP_EIO);
    CHECK(state.failed && state.failed_rank == 1);
    CHECK(strstr(state.why, "made another plan") || strstr(state.why, "rank 0 runs up to item") ||
          (wrong == OTHER_RATE && strstr(state.why, "another norm")));
    end(&w);
}

int main(void)
{
    enum { AT_ONCE = 1000000000 };
    const double f32 = 1e-5, bf16 = 2e-2;
    const struct scene scenes[] = {
        {2, HZP_F32, 1, 2, 1, AT_ONCE, false, NULL, false, NOTHING, true, 0, false, 0},
        {4, HZP_F32, 1, 2, 1, 1, false, NULL, false, NOTHING, true, 0, false, 0},
        {2, HZP_F32, 3, 2, 4, 1, false, &two_lanes, true, NOTHING, false, 0, false, 0},
        {4, HZP_F32, 1, 3, 0, 1, true, NULL, false, NOTHING, false, 0, false, 0},
        {8, HZP_F32, 1, 2, 1, AT_ONCE, true, &two_lanes, false, NOTHING, true, 0, false, 0},
        {2, HZP_BF16, 1, 2, 1, 1, false, NULL, false, NOTHING, true, 0, false, 0},
        {2, HZP_F32, 1, 2, 1, 1, false, NULL, true, NOTHING, false, 0, false, 0},
        {2, HZP_F32, 1, 2, 1, 1, false, NULL, true, NOTHING, true, 1000, false, 0},
        {2, HZP_F32, 1, 2, 1, AT_ONCE, false, NULL, false, NOTHING, true, 0.03, false, 0},
        {4, HZP_F32, 1, 2, 0, 1, true, &two_lanes, false, NOTHING, false, 0.03, false, 0},
        {2, HZP_F32, 1, 2, 1, AT_ONCE, false, NULL, false, NOTHING, true, 0.03, true, 0},
        {4, HZP_BF16, 1, 2, 0, 1, false, &two_lanes, false, NOTHING, true, 0, true, 0},
        {2, HZP_F32, 1, 2, 1, 1, false, NULL, false, NOTHING, true, 0, false, 0.4f},
    };
    for (int i = 0; i < HZP_COUNT(scenes); i++)
        all_learn(&scenes[i], scenes[i].type == HZP_F32 ? f32 : bf16,
                  scenes[i].type == HZP_F32 ? 1e-3 : 5e-2);
    shows(OTHER_RATE, 1e-3);
    shows(LEARNS_NOTHING, 1e-3);
    is_found_out(LEARNS_LESS);
    is_found_out(FORGETS);
    is_found_out(SAVES_LESS);
    is_found_out(OTHER_RATE);
    return 0;
}

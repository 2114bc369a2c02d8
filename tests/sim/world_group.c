/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/world_group.c - a world whose rank 0 computes each step together with members: each has
 * its slice of the model on a simulated device of its own, in a thread, and is fed by records.
 *
 * Exchanges take the time of a simulated link on rank 0's clock; they move no data, as the device
 * computes none.  Training is left out: versions are published by a source in its place.  What
 * holds of rank 0 is checked as in any world, and each member must run the same step with the same
 * version.
 *
 * Thread: the test's, but for what a member does.
 */
#include "base/thread.h"
#include "nanobatch/member.h"
#include "tests/sim/world.h"
#include "tests/links/links.h"

#include <sched.h>
#include <stdlib.h>

enum { RANKS_MAX = 8, NOTED = 64 /* newest steps; members are at most a few behind */ };

struct sim_member {
    struct sim_world *w;
    int number, result;
    struct hzp_link *link;
    struct hzp_weights *weights;
    struct hzp_err_text text;
    uint64_t steps, newest;
    pthread_t thread;
    _Atomic bool ready;
};

struct sim_group {
    struct hzp_link *record[RANKS_MAX], *exchange;
    struct sim_member member[RANKS_MAX];
    _Atomic uint64_t version[NOTED]; /* of step n: [n % NOTED] */
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0)                                                                             \
            sim_broken(w, "opening a group", "%s: %s", #call, hzp_err_name(must_));                \
    } while (0)

/* What the rank exchanges with the others takes time on its device's clock. */
static int open_exchange(const struct sim_world *w, struct hzp_device *dev, int rank,
                         struct hzp_link **ret)
{
    struct hzp_link_sim wire = {.rank = rank,
                                .ranks = w->ranks,
                                .node_ranks = w->ranks,
                                .rate_node = 1e9 * w->rate,
                                .rate_net = 1e9 * w->rate,
                                .latency_ns = 500};
    return hzp_link_open_sim(&wire, dev, ret, NULL);
}

/* --- A member --------------------------------------------------------------------------------- */

static int publish(void *ctx, uint64_t id, struct hzp_err_text *reterr)
{
    struct sim_member *m = ctx;
    struct sim_world *w = m->w;
    struct hzp_version *draft;
    /* the first version's id is 1 + seed; what the test's thread counts is not read here */
    if (w->sabotage == SIM_LATE_SWAP && m->number == 1 && id > 1 + w->seed + 3)
        return HZP_OK;
    while (hzp_weights_current(m->weights)->record.id < id) {
        MUST(hzp_weights_begin(m->weights, &draft));
        hzp_weights_publish(m->weights, draft, m->newest);
    }
    return HZP_OK;
}

static void ran(void *ctx, const struct hzp_step_record *record, const struct hzp_version *version,
                const struct hzp_batch *batch)
{
    struct sim_member *m = ctx;
    struct sim_world *w = m->w;
    uint64_t expected = atomic_load(&w->group->version[record->step % NOTED]);
    SIM_CHECK(w, version->record.id == expected, "member",
              "rank %d ran step %llu with version %llu, rank 0 with %llu", m->number,
              (unsigned long long)record->step, (unsigned long long)version->record.id,
              (unsigned long long)expected);
    SIM_CHECK(w, record->step > m->newest, "member", "rank %d ran step %llu after %llu", m->number,
              (unsigned long long)record->step, (unsigned long long)m->newest);
    m->newest = record->step;
    m->steps++;
}

static struct hzp_step_limits limits_of(const struct sim_world *w)
{
    return (struct hzp_step_limits){.lines = w->scheduler_config.running_max + 1,
                                    .vocab = SIM_VOCAB,
                                    .pages = w->pages,
                                    .page_rows = w->page_rows,
                                    .positions = w->positions};
}

/* Runs until rank 0 ends. */
static void serve(struct sim_member *m, struct hzp_device *dev, struct hzp_model *model)
{
    struct sim_world *w = m->w;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_member *member;
    MUST(hzp_kvpool_create(model, w->pages, w->page_rows, &pool));
    MUST(hzp_serve_space_create(model, w->batch_config.rows_max, w->batch_config.logits_max,
                                &space));
    MUST(hzp_batch_create(dev, &w->batch_config, &batch));
    struct hzp_member_config config = {.model = model,
                                       .space = space,
                                       .batch = batch,
                                       .kv = hzp_kvpool_layers(pool),
                                       .limits = limits_of(w),
                                       .shapes = {.shape = w->shaped ? &w->shape : NULL},
                                       .link = m->link,
                                       .publish = publish,
                                       .ran = ran,
                                       .ctx = m};
    MUST(hzp_member_create(&config, &member));
    atomic_store(&m->ready, true);
    m->result = hzp_member_run(member, &m->text);
    hzp_member_destroy(member);
    hzp_batch_destroy(batch);
    hzp_serve_space_destroy(space);
    hzp_kvpool_destroy(pool);
}

static void *member_main(void *arg)
{
    struct sim_member *m = arg;
    struct sim_world *w = m->w;
    struct hzp_device *dev;
    struct hzp_link *exchange;
    struct hzp_layout layout;
    struct hzp_model *model;
    struct hzp_version *draft;
    struct hzp_model_config config = sim_model(w);
    struct hzp_weights_config store = {
        .type = HZP_F32, .slots = 3, .max_staleness = 1, .first_id = 1 + w->seed};
    MUST(hzp_device_open(&(struct hzp_device_config){.name = "sim"}, &dev, NULL));
    hzp_layout_make_slice(&config, (struct hzp_tensor_slice){m->number, w->ranks}, &layout);
    MUST(hzp_weights_create(dev, &layout, &store, &m->weights));
    MUST(hzp_model_create(dev, m->weights, w->positions, &model));
    MUST(open_exchange(w, dev, m->number, &exchange));
    hzp_model_set_tensor(model, exchange, exchange);
    MUST(hzp_weights_begin(m->weights, &draft));
    hzp_weights_publish(m->weights, draft, 0);
    serve(m, dev, model);
    hzp_link_close(exchange);
    hzp_model_destroy(model);
    hzp_weights_destroy(m->weights);
    hzp_layout_free(&layout);
    hzp_device_close(dev);
    return NULL;
}

/* --- Rank 0 ----------------------------------------------------------------------------------- */

void sim_group_note(struct sim_world *w, uint64_t step, uint64_t version)
{
    if (w->group)
        atomic_store(&w->group->version[step % NOTED], version);
}

static bool writer_offer(struct hzp_source *source, const struct hzp_step *step,
                         struct hzp_room *room, struct hzp_offer *offer)
{
    return false;
}

/* Publishes a version now and then, as the trainer does when an update has ended. */
static void writer_deliver(struct hzp_source *source, const struct hzp_step *step,
                           const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct sim_world *w = HZP_CONTAINER_OF(source, struct sim_world, writer);
    struct hzp_version *draft;
    bool keep = offer->keep_version || w->offer->keep_version;
    if (outcome->status < 0 || keep || !sim_chance(w, 40) ||
        hzp_weights_begin(w->weights, &draft) < 0)
        return;
    draft->record.optimizer_step = ++w->good_updates;
    draft->record.learned_through = w->learnable;
    hzp_weights_finished(w->weights, w->good_updates);
    hzp_weights_publish(w->weights, draft, step->number);
}

void sim_group_open(struct sim_world *w)
{
    struct hzp_err_text text;
    w->group = hzp_xcalloc(1, sizeof(*w->group));
    MUST(hzp_link_open_local(w->ranks, 0, 0, w->group->record, &text));
    w->dev->backend = &hzp_backend_sim; /* not as it is watched: its clock is this one's */
    MUST(open_exchange(w, w->dev, 0, &w->group->exchange));
    w->dev->backend = &w->backend;
    hzp_model_set_tensor(w->model, w->group->exchange, w->group->exchange);
    w->writer = (struct hzp_source){
        .name = "writer", .slices = true, .offer = writer_offer, .deliver = writer_deliver};
    struct hzp_step_link_config records = {
        .link = w->group->record[0], .max = w->batch_config, .limits = limits_of(w)};
    w->records = hzp_step_link_create(&records);
    for (int i = 1; i < w->ranks; i++) {
        struct sim_member *m = &w->group->member[i];
        *m = (struct sim_member){.w = w, .number = i, .link = w->group->record[i]};
        MUST(hzp_thread_start(&m->thread, "member", member_main, m));
        while (!atomic_load(&m->ready)) /* it reads the rates of this world's devices */
            sched_yield();
    }
}

void sim_group_end(struct sim_world *w)
{
    hzp_loop_stop(w->loop, false);
    int r = hzp_loop_run(w->loop);
    SIM_CHECK(w, r == 0, "group", "the loop ends with %s", hzp_err_name(r));
    for (int i = 1; i < w->ranks; i++) {
        struct sim_member *m = &w->group->member[i];
        pthread_join(m->thread, NULL);
        SIM_CHECK(w, m->result == 0, "group", "rank %d: %s", i, m->text.text);
        SIM_CHECK(w, m->steps == w->group->member[1].steps && m->newest <= w->step->number,
                  "member", "rank %d ran %llu steps, rank 1 %llu", i, (unsigned long long)m->steps,
                  (unsigned long long)w->group->member[1].steps);
        w->member_steps += m->steps;
    }
}

void sim_group_close(struct sim_world *w)
{
    hzp_step_link_destroy(w->records);
    for (int i = 0; i < w->ranks; i++)
        hzp_link_close(w->group->record[i]);
    hzp_link_close(w->group->exchange);
    free(w->group);
}

/* The loop tells what a step drew as soon as it is served, before any source: the tokens are not
 * kept from it. */
void __real_hzp_step_link_drew(struct hzp_step_link *l, uint64_t step,
                               const struct hzp_batch *batch);
void __wrap_hzp_step_link_drew(struct hzp_step_link *l, uint64_t step,
                               const struct hzp_batch *batch);

void __wrap_hzp_step_link_drew(struct hzp_step_link *l, uint64_t step,
                               const struct hzp_batch *batch)
{
    sim_show_tokens(l, step, batch->token); /* of rank 0 */
    __real_hzp_step_link_drew(l, step, batch);
}

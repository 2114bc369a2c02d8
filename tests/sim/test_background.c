/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_background.c - background requests have only what ordinary ones leave: on the
 * virtual clock, the same ordinary requests with and without background ones beside them.
 *
 *     tokens    are the same
 *     ITL       no step with a row of an ordinary request has one of a background request, nor has
 *               one formed while an ordinary request waits: so it takes as long as alone
 *     TTFT      is longer by three steps of background requests alone at most: two may be in flight
 *               when the request arrives, and where it needs a slot or pages, the next one lets go
 *               of them
 *
 * Then: they use the device where nothing else does, and all of them end.  And with an ITL goal,
 * several times an ordinary step, they have rows beside ordinary ones, and steps keep the goal.
 * Last: those that an older version computes end, too, while ordinary ones never stop, and have one
 * step in a hundred at most. */
#include "nanobatch/loop.h"
#include "serve/scheduler_state.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"
#include "tests/serve/seeded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VOCAB = 96,
    POSITIONS = 160,
    PAGE_ROWS = 4,
    SLOTS = 6,
    ORDINARY = 60,
    BEHIND = 40,
    /* so few pages that background requests have to give up theirs */
    PAGES = 3 * POSITIONS / PAGE_ROWS
};

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct rig {
    struct fixture_model m;
    struct hzp_kvpool *pool;
    struct hzp_serve_space *space;
    struct hzp_batch *batch;
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_source spy; /* behind the scheduler: sees what it offers */
    struct {
        int32_t ordinary, behind; /* rows */
        bool prompts;             /* some of these are of prompts */
    } step[2];                    /* step n: step[n % 2] */
    int32_t beside, behind;       /* steps with both; with rows of background requests */
    int32_t late;                 /* those with both that take longer than the goal */
    uint64_t goal_ns;
    /* the longest steps: of background requests alone, of ordinary ones that decode */
    uint64_t longest_ns, decode_ns;
};

static int32_t rows_of(struct hzp_scheduler *s, int32_t from, int32_t to, uint64_t step)
{
    int32_t rows = 0;
    for (int32_t i = from; i < to; i++) {
        const struct hzp_part *part = hzp_seq_part(&s->seq[s->order[i]], step);
        rows += part->step == step ? part->rows : 0;
    }
    return rows;
}

static bool look(struct hzp_source *source, const struct hzp_step *step, struct hzp_room *room,
                 struct hzp_offer *offer)
{
    struct rig *rig = HZP_CONTAINER_OF(source, struct rig, spy);
    struct hzp_scheduler *s = rig->scheduler;
    int32_t before = rows_of(s, 0, s->ordinary, step->number);
    int32_t behind = rows_of(s, s->ordinary, s->running, step->number);
    CHECK(before + behind == offer->batch->rows && room, "rows of neither");
    CHECK(!behind || !hzp_wait_ordinary(s), "background rows while a request waits");
    rig->step[step->number % 2].ordinary = before;
    rig->step[step->number % 2].behind = behind;
    rig->step[step->number % 2].prompts = offer->batch->decode_segs < offer->batch->segs;
    rig->beside += behind > 0 && before > 0;
    rig->behind += behind > 0;
    return false;
}

static void note(struct hzp_source *source, const struct hzp_step *step,
                 const struct hzp_offer *offer, const struct hzp_outcome *outcome)
{
    struct rig *rig = HZP_CONTAINER_OF(source, struct rig, spy);
    CHECK(offer && outcome->status >= 0, "a step failed");
    int at = step->number % 2;
    uint64_t ns = outcome->ns[HZP_TENANT_SERVE];
    bool ordinary = rig->step[at].ordinary > 0, behind = rig->step[at].behind > 0;
    if (!ordinary)
        rig->longest_ns = HZP_MAX(rig->longest_ns, ns);
    else if (!behind && !rig->step[at].prompts)
        rig->decode_ns = HZP_MAX(rig->decode_ns, ns);
    rig->late += ordinary && behind && ns > rig->goal_ns;
}

static bool idle(struct hzp_source *source)
{
    return !source;
}

static void rig_open(struct rig *rig, uint64_t itl_ns)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = 2,
                                      .width = 64,
                                      .inner = 96,
                                      .vocab = VOCAB,
                                      .heads = {.heads = 4, .kv_heads = 2, .dim = 16},
                                      .positions = POSITIONS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .disk_type = HZP_F32,
                                      .bos = -1};
    struct hzp_scheduler_config scheduler = {.running_max = SLOTS,
                                             .waiting_max = ORDINARY,
                                             .waiting_tokens_max = 1 << 20,
                                             .prefix_cache = true,
                                             .edits_max = SLOTS * VOCAB};
    struct hzp_batch_config batch = {.rows_max = 64,
                                     .segs_max = SLOTS,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 64,
                                     .edits_max = SLOTS * VOCAB};
    memset(rig, 0, sizeof(*rig));
    struct fixture_config fixture = {
        .device = "sim", .threads = 1, .config = config, .store = {.type = HZP_F32}};
    fixture_open(&rig->m, &fixture);
    fixture_publish_random(&rig->m, 3, 0.2f);
    FIXTURE_MUST(hzp_kvpool_create(rig->m.model, PAGES, PAGE_ROWS, &rig->pool));
    FIXTURE_MUST(
        hzp_serve_space_create(rig->m.model, batch.rows_max, batch.logits_max, &rig->space));
    FIXTURE_MUST(hzp_batch_create(rig->m.dev, &batch, &rig->batch));
    FIXTURE_MUST(hzp_scheduler_create(&scheduler, rig->m.model, rig->pool, &rig->scheduler));
    rig->goal_ns = itl_ns;
    rig->spy = (struct hzp_source){.name = "spy", .offer = look, .deliver = note, .busy = idle};
    struct hzp_loop_config loop = {.model = rig->m.model,
                                   .space = rig->space,
                                   .batch = rig->batch,
                                   .source = {hzp_scheduler_source(rig->scheduler), &rig->spy},
                                   .sources = 2,
                                   .policy = {.itl_ns = itl_ns},
                                   .check_plans = true};
    FIXTURE_MUST(hzp_loop_create(&loop, &rig->loop));
}

static void rig_close(struct rig *rig)
{
    hzp_loop_destroy(rig->loop);
    hzp_scheduler_destroy(rig->scheduler);
    hzp_batch_destroy(rig->batch);
    hzp_serve_space_destroy(rig->space);
    hzp_kvpool_destroy(rig->pool);
    fixture_close(&rig->m);
}

static struct hzp_request *make(int i, bool background)
{
    uint64_t seed = 977u * (uint64_t)(i + 1) + background;
    int32_t prompt[POSITIONS], count = 1 + (int32_t)seeded(&seed, 60);
    int32_t tokens = 8 + (int32_t)seeded(&seed, 40);
    struct hzp_request *rq = NULL;
    for (int32_t p = 0; p < count; p++)
        prompt[p] = (int32_t)seeded(&seed, VOCAB);
    FIXTURE_MUST(hzp_request_create(prompt, count, tokens, 0, false, &rq));
    rq->sampling.seed = (uint64_t)i;
    rq->ignore_eos = true;
    rq->background = rq->own = background;
    return rq;
}

/* What one run of the same ordinary requests showed. */
struct seen {
    int32_t token[ORDINARY][POSITIONS];
    uint64_t ttft[ORDINARY];
    int32_t beside, behind;
    int32_t late;
    uint64_t longest_ns, decode_ns;
    struct hzp_scheduler_stats stats;
};

/* Ordinary request i arrives at turn 30 i: some run alone, some overlap. */
static void run(bool with, uint64_t itl_ns, struct seen *ret)
{
    struct rig rig;
    struct hzp_request *rq[ORDINARY], *behind[BEHIND];
    int32_t made = 0, next = 0;
    memset(ret, 0, sizeof(*ret));
    rig_open(&rig, itl_ns);
    bool open = true;
    for (int turn = 0; open || made < ORDINARY || next < (with ? BEHIND : 0); turn++) {
        if (made < ORDINARY && turn % 30 == 0) {
            rq[made] = make(made, false);
            rq[made]->submitted_ns = hzp_device_now_ns(rig.m.dev);
            FIXTURE_MUST(hzp_scheduler_submit(rig.scheduler, rq[made++], NULL));
        }
        while (with && next < BEHIND) {
            behind[next] = make(next, true);
            if (hzp_scheduler_submit(rig.scheduler, behind[next], NULL) < 0) {
                hzp_request_destroy(behind[next]);
                break; /* as many as may wait */
            }
            next++;
        }
        FIXTURE_MUST(hzp_loop_turn(rig.loop));
        open = false;
        for (int32_t i = 0; i < made; i++)
            open |= !hzp_request_final(rq[i]);
        for (int32_t i = 0; i < next; i++)
            open |= !hzp_request_final(behind[i]);
        CHECK(turn < 1000000, "it does not end");
    }
    hzp_scheduler_read_stats(rig.scheduler, &ret->stats);
    ret->beside = rig.beside;
    ret->behind = rig.behind;
    ret->longest_ns = rig.longest_ns;
    ret->decode_ns = rig.decode_ns;
    ret->late = rig.late;
    for (int32_t i = 0; i < ORDINARY; i++) {
        CHECK(atomic_load(&rq[i]->state) == HZP_REQUEST_LENGTH, "request %d did not end well", i);
        ret->ttft[i] = rq[i]->out[0].at_ns - rq[i]->submitted_ns;
        for (int32_t t = 0; t < rq[i]->max_tokens; t++)
            ret->token[i][t] = rq[i]->out[t].token;
        hzp_request_destroy(rq[i]);
    }
    for (int32_t i = 0; i < next; i++) {
        CHECK(atomic_load(&behind[i]->state) == HZP_REQUEST_LENGTH, "background %d did not end", i);
        hzp_request_destroy(behind[i]);
    }
    rig_close(&rig);
}

/* Three ordinary requests run at any time.  How many of four that the first version computes end
 * within so many turns; *ret_behind: steps with rows of theirs. */
static int references(uint64_t itl_ns, int turns, int32_t *ret_behind)
{
    enum { REFERENCES = 4, ALWAYS = 3 };
    struct rig rig;
    struct hzp_request *rq[ALWAYS] = {NULL}, *ref[REFERENCES];
    int made = 0, ended = 0;
    rig_open(&rig, itl_ns);
    struct hzp_version *first = hzp_weights_acquire(rig.m.weights);
    fixture_publish_random(&rig.m, 4, 0.2f);
    for (int i = 0; i < REFERENCES; i++) {
        struct hzp_request *like = make(7 * i, true);
        FIXTURE_MUST(hzp_request_create(like->prompt, like->prompt_count, 0, 0, true, &ref[i]));
        hzp_request_destroy(like);
        ref[i]->background = ref[i]->own = true;
        ref[i]->reference = first;
        FIXTURE_MUST(i < 2 ? hzp_scheduler_submit(rig.scheduler, ref[i], NULL) : HZP_OK);
    }
    for (int turn = 0; turn < turns; turn++) {
        if (turn == turns / 2) /* two that find the others decoding */
            for (int i = 2; i < REFERENCES; i++)
                FIXTURE_MUST(hzp_scheduler_submit(rig.scheduler, ref[i], NULL));
        for (int i = 0; i < ALWAYS; i++) {
            if (rq[i] && !hzp_request_final(rq[i]))
                continue;
            hzp_request_destroy(rq[i]);
            rq[i] = make(made++, false);
            rq[i]->submitted_ns = hzp_device_now_ns(rig.m.dev);
            FIXTURE_MUST(hzp_scheduler_submit(rig.scheduler, rq[i], NULL));
        }
        FIXTURE_MUST(hzp_loop_turn(rig.loop));
    }
    *ret_behind = rig.behind;
    for (int i = 0; i < REFERENCES; i++) {
        bool there = atomic_load(&ref[i]->state) == HZP_REQUEST_LENGTH;
        ended += there;
        CHECK(!there || ref[i]->prompt_version == first->record.id, "of another version");
        atomic_store(&ref[i]->cancel, true);
    }
    for (int i = 0; i < ALWAYS; i++)
        atomic_store(&rq[i]->cancel, true);
    for (int i = 0; i < ALWAYS + REFERENCES; i++) {
        struct hzp_request *one = i < ALWAYS ? rq[i] : ref[i - ALWAYS];
        for (int turn = 0; !hzp_request_final(one); turn++) {
            CHECK(turn < 100, "it is not cancelled");
            FIXTURE_MUST(hzp_loop_turn(rig.loop));
        }
        hzp_request_destroy(one);
    }
    hzp_weights_release(rig.m.weights, first, 0);
    rig_close(&rig);
    return ended;
}

int main(void)
{
    static struct seen alone, with;
    /* no rate is so high that rows are free */
    setenv("HZP_SIM", "flops=1e9,bytes=1e9,mem=1e9", 1);
    run(false, 0, &alone);
    run(true, 0, &with);
    CHECK(!memcmp(alone.token, with.token, sizeof(alone.token)), "tokens differ");
    uint64_t more = 0;
    for (int32_t i = 0; i < ORDINARY; i++)
        if (with.ttft[i] > alone.ttft[i])
            more = HZP_MAX(more, with.ttft[i] - alone.ttft[i]);
    printf("ttft + %llu us, a background step takes %llu us at most\n",
           (unsigned long long)more / 1000, (unsigned long long)with.longest_ns / 1000);
    printf("steps with background rows %d, beside ordinary ones %d; preempted %llu\n", with.behind,
           with.beside, (unsigned long long)with.stats.preempted);
    CHECK(with.behind > 0 && !with.beside, "background rows beside ordinary ones");
    CHECK(more <= 3 * with.longest_ns, "a first token came later by more than three steps");
    CHECK(with.stats.preempted > alone.stats.preempted, "none had to give way");
    CHECK(!with.stats.background && !with.stats.background_waiting, "some are left");

    uint64_t goal = 4 * alone.decode_ns;
    run(true, goal, &with);
    printf("with a goal of %llu us: beside ordinary rows %d, of these late %d\n",
           (unsigned long long)goal / 1000, with.beside, with.late);
    CHECK(!memcmp(alone.token, with.token, sizeof(alone.token)), "tokens differ");
    CHECK(with.beside > 50 && with.late <= 2 + with.beside / 50,
          "the goal is not used, or not kept");

    int32_t behind, ended = references(3 * goal, 6000, &behind);
    printf("references beside requests that never stop: %d of 4 end, in %d of 6000 steps\n", ended,
           behind);
    CHECK(ended == 4, "references stand still while requests run");
    CHECK(behind <= 60, "they take more than one step in a hundred");
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/clients.c - the simulated clients: requests, samples and cancellations between two
   turns of the loop. */
#include "tests/sim/world.h"
#include "tests/train/samples.h"

#include <stdlib.h>
#include <string.h>

/* --- Lengths of real requests ----------------------------------------------------------------- */

static FILE *trace_open(const char *data, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/traces/%s", data ? data : ".", name);
    return fopen(path, "r");
}

void sim_trace_read(const char *name, const char *own, struct sim_trace *ret)
{
    char line[200];
    memset(ret, 0, sizeof(*ret));
    FILE *file = trace_open(getenv("HZP_TEST_DATA"), name);
    if (!file)
        file = trace_open(getenv("HZP_OWN_DATA"), own);
    if (!file)
        return;
    ret->length = hzp_xcalloc(20000, sizeof(*ret->length));
    while (ret->count < 20000 && fgets(line, sizeof(line), file)) {
        int prompt, output;
        const char *comma = strchr(line, ',');
        if (!comma || sscanf(comma, ",%d,%d", &prompt, &output) != 2 || prompt < 1 || output < 1)
            continue;
        ret->length[ret->count][0] = prompt;
        ret->length[ret->count++][1] = output;
    }
    fclose(file);
}

/* --- Requests --------------------------------------------------------------------------------- */

static void on_wake(void *ctx, bool more)
{
    ((struct sim_life *)ctx)->wakes++;
}

static void choose_lengths(struct sim_world *w, int32_t *prompt, int32_t *tokens)
{
    if (w->trace && w->trace->count) {
        /* Lengths are divided by four: the context of these worlds' models is about a quarter of
           a real model's. */
        const int32_t *length = w->trace->length[sim_random(w, w->trace->count)];
        *prompt = 1 + length[0] / 4;
        *tokens = 1 + length[1] / 4;
    } else if (w->traffic == SIM_LONG) {
        *prompt = 1 + sim_random(w, w->positions - 20);
        *tokens = sim_random(w, 20);
    } else if (w->traffic == SIM_FOOLED) {
        *prompt = 1 + sim_random(w, w->positions / 8);
        *tokens = w->positions / 2;
    } else if (w->traffic == SIM_TINY) {
        *prompt = 1 + sim_random(w, 3);
        *tokens = 1 + sim_random(w, 6);
    } else {
        *prompt = 1 + sim_random(w, w->positions / 3);
        *tokens = sim_random(w, 40);
    }
    *prompt = HZP_MIN(*prompt, w->positions - 1);
    *tokens = HZP_MIN(*tokens, w->positions - *prompt);
}

static void choose_settings(struct sim_world *w, struct hzp_request *rq, uint32_t choice)
{
    rq->sampling.seed = w->accepted;
    rq->sampling.choice = choice;
    rq->min_tokens = sim_random(w, 4);
    rq->ignore_eos = sim_chance(w, 500);
    if (sim_chance(w, 200))
        rq->stop_id[rq->stop_ids++] = sim_random(w, SIM_VOCAB);
    if (sim_chance(w, 50))
        rq->sampling.presence = 0.5f;
    for (int32_t n = sim_chance(w, 100) ? sim_random(w, 5) : 0; rq->biases < n; rq->biases++) {
        rq->bias_token[rq->biases] = rq->biases;
        rq->bias[rq->biases] = 1;
    }
}

/* The turn by which the request must be final.  Every step gives a row to at least one of the
 * requests accepted earlier, and every running sequence gets a row at least once in as many
 * turns as there are running sequences. */
static uint64_t find_deadline(struct sim_world *w, const struct hzp_request *rq)
{
    int64_t rows = 2 * (rq->prompt_count + rq->max_tokens); /* a swap may restart a prompt */
    for (int32_t i = 0; i < w->lives; i++)
        if (!hzp_request_final(w->life[i]->rq))
            rows += 2 * (w->life[i]->rq->prompt_count + w->life[i]->rq->max_tokens);
    /* No sequence is preempted for a younger one.  In the worst case each request in turn
     * becomes the oldest and recomputes everything, at one row per round over the running
     * sequences. */
    bool again = w->scheduler_config.admission == HZP_ADMIT_PREDICTED;
    return w->turn + 8 +
           (uint64_t)rows * (again ? 2 + (uint64_t)w->scheduler_config.running_max : 2);
}

static void admit_life(struct sim_world *w, struct hzp_request *rq)
{
    struct sim_life *life = rq->wake_ctx;
    int32_t rows = rq->prompt_count + HZP_MAX(rq->max_tokens, 1) - 1;
    life->number = ++w->accepted;
    life->worst = HZP_DIV_UP(rows, w->page_rows);
    life->page = hzp_xcalloc((size_t)life->worst, sizeof(*life->page));
    life->prompt_end = rq->prompt_count;
    life->told = hzp_xcalloc((size_t)HZP_MAX(rq->max_tokens, 1), sizeof(*life->told));
    life->row_turn = w->turn;
    life->deadline = find_deadline(w, rq);
    if (w->lives == w->lives_room) {
        w->lives_room = HZP_MAX(64, 2 * w->lives_room);
        w->life = hzp_xrealloc(w->life, (size_t)w->lives_room * sizeof(struct sim_life *));
    }
    w->life[w->lives++] = life;
}

/* Whether submit must answer that the queue is full, given the requests that wait now. */
static bool queue_is_full(struct sim_world *w, int32_t prompt)
{
    int32_t waiting = 0;
    int64_t tokens = 0;
    for (int32_t i = 0; i < w->lives; i++)
        if (atomic_load(&w->life[i]->rq->state) == HZP_REQUEST_WAITING && !w->life[i]->pushed) {
            waiting++;
            tokens += w->life[i]->rq->prompt_count;
        }
    return waiting >= w->scheduler_config.waiting_max ||
           tokens + prompt > w->scheduler_config.waiting_tokens_max;
}

/* Returns false if the request was refused. */
static bool submit(struct sim_world *w, const int32_t *prompt, int32_t count, int32_t tokens,
                   uint32_t choice)
{
    struct hzp_request *rq;
    struct sim_life *life = hzp_xcalloc(1, sizeof(*life));
    int r = hzp_request_create(prompt, count, tokens, sim_chance(w, 50) ? 3 : 0, sim_chance(w, 30),
                               &rq);
    SIM_CHECK(w, r == HZP_OK, "memory", "none for a request");
    choose_settings(w, rq, choice);
    life->rq = rq;
    life->ignores_eos = rq->ignore_eos;
    rq->ignore_eos |= w->sabotage == SIM_AFTER_STOP;
    rq->wake = on_wake;
    rq->wake_ctx = life;
    bool full = queue_is_full(w, count);
    r = hzp_scheduler_submit(w->scheduler, rq, NULL);
    if (w->failed && r != HZP_EINVAL)
        SIM_CHECK(w, r == HZP_ECANCELED, "failure", "submit says %s after it", hzp_err_name(r));
    else if (r != HZP_EINVAL) /* more edits than a batch holds */
        SIM_CHECK(w, r == (full ? HZP_EBUSY : HZP_OK), "queue", "submit says %s, it is %s",
                  hzp_err_name(r), full ? "full" : "not full");
    if (r == HZP_OK) {
        admit_life(w, rq);
        return true;
    }
    w->refused += r == HZP_EBUSY;
    SIM_CHECK(w, atomic_load(&rq->state) == HZP_REQUEST_NEW, "queue", "it keeps what it refused");
    hzp_request_destroy(rq);
    free(life);
    return false;
}

static void ask(struct sim_world *w, int32_t choices)
{
    int32_t prompt[2048], count, tokens;
    choose_lengths(w, &count, &tokens);
    for (int32_t i = 0; i < count; i++)
        prompt[i] = sim_random(w, SIM_VOCAB);
    int32_t first = w->lives;
    for (int32_t c = 0; c < choices; c++)
        if (!submit(w, prompt, count, tokens, (uint32_t)c)) {
            /* As the HTTP side does: either all choices are accepted or all are canceled. */
            for (int32_t i = first; i < w->lives && w->traffic == SIM_CHOICES; i++) {
                atomic_store(&w->life[i]->rq->cancel, true);
                w->life[i]->cancel = true;
            }
            return;
        }
}

static void arrive(struct sim_world *w)
{
    int32_t rate = 150; /* probability of a request, per mille per turn */
    switch (w->traffic) {
    case SIM_BURSTS:
        /* Bursts far enough apart that all requests end and training has the device to itself. */
        if (w->turn % 400 == 1)
            for (int32_t n = 1 + sim_random(w, 40); n > 0; n--)
                ask(w, 1);
        return;
    case SIM_STORMS:
        if (sim_chance(w, 8))
            ask(w, 2 * w->scheduler_config.waiting_max); /* many copies of one prompt */
        return;
    case SIM_CHOICES:
        if (sim_chance(w, 60))
            ask(w, 2 + sim_random(w, 7));
        return;
    case SIM_TINY:
        rate = 700;
        break;
    case SIM_FOOLED:
        rate = 600;
        break;
    case SIM_LONG:
        rate = 40;
        break;
    default:
        break;
    }
    while (sim_chance(w, rate))
        ask(w, 1);
}

static void leave(struct sim_world *w)
{
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        bool fooled = w->traffic == SIM_FOOLED && w->turn / 200 % 2 == 0 && life->seen > 9;
        if (life->cancel || (!fooled && !sim_chance(w, w->cancel_per_mille)))
            continue;
        life->cancel = true;
        if (w->sabotage != SIM_CANCEL_IGNORED)
            atomic_store(&life->rq->cancel, true);
    }
}

/* Records the pages of a request that ended or was preempted: they stay taken while one of its
   steps is in flight. */
void sim_haunt(struct sim_world *w, const struct sim_life *life)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < w->ghosts; i++)
        if (w->ghost[i].until > w->served)
            w->ghost[kept++] = w->ghost[i];
    w->ghosts = kept;
    if (w->ghosts == w->ghosts_room) {
        w->ghosts_room = HZP_MAX(16, 2 * w->ghosts_room);
        w->ghost = hzp_xrealloc(w->ghost, (size_t)w->ghosts_room * sizeof(*w->ghost));
    }
    w->ghost[w->ghosts++] = (struct sim_ghost){life->last_step, life->held};
    w->extra_rows++;
    if (w->sabotage == SIM_PAGE_UNDER_WAY && !w->sabotaged) {
        hzp_kvpool_release(w->pool, life->page, 1);
        w->sabotaged = true;
    }
}

void sim_collect(struct sim_world *w)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < w->lives; i++) {
        struct sim_life *life = w->life[i];
        if (!hzp_request_final(life->rq)) {
            SIM_CHECK(w, !life->cancel || !w->in_plan, "cancel", "request %llu goes on after it",
                      (unsigned long long)life->number);
            w->life[kept++] = life;
            continue;
        }
        w->ended[atomic_load(&life->rq->state)]++;
        if (life->last_step > w->served)
            sim_haunt(w, life);
        hzp_request_destroy(life->rq);
        free(life->page);
        free(life->told);
        free(life);
    }
    w->lives = kept;
}

/* --- Samples ---------------------------------------------------------------------------------- */

static void teach(struct sim_world *w)
{
    int32_t n = 1 + sim_random(w, 12), token[80];
    struct hzp_sample *sample[12];
    struct hzp_sample_queue_stats stats;
    int64_t tokens = 0;
    uint8_t learn[80];
    bool worth[12] = {false};
    for (int32_t i = 0; i < n; i++) {
        int32_t count = 1 + sim_random(w, HZP_MIN(w->recipe.micro_rows + 5, 80));
        for (int32_t k = 0; k < count; k++) {
            token[k] = sim_random(w, SIM_VOCAB);
            learn[k] = sim_chance(w, 700);
            worth[i] |= k && learn[k] && count <= w->recipe.micro_rows + 1;
        }
        sample[i] = hzp_sample_create(token, learn, count);
        tokens += count;
    }
    hzp_sample_queue_read_stats(w->queue, &stats);
    bool never = n > stats.samples_max || tokens > stats.tokens_max;
    bool full = n > stats.samples_max - stats.samples || tokens > stats.tokens_max - stats.tokens;
    int r = hzp_sample_queue_reserve(w->queue, n, tokens), right = never  ? HZP_EINVAL
                                                                   : full ? HZP_EBUSY
                                                                          : HZP_OK;
    SIM_CHECK(w, r == right, "sample queue", "says %s where %d and %lld tokens come to %d and %lld",
              hzp_err_name(r), n, (long long)tokens, stats.samples, (long long)stats.tokens);
    for (int32_t i = 0; i < n && r < 0; i++)
        hzp_sample_destroy(sample[i]);
    w->samples_refused += r == HZP_EBUSY;
    if (r < 0)
        return;
    for (int32_t i = 0; i < n; i++) {
        sample[i]->sequence_number = ++w->pushed;
        w->learnable = worth[i] ? w->pushed : w->learnable;
    }
    hzp_sample_queue_push(w->queue, sample, n);
}

/* --- Holders of versions and pages ------------------------------------------------------------ */

static void hold_versions(struct sim_world *w)
{
    for (int32_t i = 0; i < SIM_HELD_MAX; i++) {
        if (w->held[i] && (!sim_chance(w, 980) || w->failed)) {
            hzp_weights_release(w->weights, w->held[i], w->landed);
            w->held[i] = NULL;
        } else if (!w->held[i] && sim_chance(w, 3)) {
            w->held[i] = hzp_weights_acquire(w->weights);
        }
    }
}

static void thaw(struct sim_world *w)
{
    if (w->freeze.fn) {
        hzp_loop_cancel(w->loop, &w->freeze);
        hzp_loop_await(w->loop, &w->thaw); /* it came before the freeze, if that was tried */
        w->thaw = (struct hzp_border_call){.fn = hzp_trainer_thaw, .ctx = w->trainer};
        hzp_loop_post(w->loop, &w->thaw);
    }
    w->freeze.fn = NULL;
    w->frozen = false;
}

static void freeze_and_pause(struct sim_world *w)
{
    bool calls = sim_chance(w, 5);
    int r;
    if (calls && !w->freeze.fn) {
        w->freeze = (struct hzp_border_call){.fn = hzp_trainer_freeze, .ctx = w->trainer};
        hzp_loop_post(w->loop, &w->freeze);
    }
    w->frozen = w->freeze.fn && hzp_loop_ended(w->loop, &w->freeze, &r) && r == HZP_OK;
    if (w->frozen && sim_chance(w, 100))
        thaw(w);
    if (sim_chance(w, w->paused ? 50 : 2)) {
        w->paused = !w->paused;
        hzp_trainer_pause(w->trainer, w->paused);
    }
    if (w->sabotage == SIM_LAZY_TRAINER && w->turn > 100)
        hzp_trainer_pause(w->trainer, true);
}

/* The page that the sabotage returns early; it belongs to a sequence that has one more row to
   compute. */
static void give_back_early(struct sim_world *w)
{
    for (int32_t i = 0; i < w->lives && w->sabotage == SIM_PAGE_EARLY && !w->sabotaged; i++) {
        struct sim_life *life = w->life[i];
        if (life->pages > 1 && life->fed + 2 == life->rq->prompt_count + life->rq->max_tokens) {
            hzp_kvpool_release(w->pool, life->page, 1);
            w->sabotaged = true;
        }
    }
    if (w->sabotage == SIM_PAGE_LEAK && w->turn == 200)
        hzp_kvpool_take(w->pool);
}

/* Applies the sabotage that damages a preempted request while it waits. */
static void break_pushed(struct sim_world *w)
{
    for (int32_t i = 0; i < w->lives && !w->sabotaged; i++) {
        struct sim_life *life = w->life[i];
        int32_t drawn = atomic_load(&life->rq->out_count);
        if (!life->pushed || !drawn || atomic_load(&life->rq->state) != HZP_REQUEST_WAITING)
            continue;
        if (w->sabotage == SIM_PUSH_FORGETS)
            atomic_store(&life->rq->out_count, drawn - 1);
        else if (w->sabotage == SIM_PUSH_CHANGES)
            life->rq->out[drawn - 1].token ^= 1;
        else if (w->sabotage == SIM_PUSH_HOARDED)
            while (hzp_kvpool_take(w->pool) >= 0)
                w->sabotaged = true;
        else
            return;
        w->sabotaged |= w->sabotage != SIM_PUSH_HOARDED;
    }
}

/* more: false means that no new requests arrive and the clients hold no pages or versions back. */
void sim_clients(struct sim_world *w, bool more)
{
    give_back_early(w);
    break_pushed(w);
    if (more) {
        arrive(w);
        leave(w);
        hold_versions(w);
        freeze_and_pause(w);
        if (sim_chance(w, w->bodies_per_mille))
            teach(w);
        return;
    }
    for (int32_t i = 0; i < SIM_HELD_MAX; i++)
        if (w->held[i])
            hzp_weights_release(w->weights, w->held[i], w->landed);
    memset(w->held, 0, sizeof(w->held));
    thaw(w);
    hzp_trainer_pause(w->trainer, false);
    w->paused = false;
}

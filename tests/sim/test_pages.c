/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_pages.c - admission, preemption and the budget over thousands of small
 * simulated days, with lengths and arrivals of real requests.
 *
 *     test_pages [--seeds FIRST..LAST] [--sabotage=NAME|all] [--table] [--low]
 *
 * The scheduler and the pool are the real ones; a function of request and position replaces the
 * model, so that each KV slot's content is known: position 0 holds the request's number, and
 * position p the token mix(number, p).  A read of a wrong page or a token drawn twice is
 * detected at once.  Time is virtual: a step takes BEGIN + ROW * rows.
 *
 * What must hold in every turn is in check_turn() and check_progress().  In a third of the days
 * the answers of admission are random: freedom from deadlock and starvation must not depend on
 * good predictions.  In others lengths grow eightfold at noon, so that what was learned is
 * wrong.
 *
 * Sabotage breaks the functions the scheduler depends on, through the linker's --wrap, and must
 * be detected by the rule meant for it.  --table prints what prediction is worth: throughput and
 * latency by rule and size of the pool; --low prints latency at low load by --prefill-rows (0:
 * by budget). */
#include "base/ring.h"
#include "serve/scheduler.h"
#include "tests/serve/seeded.h"
#include "tests/sim/sabotage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 1 << 20, EOS = VOCAB - 1, TRACE_MAX = 20000 };

/* --- Lengths and arrivals of real requests ---------------------------------------------------- */

struct trace {
    const char *name, *own; /* recorded; of tests/data, where that is absent */
    int32_t count, prompt[TRACE_MAX], output[TRACE_MAX];
    double at[TRACE_MAX]; /* seconds since the first; -1: the trace has no times */
};

static struct trace traces[] = {
    {.name = "AzureLLMInferenceTrace_conv.csv", .own = "synthetic_bursts.csv"},
    {.name = "nanoflow_lmsys.csv", .own = "synthetic_chat.csv"},
    {.name = "nanoflow_sharegpt.csv"},
    {.name = "mooncake_conversation_trace.jsonl"}};

static bool read_line(struct trace *t, const char *line)
{
    int prompt, output, hour, minute;
    double second, at = -1;
    const char *comma = strchr(line, ',');
    if (line[0] == '{') {
        if (sscanf(line, "{\"timestamp\": %lf, \"input_length\": %d, \"output_length\": %d", &at,
                   &prompt, &output) != 3)
            return false;
        at /= 1000;
    } else {
        if (!comma || sscanf(comma, ",%d,%d", &prompt, &output) != 2)
            return false;
        if (sscanf(line, "%*d-%*d-%*d %d:%d:%lf", &hour, &minute, &second) == 3)
            at = 3600.0 * hour + 60.0 * minute + second;
    }
    if (prompt < 1 || output < 1)
        return false;
    t->prompt[t->count] = prompt;
    t->output[t->count] = output;
    t->at[t->count++] = at;
    return true;
}

static bool read_trace(struct trace *t, const char *data, const char *name)
{
    char path[512], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof(path), "%s/traces/%s", data ? data : ".", name);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    while (t->count < TRACE_MAX && getline(&line, &room, file) > 0)
        read_line(t, line);
    free(line);
    fclose(file);
    return t->count > 0;
}

static int read_traces(void)
{
    int found = 0;
    for (int i = 0; i < HZP_COUNT(traces); i++)
        found += read_trace(&traces[i], getenv("HZP_TEST_DATA"), traces[i].name);
    bool own = found == 0;
    for (int i = 0; i < HZP_COUNT(traces) && own; i++)
        if (traces[i].own)
            found += read_trace(&traces[i], getenv("HZP_OWN_DATA"), traces[i].own);
    return found;
}

/* --- A day ------------------------------------------------------------------------------------ */

enum sabotage {
    SOUND,
    PAGE_TWICE,   /* the pool gives out a page that is in use */
    PAGE_LOST,    /* a returned page is lost */
    PAGE_REFUSED, /* the pool reports no free page although there is one */
    NEVER_FITS,   /* admission refuses every request */
    OVERTAKES,    /* the queue returns requests out of order */
    FORGETS,      /* a preempted request loses a token */
    SABOTAGES,
};
static const struct {
    const char *name, *rules; /* rules, separated by '|', any of which may detect it */
} sabotages[SABOTAGES] = {
    {"sound", ""},
    {"page-twice", "content|pages"},
    {"page-lost", "pages"},
    {"page-refused", "preempted without need|starved"},
    {"never-fits", "deadlock|starved"},
    {"overtakes", "order|deadlock"},
    {"forgets", "tokens"},
};

struct life {
    struct hzp_request *rq;
    double at;               /* time of arrival */
    int32_t prompt, natural; /* lengths; natural: the output if nothing cuts it */
    int32_t seen, pushes;
    uint64_t step; /* the last one that gave it a row */
};

struct day {
    uint64_t seed, random;
    enum sabotage sabotage;
    bool sabotaged;
    bool coin; /* admission answers at random */
    double begin_ns, row_ns;
    int32_t pages, page_rows, positions, rows_max, most; /* most: max_tokens */
    struct hzp_scheduler_config config;

    struct hzp_device *dev;
    struct hzp_model_config model_config;
    struct hzp_model model;
    struct hzp_kvpool *pool;
    struct hzp_time time;
    struct hzp_scheduler *s;
    struct hzp_batch *batch;
    struct hzp_version version;
    int32_t *kv; /* [pages * page_rows] the stored token; -1: nothing stored yet */

    struct life *life;               /* [lives] in order of arrival */
    int32_t lives, submitted, ended; /* ended: length of the prefix of lives that have all ended */
    uint64_t since;                  /* when the oldest unfinished life became the oldest */
    uint64_t steps, turns, rows;
    uint64_t pushes, pushed; /* preemptions as the scheduler counts them, and as the requests do */
    double now_ns;
};

static struct day *today; /* for the wrappers */

HZP_NORETURN static void broken(const struct day *d, const char *rule, int64_t a, int64_t b)
{
    printf("%s: %lld, %lld, in step %llu; again with: test_pages --seeds %llu..%llu%s%s\n", rule,
           (long long)a, (long long)b, (unsigned long long)d->steps, (unsigned long long)d->seed,
           (unsigned long long)d->seed, d->sabotage ? " --sabotage=" : "",
           d->sabotage ? sabotages[d->sabotage].name : "");
    fflush(stdout);
    _exit(1);
}

static void check(const struct day *d, bool holds, const char *rule, int64_t a, int64_t b)
{
    if (!holds)
        broken(d, rule, a, b);
}

static int32_t between(struct day *d, int32_t low, int32_t high)
{
    return low + (int32_t)seeded(&d->random, (uint32_t)(high - low + 1));
}

static int32_t mix(int32_t number, int32_t position)
{
    uint64_t seed = (uint64_t)number * 1000003u + (uint64_t)position;
    return position ? (int32_t)seeded(&seed, EOS) : number;
}

/* --- Sabotage of the functions that the scheduler uses ---------------------------------------- */

int32_t __real_hzp_kvpool_take(struct hzp_kvpool *pool);
int32_t __wrap_hzp_kvpool_take(struct hzp_kvpool *pool);
void __real_hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken);
void __wrap_hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken);
bool __real_hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one);
bool __wrap_hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one);
void *__real_hzp_ring_pop(struct hzp_ring *ring);
void *__wrap_hzp_ring_pop(struct hzp_ring *ring);

int32_t __wrap_hzp_kvpool_take(struct hzp_kvpool *pool)
{
    struct day *d = today;
    static int32_t last;
    if (d && d->sabotage == PAGE_TWICE && d->steps > 20 && !d->sabotaged) {
        d->sabotaged = true;
        return last;
    }
    if (d && d->sabotage == PAGE_REFUSED && d->steps > 20 && seeded(&d->random, 20) == 0)
        return -1;
    last = __real_hzp_kvpool_take(pool);
    return last;
}

void __wrap_hzp_kvpool_release(struct hzp_kvpool *pool, const int32_t *page, int32_t taken)
{
    struct day *d = today;
    if (d && d->sabotage == PAGE_LOST && d->steps > 20 && taken > 1 && !d->sabotaged) {
        d->sabotaged = true;
        taken--;
    }
    __real_hzp_kvpool_release(pool, page, taken);
}

bool __wrap_hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one)
{
    struct day *d = today;
    if (d && d->sabotage == NEVER_FITS && d->steps > 20)
        return false;
    if (d && d->coin && hzp_admission_peak(a) > 0)
        return seeded(&d->random, 2) == 0;
    return __real_hzp_admission_fits(a, one);
}

void *__wrap_hzp_ring_pop(struct hzp_ring *ring)
{
    struct day *d = today;
    static void *kept;
    void *item = __real_hzp_ring_pop(ring);
    if (d && d->sabotage == OVERTAKES && d->steps > 20) {
        void *other = kept;
        kept = NULL;
        if (!d->sabotaged && item) {
            d->sabotaged = true;
            kept = item;
            return __real_hzp_ring_pop(ring); /* the second one first, if there is one */
        }
        if (!item)
            return other;
        if (other)
            kept = other;
    }
    return item;
}

/* --- Opening ---------------------------------------------------------------------------------- */

static void open_engine(struct day *d)
{
    struct hzp_err_text err;
    if (hzp_device_open(&(struct hzp_device_config){.name = "ref"}, &d->dev, &err) < 0)
        broken(d, "opening", 0, 0);
    d->model_config = (struct hzp_model_config){.layers = 1,
                                                .width = 1,
                                                .vocab = VOCAB,
                                                .heads = {.heads = 1, .kv_heads = 1, .dim = 1},
                                                .eos = {EOS},
                                                .eos_count = 1};
    d->model = (struct hzp_model){
        .dev = d->dev, .config = &d->model_config, .act = HZP_F32, .positions = d->positions};
    struct hzp_batch_config batch = {.rows_max = d->rows_max,
                                     .segs_max = d->config.running_max,
                                     .page_stride = HZP_DIV_UP(d->positions, d->page_rows),
                                     .logits_max = d->config.running_max,
                                     .edits_max = d->config.edits_max,
                                     .layers = 9};
    if (hzp_kvpool_create(&d->model, d->pages, d->page_rows, &d->pool) < 0 ||
        hzp_scheduler_create(&d->config, &d->model, d->pool, &d->s) < 0 ||
        hzp_batch_create(d->dev, &batch, &d->batch) < 0)
        broken(d, "opening", 1, 0);
    hzp_time_init(&d->time, 1, NULL, HZP_F32);
    size_t slots = (size_t)d->pages * (size_t)d->page_rows;
    d->kv = hzp_xcalloc(slots, sizeof(*d->kv));
    memset(d->kv, -1, slots * sizeof(*d->kv));
    d->version.record.id = 1;
    today = d;
}

static void close_engine(struct day *d)
{
    today = NULL;
    hzp_scheduler_destroy(d->s);
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(d->pool, &kv);
    check(d, kv.taken == 0, "pages", kv.taken, kv.pages);
    for (int32_t i = 0; i < d->lives; i++)
        hzp_request_destroy(d->life[i].rq);
    hzp_batch_destroy(d->batch);
    hzp_kvpool_destroy(d->pool);
    hzp_device_close(d->dev);
    free(d->life);
    free(d->kv);
}

/* Takes requests of the trace from `from` on, with lengths divided by `per`, arriving at `rate`
 * times the rate that keeps the device busy; noon: factor on the lengths of the second half. */
static void read_day(struct day *d, const struct trace *t, int32_t from, int32_t per, double rate,
                     int32_t noon)
{
    double rows = 0, at = 0, begin = t->at[from], span;
    d->life = hzp_xcalloc((size_t)d->lives, sizeof(*d->life));
    for (int32_t i = 0; i < d->lives; i++) {
        struct life *life = &d->life[i];
        int32_t k = (from + i) % t->count;
        life->prompt = HZP_MIN(1 + t->prompt[k] / per, d->positions / 2);
        life->natural = 1 + t->output[k] / per;
        if (i >= d->lives / 2)
            life->natural *= noon;
        rows += life->prompt + HZP_MIN(life->natural, d->positions - life->prompt);
        life->at = t->at[k] - begin;
    }
    /* Arrivals by the trace's clock, or by a generated one, scaled to the rate. */
    bool clock = begin >= 0 && from + d->lives <= t->count;
    for (int32_t i = 0; i < d->lives && !clock; i++) {
        at -= log((1 + (double)seeded(&d->random, 1000000)) * 1e-6);
        d->life[i].at = at;
    }
    span = HZP_MAX(d->life[d->lives - 1].at - d->life[0].at, 1e-3);
    double work = rows * (d->begin_ns / d->rows_max + d->row_ns);
    for (int32_t i = 0; i < d->lives; i++)
        d->life[i].at = d->life[i].at / span * work / rate;
}

static void choose_day(struct day *d)
{
    const struct trace *t = &traces[d->seed % HZP_COUNT(traces)];
    while (!t->count)
        t = t == traces + HZP_COUNT(traces) - 1 ? traces : t + 1;
    d->positions = d->most = 256;
    d->page_rows = 1 << between(d, 0, 5);
    d->rows_max = between(d, 4, 128);
    int32_t longest = HZP_DIV_UP(d->positions, d->page_rows);
    d->pages = longest + between(d, 0, 3 * longest);
    d->lives = between(d, 40, 120);
    d->coin = d->seed % 3 == 0 && d->seed % 8 != 7 && !d->sabotage;
    d->begin_ns = 1000.0 * between(d, 1, 1000);
    d->row_ns = 1000.0 * between(d, 0, 100);
    d->config = (struct hzp_scheduler_config){
        .running_max = between(d, 1, 32),
        .waiting_max = d->lives,
        .waiting_tokens_max = 1 << 20,
        .prefill_rows_max = seeded(&d->random, 4) ? 0 : between(d, 1, 64),
        .edits_max = 64,
        .lookup_max = d->seed % 2 ? 1 + (int32_t)d->seed % HZP_LOOKUP_MAX : 0,
        .guess_by_depth = d->seed % 3 == 0,
        .history = d->seed % 3 == 1,
        .guess_every = 2,
        .admission = d->seed % 8 == 7 && !d->sabotage ? HZP_ADMIT_WORST_CASE : HZP_ADMIT_PREDICTED};
    open_engine(d);
    bool wide = t->name[0] == 'm';
    read_day(d, t, between(d, 0, t->count - 1), wide ? between(d, 60, 120) : between(d, 4, 12),
             0.5 + seeded(&d->random, 100) * 0.02, between(d, 0, 1) ? 8 : 1);
}

static void submit(struct day *d, int32_t i)
{
    struct life *life = &d->life[i];
    int32_t prompt[8192], most = HZP_MIN(d->most, d->positions - life->prompt);
    for (int32_t p = 0; p < life->prompt; p++)
        prompt[p] = mix(i, p);
    if (hzp_request_create(prompt, life->prompt, most, 0, false, &life->rq) < 0)
        broken(d, "opening", 2, 0);
    life->rq->id = (uint64_t)i;
    life->rq->submitted_ns = 1 + (uint64_t)life->at;
    life->step = d->steps;
    check(d, hzp_scheduler_submit(d->s, life->rq, NULL) == HZP_OK, "queue", i, 0);
}

/* --- A step ----------------------------------------------------------------------------------- */

/* The token at a place of a text: guesses may go beyond the end of the model's answer. */
static int32_t token_at(const struct life *life, int32_t number, int32_t p)
{
    return p == life->prompt + life->natural - 1 ? EOS : mix(number, p);
}

/* Stores the rows, reads every page that attention would, and draws. */
static void execute(struct day *d)
{
    struct hzp_batch *b = d->batch;
    check(d, b->rows <= d->rows_max, "batch", b->rows, d->rows_max);
    for (int32_t r = 0; r < b->rows; r++)
        d->kv[b->slot[r]] = b->id[r];
    for (int32_t seg = 0, n = 0; seg < b->segs; seg++) {
        const int32_t *page = b->page + seg * b->max.page_stride;
        int32_t end = b->pos0[seg] + b->row0[seg + 1] - b->row0[seg];
        int32_t number = d->kv[page[0] * d->page_rows];
        check(d, number >= 0 && number < d->submitted, "content", number, seg);
        struct life *life = &d->life[number];
        life->step = d->steps;
        for (int32_t p = 0; p < end; p++) {
            int32_t lies = d->kv[page[p / d->page_rows] * d->page_rows + p % d->page_rows];
            check(d, lies == token_at(life, number, p), "content", number, p);
        }
        for (; n < b->logits && b->logit_row[n] < b->row0[seg + 1]; n++) {
            int32_t next = b->pos0[seg] + b->logit_row[n] - b->row0[seg] + 1;
            b->token[n] = token_at(life, number, next);
            b->logprob[n] = -(float)next;
            b->rank[n] = 1;
        }
    }
}

/* No sequence is preempted while pages stay unused: after a preemption fewer pages are free than
   one sequence may need at most. */
static void check_pushes(struct day *d)
{
    struct hzp_scheduler_stats stats;
    struct hzp_kvpool_stats kv;
    hzp_scheduler_read_stats(d->s, &stats);
    hzp_kvpool_read_stats(d->pool, &kv);
    bool predicted = d->config.admission == HZP_ADMIT_PREDICTED;
    check(d,
          stats.preempted == d->pushes ||
              (predicted && kv.pages - kv.taken < HZP_DIV_UP(d->positions, d->page_rows)),
          "preempted without need", kv.taken, kv.pages);
    d->pushes = stats.preempted;
}

/* Returns true if a step ran. */
static bool turn(struct day *d)
{
    hzp_batch_clear(d->batch);
    struct hzp_step step = {
        .number = d->steps + 1, .begin_ns = 1 + (uint64_t)d->now_ns, .version = &d->version};
    struct hzp_room room = {.rows = d->rows_max, .time = &d->time};
    struct hzp_offer offer = {.batch = d->batch};
    struct hzp_outcome outcome = {.status = HZP_OK, .end_ns = d->steps};
    struct hzp_source *source = hzp_scheduler_source(d->s);
    d->turns++;
    bool any = source->offer(source, &step, &room, &offer);
    check_pushes(d);
    if (!any)
        return false;
    d->steps++;
    execute(d);
    uint64_t served_ns = (uint64_t)(d->begin_ns + d->row_ns * d->batch->rows);
    d->now_ns += (double)served_ns;
    hzp_rows_learn(&d->time.rows, d->batch->rows, served_ns);
    d->rows += (uint64_t)d->batch->rows;
    outcome.end_ns = 1 + (uint64_t)d->now_ns;
    outcome.ns[HZP_TENANT_SERVE] = served_ns;
    source->deliver(source, &step, &offer, &outcome);
    return true;
}

/* Guesses that a step may verify of a sequence; those of its own text are never right here. */
static int32_t guesses_max(const struct day *d)
{
    return d->config.guess_by_depth ? d->config.lookup_max : 0;
}

static void check_outputs(struct day *d, int32_t i)
{
    struct life *life = &d->life[i];
    const struct hzp_request *rq = life->rq;
    int32_t count = atomic_load(&rq->out_count), state = atomic_load(&rq->state);
    check(d, count >= life->seen && count <= life->seen + 1 + guesses_max(d), "tokens", i, count);
    for (; life->seen < count; life->seen++) {
        const struct hzp_output *out = &rq->out[life->seen];
        int32_t p = life->prompt + life->seen;
        check(d, out->token == (life->seen + 1 == life->natural ? EOS : mix(i, p)), "tokens", i, p);
        check(d, out->logprob == -(float)p, "tokens", i, p);
    }
    if (!hzp_request_final(rq))
        return;
    int32_t most = HZP_MIN(life->natural, rq->max_tokens);
    check(d, count == most, "tokens", i, count);
    check(d, state == (life->natural <= rq->max_tokens ? HZP_REQUEST_STOPPED : HZP_REQUEST_LENGTH),
          "end", i, state);
}

/* Checks the order of requests, which of them may be preempted and why, and that running
   requests own their pages. */
static void check_turn(struct day *d)
{
    bool waits = false;
    int32_t running = 0, pushed = 0, least = 0, most = 0;
    for (int32_t i = d->ended; i < d->submitted; i++) {
        struct life *life = &d->life[i];
        int32_t state = atomic_load(&life->rq->state);
        if (life->rq->preemptions > life->pushes) {
            check(d, i > d->ended, "the oldest was preempted", i, life->rq->preemptions);
            pushed += life->rq->preemptions - life->pushes;
            life->pushes = life->rq->preemptions;
            if (d->sabotage == FORGETS && life->seen && state == HZP_REQUEST_WAITING)
                atomic_fetch_sub(&life->rq->out_count, 1);
        }
        check_outputs(d, i);
        waits |= state == HZP_REQUEST_WAITING;
        check(d, !waits || state != HZP_REQUEST_RUNNING, "order", i, state);
        if (state != HZP_REQUEST_RUNNING)
            continue;
        running++;
        least +=
            HZP_DIV_UP(life->rq->computed && !life->pushes ? life->rq->computed : 0, d->page_rows);
        most += HZP_DIV_UP(life->rq->computed + 1 + guesses_max(d), d->page_rows);
    }
    struct hzp_kvpool_stats kv;
    hzp_kvpool_read_stats(d->pool, &kv);
    check(d, running <= d->config.running_max, "queue", running, 0);
    check(d, kv.taken >= least && kv.taken <= most, "pages", kv.taken, most);
    d->pushed += (uint64_t)pushed;
    check(d, d->pushed == d->pushes, "preempted", (int64_t)d->pushed, (int64_t)d->pushes);
    while (d->ended < d->submitted && hzp_request_final(d->life[d->ended].rq)) {
        d->ended++;
        d->since = d->steps;
    }
}

/* The oldest request always progresses: while it is the oldest, it gets a row within a bounded
   number of steps. */
static void check_progress(struct day *d)
{
    if (d->ended == d->submitted)
        return;
    uint64_t gap = d->steps - HZP_MAX(d->life[d->ended].step, d->since);
    check(d, gap <= 2 + (uint64_t)d->config.running_max, "starved", d->ended, (int64_t)gap);
}

static void live(struct day *d)
{
    while (d->ended < d->lives) {
        while (d->submitted < d->lives && d->life[d->submitted].at <= d->now_ns)
            submit(d, d->submitted++);
        bool ran = turn(d);
        check(d, ran || d->ended == d->submitted, "deadlock", d->ended, d->submitted);
        check_turn(d);
        check_progress(d);
        if (!ran && d->submitted < d->lives)
            d->now_ns = HZP_MAX(d->now_ns, d->life[d->submitted].at);
    }
}

struct totals {
    uint64_t days, turns, requests, pushes, days_pushed, coins;
};

static void run(uint64_t seed, enum sabotage sabotage, struct totals *t)
{
    struct day *d = hzp_xcalloc(1, sizeof(*d));
    d->seed = seed;
    d->random = seed * 2654435761u + 7;
    d->sabotage = sabotage;
    choose_day(d);
    live(d);
    t->days++;
    t->turns += d->turns;
    t->requests += (uint64_t)d->lives;
    t->pushes += d->pushes;
    t->days_pushed += d->pushes > 0;
    t->coins += d->coin;
    close_engine(d);
    free(d);
}

/* --- Sabotage --------------------------------------------------------------------------------- */

static const char *kind_name(int kind)
{
    return sabotages[kind].name;
}

static const char *kind_rules(int kind)
{
    return sabotages[kind].rules;
}

static void run_kind(uint64_t seed, int kind)
{
    struct totals totals = {0};
    run(seed, (enum sabotage)kind, &totals);
}

static const struct sabotage_test sabotage_test = {
    .kinds = SABOTAGES, .seeds = 200, .name = kind_name, .rules = kind_rules, .run = run_kind};

/* --- The value of prediction ------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct trace *t, enum hzp_admission_rule rule, int32_t pool_tokens,
                    int32_t most)
{
    struct day *d = hzp_xcalloc(1, sizeof(*d));
    d->random = 1;
    d->positions = 8192;
    d->most = most;
    d->page_rows = 16;
    d->rows_max = 256;
    d->pages = pool_tokens / d->page_rows;
    d->lives = 600;
    d->begin_ns = 7e6; /* about that of a 135M model on two cores */
    d->row_ns = 0.27e6;
    d->config = (struct hzp_scheduler_config){.running_max = 128,
                                              .waiting_max = d->lives,
                                              .waiting_tokens_max = 1 << 30,
                                              .edits_max = 64,
                                              .admission = rule};
    open_engine(d);
    read_day(d, t, 0, 1, 4, 1); /* overload: throughput is limited by the server */
    double *first = hzp_xcalloc((size_t)d->lives, sizeof(*first)), longest = 0, drawn = 0;
    live(d);
    for (int32_t i = 0; i < d->lives; i++) {
        const struct hzp_request *rq = d->life[i].rq;
        int32_t count = atomic_load(&rq->out_count);
        first[i] = (double)(rq->out[0].at_ns - rq->submitted_ns) * 1e-9;
        drawn += count;
        for (int32_t n = 1; n < count; n++)
            longest = HZP_MAX(longest, (double)(rq->out[n].at_ns - rq->out[n - 1].at_ns) * 1e-9);
    }
    qsort(first, (size_t)d->lives, sizeof(*first), by_value);
    struct hzp_scheduler_stats stats;
    hzp_scheduler_read_stats(d->s, &stats);
    uint64_t computed = stats.prompt_tokens + stats.generated_tokens + stats.recomputed_tokens;
    printf("%-32s %7d %6d  %-10s %10.1f %10.1f %8.2f%% %9llu %10.1f %9.1f\n", t->name, pool_tokens,
           most, rule == HZP_ADMIT_PREDICTED ? "predicted" : "worst-case",
           drawn / (d->now_ns * 1e-9), (double)d->rows / (double)d->steps,
           100.0 * (double)stats.recomputed_tokens / (double)computed,
           (unsigned long long)stats.preempted, first[d->lives / 2], longest);
    free(first);
    close_engine(d);
    free(d);
}

/* A lightly loaded server with room for all requests: how prompts affect the requests that
   decode. */
static void measure_low(const struct trace *t, double rate, int32_t prefill_rows)
{
    struct day *d = hzp_xcalloc(1, sizeof(*d));
    d->random = 1;
    d->positions = d->most = 8192;
    d->page_rows = 16;
    d->rows_max = 256;
    d->pages = 1 << 16;
    d->lives = 400;
    d->begin_ns = 7e6;
    d->row_ns = 0.27e6;
    d->config = (struct hzp_scheduler_config){.running_max = 64,
                                              .waiting_max = d->lives,
                                              .waiting_tokens_max = 1 << 30,
                                              .prefill_rows_max = prefill_rows,
                                              .edits_max = 64};
    open_engine(d);
    read_day(d, t, 0, 1, rate, 1);
    live(d);
    size_t gaps = 0, room = 0;
    for (int32_t i = 0; i < d->lives; i++)
        room += (size_t)atomic_load(&d->life[i].rq->out_count);
    double *first = hzp_xcalloc((size_t)d->lives, sizeof(*first));
    double *gap = hzp_xcalloc(room, sizeof(*gap));
    for (int32_t i = 0; i < d->lives; i++) {
        const struct hzp_request *rq = d->life[i].rq;
        first[i] = (double)(rq->out[0].at_ns - rq->submitted_ns) * 1e-6;
        for (int32_t n = 1; n < atomic_load(&rq->out_count); n++)
            gap[gaps++] = (double)(rq->out[n].at_ns - rq->out[n - 1].at_ns) * 1e-6;
    }
    qsort(first, (size_t)d->lives, sizeof(*first), by_value);
    qsort(gap, gaps, sizeof(*gap), by_value);
    printf("%-32s %5.2f %12d %11.0f %9.0f %10.1f %9.1f %9.1f\n", t->name, rate, prefill_rows,
           first[d->lives / 2], first[d->lives * 99 / 100], gap[gaps / 2], gap[gaps * 99 / 100],
           gap[gaps - 1]);
    free(first);
    free(gap);
    close_engine(d);
    free(d);
}

static int low_table(void)
{
    static const double rates[] = {0.01, 0.1, 0.3};
    static const int32_t rows[] = {128, 256, 0};
    printf("%-32s %5s %12s %11s %9s %10s %9s %9s\n", "trace (400 requests)", "load", "prompt rows",
           "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "worst");
    for (int i = 0; i < HZP_COUNT(traces) - 1; i++)
        for (int r = 0; r < HZP_COUNT(rates); r++)
            for (int k = 0; k < HZP_COUNT(rows); k++)
                if (traces[i].count)
                    measure_low(&traces[i], rates[r], rows[k]);
    return 0;
}

static int table(void)
{
    printf("%-32s %7s %6s  %-10s %10s %10s %9s %9s %10s %9s\n", "trace (600 requests, overload)",
           "KV rows", "most", "admission", "tokens/s", "rows/step", "again", "pushed", "TTFT p50 s",
           "worst ITL");
    static const int32_t most[] = {1024, 2048, 8192};
    for (int i = 0; i < HZP_COUNT(traces) - 1; i++)
        for (int32_t rows = 16384; rows <= 65536; rows *= 4)
            for (int m = 0; m < HZP_COUNT(most); m++)
                for (int rule = HZP_ADMIT_WORST_CASE; rule >= HZP_ADMIT_PREDICTED; rule--)
                    if (traces[i].count)
                        measure(&traces[i], (enum hzp_admission_rule)rule, rows, most[m]);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned long long first = 1, last = 2000;
    if (!read_traces()) {
        printf("no traces in $HZP_TEST_DATA/traces, none in $HZP_OWN_DATA/traces\n");
        return 77;
    }
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--sabotage=", 11))
            return sabotage_try(&sabotage_test, argv[i] + 11);
        if (!strcmp(argv[i], "--table"))
            return table();
        if (!strcmp(argv[i], "--low"))
            return low_table();
        if (strcmp(argv[i], "--seeds") || i + 1 == argc ||
            sscanf(argv[++i], "%llu..%llu", &first, &last) != 2)
            return 2;
    }
    struct totals t = {0};
    for (unsigned long long seed = first; seed <= last; seed++)
        run(seed, SOUND, &t);
    printf("%llu days, %llu turns, %llu requests; preempted %llu times, on %llu days; admission "
           "was random on %llu days\n",
           (unsigned long long)t.days, (unsigned long long)t.turns, (unsigned long long)t.requests,
           (unsigned long long)t.pushes, (unsigned long long)t.days_pushed,
           (unsigned long long)t.coins);
    return first != last && (t.days_pushed < t.days / 10 || !t.coins);
}

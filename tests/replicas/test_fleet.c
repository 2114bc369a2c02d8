/* SPDX-License-Identifier: Apache-2.0 */
/* tests/replicas/test_fleet.c - the front and seven replicas on a virtual clock, over thousands of
 * simulated seconds.
 *
 *     test_fleet [--seeds FIRST..LAST] [--sabotage=NAME|all]
 *
 * The front, the replicas, their messages and the dispatcher are the real ones, turned one after
 * the other.  In place of sockets there are queues with delays, which a peer may not read, or lose
 * at its death; in place of each rank's engine one that draws a token a step for each running
 * request: a hash of the version and all tokens before, so a token names what computed it.
 *
 * Ranks are killed and come back, hang, and are drained; so hangs the front; versions are published
 * by each rank at its own time, an update ends only when all have published the one before, and now
 * and then an earlier state serves again.
 *
 *     every request ends, and not as failed; a canceled one alone as canceled
 *     every token is that of the version which its span names, and of the tokens before
 *     no token comes from a version below min_version, or one that has not learned min_sequence;
 *     without such demands a request is computed whole
 *     abort: all tokens are of one version
 *     a request's staleness is at least the true one, and at most 1; so is each rank's, and the
 *     front finds no version that trails by more
 *     a drained rank gets no request; nothing is woken after it was let go of
 *     at the end the front knows of no request, and expects no pages of any rank
 *
 * Sabotage replaces functions through the linker's --wrap, and must be noticed. */
#include "base/log.h"
#include "tests/replicas/fleet.h"
#include "tests/sim/sabotage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct day d;
struct totals totals;

static const char *const sabotage_name[SABOTAGES] = {"sound",       "all-learned", "kept",
                                                     "other-spans", "any-rank",    "no-turn"};

static uint64_t seed_of_day;

_Noreturn void broken(const char *rule, int64_t a, int64_t b)
{
    printf("%s: %lld, %lld; again with: test_fleet --seeds %llu..%llu\n", rule, (long long)a,
           (long long)b, (unsigned long long)seed_of_day, (unsigned long long)seed_of_day);
    fflush(stdout);
    _exit(1);
}

/* --- Ranks and versions ----------------------------------------------------------------------- */

static void start_rank(struct rank *r)
{
    struct hzp_replica_config config = {.record = RECORD,
                                        .silent_s = 0.5,
                                        .meet_s = 1e6,
                                        .stays = true,
                                        .hello = {.rank = r->index,
                                                  .ranks = RANKS,
                                                  .vocab = VOCAB,
                                                  .positions = POSITIONS,
                                                  .width = WIDTH,
                                                  .layers = 1,
                                                  .running_max = RUNNING,
                                                  .waiting_max = WAITING,
                                                  .page_rows = 4,
                                                  .kv_pages = 64},
                                        .scheduler = (struct hzp_scheduler *)(void *)r,
                                        .weights = (struct hzp_weights *)(void *)r};
    r->alive = true;
    r->version = d.rank[0].version ? d.rank[0].version : 1;
    if (r->index && hzp_replica_start(&config, &r->replica, NULL) < 0)
        broken("a replica does not start", r->index, 0);
}

/* Its process ends: what it has sent may be lost. */
static void kill_rank(struct rank *r)
{
    int32_t number = d.connections;
    for (struct job *job = r->jobs; job; job = job->next) {
        atomic_store(&job->rq->state, HZP_REQUEST_CANCELED);
        if (job->rq->wake)
            job->rq->wake(job->rq->wake_ctx, false);
        atomic_store(&job->rq->let_go, true);
    }
    while (r->jobs)
        leave(r, &r->jobs);
    bool up[CONNECTIONS];
    for (int32_t i = 0; i < d.connections; i++)
        up[i] = d.connection[i].up;
    hzp_replica_destroy(r->replica);
    for (int32_t i = 0; i < d.connections; i++)
        if (up[i] && !d.connection[i].up)
            number = i;
    struct connection *c = &d.connection[number];
    cut(&c->to_front, (int32_t)seeded(&d.random, (uint32_t)c->to_front.count + 1));
    cut(&c->to_replica, 0);
    r->replica = NULL;
    r->alive = false;
    r->back_ns = d.now_ns + seeded(&d.random, 2000) * ms;
    totals.kills++;
}

static bool all_have_newest(void)
{
    if (d.sabotage == NO_TURN)
        return true;
    for (int r = 0; r < RANKS; r++)
        if (d.rank[r].alive && d.rank[r].version != d.newest)
            return false;
    return true;
}

static void publish(struct version v)
{
    HZP_ASSERT(d.newest + 1 < VERSIONS);
    d.version[++d.newest] = v;
    d.finished = v.step;
    for (int r = 0; r < RANKS; r++)
        d.rank[r].flip_ns = d.now_ns + seeded(&d.random, 60) * ms;
}

/* An update ends, or an earlier state serves again, on rank 0 first. */
static void train(void)
{
    const struct version *last = &d.version[d.newest];
    if (!all_have_newest() || !chance(60))
        return;
    if (!d.calm && d.newest > 3 && chance(6)) {
        uint64_t back = d.newest - 1 - seeded(&d.random, 3);
        struct version v = d.version[back];
        v.line = last->line + 1;
        publish(v);
        d.rank[0].version = d.newest;
        totals.rollbacks++;
        return;
    }
    publish((struct version){.step = last->step + 1,
                             .learned = last->learned + 1 + seeded(&d.random, 3),
                             .line = last->line});
    totals.updates++;
}

/* --- Requests --------------------------------------------------------------------------------- */

static void woken(void *ctx, bool more)
{
    const struct life *life = ctx;
    if (atomic_load(&life->rq->let_go))
        broken("woken after it was let go of", life - d.life, 0);
}

static struct hzp_request *make(struct life *life)
{
    int32_t prompt[40], count = 1 + (int32_t)seeded(&d.random, 40);
    bool pools = chance(10), asks = chance(3);
    const struct version *now = &d.version[d.rank[0].version];
    for (int32_t i = 0; i < count; i++)
        prompt[i] = i < 32 ? (int32_t)seeded(&d.random, 2) : (int32_t)seeded(&d.random, VOCAB);
    *life = (struct life){.line = d.version[d.newest].line};
    for (int n = 0; n < POSITIONS; n++)
        life->trails[n] = INT64_MAX;
    int32_t most = pools ? 0 : 1 + (int32_t)seeded(&d.random, 40);
    if (hzp_request_create(prompt, count, most, 0, false, &life->rq) < 0 ||
        (pools && hzp_request_pool(life->rq, HZP_POOLING_MEAN, WIDTH) < 0))
        abort();
    struct hzp_demands *demands = &life->rq->demands;
    *demands = (struct hzp_demands){.max_staleness = -1, .wait_ns = UINT64_MAX};
    demands->mode = chance(4) ? HZP_ABORT : HZP_CONTINUE;
    if (asks && chance(3))
        demands->min_version = d.newest + seeded(&d.random, 2);
    else if (asks && chance(2))
        demands->min_sequence = now->learned + seeded(&d.random, 3);
    else if (asks)
        demands->through = now->learned;
    if (asks && chance(6))
        demands->wait_ns = seeded(&d.random, 300) * ms;
    life->rq->affinity = chance(2) ? 1 + seeded(&d.random, 20) : 0;
    life->rq->sampling.seed = (uint64_t)(life - d.life);
    life->rq->wake = woken;
    life->rq->wake_ctx = life;
    return life->rq;
}

static void submit(void)
{
    struct hzp_request *rq[3];
    int32_t wanted = chance(5) ? 3 : 1, count = HZP_MIN(wanted, LIVES - d.lives);
    for (int32_t i = 0; i < count; i++)
        rq[i] = make(&d.life[d.lives + i]);
    if (hzp_front_submit(d.front, rq, count, NULL) == HZP_OK) {
        d.lives += count;
        return;
    }
    for (int32_t i = 0; i < count; i++) /* rank 0's queue is full */
        hzp_request_destroy(rq[i]);
}

static void check_version(const struct hzp_request *rq, uint64_t version, int32_t at)
{
    if (version < 1 || version > d.newest)
        broken("a span names no version", (int64_t)version, at);
    if (version < rq->demands.min_version)
        broken("a token of a version below min_version", (int64_t)version, at);
    if (d.version[version].learned < needs(rq))
        broken("a token of weights that have not learned it", (int64_t)version, at);
    if (rq->demands.mode == HZP_ABORT && at && version != rq->out[0].version)
        broken("abort goes on with another version", (int64_t)version, at);
}

static void check_tokens(struct life *life)
{
    const struct hzp_request *rq = life->rq;
    int32_t count = atomic_load(&rq->out_count);
    if (count < life->seen)
        broken("tokens disappear", life->seen, count);
    for (int32_t n = 0; n < life->seen; n++)
        if (rq->out[n].token != life->token[n])
            broken("a token changes", life - d.life, n);
    for (int32_t n = life->seen; n < count; n++) {
        check_version(rq, rq->out[n].version, n);
        if (rq->out[n].token != token_of(rq, n, rq->out[n].version))
            broken("a token is not that of its span's version", life - d.life, n);
        life->token[n] = rq->out[n].token;
    }
    totals.tokens += count - life->seen;
    life->seen = count;
}

static void check_end(const struct life *life)
{
    const struct hzp_request *rq = life->rq;
    int state = atomic_load(&rq->state);
    const struct hzp_demands *asked = &rq->demands;
    bool rolled = d.version[d.newest].line != life->line;
    bool may_change = asked->mode == HZP_ABORT || (needs(rq) && rolled);
    bool may_lack = asked->wait_ns < UINT64_MAX;
    if (state == HZP_REQUEST_FAILED || (state == HZP_REQUEST_CANCELED && !life->canceled) ||
        (state == HZP_REQUEST_CHANGED && (!may_change || !life->seen)) ||
        (state == HZP_REQUEST_UNMET && !may_lack))
        broken("it ends in a way that nobody asked for", life - d.life, state);
    if (state == HZP_REQUEST_LENGTH && life->seen != rq->max_tokens)
        broken("it ends before its length", life->seen, rq->max_tokens);
    if (state == HZP_REQUEST_STOPPED && rq->out[life->seen - 1].token != rq->stop_token)
        broken("it ends without its stop token", life - d.life, rq->stop_token);
    for (int32_t c = 0; c < rq->hidden_cols && state == HZP_REQUEST_LENGTH; c++) {
        check_version(rq, rq->prompt_version, 0);
        if (rq->hidden[c] < hidden_of(rq, rq->prompt_version, c) ||
            rq->hidden[c] > hidden_of(rq, rq->prompt_version, c))
            broken("an embedding is not that of its version", life - d.life, c);
    }
    int64_t trails = 0;
    for (int32_t n = 0; n < life->seen; n++)
        trails = HZP_MAX(trails, life->trails[n]);
    if (!rolled && d.sabotage != NO_TURN &&
        (atomic_load(&rq->staleness) > 1 || atomic_load(&rq->staleness) < trails))
        broken("a staleness that is not true", life - d.life, atomic_load(&rq->staleness));
    totals.changed += state == HZP_REQUEST_CHANGED;
    totals.unmet += state == HZP_REQUEST_UNMET;
    totals.canceled += state == HZP_REQUEST_CANCELED;
    totals.embeddings += rq->pooling != 0;
}

static void look_at_lives(void)
{
    for (int32_t i = 0; i < d.lives; i++) {
        struct life *life = &d.life[i];
        if (!life->rq)
            continue;
        bool final = hzp_request_final(life->rq) && atomic_load(&life->rq->let_go);
        check_tokens(life);
        if (!d.calm && chance(3000)) {
            life->canceled = true;
            atomic_store(&life->rq->cancel, true);
            hzp_front_poke(d.front);
        }
        if (!final)
            continue;
        check_end(life);
        hzp_request_destroy(life->rq);
        life->rq = NULL;
        d.ended++;
    }
}

/* --- Days ------------------------------------------------------------------------------------- */

static void look_at_ranks(void)
{
    for (int r = 0; r < RANKS; r++) {
        struct hzp_front_rank rank;
        if (hzp_front_rank(d.front, r, &rank) < 0)
            broken("a rank is not known", r, 0);
        int64_t trails = d.finished - d.version[d.rank[r].version].step;
        bool lower =
            rank.up && d.rank[r].alive && !d.version[d.newest].line && d.sabotage != NO_TURN;
        if (rank.stale)
            broken("a version trails by more than one update", r, (int64_t)rank.load.version);
        if (rank.staleness > 1 || rank.staleness < 0 || (lower && rank.staleness < trails))
            broken("a rank's staleness that is not true", r, rank.staleness);
        if (r && rank.requests > RUNNING + WAITING)
            broken("a rank has more requests than it takes", r, rank.requests);
    }
}

static void disturb(void)
{
    struct rank *r = &d.rank[1 + seeded(&d.random, RANKS - 1)];
    if (chance(300) && r->alive)
        kill_rank(r);
    else if (chance(400))
        r->hangs_until_ns = d.now_ns + seeded(&d.random, 1500) * ms;
    else if (chance(1500))
        d.front_hangs_until_ns = d.now_ns + seeded(&d.random, 1500) * ms;
    else if (chance(300)) {
        int rank = (int)seeded(&d.random, RANKS);
        bool drain = chance(2);
        hzp_front_drain(d.front, rank, drain);
        d.rank[rank].sent = drain && rank ? d.front->place[rank].is.sent : -1;
    }
}

static void tick(void)
{
    d.now_ns += ms;
    if (!d.calm)
        disturb();
    train();
    for (int i = 0; i < RANKS; i++) {
        struct rank *r = &d.rank[i];
        if (!r->alive && d.now_ns >= r->back_ns)
            start_rank(r);
        if (!r->alive || (!d.calm && d.now_ns < r->hangs_until_ns))
            continue;
        if (r->version < d.newest && d.now_ns >= r->flip_ns)
            r->version = d.newest;
        if (d.now_ns >= r->step_ns)
            step(r);
        if (i && chance(2))
            hzp_replica_turn(r->replica);
        if (r->sent >= 0 && d.front->place[i].is.sent > r->sent)
            broken("a drained rank got a request", i, r->sent);
    }
    if (chance(2) && (d.calm || d.now_ns >= d.front_hangs_until_ns))
        hzp_front_turn(d.front);
    look_at_lives();
}

static void open_day(uint64_t seed, enum sabotage sabotage)
{
    struct hzp_front_config config = {.record = RECORD, .ranks = RANKS, .silent_s = 0.5};
    memset(&d, 0, sizeof(d));
    seed_of_day = d.random = seed;
    d.sabotage = sabotage;
    d.now_ns = 1000 * ms;
    d.newest = 1;
    d.version[1] = (struct version){.learned = 5};
    if (hzp_front_create(&config, &d.front, NULL) < 0)
        abort();
    for (int r = 0; r < RANKS; r++) {
        d.rank[r].index = r;
        d.rank[r].sent = -1;
        start_rank(&d.rank[r]);
    }
    struct hzp_hello own = {.ranks = RANKS,
                            .vocab = VOCAB,
                            .positions = POSITIONS,
                            .width = WIDTH,
                            .layers = 1,
                            .running_max = RUNNING,
                            .waiting_max = WAITING,
                            .page_rows = 4,
                            .kv_pages = 64,
                            .version = 1};
    struct hzp_front_parts parts = {.scheduler = (struct hzp_scheduler *)(void *)&d.rank[0],
                                    .weights = (struct hzp_weights *)(void *)&d.rank[0],
                                    .own = own};
    if (hzp_front_start(d.front, &parts) < 0)
        abort();
    d.front->started = false; /* there is no thread to end */
    d.front->beat_ns = d.now_ns;
}

static void close_day(void)
{
    for (int r = 0; r < RANKS; r++)
        if (d.front->place[r].pages || (r && d.front->place[r].is.requests))
            broken("a rank keeps pages or requests", r, d.front->place[r].pages);
    if (d.front->count || atomic_load(&d.front->unended))
        broken("the front keeps requests", d.front->count, 0);
    for (int r = 1; r < RANKS; r++)
        hzp_replica_destroy(d.rank[r].replica);
    hzp_front_destroy(d.front);
    for (int32_t i = 0; i < d.connections; i++) {
        struct connection *c = &d.connection[i];
        cut(&c->to_front, 0);
        cut(&c->to_replica, 0);
        free(c->to_front.read);
        free(c->to_replica.read);
    }
    totals.days++;
}

static void run(uint64_t seed, int sabotage)
{
    open_day(seed, (enum sabotage)sabotage);
    int32_t patience = 0;
    uint32_t often = 1 + seeded(&d.random, 30);
    while (d.lives < LIVES) {
        if (chance(often))
            submit();
        tick();
        if (chance(20))
            look_at_ranks();
    }
    d.calm = true;
    for (int r = 0; r < RANKS; r++) {
        hzp_front_drain(d.front, r, false);
        d.rank[r].sent = -1;
    }
    while (d.ended < d.lives && patience++ < 60000)
        tick();
    if (d.ended < d.lives)
        broken("a request does not end", d.lives, d.ended);
    for (int i = 0; i < 3000; i++) /* what replicas still say of requests that were moved */
        tick();
    close_day();
}

static const char *name_of(int kind)
{
    return sabotage_name[kind];
}

static const char *rules_of(int kind)
{
    static const char *const versions =
        "a token is not that|a span names no version|a token of a version|abort goes on|"
        "a token of weights";
    const char *const rules[SABOTAGES] = {
        "",       "a token of weights that have not learned it", "a request does not end",
        versions, "a drained rank got|a rank has more requests", "a version trails"};
    return rules[kind];
}

int main(int argc, char **argv)
{
    static const struct sabotage_test sabotages = {
        .kinds = SABOTAGES, .seeds = 40, .name = name_of, .rules = rules_of, .run = run};
    unsigned long long first = 1, last = 400;
    hzp_log_set_level(HZP_LOG_ERROR);
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--sabotage=", 11) && argc == 2)
            return sabotage_try(&sabotages, argv[i] + 11);
        if (i + 1 < argc && !strcmp(argv[i], "--seeds"))
            sscanf(argv[++i], "%llu..%llu", &first, &last);
    }
    for (uint64_t seed = first; seed <= last; seed++)
        run(seed, SOUND);
    const struct totals *t = &totals;
    printf("%lld days, %lld tokens, %lld requests moved, %lld recalled, %lld changed, %lld unmet, "
           "%lld canceled, %lld embeddings, %lld kills, %lld updates, %lld rollbacks\n",
           (long long)t->days, (long long)t->tokens, (long long)t->moved, (long long)t->recalled,
           (long long)t->changed, (long long)t->unmet, (long long)t->canceled,
           (long long)t->embeddings, (long long)t->kills, (long long)t->updates,
           (long long)t->rollbacks);
    bool all = t->moved && t->recalled && t->changed && t->unmet && t->canceled && t->embeddings &&
               t->kills && t->rollbacks;
    if (last - first > 20 && !all)
        puts("a case of the above never came up");
    return last - first > 20 && !all;
}

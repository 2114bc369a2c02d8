/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_engine_sim.c - the whole engine over thousands of steps of the virtual clock.
 *
 *     test_engine_sim [--seeds FIRST..LAST] [--seed N] [--sabotage=NAME|all] [-v]
 *
 * A seed whose world breaks a rule prints one line that reproduces it.  --sabotage breaks the
 * engine (or what it was told) on purpose, and succeeds if the rule meant for it notices. */
#include "tests/sim/world.h"

#include "base/log.h"
#include "tests/sim/sabotage.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct sim_trace chat, azure;

struct totals {
    uint64_t worlds, turns, serve_steps, train_steps, ops, tokens, swapped, accepted, refused;
    uint64_t ended[HZP_REQUEST_FAILED + 1];
    uint64_t pushes, stalls, publications, good, bad, broken, failures, samples_refused;
    uint64_t ahead_steps, refs, extra_rows, outlived, met, swaps_in_flight, rode, rode_not;
    uint64_t restarts, kept_steps;
    uint64_t groups, exchanges, exchange_ns, member_steps, group_versions;
};

/* Runs until nothing is left to do: requests end, updates are published, the loop reports idle. */
static void drain(struct sim_world *w)
{
    int r;
    sim_clients(w, false);
    uint64_t last = w->turn + 400000;
    for (r = 1; r > 0 && w->turn < last;) {
        w->turn++;
        r = hzp_loop_turn(w->loop);
        sim_collect(w);
    }
    if (r == HZP_EDEVICE)
        return;
    SIM_CHECK(w, r == 0, "idle", "the loop says %d with nothing to do", r);
    SIM_CHECK(w, w->lives == 0, "requests", "%d never end", w->lives);
    struct hzp_weights_stats weights;
    struct hzp_sample_queue_stats queue;
    struct hzp_trainer_stats trainer;
    hzp_weights_read_stats(w->weights, &weights);
    hzp_sample_queue_read_stats(w->queue, &queue);
    hzp_trainer_read_stats(w->trainer, &trainer);
    if (w->broken)
        return;
    SIM_CHECK(w, weights.slots_free == w->slots - 1, "slots", "%d of %d are free at the end",
              weights.slots_free, w->slots);
    SIM_CHECK(w, weights.staleness == 0, "staleness", "%lld at the end",
              (long long)weights.staleness);
    SIM_CHECK(w, queue.samples == 0 && queue.tokens == 0, "sample queue", "%d are left",
              queue.samples);
    SIM_CHECK(w, weights.learned_through >= w->learnable || trainer.dropped || !w->good_updates,
              "samples", "learned through %lld of %lld", (long long)weights.learned_through,
              (long long)w->learnable);
}

/* Device failure is final: every request is told, and nothing is left behind. */
static void after_failure(struct sim_world *w)
{
    struct hzp_loop_stats stats;
    hzp_loop_read_stats(w->loop, &stats);
    SIM_CHECK(w, stats.failed, "failure", "the loop does not say so");
    sim_collect(w);
    SIM_CHECK(w, w->lives == 0, "failure", "%d requests never end", w->lives);
    w->turn++;
    sim_clients(w, true);
    SIM_CHECK(w, w->lives == 0, "failure", "a request was accepted after it");
    struct hzp_source *source = hzp_trainer_source(w->trainer);
    SIM_CHECK(w, !source->busy(source), "failure", "the trainer would keep the loop from ending");
    source = hzp_scheduler_source(w->scheduler);
    SIM_CHECK(w, !source->busy(source), "failure", "the scheduler would keep the loop from ending");
}

static void live(struct sim_world *w)
{
    int r = 0;
    for (w->turn = 1; w->turn <= (uint64_t)w->turns_max && r >= 0; w->turn++) {
        sim_clients(w, true);
        int32_t before = w->lives;
        r = hzp_loop_turn(w->loop);
        SIM_CHECK(w, r >= 0 || (r == HZP_EDEVICE && w->failed), "loop", "%s", hzp_err_name(r));
        for (int32_t i = 0; i < before; i++)
            SIM_CHECK(w, !w->life[i]->cancel || hzp_request_final(w->life[i]->rq), "cancel",
                      "request %llu goes on after a turn", (unsigned long long)w->life[i]->number);
        sim_check_pool(w);
        sim_collect(w);
    }
    if (r >= 0)
        drain(w);
    if (w->failed)
        after_failure(w);
}

static void add(struct totals *t, const struct sim_world *w)
{
    t->worlds++;
    t->turns += w->turn;
    t->serve_steps += w->serve_steps;
    t->train_steps += w->train_steps;
    t->ops += w->ops;
    t->tokens += w->tokens;
    t->swapped += w->swapped;
    t->accepted += w->accepted;
    t->refused += w->refused;
    t->pushes += w->pushes;
    t->stalls += w->stalls;
    t->publications += w->publications;
    t->good += (uint64_t)w->good_updates;
    t->bad += w->bad_updates;
    t->broken += w->broken;
    t->failures += w->failed;
    t->samples_refused += w->samples_refused;
    t->ahead_steps += w->ahead_steps;
    t->refs += w->refs;
    t->extra_rows += w->extra_rows;
    t->outlived += w->outlived;
    t->met += w->met;
    t->swaps_in_flight += w->swaps_in_flight;
    t->rode += w->rode;
    t->rode_not += w->rode_not;
    t->restarts += w->restarts;
    t->kept_steps += w->kept_steps;
    t->groups += w->ranks > 0;
    t->exchanges += w->exchanges;
    t->exchange_ns += w->exchange_ns;
    t->member_steps += w->member_steps;
    t->group_versions += w->ranks ? w->publications : 0;
    for (int i = 0; i < HZP_COUNT(t->ended); i++)
        t->ended[i] += w->ended[i];
}

static void run(uint64_t seed, enum sim_sabotage sabotage, bool verbose, struct totals *totals)
{
    static struct sim_world world;
    struct sim_world *w = &world;
    memset(w, 0, sizeof(*w));
    w->seed = seed;
    w->sabotage = sabotage;
    w->traffic = (enum sim_traffic)(seed % SIM_TRAFFICS);
    w->trace = w->traffic == SIM_TRACE_CHAT ? &chat : w->traffic == SIM_TRACE_AZURE ? &azure : NULL;
    if (w->trace && !w->trace->count)
        return;
    sim_open(w);
    if (sabotage)
        w->fail_at = 0;
    live(w);
    if (verbose)
        printf("seed %llu: %llu turns, %llu serving, %llu training, %llu requests (%llu refused), "
               "%llu tokens, %lld updates, %llu versions%s%s\n",
               (unsigned long long)seed, (unsigned long long)w->turn,
               (unsigned long long)w->serve_steps, (unsigned long long)w->train_steps,
               (unsigned long long)w->accepted, (unsigned long long)w->refused,
               (unsigned long long)w->tokens, (long long)w->good_updates,
               (unsigned long long)w->publications, w->failed ? ", device failed" : "",
               w->broken ? ", weights broke" : "");
    sim_close(w);
    sim_watch_device(NULL);
    add(totals, w);
}

/* Every kind of event must have happened; otherwise the test covers less than it claims. */
static int report(const struct totals *t)
{
    printf("%llu worlds, %llu turns, %llu serving steps, %llu with training, %llu ops\n"
           "requests: %llu accepted, %llu refused; %llu stopped, %llu length, %llu canceled, "
           "%llu failed; %llu tokens, %llu swaps inside a request, %llu preempted, %llu stalled "
           "a turn\n"
           "training: %llu updates, %llu not finite, %llu versions, %llu bodies refused; weights "
           "broke %llu times, the device failed %llu times\n",
           (unsigned long long)t->worlds, (unsigned long long)t->turns,
           (unsigned long long)t->serve_steps, (unsigned long long)t->train_steps,
           (unsigned long long)t->ops, (unsigned long long)t->accepted,
           (unsigned long long)t->refused, (unsigned long long)t->ended[HZP_REQUEST_STOPPED],
           (unsigned long long)t->ended[HZP_REQUEST_LENGTH],
           (unsigned long long)t->ended[HZP_REQUEST_CANCELED],
           (unsigned long long)t->ended[HZP_REQUEST_FAILED], (unsigned long long)t->tokens,
           (unsigned long long)t->swapped, (unsigned long long)t->pushes,
           (unsigned long long)t->stalls, (unsigned long long)t->good, (unsigned long long)t->bad,
           (unsigned long long)t->publications, (unsigned long long)t->samples_refused,
           (unsigned long long)t->broken, (unsigned long long)t->failures);
    printf(
        "run-ahead: %llu steps, %llu tokens that the host did not know, %llu sequences gone with "
        "a step under way, %llu swaps with a step under way, %llu slices outlived their step, "
        "%llu steps served before the slice of the one before had ended\n",
        (unsigned long long)t->ahead_steps, (unsigned long long)t->refs,
        (unsigned long long)t->extra_rows, (unsigned long long)t->swaps_in_flight,
        (unsigned long long)t->outlived, (unsigned long long)t->met);
    printf(
        "riding: training rode in %llu steps, and not in %llu in which it read another version\n",
        (unsigned long long)t->rode, (unsigned long long)t->rode_not);
    printf("prompts: %llu restarted by a swap, %llu steps kept their version for them\n",
           (unsigned long long)t->restarts, (unsigned long long)t->kept_steps);
    printf("groups: %llu worlds of 2, 4 or 8 ranks, %llu versions, %llu steps of members, %llu "
           "exchanges of %.1f us on average\n",
           (unsigned long long)t->groups, (unsigned long long)t->group_versions,
           (unsigned long long)t->member_steps, (unsigned long long)t->exchanges,
           (double)t->exchange_ns / 1e3 / (double)HZP_MAX(t->exchanges, 1));
    bool all = t->groups && t->group_versions && t->member_steps && t->exchange_ns && t->restarts &&
               t->kept_steps && t->rode && t->rode_not && t->ahead_steps && t->refs &&
               t->extra_rows && t->swaps_in_flight && t->outlived && t->met && t->refused &&
               t->swapped && t->bad && t->publications && t->samples_refused && t->broken &&
               t->failures && t->pushes && t->stalls;
    for (int i = HZP_REQUEST_STOPPED; i <= HZP_REQUEST_FAILED; i++) /* test_consistency has two */
        all = all && (t->ended[i] || i == HZP_REQUEST_CHANGED || i == HZP_REQUEST_UNMET);
    if (!all)
        printf("some kind of event never happened\n");
    return all ? 0 : 1;
}

/* --- Sabotage --------------------------------------------------------------------------------- */

static const char *kind_name(int kind)
{
    return sim_sabotage_name((enum sim_sabotage)kind);
}

static const char *kind_rules(int kind)
{
    return sim_sabotage_invariants((enum sim_sabotage)kind);
}

static void run_kind(uint64_t seed, int kind)
{
    struct totals totals = {0};
    run(seed, (enum sim_sabotage)kind, false, &totals);
}

static const struct sabotage_test sabotages = {
    .kinds = SIM_SABOTAGES, .seeds = 30, .name = kind_name, .rules = kind_rules, .run = run_kind};

int main(int argc, char **argv)
{
    unsigned long long first = 1, last = 200;
    const char *sabotage = NULL;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            first = last = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seeds") && i + 1 < argc &&
                 sscanf(argv[++i], "%llu..%llu", &first, &last) == 2)
            continue;
        else if (!strncmp(argv[i], "--sabotage=", 11))
            sabotage = argv[i] + 11;
        else if (!strcmp(argv[i], "-v"))
            verbose = true;
        else
            return 2;
    }
    unsetenv("HZP_TRACE");
    hzp_log_set_level(HZP_LOG_ERROR);
    sim_trace_read("nanoflow_lmsys.csv", "synthetic_chat.csv", &chat);
    sim_trace_read("AzureLLMInferenceTrace_conv.csv", "synthetic_bursts.csv", &azure);
    struct totals totals = {0};
    int r = 0;
    if (sabotage && first != last) {
        r = sabotage_try(&sabotages, sabotage);
    } else {
        int s = 0;
        while (sabotage && s < SIM_SABOTAGES - 1 && strcmp(sim_sabotage_name(s), sabotage))
            s++;
        for (unsigned long long seed = first; seed <= last; seed++)
            run(seed, (enum sim_sabotage)s, verbose, &totals);
        if (first != last)
            r = report(&totals);
    }
    free(chat.length);
    free(azure.length);
    return r;
}

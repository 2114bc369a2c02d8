/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics: Prometheus' text format, version 0.0.4.  Metrics that vLLM has too use its names,
 * labels and buckets, so that its dashboards work. */
#include "api/http/routes/feedback.h"
#include "api/http/routes/metrics_state.h"
#include "api/http/routes/metrics_text.h"
#include "api/http/routes/replicas_route.h"
#include "api/http/routes/routes.h"
#include "api/learn/outlook.h"
#include "base/arena.h"
#include "base/thread.h"
#include "device/fallback.h"
#include "device/meter.h"
#include "nanobatch/split/split.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* A histogram of what was counted in classes; the last one has no upper bound. */
static void classes(struct hzp_page *p, const char *name, const uint64_t *seen, const double *bound,
                    int count, double sum, const char *help)
{
    struct hzp_histogram h = {.bound = bound, .bounds = count - 1, .sum = sum};
    HZP_ASSERT(count <= HZP_BOUNDS_MAX);
    for (int i = 0; i < count; i++)
        h.count += h.seen[i] = seen[i];
    hzp_page_histogram(p, name, &h, help);
}

/* What requests ask of the weights, and what became of it. */
static void asked_weights(struct hzp_page *p, const struct hzp_scheduler_stats *s)
{
    hzp_page_gauge(p, "hzpserve_requests_waiting_for_weights", s->waiting_weights,
                   "Requests in the queue that wait for weights they ask for.");
    hzp_page_gauge(p, "hzpserve_pins", s->pins, "Requests that hold the version they began with.");
    hzp_page_gauge(p, "hzpserve_pinned_slots", s->pinned_slots,
                   "Older versions whose slots pinned requests hold.");
    hzp_page_counter(p, "hzpserve_requests_unmet_total", (double)s->finished[HZP_REQUEST_UNMET],
                     "Requests ended because the weights they asked for did not serve.");
    hzp_page_counter(p, "hzpserve_requests_aborted_by_swap_total", (double)s->aborted,
                     "Requests ended by a version swap.");
    hzp_page_counter(p, "hzpserve_pins_expired_total", (double)s->pins_ended,
                     "Requests ended because their version was held for --pin-seconds.");
    hzp_page_counter(p, "hzpserve_sequence_recomputes_total", (double)s->recomputes,
                     "Decoding sequences computed again because of a version swap.");
}

static void guesses(struct hzp_page *p, const struct hzp_scheduler_stats *s)
{
    uint64_t guessed = 0, accepted = 0;
    for (int i = 0; i < HZP_LOOKUP_MAX; i++) {
        guessed += s->guessed[i];
        accepted += s->accepted[i];
    }
    hzp_page_counter(p, "vllm:spec_decode_num_drafts_total", (double)s->lookups,
                     "Rows of a sequence in a step with guessed tokens (--draft).");
    hzp_page_counter(p, "vllm:spec_decode_num_draft_tokens_total", (double)guessed,
                     "Guessed tokens.");
    hzp_page_counter(p, "vllm:spec_decode_num_accepted_tokens_total", (double)accepted,
                     "Guessed tokens that were right.");
    hzp_page_head(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
                  "The same by their place in the draft.");
    for (int i = 0; i < HZP_LOOKUP_MAX; i++) {
        char position[12];
        snprintf(position, sizeof(position), "%d", i);
        hzp_page_labelled(p, "position", position, (double)s->accepted[i]);
    }
}

static void print_prefixes(struct hzp_page *p, const struct hzp_scheduler_stats *s)
{
    hzp_page_counter(p, "vllm:prefix_cache_queries_total", (double)s->prefix_queries,
                     "Prompt tokens of admitted requests.");
    hzp_page_counter(p, "vllm:prefix_cache_hits_total", (double)s->prefix_hits,
                     "Prompt tokens of admitted requests whose rows the prefix cache had.");
    hzp_page_counter(
        p, "hzpserve_prefix_stale_tokens_total", (double)s->prefix_stale,
        "Of these hits, rows that an older version had computed (--prefix-reuse-stale).");
    hzp_page_counter(p, "hzpserve_prefix_rewarmed_tokens_total", (double)s->rewarmed_tokens,
                     "Tokens computed again after a swap, for later requests (--prefix-rewarm).");
    guesses(p, s);
    hzp_page_gauge(
        p, "hzpserve_prefix_tier_pages", s->tier.pages,
        "Pages that the tiers of the prefix cache hold (--prefix-file, --prefix-bytes host).");
    hzp_page_counter(p, "hzpserve_prefix_tier_written_pages_total", (double)s->tier.written,
                     "Pages copied to a tier.");
    hzp_page_counter(
        p, "hzpserve_prefix_tier_read_pages_total", (double)s->tier.read,
        "Pages copied back, because that was expected to be faster than computing them.");
    hzp_page_counter(p, "hzpserve_prefix_tier_failed_pages_total", (double)s->tier.failed,
                     "Pages that could not be copied, or did not have their checksum.");
}

static void serving(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_scheduler_stats s;
    hzp_scheduler_read_stats(server->engine->parts.scheduler, &s);
    hzp_page_gauge(p, "vllm:num_requests_running", s.running, "Sequences that have KV pages.");
    asked_weights(p, &s);
    hzp_page_gauge(p, "vllm:num_requests_waiting", s.waiting, "Requests in the queue.");
    hzp_page_counter(p, "hzpserve_shed_requests_total", (double)server->shed,
                     "Requests that got a smaller depth because many waited (--max-waiting).");
    hzp_page_head(p, "vllm:num_requests_waiting_by_reason", "gauge",
                  "Requests in the queue, by reason.");
    hzp_page_labelled(p, "reason", "capacity", s.waiting - s.waiting_weights);
    hzp_page_labelled(p, "reason", "deferred", s.waiting_weights);
    hzp_page_head(p, "vllm:engine_sleep_state", "gauge", "1: the state that the engine is in.");
    hzp_page_labelled(p, "sleep_state", "awake", 1);
    hzp_page_labelled(p, "sleep_state", "weights_offloaded", 0);
    hzp_page_labelled(p, "sleep_state", "discard_all", 0);
    hzp_page_gauge(p, "vllm:kv_cache_usage_perc", s.kv_pages ? (double)s.kv_taken / s.kv_pages : 0,
                   "Part of the KV cache in use, 1: all.");
    hzp_page_counter(p, "vllm:prompt_tokens_total", (double)s.prompt_tokens,
                     "Prompt tokens computed, or found in the prefix cache.");
    hzp_page_head(p, "vllm:prompt_tokens_by_source_total", "counter",
                  "Prompt tokens, by their source.");
    hzp_page_labelled(p, "source", "local_compute", (double)(s.prompt_tokens - s.found_tokens));
    hzp_page_labelled(p, "source", "local_cache_hit", (double)s.found_tokens);
    hzp_page_counter(p, "vllm:generation_tokens_total", (double)s.generated_tokens,
                     "Tokens generated.");
    print_prefixes(p, &s);
    hzp_page_counter(p, "vllm:num_preemptions_total", (double)s.preempted,
                     "Sequences preempted for lack of KV pages.");
    hzp_page_counter(p, "vllm:admission_rejections_total", (double)s.refused,
                     "Requests refused because the queue was full.");
    double bound[HZP_STEP_ROWS_CLASSES];
    for (int i = 0; i < HZP_STEP_ROWS_CLASSES; i++)
        bound[i] = i ? 8 << (i - 1) : 1;
    classes(p, "vllm:iteration_tokens_total", s.step_rows, bound, HZP_STEP_ROWS_CLASSES,
            (double)(s.prompt_tokens - s.found_tokens + s.generated_tokens + s.recomputed_tokens +
                     s.rewarmed_tokens),
            "Tokens computed per step.");
    hzp_page_head(p, "vllm:cache_config_info", "gauge", "The KV cache.");
    const struct hzp_engine_settings *settings = server->engine->config.settings;
    fprintf(p->out,
            "vllm:cache_config_info{%s,block_size=\"%lld\",cache_dtype=\"%s\","
            "num_gpu_blocks=\"%d\"} 1\n",
            p->labels, (long long)settings->serving.page_rows,
            settings->model.kv_fp8 ? "fp8" : "auto", s.kv_pages);
    hzp_page_gauge(p, "hzpserve_kv_pages", s.kv_pages, "Pages of the KV cache.");
    hzp_page_gauge(p, "hzpserve_kv_pages_predicted_peak", s.kv_peak,
                   "Pages that running sequences are predicted to need at most.");
    hzp_page_gauge(p, "hzpserve_kv_pages_taken", s.kv_taken, "Pages in use.");
    hzp_page_gauge(p, "hzpserve_kv_pages_idle", s.kv_idle,
                   "Pages that the prefix cache keeps and no sequence uses.");
    hzp_page_counter(p, "hzpserve_recomputed_tokens_total", (double)s.recomputed_tokens,
                     "Tokens recomputed after a preemption, or a version swap within a prompt.");
    hzp_page_counter(p, "hzpserve_prompt_restarts_total", (double)s.prompt_restarts,
                     "Prompts begun again because a version swap found them unfinished.");
    hzp_page_gauge(p, "hzpserve_step_rows_budget", s.budget_rows, "Row budget of the newest step.");
    hzp_page_head(p, "hzpserve_step_rows_budget_total", "counter",
                  "Steps in which a prompt could take rows, by what decided how many.");
    for (int i = 0; i < HZP_BUDGET_COUNT; i++)
        hzp_page_labelled(p, "reason", hzp_budget_reason_name(i), (double)s.budget_reason[i]);
    hzp_page_gauge(p, "hzpserve_waiting_tokens", (double)s.waiting_tokens,
                   "Prompt tokens in the queue.");
}

static void loop(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_loop_stats l;
    hzp_loop_read_stats(server->engine->parts.loop, &l);
    hzp_page_counter(p, "hzpserve_steps_total", (double)l.steps, "Turns of the engine loop.");
    hzp_page_counter(p, "hzpserve_serve_steps_total", (double)l.serve_steps, "Steps that served.");
    hzp_page_counter(p, "hzpserve_train_steps_total", (double)l.train_steps, "Steps that trained.");
    hzp_page_counter(p, "hzpserve_ride_steps_total", (double)l.ride_steps,
                     "Steps in which training rode in serving's matrix products.");
    hzp_page_head(p, "hzpserve_device_seconds_total", "counter", "Device time by tenant.");
    hzp_page_labelled(p, "tenant", "serve", (double)l.serve_ns * 1e-9);
    hzp_page_labelled(p, "tenant", "train", (double)l.train_ns * 1e-9);
    hzp_page_labelled(p, "tenant", "idle", (double)l.idle_ns * 1e-9);
    hzp_page_counter(p, "hzpserve_ahead_steps_total", (double)l.ahead_steps,
                     "Steps formed while the one before ran.");
    hzp_page_head(p, "hzpserve_host_seconds_total", "counter",
                  "Processor time of the engine thread outside the device, by what it did.");
    hzp_page_labelled(p, "part", "form", (double)l.form_ns * 1e-9);
    hzp_page_labelled(p, "part", "issue", (double)l.issue_ns * 1e-9);
    hzp_page_labelled(p, "part", "deliver", (double)l.deliver_ns * 1e-9);
    hzp_page_counter(p, "hzpserve_host_hidden_seconds_total", (double)l.hidden_ns * 1e-9,
                     "The part of host_seconds during which a step ran on the device.");
    hzp_page_head(p, "hzpserve_device_fallbacks_total", "counter",
                  "Cases in which the device took a slower way, by kind.");
    for (int i = 0; i < HZP_FALLBACK_COUNT; i++)
        hzp_page_labelled(
            p, "kind", hzp_fallback_name((enum hzp_fallback)i),
            (double)hzp_device_fallbacks(server->engine->parts.dev, (enum hzp_fallback)i));
    hzp_page_gauge(p, "hzpserve_engine_up", !l.failed && hzp_engine_running(server->engine),
                   "1: the engine loop runs.");
}

static void split(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_split_report *r = malloc(sizeof(*r));
    if (!r)
        return; /* the page is served without them */
    hzp_split_read(hzp_loop_split(server->engine->parts.loop), hzp_now_ns(), r);
    hzp_page_gauge(p, "hzpserve_slo_ttft_seconds", (double)r->policy.ttft_ns * 1e-9,
                   "Goal for the 99th percentile of the TTFT; 0: none.");
    hzp_page_gauge(p, "hzpserve_slo_itl_seconds", (double)r->policy.itl_ns * 1e-9,
                   "Goal for the 99th percentile of the ITL; 0: none.");
    hzp_page_gauge(p, "hzpserve_slo_ttft_missed_ratio", r->missed_ttft,
                   "Miss rate of the TTFT goal.");
    hzp_page_gauge(p, "hzpserve_slo_itl_missed_ratio", r->missed_itl, "Miss rate of the ITL goal.");
    hzp_page_gauge(p, "hzpserve_slo_itl_missed_alone_ratio", r->missed_itl_alone,
                   "Miss rate of the ITL goal without the training in the ITLs.");
    hzp_page_gauge(p, "hzpserve_split_ttft_p99_seconds",
                   (double)hzp_window_quantile(&r->ttft, 0.99) * 1e-9,
                   "99th percentile of recent TTFTs.");
    hzp_page_gauge(p, "hzpserve_split_itl_p99_seconds",
                   (double)hzp_window_quantile(&r->itl, 0.99) * 1e-9,
                   "99th percentile of recent ITLs.");
    hzp_page_gauge(p, "hzpserve_split_train_ratio", r->train_part,
                   "Part of the last half minute in which the device trained.");
    hzp_page_gauge(p, "hzpserve_split_serve_ratio", r->serve_part,
                   "Part of the last half minute in which the device served.");
    hzp_page_gauge(p, "hzpserve_split_predicted_itl_seconds", r->itl_ns * 1e-9,
                   "Predicted ITL of the newest step.");
    hzp_page_gauge(p, "hzpserve_split_last_itl_seconds", r->measured_itl_ns * 1e-9,
                   "Measured ITL of the newest step.");
    hzp_page_gauge(p, "hzpserve_split_prediction_error_ratio", r->error,
                   "Mean relative error of predicted ITLs.");
    hzp_page_gauge(p, "hzpserve_split_aim_ratio", r->aim,
                   "Part of the ITL goal that a step is predicted to take at most.");
    hzp_page_gauge(p, "hzpserve_split_itl_follows_seconds", (double)r->derived_itl_ns * 1e-9,
                   "ITL goal derived from itl_stretch; 0: none.");
    hzp_page_gauge(p, "hzpserve_split_ttft_follows_seconds", (double)r->derived_ttft_ns * 1e-9,
                   "TTFT goal derived from itl_stretch; 0: none.");
    hzp_page_gauge(p, "hzpserve_split_itl_stretch", r->policy.itl_stretch,
                   "The policy's itl_stretch.");
    hzp_page_gauge(p, "hzpserve_split_train_share", r->policy.train_share,
                   "The policy's train_share.");
    hzp_page_gauge(p, "hzpserve_split_train_max", r->policy.train_max, "The policy's train_max.");
    hzp_page_gauge(p, "hzpserve_split_train_min", r->policy.train_min, "The policy's train_min.");
    hzp_page_head(p, "hzpserve_split_steps_total", "counter",
                  "Steps by what limited training's slice.");
    for (int i = 0; i < HZP_LIMIT_COUNT; i++)
        hzp_page_labelled(p, "limit", hzp_split_limit_name(i), (double)r->limited[i]);
    free(r);
}

static void put_feedback(struct hzp_page *p, struct hzp_feedback *feedback)
{
    struct hzp_feedback_stats s;
    hzp_feedback_read(feedback, &s);
    hzp_page_counter(p, "hzpserve_feedback_total", (double)s.scores,
                     "Scores that clients gave to answers.");
}

static void versions(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_weights_stats w;
    hzp_weights_read_stats(server->engine->parts.weights, &w);
    put_feedback(p, server->feedback);
    hzp_page_gauge(p, "hzpserve_weights_version", (double)w.serving_id, "The version that serves.");
    hzp_page_gauge(p, "hzpserve_weights_optimizer_step", (double)w.serving_optimizer_step,
                   "The optimizer step of the version that serves.");
    hzp_page_gauge(p, "hzpserve_weights_finished_optimizer_step", (double)w.finished_optimizer_step,
                   "The newest finished optimizer step.");
    hzp_page_gauge(p, "hzpserve_weights_staleness", (double)w.staleness,
                   "Optimizer steps by which the serving version trails.");
    hzp_page_gauge(p, "hzpserve_weights_max_staleness", w.max_staleness,
                   "The policy's max_staleness.");
    hzp_page_gauge(p, "hzpserve_weights_staleness_bound", w.bound,
                   "Staleness bound in force: the smallest of the policy's and the requests'.");
    hzp_page_gauge(p, "hzpserve_weights_slots_free", w.slots_free, "Version slots that are free.");
    struct hzp_state *state = server->engine->state;
    int64_t learned =
        state ? hzp_state_learned_through(state, w.learned_through) : w.learned_through;
    hzp_page_gauge(p, "hzpserve_learned_through", (double)learned,
                   "Every example up to this number has had all its passes; -1: none.");
    int64_t finished =
        state ? hzp_state_finished_through(state, w.learned_through) : w.learned_through;
    hzp_page_gauge(p, "hzpserve_finished_through", (double)finished,
                   "Every example up to this number was learned or never will be; -1: none.");
    hzp_page_counter(p, "hzpserve_weights_publications_total", (double)w.publications,
                     "Versions published.");
    double bound[HZP_COUNT(w.staleness_seen)], sum = 0;
    for (int i = 0; i < HZP_COUNT(bound); i++) {
        bound[i] = i;
        sum += i * (double)w.staleness_seen[i];
    }
    classes(p, "hzpserve_publication_staleness", w.staleness_seen, bound, HZP_COUNT(bound), sum,
            "Optimizer steps between two publications.");
}

/* What the comparison of versions on trial with the current one has come to. */
static void put_trials(struct hzp_page *p, struct hzp_trials *trials)
{
    static const char *const side[] = {"current", "trial"};
    struct hzp_trials_stats s;
    hzp_trials_read(trials, &s);
    hzp_page_head(p, "hzpserve_trials_total", "counter",
                  "Versions that were on trial, by its end.");
    for (int i = HZP_TRIAL_PROMOTED; i <= HZP_TRIAL_WITHDRAWN; i++)
        hzp_page_labelled(p, "end", hzp_trial_end_name((enum hzp_trial_end)i), (double)s.ended[i]);
    hzp_page_gauge(p, "hzpserve_trial_version", (double)hzp_trials_running(trials),
                   "The version on trial; 0: none.");
    hzp_page_head(p, "hzpserve_trial_requests", "gauge",
                  "Requests of the newest trial that have ended, by the version that answered.");
    for (int i = 0; i < 2; i++)
        hzp_page_labelled(p, "side", side[i], (double)s.newest.side[i].ended);
    hzp_page_head(p, "hzpserve_trial_logprob", "gauge",
                  "Mean log-probability of the tokens of the newest trial, in nats.");
    for (int i = 0; i < 2; i++)
        if (s.newest.side[i].tokens)
            hzp_page_labelled(p, "side", side[i],
                              s.newest.side[i].logprob / (double)s.newest.side[i].tokens);
    hzp_page_head(p, "hzpserve_trial_score", "gauge",
                  "Mean score of the answers of the newest trial.");
    for (int i = 0; i < 2; i++)
        if (s.newest.side[i].scores)
            hzp_page_labelled(p, "side", side[i], s.newest.side[i].score / s.newest.side[i].scores);
}

/* What the gate did, and what is not learned any more. */
static void put_gate(struct hzp_page *p, const struct hzp_engine *e,
                     const struct hzp_trainer_stats *t, const struct hzp_state_stats *kept)
{
    if (hzp_state_gate(e->state)) {
        hzp_page_counter(p, "hzpserve_gate_evaluations_total", (double)t->gate_evaluations,
                         "Drafts whose loss on the gate's examples was computed.");
        hzp_page_counter(p, "hzpserve_gate_rejected_total", (double)t->gate_rejected,
                         "Drafts discarded because their loss had risen too much.");
        hzp_page_counter(p, "hzpserve_gate_device_seconds_total", (double)t->gate_device_ns * 1e-9,
                         "Device time of evaluating drafts; it counts as training.");
        if (isfinite(t->gate_after))
            hzp_page_gauge(p, "hzpserve_gate_loss", t->gate_after,
                           "Loss of the newest draft on the gate's examples.");
    }
    hzp_page_head(p, "hzpserve_examples_marked", "gauge",
                  "Examples that are no longer learned, over all runs, by mark.");
    hzp_page_labelled(p, "mark", "skipped", (double)kept->skipped);
    hzp_page_labelled(p, "mark", "deleted", (double)kept->deleted);
    hzp_page_labelled(p, "mark", "rejected", (double)kept->rejected);
}

static void ratios(struct hzp_page *p, const struct hzp_ratio_stats *r)
{
    double n = (double)r->rows;
    if (!r->rows)
        return;
    hzp_page_gauge(
        p, "hzpserve_train_ratio_mean", r->sum / n,
        "Mean ratio of the probabilities now and when a token was drawn, newest update.");
    hzp_page_gauge(p, "hzpserve_train_ratio_max", r->max, "The largest such ratio.");
    hzp_page_gauge(p, "hzpserve_train_ratio_clipped", (double)r->clipped / n,
                   "Share of tokens whose ratio is beyond the bound of their loss.");
    hzp_page_gauge(p, "hzpserve_train_ratio_k3", r->k3 / n,
                   "Estimate of the KL divergence since these tokens were drawn.");
    hzp_page_gauge(p, "hzpserve_train_entropy", r->entropy / n, "Mean entropy of these tokens.");
}

/* When the examples that wait will have been learned. */
static void when_learned(struct hzp_page *p, const struct hzp_engine *e,
                         const struct hzp_state_stats *kept)
{
    struct hzp_outlook outlook;
    hzp_outlook_read(e->parts.trainer, hzp_state_queue(e->state), e->parts.loop, &outlook);
    if (isfinite(outlook.seconds))
        hzp_page_gauge(p, "hzpserve_learn_estimated_seconds", outlook.seconds,
                       "Estimated time until all examples accepted so far are learned.");
    hzp_page_gauge(p, "hzpserve_learn_rows_per_second", outlook.rows_per_second,
                   "Training tokens per second of late, while there was work; 0: unknown.");
    hzp_page_gauge(p, "hzpserve_learn_oldest_seconds", outlook.oldest_seconds,
                   "Age of the oldest example that waits to be learned.");
    hzp_page_gauge(p, "hzpserve_learn_stalled_seconds", outlook.stalled_seconds,
                   "How long examples have been waiting without progress.");
    hzp_page_counter(p, "hzpserve_learn_starved_total", (double)kept->starved,
                     "Times that examples waited for a minute without progress.");
    hzp_page_head(p, "hzpserve_learn_held_back", "gauge", "1: what holds learning back now.");
    const char *reason;
    for (int i = 0; (reason = hzp_outlook_reason(i)); i++)
        hzp_page_labelled(p, "by", reason, outlook.held_by && !strcmp(outlook.held_by, reason));
}

static void training(struct hzp_page *p, struct hzp_server *server)
{
    const struct hzp_engine *e = server->engine;
    if (!e->parts.trainer)
        return;
    struct hzp_trainer_stats t;
    hzp_trainer_read_stats(e->parts.trainer, &t);
    struct hzp_sample_queue_stats q;
    hzp_sample_queue_read_stats(hzp_state_queue(e->state), &q);
    struct hzp_state_stats kept;
    hzp_state_read_stats(e->state, &kept);
    hzp_page_counter(p, "hzpserve_train_updates_total", (double)t.updates, "Optimizer steps done.");
    hzp_page_counter(p, "hzpserve_train_skipped_total", (double)t.skipped,
                     "Updates undone because they were not finite.");
    hzp_page_counter(p, "hzpserve_train_learned_tokens_total", (double)t.learned_tokens,
                     "Tokens learned from.");
    hzp_page_counter(p, "hzpserve_train_rows_total", (double)t.rows,
                     "Tokens computed for training.");
    hzp_page_counter(p, "hzpserve_train_device_seconds_total", (double)t.device_ns * 1e-9,
                     "Device time of training.");
    hzp_page_gauge(p, "hzpserve_train_optimizer_step", (double)t.optimizer_step,
                   "The newest optimizer step.");
    if (isfinite(t.loss))
        hzp_page_gauge(p, "hzpserve_train_loss", t.loss, "Mean loss of the newest update.");
    if (isfinite(t.grad_norm))
        hzp_page_gauge(p, "hzpserve_train_grad_norm", t.grad_norm,
                       "Gradient norm of the newest update.");
    ratios(p, &t.ratios);
    hzp_page_gauge(p, "hzpserve_train_learning_rate", (double)t.lr,
                   "Learning rate of the newest update.");
    if (t.path_layers)
        hzp_page_gauge(p, "hzpserve_train_path_layers", t.path_layers,
                       "Layers that the newest update's micro-batches went through (--skip).");
    hzp_page_gauge(p, "hzpserve_train_preparing", t.preparing,
                   "1: training's memory is being prepared, or its state read; examples wait.");
    hzp_page_gauge(p, "hzpserve_train_broken", t.broken,
                   "1: training has stopped until a restart, as the log says; examples get a 503.");
    hzp_page_gauge(p, "hzpserve_train_paused", t.paused, "1: training is paused.");
    hzp_page_gauge(p, "hzpserve_train_waiting_for_swap", t.waiting_for_swap,
                   "1: the staleness bound holds the trainer back.");
    hzp_page_gauge(p, "hzpserve_train_waiting_for_slot", t.waiting_for_slot,
                   "1: no slot is free for a draft.");
    when_learned(p, e, &kept);
    hzp_page_gauge(p, "hzpserve_examples_waiting", q.samples, "Examples with passes to go.");
    hzp_page_gauge(p, "hzpserve_examples_waiting_max", q.samples_max,
                   "Most examples that may wait.");
    hzp_page_gauge(p, "hzpserve_example_tokens_waiting", (double)q.tokens,
                   "Tokens of waiting examples.");
    hzp_page_counter(p, "hzpserve_examples_failed_total", (double)kept.failed,
                     "Examples given up because their updates were not finite, in all runs.");
    put_gate(p, e, &t, &kept);
    if (e->trials)
        put_trials(p, e->trials);
    hzp_page_counter(p, "hzpserve_examples_accepted_total", (double)kept.accepted,
                     "Examples accepted.");
    hzp_page_counter(p, "hzpserve_example_bodies_refused_total", (double)kept.refused,
                     "Bodies of examples refused.");
    hzp_page_gauge(p, "hzpserve_examples_trained_again", (double)kept.trained_again,
                   "Examples a version lost at a restart had learned from already.");
    hzp_page_gauge(
        p, "hzpserve_state_read_only", hzp_state_read_only(server->engine->state),
        "1: the disk could not be written at the start, so nothing is accepted or learned.");
    hzp_page_counter(p, "hzpserve_checkpoints_total", (double)kept.checkpoints,
                     "Checkpoints written.");
    hzp_page_counter(p, "hzpserve_checkpoint_failures_total", (double)kept.checkpoint_failures,
                     "Checkpoints that could not be written.");
    hzp_page_gauge(p, "hzpserve_checkpoint_seconds", kept.checkpoint_seconds,
                   "How long the newest checkpoint took to write.");
    hzp_page_gauge(p, "hzpserve_checkpoint_pause_seconds", kept.checkpoint_pause_seconds,
                   "How long the newest checkpoint kept the next update from beginning.");
    hzp_page_counter(p, "hzpserve_checkpoints_late_total", (double)kept.checkpoints_late,
                     "Checkpoints that were due while the one before was still being written.");
}

/* A figure of a rank, of those in the table below. */
static double rank_figure(const struct hzp_control_state *s, int which)
{
    const double figure[] = {!s->lost && !s->left, s->silent_s, s->waits_s,
                             (double)s->done,      s->doing_s,  s->ahead_s};
    return figure[which];
}

static const struct {
    const char *name, *help;
} rank_figures[] = {
    {"hzpserve_rank_up", "1: the rank is there."},
    {"hzpserve_rank_silent_seconds", "Time since the rank's last message."},
    {"hzpserve_rank_waits_seconds", "For how long the rank's link has waited for another rank."},
    {"hzpserve_rank_transfers", "Transfers that the rank has ended."},
    {"hzpserve_rank_busy_seconds", "For how long a thread of the rank has been doing the same."},
    {"hzpserve_rank_clock_ahead_seconds", "Rank 0's clock minus the rank's."},
};

/* How much slower than the others each rank is, and in what. */
static void slowness(struct hzp_page *p, const struct hzp_control_state *of, int ranks)
{
    const char *name = "hzpserve_rank_slowness";
    hzp_page_head(
        p, name, "gauge",
        "How much slower than the others the rank is, in what it is slowest in; 1: as fast.");
    for (int r = 0; r < ranks; r++)
        if (of[r].slow > 0)
            fprintf(p->out, "%s{%s,rank=\"%d\",in=\"%s\"} %.4g\n", name, p->labels, r,
                    hzp_meter_name(of[r].slow_at), of[r].slow);
}

static void ranks_of_job(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_ranks *ranks = server->engine->config.ranks;
    if (!ranks || ranks->ranks == 1)
        return;
    struct hzp_control_state *of = hzp_xcalloc((size_t)ranks->ranks, sizeof(*of));
    struct hzp_ranks_standing now;
    hzp_ranks_standing(ranks, &now);
    for (int r = 0; r < ranks->ranks; r++)
        if (!hzp_ranks_rank(ranks, r, &of[r])) /* they meet */
            of[r] = (struct hzp_control_state){.known = true, .lost = r == now.lost_rank};
    hzp_page_gauge(p, "hzpserve_ranks", ranks->ranks, "Ranks that work together.");
    hzp_page_gauge(p, "hzpserve_rank_lost", now.lost_rank,
                   "The rank that was lost and has not come back; -1: none.");
    hzp_page_counter(p, "hzpserve_rank_losses_total", (double)now.losses,
                     "Times that a rank was lost.");
    hzp_page_counter(
        p, "hzpserve_rank_rejoins_total", (double)now.rejoins,
        "Times that all ranks were together again after a loss, and training went on.");
    for (int i = 0; i < HZP_COUNT(rank_figures); i++) {
        hzp_page_head(p, rank_figures[i].name, "gauge", rank_figures[i].help);
        for (int r = 0; r < ranks->ranks; r++)
            if (of[r].known)
                fprintf(p->out, "%s{%s,rank=\"%d\"} %.10g\n", p->name, p->labels, r,
                        rank_figure(&of[r], i));
    }
    slowness(p, of, ranks->ranks);
    const struct hzp_engine *engine = server->engine;
    if (engine->parts.link &&
        engine->parts.link != engine->config.link) { /* over the ranks' link: NCCL's */
        struct hzp_link_state link;
        hzp_link_state(engine->parts.link, &link);
        now.wire_bytes = link.wire_bytes;
    }
    hzp_page_counter(p, "hzpserve_link_bytes_total", (double)now.wire_bytes,
                     "Bytes that rank 0 has sent.");
    free(of);
}

static void counted(struct hzp_page *p, struct hzp_metrics *m)
{
    hzp_page_head(p, "vllm:request_success_total", "counter",
                  "Choices that ended, by finish reason.");
    for (int i = 0; i < HZP_COUNT(m->reason); i++)
        hzp_page_labelled(p, "finished_reason", m->reason[i].name, (double)m->reason[i].count);
    hzp_page_histogram(p, "vllm:time_to_first_token_seconds", &m->ttft, "Time to the first token.");
    hzp_page_histogram(p, "vllm:inter_token_latency_seconds", &m->itl, "Time between two tokens.");
    hzp_page_histogram(p, "vllm:e2e_request_latency_seconds", &m->e2e, "Time to the last token.");
    hzp_page_histogram(p, "vllm:request_queue_time_seconds", &m->queue, "Time in the queue.");
    hzp_page_histogram(p, "vllm:request_inference_time_seconds", &m->inference,
                       "Time with KV pages.");
    hzp_page_histogram(p, "vllm:request_prefill_time_seconds", &m->prefill, "Time of the prompt.");
    hzp_page_histogram(p, "vllm:request_decode_time_seconds", &m->decode,
                       "Time from first to last token.");
    hzp_page_histogram(p, "vllm:request_prompt_tokens", &m->prompt_tokens, "Tokens of prompts.");
    hzp_page_histogram(p, "vllm:request_time_per_output_token_seconds", &m->per_token,
                       "Mean time between a request's tokens.");
    hzp_page_histogram(p, "vllm:request_generation_tokens", &m->generated, "Tokens generated.");
    hzp_page_histogram(p, "vllm:request_max_num_generation_tokens", &m->longest,
                       "Tokens generated by a request's longest choice.");
    hzp_page_histogram(p, "vllm:request_params_n", &m->n, "What requests asked for: n.");
    hzp_page_histogram(p, "vllm:request_params_max_tokens", &m->max_tokens,
                       "What requests asked for: max_tokens.");
    hzp_page_counter(p, "hzpserve_train_update_seconds_total", m->update_seconds,
                     "Time from begin to end of updates, added up.");
}

static void http(struct hzp_page *p, const struct hzp_metrics *m)
{
    char labels[128];
    hzp_page_head(p, "http_requests_total", "counter",
                  "Answers by route, method and class of status, but for probes.");
    for (int i = 0; i < m->times; i++)
        for (int class = 1; class <= 5; class ++) {
            uint64_t count = hzp_metrics_http_class(m, i, class);
            if (count)
                fprintf(p->out,
                        "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu\n",
                        m->time[i].handler, m->time[i].method, class, (unsigned long long)count);
        }
    hzp_page_head(p, "http_request_duration_seconds", "histogram",
                  "Time from a request's head to the end of its answer, but for probes.");
    for (int i = 0; i < m->times; i++) {
        snprintf(labels, sizeof(labels), "handler=\"%s\",method=\"%s\"", m->time[i].handler,
                 m->time[i].method);
        hzp_page_buckets(p, "http_request_duration_seconds", labels, &m->time[i].seconds);
    }
    hzp_page_head(p, "hzpserve_http_responses_total", "counter",
                  "Requests by route, method and status, all of them; 0: the client disconnected.");
    for (int i = 0; i < m->https; i++)
        fprintf(p->out,
                "hzpserve_http_responses_total{handler=\"%s\",method=\"%s\",status=\"%d\"} %llu\n",
                m->http[i].handler, m->http[i].method, m->http[i].status,
                (unsigned long long)m->http[i].count);
}

/* What Prometheus' own clients say of their process. */
static void process(struct hzp_page *p)
{
    long long pages = 0, ticks = sysconf(_SC_CLK_TCK), user = 0, system = 0, start = 0;
    char text[1024] = "", *at = NULL;
    FILE *file = fopen("/proc/self/stat", "re");
    if (file && fgets(text, sizeof(text), file))
        at = strrchr(text, ')'); /* a name may contain anything */
    if (file)
        fclose(file);
    if (!at || sscanf(at + 2,
                      "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld %lld %*s %*s %*s %*s "
                      "%*s %*s %lld %*s %lld",
                      &user, &system, &start, &pages) != 4)
        return;
    struct timespec real, boot;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    double began = (double)(real.tv_sec - boot.tv_sec) + (double)start / (double)ticks;
    hzp_page_plain(p, "process_cpu_seconds_total", "counter",
                   (double)(user + system) / (double)ticks, "Processor time of the process.");
    hzp_page_plain(p, "process_resident_memory_bytes", "gauge",
                   (double)pages * (double)sysconf(_SC_PAGESIZE), "Resident memory.");
    hzp_page_plain(p, "process_start_time_seconds", "gauge", began,
                   "Start of the process, unix time.");
    int files = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        files++;
    if (dir)
        closedir(dir);
    hzp_page_plain(p, "process_open_fds", "gauge", HZP_MAX(files - 3, 0), "Open file descriptors.");
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        hzp_page_plain(p, "process_max_fds", "gauge", (double)limit.rlim_cur,
                       "Most open file descriptors.");
}

/* Processor time of the threads that speak HTTP, by their names, in seconds. */
static double http_seconds(void)
{
    static const char *const names[] = {"MHD-", "hzp-http", "hzp-notify", "hzp-door", "hzp-hangup"};
    char path[64], name[32] = "";
    double sum = 0;
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        unsigned long long ran = 0;
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        bool ours = false;
        if (file && fgets(name, sizeof(name), file))
            for (int i = 0; i < HZP_COUNT(names); i++)
                ours |= !strncmp(name, names[i], strlen(names[i]));
        if (file)
            fclose(file);
        snprintf(path, sizeof(path), "/proc/self/task/%.16s/schedstat", entry->d_name);
        file = ours ? fopen(path, "re") : NULL;
        if (file && fscanf(file, "%llu", &ran) == 1)
            sum += (double)ran * 1e-9;
        if (file)
            fclose(file);
    }
    if (dir)
        closedir(dir);
    return sum;
}

static void connections(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_door_stats d;
    hzp_door_read_stats(server->door, &d);
    hzp_page_gauge(p, "hzpserve_connections", (double)d.open, "Open connections.");
    hzp_page_gauge(p, "hzpserve_connections_max", (double)server->settings->connections_max,
                   "Most open connections (--max-connections).");
    hzp_page_counter(p, "hzpserve_connections_accepted_total", (double)d.accepted,
                     "Connections accepted.");
    hzp_page_counter(p, "hzpserve_connections_refused_total", (double)d.refused,
                     "Connections answered 503 or 429 for lack of a place.");
    hzp_page_counter(p, "hzpserve_connections_timed_out_total", (double)d.timed_out,
                     "Connections ended at a deadline.");
    hzp_page_counter(p, "hzpserve_connections_made_way_total", (double)d.made_way,
                     "Idle connections ended for new ones.");
    hzp_page_counter(p, "hzpserve_descriptors_exhausted_total", (double)d.descriptors_exhausted,
                     "Times that connections waited for a descriptor.");
    hzp_page_gauge(p, "hzpserve_body_bytes", (double)atomic_load(&server->bodies),
                   "Memory of requests: bodies, what is read of them, and answers.");
    hzp_page_counter(p, "hzpserve_unknown_fields_total",
                     (double)atomic_load(&server->unknown.fields),
                     "Fields of requests that were not known and ignored.");
    hzp_page_counter(p, "hzpserve_http_cpu_seconds_total", http_seconds(),
                     "Processor time of the threads that speak HTTP.");
    hzp_page_gauge(p, "hzpserve_stream_join_seconds",
                   (double)hzp_notify_window(server->notify) * 1e-9,
                   "How long a stream's next token waits at most for further ones.");
    hzp_page_counter(p, "hzpserve_stream_tokens_joined_total", (double)atomic_load(&server->joined),
                     "Tokens of streams written together with an earlier one of their stream.");
}

static void grammars(struct hzp_page *p, struct hzp_server *server)
{
    struct hzp_structures_stats s;
    int in_work = 0;
    hzp_structures_read_stats(server->engine->parts.structures, &s);
    for (int i = 0; i < HZP_SERVER_LANES; i++)
        in_work += hzp_pool_load(server->lane[i]);
    hzp_page_gauge(p, "hzpserve_grammars_in_work", in_work,
                   "Requests whose grammar is being made, or waits for its turn.");
    hzp_page_gauge(p, "hzpserve_grammars_kept", s.kept,
                   "Grammars that are kept for further requests.");
    hzp_page_gauge(p, "hzpserve_grammars_kept_bytes", (double)s.bytes, "Their memory.");
    hzp_page_counter(p, "hzpserve_grammars_made_total", (double)s.made, "Grammars made.");
}

char *hzp_metrics_page(struct hzp_server *server)
{
    char *text = NULL, name[160];
    size_t bytes = 0;
    struct hzp_page page = {.out = open_memstream(&text, &bytes)};
    if (!page.out)
        return NULL;
    hzp_page_label_text(server->model, name, sizeof(name));
    snprintf(page.labels, sizeof(page.labels), "model_name=\"%s\",engine=\"0\"", name);
    serving(&page, server);
    connections(&page, server);
    grammars(&page, server);
    loop(&page, server);
    split(&page, server);
    versions(&page, server);
    training(&page, server);
    ranks_of_job(&page, server);
    hzp_replicas_metrics(server->engine, page.labels, page.out);
    hzp_rollouts_metrics(&page, server->engine);
    /* Copies the counters, so that the lock is not held while the page is written. */
    struct hzp_metrics *copy = hzp_xmalloc(sizeof(*copy));
    hzp_lock_take(&server->metrics->lock);
    *copy = *server->metrics;
    hzp_lock_release(&server->metrics->lock);
    counted(&page, copy);
    http(&page, copy);
    process(&page);
    free(copy);
    if (fclose(page.out)) {
        free(text);
        return NULL;
    }
    return text;
}

enum MHD_Result hzp_route_metrics(struct hzp_exchange *x)
{
    return hzp_reply_text(x, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                          hzp_metrics_page(x->server));
}

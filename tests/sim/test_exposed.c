/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/test_exposed.c - how much of the time on the wire a sharded update shows, on the
 * virtual clock: the trainer of rank 0 on a simulated device, with a link that stands for the
 * others.
 *
 *     test_exposed            checks bounds
 *     test_exposed --table    prints the table of docs/measurements/2026-11-shards.md
 */
#include "nanobatch/loop.h"
#include "tests/fixture/model.h"
#include "tests/fixture/must.h"
#include "train/conductor/trainer_state.h"
#include "tests/links/links.h"
#include "tests/train/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Measured from the end of update FIRST to that of update LAST: all have one before and one behind
 * them to overlap with. */
enum { UPDATES = 6, FIRST = 2, LAST = 5, DOC = 1024 };

struct job {
    const char *name;
    struct hzp_model_config model;
    struct hzp_groups groups;
    int32_t micros, micro_rows; /* micro-batches a rank, and rows of each */
    double flops, bytes;        /* rates of the device */
    struct hzp_link_sim link;
};

static struct hzp_err_text text;

static void must(const char *what, int r)
{
    if (r >= 0)
        return;
    fprintf(stderr, "%s: %s %s\n", what, hzp_err_name(r), text.text);
    exit(1);
}

static int64_t seen;
static uint64_t begun_ns, ended_ns;
static struct hzp_device *clock_of;

static void on_update(void *ctx, const struct hzp_update_report *report)
{
    if (++seen == FIRST)
        begun_ns = hzp_device_now_ns(clock_of);
    if (seen == LAST)
        ended_ns = hzp_device_now_ns(clock_of);
}

static struct hzp_sample_queue *open_queue(const struct job *job, int32_t update_tokens)
{
    struct hzp_sample_queue_config config = {
        .samples_max = 1 << 20, .tokens_max = (int64_t)1 << 40, .passes = 1, .seed = 1};
    struct hzp_sample_queue *queue;
    must("the queue", hzp_sample_queue_create(&config, &queue));
    int32_t token[DOC + 1];
    uint8_t learn[DOC + 1];
    for (int32_t i = 0; i <= DOC; i++) {
        token[i] = i % 200;
        learn[i] = 1;
    }
    for (int64_t i = 0; i < (int64_t)UPDATES * update_tokens / DOC; i++) {
        struct hzp_sample *sample = hzp_sample_create(token, learn, DOC + 1);
        must("room", hzp_sample_queue_reserve(queue, 1, DOC + 1));
        hzp_sample_queue_push(queue, &sample, 1);
    }
    return queue;
}

/* Turns until the updates are done; where only other ranks can go on, the clock goes on to the next
 * transfer's end. */
static void run(struct hzp_loop *loop, struct hzp_trainer *t)
{
    struct hzp_trainer_stats stats;
    while (seen < UPDATES) {
        int r = hzp_loop_turn(loop);
        must("a turn", r);
        hzp_trainer_read_stats(t, &stats);
        if (stats.failure[0]) {
            fprintf(stderr, "%s\n", stats.failure);
            exit(1);
        }
        if (r > 0)
            continue;
        const struct hzp_transfers *list = hzp_collectives_transfers(t->learner->collectives);
        if (list->done == list->posted) {
            fprintf(stderr, "the trainer waits for nothing\n");
            exit(1);
        }
        must("waiting", hzp_link_wait(t->config.link, list->entry[list->done].ticket, &text));
    }
}

struct outcome {
    double update_ns;  /* of one update */
    double wire_bytes; /* that one rank sends in it */
    double rank_bytes; /* memory, by the formula */
};

static struct outcome measure(const struct job *job)
{
    char rates[128];
    struct fixture_model f;
    struct hzp_link *link;
    struct hzp_trainer *trainer;
    struct hzp_loop *loop;
    struct hzp_link_state before, after;
    snprintf(rates, sizeof(rates), "flops=%g,bytes=%g,mem=4e12", job->flops, job->bytes);
    setenv("HZP_SIM", rates, 1);
    struct hzp_shards shards = {.groups = job->groups};
    struct fixture_config fixture = {
        .device = "sim",
        .config = job->model,
        .store = {.type = HZP_BF16, .slots = 1, .first_id = 1, .shards = shards}};
    fixture_open(&f, &fixture);
    clock_of = f.dev;
    fixture_publish(&f, fixture_begin(&f), 0);
    must("the link", hzp_link_open_sim(&job->link, f.dev, &link, &text));
    int32_t update_tokens = job->groups.ranks * job->micros * job->micro_rows;
    struct hzp_sample_queue *queue = open_queue(job, update_tokens);
    struct hzp_trainer_config config = {.recipe = {.lr = 1e-4f,
                                                   .beta1 = 0.9f,
                                                   .beta2 = 0.95f,
                                                   .eps = 1e-8f,
                                                   .clip = 1,
                                                   .update_tokens = update_tokens,
                                                   .micro_rows = job->micro_rows,
                                                   .publish_every = 1,
                                                   .moment_type = HZP_F32},
                                        .model = f.model,
                                        .queue = queue,
                                        .on_update = on_update,
                                        .shards = shards,
                                        .link = link};
    must("the trainer", hzp_trainer_create(&config, &trainer, &text));
    struct hzp_loop_config loop_config = {.model = f.model,
                                          .idle_ns = (uint64_t)1 << 50,
                                          .policy = {.train_share = 1, .train_max = 1}};
    loop_config.source[loop_config.sources++] = hzp_trainer_source(trainer);
    must("the loop", hzp_loop_create(&loop_config, &loop));
    seen = 0;
    hzp_link_state(link, &before);
    run(loop, trainer);
    hzp_link_state(link, &after);
    const struct hzp_shards all = {.groups = job->groups};
    struct hzp_groups_model model = hzp_groups_model(&all, &f.layout);
    model.type = HZP_BF16;
    model.moment_type = HZP_F32;
    struct outcome ret = {.update_ns = (double)(ended_ns - begun_ns) / (LAST - FIRST),
                          .wire_bytes = (double)(after.wire_bytes - before.wire_bytes) / UPDATES,
                          .rank_bytes = (double)hzp_groups_bytes(&job->groups, &model).total};
    hzp_loop_destroy(loop);
    hzp_trainer_destroy(trainer);
    hzp_sample_queue_destroy(queue);
    hzp_link_close(link);
    fixture_close(&f);
    return ret;
}

/* --- Half of compute -------------------------------------------------------------------------- */

static const struct hzp_model_config small = {.family = "llama",
                                              .layers = 24,
                                              .width = 1024,
                                              .inner = 4096,
                                              .vocab = 32000,
                                              .heads = {16, 8, 64},
                                              .positions = 4096,
                                              .norm_eps = 1e-5f,
                                              .rope_theta = 10000,
                                              .disk_type = HZP_BF16,
                                              .bos = -1};

static const struct hzp_link_sim fast = {
    .ranks = 8, .node_ranks = 8, .rate_node = 1e18, .rate_net = 1e18};

/* An update with a link whose time on the wire is half of the time without one.  Returns what of
 * the wire's time an update is longer; *ret_step: the same of the update. */
static double exposed(struct job job, double *ret_step)
{
    job.link = fast;
    job.link.ranks = job.link.node_ranks = job.groups.ranks;
    struct outcome free = measure(&job);
    double wire_ns = free.update_ns / 2;
    job.link.rate_node = job.link.rate_net = free.wire_bytes / (wire_ns * 1e-9);
    struct outcome real = measure(&job);
    *ret_step = (real.update_ns - free.update_ns) / free.update_ns;
    return (real.update_ns - free.update_ns) / wire_ns;
}

static int check_bounds(void)
{
    static const struct {
        struct hzp_groups groups;
        int32_t micros;
        double wire, step; /* at most these parts of the wire's time and of the update are seen */
    } cases[] = {
        {{8, 8, 8, 1}, 4, 0.05, 0.025}, {{8, 8, 8, 8}, 4, 0.05, 0.025},
        {{8, 8, 1, 1}, 4, 0.55, 0.28}, /* a quarter of the update has nothing to hide behind */
        {{8, 8, 8, 1}, 1, 0.05, 0.025}, {{8, 8, 1, 1}, 1, 0.10, 0.05},
    };
    int failed = 0;
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct job job = {.model = small,
                          .groups = cases[i].groups,
                          .micros = cases[i].micros,
                          .micro_rows = 4096,
                          .flops = 4e14,
                          .bytes = 3e12};
        double step, wire = exposed(job, &step);
        bool bad = wire > cases[i].wire || step > cases[i].step;
        printf("z1 %d z2 %d z3 %d, %d micro-batches a rank: %.1f %% of the wire's time is seen, "
               "%.1f %% of the update%s\n",
               job.groups.z1, job.groups.z2, job.groups.z3, job.micros, 100 * wire, 100 * step,
               bad ? ": too much" : "");
        failed |= bad;
    }
    return failed;
}

/* --- The table -------------------------------------------------------------------------------- */

static const struct hzp_model_config llama_8b = {.family = "llama",
                                                 .layers = 32,
                                                 .width = 4096,
                                                 .inner = 14336,
                                                 .vocab = 128256,
                                                 .heads = {32, 8, 128},
                                                 .positions = 8192,
                                                 .norm_eps = 1e-5f,
                                                 .rope_theta = 500000,
                                                 .disk_type = HZP_BF16,
                                                 .bos = -1};
static const struct hzp_model_config llama_70b = {.family = "llama",
                                                  .layers = 80,
                                                  .width = 8192,
                                                  .inner = 28672,
                                                  .vocab = 128256,
                                                  .heads = {64, 8, 128},
                                                  .positions = 8192,
                                                  .norm_eps = 1e-5f,
                                                  .rope_theta = 500000,
                                                  .disk_type = HZP_BF16,
                                                  .bos = -1};

static void print_table(void)
{
    const struct hzp_link_sim node = {
        .ranks = 8, .node_ranks = 8, .rate_node = 3e11, .rate_net = 4e10, .latency_ns = 20000};
    const struct job jobs[] = {
        {"8B, 8", llama_8b, {8, 8, 1, 1}, 2, 4096, 4e14, 3e12, node},
        {"8B, 8", llama_8b, {8, 8, 8, 1}, 2, 4096, 4e14, 3e12, node},
        {"8B, 8", llama_8b, {8, 8, 8, 8}, 2, 4096, 4e14, 3e12, node},
        {"8B, 64", llama_8b, {64, 64, 1, 1}, 2, 4096, 4e14, 3e12, node},
        {"8B, 64", llama_8b, {64, 64, 8, 1}, 2, 4096, 4e14, 3e12, node},
        {"8B, 64", llama_8b, {64, 64, 8, 8}, 2, 4096, 4e14, 3e12, node},
        {"70B, 64", llama_70b, {64, 64, 8, 8}, 2, 4096, 4e14, 3e12, node},
        {"70B, 64", llama_70b, {64, 64, 64, 8}, 2, 4096, 4e14, 3e12, node},
        {"70B, 64", llama_70b, {64, 64, 64, 64}, 2, 4096, 4e14, 3e12, node},
    };
    printf("| model, ranks | z1 | z2 | z3 | GB a rank | GB sent an update | update, no wire | "
           "update | "
           "seen of the update |\n|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < HZP_COUNT(jobs); i++) {
        struct job job = jobs[i], free = job;
        job.link.ranks = free.link.ranks = job.groups.ranks;
        free.link.rate_node = free.link.rate_net = 1e18;
        free.link.latency_ns = 0;
        struct outcome a = measure(&free), b = measure(&job);
        printf("| %s | %d | %d | %d | %.1f | %.1f | %.3f s | %.3f s | %.1f %% |\n", job.name,
               job.groups.z1, job.groups.z2, job.groups.z3, b.rank_bytes / 1e9, b.wire_bytes / 1e9,
               a.update_ns * 1e-9, b.update_ns * 1e-9,
               100 * (b.update_ns - a.update_ns) / b.update_ns);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return check_bounds();
    if (argc != 2 || strcmp(argv[1], "--table"))
        return 2;
    print_table();
    return 0;
}

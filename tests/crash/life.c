/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/train/accept.h"
#include "tests/crash/life.h"

#include "base/log.h"
#include "base/thread.h"
#include "weights/model_dir.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct life {
    struct crash_life config;
    struct hzp_err_text err;
    struct hzp_model_config model_config;
    struct hzp_layout layout;
    struct hzp_state *state;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_trainer *trainer;
    struct hzp_loop *loop;
    atomic_bool ended;
};

void crash_text(uint64_t n, int32_t token[CRASH_TOKENS])
{
    for (int i = 0; i < CRASH_TOKENS; i++, n /= CRASH_VOCAB)
        token[i] = (int32_t)(n % CRASH_VOCAB);
}

static void tell(struct life *l, struct crash_told told)
{
    if (l->config.note)
        l->config.note(&told, sizeof(told));
    if (write(l->config.fd, &told, sizeof(told)) != (ssize_t)sizeof(told))
        _exit(2);
}

static void must(struct life *l, const char *what, int code)
{
    struct crash_told told = {.kind = CRASH_ERROR};
    if (code >= 0)
        return;
    snprintf(told.text, sizeof(told.text), "%s: %s: %.120s", what, hzp_err_name(code), l->err.text);
    tell(l, told);
    _exit(1);
}

/* --- Clients ---------------------------------------------------------------------------------- */

static size_t make_body(uint64_t first, int32_t n, char *ret, size_t size)
{
    size_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t token[CRASH_TOKENS];
        crash_text(first + (uint64_t)i, token);
        used += (size_t)snprintf(ret + used, size - used, "{\"tokens\": [");
        for (int k = 0; k < CRASH_TOKENS; k++)
            used += (size_t)snprintf(ret + used, size - used, "%s%d", k ? "," : "", token[k]);
        used += (size_t)snprintf(ret + used, size - used, "]}\n");
    }
    return used;
}

static void tell_checkpoint(struct life *l, uint64_t *known)
{
    struct hzp_state_stats stats;
    hzp_state_read_stats(l->state, &stats);
    if (stats.checkpoint_failures && !l->config.disk_fails) {
        hzp_fail(&l->err, HZP_EIO, "a checkpoint failed");
        must(l, "checkpoint", HZP_EIO);
    }
    if (stats.checkpoint_id == *known)
        return;
    *known = stats.checkpoint_id;
    tell(l, (struct crash_told){.kind = CRASH_SAVED, .a = *known});
}

/* Posts the bodies.  Returns true if it has posted all of them. */
static bool post(struct life *l)
{
    char body[4000];
    uint64_t text = l->config.next_text, checkpoint = 0;
    for (int32_t i = 0; !atomic_load(&l->ended) && (!l->config.bodies || i < l->config.bodies);) {
        int32_t n = 1 + (int32_t)(text * 7 % 9);
        int64_t first, last;
        size_t bytes = make_body(text, n, body, sizeof(body));
        struct hzp_err_text err;
        tell_checkpoint(l, &checkpoint);
        int r = accept_body(l->state, body, bytes, NULL, &first, &last, &err);
        if (r == HZP_EBUSY) {
            usleep(500);
            continue;
        }
        if (r < 0)
            l->err = err;
        if (r < 0 && l->config.disk_fails)
            tell(l, (struct crash_told){.kind = CRASH_REFUSED});
        else
            must(l, "accept", r);
        if (r >= 0)
            tell(l,
                 (struct crash_told){
                     .kind = CRASH_ACCEPTED, .a = (uint64_t)first, .b = (uint64_t)last, .c = text});
        text += (uint64_t)n;
        i++;
        if (l->config.bodies)
            usleep(2000); /* versions and checkpoints come between bodies */
    }
    return !atomic_load(&l->ended);
}

/* Ends the loop once everything accepted is learned, or cannot be. */
static void wait_and_stop(struct life *l)
{
    struct hzp_sample_queue_stats stats;
    for (stats.samples = 1; stats.samples > 0 && !hzp_state_read_only(l->state); usleep(2000))
        hzp_sample_queue_read_stats(hzp_state_queue(l->state), &stats);
    hzp_trainer_finish(l->trainer);
    hzp_loop_stop(l->loop, false);
}

static void *client_main(void *arg)
{
    struct life *l = arg;
    if (!l->config.post || post(l))
        wait_and_stop(l);
    return NULL;
}

/* --- The engine ------------------------------------------------------------------------------- */

static void on_update(void *ctx, const struct hzp_update_report *report)
{
    struct life *l = ctx;
    hzp_state_update(l->state, report);
    if (report->version)
        tell(l, (struct crash_told){.kind = CRASH_SERVED,
                                    .a = report->version,
                                    .b = (uint64_t)report->optimizer_step});
}

static void open_state(struct life *l)
{
    struct hzp_state_config config = {
        .state_dir = l->config.state_dir,
        .model_dir = l->config.model_dir,
        .layout = &l->layout,
        .queue = {.samples_max = 200, .tokens_max = 4000, .passes = CRASH_PASSES, .seed = 3},
        .micro_rows = 32,
        .body_samples_max = 100,
        .checkpoint_every = 7,
        .keep = "last=2",
    };
    must(l, "config", hzp_config_read(l->config.model_dir, &l->model_config, &l->err));
    hzp_layout_make(&l->model_config, &l->layout);
    must(l, "state", hzp_state_open(&config, &l->state, &l->err));
}

static void open_engine(struct life *l)
{
    struct hzp_weights_config store = {
        .type = HZP_BF16, .slots = 2, .max_staleness = 1, .first_id = hzp_state_first_id(l->state)};
    struct hzp_trainer_config trainer = {.recipe = {.lr = 1e-3f,
                                                    .beta1 = 0.9f,
                                                    .beta2 = 0.95f,
                                                    .eps = 1e-8f,
                                                    .clip = 1,
                                                    .update_tokens = 100,
                                                    .micro_rows = 32,
                                                    .publish_every = 1,
                                                    .moment_type = HZP_F32},
                                         .queue = hzp_state_queue(l->state),
                                         .on_update = on_update,
                                         .ctx = l};
    struct hzp_version *draft;
    must(l, "device",
         hzp_device_open(&(struct hzp_device_config){.name = "cpu", .threads = 1}, &l->dev,
                         &l->err));
    must(l, "weights", hzp_weights_create(l->dev, &l->layout, &store, &l->weights));
    must(l, "model", hzp_model_create(l->dev, l->weights, 64, &l->model));
    trainer.model = l->model;
    must(l, "trainer", hzp_trainer_create(&trainer, &l->trainer, NULL));
    must(l, "draft", hzp_weights_begin(l->weights, &draft));
    must(l, "load",
         hzp_model_load(hzp_state_weights_dir(l->state), l->dev,
                        hzp_version_units(l->weights, draft), NULL, &l->err));
    draft->record.loss = NAN;
    draft->record.learned_through = -1;
    must(l, "restore", hzp_state_restore(l->state, l->trainer, draft, &l->err));
    hzp_weights_publish(l->weights, draft, 0);
    struct hzp_loop_config loop = {.model = l->model,
                                   .source = {hzp_trainer_source(l->trainer)},
                                   .sources = 1,
                                   .policy = {.train_share = 1, .train_max = 1},
                                   .idle_ns = 1000000};
    must(l, "loop", hzp_loop_create(&loop, &l->loop));
}

static void tell_start(struct life *l)
{
    struct hzp_state_stats stats;
    struct hzp_version_record newest = {0};
    hzp_state_read_stats(l->state, &stats);
    hzp_weights_list(l->weights, &newest, 1);
    tell(l, (struct crash_told){.kind = CRASH_STARTED,
                                .a = newest.id,
                                .b = (uint64_t)stats.last_sequence_number,
                                .c = (uint64_t)stats.restored,
                                .d = (uint64_t)stats.trained_again,
                                .e = stats.checkpoint_id,
                                .read_only = hzp_state_read_only(l->state)});
}

static void close_all(struct life *l)
{
    hzp_loop_destroy(l->loop);
    hzp_trainer_destroy(l->trainer);
    hzp_model_destroy(l->model);
    hzp_weights_destroy(l->weights);
    hzp_device_close(l->dev);
    hzp_state_close(l->state);
    hzp_layout_free(&l->layout);
}

void crash_live(const struct crash_life *config)
{
    static struct life life;
    struct life *l = &life;
    pthread_t client;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    hzp_log_set_level(HZP_LOG_ERROR);
    l->config = *config;
    open_state(l);
    open_engine(l);
    tell_start(l);
    if (config->look) {
        close_all(l);
        _exit(0);
    }
    if (l->config.next_text & 1) /* both ways of writing checkpoints */
        hzp_state_copy_checkpoints(l->state);
    must(l, "start", hzp_state_start(l->state, l->trainer, l->model, l->loop));
    must(l, "client", hzp_thread_start(&client, "client", client_main, l));
    int r = hzp_loop_run(l->loop);
    atomic_store(&l->ended, true);
    pthread_join(client, NULL);
    must(l, "run", r);
    hzp_state_stop(l->state, true);
    close_all(l);
    _exit(0);
}

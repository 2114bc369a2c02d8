/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/state_server.h - a learning server without HTTP: the whole engine beside the file
 * thread, on a state in the scratch directory.  Linked with --wrap of hzp_sample_log_open_later,
 * hzp_sample_log_version, hzp_state_file_write and hzp_thread_start.
 *
 * Thread: the test's.
 */
#pragma once

#include "api/learn/checkpoint.h"
#include "api/learn/state.h"
#include "base/log.h"
#include "weights/model_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/fixture/model.h"
#include "tests/train/accept.h"
#include "tests/weights/scratch.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static const char config_json[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 16,"
    " \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"vocab_size\": 50, \"max_position_embeddings\": 64,"
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
    " \"torch_dtype\": \"bfloat16\"}";

struct server {
    struct hzp_model_config config;
    struct hzp_layout layout;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_trainer *trainer;
    struct hzp_loop *loop;
    struct hzp_state *state;
};

/* Wraps the log's opening, so that a test can act between the check and the opening. */
int __real_hzp_sample_log_open_later(const char *path, const char *fingerprint,
                                     const struct hzp_err_text *why, struct hzp_sample_log **ret,
                                     struct hzp_err_text *reterr);
int __wrap_hzp_sample_log_open_later(const char *path, const char *fingerprint,
                                     const struct hzp_err_text *why, struct hzp_sample_log **ret,
                                     struct hzp_err_text *reterr);

static char log_fingerprint[256];
static bool another_comes;
static struct hzp_sample_log *anothers;

int __wrap_hzp_sample_log_open_later(const char *path, const char *fingerprint,
                                     const struct hzp_err_text *why, struct hzp_sample_log **ret,
                                     struct hzp_err_text *reterr)
{
    snprintf(log_fingerprint, sizeof(log_fingerprint), "%s", fingerprint);
    if (another_comes)
        HZP_ASSERT(hzp_sample_log_open(path, fingerprint, &anothers, NULL) == HZP_OK);
    return __real_hzp_sample_log_open_later(path, fingerprint, why, ret, reterr);
}

/* Wraps the journal, so that a test can fill the disk or make it slow. */
int __real_hzp_sample_log_version(struct hzp_sample_log *log,
                                  const struct hzp_version_record *record,
                                  struct hzp_err_text *reterr);
int __wrap_hzp_sample_log_version(struct hzp_sample_log *log,
                                  const struct hzp_version_record *record,
                                  struct hzp_err_text *reterr);

static atomic_int disk_is_full, refused_versions, journal_waits;
static _Atomic uint64_t journalled; /* newest; each must follow the one before it */

int __wrap_hzp_sample_log_version(struct hzp_sample_log *log,
                                  const struct hzp_version_record *record,
                                  struct hzp_err_text *reterr)
{
    while (atomic_load(&journal_waits))
        usleep(500);
    if (atomic_load(&disk_is_full)) {
        atomic_fetch_add(&refused_versions, 1);
        return hzp_fail(reterr, HZP_EIO, "the disk is full");
    }
    uint64_t before = atomic_exchange(&journalled, record->id);
    HZP_ASSERT(!before || record->id == before + 1);
    return __real_hzp_sample_log_version(log, record, reterr);
}

/* Wraps the writing of a copied state, so that a test can make the disk slow. */
int __real_hzp_state_file_write(const struct hzp_train_state *s, const char *dir, const char *note,
                                struct hzp_err_text *reterr);
int __wrap_hzp_state_file_write(const struct hzp_train_state *s, const char *dir, const char *note,
                                struct hzp_err_text *reterr);

static atomic_int disk_is_slow, saves_begun;

int __wrap_hzp_state_file_write(const struct hzp_train_state *s, const char *dir, const char *note,
                                struct hzp_err_text *reterr)
{
    atomic_fetch_add(&saves_begun, 1);
    while (atomic_load(&disk_is_slow))
        usleep(1000);
    return __real_hzp_state_file_write(s, dir, note, reterr);
}

/* Wraps the start of threads, so that a test can make one end before its starter goes on. */
int __real_hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg);
int __wrap_hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg);

static atomic_int start_returns_late;

int __wrap_hzp_thread_start(pthread_t *ret, const char *name, void *(*run)(void *), void *arg)
{
    int r = __real_hzp_thread_start(ret, name, run, arg);
    if (atomic_load(&start_returns_late))
        usleep(50000);
    return r;
}

/* Wraps the audit of drafts, so that a test can make one not finite: training stops then. */
static hzp_op_fn *real_audit;
static void (*at_audit)(void); /* called before it; NULL: nothing */

static int failing_audit(struct hzp_lane *lane, const void *args)
{
    const struct hzp_audit_args *a = args;
    if (at_audit)
        at_audit();
    int r = real_audit(lane, args);
    ++*a->nonfinite;
    return r;
}

/* In the parent of a killed child cmocka checks everything; in the child a failure ends the
   process. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "%s: %s %s\n", #call, hzp_err_name(must_), text.text);                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static bool behind; /* the trainer's memory is prepared, and its state read, behind */

static inline void on_update(void *ctx, const struct hzp_update_report *report)
{
    hzp_state_update(((struct server *)ctx)->state, report);
}

static inline struct hzp_state_config state_config(const struct hzp_layout *layout, int64_t every)
{
    return (struct hzp_state_config){
        .state_dir = scratch_path("state"),
        .model_dir = scratch_dir,
        .layout = layout,
        .micro_rows = 32,
        .body_samples_max = 100,
        .checkpoint_every = every,
        .keep = "last=2",
        .starved_s = 0.2,
        .options = "--served-model-name a model\n",
        .queue = {.samples_max = 1000, .tokens_max = 100000, .passes = 2, .seed = 1}};
}

static inline void open_server(struct server *s, int64_t every)
{
    struct hzp_err_text text = {{0}, {0}};
    memset(s, 0, sizeof(*s));
    atomic_store(&journalled, 0); /* ids may skip some between two lives */
    MUST(hzp_config_read(scratch_dir, &s->config, &text));
    hzp_layout_make(&s->config, &s->layout);
    struct hzp_device_config device = {.name = "ref"};
    MUST(hzp_device_open(&device, &s->dev, &text));
    struct hzp_state_config config = state_config(&s->layout, every);
    MUST(hzp_state_open(&config, &s->state, &text));
    struct hzp_weights_config weights = {
        .type = HZP_BF16, .slots = 2, .max_staleness = 1, .first_id = hzp_state_first_id(s->state)};
    MUST(hzp_weights_create(s->dev, &s->layout, &weights, &s->weights));
    MUST(hzp_model_create(s->dev, s->weights, 64, &s->model));
    struct hzp_trainer_config trainer = {.recipe = {.lr = 1e-2f,
                                                    .beta1 = 0.9f,
                                                    .beta2 = 0.95f,
                                                    .eps = 1e-8f,
                                                    .clip = 1,
                                                    .update_tokens = 40,
                                                    .micro_rows = 32,
                                                    .publish_every = 1,
                                                    .moment_type = HZP_F32},
                                         .prepare_behind = behind,
                                         .model = s->model,
                                         .queue = hzp_state_queue(s->state),
                                         .on_update = on_update,
                                         .ctx = s};
    MUST(hzp_trainer_create(&trainer, &s->trainer, NULL));
    struct hzp_version *draft;
    MUST(hzp_weights_begin(s->weights, &draft));
    MUST(hzp_model_load(hzp_state_weights_dir(s->state), s->dev,
                        hzp_version_units(s->weights, draft), NULL, &text));
    MUST(hzp_state_restore(s->state, s->trainer, draft, &text));
    hzp_weights_publish(s->weights, draft, 0);
    struct hzp_loop_config loop = {.model = s->model,
                                   .sources = 1,
                                   .idle_ns = 1000000,
                                   .source = {hzp_trainer_source(s->trainer)}};
    MUST(hzp_loop_create(&loop, &s->loop));
    hzp_state_copy_checkpoints(s->state);
    MUST(hzp_state_start(s->state, s->trainer, s->model, s->loop));
}

/* Returns what stop did. */
static inline int close_server(struct server *s, bool save)
{
    if (save) {
        hzp_trainer_finish(s->trainer);
        while (hzp_loop_turn(s->loop) > 0)
            ;
    }
    int r = hzp_state_stop(s->state, save);
    hzp_loop_destroy(s->loop);
    hzp_trainer_destroy(s->trainer);
    hzp_state_close(s->state);
    hzp_model_destroy(s->model);
    hzp_weights_destroy(s->weights);
    hzp_device_close(s->dev);
    hzp_layout_free(&s->layout);
    return r;
}

/* From now on no update succeeds: its draft is found not to be finite. */
static inline void fail_audits(struct server *s, void (*before)(void))
{
    at_audit = before;
    real_audit = s->dev->op[HZP_OP_audit];
    s->dev->op[HZP_OP_audit] = failing_audit;
}

static inline bool is_broken(const struct server *s)
{
    struct hzp_trainer_stats stats;
    hzp_trainer_read_stats(s->trainer, &stats);
    return stats.broken;
}

static inline const struct hzp_units *current_units(const struct server *s)
{
    return hzp_version_units(s->weights, hzp_weights_current(s->weights));
}

static inline int make_model(void **state)
{
    scratch_setup(state);
    hzp_log_set_level(HZP_LOG_ERROR);
    scratch_write_text(scratch_path("config.json"), config_json);
    fixture_write_dir(scratch_dir, HZP_BF16, 9, 0.1f);
    return 0;
}

static inline int64_t accept(struct server *s, int64_t number)
{
    struct hzp_err_text text = {{0}, {0}};
    char body[200];
    int64_t first = 0, last = 0;
    snprintf(body, sizeof(body), "{\"tokens\": [%d, %d, 7, %d, 9, 3]}\n{\"tokens\": [1, %d, 4]}\n",
             (int)(number % 50), (int)(number / 50 % 50), (int)(number % 31), (int)(number % 17));
    MUST(accept_body(s->state, body, strlen(body), NULL, &first, &last, &text));
    HZP_ASSERT(last == first + 1);
    return last;
}

/* Opens a state and does nothing else; returns the result. */
static inline int open_state(bool provisional, struct hzp_err_text *reterr)
{
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_model_config model;
    struct hzp_layout layout;
    struct hzp_state *s = NULL;
    MUST(hzp_config_read(scratch_dir, &model, &text));
    hzp_layout_make(&model, &layout);
    struct hzp_state_config config = state_config(&layout, 0);
    config.provisional = provisional;
    int r = hzp_state_open(&config, &s, reterr);
    hzp_state_close(s);
    hzp_layout_free(&layout);
    return r;
}

static inline bool is_there(const char *name)
{
    return access(scratch_path("%s", name), F_OK) == 0;
}

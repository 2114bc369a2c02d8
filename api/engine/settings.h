/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/settings.h - what an operator may set of an engine, and what the settings mean for a
 * model.
 *
 * Plain values, filled by api/cli/options.c from a command line (its table has each one's default
 * and range) or by a caller.  Each consumer gets the struct that it needs and no other.
 *
 * Invariant: values are in the ranges that api/cli/option_table.c states.  Strings are borrowed and
 * outlive whoever was given the struct.
 *
 * Thread: any; nobody writes to them once they have been handed over.
 */
#ifndef HZP_API_ENGINE_SETTINGS_H
#define HZP_API_ENGINE_SETTINGS_H

#include "device/device.h"
#include "nanobatch/split/policy.h"
#include "train/trainer.h"
#include "weights/config.h"

struct hzp_device_settings {
    const char *name;      /* as struct hzp_device_config; NULL: the best there is */
    const char *cpu_level; /* NULL: the best there is */
    int64_t threads;       /* 0: as many as the process may use */
};

enum hzp_dtype_setting { HZP_DTYPE_ON_DISK, HZP_DTYPE_BF16, HZP_DTYPE_F32 };

struct hzp_model_settings {
    const char *dir; /* NULL: not given */
    int64_t dtype;   /* enum hzp_dtype_setting */
    int64_t fp8;     /* 1: serving multiplies the projections in e4m3 */
    int64_t context; /* longest sequence in tokens; 0: the model's positions */
};

struct hzp_serving_settings {
    int64_t slots;                /* versions of the weights held in memory */
    int64_t kv_tokens, kv_memory; /* size of the KV cache, in tokens or bytes; 0: not given */
    int64_t page_rows;            /* tokens in a KV page */
    int64_t step_rows;            /* tokens computed in one step, at most */
    int64_t prefill_rows;         /* of these prompt tokens while others decode; 0: adaptive */
    int64_t running_max;          /* sequences in one step */
    int64_t waiting_max;          /* queued requests */
    int64_t waiting_tokens;       /* queued prompt tokens */
    int64_t edits_max;            /* logit edits in one step; 0: from the context's length */
    int64_t admission;            /* 0: predicted, 1: worst case */
    int64_t run_ahead;            /* enum hzp_run_ahead */
    int64_t check_plans;          /* 1: prove every step race-free before it runs */
    const char *plans;            /* a plan file, "auto" or "off"; NULL: "auto" */
};

/* Updates: what hzp_recipe is made of, and how work and publication are cut. */
struct hzp_training_settings {
    double lr, beta1, beta2, eps, decay, clip, lr_floor;
    int64_t schedule; /* 0: constant, 1: cosine */
    int64_t warmup_steps, total_steps;
    int64_t update_tokens, micro_rows;
    int64_t moment_type;   /* 0: F32, 1: BF16 */
    double quantum_gflop;  /* largest piece of work; 0: not cut */
    int64_t publish_every; /* updates per version */
    int64_t max_staleness; /* updates by which the version that serves may trail */
};

/* How serving and training share the device. */
struct hzp_split_settings {
    const char *goals; /* hzp_policy_parse_goals(); NULL: none */
    double itl_stretch, train_share, train_max, train_min;
    double idle_ms;      /* longest stretch of training while no request runs */
    int64_t train_units; /* cores for training alone while requests run; 0: it takes turns */
    int64_t ride;        /* rows of a chunk that rides; 0: where the plan table says so */
};

/* What a server learns from and keeps: struct hzp_state_config. */
struct hzp_learning_settings {
    const char *state_dir; /* NULL: the default directory; "none": nothing is kept */
    const char *replay;    /* a file of examples; NULL: none */
    double replay_ratio;
    int64_t passes, queue_samples, queue_tokens, checkpoint_every, keep_checkpoints, seed;
};

struct hzp_engine_settings {
    struct hzp_device_settings device;
    struct hzp_model_settings model;
    struct hzp_serving_settings serving;
    struct hzp_training_settings training;
    struct hzp_split_settings split;
    struct hzp_learning_settings learning;
    int64_t no_train; /* 1: serves only; training, learning and most of split are not read */
};

/* Opens the device.  Errors as hzp_device_open. */
int hzp_settings_device(const struct hzp_device_settings *settings, struct hzp_device **ret,
                        struct hzp_err_text *reterr);

/* The type of the weights in memory. */
enum hzp_dtype hzp_settings_dtype(const struct hzp_model_settings *settings,
                                  const struct hzp_model_config *config);

/* What dtype the moments have; pieces of training work in operations. */
enum hzp_dtype hzp_settings_moments(const struct hzp_training_settings *settings);
uint64_t hzp_settings_quantum(const struct hzp_training_settings *settings);

/* micro_rows is cut to the model's positions. */
struct hzp_recipe hzp_settings_recipe(const struct hzp_training_settings *settings,
                                      const struct hzp_model_config *config);

/* HZP_EINVAL names the setting. */
int hzp_settings_policy(const struct hzp_split_settings *settings, struct hzp_policy *ret,
                        struct hzp_err_text *reterr);

#endif

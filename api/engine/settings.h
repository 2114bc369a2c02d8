/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/settings.h - the settings of an engine, and the values that follow from them for a
 * model.
 *
 * Plain values, filled by api/cli/options.c from a command line (api/cli/options.json has the
 * default and range of each) or by a caller.  Each consumer gets only the struct that it needs.
 *
 * Invariant: values are in the ranges that api/cli/options.json states.  Strings are borrowed and
 * must outlive all users of the struct.
 *
 * Thread: any; constant once handed over.
 */
#pragma once

#include "mesh/launch/ranks.h"
#include "train/conductor/trainer.h"

enum { HZP_OPTIONS_LIST_MAX = 16 };

/* An option that may be given several times. */
struct hzp_option_list {
    const char *item[HZP_OPTIONS_LIST_MAX];
    int count;
};

struct hzp_device_settings {
    const char *name;        /* as in struct hzp_device_config; NULL: the best available */
    const char *cpu_level;   /* NULL: the best available */
    int64_t threads;         /* 0: as many as the process may use */
    int64_t same_arithmetic; /* 1: hzp_device_same_rows */
};

enum hzp_draft {
    HZP_DRAFT_OFF,
    HZP_DRAFT_NGRAM,
    HZP_DRAFT_HISTORY,
    HZP_DRAFT_FP8,
    HZP_DRAFT_DEPTH,
};
enum hzp_dtype_setting { HZP_DTYPE_ON_DISK, HZP_DTYPE_BF16, HZP_DTYPE_F32 };

struct hzp_model_settings {
    const char *dir;           /* NULL: not given */
    int64_t dtype;             /* enum hzp_dtype_setting */
    int64_t fp8;               /* 1: serving multiplies the projections in e4m3 */
    int64_t kv_fp8;            /* 1: the KV cache's keys and values are e4m3 */
    const char *chat_template; /* a file; NULL: the model's own; "none": none */
    int64_t context;           /* longest sequence in tokens; 0: the model's positions */
};

struct hzp_serving_settings {
    int64_t slots;                /* versions of the weights held in memory */
    int64_t kv_tokens, kv_memory; /* size of the KV cache, in tokens or bytes; 0: not set */
    int64_t page_rows;            /* tokens in a KV page */
    int64_t step_rows;            /* maximum tokens computed in one step; 0: hzp_settings_rows */
    int64_t prefill_rows;         /* maximum prompt tokens while others decode; 0: adaptive */
    int64_t running_max;          /* sequences in one step */
    int64_t waiting_max;          /* queued requests */
    int64_t waiting_tokens;       /* queued prompt tokens */
    double shed_depth;            /* a request that comes while many wait gets it; 1: all layers */
    int64_t admission;            /* 0: predicted, 1: worst case */
    int64_t no_prefix_cache;      /* 1: every request computes its whole prompt */
    int64_t reuse_stale;          /* versions before the serving one whose rows are reused */
    const char *prefix_dir;       /* where the prefix cache's file is made; NULL: none */
    int64_t prefix_file;          /* bytes of that file */
    int64_t prefix_host;          /* bytes of host memory for its pages; 0: none */
    int64_t draft, draft_max;     /* enum hzp_draft; tokens at most */
    int64_t rewarm;               /* tokens of prefixes computed again after a swap; 0: none */
    int64_t consistency;          /* enum hzp_consistency of requests that name none */
    double pin_seconds;           /* how long a version that is not current may be pinned */
    double weights_timeout;       /* how long requests may wait for weights at most */
    int64_t run_ahead;            /* enum hzp_run_ahead */
    int64_t check_plans;          /* 1: verify each step to be free of data races */
    const char *plans;            /* a plan file, "auto" or "off"; NULL: "auto" */
};

/* What becomes a version; auto: lessons where drafts are judged, otherwise updates. */
enum hzp_publish { HZP_PUBLISH_AUTO, HZP_PUBLISH_LESSON, HZP_PUBLISH_UPDATE };

/* Updates: the values of hzp_recipe, and how work and publication are divided. */
struct hzp_training_settings {
    double lr, beta1, beta2, eps, decay, clip, lr_floor, divide_by;
    int64_t divide;   /* enum hzp_divide */
    int64_t schedule; /* 0: constant, 1: cosine */
    int64_t warmup_steps, total_steps;
    int64_t update_tokens, micro_rows;
    int64_t optimizer;     /* enum hzp_optimizer */
    double momentum;       /* muon's */
    int64_t recompute;     /* 0: as memory demands; else enum hzp_recompute, + 1 */
    int64_t moment_type;   /* 0: F32, 1: BF16, 2: Q8 */
    int64_t moments_in;    /* 1: with the residuals in host memory beside the device's */
    double quantum_gflop;  /* maximum size of a piece of work; 0: not cut */
    int64_t publish;       /* enum hzp_publish */
    int64_t publish_every; /* updates per version, where it is not by lesson */
    int64_t max_staleness; /* updates by which the serving version may be behind */
    int64_t z1, z2, z3;    /* ranks that share optimizer state, gradients, parameters; 0: chosen */
    int64_t stages;        /* ranks that each have some of the layers; 1: all have all */
    int64_t speeds;        /* 1: stages get layers by their speeds, which the self-test measures */
    double slowness_max;   /* slowest rank that the self-test accepts (selftest.h); 0: no limit */
    int64_t ordered;       /* 1: sums in an order that does not depend on the number of ranks */
    double skip;           /* share of the layers that each micro-batch leaves out */
    int64_t swap;          /* 1: neighbours on its path may change places */
    int64_t seed;          /* of these, of the order of the examples, and of fresh weights */
};

/* How serving and training share the device. */
struct hzp_split_settings {
    const char *goals; /* hzp_policy_parse_goals(); NULL: none */
    double itl_stretch, train_share, train_max, train_min;
    double idle_ms;      /* maximum training per step while no request runs */
    int64_t train_cores; /* cores of training while requests run; 0: none; -1: chosen */
    int64_t ride;        /* rows of a riding chunk; 0: where the plan table says so */
};

/* Versions on trial: the values of hzp_trials_config. */
struct hzp_canary_settings {
    double share;   /* share of the requests; 0: versions are published at once */
    double seconds; /* how long a trial lasts at most */
    int64_t requests;
    double max_drop, max_score_drop;
};

/* What a server learns from and saves: see struct hzp_state_config. */
struct hzp_learning_settings {
    const char *state_dir; /* NULL: the default directory; "none": nothing is saved */
    const char *replay;    /* a file of examples; NULL: none */
    const char *gate;      /* a file of held-out examples (api/learn/gate_file.h); NULL: no gate */
    const char *gate_max_rise; /* its bounds; NULL: 0.02 */
    const char *keep;          /* which checkpoints stay (hzp_retention_parse) */
    double replay_ratio;
    double rehearse_ratio; /* hzp_sample_queue_config's */
    int64_t effect;    /* prompts asked beside a lesson's, to see what it changed; 0: none are */
    double max_effect; /* share of these whose answers a lesson may change; 1: not bounded */
    int64_t sdft;      /* 1: posted examples are "teach": "sdft" where they can be */
    int64_t passes, queue_samples, queue_tokens, checkpoint_every;
    int64_t receipts;           /* bytes of answers that feedback may teach from */
    int64_t rollout_bytes;      /* bytes of the answers of rollouts that are held */
    int64_t no_checkpoint_copy; /* 1: updates wait while a checkpoint is written */
};

/* Servers that average their weights with this one's: struct hzp_sites_config. */
struct hzp_mesh_settings {
    struct hzp_option_list url; /* this one's first; count 0: none */
    double part, limit;
    int64_t every, delay, quorum, join, rule, send; /* rule 1: ema; send 1: F32 */
};

struct hzp_engine_settings {
    struct hzp_device_settings device;
    struct hzp_model_settings model;
    struct hzp_serving_settings serving;
    struct hzp_training_settings training;
    struct hzp_split_settings split;
    struct hzp_learning_settings learning;
    struct hzp_canary_settings canary;
    struct hzp_mesh_settings mesh;
    struct hzp_ranks_settings ranks;
    int64_t no_train; /* 1: serve only; training, learning and most of split are ignored */
};

/* Opens the device; ordinal: which of several, unless the settings say (hzp_rank_device).  Errors:
 * those of hzp_device_open. */
int hzp_settings_device(const struct hzp_device_settings *settings, int ordinal,
                        struct hzp_device **ret, struct hzp_err_text *reterr);

/* The data type of the weights in memory. */
enum hzp_dtype hzp_settings_dtype(const struct hzp_model_settings *settings,
                                  const struct hzp_model_config *config);

/* The most rows of a step: those asked for, or without any 256 and at least twice running_max; at
 * least running_max.  So while all places run, prompts still have as many rows as they do. */
int32_t hzp_settings_rows(const struct hzp_serving_settings *settings);

/* The data type of the moments; the size of a piece of training work in operations. */
enum hzp_dtype hzp_settings_moments(const struct hzp_training_settings *settings);
uint64_t hzp_settings_quantum(const struct hzp_training_settings *settings);

/* The recipe; micro_rows is limited to the model's positions. */
struct hzp_recipe hzp_settings_recipe(const struct hzp_training_settings *settings,
                                      const struct hzp_model_config *config);

/* Whether what a lesson would change is measured, and bounded, before it is published. */
bool hzp_settings_bounds_effect(const struct hzp_engine_settings *settings);
/* Whether a version is published for each group of lessons (train/table/sample_queue.h). */
bool hzp_settings_by_lesson(const struct hzp_engine_settings *settings);

/* HZP_EINVAL names the setting. */
int hzp_settings_policy(const struct hzp_split_settings *settings, struct hzp_policy *ret,
                        struct hzp_err_text *reterr);

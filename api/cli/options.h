/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/options.h - every setting of every command, in one table: name, default, range, help.
 *
 * The table in options.c is the only place where a setting is defined: the parser, the help texts
 * and the defaults come from it.  `serve` first reads the model's own settings,
 * MODEL/serve.options, if there are any (a setting a line, as on the command line; `#` begins a
 * comment; a file named in it is looked for beside it first), then the environment where the table
 * says so; the command line wins.
 *
 * Invariant: after hzp_options_parse() every field is in the range its help text names.
 * Thread: main, once; read-only from then on.
 */
#ifndef HZP_API_CLI_OPTIONS_H
#define HZP_API_CLI_OPTIONS_H

#include "base/err.h"

#include <stdio.h>

#define HZP_VERSION_TEXT "0.1.0"

enum hzp_command {
    HZP_COMMAND_SERVE = 1,
    HZP_COMMAND_COMPLETE = 2,
    HZP_COMMAND_EVAL = 4,
    HZP_COMMAND_TRAIN = 8,
    HZP_COMMAND_BENCH = 16,
    HZP_COMMAND_DEVICES = 32,
    HZP_COMMAND_PLAN = 64,
    HZP_COMMAND_SEARCH = 128,
};

enum { HZP_OPTIONS_WORDS_MAX = 8, HZP_OPTIONS_LIST_MAX = 16 };

/* A setting that may be given several times. */
struct hzp_option_list {
    const char *item[HZP_OPTIONS_LIST_MAX];
    int count;
};

/* Strings are borrowed from argv, the environment or the table; NULL: not given.  Flags, and the
 * indices of choices, are int64_t like all integers.  The comment names the choices in order. */
struct hzp_options {
    enum hzp_command command;
    const char *word[HZP_OPTIONS_WORDS_MAX]; /* what is not an option, in order */
    int words;
    bool help, version; /* answered by main() */

    /* model and device */
    const char *model; /* the first word where the command takes a model */
    const char *device, *cpu_level;
    const char *log_level;  /* hzp_log_set takes it */
    int64_t threads, dtype; /* auto, bf16, f32 */
    int64_t quantization;   /* none, fp8 */
    int64_t context;        /* 0: the model's */

    /* the engine */
    int64_t slots, kv_tokens, kv_memory, page_rows, step_rows, prefill_rows, running_max,
        waiting_max, waiting_tokens, edits_max, admission /* predicted, worst-case */;
    int64_t check_plans, run_ahead /* enum hzp_run_ahead */;

    /* http */
    const char *host, *served_name, *api_key;
    const char *try_prompt, *try_examples; /* what the welcome proposes */
    int64_t port, body_max, connections_max, idle_seconds, drain_seconds;

    /* learning, in a server and offline */
    int64_t no_train, passes, update_tokens, micro_rows, publish_every, warmup_steps, total_steps,
        schedule /* constant, cosine */, moment_type /* f32, bf16 */, max_staleness, seed,
        queue_samples, queue_tokens, checkpoint_every, keep_checkpoints, train_units, ride;
    double lr, beta1, beta2, eps, decay, clip, lr_floor, itl_stretch, train_share, train_max,
        train_min, idle_ms, replay_ratio, quantum_gflop;
    const char *state_dir, *replay;
    const char *slo; /* goals of latency: nanobatch/split/policy.h */

    /* offline training and evaluation */
    const char *data, *out, *eval_data, *from_scratch, *log_file, *tokenizer_dir;
    int64_t epochs, eval_every, resume, init_seed;
    double init_std;

    /* one completion on the command line */
    double temperature, top_p, min_p, repetition, presence, frequency;
    int64_t top_k, max_tokens, min_tokens, sample_seed, ignore_eos, echo, logprobs, choices,
        raw /* no special tokens added */;
    struct hzp_option_list stop;

    /* plans */
    int64_t plan_decode, plan_prefill, plan_train, plan_train_items, plan_depth, plan_nano,
        plan_order /* chains, layers, skewed */, plan_print, plan_repeat, plan_ride,
        plan_train_from;
    const char *plan_split, *plan_lanes, *plan_units, *plan_trace;

    /* the search for plans */
    int64_t search_show, search_fresh, search_validate, search_validate_seed, search_tries;
    double search_itl_ms, search_seconds;
    const char *search_file, *plans;

    /* benchmarks */
    int64_t json, quick;
    const char *what;

    /* a load on a running server: bench replay */
    const char *load_url, *load_trace, *load_slo, *load_plot, *load_extra;
    int64_t load_limit, load_requests, load_input, load_output, load_concurrency, load_warmup,
        load_seed, load_vocab;
    double load_scale, load_rate, load_silence;

    /* training beside requests: bench coserve */
    double coserve_load, coserve_seconds;
    int64_t coserve_rounds;
    double load_steady;
};

/* Reads argv[1] as the command and the rest as its words and settings.  HZP_EINVAL: the text names
 * the option and says what it takes. */
int hzp_options_parse(int argc, char **argv, struct hzp_options *ret, struct hzp_err_text *reterr);

/* The defaults of a command: what tests and other commands start from. */
void hzp_options_defaults(enum hzp_command command, struct hzp_options *ret);

/* `hzpserve --help`, and `hzpserve COMMAND --help`. */
void hzp_options_help(FILE *out);
void hzp_options_command_help(FILE *out, enum hzp_command command);

/* Sizes like 512M, 2G, 1.5G, 4096: bytes.  -1: it is none. */
int64_t hzp_size_parse(const char *text);

#endif

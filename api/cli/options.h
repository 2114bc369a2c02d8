/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/options.h - parses the command line, words and options, into the settings of the modules.
 *
 * Every option is defined in options.json.  `serve` first reads the model's own settings from
 * MODEL/serve.options, if it exists (one option per line, as on the command line; `#` begins a
 * comment; file names that are relative or not there are looked up in MODEL), then the environment
 * variables of the table; the command line takes precedence over both.
 *
 * Invariant: after hzp_options_parse() every field is in the range that its help text states;
 * fields of options that the command does not have contain their defaults.
 *
 * Thread: main, once; read-only from then on.
 */
#pragma once

#include "api/engine/settings.h"
#include "api/http/wire/settings.h"
#include "api/learn/forms.h"

/* ---- bench_settings.c: the settings of the benchmarks and of the load on a running server.
 *
 * Plain values; api/cli/options.json has the option, default and range of each.
 *
 * Thread: any; constant while a benchmark runs. */

/* `bench replay`; other benchmarks also read requests, input, output, concurrency, temperature and
 * top_p. */
struct hzp_load_settings {
    const char *url, *api_key, *model_name;
    const char *trace;              /* a file of recorded requests; NULL: equal requests */
    const char *goals;              /* goals of goodput (hzp_load_goals_parse); NULL: none */
    const char *record, *extra;     /* a file of lines; JSON fields added to each request */
    double scale, rate, silence;    /* speed-up; requests per second, 0: the trace's; seconds */
    int64_t limit, requests;        /* requests of the trace, 0: all; number without a trace */
    int64_t shrink;                 /* the trace's lengths are divided by it */
    int64_t input, output, context; /* tokens; 0: by benchmark; context 0: the server's */
    int64_t prefix;                 /* without a trace: first tokens that all prompts share */
    int64_t concurrency, warmup, seed;
    double temperature, top_p; /* for the requests' draws; 0: the likeliest tokens */
    int64_t json;
};

/* `bench coserve`. */
struct hzp_coserve_settings {
    double load;    /* arrival rate as a fraction of the capacity */
    double seconds; /* each phase's */
    int64_t rounds;
};

struct hzp_bench_settings {
    const char *what; /* name of the benchmark; NULL: not given */
    int64_t json, quick;
    int64_t consistency;   /* `bench swap`: enum hzp_consistency, or HZP_PINNED + 1: each in turn */
    double steady_seconds; /* `bench offline`: the measured window; 0: all of --requests */
    struct hzp_load_settings load;
    struct hzp_coserve_settings coserve;
};

/* ---- all commands ---- */

enum hzp_command {
    HZP_COMMAND_SERVE = 1,
    HZP_COMMAND_COMPLETE = 2,
    HZP_COMMAND_EVAL = 4,
    HZP_COMMAND_TRAIN = 8,
    HZP_COMMAND_BENCH = 16,
    HZP_COMMAND_DEVICES = 32,
    HZP_COMMAND_PLAN = 64,
    HZP_COMMAND_SEARCH = 128,
    HZP_COMMAND_CHAT = 256,
    HZP_COMMAND_STATE = 512,
    HZP_COMMAND_TIMELINE = 1024,
    HZP_COMMAND_WEIGHTS = 2048,
    HZP_COMMAND_PULL = 4096,
    HZP_COMMAND_PUSH = 8192,
    HZP_COMMAND_STATUS = 16384,
    HZP_COMMAND_TOP = 32768,
    HZP_COMMAND_LESSONS = 65536,
    HZP_COMMAND_UNDO = 131072,
    HZP_COMMAND_ROLLOUT = 262144,
};

enum { HZP_OPTIONS_WORDS_MAX = 8 };

/* The settings of single commands.  Strings are borrowed from argv, the environment or the table;
 * NULL: not given.  Flags, and the indices of choices, are int64_t like all integers. */

struct hzp_serve_settings {
    const char *try_prompt, *try_examples; /* shown in the example commands printed at start */
    int64_t drain_seconds;
};

struct hzp_train_settings {
    struct hzp_example_fields fields; /* eval has these and the data, too */
    const char *data, *out, *eval_data, *from_scratch, *tokenizer_dir;
    int64_t epochs, eval_every, patience, resume;
    int64_t algo;     /* 0: from examples; 1 +: enum hzp_rollout_algo */
    int64_t too_long; /* 1 +: enum hzp_too_long; eval has it, too */
};

struct hzp_complete_settings {
    double temperature, top_p, min_p, repetition, presence, frequency;
    int64_t top_k, max_tokens, min_tokens, seed, choices;
    int64_t ignore_eos, echo, raw;
    struct hzp_option_list stop;
};

/* The server that bench, chat, rollout, timeline, weights, pull and push talk to. */
struct hzp_client_settings {
    const char *url; /* for commands that take it as an option */
    const char *api_key;
};

struct hzp_rollout_settings { /* and fields and the server as train and client have them */
    const char *data, *extra; /* extra: JSON */
    int64_t n, max_tokens, updates, seed;
};

struct hzp_chat_settings {
    const char *system;
    double temperature; /* -1: the model's */
    int64_t max_tokens; /* 0: the server's default */
};

struct hzp_timeline_settings { /* status and top have the seconds, too */
    const char *out;
    double seconds;
};

struct hzp_weights_options { /* push has lessons, too */
    int64_t lessons;         /* 1: replay */
    int64_t optimizer;       /* 1: reset */
};

struct hzp_plan_settings {
    int64_t decode, prefill, train, depth, ride; /* rows of the step */
    const char *shape, *trace;
    int64_t print, repeat;
};

struct hzp_search_settings {
    const char *file;
    int64_t show, fresh, tries;
    double itl_ms, seconds, others_max;
};

struct hzp_options {
    enum hzp_command command;
    const char *word[HZP_OPTIONS_WORDS_MAX]; /* arguments that are not options, in order */
    int words;
    bool help, help_all, version; /* handled by main() */
    const char *topic;            /* the word in `hzpserve help TOPIC`; NULL: none */
    const char *log_level;        /* see hzp_log_set */
    int64_t log_format;           /* enum hzp_log_format */
    char **argv;                  /* as main() got it */
    const char *commit;           /* the build's */
    int64_t json;                 /* print output as JSON */

    /* One struct for each module; model.dir is the argument that names the model. */
    struct hzp_engine_settings engine;
    struct hzp_http_settings http;
    struct hzp_bench_settings bench;
    struct hzp_serve_settings serve;
    struct hzp_train_settings train;
    struct hzp_complete_settings complete;
    struct hzp_chat_settings chat;
    struct hzp_rollout_settings rollout;
    struct hzp_timeline_settings timeline;
    struct hzp_weights_options weights;
    struct hzp_client_settings client;
    struct hzp_plan_settings plan;
    struct hzp_search_settings search;
};

/* Reads argv[1] as the command and the rest as its arguments and options.  HZP_EINVAL: the text
 * names the option and the values it accepts. */
int hzp_options_parse(int argc, char **argv, struct hzp_options *ret, struct hzp_err_text *reterr);

/* The defaults of a command's options: a starting point for tests and other programs. */
void hzp_options_defaults(enum hzp_command command, struct hzp_options *ret);

/* What a copy of the model at `dir`, such as a checkpoint, needs as its serve.options to be served
 * in the same way from anywhere: its settings with absolute file names, and --served-model-name
 * with `name` (NULL: the one in the settings, or the directory's).  The caller frees it. */
char *hzp_options_of_copy(const char *dir, const char *name);

/* Prints what options->help asks for: the commands, a command's help, or that of a topic. */
void hzp_options_help(FILE *out, const struct hzp_options *options);

/* Whether the word of `hzpserve plan` names a file of nodes and links; NULL does not. */
bool hzp_is_paths_file(const char *word);

/* Whether `hzpserve help NAME` knows the topic; HZP_EINVAL with the nearest name. */
bool hzp_options_is_topic(const char *name);
int hzp_options_no_topic(const char *name, struct hzp_err_text *reterr);
/* HZP_OK if there is a benchmark of that name; else HZP_EINVAL with the nearest name. */
int hzp_options_no_bench(const char *name, struct hzp_err_text *reterr);

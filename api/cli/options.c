/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/options.h"

#include "base/arena.h"
#include "base/decimal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind {
    TEXT,
    FILE_NAME, /* text too */
    INTEGER,
    NUMBER,
    SIZE,   /* bytes, with K, M or G */
    FLAG,   /* takes no value */
    CHOICE, /* one of `choices` */
    LIST,   /* text, may be given several times */
};

struct setting {
    const char *name; /* NULL: a heading of the help text, in `help` */
    enum kind kind;
    size_t field;
    const char *value;   /* the default, as one would type it; NULL: not given */
    double low, high;    /* of numbers */
    const char *choices; /* "a|b|c" */
    const char *env;
    const char *meta; /* what the help calls the value */
    unsigned commands;
    const char *help;
};

#define SERVE    HZP_COMMAND_SERVE
#define COMPLETE HZP_COMMAND_COMPLETE
#define EVAL     HZP_COMMAND_EVAL
#define TRAIN    HZP_COMMAND_TRAIN
#define BENCH    HZP_COMMAND_BENCH
#define DEVICES  HZP_COMMAND_DEVICES
#define PLAN     HZP_COMMAND_PLAN
#define SEARCH   HZP_COMMAND_SEARCH
#define ENGINE   (SERVE | COMPLETE | BENCH)
#define LEARN    (SERVE | TRAIN | BENCH)
#define ALL      (SERVE | COMPLETE | EVAL | TRAIN | BENCH | DEVICES | PLAN | SEARCH)

#define AT(name) offsetof(struct hzp_options, name)
#define HEADING(text, who)                                                                         \
    {                                                                                              \
        .help = text, .commands = (who)                                                            \
    }
#define TEXT_OPTION(flag, at, dflt, meta_, who, text)                                              \
    {                                                                                              \
        .name = flag, .kind = TEXT, .field = AT(at), .value = dflt, .meta = meta_,                 \
        .commands = (who), .help = text                                                            \
    }
#define FILE_OPTION(flag, at, who, text)                                                           \
    {                                                                                              \
        .name = flag, .kind = FILE_NAME, .field = AT(at), .meta = "FILE", .commands = (who),       \
        .help = text                                                                               \
    }
#define INT_OPTION(flag, at, dflt, low_, high_, who, text)                                         \
    {                                                                                              \
        .name = flag, .kind = INTEGER, .field = AT(at), .value = dflt, .low = low_, .high = high_, \
        .meta = "N", .commands = (who), .help = text                                               \
    }
#define NUM_OPTION(flag, at, dflt, low_, high_, who, text)                                         \
    {                                                                                              \
        .name = flag, .kind = NUMBER, .field = AT(at), .value = dflt, .low = low_, .high = high_,  \
        .meta = "X", .commands = (who), .help = text                                               \
    }
#define SIZE_OPTION(flag, at, dflt, low_, high_, who, text)                                        \
    {                                                                                              \
        .name = flag, .kind = SIZE, .field = AT(at), .value = dflt, .low = low_, .high = high_,    \
        .meta = "SIZE", .commands = (who), .help = text                                            \
    }
#define FLAG_OPTION(flag, at, who, text)                                                           \
    {                                                                                              \
        .name = flag, .kind = FLAG, .field = AT(at), .value = "0", .commands = (who), .help = text \
    }
#define CHOICE_OPTION(flag, at, dflt, list, who, text)                                             \
    {                                                                                              \
        .name = flag, .kind = CHOICE, .field = AT(at), .value = dflt, .choices = list,             \
        .commands = (who), .help = text                                                            \
    }

#define BIG 1e15

static const struct setting table[] = {
    HEADING("Model and device", ALL),
    TEXT_OPTION("--device", device, NULL, "NAME", ALL,
                "cpu, cuda, cuda:1 or ref; not given: the best there is"),
    INT_OPTION("--threads", threads, "0", 0, 1024, ALL, "CPU threads; 0: as many as allowed"),
    TEXT_OPTION("--cpu-level", cpu_level, NULL, "NAME", ALL,
                "highest instruction set: base, avx2, avx512 or avx512_bf16; not given: the best"),
    CHOICE_OPTION("--dtype", dtype, "auto", "auto|bf16|f32", ALL & ~DEVICES,
                  "type of weights in memory; auto: the one on disk"),
    CHOICE_OPTION(
        "--quantization", quantization, "none", "none|fp8", ENGINE | EVAL | PLAN | SEARCH,
        "fp8: serving multiplies the layers' projections in e4m3, a scale for each row of "
        "weights and each token; training goes on in --dtype"),
    INT_OPTION("--context", context, "0", 0, 1 << 24, ALL & ~(DEVICES | PLAN | SEARCH),
               "longest sequence accepted, in tokens; 0: the model's"),
    {.name = "--log-level",
     .kind = TEXT,
     .field = AT(log_level),
     .value = "info",
     .env = "HZP_LOG",
     .meta = "LEVELS",
     .commands = ALL,
     .help = "what is logged to standard error: error, warn, info or debug; single subsystems may "
             "differ: info,serve=debug,http=error"},

    HEADING("HTTP", SERVE),
    TEXT_OPTION("--host", host, "127.0.0.1", "ADDRESS", SERVE, "address to listen on"),
    INT_OPTION("--port", port, "8000", 0, 65535, SERVE, "port to listen on; 0: any free one"),
    TEXT_OPTION("--served-model-name", served_name, NULL, "NAME", SERVE | BENCH,
                "the model's name in requests and answers; not given: its directory's"),
    {.name = "--api-key",
     .kind = TEXT,
     .field = AT(api_key),
     .env = "HZP_API_KEY",
     .meta = "KEY",
     .commands = SERVE | BENCH,
     .help = "required as a bearer token by every route under /v1"},
    SIZE_OPTION("--max-body", body_max, "16M", 1024, 1 << 30, SERVE, "longest body of a request"),
    INT_OPTION("--max-connections", connections_max, "512", 1, 16384, SERVE,
               "connections at a time"),
    INT_OPTION("--idle-timeout", idle_seconds, "75", 1, 86400, SERVE,
               "seconds that a client may be silent within a request or between two"),
    INT_OPTION("--drain-timeout", drain_seconds, "30", 0, 86400, SERVE,
               "seconds that requests in flight have to finish in after SIGTERM"),

    TEXT_OPTION("--try-prompt", try_prompt, "Once upon a time", "TEXT", SERVE,
                "what the lines printed at start ask"),
    FILE_OPTION("--try-examples", try_examples, SERVE, "what they teach, a file of examples"),

    HEADING("Serving", ENGINE | SEARCH),
    INT_OPTION("--max-running", running_max, "64", 1, 4096, ENGINE | SEARCH,
               "sequences in one step"),
    INT_OPTION("--max-waiting", waiting_max, "256", 1, 65536, ENGINE,
               "requests that wait; beyond it: 429"),
    INT_OPTION("--max-waiting-tokens", waiting_tokens, "1048576", 1, BIG, ENGINE,
               "the same in tokens of their prompts"),
    INT_OPTION("--step-rows", step_rows, "256", 1, 65536, ENGINE | SEARCH,
               "most tokens computed in one step; --max-running if that is more"),
    INT_OPTION("--prefill-rows", prefill_rows, "0", 0, 65536, ENGINE,
               "of these, most tokens of prompts while others decode; 0: as load and measured step "
               "times say"),
    CHOICE_OPTION(
        "--admission", admission, "predicted", "predicted|worst-case", ENGINE,
        "when a request may begin: KV pages suffice by what lengths were learned, or even "
        "if all use their max_tokens"),
    INT_OPTION("--kv-tokens", kv_tokens, "0", 0, 1e9, ENGINE,
               "tokens that the KV cache holds; 0: as --kv-memory says"),
    SIZE_OPTION(
        "--kv-memory", kv_memory, "0", 0, BIG, ENGINE,
        "memory of the KV cache; 0: what the running sequences can need, at most a quarter of "
        "the machine's and what is left of it"),
    INT_OPTION("--page-rows", page_rows, "16", 1, 1024, ENGINE | PLAN | SEARCH,
               "tokens in one KV page"),
    INT_OPTION("--max-edits", edits_max, "0", 0, 1 << 24, ENGINE,
               "logit edits (biases, penalties) in one step; 0: four sequences' worth"),
    INT_OPTION("--slots", slots, "2", 2, 16, ENGINE, "versions of the weights held in memory"),
    CHOICE_OPTION(
        "--run-ahead", run_ahead, "auto", "auto|0|1", ENGINE,
        "1: a step is formed while the one before it runs, where steps run on lanes of their "
        "own (a GPU; on CPUs --train-units and plans of several lanes); auto: on a GPU"),
    TEXT_OPTION(
        "--plans", plans, "auto", "FILE", ENGINE,
        "how steps are cut and spread over lanes: a file of hzpserve search; auto: the one it "
        "keeps for this device, model and build, if there is one; off: sequentially"),
    FLAG_OPTION("--check-plans", check_plans, ENGINE,
                "prove every step free of races before it runs"),

    HEADING("Learning", LEARN | SEARCH),
    FLAG_OPTION("--no-train", no_train, SERVE | BENCH | SEARCH,
                "serve only: no memory for training"),
    NUM_OPTION("--lr", lr, "1e-4", 0, 10, LEARN, "learning rate"),
    NUM_OPTION("--beta1", beta1, "0.9", 0, 0.99999, LEARN, "AdamW: decay of the first moment"),
    NUM_OPTION("--beta2", beta2, "0.95", 0, 0.9999999, LEARN, "AdamW: decay of the second moment"),
    NUM_OPTION("--eps", eps, "1e-8", 0, 1, LEARN, "AdamW: added to the denominator"),
    NUM_OPTION("--weight-decay", decay, "0", 0, 10, LEARN, "AdamW: decoupled decay of matrices"),
    NUM_OPTION("--clip", clip, "1", 0, BIG, LEARN, "largest gradient norm; 0: no limit"),
    CHOICE_OPTION("--schedule", schedule, "constant", "constant|cosine", LEARN,
                  "learning rate after the warm-up"),
    INT_OPTION("--warmup-steps", warmup_steps, "0", 0, BIG, LEARN, "updates of linear warm-up"),
    INT_OPTION(
        "--total-steps", total_steps, "0", 0, BIG, LEARN,
        "updates: where the cosine ends; offline, where training ends (0: as --epochs says)"),
    NUM_OPTION("--lr-floor", lr_floor, "0.1", 0, 1, LEARN, "the cosine's end, as a part of --lr"),
    INT_OPTION("--update-tokens", update_tokens, "2048", 1, 1 << 24, LEARN,
               "tokens learned from in one update"),
    INT_OPTION("--micro-rows", micro_rows, "512", 2, 1 << 20, LEARN | SEARCH,
               "tokens computed together; also the longest example"),
    CHOICE_OPTION("--moments", moment_type, "f32", "f32|bf16", LEARN | SEARCH,
                  "type of AdamW's moments"),
    INT_OPTION("--passes", passes, "4", 1, 1e6, SERVE | BENCH, "how often each example is learned"),
    INT_OPTION("--publish-every", publish_every, "1", 1, 1e6, SERVE | BENCH, "updates per version"),
    INT_OPTION("--max-staleness", max_staleness, "1", 0, 1e6, SERVE | BENCH,
               "updates by which the serving version may trail"),
    TEXT_OPTION(
        "--slo", slo, NULL, "GOALS", SERVE,
        "ttft=TIME,itl=TIME (either may be absent): time to the first token and between two, "
        "for 99 of 100; training then takes what they leave while requests run"),
    NUM_OPTION(
        "--itl-stretch", itl_stretch, "1.2", 0, 100, SERVE | BENCH,
        "without a goal for itl: by what factor training may lengthen what 99 of 100 gaps stay "
        "within, over what that would be without training; 0: by any"),
    NUM_OPTION("--train-share", train_share, "0.5", 0, 100, SERVE | BENCH | SEARCH,
               "training's time over serving's while requests run, without a goal for itl"),
    NUM_OPTION("--train-max", train_max, "1", 0, 1, SERVE | BENCH,
               "the most of the device's time that training takes while requests run"),
    NUM_OPTION("--train-min", train_min, "0", 0, 1, SERVE | BENCH,
               "the least of it, whatever becomes of the goals"),
    INT_OPTION(
        "--train-units", train_units, "0", 0, 1023, SERVE | BENCH,
        "cores that training has to itself while requests run, beside them; 0: it takes turns "
        "with them on all cores"),
    INT_OPTION(
        "--ride", ride, "0", 0, 65536, SERVE | BENCH,
        "training's rows ride in the matrix products of requests, as far as they go forward: in "
        "chunks of about so many tokens; 0: where the plans say so"),
    NUM_OPTION("--train-stretch", idle_ms, "20", 0.1, 10000, SERVE | BENCH,
               "milliseconds of training at a stretch while no request runs"),
    NUM_OPTION("--train-quantum", quantum_gflop, "1", 0, 1e6, LEARN | PLAN | SEARCH,
               "largest piece of training work, in GFLOP; 0: never cut"),
    FILE_OPTION("--replay", replay, SERVE | BENCH,
                "JSONL examples mixed in, so that what is known is not forgotten"),
    NUM_OPTION("--replay-ratio", replay_ratio, "1", 0, 100, SERVE | BENCH,
               "tokens of --replay per token of new examples"),
    INT_OPTION("--queue-samples", queue_samples, "65536", 1, BIG, SERVE | BENCH,
               "examples waiting to be learned; beyond it: 429"),
    INT_OPTION("--queue-tokens", queue_tokens, "16777216", 1, BIG, SERVE | BENCH,
               "the same in tokens"),
    TEXT_OPTION("--state", state_dir, NULL, "DIR", SERVE | BENCH,
                "where accepted examples and checkpoints are kept; none: nowhere; not given: "
                "hzpserve/NAME-HASH of the model under $XDG_DATA_HOME or ~/.local/share"),
    INT_OPTION("--checkpoint-every", checkpoint_every, "100", 0, BIG, SERVE | TRAIN,
               "updates between checkpoints; 0: only at the end"),
    INT_OPTION("--keep-checkpoints", keep_checkpoints, "2", 1, 1e6, SERVE | TRAIN,
               "newest checkpoints kept"),
    INT_OPTION("--train-seed", seed, "1", 0, BIG, LEARN, "order of the examples"),

    HEADING("Data", EVAL | TRAIN),
    TEXT_OPTION("--data", data, NULL, "FILE", EVAL | TRAIN,
                "examples, one in JSON a line; named .txt: plain text"),
    TEXT_OPTION("--out", out, NULL, "DIR", TRAIN, "where the trained model goes"),
    TEXT_OPTION("--eval", eval_data, NULL, "FILE", TRAIN, "examples to measure the loss on"),
    INT_OPTION("--eval-every", eval_every, "0", 0, BIG, TRAIN, "updates between; 0: at the end"),
    INT_OPTION("--epochs", epochs, "1", 1, 1e9, TRAIN,
               "how often each example is learned; times examples at most 300 million"),
    FLAG_OPTION("--resume", resume, TRAIN, "go on from the newest checkpoint in --out"),
    TEXT_OPTION("--from-scratch", from_scratch, NULL, "CONFIG", TRAIN,
                "begin with fresh weights of this config.json"),
    TEXT_OPTION("--tokenizer", tokenizer_dir, NULL, "DIR", TRAIN,
                "directory of tokenizer.json, with --from-scratch"),
    INT_OPTION("--init-seed", init_seed, "1", 0, BIG, TRAIN, "of fresh weights"),
    NUM_OPTION("--init-std", init_std, "0.02", 0, 10, TRAIN, "of fresh weights"),
    TEXT_OPTION("--log-file", log_file, NULL, "FILE", TRAIN,
                "JSONL, one line an update; not given: train.jsonl in --out"),

    HEADING("Sampling", COMPLETE),
    INT_OPTION("--max-tokens", max_tokens, "128", 0, 1 << 24, COMPLETE, "most tokens generated"),
    INT_OPTION("--min-tokens", min_tokens, "0", 0, 1 << 24, COMPLETE, "fewest tokens generated"),
    NUM_OPTION("--temperature", temperature, "1", 0, 100, COMPLETE, "0: always the likeliest"),
    NUM_OPTION("--top-p", top_p, "1", 0, 1, COMPLETE, "only the likeliest, adding up to this"),
    INT_OPTION("--top-k", top_k, "0", 0, 1 << 30, COMPLETE,
               "only so many of the likeliest; 0: all"),
    NUM_OPTION("--min-p", min_p, "0", 0, 1, COMPLETE,
               "only those this likely next to the likeliest"),
    NUM_OPTION("--repetition-penalty", repetition, "1", 0.01, 100, COMPLETE, "1: none"),
    NUM_OPTION("--presence-penalty", presence, "0", -2, 2, COMPLETE, "0: none"),
    NUM_OPTION("--frequency-penalty", frequency, "0", -2, 2, COMPLETE, "0: none"),
    INT_OPTION("--seed", sample_seed, "-1", -1, BIG, COMPLETE, "-1: another one each time"),
    INT_OPTION("--n", choices, "1", 1, 128, COMPLETE, "how many answers"),
    {.name = "--stop",
     .kind = LIST,
     .field = AT(stop),
     .meta = "TEXT",
     .commands = COMPLETE,
     .help = "end here, without it; may be given several times"},
    FLAG_OPTION("--ignore-eos", ignore_eos, COMPLETE, "go on after an end of text"),
    FLAG_OPTION("--echo", echo, COMPLETE, "print the prompt first"),
    FLAG_OPTION("--raw", raw, COMPLETE, "add no special tokens to the prompt"),

    HEADING("The step", PLAN),
    INT_OPTION("--decode", plan_decode, "0", 0, 4096, PLAN, "sequences that decode one token"),
    INT_OPTION("--depth", plan_depth, "0", 0, 1 << 20, PLAN,
               "position they stand at; 0: 512, or as far as the model goes"),
    INT_OPTION("--prefill", plan_prefill, "0", 0, 65536, PLAN, "tokens of one prompt"),
    INT_OPTION("--train", plan_train, "0", 0, 65536, PLAN, "tokens of one training micro-batch"),
    INT_OPTION(
        "--ride", plan_ride, "0", 0, 65536, PLAN,
        "training rides in serving's matrix products, in chunks of so many tokens; 0: it does not"),
    INT_OPTION("--train-from", plan_train_from, "0", 0, 1 << 24, PLAN,
               "the first of its operations that runs along"),
    INT_OPTION("--train-items", plan_train_items, "0", 0, 1 << 24, PLAN,
               "only so many of its first ops; 0: all"),

    HEADING("Its shape", PLAN),
    INT_OPTION("--nano", plan_nano, "1", 1, 8, PLAN, "nano-batches, of equal size"),
    TEXT_OPTION("--split", plan_split, NULL, "A,B,...", PLAN,
                "their sizes instead, in any unit: 3,1 is three quarters and one"),
    CHOICE_OPTION("--order", plan_order, "strands", "strands|layers|skewed", PLAN,
                  "one after another, a layer in turn, or turns that end behind attention"),
    TEXT_OPTION("--lanes", plan_lanes, NULL, "LIST", PLAN,
                "overlap (attention on memory), apart (nano-batch i on lane i), or KIND=LANE, "
                "N:KIND=LANE, train=LANE; kinds product, decode, prefill, rows; lanes compute, "
                "memory, network, copy, train"),
    TEXT_OPTION("--units", plan_units, NULL, "LIST", PLAN,
                "LANE=N: cores of a lane; not given: equal parts"),

    HEADING("What to do with it", PLAN),
    FLAG_OPTION("--print", plan_print, PLAN, "one line an op"),
    TEXT_OPTION("--trace", plan_trace, NULL, "FILE", PLAN,
                "run it and write the run as a Chrome trace, one track a lane"),
    INT_OPTION("--repeat", plan_repeat, "0", 0, 10000, PLAN,
               "run it so often, in turns with the sequential plan, and compare"),

    HEADING("The search", SEARCH),
    FLAG_OPTION("--show", search_show, SEARCH,
                "print what was measured and found, measure nothing"),
    FLAG_OPTION("--fresh", search_fresh, SEARCH, "forget what was measured before"),
    TEXT_OPTION("--file", search_file, NULL, "FILE", SEARCH,
                "where it is kept; not given: in the user's cache, by device, model and build"),
    NUM_OPTION("--itl", search_itl_ms, "0", 0, 1e6, SEARCH,
               "milliseconds that a step which trains may take; 0: as --train-share says"),
    NUM_OPTION(
        "--seconds", search_seconds, "240", 0, 1e6, SEARCH,
        "what measuring leaves of these, a quarter at least, goes to running shapes that win on "
        "paper, the most promising first; 0: all are run"),
    INT_OPTION("--tries", search_tries, "60", 0, 100000, SEARCH,
               "small changes tried on each of the best shapes"),
    INT_OPTION("--validate", search_validate, "0", 0, 100000, SEARCH,
               "run so many random plans and compare with what was predicted"),
    INT_OPTION("--validate-seed", search_validate_seed, "1", 0, BIG, SEARCH, "which plans"),

    HEADING("A load on a running server (bench replay)", BENCH),
    TEXT_OPTION("--url", load_url, "http://127.0.0.1:8000", "URL", BENCH, "where the server is"),
    FILE_OPTION("--trace", load_trace, BENCH,
                "recorded requests, sent at their times: Azure or NanoFlow CSV, Mooncake JSONL"),
    NUM_OPTION("--scale", load_scale, "1", 1e-6, 1e6, BENCH, "times as fast as recorded"),
    INT_OPTION("--limit", load_limit, "0", 0, 1e7, BENCH, "only its first requests; 0: all"),
    INT_OPTION("--requests", load_requests, "64", 1, 1e7, BENCH, "without a trace: how many"),
    INT_OPTION("--input-len", load_input, "0", 0, 1 << 24, BENCH,
               "the same: tokens in a prompt; 0: 512, and 32 in bench coserve"),
    INT_OPTION("--output-len", load_output, "0", 0, 1 << 24, BENCH,
               "the same: in an answer; 0: 128"),
    NUM_OPTION(
        "--steady", load_steady, "0", 0, 3600, BENCH,
        "bench offline: requests without end, counted for so many seconds once as many as may run "
        "do; 0: --requests of them, from the first to the last"),
    NUM_OPTION("--rate", load_rate, "0", 0, 1e6, BENCH,
               "requests a second, at random times, instead of the trace's; 0: the trace's, or all "
               "at once"),
    INT_OPTION("--max-concurrency", load_concurrency, "0", 0, 65536, BENCH,
               "requests in flight, others wait; 0: no limit, and 8 in bench coserve"),
    {.name = "--concurrency",
     .kind = INTEGER,
     .field = AT(load_concurrency),
     .high = 65536,
     .meta = "N",
     .commands = BENCH,
     .help = "the same"},
    TEXT_OPTION("--slo", load_slo, NULL, "LIST", BENCH,
                "what counts as good: ttft=500ms,itl=50ms of ttft, tpot, itl (p99 of the request's "
                "own) and e2el; bench coserve: the goals training is held to, of ttft and itl"),
    TEXT_OPTION("--plot", load_plot, NULL, "FILE.svg", BENCH, "draw latencies and throughput"),
    INT_OPTION("--warmup", load_warmup, "0", 0, 1000, BENCH, "requests first that do not count"),
    INT_OPTION("--seed", load_seed, "1", 0, BIG, BENCH, "of the prompts' tokens"),
    INT_OPTION("--vocab", load_vocab, "0", 0, 1 << 24, BENCH,
               "tokens are below this; 0: as the server says"),
    NUM_OPTION("--silence", load_silence, "600", 0.1, 86400, BENCH,
               "seconds without a byte after which a request has failed"),
    TEXT_OPTION("--extra-body", load_extra, NULL, "JSON", BENCH, "more fields for each request"),

    HEADING("Training beside requests (bench coserve)", BENCH),
    NUM_OPTION("--load", coserve_load, "0.5", 0.01, 1, BENCH,
               "requests arrive at this part of what gets through"),
    NUM_OPTION("--seconds", coserve_seconds, "10", 0.5, 600, BENCH, "of each phase"),
    INT_OPTION("--rounds", coserve_rounds, "3", 1, 1000, BENCH, "how often all of them, in turns"),

    HEADING("Output", EVAL | BENCH),
    FLAG_OPTION("--json", json, EVAL | BENCH | DEVICES, "print JSON"),
    FLAG_OPTION("--quick", quick, BENCH, "fewer repetitions"),
};

static const struct {
    enum hzp_command command;
    int words_max;
    const char *name, *words, *help;
} commands[] = {
    {SERVE, 1, "serve", "MODEL", "serve a model over HTTP, and learn from what is posted to it"},
    {COMPLETE, 2, "complete", "MODEL \"PROMPT\"", "complete one prompt on the terminal"},
    {EVAL, 1, "eval", "MODEL --data FILE", "mean negative log-likelihood of a text"},
    {TRAIN, 1, "train", "MODEL --data FILE --out DIR", "train offline"},
    {BENCH, 2, "bench", "WHAT [MODEL]",
     "measure: serve, train, coserve, swap, offline, ops, loop; or replay a load"},
    {PLAN, 1, "plan", "[MODEL]", "the plan of one step: print it, trace it, time it"},
    {SEARCH, 1, "search", "[MODEL]",
     "measure this device and find the best plans for steps of a model"},
    {DEVICES, 0, "devices", "", "what this machine can compute on"},
};

int64_t hzp_size_parse(const char *text)
{
    double value;
    const char *end = hzp_decimal(text, &value);
    if (!end || value < 0)
        return -1;
    if (*end == 'K' || *end == 'k')
        value *= 1024, end++;
    else if (*end == 'M' || *end == 'm')
        value *= 1024 * 1024, end++;
    else if (*end == 'G' || *end == 'g')
        value *= 1024.0 * 1024 * 1024, end++;
    else if (*end == 'T' || *end == 't')
        value *= 1024.0 * 1024 * 1024 * 1024, end++;
    if (end[0] == 'i' && end[1] == 'B')
        end += 2;
    else if (*end == 'B')
        end++;
    return *end || value > 9e18 ? -1 : (int64_t)value;
}

static int64_t choice_of(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (int64_t i = 0;; i++) {
        size_t width = strcspn(choices, "|");
        if (n && width == n && !memcmp(choices, text, n))
            return i;
        if (!choices[width])
            return -1;
        choices += width + 1;
    }
}

static int out_of_range(const struct setting *s, const char *text, struct hzp_err_text *reterr)
{
    return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s takes %s from %g to %g, not \"%s\"",
                          s->name,
                          s->kind == INTEGER ? "a whole number"
                          : s->kind == SIZE  ? "a size (like 512M or 2G)"
                                             : "a number",
                          s->low, s->high, text);
}

/* Reads text into the setting's field. */
static int set(const struct setting *s, const char *text, struct hzp_options *options,
               struct hzp_err_text *reterr)
{
    void *field = (char *)options + s->field;
    char *end;
    errno = 0;
    if (s->kind == TEXT || s->kind == FILE_NAME) {
        *(const char **)field = text;
    } else if (s->kind == LIST) {
        struct hzp_option_list *list = field;
        if (list->count == HZP_OPTIONS_LIST_MAX)
            return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s may be given at most %d times",
                                  s->name, HZP_OPTIONS_LIST_MAX);
        list->item[list->count++] = text;
    } else if (s->kind == NUMBER) {
        double value;
        const char *rest = hzp_decimal(text, &value);
        if (!rest || *rest || value < s->low || value > s->high)
            return out_of_range(s, text, reterr);
        *(double *)field = value;
    } else if (s->kind == CHOICE) {
        int64_t value = choice_of(s->choices, text);
        if (value < 0)
            return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s takes one of %s, not \"%s\"",
                                  s->name, s->choices, text);
        *(int64_t *)field = value;
    } else {
        int64_t value = s->kind == SIZE ? hzp_size_parse(text) : strtoll(text, &end, 10);
        bool bad = s->kind == SIZE ? value < 0 : end == text || *end || errno;
        if (s->kind != FLAG && (bad || !((double)value >= s->low && (double)value <= s->high)))
            return out_of_range(s, text, reterr);
        *(int64_t *)field = value;
    }
    return HZP_OK;
}

void hzp_options_defaults(enum hzp_command command, struct hzp_options *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->command = command;
    for (int i = 0; i < HZP_COUNT(table); i++)
        if (table[i].name && table[i].value) {
            struct hzp_err_text err;
            int r = set(&table[i], table[i].value, ret, &err);
            HZP_ASSERT(r == HZP_OK); /* a default outside its own range */
        }
}

/* Two commands may use one name in two senses; a setting of another command is found last. */
static const struct setting *find(const char *name, size_t length, enum hzp_command command)
{
    const struct setting *other = NULL;
    for (int i = 0; i < HZP_COUNT(table); i++) {
        const struct setting *s = &table[i];
        if (!s->name || strlen(s->name) != length || memcmp(s->name, name, length))
            continue;
        if (s->commands & command)
            return s;
        other = s;
    }
    return other;
}

static const char *command_name(enum hzp_command command)
{
    for (int i = 0; i < HZP_COUNT(commands); i++)
        if (commands[i].command == command)
            return commands[i].name;
    return "?";
}

static int read_environment(struct hzp_options *options, struct hzp_err_text *reterr)
{
    for (int i = 0; i < HZP_COUNT(table); i++) {
        const char *value = table[i].env ? getenv(table[i].env) : NULL;
        if (value && *value && (table[i].commands & options->command))
            HZP_TRY(set(&table[i], value, options, reterr));
    }
    return HZP_OK;
}

/* One option, at argv[*at]; moves *at on past its value. */
static int read_option(int argc, char **argv, int *at, struct hzp_options *options,
                       struct hzp_err_text *reterr)
{
    const char *name = argv[*at];
    size_t length = strcspn(name, "=");
    const struct setting *s = find(name, length, options->command);
    if (!s)
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "unknown option %.*s; hzpserve %s --help "
                              "lists them all",
                              (int)length, name, command_name(options->command));
    if (!(s->commands & options->command))
        return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s is not an option of hzpserve %s",
                              s->name, command_name(options->command));
    if (s->kind == FLAG) {
        if (name[length])
            return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s takes no value", s->name);
        return set(s, "1", options, reterr);
    }
    if (name[length])
        return set(s, name + length + 1, options, reterr);
    if (*at + 1 >= argc)
        return hzp_fail_param(reterr, HZP_EINVAL, s->name, "%s needs a value", s->name);
    return set(s, argv[++*at], options, reterr);
}

/* Texts of the model's file live as long as the process: settings point to them. */
static struct kept_text {
    struct kept_text *next;
    char text[];
} * kept_texts;

static char *keep(const char *text)
{
    struct kept_text *kept = hzp_xmalloc(sizeof(*kept) + strlen(text) + 1);
    strcpy(kept->text, text);
    kept->next = kept_texts;
    kept_texts = kept;
    return kept->text;
}

/* A setting of the model's file. */
static int read_line(const char *dir, const char *path, int number, char *line,
                     struct hzp_options *options, struct hzp_err_text *reterr)
{
    line += strspn(line, " \t");
    line[strcspn(line, "\r\n")] = 0;
    if (!*line || *line == '#')
        return HZP_OK;
    size_t length = strcspn(line, " \t=");
    const struct setting *s = find(line, length, options->command);
    char *value = line + length;
    value += strspn(value, value[0] == '=' ? "=" : " \t");
    if (!s || !(s->commands & options->command) || s->kind == LIST)
        return hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %.*s is no setting of hzpserve %s", path,
                        number, (int)length, line, command_name(options->command));
    char *kept = keep(s->kind == FLAG ? "1" : value);
    if (s->kind == FILE_NAME && *value != '/') {
        char beside[2048];
        snprintf(beside, sizeof(beside), "%s/%s", dir, value);
        if (access(beside, R_OK) == 0)
            kept = keep(beside);
    }
    struct hzp_err_text err;
    int r = set(s, kept, options, &err);
    return r < 0 ? hzp_fail(reterr, HZP_EFORMAT, "%s:%d: %s", path, number, err.text) : HZP_OK;
}

/* The model's own settings: where it has none, nothing. */
static int read_model_settings(const char *dir, struct hzp_options *options,
                               struct hzp_err_text *reterr)
{
    size_t size = strlen(dir) + sizeof("/serve.options");
    char *path = hzp_xmalloc(size), line[1024];
    snprintf(path, size, "%s/serve.options", dir);
    FILE *file = fopen(path, "r");
    int r = HZP_OK;
    for (int n = 1; file && r == HZP_OK && fgets(line, sizeof(line), file); n++) {
        if (!strchr(line, '\n') && !feof(file))
            r = hzp_fail(reterr, HZP_EFORMAT, "%s:%d: the line has more than %zu bytes", path, n,
                         sizeof(line) - 2);
        else
            r = read_line(dir, path, n, line, options, reterr);
    }
    if (file)
        fclose(file);
    free(path);
    return r;
}

static int read_words(int argc, char **argv, struct hzp_options *options,
                      struct hzp_err_text *reterr)
{
    bool only_words = false;
    for (int i = 2; i < argc; i++) {
        if (!only_words && !strcmp(argv[i], "--")) {
            only_words = true;
        } else if (!only_words && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            options->help = true;
        } else if (!only_words && !strncmp(argv[i], "--", 2)) {
            HZP_TRY(read_option(argc, argv, &i, options, reterr));
        } else if (options->words == HZP_OPTIONS_WORDS_MAX) {
            return hzp_fail(reterr, HZP_EINVAL, "too many words: \"%s\"", argv[i]);
        } else {
            options->word[options->words++] = argv[i];
        }
    }
    return HZP_OK;
}

int hzp_options_parse(int argc, char **argv, struct hzp_options *ret, struct hzp_err_text *reterr)
{
    hzp_options_defaults(SERVE, ret);
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        ret->help = true;
        ret->command = 0;
        return HZP_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        ret->version = true;
        return HZP_OK;
    }
    int which = 0;
    while (which < HZP_COUNT(commands) && strcmp(commands[which].name, argv[1]))
        which++;
    if (which == HZP_COUNT(commands))
        return hzp_fail(reterr, HZP_EINVAL, "no command \"%s\"; hzpserve --help lists them all",
                        argv[1]);
    ret->command = commands[which].command;
    HZP_TRY(read_environment(ret, reterr));
    HZP_TRY(read_words(argc, argv, ret, reterr));
    if (ret->words > commands[which].words_max)
        return hzp_fail(reterr, HZP_EINVAL, "hzpserve %s %s: what is \"%s\"?", commands[which].name,
                        commands[which].words, ret->word[commands[which].words_max]);
    if (ret->command == SERVE && ret->words) {
        /* Once more from the begin, now that the model is known. */
        const char *dir = ret->word[0];
        hzp_options_defaults(SERVE, ret);
        HZP_TRY(read_model_settings(dir, ret, reterr));
        HZP_TRY(read_environment(ret, reterr));
        HZP_TRY(read_words(argc, argv, ret, reterr));
    }
    int model = ret->command == BENCH ? 1 : 0;
    if (ret->command == BENCH && ret->words)
        ret->what = ret->word[0];
    if (ret->words > model)
        ret->model = ret->word[model];
    return HZP_OK;
}

void hzp_options_help(FILE *out)
{
    fprintf(out,
            "hzpserve %s: serves a language model and fine-tunes the same weights at the same "
            "time.\n\n",
            HZP_VERSION_TEXT);
    for (int i = 0; i < HZP_COUNT(commands); i++)
        fprintf(out, "  hzpserve %-8s %-28s %s\n", commands[i].name, commands[i].words,
                commands[i].help);
    fprintf(out, "\n  hzpserve COMMAND --help          the command's options\n"
                 "  hzpserve --version\n");
}

/* Text in the right column of the help, cut between words. */
static void print_wrapped(FILE *out, const char *text)
{
    enum { INDENT = 33, WIDTH = 67 };
    while (strlen(text) > WIDTH) {
        int cut = WIDTH;
        while (cut > 0 && text[cut] != ' ')
            cut--;
        if (!cut)
            break;
        fprintf(out, "%.*s\n%*s", cut, text, INDENT, "");
        text += cut + 1;
    }
    fprintf(out, "%s\n", text);
}

void hzp_options_command_help(FILE *out, enum hzp_command command)
{
    for (int i = 0; i < HZP_COUNT(commands); i++)
        if (commands[i].command == command)
            fprintf(out, "hzpserve %s %s [OPTIONS]\n\n%s\n", commands[i].name, commands[i].words,
                    commands[i].help);
    for (int i = 0; i < HZP_COUNT(table); i++) {
        const struct setting *s = &table[i];
        if (!(s->commands & command))
            continue;
        if (!s->name) {
            fprintf(out, "\n%s\n", s->help);
            continue;
        }
        char left[64];
        snprintf(left, sizeof(left), "%s%s%s", s->name, s->kind == FLAG ? "" : " ",
                 s->kind == FLAG     ? ""
                 : s->kind == CHOICE ? s->choices
                                     : s->meta);
        char right[256];
        bool value = s->value && s->kind != FLAG;
        snprintf(right, sizeof(right), "%s%s%s%s%s%s%s", s->help, value ? " [" : "",
                 value ? s->value : "", value ? "]" : "", s->env ? " (or $" : "",
                 s->env ? s->env : "", s->env ? ")" : "");
        fprintf(out, "  %-30s ", left);
        print_wrapped(out, right);
    }
}

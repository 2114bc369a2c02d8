/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/option_table.h"

#define SERVE    HZP_COMMAND_SERVE
#define COMPLETE HZP_COMMAND_COMPLETE
#define EVAL     HZP_COMMAND_EVAL
#define TRAIN    HZP_COMMAND_TRAIN
#define BENCH    HZP_COMMAND_BENCH
#define DEVICES  HZP_COMMAND_DEVICES
#define PLAN     HZP_COMMAND_PLAN
#define SEARCH   HZP_COMMAND_SEARCH
#define CHAT     HZP_COMMAND_CHAT
#define ENGINE   (SERVE | COMPLETE | BENCH)
#define LEARN    (SERVE | TRAIN | BENCH)
#define STATE    HZP_COMMAND_STATE
#define TIMELINE HZP_COMMAND_TIMELINE
#define WEIGHTS  HZP_COMMAND_WEIGHTS
#define LESSONS  (HZP_COMMAND_LESSONS | HZP_COMMAND_UNDO)
#define ROLLOUT  HZP_COMMAND_ROLLOUT
#define PULL     HZP_COMMAND_PULL
#define PUSH     HZP_COMMAND_PUSH
#define STATUS   HZP_COMMAND_STATUS
#define TOP      HZP_COMMAND_TOP
#define ALL      (SERVE | COMPLETE | EVAL | TRAIN | BENCH | DEVICES | PLAN | SEARCH)

#define AT(name) offsetof(struct hzp_options, name)
#define HEADING(topic_, text)                                                                      \
    {                                                                                              \
        .topic = topic_, .help = text                                                              \
    }
#define TEXT(flag, at, dflt, meta_, who, text)                                                     \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_TEXT, .field = AT(at), .value = dflt, .meta = meta_,      \
        .commands = (who), .help = text                                                            \
    }
#define FILE_NAME(flag, at, who, text)                                                             \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_FILE, .field = AT(at), .meta = "FILE", .commands = (who), \
        .help = text                                                                               \
    }
#define INT(flag, at, dflt, low_, high_, who, text)                                                \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_INTEGER, .field = AT(at), .value = dflt, .low = low_,     \
        .high = high_, .meta = "N", .commands = (who), .help = text                                \
    }
#define NUM(flag, at, dflt, low_, high_, who, text)                                                \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_NUMBER, .field = AT(at), .value = dflt, .low = low_,      \
        .high = high_, .meta = "X", .commands = (who), .help = text                                \
    }
#define SIZE(flag, at, dflt, low_, high_, who, text)                                               \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_SIZE, .field = AT(at), .value = dflt, .low = low_,        \
        .high = high_, .meta = "SIZE", .commands = (who), .help = text                             \
    }
#define FLAG(flag, at, who, text)                                                                  \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_FLAG, .field = AT(at), .value = "0", .commands = (who),   \
        .help = text                                                                               \
    }
#define PARTS(flag, list, dflt, meta_, who, text)                                                  \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_PARTS, .part = list, .parts = HZP_COUNT(list),            \
        .value = dflt, .meta = meta_, .commands = (who), .help = text                              \
    }
#define CHOICE(flag, at, dflt, list, who, text)                                                    \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_CHOICE, .field = AT(at), .value = dflt, .choices = list,  \
        .commands = (who), .help = text                                                            \
    }

#define BIG 1e15

/* The parts of options that take several values. */
static const struct hzp_option connection_parts[] = {
    INT("", http.connections_max, NULL, 1, 16384, 0, NULL),
    INT("per-address", http.per_address, NULL, 0, 16384, 0, NULL),
};
static const struct hzp_option body_parts[] = {
    SIZE("", http.body_max, NULL, 1024, 1 << 30, 0, NULL),
    SIZE("memory", http.body_memory, NULL, 1 << 16, BIG, 0, NULL),
};
static const struct hzp_option idle_parts[] = {
    INT("", http.idle_seconds, NULL, 1, 86400, 0, NULL),
    INT("body", http.receive_seconds, NULL, 1, 86400, 0, NULL),
};
static const struct hzp_option adamw_parts[] = {
    NUM("beta1", engine.training.beta1, NULL, 0, 0.99999, 0, NULL),
    NUM("beta2", engine.training.beta2, NULL, 0, 0.9999999, 0, NULL),
    NUM("eps", engine.training.eps, NULL, 0, 1, 0, NULL),
    NUM("decay", engine.training.decay, NULL, 0, 10, 0, NULL),
};
static const struct hzp_option skip_parts[] = {
    NUM("", engine.training.skip, NULL, 0, 0.9, 0, NULL),
    INT("swap", engine.training.swap, NULL, 0, 1, 0, NULL),
};
static const struct hzp_option schedule_parts[] = {
    CHOICE("", engine.training.schedule, NULL, "constant|cosine", 0, NULL),
    NUM("floor", engine.training.lr_floor, NULL, 0, 1, 0, NULL),
};
static const struct hzp_option update_parts[] = {
    INT("", engine.training.update_tokens, NULL, 1, 1 << 24, 0, NULL),
    CHOICE("divide", engine.training.divide, NULL, "weights|tokens|sequences|constant|none", 0,
           NULL),
    NUM("by", engine.training.divide_by, NULL, 0, BIG, 0, NULL),
};
static const struct hzp_option publish_parts[] = {
    CHOICE("", engine.training.publish, NULL, "auto|lesson|update", 0, NULL),
    INT("every", engine.training.publish_every, NULL, 1, 1e6, 0, NULL),
};
static const struct hzp_option shard_parts[] = {
    INT("z1", engine.training.z1, NULL, 0, 1024, 0, NULL),
    INT("z2", engine.training.z2, NULL, 0, 1024, 0, NULL),
    INT("z3", engine.training.z3, NULL, 0, 1024, 0, NULL),
};
static const struct hzp_option waiting_parts[] = {
    INT("", engine.serving.waiting_max, NULL, 1, 65536, 0, NULL),
    INT("tokens", engine.serving.waiting_tokens, NULL, 1, BIG, 0, NULL),
    NUM("shed-depth", engine.serving.shed_depth, NULL, 0.01, 1, 0, NULL),
};
static const struct hzp_option tier_parts[] = {
    SIZE("file", engine.serving.prefix_file, NULL, 1, BIG, 0, NULL),
    SIZE("host", engine.serving.prefix_host, NULL, 0, BIG, 0, NULL),
};
static const struct hzp_option draft_parts[] = {
    CHOICE("", engine.serving.draft, NULL, "off|ngram|depth", 0, NULL),
    INT("max", engine.serving.draft_max, NULL, 1, 8, 0, NULL),
};
static const struct hzp_option canary_parts[] = {
    NUM("", engine.canary.share, NULL, 0, 0.9, 0, NULL),
    NUM("seconds", engine.canary.seconds, NULL, 0.001, 86400, 0, NULL),
    INT("requests", engine.canary.requests, NULL, 1, BIG, 0, NULL),
    NUM("max-drop", engine.canary.max_drop, NULL, 0, 100, 0, NULL),
    NUM("max-score-drop", engine.canary.max_score_drop, NULL, 0, 2, 0, NULL),
};
static const struct hzp_option queue_parts[] = {
    INT("", engine.learning.queue_samples, NULL, 1, BIG, 0, NULL),
    INT("tokens", engine.learning.queue_tokens, NULL, 1, BIG, 0, NULL),
};
static const struct hzp_option eval_parts[] = {
    INT("", train.eval_every, NULL, 0, BIG, 0, NULL),
    INT("patience", train.patience, NULL, 0, BIG, 0, NULL),
};
static const struct hzp_option throttle_parts[] = {
    SIZE("", engine.ranks.link_rate, NULL, 0, 1e15, 0, NULL),
    NUM("latency", engine.ranks.link_latency_ms, NULL, 0, 1e5, 0, NULL),
};

const struct hzp_option hzp_option_table[] = {
    HEADING("device", "Model and device"),
    TEXT("--device", engine.device.name, NULL, "NAME", ALL,
         "cpu, cuda, cuda:1 or ref; default: the best available"),
    INT("--threads", engine.device.threads, "0", 0, 1024, ALL,
        "CPU threads, fewer where other programs share the machine; 0: all that the process "
        "may use"),
    TEXT("--cpu-level", engine.device.cpu_level, NULL, "NAME", ALL,
         "highest instruction set, to compare them or to get the bits of an older CPU: base, "
         "avx2, avx512, avx512_bf16 or amx; default: the best available"),
    CHOICE("--dtype", engine.model.dtype, "auto", "auto|bf16|f32", ALL & ~DEVICES,
           "data type of the weights in memory: bf16 halves memory and traffic, f32 learns from "
           "smaller updates; auto: as on disk"),
    CHOICE("--quantization", engine.model.fp8, "none", "none|fp8", ENGINE | EVAL | PLAN | SEARCH,
           "fp8: serving computes the layers' projections in e4m3, with a scale per row of "
           "weights and per token, for half of bf16's memory traffic; training stays in --dtype"),
    CHOICE(
        "--kv-cache-dtype", engine.model.kv_fp8, "auto", "auto|fp8", ENGINE | PLAN | SEARCH,
        "auto: the KV cache has the type of --dtype; fp8: e4m3, with a scale per head and token, "
        "about half of the memory of bf16"),
    INT("--context", engine.model.context, "0", 0, 1 << 24, ALL & ~(DEVICES | PLAN | SEARCH),
        "maximum sequence length in tokens; shorter leaves memory to more sequences; 0: the "
        "model's"),
    TEXT("--chat-template", engine.model.chat_template, NULL, "FILE", ENGINE | EVAL | TRAIN | CHAT,
         "chat template (Jinja) instead of the model's own; none: no chat"),

    HEADING("http", "HTTP"),
    TEXT("--host", http.host, "127.0.0.1", "ADDRESS", SERVE,
         "address to listen on; one that others reach needs a key, or --no-auth"),
    INT("--port", http.port, "8000", 0, 65535, SERVE, "port to listen on; 0: any free port"),
    TEXT("--served-model-name", http.served_name, NULL, "NAME", SERVE,
         "model name in requests and responses; default: the directory's name"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(http.api_key),
     .env = "HZP_API_KEY",
     .meta = "KEY",
     .commands = SERVE,
     .help = "bearer token that the routes under /v1 require; without --admin-key it may do "
             "everything"},
    FILE_NAME(
        "--api-key-file", http.api_key_file, SERVE,
        "file of the --api-key, or of several, a line NAME:KEY each: no other user sees it in the "
        "list of processes, and the names tell who taught"),
    {.name = "--admin-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(http.admin_key),
     .env = "HZP_ADMIN_KEY",
     .meta = "KEY",
     .commands = SERVE,
     .help = "bearer token that teaching and setting the policy require; it may complete, too"},
    FILE_NAME("--admin-key-file", http.admin_key_file, SERVE,
              "file of the --admin-key, or of several, likewise"),
    FLAG("--no-auth", http.no_auth, SERVE,
         "listen beyond this machine without a key: every client may complete and teach"),
    TEXT("--allow-host", http.allow_host, NULL, "NAMES", SERVE,
         "further names, separated by commas, that requests may have in Host (behind a proxy); *: "
         "all"),
    TEXT("--allow-origin", http.allow_origin, NULL, "ORIGINS", SERVE,
         "origins, such as https://example.org, whose pages may use this server; *: all"),
    PARTS(
        "--max-body", body_parts, "16M,memory=512M", "SIZE[,memory=SIZE]", SERVE,
        "maximum size of a request body; memory: what all requests may take, their bodies, what is "
        "read of them, and their answers; beyond it requests are refused with 503"),
    PARTS("--max-connections", connection_parts, "512,per-address=0", "N[,per-address=N]", SERVE,
          "maximum number of open connections, which bounds the server's memory; beyond it only "
          "/health and /metrics are answered; per-address: from one address that is not this "
          "machine's; 0: three quarters of all"),
    PARTS("--idle-timeout", idle_parts, "75,body=120", "N[,body=N]", SERVE,
          "seconds without data, within a request, between two, or while an answer is not read, "
          "after which a connection is closed; a proxy needs more than its own; body: seconds "
          "within which a request's body has to arrive as a whole (its header within 10)"),
    INT("--stream-join-ms", http.join_ms, "40", 0, 1000, SERVE,
        "longest time in milliseconds that a token of a stream waits for further ones while "
        "writing each by itself would take more than 5 % of the processors, which training "
        "and serving need; 0: none waits"),
    INT("--drain-timeout", serve.drain_seconds, "30", 0, 86400, SERVE,
        "seconds that requests in flight may take to finish after SIGTERM; less than what "
        "then kills the process"),
    TEXT("--try-prompt", serve.try_prompt, "Once upon a time", "TEXT", SERVE,
         "prompt in the example commands printed at start, for a model that knows little else"),
    FILE_NAME("--try-examples", serve.try_examples, SERVE,
              "training examples in the example commands printed at start, likewise"),

    HEADING("serving", "Serving"),
    INT("--max-running", engine.serving.running_max, "64", 1, 4096, ENGINE | SEARCH,
        "maximum sequences in one step: more answer more requests at a time, each more "
        "slowly, and need more memory"),
    PARTS(
        "--max-waiting", waiting_parts, "256,tokens=1048576,shed-depth=1",
        "N[,tokens=N][,shed-depth=X]", ENGINE,
        "maximum queued requests, which bounds how long one waits; tokens: of their prompts, which "
        "bounds their memory; more are refused with 429; shed-depth: while a quarter of N waits, "
        "new requests that ask for no depth are answered with this share of the layers, as if they "
        "had asked for it, and their answers say so"),
    INT("--step-rows", engine.serving.step_rows, "0", 0, 65536, ENGINE | SEARCH,
        "maximum tokens computed in one step, at least --max-running: more read prompts "
        "faster and delay the tokens of running requests; 0: 256, and at least twice "
        "--max-running"),
    INT("--prefill-rows", engine.serving.prefill_rows, "0", 0, 65536, ENGINE,
        "maximum prompt tokens per step while decoding, for even latencies; 0: adaptive"),
    CHOICE("--admission", engine.serving.admission, "predicted", "predicted|worst-case", ENGINE,
           "when to start a request: when the KV cache suffices for the predicted output lengths, "
           "or even if every request reaches its max_tokens"),
    INT("--kv-tokens", engine.serving.kv_tokens, "0", 0, 1e9, ENGINE,
        "capacity of the KV cache in tokens, the same on every machine; 0: from --kv-memory"),
    SIZE("--kv-memory", engine.serving.kv_memory, "0", 0, BIG, ENGINE,
         "memory of the KV cache; 0: enough for --max-running sequences, at most a quarter of the "
         "device's memory and all that is free"),
    FLAG("--no-prefix-cache", engine.serving.no_prefix_cache, ENGINE,
         "compute every prompt from its first token, even if another request began alike, to "
         "measure without it"),
    PARTS("--draft", draft_parts, "off,max=8", "off|ngram|depth[,max=N]", SERVE,
          "guess the next tokens and compute them in one step, where that is expected to be "
          "faster; the answer has the tokens that it would have had; ngram: from the request's own "
          "text, for edits, summaries and other answers that repeat what they were given; depth: "
          "by half of the layers, for models trained with --skip"),
    INT("--prefix-reuse-stale", engine.serving.reuse_stale, "0", 0, 15, SERVE,
        "after a swap, prompts may begin with what the N versions before have computed, unless the "
        "request asks for newer weights; the answer says so; 0: only what the serving version has "
        "computed"),
    INT("--prefix-rewarm", engine.serving.rewarm, "0", 0, 1 << 24, SERVE,
        "after a swap, while there is no request, compute the most used beginnings of prompts "
        "again, at most N tokens of them, so that the next one starts sooner; 0: none"),
    TEXT("--prefix-file", engine.serving.prefix_dir, NULL, "DIR", SERVE,
         "keep pages that fall out of the prefix cache, or out of host memory behind it, in a file "
         "without a name in this directory; they come back when that is faster than computing"),
    PARTS("--prefix-bytes", tier_parts, "file=1G,host=0", "PART=SIZE[,...]", SERVE,
          "sizes of where pages go that fall out of the prefix cache: the file of --prefix-file, "
          "as the disk has room; on a GPU host memory, before that; 0: none"),
    INT("--page-rows", engine.serving.page_rows, "16", 1, 1024, ENGINE | PLAN | SEARCH,
        "tokens per KV page: larger pages are read faster and shared less"),
    INT("--slots", engine.serving.slots, "2", 2, 16, ENGINE,
        "versions of the weights held in memory; pinned requests need 3 or more"),
    CHOICE("--consistency", engine.serving.consistency, "continue",
           "continue|abort|recompute|pinned", SERVE | COMPLETE,
           "what happens to running requests, unless they say, when a new version serves: they go "
           "on with it, end, compute their rows again first, or keep the version they began with"),
    NUM("--pin-seconds", engine.serving.pin_seconds, "30", 0, 86400, ENGINE,
        "how long a request may keep a version after a newer one serves, during which its "
        "slot is taken; 0: requests cannot be pinned"),
    NUM("--weights-timeout", engine.serving.weights_timeout, "60", 0, 86400, ENGINE,
        "how long a request may wait for weights that it asks for, at most and by default, in "
        "seconds"),
    CHOICE("--run-ahead", engine.serving.run_ahead, "auto", "auto|0|1", ENGINE,
           "1: prepare a step while the previous one runs (on a GPU; on CPUs with --train-cores or "
           "plans of several lanes); auto: on a GPU"),
    TEXT("--plans", engine.serving.plans, "auto", "FILE", ENGINE,
         "plan file written by hzpserve search; auto: the cached one for this device, model "
         "and build, if there is one; off: sequential execution, to compare"),
    FLAG("--check-plans", engine.serving.check_plans, ENGINE,
         "verify that each step is free of data races before it runs: to look for a fault, or "
         "to prove that there is none"),

    HEADING("training", "Training"),
    FLAG("--no-train", engine.no_train, SERVE | BENCH | SEARCH,
         "serve only, with the memory that training would reserve"),
    NUM("--lr", engine.training.lr, "1e-4", 0, 10, LEARN,
        "learning rate: the larger, the sooner examples are known and others forgotten"),
    CHOICE("--optimizer", engine.training.optimizer, "adamw", "adamw|nadam", LEARN,
           "nadam looks ahead along the gradient: for gradients that are some updates old, with "
           "--adamw beta1=0.99"),
    PARTS("--adamw", adamw_parts, "beta1=0.9,beta2=0.95,eps=1e-8,decay=0", "PARTS", LEARN,
          "the optimizer's constants, to repeat a recipe: beta1 and beta2, the decay rates of the "
          "moments; eps, added to the denominator; decay, the decoupled weight decay of matrices, "
          "against overfitting"),
    PARTS("--skip", skip_parts, "0,swap=0", "X[,swap=1]", LEARN | EVAL,
          "each micro-batch leaves out this fraction of the layers, others in turn, but never the "
          "first two and the last: learning is faster, and the model loses less when layers are "
          "left out later; swap=1: up to two pairs of neighbouring layers change places, too; "
          "eval: the "
          "loss of a request of depth 1 - X"),
    NUM("--clip", engine.training.clip, "1", 0, BIG, LEARN,
        "maximum gradient norm, so that no single example moves the weights far; 0: no "
        "clipping"),
    PARTS(
        "--schedule", schedule_parts, "constant,floor=0.1", "constant|cosine[,floor=X]", LEARN,
        "learning rate after the warm-up: constant, for a stream of examples without an end, or a "
        "cosine down to this fraction of --lr at --total-steps"),
    INT("--warmup-steps", engine.training.warmup_steps, "0", 0, BIG, LEARN,
        "updates of linear warm-up, while the optimizer's moments are young"),
    INT("--total-steps", engine.training.total_steps, "0", 0, BIG, LEARN,
        "updates after which the cosine schedule, and offline training, end; 0: offline, from "
        "--epochs"),
    PARTS(
        "--update-tokens", update_parts, "2048,divide=weights,by=1", "N[,divide=WHAT,by=X]", LEARN,
        "training tokens per update: more give steadier updates, fewer publish sooner. divide: "
        "what the sum of gradients is divided by: weights (the sum of the learned tokens', each as "
        "a positive number), tokens, sequences, constant (by=X) or none"),
    INT("--micro-rows", engine.training.micro_rows, "512", 2, 1 << 20, LEARN | SEARCH,
        "tokens per micro-batch: more are faster and need more memory. A longer example is a "
        "micro-batch of its own, up to --context and what a part of the memory holds; with "
        "several ranks examples are no longer than this"),
    CHOICE("--recompute", engine.training.recompute, "auto", "auto|none|mlp|layer", LEARN,
           "activations that the backward pass computes again instead of keeping: none; the wide "
           "ones of the MLP; or all of a layer but its input, a third more work; auto: as needed, "
           "only for examples longer than --micro-rows"),
    CHOICE("--moments", engine.training.moment_type, "f32", "f32|bf16|q8", LEARN | SEARCH,
           "data type of the optimizer's moments: bf16 takes half of the memory, q8 a quarter, in "
           "blocks with a scale each (the embedding's stay f32); not with --tensor"),
    PARTS("--shard", shard_parts, "z1=0,z2=0,z3=0", "PARTS", LEARN,
          "ranks that share one copy of the optimizer state (z1), the gradients (z2, a divisor of "
          "z1) and the parameters (z3, a divisor of z2; in a server always 1): more need less "
          "memory and more traffic; 0: chosen by both"),
    FLAG("--ordered", engine.training.ordered, LEARN,
         "add gradients in an order that does not depend on the number of ranks: any number "
         "gives the same bits"),
    PARTS(
        "--publish", publish_parts, "auto,every=1", "WHAT[,every=N]", SERVE | BENCH,
        "what becomes a version: update, every N of them; lesson: all passes of the examples that "
        "came in one body, which are judged, and rejected, as a whole; auto: lesson with --gate, "
        "--canary or --max-effect, else update"),
    INT("--max-staleness", engine.training.max_staleness, "1", 0, 1e6, SERVE | BENCH,
        "maximum updates by which the serving version may trail the newest; takes precedence over "
        "--publish every=N"),

    HEADING("learning", "Learning from examples"),
    INT("--passes", engine.learning.passes, "4", 1, 1e6, SERVE | BENCH,
        "times that each example is trained on: more remember it better and take longer"),
    FILE_NAME("--replay", engine.learning.replay, SERVE | BENCH,
              "JSONL examples mixed into training, against forgetting"),
    NUM("--replay-ratio", engine.learning.replay_ratio, "1", 0, 100, SERVE | BENCH,
        "tokens from --replay per token of new examples: more forget less and learn more "
        "slowly"),
    INT("--effect", engine.learning.effect, "16", 0, 256, SERVE,
        "after a lesson, ask what it taught and this many other prompts again, and say what "
        "changed; 0: no"),
    NUM("--max-effect", engine.learning.max_effect, "1", 0, 1, SERVE,
        "share of the other prompts of --effect whose answers a lesson may change: they are asked "
        "before it is published, and one that changes more is rejected; 1: no bound"),
    FILE_NAME("--gate", engine.learning.gate, SERVE,
              "held-out JSONL examples, which may have a \"tag\": a version whose loss on them has "
              "risen is not published, and its examples are rejected"),
    TEXT("--gate-max-rise", engine.learning.gate_max_rise, "0.02", "X[,TAG=X...]", SERVE,
         "how far the mean loss of --gate may rise above the lowest so far, in nats, of all its "
         "examples and of those with a tag"),
    PARTS("--canary", canary_parts, "0,seconds=60,requests=32,max-drop=0.1,max-score-drop=0.2",
          "X[,PART=N...]", SERVE,
          "a new version answers this fraction of the requests first, and is published only if "
          "they went as well as the others; needs --slots 3; 0: it is published at once. requests: "
          "how many must have ended with each of the two; seconds: the trial's time, after which a "
          "version with fewer is rejected, as are its examples; max-drop: how far the mean "
          "log-probability of its tokens may be below the others', in nats; max-score-drop: the "
          "mean score of its answers (POST /v1/feedback, -1 to 1)"),
    PARTS("--queue", queue_parts, "65536,tokens=16777216", "N[,tokens=N]", SERVE | BENCH,
          "maximum examples queued for training, and tokens of them, which bounds memory and how "
          "late one is learned; more are refused with 429"),
    TEXT("--state", engine.learning.state_dir, NULL, "DIR", SERVE | BENCH | CHAT,
         "directory of accepted examples and checkpoints; none: keep nothing; default: "
         "hzpserve/NAME-HASH of the model under $XDG_DATA_HOME or ~/.local/share"),
    INT("--checkpoint-every", engine.learning.checkpoint_every, "100", 0, BIG, SERVE | TRAIN,
        "updates between checkpoints, which bounds what is learned again after a crash; 0: "
        "only at the end"),
    FLAG("--no-checkpoint-copy", engine.learning.no_checkpoint_copy, SERVE | BENCH,
         "no copy of the state in host memory, from which checkpoints are written while "
         "training goes on: updates wait for the disk, where memory is short"),
    TEXT("--keep", engine.learning.keep, "last=2,hourly=24", "POLICY", SERVE | TRAIN,
         "checkpoints that stay on disk, such as last=5,every=100,tagged: the newest N (last=N), "
         "the newest of each of the last N hours (hourly=N), the oldest of each N versions "
         "(every=N), train: that of the lowest loss on --eval (best), which also becomes the "
         "result; "
         "those with a name or a file named keep stay in any case"),
    INT("--train-seed", engine.training.seed, "1", 0, BIG, LEARN,
        "seed of the order of the examples, of --skip, and with --from-scratch of the weights: "
        "another one is another run of the same experiment"),

    HEADING("sharing", "Sharing the device between serving and training"),
    TEXT("--slo", engine.split.goals, NULL, "GOALS", SERVE,
         "p99 goals ttft=TIME,itl=TIME (either may be omitted): time to first token and "
         "inter-token latency; while requests run, training takes the time they leave"),
    NUM("--itl-stretch", engine.split.itl_stretch, "1.2", 0, 100, SERVE | BENCH,
        "without a goal: maximum factor by which training may raise the p99 inter-token latency, "
        "and the p99 time to first token; 0: unlimited"),
    NUM("--train-share", engine.split.train_share, "0.8", 0, 100, SERVE | BENCH | SEARCH,
        "without an itl goal: maximum ratio of training time to serving time while requests run, "
        "and so about how much the median inter-token latency may rise; 0.25: gentle"),
    NUM("--train-max", engine.split.train_max, "1", 0, 1, SERVE | BENCH,
        "maximum fraction of device time for training while requests run"),
    NUM("--train-min", engine.split.train_min, "0.02", 0, 1, SERVE | BENCH,
        "minimum fraction of device time for training while requests run, regardless of the goals; "
        "up to five times that when examples wait for minutes; 0: none"),
    INT("--train-cores", engine.split.train_cores, "0", 0, 1023, SERVE | BENCH,
        "cores (SMs of a GPU) reserved for training while requests run; 0: training and serving "
        "take turns on all of them"),
    INT("--ride", engine.split.ride, "0", 0, 65536, SERVE | BENCH,
        "training's forward pass shares the matrix products of serving, in chunks of about N "
        "tokens; 0: only in steps for which the plan file (--plans) says so"),
    NUM("--train-idle-ms", engine.split.idle_ms, "20", 0.1, 10000, SERVE | BENCH,
        "maximum milliseconds of training per step while no request runs"),
    NUM("--train-quantum", engine.training.quantum_gflop, "1", 0, 1e6, LEARN | PLAN | SEARCH,
        "maximum size of one training operation in GFLOP; 0: unlimited"),

    HEADING("ranks", "Several ranks"),
    INT("--ranks", engine.ranks.ranks, "0", 0, HZP_LINK_RANKS_MAX, SERVE | TRAIN | BENCH | SEARCH,
        "number of ranks to start on this machine; 0: the launcher that started this process "
        "(mpirun, srun, torchrun) decides; without one there is one rank"),
    CHOICE(
        "--link", engine.ranks.link, "auto", "auto|mpi|zmq|nccl", SERVE | TRAIN | BENCH | SEARCH,
        "what carries data between ranks: on CPUs MPI, or ZeroMQ; auto: MPI where mpirun or srun "
        "starts the ranks, else ZeroMQ; between GPUs NCCL, beside one of these for small "
        "messages; mpi with --ranks: faster, but mpirun listens on every address"),
    INT("--rank-port", engine.ranks.port, "0", 0, 65535, SERVE | TRAIN | BENCH | SEARCH,
        "with link zmq: the TCP port of rank 0, the same on all ranks, where MASTER_PORT + 1 "
        "is taken or filtered; 0: that one"),
    FLAG("--replicas", engine.ranks.replicas, SERVE,
         "every rank serves requests, which rank 0 hands out, with a KV cache of its own; --link "
         "is zmq"),
    INT("--tensor", engine.ranks.tensor, "1", 1, HZP_LINK_RANKS_MAX, SERVE | SEARCH,
        "ranks that compute each step together, with tensor parallelism; only rank 0 schedules; "
        "further groups of so many ranks learn beside it; search: plans for so many ranks, "
        "measured on them, on CPUs"),
    INT("--restart", engine.ranks.restarts, "0", 0, 1e6, SERVE | TRAIN,
        "go on from the newest checkpoint when a rank is lost, at most N times: with link zmq the "
        "others wait for a new one in its place, a server serves meanwhile, and --ranks starts it; "
        "with mpi --ranks starts all again"),
    PARTS("--link-throttle", throttle_parts, "0,latency=0", "RATE[,latency=MS]",
          SERVE | TRAIN | BENCH | SEARCH,
          "maximum bytes a second that a rank sends, and milliseconds added to each transfer, to "
          "try a slower link; 0: unlimited"),
    NUM("--rank-timeout", engine.ranks.silent_s, "4", 1, 86400, SERVE | TRAIN | BENCH | SEARCH,
        "seconds without a heartbeat after which a rank counts as lost, and a second later is "
        "killed: fewer find a loss sooner, more bear a busy machine, or a debugger"),
    NUM("--rank-slowness", engine.training.slowness_max, "10", 0, 1e6, SERVE | TRAIN,
        "refuse to start when a rank is X times slower than the others in the self-test of "
        "product, copy and link, which warns from 3 on; 0: never"),
    NUM("--rank-wait", engine.ranks.meet_s, "300", 1, 86400, SERVE | TRAIN | BENCH,
        "seconds that ranks wait for each other at the start, and after a loss; more where "
        "they load slowly"),

    HEADING("data", "Data"),
    TEXT("--data", train.data, NULL, "FILE", EVAL | TRAIN,
         "JSONL examples (prompt and completion, text, messages, ShareGPT, alpaca, input and "
         "output); a table if named .csv or .tsv; plain text if named .txt"),
    CHOICE("--too-long", train.too_long, "fail", "cut|skip|fail", EVAL | TRAIN,
           "examples of more tokens than the context, or the memory, allows: cut: from the left "
           "of the prompt, never of the answer; skip: leave them out; fail: count them and stop. "
           "Plain text is split in any case"),
    TEXT("--prompt-field", train.fields.prompt, NULL, "NAME", EVAL | TRAIN | ROLLOUT,
         "field, or column, of the prompt in examples that name it otherwise; default: prompt"),
    TEXT("--completion-field", train.fields.completion, NULL, "NAME", EVAL | TRAIN | ROLLOUT,
         "field, or column, of the completion, likewise; default: completion, of rollout answer"),
    TEXT("--out", train.out, NULL, "DIR", TRAIN, "output directory of the trained model"),
    TEXT("--eval", train.eval_data, NULL, "FILE", TRAIN,
         "examples that are not trained on, to evaluate the loss on"),
    PARTS(
        "--eval-every", eval_parts, "0,patience=0", "N[,patience=N]", TRAIN,
        "updates between evaluations; 0: only at start and end; patience: stop early when so many "
        "evaluations in a row have not lowered the loss; 0: never"),
    INT("--epochs", train.epochs, "1", 1, 1e9, TRAIN,
        "passes over the examples; epochs times examples is at most 300 million"),
    FLAG("--resume", train.resume, TRAIN, "continue from the newest checkpoint in --out"),
    TEXT("--from-scratch", train.from_scratch, NULL, "CONFIG", TRAIN,
         "start with random weights for this config.json"),
    TEXT("--tokenizer", train.tokenizer_dir, NULL, "DIR", TRAIN,
         "with --from-scratch: directory of tokenizer.json"),

    HEADING("sampling", "Sampling"),
    INT("--max-tokens", complete.max_tokens, "128", 0, 1 << 24, COMPLETE,
        "maximum tokens generated"),
    INT("--min-tokens", complete.min_tokens, "0", 0, 1 << 24, COMPLETE,
        "minimum tokens generated: an earlier end is not drawn"),
    NUM("--temperature", complete.temperature, "1", 0, 100, COMPLETE,
        "sampling temperature; 0: greedy decoding"),
    NUM("--top-p", complete.top_p, "1", 0, 1, COMPLETE,
        "nucleus sampling: the likeliest tokens up to this cumulative probability"),
    INT("--top-k", complete.top_k, "0", 0, 1 << 30, COMPLETE,
        "only the N likeliest tokens; 0: no limit"),
    NUM("--min-p", complete.min_p, "0", 0, 1, COMPLETE,
        "minimum probability of a token, relative to the likeliest"),
    NUM("--repetition-penalty", complete.repetition, "1", 0.01, 100, COMPLETE,
        "divides the logits of tokens that have occurred, against repetition; 1: none"),
    NUM("--presence-penalty", complete.presence, "0", -2, 2, COMPLETE,
        "subtracted from the logits of tokens that have been generated; 0: none"),
    NUM("--frequency-penalty", complete.frequency, "0", -2, 2, COMPLETE,
        "the same, once for each time that they have been; 0: none"),
    INT("--seed", complete.seed, "-1", -1, BIG, COMPLETE, "sampling seed; -1: random"),
    INT("--n", complete.choices, "1", 1, 128, COMPLETE, "number of completions"),
    {.name = "--stop",
     .kind = HZP_OPTION_LIST,
     .field = AT(complete.stop),
     .meta = "TEXT",
     .commands = COMPLETE,
     .help = "stop string, which is not printed; may be given several times"},
    FLAG("--ignore-eos", complete.ignore_eos, COMPLETE,
         "continue after an end-of-text token, to measure answers of equal length"),
    FLAG("--echo", complete.echo, COMPLETE, "print the prompt first"),
    FLAG("--raw", complete.raw, COMPLETE, "add no special tokens to the prompt, which has its own"),

    HEADING("chat", "Chat"),
    NUM("--temperature", chat.temperature, "-1", -1, 100, CHAT,
        "sampling temperature; 0: greedy decoding; -1: that of the model's generation_config.json, "
        "or 1"),
    TEXT("--system", chat.system, NULL, "TEXT", CHAT, "system message"),
    INT("--max-tokens", chat.max_tokens, "0", 0, 1 << 24, CHAT,
        "maximum tokens of an answer; 0: as many as the context has room for"),

    HEADING("rollout", "Learning from a server's own answers"),
    TEXT("--data", rollout.data, NULL, "FILE", ROLLOUT,
         "prompts, a JSON line each: {\"prompt\"} or {\"messages\"}, and \"answer\" where the "
         "reward "
         "compares with one"),
    INT("--n", rollout.n, "8", 1, 64, ROLLOUT,
        "answers to each prompt, which are compared with one another: more tell better from worse "
        "more exactly, and take longer"),
    INT("--max-tokens", rollout.max_tokens, "64", 1, 65536, ROLLOUT, "maximum tokens of an answer"),
    INT("--total-steps", rollout.updates, "40", 1, 4096, ROLLOUT,
        "updates after which the job ends"),
    INT("--seed", rollout.seed, "-1", -1, BIG, ROLLOUT, "seed of the draws; -1: random"),
    TEXT("--extra-body", rollout.extra, NULL, "JSON", ROLLOUT,
         "further fields of POST /v1/rollouts, such as {\"algo\": \"dapo\", \"batch\": 8}"),

    HEADING("timeline", "Timeline"),
    {.name = "--out",
     .kind = HZP_OPTION_FILE,
     .field = AT(timeline.out),
     .meta = "FILE",
     .commands = TIMELINE,
     .help = "file of the trace; -o is short for it"},
    NUM("--seconds", timeline.seconds, "5", 0.001, 60, TIMELINE,
        "how many seconds back the trace begins; the server keeps only its newest spans"),

    HEADING("weights", "Versions of a running server"),
    CHOICE("--lessons", weights.lessons, "skip", "skip|replay", WEIGHTS | PUSH,
           "activate, push: what the server has learned since, or so far, is skipped, or learned "
           "again"),
    CHOICE("--optimizer", weights.optimizer, "restore", "restore|reset", WEIGHTS,
           "activate: the optimizer's state of then comes back, or begins at zero"),

    HEADING("client", "The server that a command talks to"),
    NUM("--seconds", timeline.seconds, "1", 0.01, 3600, STATUS | TOP,
        "seconds between two looks, from which rates are computed"),
    TEXT("--url", client.url, "http://127.0.0.1:8000", "URL", BENCH | WEIGHTS | LESSONS | ROLLOUT,
         "URL of the server"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(client.api_key),
     .env = "HZP_API_KEY",
     .meta = "KEY",
     .commands = BENCH | CHAT,
     .help = "bearer token of the server, sent with each request"},
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(client.api_key),
     .env = "HZP_ADMIN_KEY",
     .meta = "KEY",
     .commands = TIMELINE | WEIGHTS | LESSONS | ROLLOUT | PULL | PUSH,
     .help = "bearer token of the server: its admin key, if it has one"},

    HEADING("plan", "The step"),
    INT("--decode", plan.decode, "0", 0, 4096, PLAN, "sequences that decode one token each"),
    INT("--depth", plan.depth, "0", 0, 1 << 20, PLAN,
        "position of the decoding sequences; 0: 512, or the model's maximum"),
    INT("--prefill", plan.prefill, "0", 0, 65536, PLAN, "tokens of one prompt"),
    INT("--train", plan.train, "0", 0, 65536, PLAN, "tokens of one training micro-batch"),
    INT("--ride", plan.ride, "0", 0, 65536, PLAN,
        "training's forward pass shares the matrix products of serving, in chunks of N tokens; 0: "
        "it runs separately"),
    TEXT("--shape", plan.shape, NULL, "WORDS", PLAN,
         "how it is cut and ordered, to try what a search would find: relative sizes of "
         "nano-batches (1:1, 3:1); strands, layers or skewed: one after another, alternating by "
         "layer, or with turns that end behind attention; overlap (attention on memory), apart "
         "(nano-batch i on lane i), KIND=LANE, N:KIND=LANE; LANE=N: cores (SMs) of a lane; kinds "
         "product, decode, prefill, rows, train; lanes compute, memory, network, copy, train"),

    HEADING("plan", "What to print or run"),
    FLAG("--print", plan.print, PLAN, "print one line per operation"),
    TEXT("--trace", plan.trace, NULL, "FILE", PLAN,
         "run it and write a Chrome trace with one track per lane"),
    INT("--repeat", plan.repeat, "0", 0, 10000, PLAN,
        "run it N times, alternating with the sequential plan, and compare"),

    HEADING("search", "Plan search"),
    FLAG("--show", search.show, SEARCH, "print the saved measurements and plans; measure nothing"),
    FLAG("--fresh", search.fresh, SEARCH,
         "discard saved measurements, after a change of the machine"),
    TEXT("--file", search.file, NULL, "FILE", SEARCH,
         "plan file; default: in the user's cache, by device, model and build"),
    NUM("--itl", search.itl_ms, "0", 0, 1e6, SEARCH,
        "maximum milliseconds of a step that trains, for a server with an itl goal; 0: from "
        "--train-share"),
    NUM("--seconds", search.seconds, "240", 0, 1e6, SEARCH,
        "time limit; after measuring, the rest, at least a quarter, is spent on running the plans "
        "that are predicted to win, best first; 0: run all"),
    NUM("--max-others", search.others_max, "0.1", 0, 1, SEARCH,
        "fraction of the processors' time that other processes may take while it measures; with "
        "more, the plans are not used"),
    INT("--tries", search.tries, "60", 0, 100000, SEARCH,
        "small changes tried on each of the best shapes: fewer end sooner"),
    HEADING("load", "Load of benchmarks"),
    TEXT("--served-model-name", bench.load.model_name, NULL, "NAME", BENCH,
         "model name in the requests; default: the server's"),
    FILE_NAME("--trace", bench.load.trace, BENCH,
              "recorded requests, sent at their times: Azure or NanoFlow CSV, Mooncake JSONL"),
    NUM("--scale", bench.load.scale, "1", 1e-6, 1e6, BENCH,
        "speed-up of the recorded arrival times, to find the rate that a server bears"),
    INT("--limit", bench.load.limit, "0", 0, 1e7, BENCH,
        "only the first N requests of the trace, for a shorter run; 0: all"),
    INT("--shrink", bench.load.shrink, "1", 1, 512, BENCH,
        "divide the lengths of the trace's prompts and answers by N, for a model with a "
        "shorter context; what prompts share stays the same fraction of them"),
    INT("--requests", bench.load.requests, "64", 1, 1e7, BENCH,
        "without a trace: number of requests"),
    INT("--input-len", bench.load.input, "0", 0, 1 << 24, BENCH,
        "without a trace: prompt tokens per request; 0: 512, in bench coserve 32"),
    INT("--prefix-len", bench.load.prefix, "0", 0, 1 << 24, BENCH,
        "bench replay without a trace: number of leading tokens that all prompts have in common"),
    INT("--output-len", bench.load.output, "0", 0, 1 << 24, BENCH,
        "without a trace: generated tokens per request; 0: 128"),
    NUM("--steady", bench.steady_seconds, "0", 0, 3600, BENCH,
        "bench offline: measure an endless load for N seconds once --max-running requests run; 0: "
        "measure --requests requests from first to last"),
    NUM("--rate", bench.load.rate, "0", 0, 1e6, BENCH,
        "requests per second with Poisson arrivals, instead of the trace's times; 0: the trace's "
        "times, or all at once"),
    INT("--max-concurrency", bench.load.concurrency, "0", 0, 65536, BENCH,
        "maximum requests in flight; 0: unlimited, in bench coserve 8"),
    TEXT("--slo", bench.load.goals, NULL, "LIST", BENCH,
         "goals for goodput, as ttft=500ms,itl=50ms, of ttft, tpot, itl (p99 within a request) and "
         "e2el; bench coserve: the goals that training keeps, of ttft and itl"),
    TEXT("--record", bench.load.record, NULL, "FILE.jsonl", BENCH,
         "write a JSON line for each request: when it was sent, its status, its tokens, and when "
         "each piece of the answer came; dev/plot.py draws the file"),
    INT("--warmup", bench.load.warmup, "0", 0, 1000, BENCH,
        "warm-up requests, not counted, for a server that has just started"),
    INT("--seed", bench.load.seed, "1", 0, BIG, BENCH, "seed of the prompts' tokens"),
    NUM("--temperature", bench.load.temperature, "0", 0, 100, BENCH,
        "temperature of the requests' draws; 0: the likeliest tokens"),
    NUM("--top-p", bench.load.top_p, "1", 1e-6, 1, BENCH, "top_p of the requests' draws"),
    NUM("--silence", bench.load.silence, "600", 0.1, 86400, BENCH,
        "seconds without data after which a request counts as failed; fewer find a server "
        "that hangs sooner"),
    TEXT("--extra-body", bench.load.extra, NULL, "JSON", BENCH,
         "additional fields of each request, such as those that another server needs"),

    CHOICE("--consistency", bench.consistency, "continue", "continue|abort|recompute|pinned|all",
           BENCH,
           "bench swap: what a swap does to running requests; all: each in turn, which needs "
           "--slots 3"),

    HEADING("coserve", "Training beside requests (bench coserve)"),
    NUM("--load", bench.coserve.load, "0.5", 0.01, 1, BENCH,
        "arrival rate as a fraction of the measured capacity"),
    NUM("--seconds", bench.coserve.seconds, "6", 0.5, 600, BENCH, "duration of each phase"),
    INT("--rounds", bench.coserve.rounds, "2", 1, 1000, BENCH,
        "rounds, each with all phases in turn: more even out slow changes of the machine"),

    HEADING("log", "Log"),
    {.name = "--log-level",
     .kind = HZP_OPTION_TEXT,
     .field = AT(log_level),
     .value = "info",
     .env = "HZP_LOG",
     .meta = "LEVELS",
     .commands = ALL | STATE,
     .help = "lowest level that is logged to standard error: error, warn, info or debug; single "
             "subsystems may differ: info,serve=debug,http=error"},
    CHOICE("--log-format", log_format, "text", "text|json", ALL | STATE,
           "json: each line of the log is one JSON object, for programs that read it"),

    HEADING("output", "Output"),
    FLAG("--json", json, EVAL | BENCH | DEVICES | WEIGHTS | LESSONS | ROLLOUT | STATUS,
         "print JSON, for programs"),
    FLAG("--quick", bench.quick, BENCH, "fewer repetitions: sooner and less exact"),
};

const int hzp_option_count = HZP_COUNT(hzp_option_table);

/* What vLLM, Hugging Face's trainers and llama.cpp call what this program calls otherwise. */
const struct hzp_option_alias hzp_option_elsewhere[] = {
    {"--tensor-parallel-size", "--ranks N --tensor N"},
    {"-tp", "--ranks N --tensor N"},
    {"--data-parallel-size", "--ranks N --replicas"},
    {"-dp", "--ranks N --replicas"},
    {"--pipeline-parallel-size", "--ranks N --tensor N: there are no stages of a pipeline"},
    {"--gpu-memory-utilization",
     "--kv-memory SIZE: the rest takes what the model needs, and the plan is printed at the start"},
    {"--max-model-len", "--context N"},
    {"--max-num-seqs", "--max-running N"},
    {"--max-num-batched-tokens", "--step-rows N"},
    {"--block-size", "--page-rows N"},
    {"--enable-prefix-caching",
     "nothing: the prefix cache is on, and --no-prefix-cache turns it off"},
    {"--no-enable-prefix-caching", "--no-prefix-cache"},
    {"--enable-chunked-prefill",
     "nothing: prompts are read in pieces, of --prefill-rows N tokens or adaptive ones"},
    {"--enable-auto-tool-choice", "nothing: calls are recognised by the model's chat template"},
    {"--tool-call-parser", "nothing: calls are recognised by the model's chat template"},
    {"--reasoning-parser", "nothing: reasoning is recognised by the model's chat template"},
    {"--trust-remote-code", "nothing: code that comes with a model is never run"},
    {"--model", "the model's directory behind the command's name"},
    {"--uvicorn-log-level", "--log-level LEVELS"},
    {"--disable-log-requests", "--log-level info,http=error"},
    {"--generation-config", "fields of a request, such as temperature; chat takes the model's own"},
    {"--enforce-eager", "--plans off: steps in sequence"},
    {"--learning-rate", "--lr X"},
    {"--num-train-epochs", "--epochs N"},
    {"--max-steps", "--total-steps N"},
    {"--per-device-train-batch-size",
     "--update-tokens N: an update is so many tokens, in passes of --micro-rows"},
    {"--gradient-accumulation-steps",
     "--update-tokens N: an update is so many tokens, in passes of --micro-rows"},
    {"--max-seq-length", "--context N, and --too-long for what is longer"},
    {"--max-length", "--context N, and --too-long for what is longer"},
    {"--weight-decay", "--adamw decay=X"},
    {"--warmup-ratio", "--warmup-steps N"},
    {"--lr-scheduler-type", "--schedule cosine or constant"},
    {"--max-grad-norm", "--clip X"},
    {"--output-dir", "--out DIR"},
    {"--save-steps", "--checkpoint-every N"},
    {"--save-total-limit", "--keep last=N"},
    {"--eval-steps", "--eval-every N"},
    {"--load-best-model-at-end", "--keep best"},
    {"--early-stopping-patience", "--eval-every N,patience=K"},
    {"--bf16", "--dtype bf16"},
    {"--fp16", "--dtype bf16"},
    {"--ctx-size", "--context N"},
    {"--n-predict", "--max-tokens N"},
    {"--n-gpu-layers", "--device cuda, for the whole model"},
    {"-ngl", "--device cuda, for the whole model"},
    {"--parallel", "--max-running N"},
    {"--hf-repo", "the model's directory, as the hf command downloads it"},
};
const int hzp_options_elsewhere = HZP_COUNT(hzp_option_elsewhere);

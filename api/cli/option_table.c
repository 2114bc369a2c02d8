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
#define PULL     HZP_COMMAND_PULL
#define PUSH     HZP_COMMAND_PUSH
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
#define CHOICE(flag, at, dflt, list, who, text)                                                    \
    {                                                                                              \
        .name = flag, .kind = HZP_OPTION_CHOICE, .field = AT(at), .value = dflt, .choices = list,  \
        .commands = (who), .help = text                                                            \
    }

#define BIG 1e15

const struct hzp_option hzp_option_table[] = {
    HEADING("device", "Model and device"),
    TEXT("--device", engine.device.name, NULL, "NAME", ALL,
         "cpu, cuda, cuda:1 or ref; default: the best available"),
    INT("--threads", engine.device.threads, "0", 0, 1024, ALL,
        "CPU threads; 0: all that the process may use"),
    TEXT("--cpu-level", engine.device.cpu_level, NULL, "NAME", ALL,
         "highest instruction set: base, avx2, avx512, avx512_bf16 or amx; default: the best "
         "available"),
    CHOICE("--dtype", engine.model.dtype, "auto", "auto|bf16|f32", ALL & ~DEVICES,
           "data type of the weights in memory; auto: as on disk"),
    CHOICE("--quantization", engine.model.fp8, "none", "none|fp8", ENGINE | EVAL | PLAN | SEARCH,
           "fp8: serving computes the layers' projections in e4m3, with a scale per row of weights "
           "and per token; training stays in --dtype"),
    CHOICE(
        "--kv-cache-dtype", engine.model.kv_fp8, "auto", "auto|fp8", ENGINE | PLAN | SEARCH,
        "auto: the KV cache has the type of --dtype; fp8: e4m3, with a scale per head and token, "
        "about half of the memory of bf16"),
    INT("--context", engine.model.context, "0", 0, 1 << 24, ALL & ~(DEVICES | PLAN | SEARCH),
        "maximum sequence length in tokens; 0: the model's"),
    TEXT("--chat-template", engine.model.chat_template, NULL, "FILE", ENGINE | EVAL | TRAIN | CHAT,
         "chat template (Jinja) instead of the model's own; none: no chat"),

    HEADING("http", "HTTP"),
    TEXT("--host", http.host, "127.0.0.1", "ADDRESS", SERVE, "address to listen on"),
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
    FILE_NAME("--api-key-file", http.api_key_file, SERVE, "file whose first line is the --api-key"),
    {.name = "--admin-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(http.admin_key),
     .env = "HZP_ADMIN_KEY",
     .meta = "KEY",
     .commands = SERVE,
     .help = "bearer token that teaching and setting the policy require; it may complete, too"},
    FILE_NAME("--admin-key-file", http.admin_key_file, SERVE,
              "file whose first line is the --admin-key"),
    FLAG("--no-auth", http.no_auth, SERVE,
         "listen beyond this machine without a key: every client may complete and teach"),
    TEXT("--allow-host", http.allow_host, NULL, "NAMES", SERVE,
         "further names, separated by commas, that requests may have in Host (behind a proxy); *: "
         "all"),
    TEXT("--allow-origin", http.allow_origin, NULL, "ORIGINS", SERVE,
         "origins, such as https://example.org, whose pages may use this server; *: all"),
    SIZE("--max-body", http.body_max, "16M", 1024, 1 << 30, SERVE,
         "maximum size of a request body"),
    SIZE("--max-body-memory", http.body_memory, "512M", 1 << 16, BIG, SERVE,
         "memory that the bodies of all requests, and what is read of them, may take; beyond it "
         "requests are refused with 503"),
    INT("--max-connections", http.connections_max, "512", 1, 16384, SERVE,
        "maximum number of open connections; beyond it only /health and /metrics are answered"),
    INT("--max-per-address", http.per_address, "0", 0, 16384, SERVE,
        "maximum number of connections from one address that is not this machine's; 0: three "
        "quarters of --max-connections"),
    INT("--idle-timeout", http.idle_seconds, "75", 1, 86400, SERVE,
        "seconds without data, within a request, between two, or while an answer is not read, "
        "after which a connection is closed"),
    INT("--receive-timeout", http.receive_seconds, "120", 1, 86400, SERVE,
        "seconds within which a request's body has to arrive as a whole (its header within 10)"),
    INT("--stream-join-ms", http.join_ms, "40", 0, 1000, SERVE,
        "longest time in milliseconds that a token of a stream waits for further ones while "
        "writing "
        "each by itself would take more than 5 % of the processors; 0: none waits"),
    INT("--drain-timeout", serve.drain_seconds, "30", 0, 86400, SERVE,
        "seconds that requests in flight may take to finish after SIGTERM"),
    TEXT("--try-prompt", serve.try_prompt, "Once upon a time", "TEXT", SERVE,
         "prompt in the example commands printed at start"),
    FILE_NAME("--try-examples", serve.try_examples, SERVE,
              "training examples in the example commands printed at start"),

    HEADING("serving", "Serving"),
    INT("--max-running", engine.serving.running_max, "64", 1, 4096, ENGINE | SEARCH,
        "maximum sequences in one step"),
    INT("--max-waiting", engine.serving.waiting_max, "256", 1, 65536, ENGINE,
        "maximum queued requests; more are refused with 429"),
    INT("--max-waiting-tokens", engine.serving.waiting_tokens, "1048576", 1, BIG, ENGINE,
        "maximum prompt tokens of queued requests; more are refused with 429"),
    INT("--step-rows", engine.serving.step_rows, "0", 0, 65536, ENGINE | SEARCH,
        "maximum tokens computed in one step, at least --max-running; 0: 256, and at least twice "
        "--max-running"),
    INT("--prefill-rows", engine.serving.prefill_rows, "0", 0, 65536, ENGINE,
        "maximum prompt tokens per step while decoding; 0: adaptive"),
    CHOICE("--admission", engine.serving.admission, "predicted", "predicted|worst-case", ENGINE,
           "when to start a request: when the KV cache suffices for the predicted output lengths, "
           "or even if every request reaches its max_tokens"),
    INT("--kv-tokens", engine.serving.kv_tokens, "0", 0, 1e9, ENGINE,
        "capacity of the KV cache in tokens; 0: from --kv-memory"),
    SIZE("--kv-memory", engine.serving.kv_memory, "0", 0, BIG, ENGINE,
         "memory of the KV cache; 0: enough for --max-running sequences, at most a quarter of the "
         "device's memory and all that is free"),
    FLAG("--no-prefix-cache", engine.serving.no_prefix_cache, ENGINE,
         "compute every prompt from its first token, even if another request began alike"),
    INT("--prefix-reuse-stale", engine.serving.reuse_stale, "0", 0, 15, SERVE,
        "after a swap, prompts may begin with what the N versions before have computed, unless the "
        "request asks for newer weights; the answer says so; 0: only what the serving version has "
        "computed"),
    INT("--prefix-rewarm", engine.serving.rewarm, "0", 0, 1 << 24, SERVE,
        "after a swap, while there is no request, compute the most used beginnings of prompts "
        "again, at most N tokens of them; 0: none"),
    SIZE("--prefix-host-bytes", engine.serving.prefix_host, "0", 0, BIG, SERVE,
         "on a GPU: host memory for pages that fall out of the prefix cache; 0: none"),
    TEXT("--prefix-file", engine.serving.prefix_dir, NULL, "DIR", SERVE,
         "keep pages that fall out of the prefix cache, or out of --prefix-host-bytes, in a file "
         "without a name in this directory; they come back when that is faster than computing"),
    SIZE("--prefix-file-bytes", engine.serving.prefix_file, "1G", 1, BIG, SERVE,
         "size of that file"),
    INT("--page-rows", engine.serving.page_rows, "16", 1, 1024, ENGINE | PLAN | SEARCH,
        "tokens per KV page"),
    INT("--max-edits", engine.serving.edits_max, "0", 0, 1 << 24, ENGINE,
        "maximum logit edits (biases, penalties) per step; 0: enough for four sequences"),
    INT("--slots", engine.serving.slots, "2", 2, 16, ENGINE,
        "versions of the weights held in memory; pinned requests need 3 or more"),
    CHOICE("--consistency", engine.serving.consistency, "continue",
           "continue|abort|recompute|pinned", SERVE | COMPLETE,
           "what happens to running requests, unless they say, when a new version serves: they go "
           "on with it, end, compute their rows again first, or keep the version they began with"),
    NUM("--pin-seconds", engine.serving.pin_seconds, "30", 0, 86400, ENGINE,
        "how long a request may keep a version after a newer one serves; 0: requests cannot be "
        "pinned"),
    NUM("--weights-timeout", engine.serving.weights_timeout, "60", 0, 86400, ENGINE,
        "how long a request may wait for weights that it asks for, at most and by default, in "
        "seconds"),
    CHOICE("--run-ahead", engine.serving.run_ahead, "auto", "auto|0|1", ENGINE,
           "1: prepare a step while the previous one runs (on a GPU; on CPUs with --train-cores or "
           "plans of several lanes); auto: on a GPU"),
    TEXT("--plans", engine.serving.plans, "auto", "FILE", ENGINE,
         "plan file written by hzpserve search; auto: the cached one for this device, model and "
         "build, if there is one; off: sequential execution"),
    FLAG("--check-plans", engine.serving.check_plans, ENGINE,
         "verify that each step is free of data races before it runs"),

    HEADING("training", "Training"),
    FLAG("--no-train", engine.no_train, SERVE | BENCH | SEARCH,
         "serve only; no memory is reserved for training"),
    NUM("--lr", engine.training.lr, "1e-4", 0, 10, LEARN, "learning rate"),
    NUM("--beta1", engine.training.beta1, "0.9", 0, 0.99999, LEARN,
        "AdamW: decay rate of the first moment"),
    NUM("--beta2", engine.training.beta2, "0.95", 0, 0.9999999, LEARN,
        "AdamW: decay rate of the second moment"),
    NUM("--eps", engine.training.eps, "1e-8", 0, 1, LEARN, "AdamW: added to the denominator"),
    NUM("--weight-decay", engine.training.decay, "0", 0, 10, LEARN,
        "AdamW: decoupled weight decay of matrices"),
    NUM("--clip", engine.training.clip, "1", 0, BIG, LEARN,
        "maximum gradient norm; 0: no clipping"),
    CHOICE("--schedule", engine.training.schedule, "constant", "constant|cosine", LEARN,
           "learning rate schedule after the warm-up"),
    INT("--warmup-steps", engine.training.warmup_steps, "0", 0, BIG, LEARN,
        "updates of linear warm-up"),
    INT("--total-steps", engine.training.total_steps, "0", 0, BIG, LEARN,
        "updates after which the cosine schedule, and offline training, end; 0: offline, from "
        "--epochs"),
    NUM("--lr-floor", engine.training.lr_floor, "0.1", 0, 1, LEARN,
        "final learning rate of the cosine schedule, as a fraction of --lr"),
    INT("--update-tokens", engine.training.update_tokens, "2048", 1, 1 << 24, LEARN,
        "training tokens per update"),
    INT("--micro-rows", engine.training.micro_rows, "512", 2, 1 << 20, LEARN | SEARCH,
        "tokens per micro-batch; also the maximum length of an example"),
    CHOICE("--moments", engine.training.moment_type, "f32", "f32|bf16", LEARN | SEARCH,
           "data type of AdamW's moments"),
    INT("--z1", engine.training.z1, "0", 0, 1024, LEARN,
        "ranks that share one copy of the optimizer state; 0: chosen by memory and traffic"),
    INT("--z2", engine.training.z2, "0", 0, 1024, LEARN,
        "ranks that share one copy of the gradients, a divisor of --z1; 0: chosen likewise"),
    INT("--z3", engine.training.z3, "0", 0, 1024, LEARN,
        "ranks that share one copy of the parameters, a divisor of --z2; 0: chosen likewise; in a "
        "server always 1"),
    FLAG("--ordered", engine.training.ordered, LEARN,
         "add gradients in an order that does not depend on the number of ranks"),
    INT("--publish-every", engine.training.publish_every, "1", 1, 1e6, SERVE | BENCH,
        "updates per published version"),
    INT("--max-staleness", engine.training.max_staleness, "1", 0, 1e6, SERVE | BENCH,
        "maximum updates by which the serving version may trail the newest"),

    HEADING("learning", "Learning from examples"),
    INT("--passes", engine.learning.passes, "4", 1, 1e6, SERVE | BENCH,
        "times that each example is trained on"),
    FILE_NAME("--replay", engine.learning.replay, SERVE | BENCH,
              "JSONL examples mixed into training, against forgetting"),
    NUM("--replay-ratio", engine.learning.replay_ratio, "1", 0, 100, SERVE | BENCH,
        "tokens from --replay per token of new examples"),
    FILE_NAME("--gate", engine.learning.gate, SERVE,
              "held-out JSONL examples, which may have a \"tag\": a version whose loss on them has "
              "risen is not published, and its examples are rejected"),
    TEXT("--gate-max-rise", engine.learning.gate_max_rise, "0.02", "X[,TAG=X...]", SERVE,
         "how far the mean loss of --gate may rise above the lowest so far, in nats, of all its "
         "examples and of those with a tag"),
    NUM("--canary", engine.canary.share, "0", 0, 0.9, SERVE,
        "a new version answers this fraction of the requests first, and is published only if they "
        "went as well as the others; needs --slots 3; 0: it is published at once"),
    NUM("--canary-seconds", engine.canary.seconds, "60", 0.001, 86400, SERVE,
        "how long such a trial lasts at most; if too few requests have ended then, the version is "
        "not published, and its examples are rejected"),
    INT("--canary-requests", engine.canary.requests, "32", 1, BIG, SERVE,
        "requests that must have ended with the new version, and as many with the old one "
        "meanwhile; then the trial ends"),
    NUM("--canary-max-drop", engine.canary.max_drop, "0.1", 0, 100, SERVE,
        "how far the mean log-probability of its tokens may be below that of the others', in nats"),
    NUM("--canary-max-score-drop", engine.canary.max_score_drop, "0.2", 0, 2, SERVE,
        "how far the mean score of its answers (POST /v1/feedback, -1 to 1) may be below that of "
        "the others'"),
    INT("--queue-samples", engine.learning.queue_samples, "65536", 1, BIG, SERVE | BENCH,
        "maximum examples queued for training; more are refused with 429"),
    INT("--queue-tokens", engine.learning.queue_tokens, "16777216", 1, BIG, SERVE | BENCH,
        "maximum tokens of queued examples; more are refused with 429"),
    TEXT("--state", engine.learning.state_dir, NULL, "DIR", SERVE | BENCH,
         "directory of accepted examples and checkpoints; none: keep nothing; default: "
         "hzpserve/NAME-HASH of the model under $XDG_DATA_HOME or ~/.local/share"),
    INT("--checkpoint-every", engine.learning.checkpoint_every, "100", 0, BIG, SERVE | TRAIN,
        "updates between checkpoints; 0: only at the end"),
    FLAG("--no-checkpoint-copy", engine.learning.no_checkpoint_copy, SERVE | BENCH,
         "no copy of the state in host memory, from which checkpoints are written while training "
         "goes on: updates wait for the disk"),
    TEXT("--keep", engine.learning.keep, NULL, "POLICY", SERVE | TRAIN,
         "checkpoints that stay on disk, such as last=5,every=100,tagged: the newest N (last=N), "
         "the newest of each of the last N hours (hourly=N), the oldest of each N versions "
         "(every=N); "
         "those with a name or a file named keep stay in any case; default: last=2,hourly=24"),
    INT("--keep-checkpoints", engine.learning.keep_checkpoints, "2", 1, 1e6, SERVE | TRAIN,
        "without --keep: its last=N"),
    INT("--keep-hourly", engine.learning.keep_hourly, "24", 0, 1e6, SERVE | TRAIN,
        "without --keep: its hourly=N; 0: none"),
    INT("--train-seed", engine.learning.seed, "1", 0, BIG, LEARN,
        "seed of the order of the examples"),

    HEADING("sharing", "Sharing the device between serving and training"),
    TEXT("--slo", engine.split.goals, NULL, "GOALS", SERVE,
         "p99 goals ttft=TIME,itl=TIME (either may be omitted): time to first token and "
         "inter-token latency; while requests run, training takes the time they leave"),
    NUM("--itl-stretch", engine.split.itl_stretch, "1.2", 0, 100, SERVE | BENCH,
        "without an itl goal: maximum factor by which training may raise the p99 inter-token "
        "latency; 0: unlimited"),
    NUM("--train-share", engine.split.train_share, "0.5", 0, 100, SERVE | BENCH | SEARCH,
        "without an itl goal: maximum ratio of training time to serving time while requests run"),
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
        "starts the ranks, and with --ranks where mpirun is installed; between GPUs NCCL, beside "
        "one of these for small messages"),
    INT("--rank-port", engine.ranks.port, "0", 0, 65535, SERVE | TRAIN | BENCH | SEARCH,
        "with link zmq: the TCP port of rank 0, the same on all ranks; 0: MASTER_PORT + 1"),
    FLAG("--replicas", engine.ranks.replicas, SERVE,
         "every rank serves requests, which rank 0 hands out, with a KV cache of its own; --link "
         "is zmq"),
    INT("--tensor", engine.ranks.tensor, "1", 1, HZP_LINK_RANKS_MAX, SERVE | SEARCH,
        "ranks that compute each step together, with tensor parallelism: all that there are; only "
        "rank 0 schedules; search: plans for so many ranks, measured on them, on CPUs"),
    INT("--restart", engine.ranks.restarts, "0", 0, 1e6, SERVE | TRAIN,
        "go on from the newest checkpoint when a rank is lost, at most N times: with link zmq the "
        "others wait for a new one in its place, a server serves meanwhile, and --ranks starts it; "
        "with mpi --ranks starts all again"),
    SIZE("--link-rate", engine.ranks.link_rate, "0", 0, 1e15, SERVE | TRAIN | BENCH | SEARCH,
         "maximum bytes a second that a rank sends, to simulate a slower link; 0: unlimited"),
    NUM("--link-latency", engine.ranks.link_latency_ms, "0", 0, 1e5, SERVE | TRAIN | BENCH | SEARCH,
        "with --link-rate: milliseconds added to each transfer"),
    NUM("--rank-timeout", engine.ranks.silent_s, "4", 1, 86400, SERVE | TRAIN | BENCH | SEARCH,
        "seconds without a heartbeat after which a rank counts as lost"),
    NUM("--rank-slowness", engine.training.slowness_max, "10", 0, 1e6, SERVE | TRAIN,
        "refuse to start when a rank is X times slower than the others in the self-test of "
        "product, copy and link, which warns from 3 on; 0: never"),
    NUM("--rank-wait", engine.ranks.meet_s, "300", 1, 86400, SERVE | TRAIN | BENCH,
        "seconds that ranks wait for each other at the start, and after a loss"),

    HEADING("data", "Data"),
    TEXT("--data", eval.data, NULL, "FILE", EVAL,
         "JSONL examples (prompt and completion, text, messages, ShareGPT, alpaca); plain text if "
         "named .txt"),
    TEXT("--data", train.data, NULL, "FILE", TRAIN,
         "JSONL examples (prompt and completion, text, messages, ShareGPT, alpaca); plain text if "
         "named .txt"),
    TEXT("--prompt-field", eval.fields.prompt, NULL, "NAME", EVAL,
         "field of the prompt in the examples; default: prompt"),
    TEXT("--completion-field", eval.fields.completion, NULL, "NAME", EVAL,
         "field of the completion in the examples; default: completion"),
    TEXT("--prompt-field", train.fields.prompt, NULL, "NAME", TRAIN,
         "field of the prompt in the examples; default: prompt"),
    TEXT("--completion-field", train.fields.completion, NULL, "NAME", TRAIN,
         "field of the completion in the examples; default: completion"),
    TEXT("--out", train.out, NULL, "DIR", TRAIN, "output directory of the trained model"),
    TEXT("--eval", train.eval_data, NULL, "FILE", TRAIN, "examples to evaluate the loss on"),
    INT("--eval-every", train.eval_every, "0", 0, BIG, TRAIN,
        "updates between evaluations; 0: only at start and end"),
    INT("--epochs", train.epochs, "1", 1, 1e9, TRAIN,
        "passes over the examples; epochs times examples is at most 300 million"),
    FLAG("--resume", train.resume, TRAIN, "continue from the newest checkpoint in --out"),
    TEXT("--from-scratch", train.from_scratch, NULL, "CONFIG", TRAIN,
         "start with random weights for this config.json"),
    TEXT("--tokenizer", train.tokenizer_dir, NULL, "DIR", TRAIN,
         "with --from-scratch: directory of tokenizer.json"),
    INT("--init-seed", train.init_seed, "1", 0, BIG, TRAIN,
        "with --from-scratch: seed of the weights"),
    NUM("--init-std", train.init_std, "0.02", 0, 10, TRAIN,
        "with --from-scratch: standard deviation of the weights"),
    TEXT("--log-file", train.log_file, NULL, "FILE", TRAIN,
         "JSONL log, one line per update; default: train.jsonl in --out"),

    HEADING("sampling", "Sampling"),
    INT("--max-tokens", complete.max_tokens, "128", 0, 1 << 24, COMPLETE,
        "maximum tokens generated"),
    INT("--min-tokens", complete.min_tokens, "0", 0, 1 << 24, COMPLETE, "minimum tokens generated"),
    NUM("--temperature", complete.temperature, "1", 0, 100, COMPLETE,
        "sampling temperature; 0: greedy decoding"),
    NUM("--top-p", complete.top_p, "1", 0, 1, COMPLETE,
        "nucleus sampling: the likeliest tokens up to this cumulative probability"),
    INT("--top-k", complete.top_k, "0", 0, 1 << 30, COMPLETE,
        "only the N likeliest tokens; 0: no limit"),
    NUM("--min-p", complete.min_p, "0", 0, 1, COMPLETE,
        "minimum probability of a token, relative to the likeliest"),
    NUM("--repetition-penalty", complete.repetition, "1", 0.01, 100, COMPLETE,
        "repetition penalty; 1: none"),
    NUM("--presence-penalty", complete.presence, "0", -2, 2, COMPLETE, "presence penalty; 0: none"),
    NUM("--frequency-penalty", complete.frequency, "0", -2, 2, COMPLETE,
        "frequency penalty; 0: none"),
    INT("--seed", complete.seed, "-1", -1, BIG, COMPLETE, "sampling seed; -1: random"),
    INT("--n", complete.choices, "1", 1, 128, COMPLETE, "number of completions"),
    {.name = "--stop",
     .kind = HZP_OPTION_LIST,
     .field = AT(complete.stop),
     .meta = "TEXT",
     .commands = COMPLETE,
     .help = "stop string, which is not printed; may be given several times"},
    FLAG("--ignore-eos", complete.ignore_eos, COMPLETE, "continue after an end-of-text token"),
    FLAG("--echo", complete.echo, COMPLETE, "print the prompt first"),
    FLAG("--raw", complete.raw, COMPLETE, "add no special tokens to the prompt"),

    HEADING("chat", "Chat"),
    TEXT("--system", chat.system, NULL, "TEXT", CHAT, "system message"),
    NUM("--temperature", chat.temperature, "1", 0, 100, CHAT,
        "sampling temperature; 0: greedy decoding"),
    INT("--max-tokens", chat.max_tokens, "0", 0, 1 << 24, CHAT,
        "maximum tokens of an answer; 0: as many as the context has room for"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(chat.api_key),
     .env = "HZP_API_KEY",
     .meta = "KEY",
     .commands = CHAT,
     .help = "bearer token of the server at URL"},
    TEXT("--state", chat.state_dir, NULL, "DIR", CHAT,
         "with MODEL: state directory of the server that is started; none: nothing is kept"),

    HEADING("timeline", "Timeline"),
    {.name = "--out",
     .kind = HZP_OPTION_FILE,
     .field = AT(timeline.out),
     .meta = "FILE",
     .commands = TIMELINE,
     .help = "file of the trace; -o is short for it"},
    NUM("--seconds", timeline.seconds, "5", 0.001, 60, TIMELINE,
        "how many seconds back the trace begins; the server keeps only its newest spans"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(timeline.api_key),
     .env = "HZP_ADMIN_KEY",
     .meta = "KEY",
     .commands = TIMELINE,
     .help = "operator's key of the server at URL"},

    HEADING("weights", "Versions of a running server"),
    TEXT("--server", weights.server, "http://127.0.0.1:8000", "URL", WEIGHTS,
         "the server whose versions these are"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(weights.api_key),
     .env = "HZP_ADMIN_KEY",
     .meta = "KEY",
     .commands = WEIGHTS,
     .help = "bearer token of the server: its admin key, if it has one"},
    CHOICE("--lessons", weights.lessons, "skip", "skip|replay", WEIGHTS,
           "activate: examples learned since are skipped, or learned again"),
    CHOICE("--optimizer", weights.optimizer, "restore", "restore|reset", WEIGHTS,
           "activate: the optimizer's state of then comes back, or begins at zero"),

    HEADING("transfer", "Versions of other servers"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(push.api_key),
     .env = "HZP_ADMIN_KEY",
     .meta = "KEY",
     .commands = PULL | PUSH,
     .help = "bearer token of the server: its admin key, if it has one"},
    CHOICE("--lessons", push.lessons, "skip", "skip|replay", PUSH,
           "what the server has learned so far is skipped, or learned again"),

    HEADING("plan", "The step"),
    INT("--decode", plan.decode, "0", 0, 4096, PLAN, "sequences that decode one token each"),
    INT("--depth", plan.depth, "0", 0, 1 << 20, PLAN,
        "position of the decoding sequences; 0: 512, or the model's maximum"),
    INT("--prefill", plan.prefill, "0", 0, 65536, PLAN, "tokens of one prompt"),
    INT("--train", plan.train, "0", 0, 65536, PLAN, "tokens of one training micro-batch"),
    INT("--ride", plan.ride, "0", 0, 65536, PLAN,
        "training's forward pass shares the matrix products of serving, in chunks of N tokens; 0: "
        "it runs separately"),
    INT("--train-from", plan.train_from, "0", 0, 1 << 24, PLAN,
        "first training operation in the step"),
    INT("--train-items", plan.train_items, "0", 0, 1 << 24, PLAN,
        "number of training operations in the step; 0: all"),

    HEADING("plan", "Shape of the plan"),
    INT("--nano", plan.nano, "1", 1, 8, PLAN, "number of nano-batches of equal size"),
    TEXT("--split", plan.split, NULL, "A,B,...", PLAN,
         "relative sizes of the nano-batches: 3,1 is three quarters and one quarter"),
    CHOICE("--order", plan.order, "strands", "strands|layers|skewed", PLAN,
           "issue order of the nano-batches: one after another; alternating by layer; alternating "
           "with turns that end behind attention"),
    TEXT("--lanes", plan.lanes, NULL, "LIST", PLAN,
         "overlap (attention on memory), apart (nano-batch i on lane i), or KIND=LANE, "
         "N:KIND=LANE, train=LANE; kinds product, decode, prefill, rows; lanes compute, memory, "
         "network, copy, train"),
    TEXT("--cores", plan.cores, NULL, "LIST", PLAN,
         "LANE=N: cores (SMs of a GPU) of a lane; default: equal shares"),

    HEADING("plan", "What to print or run"),
    FLAG("--print", plan.print, PLAN, "print one line per operation"),
    TEXT("--trace", plan.trace, NULL, "FILE", PLAN,
         "run it and write a Chrome trace with one track per lane"),
    INT("--repeat", plan.repeat, "0", 0, 10000, PLAN,
        "run it N times, alternating with the sequential plan, and compare"),

    HEADING("search", "Plan search"),
    FLAG("--show", search.show, SEARCH, "print the saved measurements and plans; measure nothing"),
    FLAG("--fresh", search.fresh, SEARCH, "discard saved measurements"),
    TEXT("--file", search.file, NULL, "FILE", SEARCH,
         "plan file; default: in the user's cache, by device, model and build"),
    NUM("--itl", search.itl_ms, "0", 0, 1e6, SEARCH,
        "maximum milliseconds of a step that trains; 0: from --train-share"),
    NUM("--seconds", search.seconds, "240", 0, 1e6, SEARCH,
        "time limit; after measuring, the rest, at least a quarter, is spent on running the plans "
        "that are predicted to win, best first; 0: run all"),
    NUM("--max-others", search.others_max, "0.1", 0, 1, SEARCH,
        "fraction of the processors' time that other processes may take while it measures; with "
        "more, the plans are not used"),
    INT("--tries", search.tries, "60", 0, 100000, SEARCH,
        "small changes tried on each of the best shapes"),
    INT("--validate", search.validate, "0", 0, 100000, SEARCH,
        "run N random plans and compare them with their predictions"),
    INT("--validate-seed", search.validate_seed, "1", 0, BIG, SEARCH, "seed of the random plans"),

    HEADING("load", "Load of benchmarks"),
    TEXT("--url", bench.load.url, "http://127.0.0.1:8000", "URL", BENCH, "URL of the server"),
    TEXT("--served-model-name", bench.load.model_name, NULL, "NAME", BENCH,
         "model name in the requests; default: the server's"),
    {.name = "--api-key",
     .kind = HZP_OPTION_TEXT,
     .field = AT(bench.load.api_key),
     .env = "HZP_API_KEY",
     .meta = "KEY",
     .commands = BENCH,
     .help = "bearer token sent with each request"},
    FILE_NAME("--trace", bench.load.trace, BENCH,
              "recorded requests, sent at their times: Azure or NanoFlow CSV, Mooncake JSONL"),
    NUM("--scale", bench.load.scale, "1", 1e-6, 1e6, BENCH,
        "speed-up of the recorded arrival times"),
    INT("--limit", bench.load.limit, "0", 0, 1e7, BENCH,
        "only the first N requests of the trace; 0: all"),
    INT("--shrink", bench.load.shrink, "1", 1, 512, BENCH,
        "divide the lengths of the trace's prompts and answers by N; what prompts share stays the "
        "same fraction of them"),
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
    {.name = "--concurrency",
     .kind = HZP_OPTION_INTEGER,
     .field = AT(bench.load.concurrency),
     .high = 65536,
     .meta = "N",
     .commands = BENCH,
     .help = "the same as --max-concurrency"},
    TEXT("--slo", bench.load.goals, NULL, "LIST", BENCH,
         "goals for goodput, as ttft=500ms,itl=50ms, of ttft, tpot, itl (p99 within a request) and "
         "e2el; bench coserve: the goals that training keeps, of ttft and itl"),
    TEXT("--record", bench.load.record, NULL, "FILE.jsonl", BENCH,
         "write a JSON line for each request: when it was sent, its status, its tokens, and when "
         "each piece of the answer came; dev/plot.py draws the file"),
    INT("--warmup", bench.load.warmup, "0", 0, 1000, BENCH, "warm-up requests, not counted"),
    INT("--seed", bench.load.seed, "1", 0, BIG, BENCH, "seed of the prompts' tokens"),
    NUM("--temperature", bench.load.temperature, "0", 0, 100, BENCH,
        "temperature of the requests' draws; 0: the likeliest tokens"),
    NUM("--top-p", bench.load.top_p, "1", 1e-6, 1, BENCH, "top_p of the requests' draws"),
    INT("--vocab", bench.load.vocab, "0", 0, 1 << 24, BENCH,
        "prompt tokens are below N; 0: the server's vocabulary"),
    NUM("--silence", bench.load.silence, "600", 0.1, 86400, BENCH,
        "seconds without data after which a request counts as failed"),
    TEXT("--extra-body", bench.load.extra, NULL, "JSON", BENCH,
         "additional fields of each request"),

    CHOICE("--consistency", bench.consistency, "continue", "continue|abort|recompute|pinned|all",
           BENCH,
           "bench swap: what a swap does to running requests; all: each in turn, which needs "
           "--slots 3"),

    HEADING("coserve", "Training beside requests (bench coserve)"),
    NUM("--load", bench.coserve.load, "0.5", 0.01, 1, BENCH,
        "arrival rate as a fraction of the measured capacity"),
    NUM("--seconds", bench.coserve.seconds, "10", 0.5, 600, BENCH, "duration of each phase"),
    INT("--rounds", bench.coserve.rounds, "3", 1, 1000, BENCH,
        "rounds, each with all phases in turn"),

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
           "json: each line of the log is one JSON object"),

    HEADING("output", "Output"),
    FLAG("--json", json, EVAL | BENCH | DEVICES | WEIGHTS, "print JSON"),
    FLAG("--quick", bench.quick, BENCH, "fewer repetitions"),
};

const int hzp_option_count = HZP_COUNT(hzp_option_table);

const struct hzp_option_alias hzp_option_alias[] = {
    {"--train-units", "--train-cores"},
    {"--train-stretch", "--train-idle-ms"},
    {"--units", "--cores"},
    {"-o", "--out"},
};
const int hzp_option_aliases = HZP_COUNT(hzp_option_alias);

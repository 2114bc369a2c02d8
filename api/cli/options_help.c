/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/options_help.c - the help texts: of the program, a command, a benchmark, a topic.
 *
 * A topic is a heading of the option table, with an introduction and examples, or one of the pages
 * at the end of `topics` that have no options.  A command with more than FEW_OPTIONS options shows
 * the most used ones and names the topics of the others. */
#include "api/cli/nearest.h"
#include "api/cli/option_table.h"
#include "base/version.h"

#include <string.h>

enum { FEW_OPTIONS = 24 };

const struct hzp_command_info hzp_commands[] = {
    {HZP_COMMAND_SERVE, 1, "serve", "[MODEL]",
     "serve a model over HTTP and train it on posted examples",
     "  hzpserve serve                                     the bundled model, on port 8000\n"
     "  hzpserve serve DIR --slo ttft=500ms,itl=50ms       training takes what these goals leave\n"
     "  hzpserve serve DIR --no-train --quantization fp8   serve only\n"},
    {HZP_COMMAND_COMPLETE, 2, "complete", "MODEL \"PROMPT\"",
     "complete a prompt on the terminal; -: from standard input",
     "  hzpserve complete DIR \"Once upon a time\" --temperature 0\n"
     "  hzpserve complete DIR - < prompt.txt\n"
     "  echo \"Where does Zorin live?\" | hzpserve complete -   by the bundled model\n"},
    {HZP_COMMAND_CHAT, 1, "chat", "[URL|MODEL]", "talk with a model on the terminal, and teach it",
     "  hzpserve chat                                      with the bundled model\n"
     "  hzpserve chat DIR --system \"Be brief.\" --temperature 0.7\n"
     "  hzpserve chat http://127.0.0.1:8000                with a running server\n"},
    {HZP_COMMAND_EVAL, 1, "eval", "MODEL --data FILE", "mean negative log-likelihood of a text",
     "  hzpserve eval DIR --data heldout.jsonl\n"
     "  hzpserve eval DIR --data book.txt --json\n"},
    {HZP_COMMAND_TRAIN, 1, "train", "MODEL --data FILE --out DIR", "train offline",
     "  hzpserve train DIR --data train.jsonl --out tuned --epochs 3 --lr 2e-5\n"
     "  hzpserve train DIR --data train.jsonl --out tuned --epochs 3 --lr 2e-5 --resume\n"
     "  hzpserve train --from-scratch config.json --tokenizer DIR --data train.jsonl --out new\n"},
    {HZP_COMMAND_BENCH, 2, "bench", "WHAT [MODEL]", "measure the engine, or a running server",
     "  hzpserve bench serve DIR\n"
     "  hzpserve bench offline DIR --requests 200 --json\n"},
    {HZP_COMMAND_PLAN, 1, "plan", "[MODEL]", "the plan of one step: print it, trace it, time it",
     "  hzpserve plan DIR --decode 16\n"
     "  hzpserve plan DIR --decode 16 --prefill 64 --shape 1:1,overlap --trace step.json\n"
     "  hzpserve plan DIR --decode 16 --train 256 --shape train=train --repeat 20\n"},
    {HZP_COMMAND_SEARCH, 1, "search", "[MODEL]", "measure this device; find the best plans for it",
     "  hzpserve search DIR\n"
     "  hzpserve search DIR --show\n"},
    {HZP_COMMAND_STATUS, 1, "status", "[URL]",
     "what a server serves, learns and waits for; its rates",
     "  hzpserve status                                    of the server on port 8000\n"
     "  hzpserve status http://127.0.0.1:9000 --json\n"},
    {HZP_COMMAND_TOP, 1, "top", "[URL]", "the same, again and again, until Ctrl-C",
     "  hzpserve top --seconds 5\n"},
    {HZP_COMMAND_TIMELINE, 1, "timeline", "[URL] -o FILE",
     "a running server's last seconds, as a Chrome trace",
     "  hzpserve timeline -o trace.json                    of the server on port 8000\n"
     "  hzpserve timeline http://127.0.0.1:9000 --seconds 2 -o trace.json\n"},
    {HZP_COMMAND_STATE, 2, "state", "list|check|repair DIR",
     "list, check or repair a state directory that is not in use",
     "  hzpserve state list ~/.local/share/hzpserve/NAME\n"
     "  hzpserve state check DIR\n"
     "  hzpserve state repair DIR\n"},
    {HZP_COMMAND_WEIGHTS, 3, "weights", "ACTION [VERSION [NAME]]",
     "list, show, name, unname, activate or export versions",
     "  hzpserve weights list\n"
     "  hzpserve weights name current prod\n"
     "  hzpserve weights activate prod --lessons replay\n"
     "  hzpserve weights export 120 for-review\n"},
    {HZP_COMMAND_LESSONS, 1, "lessons", "[LESSON]", "what a running server was taught",
     "  hzpserve lessons\n"
     "  hzpserve lessons 3                one lesson, with its texts\n"},
    {HZP_COMMAND_UNDO, 1, "undo", "[LESSON|VERSION]", "take a lesson back, or go back to a version",
     "  hzpserve undo                     the newest lesson\n"
     "  hzpserve undo 3                   lesson 3; later ones are learned again\n"
     "  hzpserve undo original            the model as it was started\n"},
    {HZP_COMMAND_ROLLOUT, 8, "rollout", "REWARD|JOB [PROMPT..]",
     "learn from a server's own answers; the curve",
     "  hzpserve rollout 'regex=^ green' \"The cup of Ann is\" --max-tokens 4 --total-steps 12\n"
     "  hzpserve rollout number --data sums.jsonl          lines {\"prompt\", \"answer\"}\n"
     "  hzpserve rollout rollout-3 --json                  follows a job, as JSON lines\n"},
    {HZP_COMMAND_PULL, 3, "pull", "URL [VERSION] DIRECTORY",
     "fetch a version of a running server as a model directory",
     "  hzpserve pull http://10.0.0.5:8000 prod tuned      only units that tuned lacks are "
     "fetched\n"},
    {HZP_COMMAND_PUSH, 2, "push", "URL DIRECTORY",
     "let a model directory's weights serve in a running server",
     "  hzpserve push http://10.0.0.6:8000 tuned           only units that the server lacks are "
     "sent\n"},
    {HZP_COMMAND_DEVICES, 0, "devices", "", "list the devices of this machine",
     "  hzpserve devices --json\n"},
};
const int hzp_command_count = HZP_COUNT(hzp_commands);

/* Shown in the help of a command that has many options. */
static const char *const most_used[] = {
    "--device",    "--threads", "--dtype",        "--quantization", "--context",
    "--host",      "--port",    "--api-key",      "--max-running",  "--kv-memory",
    "--no-train",  "--lr",      "--slo",          "--passes",       "--state",
    "--data",      "--out",     "--epochs",       "--resume",       "--schedule",
    "--log-level", "--replay",  "--from-scratch", "--eval",         "--train-share",
};

/* The benchmarks: what they measure, an example, their own options, and the topics of others that
 * matter to them. */
static const struct {
    const char *name, *words, *help, *example, *options, *topics;
} benches[] = {
    {"serve", "[MODEL]", "decoding of one sequence, prefill, and decoding of many sequences",
     "hzpserve bench serve DIR --quick", "--max-running --temperature --top-p --quick --json",
     "device serving"},
    {"train", "[MODEL]", "updates of 4 x 512 tokens",
     "hzpserve bench train DIR --dtype bf16 --moments bf16",
     "--moments --kv-memory --slots --quick --json", "device training"},
    {"coserve", "[MODEL]", "what training costs the requests served at the same time",
     "hzpserve bench coserve DIR --max-concurrency 8 --rounds 5 --slo itl=60ms",
     "--load --seconds --rounds --slo --input-len --output-len --max-concurrency --temperature "
     "--top-p --seed --quick --json",
     "device serving sharing training"},
    {"swap", "[MODEL]", "what publishing a version costs the running requests",
     "hzpserve bench swap DIR --slots 3 --consistency all", "--consistency --slots --quick --json",
     "device serving"},
    {"offline", "[MODEL]", "throughput, with as many requests at a time as may run",
     "hzpserve bench offline DIR --requests 1000 --input-len 128 --output-len 64",
     "--requests --input-len --output-len --steady --max-running --temperature --top-p --seed "
     "--quick "
     "--json",
     "device serving"},
    {"ops", "[MODEL]", "each operation of the model on its own, against the limit that binds it",
     "hzpserve bench ops DIR --threads 1", "--quick --json", "device"},
    {"loop", "[MODEL]", "the host's time of a step, by the number of sequences",
     "hzpserve bench loop DIR", "--run-ahead --quick --json", "device serving"},
    {"start", "[MODEL]", "from exec until a server answers, with and without training",
     "hzpserve bench start DIR", "--quick --json", "device"},
    {"link", "", "transfers between ranks", "hzpserve bench link --ranks 2",
     "--ranks --link-throttle --rank-timeout --rank-wait --quick --json", ""},
    {"replay", "", "a recorded or made-up load on a running server: TTFT, TPOT, ITL, E2EL, goodput",
     "hzpserve bench replay --trace FILE --scale 2 --slo ttft=500ms,itl=50ms --record load.jsonl",
     "--url --served-model-name --api-key --trace --scale --limit --shrink --requests --input-len "
     "--output-len --prefix-len --rate --max-concurrency --slo --record --warmup "
     "--temperature --top-p --seed --silence --extra-body --context --json",
     ""},
};

static const struct topic {
    const char *name, *about, *text;
} topics[] = {
    {"device", "where it computes, in which data type, and the longest sequence",
     "  hzpserve devices                                   what there is on this machine\n"
     "  hzpserve serve DIR --device cuda:1 --dtype bf16\n"
     "  hzpserve serve DIR --threads 4 --context 4096\n"},
    {"http", "address, key, connections, and what is printed at start",
     "  hzpserve serve DIR --port 0                        any free port; it is printed\n"
     "  HZP_API_KEY=secret hzpserve serve DIR --host 0.0.0.0\n"},
    {"serving", "how many requests run, how many wait, and the KV cache",
     "  hzpserve serve DIR --max-running 128 --kv-memory 8G\n"
     "  hzpserve serve DIR --max-waiting 1000 --admission worst-case\n"},
    {"training", "the optimizer, the size of an update, and when a version is published",
     "  hzpserve serve DIR --lr 2e-5 --update-tokens 4096 --publish every=4 --max-staleness 4\n"
     "  hzpserve train DIR --data FILE --out DIR2 --schedule cosine --warmup-steps 100\n"},
    {"learning", "posted examples, replay against forgetting, and what is saved",
     "  hzpserve serve DIR --passes 8 --replay keep.jsonl --replay-ratio 1.5\n"
     "  hzpserve serve DIR --state /var/lib/hzpserve/a --checkpoint-every 500\n"},
    {"sharing", "how serving and training share the device",
     "  hzpserve serve DIR --slo ttft=500ms,itl=50ms       goals; training takes the rest\n"
     "  hzpserve serve DIR --itl-stretch 1.5 --train-share 1\n"},
    {"ranks", "several processes that train one model",
     "  hzpserve bench link --ranks 2\n"
     "  hzpserve bench link --ranks 2 --link-throttle 1G,latency=0.1\n"},
    {"data", "the examples of train and eval",
     "  hzpserve eval DIR --data heldout.jsonl\n"
     "  hzpserve train DIR --data train.jsonl --eval heldout.jsonl --eval-every 50 --out tuned\n"},
    {"sampling", "how complete draws tokens",
     "  hzpserve complete DIR \"Once\" --temperature 0.7 --top-p 0.95 --seed 1 --n 3\n"},
    {"chat", "how chat asks for its answers",
     "  hzpserve chat DIR --state none                     what it learns is not kept\n"},
    {"rollout", "a running server learns from its own answers, by what they are worth",
     "  hzpserve rollout boxed --data train.jsonl --prompt-field question --n 16\n"
     "  rewards: exact, number, boxed, regex=PATTERN, json, length=TOKENS, client, command, "
     "JSON\n"},
    {"timeline", "what a running server did in its last seconds",
     "  hzpserve timeline --seconds 10 -o trace.json\n"},
    {"weights",
     "versions of a running server: which one serves, and what becomes of later examples",
     "  hzpserve weights activate 120 --lessons replay\n"
     "  HZP_ADMIN_KEY=secret hzpserve weights name current prod --url http://10.0.0.5:8000\n"},
    {"client", "the server that bench, chat, rollout, status, weights, pull and push talk to",
     "  hzpserve pull http://10.0.0.5:8000 prod tuned\n"
     "  hzpserve push http://10.0.0.6:8000 tuned\n"},
    {"plan", "one step of the engine: its rows, its shape, and what is done with it",
     "  hzpserve plan DIR --decode 16 --prefill 64\n"},
    {"search", "finding plans for this machine",
     "  hzpserve search DIR --seconds 600\n"
     "  hzpserve serve DIR --plans auto\n"},
    {"load", "the requests of a benchmark",
     "  hzpserve bench replay --requests 64 --max-concurrency 16 --input-len 512 --json\n"},
    {"coserve", "the phases of bench coserve", "  hzpserve bench coserve DIR --rounds 5\n"},
    {"log", "what is logged to standard error, and how",
     "  hzpserve serve DIR --log-level info,serve=debug\n"
     "  hzpserve serve DIR --log-format json\n"},
    {"output", "what benchmarks and lists print", "  hzpserve devices --json\n"},
    /* without options */
    {"files", "which files and directories are read and written",
     "  MODEL/config.json, *.safetensors, tokenizer.json   the model, as Hugging Face writes it\n"
     "  MODEL/serve.options     its own settings for serve: one option a line, # a comment;\n"
     "                          environment and command line override them\n"
     "  ~/.local/share/hzpserve state of servers (or below $XDG_DATA_HOME; --state)\n"
     "  ~/.local/state/hzpserve the history of chat (or below $XDG_STATE_HOME)\n"
     "  ~/.cache/hzpserve       plans of search (or below $XDG_CACHE_HOME; --plans)\n"},
    {"environment", "environment variables",
     "  HZP_API_KEY             as --api-key\n"
     "  HZP_ADMIN_KEY           as --admin-key\n"
     "  HZP_REWARD_COMMAND      the program that rewards of rollouts of type command run\n"
     "  HZP_LOG                 as --log-level\n"
     "  HZP_CPU_LEVEL           highest instruction set: base, avx2, avx512, avx512_bf16\n"
     "                          or amx\n"},
    {"exit", "exit status",
     "  0    it worked; of serve: it was asked to stop\n"
     "  1    it failed: a file, the device, the network\n"
     "  2    the command line is wrong\n"
     "  3    one of several ranks was lost (serve, train)\n"
     "  130  interrupted; 143: ended by SIGTERM; 129: its terminal closed (train, rollout)\n"
     "  131  ended by SIGQUIT (serve)\n"},
};

/* ---- options ---- */

/* Prints text in the right column of the help, wrapped between words. */
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

static void print_option(FILE *out, const struct hzp_option *s)
{
    char left[64], right[800];
    snprintf(left, sizeof(left), "%s%s%s", s->name, s->kind == HZP_OPTION_FLAG ? "" : " ",
             s->kind == HZP_OPTION_FLAG     ? ""
             : s->kind == HZP_OPTION_CHOICE ? s->choices
                                            : s->meta);
    bool value = s->value && s->kind != HZP_OPTION_FLAG;
    snprintf(right, sizeof(right), "%s%s%s%s%s%s%s", s->help, value ? " [" : "",
             value ? s->value : "", value ? "]" : "", s->env ? " (or $" : "", s->env ? s->env : "",
             s->env ? ")" : "");
    if (strlen(left) > 30) /* too wide for its column: the text begins in the next line */
        fprintf(out, "  %s\n%33s", left, "");
    else
        fprintf(out, "  %-30s ", left);
    print_wrapped(out, right);
}

/* Which options are printed: those of any of the commands, below a heading of the topic, with a
 * name in the list of words; each NULL or 0: whatever it is. */
struct filter {
    unsigned commands;
    const char *topic, *names;
    bool used; /* only those in most_used */
};

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static bool wanted(const struct filter *filter, const struct hzp_option *s)
{
    bool used = !filter->used;
    for (int i = 0; !used && i < HZP_COUNT(most_used); i++)
        used = !strcmp(most_used[i], s->name);
    return used && (!filter->commands || (s->commands & filter->commands)) &&
           (!filter->names || has_word(filter->names, s->name));
}

/* Prints the options, each group below its heading; returns how many.  out NULL: only counts. */
static int print_options(FILE *out, const struct filter *filter)
{
    const struct hzp_option *heading = NULL;
    int count = 0;
    bool headed = false;
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        if (!s->name) {
            heading = s;
            headed = false;
            continue;
        }
        if ((filter->topic && strcmp(filter->topic, heading->topic)) || !wanted(filter, s))
            continue;
        count++;
        if (!out)
            continue;
        if (!headed)
            fprintf(out, "\n%s\n", heading->help);
        headed = true;
        print_option(out, s);
    }
    return count;
}

/* ---- topics ---- */

static const struct topic *find_topic(const char *name)
{
    for (int i = 0; i < HZP_COUNT(topics); i++)
        if (!strcmp(topics[i].name, name))
            return &topics[i];
    return NULL;
}

bool hzp_options_is_topic(const char *name)
{
    /* A word that is a command too means the command, whose help has the same options. */
    for (int i = 0; i < hzp_command_count; i++)
        if (!strcmp(hzp_commands[i].name, name))
            return false;
    return find_topic(name) != NULL;
}

int hzp_options_no_topic(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    struct hzp_nearest near = hzp_nearest(name);
    for (int i = 0; i < HZP_COUNT(topics); i++)
        hzp_nearest_try(&near, topics[i].name);
    for (int i = 0; i < hzp_command_count; i++)
        hzp_nearest_try(&near, hzp_commands[i].name);
    return hzp_fail(reterr, HZP_EINVAL, "no command and no topic is named \"%s\"%s", name,
                    near.best ? hzp_nearest_text(&near, hint) : "; see hzpserve help");
}

/* The topics that have options of the commands; 0: all. */
static void print_topics(FILE *out, unsigned commands)
{
    for (int i = 0; i < HZP_COUNT(topics); i++) {
        struct filter filter = {.commands = commands, .topic = topics[i].name};
        if (!commands || print_options(NULL, &filter))
            fprintf(out, "  %-12s %s\n", topics[i].name, topics[i].about);
    }
}

static void topic_help(FILE *out, const struct topic *topic)
{
    struct filter filter = {.topic = topic->name};
    bool options = print_options(NULL, &filter) > 0;
    fprintf(out, "%s: %s\n\n%s%s", topic->name, topic->about, options ? "Examples\n" : "",
            topic->text);
    print_options(out, &filter);
}

/* ---- commands ---- */

static void bench_help(FILE *out, const char *name)
{
    for (int i = 0; i < HZP_COUNT(benches); i++) {
        if (strcmp(benches[i].name, name))
            continue;
        fprintf(out, "hzpserve bench %s%s%s [OPTIONS]\n\n%s\n\nExamples\n  %s\n", name,
                *benches[i].words ? " " : "", benches[i].words, benches[i].help,
                benches[i].example);
        struct filter filter = {.commands = HZP_COMMAND_BENCH, .names = benches[i].options};
        print_options(out, &filter);
        if (*benches[i].topics)
            fprintf(out, "\nFurther options: hzpserve help TOPIC, with TOPIC one of: %s\n",
                    benches[i].topics);
    }
}

static bool is_option(const char *name, size_t bytes, unsigned commands)
{
    for (int i = 0; i < hzp_option_count; i++)
        if (hzp_option_table[i].name && (hzp_option_table[i].commands & commands) &&
            strlen(hzp_option_table[i].name) == bytes &&
            !memcmp(hzp_option_table[i].name, name, bytes))
            return true;
    return false;
}

const char *hzp_options_unknown(void)
{
    for (int i = 0; i < HZP_COUNT(most_used); i++)
        if (!is_option(most_used[i], strlen(most_used[i]), ~0u))
            return most_used[i];
    for (int i = 0; i < HZP_COUNT(benches); i++)
        for (const char *at = benches[i].options; *at; at += *at == ' ') {
            size_t bytes = strcspn(at, " ");
            if (!is_option(at, bytes, HZP_COMMAND_BENCH))
                return at;
            at += bytes;
        }
    return NULL;
}

static bool is_bench(const char *name)
{
    for (int i = 0; name && i < HZP_COUNT(benches); i++)
        if (!strcmp(benches[i].name, name))
            return true;
    return false;
}

int hzp_options_no_bench(const char *name, struct hzp_err_text *reterr)
{
    char hint[HZP_NEAREST_TEXT];
    if (!name)
        return hzp_fail(reterr, HZP_EINVAL, "bench: name what to measure; see hzpserve help bench");
    if (is_bench(name))
        return HZP_OK;
    struct hzp_nearest near = hzp_nearest(name);
    for (int i = 0; i < HZP_COUNT(benches); i++)
        hzp_nearest_try(&near, benches[i].name);
    return hzp_fail(reterr, HZP_EINVAL,
                    "bench: \"%s\" is not one of serve, train, coserve, swap, offline, ops, loop, "
                    "start, link, replay%s",
                    name, hzp_nearest_text(&near, hint));
}

void hzp_options_command_help(FILE *out, enum hzp_command command, bool all, const char *bench)
{
    const struct hzp_command_info *info = NULL;
    for (int i = 0; i < hzp_command_count; i++)
        if (hzp_commands[i].command == command)
            info = &hzp_commands[i];
    if (!all && command == HZP_COMMAND_BENCH && is_bench(bench)) {
        bench_help(out, bench);
        return;
    }
    struct filter filter = {.commands = command};
    bool few = all || print_options(NULL, &filter) <= FEW_OPTIONS;
    fprintf(out, "hzpserve %s%s%s [OPTIONS]\n\n%s\n", info->name, *info->words ? " " : "",
            info->words, info->help);
    if (!few)
        fprintf(out, "(all options: hzpserve %s --help-all)\n", info->name);
    fprintf(out, "\nExamples\n%s", info->examples);
    if (few) {
        print_options(out, &filter);
        return;
    }
    if (command == HZP_COMMAND_BENCH) {
        fprintf(out, "\nWHAT (hzpserve bench WHAT --help has its options)\n");
        for (int i = 0; i < HZP_COUNT(benches); i++)
            fprintf(out, "  %-12s %s\n", benches[i].name, benches[i].help);
    } else {
        filter.used = true;
        print_options(out, &filter);
    }
    fprintf(out, "\nFurther options: hzpserve help TOPIC\n");
    print_topics(out, command);
}

void hzp_options_help(FILE *out, const struct hzp_options *options)
{
    if (options->topic) {
        topic_help(out, find_topic(options->topic));
        return;
    }
    if (options->command) {
        hzp_options_command_help(out, options->command, options->help_all, options->bench.what);
        return;
    }
    fprintf(out,
            "hzpserve %s: serves a language model over HTTP while fine-tuning the same weights.\n\n"
            "  hzpserve COMMAND --help          a command: examples and the options most used\n"
            "  hzpserve COMMAND --help-all      all its options\n"
            "  hzpserve help TOPIC              a group of options\n\nCommands\n",
            HZP_VERSION_TEXT);
    for (int i = 0; i < hzp_command_count; i++)
        fprintf(out, "  hzpserve %-8s %-28s %s\n", hzp_commands[i].name, hzp_commands[i].words,
                hzp_commands[i].help);
    fprintf(out, "\n  hzpserve --version\n\nTopics\n");
    print_topics(out, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: defaults, ranges, errors that name the option and what may have been meant, and
 * the help texts. */
#include "api/cli/option_table.h"
#include "api/cli/options.h"
#include "base/decimal.h"
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct hzp_options options;
static struct hzp_err_text err;

static int parse(const char *a, const char *b, const char *c, const char *d, const char *e)
{
    char *argv[] = {"hzpserve",
                    (char *)(uintptr_t)a,
                    (char *)(uintptr_t)b,
                    (char *)(uintptr_t)c,
                    (char *)(uintptr_t)d,
                    (char *)(uintptr_t)e,
                    NULL};
    int argc = 1;
    while (argv[argc])
        argc++;
    memset(&err, 0, sizeof(err));
    return hzp_options_parse(argc, argv, &options, &err);
}

static void defaults_are_in_range(void **state)
{
    /* hzp_options_defaults asserts it of every setting. */
    hzp_options_defaults(HZP_COMMAND_TRAIN, &options);
    assert_int_equal(options.http.port, 8000);
    assert_string_equal(options.http.host, "127.0.0.1");
    assert_true(options.engine.training.lr == 1e-4);
    assert_int_equal(options.http.body_max, 16 << 20);
    assert_null(options.engine.model.dir);
}

static void words_and_values(void **state)
{
    assert_int_equal(parse("serve", "dir", "--port=1234", "--dtype", "bf16"), HZP_OK);
    assert_string_equal(options.engine.model.dir, "dir");
    assert_int_equal(options.http.port, 1234);
    assert_int_equal(options.engine.model.dtype, 1);
    assert_int_equal(parse("complete", "dir", "--stop", "x", "--stop=y"), HZP_OK);
    assert_int_equal(options.complete.stop.count, 2);
    assert_string_equal(options.complete.stop.item[1], "y");
    assert_int_equal(parse("complete", "dir", "--", "--stop", NULL), HZP_OK);
    assert_string_equal(options.word[1], "--stop");
    assert_int_equal(parse("bench", "serve", "dir", "--json", NULL), HZP_OK);
    assert_string_equal(options.bench.what, "serve");
    assert_string_equal(options.engine.model.dir, "dir");
    assert_int_equal(options.json, 1);
}

static bool is_option(const char *word, size_t n)
{
    for (int i = 0; i < hzp_option_count; i++)
        if (strlen(hzp_option_table[i].name) == n && !memcmp(hzp_option_table[i].name, word, n))
            return true;
    return false;
}

/* What other programs call otherwise is answered with what to write here, which exists. */
static void words_of_other_programs(void **state)
{
    assert_int_equal(parse("serve", "dir", "--tensor-parallel-size", "2", NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "use --ranks N --tensor N"));
    assert_int_equal(parse("serve", "dir", "--max-model-len=8", NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "use --context N"));
    assert_int_equal(parse("serve", "dir", "-tp", "2", NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "use --ranks N --tensor N"));
    assert_int_equal(parse("train", "dir", "--learning_rate", "1", NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "unknown option --learning_rate; use --lr X"));
    for (int i = 0; i < hzp_options_elsewhere; i++) {
        const char *was = hzp_option_elsewhere[i].was;
        const char *at = hzp_option_elsewhere[i].name;
        assert_false(is_option(was, strlen(was)));
        for (; (at = strstr(at, "--")); at += 2)
            if (!is_option(at, strcspn(at, " ,:")))
                fail_msg("%s: %s is no option", was, at);
    }
}

/* What is no model directory is said at once, with the way to one. */
static void what_is_no_model(void **state)
{
    assert_int_equal(parse("serve", "meta-llama/Llama-3.2-1B", NULL, NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "hf download meta-llama/Llama-3.2-1B --local-dir Llama"));
    assert_int_equal(parse("chat", "x/model.Q4_K_M.gguf", NULL, NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "GGUF"));
    assert_int_equal(parse("complete", "/proc/self/exe", "x", NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "is a file"));
    assert_int_equal(parse("chat", "localhost:8000", NULL, NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "did you mean http://localhost:8000?"));
    assert_int_equal(parse("serve", "./absent", NULL, NULL, NULL), HZP_OK);
    assert_int_equal(parse("chat", "http://127.0.0.1:1", NULL, NULL, NULL), HZP_OK);
    assert_int_equal(parse("weights", "list", NULL, NULL, NULL), HZP_OK);
}

static void put_file(const char *dir, const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fclose(file);
}

/* Directories whose files have another form than what is read: what to do is said at once. */
static void forms_that_are_not_read(void **state)
{
    static const char *const form[][2] = {{"a.gguf", "GGUF"},
                                          {"adapter_config.json", "was merged into"},
                                          {"pytorch_model.bin", "saved as safetensors"},
                                          {"consolidated.00.pth", "the files for transformers"},
                                          {"tokenizer.model", "saved as tokenizer.json"}};
    for (int i = 0; i < HZP_COUNT(form); i++) {
        char dir[] = "/tmp/hzpserve-test-XXXXXX", path[128];
        assert_non_null(mkdtemp(dir));
        put_file(dir, form[i][0]);
        assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_EINVAL);
        if (!strstr(err.text, form[i][1]) || !strstr(err.text, dir))
            fail_msg("%s: %s", form[i][0], err.text);
        put_file(dir, "model.safetensors");
        put_file(dir, "tokenizer.json");
        assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_OK);
        const char *const all[] = {form[i][0], "model.safetensors", "tokenizer.json", ""};
        for (int k = 0; k < HZP_COUNT(all); k++) {
            snprintf(path, sizeof(path), "%s/%s", dir, all[k]);
            assert_int_equal(remove(path), 0);
        }
    }
}

/* Parts are set one by one: those that a value does not name stay as they are. */
static void options_have_parts(void **state)
{
    const struct hzp_canary_settings *c = &options.engine.canary;
    assert_int_equal(parse("serve", "dir", "--canary", "0.5,requests=2,max-drop=3", NULL), HZP_OK);
    assert_true(c->share == 0.5 && c->requests == 2 && c->max_drop == 3);
    assert_true(c->seconds == 60 && c->max_score_drop == 0.2);
    assert_int_equal(parse("serve", "--canary=seconds=7", "--canary=0.25", "dir", NULL), HZP_OK);
    assert_true(c->share == 0.25 && c->seconds == 7 && c->requests == 32);
    assert_int_equal(parse("train", "dir", "--skip", "0.25,swap=1", NULL), HZP_OK);
    assert_true(options.engine.training.skip == 0.25 && options.engine.training.swap == 1);
    assert_int_equal(parse("train", "dir", "--adamw", "decay=0.1", NULL), HZP_OK);
    assert_true(options.engine.training.decay == 0.1 && options.engine.training.beta1 == 0.9);
    assert_int_equal(parse("train", "dir", "--moments", "bf16,in=host", NULL), HZP_OK);
    assert_true(options.engine.training.moments_in && options.engine.training.moment_type == 1);
    assert_int_equal(parse("train", "dir", "--moments", "q8,in=disk", NULL), HZP_EINVAL);
    assert_int_equal(parse("train", "dir", "--optimizer", "muon,momentum=0.9", NULL), HZP_OK);
    assert_true(options.engine.training.optimizer == HZP_MUON);
    assert_true(options.engine.training.momentum == 0.9);
    assert_int_equal(parse("train", "dir", "--shard", "z1=4,z2=2", NULL), HZP_OK);
    assert_int_equal(options.engine.training.z1, 4);
    assert_int_equal(options.engine.training.z2, 2);
    assert_int_equal(options.engine.training.z3, 0);
    assert_int_equal(options.engine.training.stages, 1);
    assert_int_equal(parse("serve", "dir", "--max-body=1M,memory=2M", NULL, NULL), HZP_OK);
    assert_true(options.http.body_max == 1 << 20 && options.http.body_memory == 2 << 20);
    static const char *const bad[][3] = {
        {"--canary", "1", "--canary takes a number from 0 to 0.9"},
        {"--canary", "0.5,seconds=x", "--canary seconds takes a number from 0.001 to 86400"},
        {"--canary", "0.5,second=1", "--canary takes a value, seconds=VALUE, requests=VALUE"},
        {"--canary", "0.5,", "--canary takes a value, seconds=VALUE"},
        {"--draft", "ngram,history", "--draft takes a value, max=VALUE, separated by commas, not"},
        {"--skip", "0.25,swap", "--skip takes a value, swap=VALUE, separated by commas, not"},
        {"--canary", "", "--canary takes a number"},
        {"--shard", "4",
         "--shard takes z1=VALUE, z2=VALUE, z3=VALUE, stages=VALUE, speeds=VALUE, separated by "
         "commas, not"},
        {"--shard", "z1=", "--shard z1 takes a whole number"},
        {"--queue", "5,tokens=0", "--queue tokens takes a whole number from 1 to"},
        {"--mesh", "tcp://a:1,tcp://b:1,part=2", "--mesh part takes a number from 0.001 to 1"},
        {"--mesh", "tcp://a:1,tcp://b:1,parts=1", "--mesh takes a value, part=VALUE"},
        {"--mesh", "tcp://a:1,rule=best", "--mesh rule takes one of delta|ema"},
    };
    assert_int_equal(parse("serve", "dir", "--mesh", "tcp://a:1,tcp://b:2,every=7", NULL), HZP_OK);
    assert_int_equal(options.engine.mesh.url.count, 2);
    assert_string_equal(options.engine.mesh.url.item[1], "tcp://b:2");
    assert_int_equal(options.engine.mesh.every, 7);
    char digits[200];
    memset(digits, '1', sizeof(digits));
    digits[199] = 0;
    assert_int_equal(parse("serve", "dir", "--queue", digits, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "long"));
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(parse("serve", "dir", bad[i][0], bad[i][1], NULL), HZP_EINVAL);
        if (!strstr(err.text, bad[i][2]))
            fail_msg("%s: %s", bad[i][2], err.text);
    }
}

/* Each option is a choice that everybody who reads the list has to understand: a new one replaces
 * another, or needs a reason why no constant does. */
static void options_are_few(void **state)
{
    enum { MOST = 160 };
    int names = 0;
    for (int i = 0; i < hzp_option_count; i++) {
        const char *name = hzp_option_table[i].name;
        bool seen = !name;
        for (int k = 0; k < i && !seen; k++)
            seen = !strcmp(name, hzp_option_table[k].name);
        names += !seen;
    }
    print_message("%d options\n", names);
    assert_in_range(names, 1, MOST);
}

/* A part has a field, and a number or choice of its own kind; what is no part is named. */
static void parts_are_whole(void **state)
{
    int parts = 0;
    for (int i = 0; i < hzp_option_count; i++)
        for (int k = 0; k < hzp_option_table[i].parts; k++, parts++) {
            const struct hzp_option *part = &hzp_option_table[i].part[k];
            assert_non_null(part->name);
            assert_true(part->name[0] || k == 0);
            assert_true(part->field || part->kind == HZP_OPTION_PARTS);
            assert_true(part->kind != HZP_OPTION_CHOICE || part->choices);
        }
    assert_true(parts > 10);
    assert_int_equal(parse("serve", "dir", "--update-tokens", "64,divide=constant,by=3", NULL),
                     HZP_OK);
    assert_int_equal(options.engine.training.update_tokens, 64);
    assert_int_equal(options.engine.training.divide, HZP_DIVIDE_CONSTANT);
    assert_true(options.engine.training.divide_by == 3);
    assert_int_equal(parse("serve", "dir", "--update-tokens", "64,divide=rows", NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "--update-tokens"));
}

static void errors_name_the_option(void **state)
{
    static const char *const bad[][2] = {
        {"--port", "x"},      {"--port", "-1"},      {"--port", "65536"},    {"--port", ""},
        {"--port", "1.5"},    {"--lr", "nan"},       {"--lr", "1e9"},        {"--lr", "0x1p-9"},
        {"--lr", " 1"},       {"--dtype", "f64"},    {"--dtype", ""},        {"--dtype", "bf1"},
        {"--max-body", "-1"}, {"--max-body", "10X"}, {"--max-body", "1e30"}, {"--max-body", "0x1M"},
        {"--slots", "1"},     {"--slots", "0x2"}};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(parse("serve", "dir", bad[i][0], bad[i][1], NULL), HZP_EINVAL);
        assert_string_equal(err.param, bad[i][0]);
        assert_non_null(strstr(err.text, bad[i][0]));
    }
    assert_int_equal(parse("serve", "--port", NULL, NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "needs a value"));
    assert_int_equal(parse("serve", "--temperature", "1", NULL, NULL), HZP_EINVAL);
    assert_non_null(strstr(err.text, "not an option of hzpserve serve"));
    assert_int_equal(parse("serve", "--nope", NULL, NULL, NULL), HZP_EINVAL);
    assert_int_equal(parse("serve", "--no-train=1", NULL, NULL, NULL), HZP_EINVAL);
    assert_int_equal(parse("dance", NULL, NULL, NULL, NULL), HZP_EINVAL);
}

static void the_environment_comes_second(void **state)
{
    setenv("HZP_API_KEY", "from outside", 1);
    assert_int_equal(parse("serve", "dir", NULL, NULL, NULL), HZP_OK);
    assert_string_equal(options.http.api_key, "from outside");
    assert_int_equal(parse("serve", "dir", "--api-key", "given", NULL), HZP_OK);
    assert_string_equal(options.http.api_key, "given");
    unsetenv("HZP_API_KEY");
}

static void write_settings(const char *dir, const char *text)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/serve.options", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_model_has_settings_of_its_own(void **state)
{
    char dir[] = "/tmp/hzp-options-XXXXXX", path[96];
    assert_non_null(mkdtemp(dir));
    write_settings(dir, "# a comment\n\n--lr 0.5\n  --try-prompt two words\n--passes=7\r\n"
                        "--no-train\n--replay serve.options\n");
    assert_int_equal(parse("serve", dir, "--passes", "9", NULL), HZP_OK);
    assert_true(options.engine.training.lr == 0.5);
    assert_string_equal(options.serve.try_prompt, "two words");
    assert_int_equal(options.engine.learning.passes, 9); /* the command line wins */
    assert_int_equal(options.engine.no_train, 1);
    snprintf(path, sizeof(path), "%s/serve.options", dir);
    assert_string_equal(options.engine.learning.replay, path);
    assert_int_equal(parse("eval", dir, NULL, NULL, NULL), HZP_OK);
    assert_true(options.engine.training.lr == 1e-4); /* a setting of serve only */

    /* What a copy of the model elsewhere needs. */
    char *copy = hzp_options_of_copy(dir, "a name"), expected[400];
    snprintf(expected, sizeof(expected),
             "# a comment\n\n--lr 0.5\n  --try-prompt two words\n--passes=7\n--no-train\n"
             "--replay %s\n--served-model-name a name\n",
             path);
    assert_string_equal(copy, expected);
    free(copy);
    write_settings(dir, "--served-model-name its name\n");
    copy = hzp_options_of_copy(dir, NULL);
    assert_string_equal(copy, "--served-model-name its name\n");
    free(copy);
    write_settings(dir, "");
    copy = hzp_options_of_copy(dir, NULL);
    snprintf(expected, sizeof(expected), "--served-model-name %s\n", strrchr(dir, '/') + 1);
    assert_string_equal(copy, expected);
    free(copy);

    /* A file that is gone is named with the line, unless another is given; one that came along with
       the model is found. */
    write_settings(dir, "--lr 0.5\n--replay /absent/replay.jsonl\n--try-examples absent\n");
    assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "serve.options:2: --replay /absent/replay.jsonl: No such"));
    assert_int_equal(parse("serve", dir, "--replay", "/dev/null", NULL), HZP_OK);
    write_settings(dir, "--replay /absent/serve.options\n");
    assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_OK);
    assert_string_equal(options.engine.learning.replay, path);

    static const char *const bad[] = {"--nope 1\n", "lr 1\n", "--lr x\n", "--temperature 1\n",
                                      "--beta1 0.9\n"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        write_settings(dir, bad[i]);
        assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_EFORMAT);
        assert_non_null(strstr(err.text, "serve.options:1: "));
    }
    /* A line is read whole, or refused: the end of a long line must not be read as a line of its
       own. */
    char text[1200] = "--try-prompt ";
    memset(text + 13, 'x', 1000);
    write_settings(dir, text);
    assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_OK);
    assert_int_equal(strlen(options.serve.try_prompt), 1000);
    memset(text + 1013, 'x', 100);
    strcpy(text + 1022, "--port 1234\n");
    write_settings(dir, text);
    assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "serve.options:1: "));
    unlink(path);
    rmdir(dir);
    assert_int_equal(parse("serve", dir, NULL, NULL, NULL), HZP_OK);
    assert_int_equal(parse("serve", dir, "another", NULL, NULL), HZP_EINVAL);
}

static void errors_say_what_was_meant(void **state)
{
    static const struct {
        const char *command, *a, *b, *says;
    } bad[] = {
        {"serve", "--prot", "1", "unknown option --prot; did you mean --port?"},
        {"serve", "--max-conections=3", NULL, "did you mean --max-connections?"},
        {"serve", "--slot", NULL, "did you mean --slots?"},
        {"serve", "--xyzzy", NULL, "unknown option --xyzzy; see hzpserve help serve"},
        {"serve", "--dtype", "bf61", "not \"bf61\"; did you mean bf16?"},
        {"serve", "--admission", "pred", "did you mean predicted?"},
        {"serve", "--dtype", "abacus", "one of auto|bf16|f32, not \"abacus\""},
        {"serve", "--epochs", "3",
         "--epochs is not an option of hzpserve serve; it belongs to train"},
        {"sevre", NULL, NULL, "unknown command \"sevre\"; did you mean serve?"},
        {"dance", NULL, NULL, "unknown command \"dance\"; see hzpserve --help"},
        {"help", "samplign", NULL, "did you mean sampling?"},
        {"help", "xyzzy", NULL, "no command and no topic is named \"xyzzy\"; see hzpserve help"},
    };
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(parse(bad[i].command, bad[i].a, bad[i].b, NULL, NULL), HZP_EINVAL);
        if (!strstr(err.text, bad[i].says))
            fail_msg("%s: %s", bad[i].says, err.text);
    }
    assert_null(strstr((parse("serve", "--dtype", "abacus", NULL, NULL), err.text), "did you"));
    assert_int_equal(hzp_options_no_bench("offline", &err), HZP_OK);
    assert_int_equal(hzp_options_no_bench("ofline", &err), HZP_EINVAL);
    assert_non_null(strstr(err.text, "did you mean offline?"));

    /* A word of no length, and one longer than any known, are similar to nothing. */
    char text[HZP_NEAREST_TEXT];
    struct hzp_nearest near = hzp_nearest("");
    hzp_nearest_try(&near, "serve");
    assert_string_equal(hzp_nearest_text(&near, text), "");
    near = hzp_nearest("ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssserve");
    hzp_nearest_try(&near, "serve");
    assert_string_equal(hzp_nearest_text(&near, text), "");
}

/* Parses `hzpserve A B C` and returns the help that it asks for; the caller frees it. */
static char *help_of(const char *a, const char *b, const char *c)
{
    char *text = NULL;
    size_t bytes = 0;
    if (parse(a, b, c, NULL, NULL) != HZP_OK)
        fail_msg("%s", err.text);
    assert_true(options.help);
    FILE *out = open_memstream(&text, &bytes);
    hzp_options_help(out, &options);
    fclose(out);
    for (const char *line = text; *line; line += *line == '\n') {
        size_t width = strcspn(line, "\n");
        if (width > 110)
            fail_msg("%.*s", (int)width, line);
        line += width;
    }
    return text;
}

static void expect_help(const char *a, const char *b, const char *c, const char *has,
                        const char *lacks)
{
    char *text = help_of(a, b, c);
    if (has && !strstr(text, has))
        fail_msg("no \"%s\" in: %s", has, text);
    if (lacks && strstr(text, lacks))
        fail_msg("\"%s\" in: %s", lacks, text);
    free(text);
}

static void help_goes_by_topic(void **state)
{
    /* A long list of options is not shown at once; each is in one topic that the help names. */
    expect_help("serve", "--help", NULL, "--port N", "--adamw");
    expect_help("serve", "--help", NULL, "[8000]", "--temperature");
    expect_help("serve", "--help", NULL, "Examples\n", NULL);
    expect_help("serve", "--help", NULL, "hzpserve help TOPIC", NULL);
    expect_help("serve", "--help-all", NULL, "--adamw PARTS", "hzpserve help TOPIC");
    expect_help("help", "serve", NULL, "--port N", "--adamw");
    expect_help("help", "training", NULL, "--adamw PARTS", "--port");
    expect_help("help", "sharing", NULL, "--slo GOALS", NULL);
    expect_help("help", "environment", NULL, "HZP_API_KEY", "Examples");
    expect_help("help", NULL, NULL, "hzpserve serve", NULL);
    expect_help("complete", "--help", NULL, "--temperature", "--port");
    /* Of a benchmark: its own options and no other's. */
    expect_help("bench", "--help", NULL, "offline", "--temperature");
    expect_help("bench", "offline", "--help", "--requests N", "--url");
    expect_help("bench", "replay", "--help", "--url URL", "--steady");
    expect_help("help", "bench", "coserve", "--rounds N", "--url");
    expect_help("bench", "ops", "--help", "Examples\n  hzpserve bench ops", "--requests");
}

/* Every option of every command is in the full help, and in its topic's. */
static void help_has_every_option(void **state)
{
    char line[64];
    for (int i = 0; i < hzp_option_count; i++) {
        const struct hzp_option *s = &hzp_option_table[i];
        snprintf(line, sizeof(line), "\n  %s", s->name);
        for (int k = 0; k < hzp_command_count; k++)
            if (s->commands & hzp_commands[k].command)
                expect_help(hzp_commands[k].name, "--help-all", NULL, line, NULL);
        /* The topic with the name of a command is its own help, which may be the long one only. */
        int found = 0;
        for (int k = 0; k < hzp_help_count; k++)
            found += !strstr(hzp_helps[k].name, "--help-all") &&
                     strncmp(hzp_helps[k].name, "bench ", 6) && strstr(hzp_helps[k].text, line);
        if (!found && !(s->commands & HZP_COMMAND_SEARCH))
            fail_msg("no topic has %s", s->name);
    }
    /* What the help of a benchmark lists exists: its own options, and the topics of others. */
    static const char *const bench[] = {"serve", "train", "coserve", "swap", "offline",
                                        "ops",   "loop",  "start",   "link", "replay"};
    for (int i = 0; i < HZP_COUNT(bench); i++) {
        assert_int_equal(hzp_options_no_bench(bench[i], &err), HZP_OK);
        expect_help("bench", bench[i], "--help", "\n  --json ", NULL);
    }
}

static void other_commands_want_a_model(void **state)
{
    assert_int_equal(parse("complete", "dir", "-", NULL, NULL), HZP_OK);
    assert_string_equal(options.engine.model.dir, "dir");
    assert_string_equal(options.word[1], "-");
    assert_int_equal(parse("eval", "--data", "x", NULL, NULL), HZP_OK);
    assert_null(options.engine.model.dir);
    assert_int_equal(parse("plan", NULL, NULL, NULL, NULL), HZP_OK);
    assert_null(options.engine.model.dir); /* it has a model of its own */
}

static void sizes(void **state)
{
    assert_int_equal(hzp_size_parse("4096"), 4096);
    assert_int_equal(hzp_size_parse("1.5K"), 1536);
    assert_int_equal(hzp_size_parse("2M"), 2 << 20);
    assert_int_equal(hzp_size_parse("3GiB"), 3ll << 30);
    assert_int_equal(hzp_size_parse("3GB"), 3000000000ll);
    assert_int_equal(hzp_size_parse("1.5kB"), 1500);
    assert_int_equal(hzp_size_parse("7B"), 7);
    assert_int_equal(hzp_size_parse("7iB"), -1);
    assert_int_equal(hzp_size_parse("1.5T"), 3ll << 39);
    assert_int_equal(hzp_size_parse("M"), -1);
    assert_int_equal(hzp_size_parse("1MM"), -1);
    assert_int_equal(hzp_size_parse("inf"), -1);
    assert_int_equal(hzp_size_parse(""), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_in_range),
        cmocka_unit_test(words_and_values),
        cmocka_unit_test(parts_are_whole),
        cmocka_unit_test(words_of_other_programs),
        cmocka_unit_test(what_is_no_model),
        cmocka_unit_test(forms_that_are_not_read),
        cmocka_unit_test(options_have_parts),
        cmocka_unit_test(options_are_few),
        cmocka_unit_test(errors_name_the_option),
        cmocka_unit_test(the_environment_comes_second),
        cmocka_unit_test(a_model_has_settings_of_its_own),
        cmocka_unit_test(errors_say_what_was_meant),
        cmocka_unit_test(help_goes_by_topic),
        cmocka_unit_test(help_has_every_option),
        cmocka_unit_test(other_commands_want_a_model),
        cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

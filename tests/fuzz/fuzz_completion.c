/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of POST /v1/completions (with messages: /v1/chat/completions): refused with
 * a text, or accepted as parameters that satisfy every assumption of later stages. */
#include "api/http/routes/completion.h"
#include "base/json.h"
#include "tests/fuzz/smoke.h"

#include <math.h>
#include <unistd.h>

enum { VOCAB = 40, CONTEXT = 200 };

static const char tokenizer[] =
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true}], \"model\": "
    "{\"type\": \"BPE\", \"unk_token\": \"u\", \"vocab\": {\"<s>\": 0, \"u\": 1, \"a\": 2, \"b\": "
    "3, "
    "\"ab\": 4, \" \": 5}, \"merges\": [\"a b\"]}}";

static const struct hzp_engine_settings settings = {
    .serving = {.waiting_max = 256, .waiting_tokens = 1 << 20}};
static struct hzp_engine engine;

static void check(bool condition)
{
    if (!condition)
        abort();
}

static const char chat_template[] =
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% for call in "
    "message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{{ tools }}{{ documents }}{% if add_generation_prompt %}a{{ mood }}{% endif %}";

static void close_engine(void)
{
    hzp_chat_close(engine.parts.chat);
    hzp_tokenizer_close(engine.parts.tok);
}

static void open_engine(void)
{
    char dir[] = "/tmp/hzp-fuzz-XXXXXX", path[64];
    check(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *file = fopen(path, "w");
    check(file && fputs(tokenizer, file) >= 0 && fclose(file) == 0);
    struct hzp_err_text err;
    check(hzp_tokenizer_open(dir, &engine.parts.tok, &err) == HZP_OK);
    remove(path);
    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    file = fopen(path, "w");
    check(file && fputs(chat_template, file) >= 0 && fclose(file) == 0);
    check(hzp_chat_open(dir, NULL, &engine.parts.chat, &err) == HZP_OK && engine.parts.chat);
    remove(path);
    rmdir(dir);
    engine.config.settings = &settings;
    engine.parts.config.vocab = VOCAB;
    engine.parts.plan.positions = CONTEXT;
    check(atexit(close_engine) == 0);
}

static void use(const struct hzp_completion_params *p)
{
    check(p->prompts >= 1 && p->n >= 1 && (int64_t)p->prompts * p->n <= HZP_CHOICES_MAX);
    check(p->max_tokens >= 0 && p->min_tokens >= 0 && p->min_tokens <= p->max_tokens);
    for (int32_t i = 0; i < p->prompts; i++) {
        check(p->prompt[i].n >= 1 && p->prompt[i].n + (size_t)p->max_tokens <= CONTEXT);
        for (size_t t = 0; t < p->prompt[i].n; t++)
            check(p->prompt[i].ids[t] >= 0 && p->prompt[i].ids[t] < VOCAB);
    }
    const struct hzp_sampling *s = &p->sampling;
    check(s->temperature >= 0 && isfinite(s->temperature) && s->top_p > 0 && s->top_p <= 1);
    check(s->min_p >= 0 && s->min_p <= 1 && s->repetition > 0 && isfinite(s->repetition));
    check(fabsf(s->presence) <= 2 && fabsf(s->frequency) <= 2 && s->top_k >= 0);
    check(p->logprobs >= -1 && p->logprobs <= HZP_TOPS_MAX);
    for (int32_t i = 0; i < p->biases; i++)
        check(p->bias_token[i] >= 0 && p->bias_token[i] < VOCAB && p->bias[i] <= 100);
    for (int32_t i = 0; i < p->stop_ids; i++)
        check(p->stop_id[i] >= 0 && p->stop_id[i] < VOCAB);
    for (int32_t i = 0; i < p->stops; i++)
        check(p->stop[i] && p->stop_bytes[i] > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!engine.parts.tok)
        open_engine();
    json_t *body = hzp_json_load((const char *)data, size, 0, NULL, NULL);
    if (json_is_object(body)) {
        struct hzp_completion_params params;
        struct hzp_err_text err = {.text = ""};
        int r = json_object_get(body, "messages")
                    ? hzp_chat_parse(body, &engine, &params, &err)
                    : hzp_completion_parse(body, &engine, &params, &err);
        check((r == HZP_OK) == (err.text[0] == 0));
        if (r == HZP_OK)
            use(&params);
        else
            check(r == HZP_EINVAL && !params.prompt);
        hzp_completion_params_fini(&params);
    }
    json_decref(body);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT(
        "{\"prompt\": \"a\\u0000b\", \"metadata\": {\"n\": 18446744073709551616, \"m\": 1e400}, "
        "\"seed\": -1e400, \"user\": \"\\ud800\", \"logit_bias\": {\"1\": 1E+999}}"),
    FUZZ_TEXT("{\"prompt\": \"ab ab\", \"max_tokens\": 5, \"temperature\": 0.5, \"top_p\": 0.9, "
              "\"n\": 2, \"stop\": [\"a\", \"b\"], \"seed\": 7, \"stream\": true, "
              "\"stream_options\": {\"include_usage\": true}}"),
    FUZZ_TEXT("{\"prompt\": [[1, 2, 3], [4]], \"logit_bias\": {\"3\": -100, \"4\": 5.5}, "
              "\"stop_token_ids\": [1, 2], \"min_tokens\": 3, \"logprobs\": 4, \"echo\": true}"),
    FUZZ_TEXT("{\"prompt\": [\"a\", \"b\", \"\"], \"presence_penalty\": 1.5, \"min_p\": 0.1, "
              "\"frequency_penalty\": -2, \"repetition_penalty\": 1.1, \"top_k\": -1, "
              "\"best_of\": 1, \"suffix\": null, \"ignore_eos\": true}"),
    FUZZ_TEXT("{\"messages\": [{\"role\": \"user\", \"content\": \"ab a\"}, {\"role\": "
              "\"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"b\"}]}], "
              "\"max_tokens\": 9, \"top_logprobs\": 2, \"logprobs\": true, \"user\": \"a\", "
              "\"continue_final_message\": true, \"echo\": true, \"stop\": \"a\"}"),
    FUZZ_TEXT("{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
              "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}], \"tools\": "
              "[{\"function\": {\"name\": \"f\"}}], \"chat_template_kwargs\": {\"mood\": 1}, "
              "\"max_completion_tokens\": 3, \"documents\": []}"),
    FUZZ_TEXT("{\"prompt\": [5, 4, 3], \"max_tokens\": 196, \"add_special_tokens\": false}"),
};

FUZZ_MAIN(seeds)

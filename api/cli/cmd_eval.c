/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve eval MODEL --data FILE: mean negative log-likelihood, in nats per token.
 *
 * Text: cut at <|endoftext|> into documents, each stripped of white space at both ends, empty ones
 * dropped; a document is tokenised with the special tokens the tokenizer adds, and every token but
 * the first counts.  A document longer than the context is cut into pieces, each beginning with the
 * last token of the one before.
 * --quantization fp8: through the products that serving would use.
 * JSONL (any name that does not end in .txt): examples as api/learn/examples.h reads them; what
 * they learn from is what counts. */
#include "api/cli/commands.h"
#include "api/engine/engine.h"
#include "api/learn/examples.h"
#include "nanobatch/run/exec.h"
#include "weights/fp8.h"
#include "weights/json_file.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char separator[] = "<|endoftext|>";
enum { ROWS_MAX = 2048 };
static const uint64_t FILE_BYTES_MAX = 1u << 30;

struct eval {
    const struct hzp_options *options;
    struct hzp_tokenizer *tok;
    struct hzp_model_config config;
    struct hzp_layout layout;
    struct hzp_device *dev;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_micro *micro;
    struct hzp_train_space *space;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    int32_t rows;
    double sum;
    int64_t tokens, documents;
};

static int open_eval(struct eval *e, struct hzp_err_text *reterr)
{
    const struct hzp_options *options = e->options;
    HZP_TRY(hzp_config_read(options->model, &e->config, reterr));
    HZP_TRY(hzp_tokenizer_open(options->model, &e->tok, reterr));
    hzp_layout_make(&e->config, &e->layout);
    struct hzp_device_config device = {
        .name = options->device, .threads = (int)options->threads, .level = options->cpu_level};
    HZP_TRY(hzp_device_open(&device, &e->dev, reterr));
    int64_t context = options->context ? options->context : e->config.positions;
    e->rows = (int32_t)HZP_MIN(HZP_MIN(context, e->config.positions), ROWS_MAX);
    struct hzp_weights_config weights = {.type = hzp_engine_dtype(options, &e->config),
                                         .fp8 = options->quantization != 0,
                                         .slots = 1,
                                         .first_id = 1};
    HZP_TRY(hzp_weights_create(e->dev, &e->layout, &weights, &e->weights));
    struct hzp_version *draft;
    HZP_TRY(hzp_weights_begin(e->weights, &draft));
    HZP_TRY(hzp_engine_load(e->dev, e->weights, draft, options->model, reterr));
    HZP_TRY(hzp_version_quantize(e->weights, draft));
    hzp_weights_publish(e->weights, draft, 0);
    HZP_TRY(hzp_model_create(e->dev, e->weights, e->rows, &e->model));
    HZP_TRY(hzp_micro_create(e->dev, e->rows, &e->micro));
    struct hzp_recipe recipe = {.micro_rows = e->rows, .moment_type = HZP_F32};
    struct hzp_train_space_config space = hzp_trainer_space_config(&recipe, &e->config, 0);
    space.forward_only = true;
    space.fp8 = options->quantization != 0;
    HZP_TRY(hzp_train_space_create(e->model, &space, &e->space));
    return hzp_exec_create(e->dev, &e->exec);
}

static void close_eval(struct eval *e)
{
    hzp_exec_destroy(e->exec);
    hzp_plan_fini(&e->plan);
    hzp_train_space_destroy(e->space);
    hzp_micro_destroy(e->micro);
    hzp_model_destroy(e->model);
    hzp_weights_destroy(e->weights);
    hzp_device_close(e->dev);
    hzp_layout_free(&e->layout);
    hzp_tokenizer_close(e->tok);
}

/* Computes what has been gathered. */
static int flush(struct eval *e)
{
    if (!e->micro->rows)
        return HZP_OK;
    hzp_plan_clear(&e->plan);
    hzp_eval_build(&e->plan, e->model, hzp_weights_current(e->weights), e->micro, e->space);
    struct hzp_exec_times times;
    HZP_TRY(hzp_exec_run(e->exec, &e->plan, NULL, &times));
    for (int32_t i = 0; i < e->micro->learned; i++)
        e->sum += (double)e->micro->loss.value[i];
    e->tokens += e->micro->learned;
    hzp_micro_clear(e->micro);
    return HZP_OK;
}

/* Adds a document, in pieces if it is longer than the context. */
static int add(struct eval *e, const int32_t *token, const uint8_t *learn, int32_t count)
{
    e->documents++;
    for (int32_t at = 0; at + 1 < count; at += e->rows) {
        int32_t piece = HZP_MIN(count - at, e->rows + 1);
        int r = hzp_micro_add(e->micro, token + at, learn + at, piece);
        if (r == HZP_EBUSY) {
            HZP_TRY(flush(e));
            r = hzp_micro_add(e->micro, token + at, learn + at, piece);
        }
        HZP_TRY(r);
    }
    return HZP_OK;
}

static int add_text(struct eval *e, const char *text, size_t bytes, struct hzp_err_text *reterr)
{
    while (bytes && isspace((unsigned char)text[bytes - 1]))
        bytes--;
    while (bytes && isspace((unsigned char)*text))
        text++, bytes--;
    if (!bytes)
        return HZP_OK;
    struct hzp_tokens tokens = {0};
    struct hzp_err_text err = {{0}, {0}};
    int r = hzp_tokenizer_encode(e->tok, text, bytes, HZP_TOKENIZER_ADD_SPECIAL, INT32_MAX, &tokens,
                                 &err);
    if (r < 0)
        hzp_fail(reterr, r, "%s: document %lld: %s", e->options->data, (long long)e->documents + 1,
                 err.text);
    for (size_t i = 0; i < tokens.n && r == HZP_OK; i++)
        if (tokens.ids[i] < 0 || tokens.ids[i] >= e->config.vocab)
            r = hzp_fail(reterr, HZP_EINVAL,
                         "%s: document %lld: token %d is beyond the model's vocabulary of %d",
                         e->options->data, (long long)e->documents + 1, tokens.ids[i],
                         e->config.vocab);
    uint8_t *learn = malloc(tokens.n + 1);
    if (r == HZP_OK && !learn)
        r = hzp_fail(reterr, HZP_ENOMEM, "no memory for a document of %zu bytes", bytes);
    if (r == HZP_OK) {
        memset(learn, 1, tokens.n);
        r = add(e, tokens.ids, learn, (int32_t)tokens.n);
    }
    free(learn);
    hzp_tokens_fini(&tokens);
    return r;
}

/* The whole file, ended by 0. */
static int read_file(const char *path, char **ret, size_t *ret_bytes, struct hzp_err_text *reterr)
{
    uint64_t bytes;
    int fd = hzp_open_regular(path, &bytes, reterr);
    if (fd < 0)
        return fd;
    char *text = bytes <= FILE_BYTES_MAX ? malloc((size_t)bytes + 1) : NULL;
    size_t got = 0;
    ssize_t n = 1;
    while (text && got < bytes && n > 0) { /* one that shrinks meanwhile gives less */
        n = read(fd, text + got, (size_t)bytes - got);
        got += n > 0 ? (size_t)n : 0;
    }
    int error = errno;
    close(fd);
    if (!text)
        return hzp_fail(reterr, HZP_EINVAL, "%s: %s", path,
                        bytes > FILE_BYTES_MAX ? "larger than 1 GB" : "no memory for it");
    if (n < 0) {
        free(text);
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(error));
    }
    text[got] = 0;
    *ret = text;
    *ret_bytes = got;
    return HZP_OK;
}

static int eval_text(struct eval *e, struct hzp_err_text *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    HZP_TRY(read_file(e->options->data, &text, &bytes, reterr));
    int r = HZP_OK;
    const char *at = text, *end = text + bytes;
    while (at < end && r == HZP_OK) {
        const char *cut = memmem(at, (size_t)(end - at), separator, sizeof(separator) - 1);
        r = add_text(e, at, (size_t)((cut ? cut : end) - at), reterr);
        at = cut ? cut + sizeof(separator) - 1 : end;
    }
    free(text);
    return r;
}

static int eval_examples(struct eval *e, struct hzp_err_text *reterr)
{
    struct hzp_examples examples;
    struct hzp_sample **sample = NULL;
    int32_t count = 0;
    hzp_examples_init(&examples, e->tok, &e->config, e->rows + 1, 0);
    examples.split = true;
    int r = hzp_examples_load(&examples, e->options->data, &sample, &count, reterr);
    for (int32_t i = 0; i < count && r == HZP_OK; i++)
        r = add(e, sample[i]->token, sample[i]->learn, sample[i]->count);
    hzp_examples_free(sample, count);
    hzp_examples_fini(&examples);
    return r;
}

static int evaluate(struct eval *e, struct hzp_err_text *reterr)
{
    HZP_TRY(open_eval(e, reterr));
    size_t n = strlen(e->options->data);
    bool text = n > 4 && !strcmp(e->options->data + n - 4, ".txt");
    HZP_TRY(text ? eval_text(e, reterr) : eval_examples(e, reterr));
    HZP_TRY(flush(e));
    return e->tokens ? HZP_OK
                     : hzp_fail(reterr, HZP_EINVAL, "%s: nothing to evaluate", e->options->data);
}

int hzp_cmd_eval(const struct hzp_options *options)
{
    if (options->words != 1 || !options->data) {
        fprintf(stderr, "hzpserve: eval takes a model directory and --data FILE\n");
        return 2;
    }
    struct eval e = {.options = options};
    struct hzp_err_text err = {0};
    hzp_plan_init(&e.plan);
    int r = evaluate(&e, &err);
    if (r < 0) {
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    } else {
        double mean = e.sum / (double)e.tokens;
        const char *form = options->json
                               ? "{\"mean_nll\": %.6f, \"perplexity\": %.4f, \"tokens\": %lld, "
                                 "\"documents\": %lld}\n"
                               : "mean NLL %.5f   perplexity %.4f   tokens %lld   documents %lld\n";
        printf(form, mean, exp(mean), (long long)e.tokens, (long long)e.documents);
    }
    close_eval(&e);
    return r < 0;
}

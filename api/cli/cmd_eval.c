/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve eval MODEL --data FILE: computes the mean negative log-likelihood in nats per token.
 *
 * Text (a name that ends in .txt): split at <|endoftext|> into documents, each stripped of white
 * space at both ends, empty ones dropped; a document is tokenised with the special tokens the
 * tokenizer adds, and every token but the first counts.  A document longer than the context is
 * split into pieces, each beginning with the last token of the one before.  JSONL (any other name):
 * examples in the format of api/learn/examples.h; the tokens that training learns from count, each
 * by its weight.
 * --quantization fp8: with the same matrix products as serving. */
#include "api/cli/commands.h"
#include "api/engine/assembly.h"
#include "api/learn/examples.h"
#include "nanobatch/run/exec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 2048, LONGEST = INT32_MAX / 2 /* tokens of a document */ };

struct eval {
    const char *data;
    const struct hzp_example_fields *fields;
    enum hzp_too_long too_long;
    struct hzp_assembly parts;
    struct hzp_micro *micro;
    struct hzp_train_space *space;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    int32_t rows;
    double sum, weight; /* sums of the losses and of the learned tokens */
    int64_t tokens, documents;
};

static int open_eval(struct eval *e, const struct hzp_engine_settings *settings,
                     struct hzp_err_text *reterr)
{
    struct hzp_assembly *a = &e->parts;
    int64_t context = settings->model.context ? settings->model.context : ROWS_MAX;
    struct hzp_assembly_config config = {.device = &settings->device,
                                         .model = &settings->model,
                                         .tokenizer = true,
                                         .positions = (int32_t)HZP_MIN(context, ROWS_MAX)};
    HZP_TRY(hzp_assembly_read(&config, a, reterr));
    HZP_TRY(hzp_assembly_open(a, 1, reterr));
    HZP_TRY(hzp_assembly_fill(a, NULL, NULL, reterr));
    e->rows = a->model->positions;
    HZP_TRY(hzp_micro_create(a->dev, e->rows, &e->micro));
    struct hzp_recipe recipe = {.micro_rows = e->rows, .moment_type = HZP_F32};
    struct hzp_train_space_config space = hzp_learner_space_config(&recipe, &a->config, 0);
    space.forward_only = true;
    space.fp8 = settings->model.fp8 != 0;
    HZP_TRY(hzp_train_space_create(a->model, &space, &e->space));
    return hzp_exec_create(a->dev, &e->exec);
}

static void close_eval(struct eval *e)
{
    hzp_exec_destroy(e->exec);
    hzp_plan_fini(&e->plan);
    hzp_train_space_destroy(e->space);
    hzp_micro_destroy(e->micro);
    hzp_assembly_close(&e->parts);
}

/* Runs the collected documents. */
static int flush(struct eval *e)
{
    if (!e->micro->rows)
        return HZP_OK;
    hzp_plan_clear(&e->plan);
    hzp_eval_build(&e->plan, e->parts.model, hzp_weights_current(e->parts.weights), e->micro,
                   e->space);
    struct hzp_exec_times times;
    HZP_TRY(hzp_exec_run(e->exec, &e->plan, NULL, &times));
    for (int32_t i = 0; i < e->micro->learned; i++)
        e->sum += (double)e->micro->loss.value[i];
    e->tokens += e->micro->learned;
    e->weight += e->micro->weight_sum;
    hzp_micro_clear(e->micro);
    return HZP_OK;
}

/* Adds a document, split into pieces if it is longer than the context. */
static int add(struct eval *e, const int32_t *token, const uint8_t *learn, const float *weight,
               int32_t count)
{
    e->documents++;
    for (int32_t at = 0; at + 1 < count; at += e->rows) {
        int32_t piece = HZP_MIN(count - at, e->rows + 1);
        const float *own = weight ? weight + at : NULL;
        int r = hzp_micro_add_weighted(e->micro, token + at, learn + at, own, piece);
        if (r == HZP_EBUSY) {
            HZP_TRY(flush(e));
            r = hzp_micro_add_weighted(e->micro, token + at, learn + at, own, piece);
        }
        HZP_TRY(r);
    }
    return HZP_OK;
}

static int add_all(struct eval *e, struct hzp_err_text *reterr)
{
    struct hzp_examples examples;
    struct hzp_sample **sample = NULL;
    int32_t count = 0;
    size_t n = strlen(e->data);
    bool text = n > 4 && !strcmp(e->data + n - 4, ".txt"); /* whose documents are cut by add() */
    hzp_examples_init(&examples, e->parts.tok, &e->parts.config, text ? LONGEST : e->rows + 1, 0);
    examples.split = examples.endless = true;
    examples.chat = e->parts.chat;
    examples.fields = *e->fields;
    examples.too_long = e->too_long;
    int r = hzp_examples_load(&examples, e->data, &sample, &count, reterr);
    for (int32_t i = 0; i < count && r == HZP_OK; i++)
        r = add(e, sample[i]->token, sample[i]->learn, sample[i]->weight, sample[i]->count);
    hzp_examples_free(sample, count);
    hzp_examples_fini(&examples);
    return r;
}

static int evaluate(struct eval *e, const struct hzp_engine_settings *settings,
                    struct hzp_err_text *reterr)
{
    HZP_TRY(open_eval(e, settings, reterr));
    int r = add_all(e, reterr);
    if (r == HZP_ENOENT)
        return hzp_fail_param(reterr, HZP_EINVAL, "--data", "--data %s: there is no such file",
                              e->data);
    HZP_TRY(r);
    HZP_TRY(flush(e));
    return e->tokens ? HZP_OK : hzp_fail(reterr, HZP_EINVAL, "%s: nothing to evaluate", e->data);
}

int hzp_cmd_eval(const struct hzp_options *options)
{
    if (options->words != 1 || !options->train.data) {
        fprintf(stderr, "hzpserve: usage: hzpserve eval MODEL --data FILE\n");
        return 2;
    }
    struct eval e = {.data = options->train.data,
                     .fields = &options->train.fields,
                     .too_long = (enum hzp_too_long)(1 + options->train.too_long)};
    struct hzp_err_text err = {0};
    hzp_plan_init(&e.plan);
    int r = evaluate(&e, &options->engine, &err), status = 0;
    if (r < 0) {
        status = hzp_command_failed(r, &err);
    } else {
        double mean = e.sum / e.weight;
        const char *form = options->json
                               ? "{\"mean_nll\": %.6f, \"perplexity\": %.4f, \"tokens\": %lld, "
                                 "\"documents\": %lld}\n"
                               : "mean NLL %.5f   perplexity %.4f   tokens %lld   documents %lld\n";
        printf(form, mean, exp(mean), (long long)e.tokens, (long long)e.documents);
    }
    close_eval(&e);
    return status;
}

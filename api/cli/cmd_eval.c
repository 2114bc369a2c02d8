/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve eval MODEL --data FILE: computes the mean negative log-likelihood in nats per token.
 *
 * Text (a name that ends in .txt): split at <|endoftext|> into documents, each stripped of white
 * space at both ends, empty ones dropped; a document is tokenised with the special tokens the
 * tokenizer adds, and every token but the first counts.  A document longer than the context is
 * split into pieces, each beginning with the last token of the one before.  JSONL (any other name):
 * examples in the format of api/learn/examples.h; the tokens that training learns from count, each
 * by its weight.
 * --quantization fp8: with the same matrix products as serving.  --skip X: as a request of depth
 * 1 - X is answered. */
#include "api/cli/commands.h"
#include "api/engine/assembly.h"
#include "api/learn/examples.h"
#include "train/checks/evaluate.h"

enum { ROWS_MAX = 2048, LONGEST = INT32_MAX / 2 /* tokens of a document */ };

struct eval {
    const char *data;
    const struct hzp_example_fields *fields;
    enum hzp_too_long too_long;
    struct hzp_assembly parts;
    struct hzp_evaluator *evaluator;
    struct hzp_sample **sample; /* [documents] */
    int32_t documents, depth;
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
    if (settings->training.swap)
        return hzp_wrong(reterr, "--skip", "swap=1 is for training: a request's layers never swap");
    HZP_TRY(hzp_assembly_read(&config, a, reterr));
    HZP_TRY(hzp_assembly_open(a, 1, reterr));
    HZP_TRY(hzp_assembly_fill(a, NULL, NULL, reterr));
    HZP_TRY(hzp_evaluator_create(a->model, a->model->positions, settings->model.fp8 != 0,
                                 &e->evaluator));
    e->depth = hzp_depth_of(1 - (float)settings->training.skip, a->config.layers);
    hzp_evaluator_set_depth(e->evaluator, e->depth);
    return HZP_OK;
}

static int load(struct eval *e, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_examples_fini) struct hzp_examples examples;
    size_t n = strlen(e->data);
    bool text = n > 4 && !strcmp(e->data + n - 4, ".txt"); /* documents are cut as they are run */
    int32_t tokens_max = text ? LONGEST : e->parts.model->positions + 1;
    hzp_examples_init(&examples, e->parts.tok, &e->parts.config, tokens_max, 0);
    examples.split = examples.endless = true;
    examples.chat = e->parts.chat;
    examples.fields = *e->fields;
    examples.too_long = e->too_long;
    return hzp_examples_load_option(&examples, e->data, "--data", &e->sample, &e->documents,
                                    reterr);
}

static int evaluate(struct eval *e, const struct hzp_engine_settings *settings, double *ret_mean,
                    int64_t *ret_tokens, struct hzp_err_text *reterr)
{
    HZP_TRY(open_eval(e, settings, reterr));
    HZP_TRY(load(e, reterr));
    HZP_TRY(hzp_evaluator_run(e->evaluator, hzp_weights_current(e->parts.weights), e->sample,
                              e->documents, ret_mean, ret_tokens));
    return *ret_tokens ? HZP_OK : hzp_fail(reterr, HZP_EINVAL, "%s: nothing to evaluate", e->data);
}

int hzp_cmd_eval(const struct hzp_options *options)
{
    if (options->words != 1 || !options->train.data)
        return hzp_command_usage("eval MODEL --data FILE");
    struct eval e = {.data = options->train.data,
                     .fields = &options->train.fields,
                     .too_long = (enum hzp_too_long)(1 + options->train.too_long)};
    struct hzp_err_text err = {0};
    double mean = 0;
    int64_t tokens = 0;
    int r = evaluate(&e, &options->engine, &mean, &tokens, &err), status = 0;
    if (r < 0) {
        status = hzp_command_failed(r, &err);
    } else {
        const char *form = options->json
                               ? "{\"mean_nll\": %.6f, \"perplexity\": %.4f, \"tokens\": %lld, "
                                 "\"documents\": %lld, \"layers\": %d}\n"
                               : "mean NLL %.5f   perplexity %.4f   tokens %lld   documents %lld   "
                                 "layers %d\n";
        printf(form, mean, exp(mean), (long long)tokens, (long long)e.documents,
               hzp_depth_places(e.depth, e.parts.config.layers));
    }
    hzp_examples_free(e.sample, e.documents);
    hzp_evaluator_destroy(e.evaluator);
    hzp_assembly_close(&e.parts);
    return status;
}

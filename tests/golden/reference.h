/* SPDX-License-Identifier: Apache-2.0 */
/* tests/golden/reference.h - texts by the sample op, and what a float64 reference says of a trained
 * model: greedy continuations, their log-probabilities, the mean loss on a text.
 *
 * Thread: the test's; each rank may have its own.
 */
#pragma once

#include "tests/golden/golden.h"
#include "text/tokenizer/tokenizer.h"

#include <ctype.h>
#include <unistd.h>

/* A prompt and its continuation. */
struct golden_text {
    const int32_t *prompt;
    int32_t prompt_count, count; /* tokens; count: of the continuation */
    const int32_t *given;        /* [count] tokens that are taken; NULL: the likeliest are */
    int32_t *token;              /* [count] */
    float *logprob;              /* [count]; NULL: not wanted */
};

static inline void write_text(struct fixture *f, const struct golden_text *t)
{
    struct hzp_batch_config max = {.rows_max = t->prompt_count,
                                   .segs_max = 1,
                                   .page_stride = PAGES,
                                   .logits_max = 1,
                                   .edits_max = 1};
    const struct hzp_model_config *c = &f->m.layout.config;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv kv[16];
    size_t page =
        (size_t)c->heads.kv_heads * PAGE_ROWS * (size_t)c->heads.dim * hzp_dtype_size(f->type);
    HZP_ASSERT(c->layers <= HZP_COUNT(kv) && t->prompt_count + t->count <= PAGES * PAGE_ROWS);
    MUST(hzp_batch_create(f->m.dev, &max, &batch));
    MUST(hzp_serve_space_create(f->m.model, t->prompt_count, 1, &space));
    for (int32_t l = 0; l < c->layers; l++) {
        kv[l] = (struct hzp_kv){NULL, NULL, PAGES, PAGE_ROWS, f->type, NULL, NULL};
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].k));
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].v));
    }
    for (int32_t i = 0, pos = 0; i < t->count; i++) {
        hzp_batch_clear(batch);
        int32_t rows = i ? 1 : t->prompt_count;
        int32_t *pages = hzp_batch_add_segment(batch, pos, i > 0);
        for (int32_t p = 0; p < HZP_DIV_UP(pos + rows, PAGE_ROWS); p++)
            pages[p] = PAGES - 1 - p;
        for (int32_t r = 0; r < rows; r++, pos++)
            hzp_batch_add_row(batch, i ? t->token[i - 1] : t->prompt[r],
                              pages[pos / PAGE_ROWS] * PAGE_ROWS + pos % PAGE_ROWS);
        hzp_batch_add_logits(batch, rows - 1);
        batch->sample[0] = (struct hzp_sample_row){
            .top_p = 1, .repetition = 1, .given = t->given ? t->given[i] : -1};
        hzp_forward_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), batch, kv, space,
                          NULL);
        run(f);
        t->token[i] = batch->token[0];
        if (t->logprob)
            t->logprob[i] = batch->logprob[0];
    }
    for (int32_t l = 0; l < c->layers; l++) {
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].k);
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].v);
    }
    hzp_serve_space_destroy(space);
    hzp_batch_destroy(batch);
}

/* F32: the tokens are drawn, and each has the reference's log-probability.  bf16: the reference's
 * tokens are taken, and the mean of their log-probabilities is compared. */
static inline void test_greedy(struct fixture *f, json_t *expected)
{
    enum { MOST = PAGES * PAGE_ROWS };
    json_t *cases = at(expected, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        json_t *one = json_array_get(cases, c), *logprobs = at(one, "greedy_logprobs");
        int32_t prompt[MOST], greedy[MOST], got[MOST], differ = 0;
        float logprob[MOST];
        double worst = 0, sum = 0;
        HZP_ASSERT(json_array_size(at(one, "prompt_ids")) + json_array_size(logprobs) <= MOST);
        struct golden_text t = {.prompt = prompt,
                                .prompt_count = ints(at(one, "prompt_ids"), prompt),
                                .count = ints(at(one, "greedy_ids"), greedy),
                                .given = f->type == HZP_F32 ? NULL : greedy,
                                .token = got,
                                .logprob = logprob};
        write_text(f, &t);
        for (int32_t i = 0; i < t.count; i++) {
            double off =
                (double)logprob[i] - json_number_value(json_array_get(logprobs, (size_t)i));
            differ += got[i] != greedy[i];
            worst = fabs(off) > worst || isnan(off) ? fabs(off) : worst;
            sum += off;
        }
        check(f, "tokens of a reference's text that differ", differ, 0);
        if (f->type == HZP_F32)
            check(f, "log-probabilities of a reference's text", worst, 1e-3);
        else
            check(f, "mean log-probability of a reference's text", fabs(sum / t.count), 0.01);
    }
}

/* Adds the loss of a document, its white space stripped. */
static inline void lose_document(struct fixture *f, struct hzp_tokenizer *tok, const char *from,
                                 const char *end, double *sum, double *tokens)
{
    struct hzp_tokens ids = {0};
    uint8_t learn[ROWS_MAX];
    while (from < end && isspace((unsigned char)*from))
        from++;
    while (from < end && isspace((unsigned char)end[-1]))
        end--;
    if (from == end)
        return;
    MUST(hzp_tokenizer_encode(tok, from, (size_t)(end - from), HZP_TOKENIZER_ADD_SPECIAL, ROWS_MAX,
                              &ids, &text));
    memset(learn, 1, sizeof(learn));
    hzp_micro_clear(f->micro);
    MUST(hzp_micro_add(f->micro, ids.ids, learn, (int32_t)ids.n));
    hzp_eval_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), f->micro, f->space);
    run(f);
    *sum += loss_sum(f->micro);
    *tokens += f->micro->learned;
    hzp_tokens_fini(&ids);
}

/* The caller frees the text. */
static inline char *read_text(const char *path)
{
    enum { MOST = 1 << 20 };
    char *ret = hzp_xcalloc(MOST + 1, 1);
    FILE *file = fopen(path, "r");
    if (!file || fread(ret, 1, MOST, file) == MOST) {
        fprintf(stderr, "%s: cannot be read, or is too long\n", path);
        exit(1);
    }
    fclose(file);
    return ret;
}

/* The mean loss over all tokens of the documents of file, against expected's. */
static inline void test_mean_loss(struct fixture *f, json_t *expected, const char *file)
{
    static const char separator[] = "<|endoftext|>";
    struct hzp_tokenizer *tok;
    char *all = read_text(file);
    double sum = 0, tokens = 0;
    MUST(hzp_tokenizer_open(f->dir, &tok, &text));
    for (const char *from = all, *next; from; from = next) {
        const char *end = strstr(from, separator);
        next = end ? end + strlen(separator) : NULL;
        lose_document(f, tok, from, end ? end : all + strlen(all), &sum, &tokens);
    }
    hzp_tokenizer_close(tok);
    free(all);
    check(f, "tokens of a text", fabs(tokens - number(expected, "tokens")), 0);
    check(f, "mean loss on a text", fabs(sum / tokens - number(expected, "mean_nll")),
          f->type == HZP_F32 ? 2e-5 : 0.002);
}

/* expected: the reference's answers.  A text that they name is in the folder that has the model's
 * folder in one of its own. */
static inline void test_reference(struct fixture *f, json_t *expected)
{
    json_t *eval = json_object_get(expected, "eval");
    test_greedy(f, expected);
    if (!eval)
        return;
    char path[600];
    snprintf(path, sizeof(path), "%s/../../%s", f->dir, json_string_value(at(eval, "file")));
    if (access(path, R_OK) == 0)
        test_mean_loss(f, eval, path);
    else
        printf("left out: there is no %s\n", path);
}

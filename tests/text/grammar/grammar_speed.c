/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/grammar/grammar_speed.c - how long a grammar takes to make, and a mask per token.
 *
 *     grammar_speed TOKENIZER_DIR SCHEMA TEXT [REPEATS]
 *
 * SCHEMA is a file with a JSON schema, TEXT one with a text of it.  Prints a JSON object; times in
 * microseconds. */
#include "base/thread.h"
#include "text/chat/structure.h"
#include "text/grammar/automaton.h"
#include "text/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double us_since(uint64_t begin)
{
    return (double)(hzp_now_ns() - begin) / 1e3;
}

static int by_value(const void *pa, const void *pb)
{
    const double *a = pa, *b = pb;
    return (*a > *b) - (*a < *b);
}

static char *file_text(const char *path, size_t *ret_bytes)
{
    FILE *file = fopen(path, "r");
    char *text = hzp_xmalloc(1 << 20);
    HZP_ASSERT(file);
    *ret_bytes = fread(text, 1, (1 << 20) - 1, file);
    text[*ret_bytes] = '\0';
    fclose(file);
    return text;
}

static struct hzp_lexicon *lexicon(const struct hzp_tokenizer *tok)
{
    int32_t count = hzp_tokenizer_vocab(tok);
    struct hzp_lexicon *made;
    struct hzp_token_text *text = hzp_xcalloc((size_t)count, sizeof(*text));
    for (int32_t i = 0; i < count; i++) {
        size_t size = 0;
        text[i].bytes = hzp_tokenizer_token(tok, i, &size);
        text[i].size = (int32_t)size;
        text[i].special = hzp_tokenizer_is_special(tok, i);
    }
    hzp_lexicon_create(text, count, &made);
    free(text);
    return made;
}

/* The text's tokens as they come behind a line: SentencePiece begins a text otherwise. */
static void encode(struct hzp_tokenizer *tok, const char *text, size_t bytes,
                   struct hzp_tokens *tokens)
{
    char *line = hzp_xmalloc(bytes + 2);
    size_t left = 0;
    line[0] = '\n';
    memcpy(line + 1, text, bytes);
    HZP_ASSERT(hzp_tokenizer_encode(tok, line, bytes + 1, 0, INT32_MAX, tokens, NULL) == HZP_OK);
    size_t first = tokens->n;
    while (first > 0 && left < bytes) {
        size_t size = 0;
        hzp_tokenizer_token(tok, tokens->ids[--first], &size);
        left += size;
    }
    HZP_ASSERT(left == bytes); /* the line break is a token of its own */
    memmove(tokens->ids, tokens->ids + first, (tokens->n - first) * sizeof(*tokens->ids));
    tokens->n -= first;
    free(line);
}

/* Times of the masks along the text, sorted. */
static double *masks(struct hzp_grammar *g, const struct hzp_tokens *tokens, int repeats,
                     uint32_t *mask, int *ret_count)
{
    double *us = hzp_xcalloc(tokens->n * (size_t)repeats + 1, sizeof(*us));
    int count = 0;
    for (int r = 0; r < repeats; r++) {
        struct hzp_constraint_run *run = hzp_grammar_run_create(g);
        for (size_t i = 0; i < tokens->n; i++) {
            uint64_t begin = hzp_now_ns();
            hzp_grammar_run_mask(run, mask);
            bool took = hzp_grammar_run_token(run, tokens->ids[i]);
            us[count++] = us_since(begin);
            HZP_ASSERT(took && mask[tokens->ids[i] / 32] >> tokens->ids[i] % 32 & 1);
        }
        HZP_ASSERT(hzp_grammar_run_may_end(run));
        hzp_grammar_run_destroy(run);
    }
    qsort(us, (size_t)count, sizeof(*us), by_value);
    *ret_count = count;
    return us;
}

int main(int argc, char **argv)
{
    struct hzp_tokenizer *tok;
    struct hzp_err_text err = {0};
    struct hzp_tokens tokens = {0};
    struct hzp_grammar *g = NULL;
    size_t bytes, text_bytes;
    int32_t root;
    int count;
    HZP_ASSERT(argc >= 4);
    int repeats = argc > 4 ? atoi(argv[4]) : 20;
    if (hzp_tokenizer_open(argv[1], &tok, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    char *schema = file_text(argv[2], &bytes), *text = file_text(argv[3], &text_bytes);
    encode(tok, text, text_bytes, &tokens);
    json_t *json = json_loads(schema, JSON_DECODE_ANY, NULL);
    HZP_ASSERT(json);
    uint64_t begin = hzp_now_ns();
    struct hzp_lexicon *words = lexicon(tok);
    double lexicon_us = us_since(begin);
    begin = hzp_now_ns();
    struct hzp_rules *rules = hzp_rules_create();
    int r = hzp_schema_rules(rules, json, &root, &err);
    if (r == HZP_OK)
        r = hzp_grammar_create(rules, root, words, &g, &err);
    double make_us = us_since(begin);
    if (r < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    uint32_t *mask = hzp_xcalloc((size_t)words->count / 32 + 1, sizeof(*mask));
    double *us = masks(g, &tokens, repeats, mask, &count), sum = 0;
    for (int i = 0; i < count; i++)
        sum += us[i];
    struct hzp_grammar_size size = hzp_grammar_size(g);
    printf(
        "{\"vocab\": %d, \"lexicon_us\": %.0f, \"make_us\": %.0f, \"states\": %d, \"masks\": %d, "
        "\"bytes\": %lld, \"tokens\": %zu, \"mask_mean_us\": %.2f, \"mask_median_us\": %.2f, "
        "\"mask_p99_us\": %.2f, \"mask_max_us\": %.2f}\n",
        words->count, lexicon_us, make_us, size.states, size.masks, (long long)size.bytes, tokens.n,
        sum / HZP_MAX(count, 1), us[count / 2], us[count * 99 / 100], us[HZP_MAX(count - 1, 0)]);
    free(us);
    free(mask);
    free(schema);
    free(text);
    json_decref(json);
    hzp_tokens_fini(&tokens);
    hzp_rules_destroy(rules);
    hzp_grammar_unref(g);
    hzp_lexicon_destroy(words);
    hzp_tokenizer_close(tok);
    return 0;
}

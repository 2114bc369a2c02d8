/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/utf8.h"

#define WORD "[" HZP_PATTERN_WORD "]" /* what makes a neighbour part of a word */
#define BYTES_MAX                                                                                  \
    4096 /* most bytes of one token: the walk may look that far ahead at every place */

int hzp_added_load(struct hzp_added *added, const json_t *json, int32_t id,
                   const struct hzp_vocab *vocab, const char *where, struct hzp_err_text *reterr)
{
    const json_t *content;
    struct hzp_added_token token = {.id = id};
    HZP_TRY(hzp_tokjson_string(json, "content", where, &content, reterr));
    const char *text = json_string_value(content);
    token.bytes = json_string_length(content);
    if (token.bytes == 0)
        return HZP_OK;
    if (token.bytes > BYTES_MAX)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: token %d has %zu bytes, more than %d", where, id,
                        token.bytes, BYTES_MAX);
    HZP_TRY(hzp_tokjson_bool(json, "special", false, where, &token.special, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "normalized", !token.special, where, &token.normalized, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "lstrip", false, where, &token.lstrip, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "rstrip", false, where, &token.rstrip, reterr));
    HZP_TRY(hzp_tokjson_bool(json, "single_word", false, where, &token.single_word, reterr));
    int32_t known = hzp_vocab_find(vocab, text, token.bytes);
    if (known != HZP_VOCAB_NONE)
        token.id = known; /* the model's word counts */
    else if (id < vocab->n && vocab->tokens[id].exists)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: token \"%.60s\" has id %d, which is \"%.*s\"",
                        where, text, id, (int)HZP_MIN(vocab->tokens[id].bytes, 60u),
                        vocab->pool + vocab->tokens[id].text);
    token.text = hzp_xmalloc(token.bytes + 1);
    memcpy(token.text, text, token.bytes + 1);
    if (added->n == added->cap) {
        added->cap = HZP_MAX(2 * added->cap, (size_t)16);
        added->tokens = hzp_xrealloc(added->tokens, added->cap * sizeof(*added->tokens));
    }
    added->tokens[added->n++] = token;
    return HZP_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const struct hzp_added_entry *x = a, *y = b;
    int r = memcmp(x->text, y->text, HZP_MIN(x->bytes, y->bytes));
    if (r != 0)
        return r;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int build(struct hzp_added *added, enum hzp_added_where where_found,
                 const struct hzp_normalizer *normalizer, struct hzp_matcher *matcher)
{
    struct hzp_added_set *set = &added->sets[where_found];
    struct hzp_textbuf buffers[2] = {{0}, {0}};
    int r = HZP_OK;
    set->entries = hzp_xcalloc(added->n + 1, sizeof(*set->entries));
    for (size_t i = 0; i < added->n && r >= 0; i++) {
        const struct hzp_added_token *token = &added->tokens[i];
        const char *text = token->text;
        size_t bytes = token->bytes;
        if (token->normalized != (where_found == HZP_ADDED_NORMALIZED))
            continue;
        if (token->normalized)
            r = hzp_normalizer_run(normalizer, matcher, text, bytes, buffers, &text, &bytes, NULL);
        if (r < 0 || bytes == 0)
            continue;
        struct hzp_added_entry *entry = &set->entries[set->n++];
        *entry = (struct hzp_added_entry){hzp_xmalloc(bytes), bytes, (int32_t)i};
        memcpy(entry->text, text, bytes);
    }
    hzp_textbuf_fini(&buffers[0]);
    hzp_textbuf_fini(&buffers[1]);
    HZP_TRY(r);
    qsort(set->entries, (size_t)set->n, sizeof(*set->entries), compare_entries);
    for (int32_t b = 0, at = 0; b <= 256; b++) {
        while (at < set->n && (uint8_t)set->entries[at].text[0] < b)
            at++;
        set->first[b] = at;
    }
    return HZP_OK;
}

int hzp_added_ready(struct hzp_added *added, const struct hzp_normalizer *normalizer,
                    struct hzp_matcher *matcher, const char *where, struct hzp_err_text *reterr)
{
    bool single_word = false;
    for (size_t i = 0; i < added->n; i++)
        single_word |= added->tokens[i].single_word;
    if (single_word)
        HZP_TRY(hzp_pattern_regex(WORD, strlen(WORD), where, &added->word, reterr));
    for (int s = 0; s < 2; s++) {
        int r = build(added, (enum hzp_added_where)s, normalizer, matcher);
        if (r < 0)
            return hzp_fail(reterr, r, "%s: an added token cannot be normalized", where);
    }
    return HZP_OK;
}

void hzp_added_fini(struct hzp_added *added)
{
    for (size_t i = 0; i < added->n; i++)
        free(added->tokens[i].text);
    for (int s = 0; s < 2; s++) {
        for (int32_t i = 0; i < added->sets[s].n; i++)
            free(added->sets[s].entries[i].text);
        free(added->sets[s].entries);
    }
    hzp_pattern_free(added->word);
    free(added->tokens);
    *added = (struct hzp_added){0};
}

/* The first entry in [low, high) whose byte at depth is at least b (all are longer than depth). */
static int32_t bound(const struct hzp_added_set *set, int32_t low, int32_t high, size_t depth,
                     int b)
{
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if ((uint8_t)set->entries[middle].text[depth] < b)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest entry that text begins with, -1 if none. */
static int32_t longest(const struct hzp_added_set *set, const char *text, size_t bytes)
{
    int32_t low = set->first[(uint8_t)text[0]], high = set->first[(uint8_t)text[0] + 1];
    int32_t best = -1;
    for (size_t depth = 1; low < high; depth++) {
        if (set->entries[low].bytes == depth)
            best = low;
        while (low < high && set->entries[low].bytes == depth)
            low++; /* the shorter sort first; equal ones: the first is the one */
        if (depth == bytes)
            break;
        int b = (uint8_t)text[depth];
        low = bound(set, low, high, depth, b);
        high = bound(set, low, high, depth, b + 1);
    }
    return best;
}

static bool is_word(const struct hzp_added_walk *walk, size_t at)
{
    size_t from, to;
    const char *text = walk->text + at;
    return hzp_pattern_find(walk->added->word, walk->matcher, text,
                            (size_t)hzp_utf8_step((uint8_t)*text), 0, &from, &to) > 0;
}

/* Whether the token may stand at [*from, *to); widens the range over blanks it takes along. */
static bool accept(const struct hzp_added_walk *walk, const struct hzp_added_token *token,
                   size_t *from, size_t *to)
{
    const char *text = walk->text;
    int step;
    if (token->special && !walk->special)
        return false;
    if (token->single_word && ((*from > 0 && is_word(walk, hzp_utf8_before(text, *from))) ||
                               (*to < walk->bytes && is_word(walk, *to))))
        return false;
    while (token->lstrip && *from > walk->at) {
        size_t before = hzp_utf8_before(text, *from);
        if (!hzp_utf8_is_space(hzp_utf8_get(text + before, &step)))
            break;
        *from = before;
    }
    while (token->rstrip && *to < walk->bytes) {
        if (!hzp_utf8_is_space(hzp_utf8_get(text + *to, &step)))
            break;
        *to += (size_t)step;
    }
    return true;
}

/* Finds the next token from walk->search on. */
static bool find(struct hzp_added_walk *walk)
{
    const struct hzp_added_set *set = &walk->added->sets[walk->where];
    if (set->n == 0)
        return false;
    for (size_t at = walk->search; at < walk->bytes; at++) {
        uint8_t b = (uint8_t)walk->text[at];
        if (set->first[b] == set->first[b + 1])
            continue;
        int32_t entry = longest(set, walk->text + at, walk->bytes - at);
        if (entry < 0)
            continue;
        size_t from = at, to = at + set->entries[entry].bytes;
        int32_t token = set->entries[entry].token;
        if (!accept(walk, &walk->added->tokens[token], &from, &to)) {
            at = to - 1; /* what a refused match covered is not looked at again */
            continue;
        }
        /* Blanks that a token took along may still be part of the next one's spelling. */
        walk->search = at + set->entries[entry].bytes;
        walk->found = token;
        walk->found_from = from;
        walk->found_to = to;
        return true;
    }
    return false;
}

bool hzp_added_next(struct hzp_added_walk *walk, size_t *from, size_t *to, int32_t *token)
{
    *from = walk->at;
    if (walk->found < 0 && !find(walk)) {
        *to = walk->at = walk->search = walk->bytes;
        *token = -1;
        return *from < *to;
    }
    if (walk->at < walk->found_from) {
        *to = walk->at = walk->found_from;
        *token = -1;
        return true;
    }
    *to = walk->at = walk->found_to;
    *token = walk->found;
    walk->found = -1;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "api/text/structure.h"

#include "api/text/structure_parts.h"
#include "base/arena.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

struct kept {
    char *key;
    struct hzp_grammar *grammar;
    int64_t bytes;
    uint64_t used; /* the turn in which it was last asked for */
};

struct hzp_structures {
    struct hzp_tokenizer *tok;
    int32_t vocab;
    int64_t in_use_max;
    struct hzp_lock lock;
    struct hzp_lexicon *lexicon; /* NULL: not made yet */
    struct kept kept[HZP_STRUCTURES_MAX];
    int32_t count;
    int64_t bytes;
    uint64_t turn;
    bool large; /* one that takes much memory while it is made is being made */
};

void hzp_structures_open(struct hzp_tokenizer *tok, int32_t vocab, int64_t in_use_max,
                         struct hzp_structures **ret)
{
    struct hzp_structures *s = hzp_xcalloc(1, sizeof(*s));
    s->tok = tok;
    s->vocab = vocab;
    s->in_use_max = in_use_max;
    hzp_lock_init(&s->lock, HZP_LOCK_GRAMMARS);
    *ret = s;
}

static void drop(struct hzp_structures *s, int32_t i)
{
    s->bytes -= s->kept[i].bytes;
    hzp_grammar_unref(s->kept[i].grammar);
    free(s->kept[i].key);
    s->kept[i] = s->kept[--s->count];
}

void hzp_structures_close(struct hzp_structures *s)
{
    if (!s)
        return;
    while (s->count)
        drop(s, s->count - 1);
    hzp_lexicon_destroy(s->lexicon);
    hzp_lock_fini(&s->lock);
    free(s);
}

/* Under the lock: the first request makes it, others wait for it. */
static const struct hzp_lexicon *lexicon(struct hzp_structures *s)
{
    if (s->lexicon)
        return s->lexicon;
    int32_t words = hzp_tokenizer_vocab(s->tok), count = HZP_MIN(words, s->vocab);
    struct hzp_token_text *text = hzp_xcalloc((size_t)count + 1, sizeof(*text));
    for (int32_t i = 0; i < count; i++) {
        size_t size = 0;
        text[i].bytes = hzp_tokenizer_token(s->tok, i, &size);
        text[i].size = (int32_t)size;
        text[i].special = hzp_tokenizer_is_special(s->tok, i);
    }
    hzp_lexicon_create(text, count, &s->lexicon);
    free(text);
    return s->lexicon;
}

/* ---- rules ---- */

/* bytes: what its languages may take meanwhile. */
static int make(struct hzp_structures *s, const struct hzp_lexicon *words,
                const struct hzp_structure *what, int64_t bytes, struct hzp_grammar **ret,
                struct hzp_err_text *reterr)
{
    struct hzp_rules *rules = hzp_rules_create();
    hzp_regular_begin(bytes);
    int32_t root = hzp_rules_add(rules, "answer", 6);
    int r = hzp_structure_rules(s->tok, what, rules, root, reterr);
    if (r == HZP_OK)
        r = hzp_grammar_create(rules, root, words, ret, reterr);
    hzp_rules_destroy(rules);
    return r;
}

static bool begin_large(struct hzp_structures *s, bool begin)
{
    hzp_lock_take(&s->lock);
    bool free_before = !s->large;
    s->large = begin;
    hzp_lock_release(&s->lock);
    return free_before;
}

/* Most take little memory while they are made, and any number may be made at once.  One that does
 * not is made again with more, and no other such one beside it. */
static int make_bounded(struct hzp_structures *s, const struct hzp_lexicon *words,
                        const struct hzp_structure *what, struct hzp_grammar **ret,
                        struct hzp_err_text *reterr)
{
    int r = make(s, words, what, HZP_STRUCTURE_SMALL, ret, reterr);
    if (!hzp_regular_over())
        return r;
    if (r == HZP_OK)
        hzp_grammar_unref(*ret);
    *ret = NULL;
    if (!begin_large(s, true))
        return hzp_fail(reterr, HZP_EBUSY,
                        "it takes more than %lld bytes of memory while it is made, and another "
                        "such one is being made; try again",
                        (long long)HZP_STRUCTURE_SMALL);
    r = make(s, words, what, HZP_STRUCTURE_LARGE, ret, reterr);
    begin_large(s, false);
    return r;
}

/* ---- what is kept ---- */

/* What is asked as text; owned by the caller; NULL: no memory. */
static char *key_of(const struct hzp_structure *what)
{
    json_t *json =
        json_pack("{s:b, s:O?, s:O?, s:s?, s:s?, s:O?, s:s?, s:i, s:b, s:b, s:b, s:b, s:b}",
                  "object", what->object, "schema", what->schema, "choice", what->choice, "regex",
                  what->regex, "gbnf", what->gbnf, "tools", what->tools, "tool", what->tool,
                  "calls", (int)what->calls, "one", what->one_call, "reasoning", what->reasoning,
                  "inside", what->inside, "channels", what->channels, "free", what->free);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

/* Under the lock.  NULL: it is not kept. */
static struct hzp_grammar *find(struct hzp_structures *s, const char *key)
{
    for (int32_t i = 0; i < s->count; i++)
        if (!strcmp(s->kept[i].key, key)) {
            s->kept[i].used = ++s->turn;
            return hzp_grammar_ref(s->kept[i].grammar);
        }
    return NULL;
}

/* Under the lock; one at least is kept. */
static void drop_oldest(struct hzp_structures *s)
{
    int32_t oldest = 0;
    for (int32_t i = 1; i < s->count; i++)
        if (s->kept[i].used < s->kept[oldest].used)
            oldest = i;
    drop(s, oldest);
}

/* Under the lock.  Whether the grammars in use leave room for another, once none is merely kept. */
static bool has_room(struct hzp_structures *s)
{
    while (s->count && hzp_lexicon_in_use(s->lexicon) > s->in_use_max)
        drop_oldest(s);
    return hzp_lexicon_in_use(s->lexicon) <= s->in_use_max;
}

/* Under the lock; takes key over. */
static void keep(struct hzp_structures *s, char *key, struct hzp_grammar *grammar)
{
    int64_t bytes = hzp_grammar_size(grammar).bytes;
    while (s->count && (s->count == HZP_STRUCTURES_MAX || s->bytes + bytes > HZP_STRUCTURES_BYTES))
        drop_oldest(s);
    s->kept[s->count++] = (struct kept){key, hzp_grammar_ref(grammar), bytes, ++s->turn};
    s->bytes += bytes;
}

int hzp_structures_get(struct hzp_structures *s, const struct hzp_structure *what,
                       struct hzp_grammar **ret, struct hzp_err_text *reterr)
{
    char *key = key_of(what);
    if (!key)
        return hzp_fail(reterr, HZP_EINVAL, "it cannot be written as JSON");
    if (strlen(key) > HZP_STRUCTURE_SOURCE_MAX) {
        free(key);
        return hzp_fail(reterr, HZP_EINVAL, "longer than %d bytes", HZP_STRUCTURE_SOURCE_MAX);
    }
    hzp_lock_take(&s->lock);
    *ret = find(s, key);
    const struct hzp_lexicon *words = lexicon(s);
    int r = HZP_OK;
    if (!*ret && !has_room(s))
        r = hzp_fail(reterr, HZP_EBUSY,
                     "the grammars of requests in progress take more than %lld bytes; try again",
                     (long long)s->in_use_max);
    hzp_lock_release(&s->lock);
    if (!*ret && r == HZP_OK)
        r = make_bounded(s, words, what, ret, reterr);
    if (r < 0) {
        free(key);
        return r;
    }
    hzp_lock_take(&s->lock);
    struct hzp_grammar *other = find(s, key); /* another thread may have made it meanwhile */
    if (!other) {
        keep(s, key, *ret);
        key = NULL;
    }
    hzp_lock_release(&s->lock);
    hzp_grammar_unref(other);
    free(key);
    return HZP_OK;
}

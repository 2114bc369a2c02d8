/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/structure.h"

#include "base/hash.h"
#include "base/thread.h"
#include "text/chat/structure_parts.h"
#include "text/grammar/effort.h"

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
    struct hzp_lock words_lock;  /* held while the lexicon is made */
    struct hzp_lexicon *lexicon; /* under words_lock until it is made; NULL: not yet */
    uint64_t words;              /* a hash of what it was made of */

    struct hzp_lock lock; /* nothing takes long under it */
    struct kept kept[HZP_STRUCTURES_MAX];
    int32_t count;
    int64_t bytes;
    uint64_t turn, made;
    bool huge; /* one that takes much memory while it is made is being made */
};

void hzp_structures_open(struct hzp_tokenizer *tok, int32_t vocab, int64_t in_use_max,
                         struct hzp_structures **ret)
{
    struct hzp_structures *s = hzp_xcalloc(1, sizeof(*s));
    s->tok = tok;
    s->vocab = vocab;
    s->in_use_max = in_use_max;
    s->words = HZP_FNV;
    hzp_lock_init(&s->words_lock, HZP_LOCK_LEXICON);
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
    hzp_lock_fini(&s->words_lock);
    free(s);
}

static void make_lexicon(struct hzp_structures *s)
{
    int32_t words = hzp_tokenizer_vocab(s->tok), count = HZP_MIN(words, s->vocab);
    HZP_FREED struct hzp_token_text *text = hzp_xcalloc((size_t)count + 1, sizeof(*text));
    for (int32_t i = 0; i < count; i++) {
        size_t size = 0;
        text[i].bytes = hzp_tokenizer_token(s->tok, i, &size);
        text[i].size = (int32_t)size;
        text[i].special = hzp_tokenizer_is_special(s->tok, i);
        s->words = hzp_fnv(s->words, &text[i].special, sizeof(text[i].special));
        s->words = hzp_fnv(s->words, &text[i].size, sizeof(text[i].size));
        s->words = hzp_fnv(s->words, text[i].bytes, size);
    }
    hzp_lexicon_create(text, count, &s->lexicon);
}

/* The first thread that needs it makes it, others wait for it. */
static const struct hzp_lexicon *lexicon(struct hzp_structures *s)
{
    HZP_LOCKED(&s->words_lock);
    if (!s->lexicon)
        make_lexicon(s);
    return s->lexicon;
}

/* ---- rules ---- */

static int make(struct hzp_structures *s, const struct hzp_structure *what,
                struct hzp_grammar **ret, struct hzp_err_text *reterr)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t root = hzp_rules_add(rules, "answer", 6);
    int r = hzp_structure_rules(s->tok, what, rules, root, reterr);
    if (r == HZP_OK)
        r = hzp_grammar_create(rules, root, s->lexicon, ret, reterr);
    hzp_rules_destroy(rules);
    return r;
}

/* By the bounds of its size; returns as hzp_structures_make(). */
static int make_bounded(struct hzp_structures *s, const struct hzp_structure *what,
                        enum hzp_structure_size size, bool (*abandoned)(void *ctx), void *ctx,
                        struct hzp_grammar **ret, struct hzp_err_text *reterr)
{
    enum { QUICK_PART = 64 };
    hzp_effort_begin(&(struct hzp_effort){.bytes = size == HZP_STRUCTURE_HUGE ? HZP_STRUCTURE_LARGE
                                                                              : HZP_STRUCTURE_SMALL,
                                          .part = size == HZP_STRUCTURE_QUICK ? QUICK_PART : 1,
                                          .abandoned = abandoned,
                                          .ctx = ctx});
    int r = make(s, what, ret, reterr);
    enum hzp_effort_lack lack = hzp_effort_lack();
    hzp_effort_begin(&(struct hzp_effort){.bytes = INT64_MAX, .part = 1}); /* ctx may go */
    if (lack == HZP_EFFORT_ENOUGH || (lack == HZP_EFFORT_BYTES && size == HZP_STRUCTURE_HUGE))
        return r;
    if (r == HZP_OK)
        hzp_grammar_unref(*ret);
    *ret = NULL;
    return lack == HZP_EFFORT_ABANDONED ? HZP_ECANCELED : 1;
}

static bool begin_huge(struct hzp_structures *s, bool begin)
{
    HZP_LOCKED(&s->lock);
    bool free_before = !s->huge;
    s->huge = begin;
    return free_before;
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
    char *text = json ? hzp_json_dumps(json, JSON_COMPACT) : NULL;
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

/* Whether the grammars in use leave room for another, once none is merely kept. */
static bool has_room(struct hzp_structures *s)
{
    HZP_LOCKED(&s->lock);
    while (s->count && hzp_lexicon_in_use(s->lexicon) > s->in_use_max)
        drop_oldest(s);
    return hzp_lexicon_in_use(s->lexicon) <= s->in_use_max;
}

static void keep(struct hzp_structures *s, const char *asked, struct hzp_grammar *grammar)
{
    int64_t bytes = hzp_grammar_size(grammar).bytes;
    HZP_LOCKED(&s->lock);
    struct hzp_grammar *other = find(s, asked); /* another thread may have made it meanwhile */
    s->made++;
    while (!other && s->count &&
           (s->count == HZP_STRUCTURES_MAX || s->bytes + bytes > HZP_STRUCTURES_BYTES))
        drop_oldest(s);
    if (!other) {
        char *key = hzp_xmalloc(strlen(asked) + 1);
        memcpy(key, asked, strlen(asked) + 1);
        s->kept[s->count++] = (struct kept){key, hzp_grammar_ref(grammar), bytes, ++s->turn};
        s->bytes += bytes;
    }
    hzp_grammar_unref(other);
}

int hzp_structures_ask(const struct hzp_structure *what, char **ret, struct hzp_err_text *reterr)
{
    if (!hzp_json_names_are_text(what->tools))
        return hzp_fail(reterr, HZP_EINVAL, "a name in it has \\u0000");
    char *key = key_of(what);
    if (!key)
        return hzp_fail(reterr, HZP_EINVAL, "it cannot be written as JSON");
    if (strlen(key) > HZP_STRUCTURE_SOURCE_MAX) {
        free(key);
        return hzp_fail(reterr, HZP_EINVAL, "longer than %d bytes", HZP_STRUCTURE_SOURCE_MAX);
    }
    *ret = key;
    return HZP_OK;
}

struct hzp_grammar *hzp_structures_kept(struct hzp_structures *s, const char *asked)
{
    HZP_LOCKED(&s->lock);
    return find(s, asked);
}

void hzp_structures_read_stats(struct hzp_structures *s, struct hzp_structures_stats *ret)
{
    HZP_LOCKED(&s->lock);
    *ret = (struct hzp_structures_stats){.made = s->made, .kept = s->count, .bytes = s->bytes};
}

/* The value; NULL: null, or it is not there. */
static const json_t *value_of(const json_t *json, const char *name)
{
    const json_t *value = json_object_get(json, name);
    return json_is_null(value) ? NULL : value;
}

/* What was asked, of its text; *ret_json: owned, what it borrows. */
static int read_asked(const char *asked, struct hzp_structure *ret, json_t **ret_json,
                      struct hzp_err_text *reterr)
{
    json_t *json = hzp_json_load(asked, strlen(asked), 0, NULL, NULL);
    int calls = -1, object, one, reasoning, inside, channels, any;
    if (json_unpack(json, "{s:i, s:b, s:b, s:b, s:b, s:b, s:b}", "calls", &calls, "object", &object,
                    "one", &one, "reasoning", &reasoning, "inside", &inside, "channels", &channels,
                    "free", &any) < 0 ||
        calls < HZP_CALLS_NONE || calls > HZP_CALLS_CHANNELS) {
        json_decref(json);
        return hzp_fail(reterr, HZP_EFORMAT, "what a grammar is made of is malformed");
    }
    *ret = (struct hzp_structure){.object = object,
                                  .schema = value_of(json, "schema"),
                                  .choice = value_of(json, "choice"),
                                  .regex = json_string_value(value_of(json, "regex")),
                                  .gbnf = json_string_value(value_of(json, "gbnf")),
                                  .tools = value_of(json, "tools"),
                                  .tool = json_string_value(value_of(json, "tool")),
                                  .calls = (enum hzp_reply_calls)calls,
                                  .one_call = one,
                                  .free = any,
                                  .reasoning = reasoning,
                                  .inside = inside,
                                  .channels = channels};
    *ret_json = json;
    return HZP_OK;
}

int hzp_structures_make(struct hzp_structures *s, const char *asked, enum hzp_structure_size size,
                        bool (*abandoned)(void *ctx), void *ctx, struct hzp_grammar **ret,
                        struct hzp_err_text *reterr)
{
    struct hzp_structure what;
    json_t *json = NULL;
    *ret = hzp_structures_kept(s, asked);
    if (*ret)
        return HZP_OK;
    lexicon(s);
    if (!has_room(s))
        return hzp_fail(reterr, HZP_EBUSY,
                        "the grammars of requests in progress take more than %lld bytes; try again",
                        (long long)s->in_use_max);
    if (size == HZP_STRUCTURE_HUGE && !begin_huge(s, true))
        return hzp_fail(reterr, HZP_EBUSY,
                        "it takes more than %lld bytes of memory while it is made, and another "
                        "such one is being made; try again",
                        (long long)HZP_STRUCTURE_SMALL);
    int r = read_asked(asked, &what, &json, reterr);
    if (r == HZP_OK) {
        r = make_bounded(s, &what, size, abandoned, ctx, ret, reterr);
        json_decref(json);
    }
    if (size == HZP_STRUCTURE_HUGE)
        begin_huge(s, false);
    if (r == HZP_OK)
        keep(s, asked, *ret);
    return r;
}

char *hzp_structures_write(struct hzp_structures *s, const char *asked)
{
    enum { DIGITS = 16 };
    lexicon(s);
    size_t size = strlen(asked) + DIGITS + 2;
    char *ret = hzp_xmalloc(size);
    snprintf(ret, size, "%016" PRIx64 " %s", s->words, asked);
    return ret;
}

int hzp_structures_get_written(struct hzp_structures *s, const char *written,
                               struct hzp_grammar **ret, struct hzp_err_text *reterr)
{
    char *asked = NULL;
    lexicon(s);
    if (strtoull(written, &asked, 16) != s->words)
        return hzp_fail(reterr, HZP_EUNSUP, "the tokenizer here is another one");
    int r = 1;
    for (int size = HZP_STRUCTURE_LONG; size < HZP_STRUCTURE_SIZES && r > 0; size++)
        r = hzp_structures_make(s, asked + (*asked == ' '), (enum hzp_structure_size)size, NULL,
                                NULL, ret, reterr);
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/utf8.h"

#define CACHE_SLOTS  (1u << 15)
#define CACHE_KEY    22
#define CACHE_IDS    6
#define CUT_FROM     40 /* bytes from which looking for cuts is worth it */
#define SEARCH_UP_TO 48 /* symbols up to which searching beats the heap */
#define NO_RANK      UINT32_MAX

struct hzp_bpe_cached {
    uint8_t bytes; /* 0: empty */
    uint8_t n;
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
};

struct hzp_bpe_symbol {
    int32_t id;
    int32_t merged;     /* what it and the next become */
    uint32_t rank;      /* rank of that merge; NO_RANK: they do not merge */
    int32_t prev, next; /* -1: none; the heap's list */
};

/* Symbols of a text in the making. */
struct making {
    struct hzp_bpe_symbol *symbols;
    int32_t n;
    bool unk; /* an unknown symbol waits: the next one may be fused with it */
};

static void add_symbol(struct making *making, int32_t id)
{
    making->symbols[making->n++].id = id;
}

/* A character that is no token: its bytes, the unknown token, or nothing. Hugging Face's order,
 * in which a waiting unknown is not put out before bytes, is kept. */
static void add_unknown(const struct hzp_vocab *vocab, struct making *making, const char *text,
                        size_t bytes)
{
    bool all = vocab->byte_fallback && !vocab->byte_level;
    for (size_t i = 0; i < bytes && all; i++)
        all = vocab->byte_ids[(uint8_t)text[i]] != HZP_VOCAB_NONE;
    if (all) {
        for (size_t i = 0; i < bytes; i++)
            add_symbol(making, vocab->byte_ids[(uint8_t)text[i]]);
        return;
    }
    if (vocab->unk == HZP_VOCAB_NONE)
        return;
    if (making->unk && !vocab->fuse_unk)
        add_symbol(making, vocab->unk);
    making->unk = true;
}

/* The id of one character (with what its place adds to it), HZP_VOCAB_NONE. */
static int32_t character_id(const struct hzp_vocab *vocab, const char *text, size_t bytes,
                            bool first, bool last)
{
    char name[160];
    const char *prefix = first ? "" : vocab->prefix, *suffix = last ? vocab->suffix : "";
    if (prefix[0] == 0 && suffix[0] == 0)
        return bytes == 1 ? vocab->ascii_ids[(uint8_t)text[0]] : hzp_vocab_find(vocab, text, bytes);
    size_t n = strlen(prefix), m = strlen(suffix);
    memcpy(name, prefix, n);
    memcpy(name + n, text, bytes);
    memcpy(name + n + bytes, suffix, m);
    return hzp_vocab_find(vocab, name, n + bytes + m);
}

/* Writes at most `bytes` symbols, returns how many. */
static int32_t make_symbols(const struct hzp_vocab *vocab, const char *text, size_t bytes,
                            struct hzp_bpe_symbol *symbols)
{
    struct making making = {.symbols = symbols};
    size_t step;
    for (size_t at = 0; at < bytes; at += step) {
        int32_t id;
        step = vocab->byte_level ? 1 : (size_t)hzp_utf8_step((uint8_t)text[at]);
        if (vocab->byte_level)
            id = vocab->byte_ids[(uint8_t)text[at]];
        else
            id = character_id(vocab, text + at, step, at == 0, at + step == bytes);
        if (id == HZP_VOCAB_NONE) {
            add_unknown(vocab, &making, text + at, step);
            continue;
        }
        if (making.unk)
            add_symbol(&making, vocab->unk);
        making.unk = false;
        add_symbol(&making, id);
    }
    if (making.unk)
        add_symbol(&making, vocab->unk);
    return making.n;
}

static void price(const struct hzp_vocab *vocab, struct hzp_bpe_symbol *left,
                  const struct hzp_bpe_symbol *right)
{
    const struct hzp_vocab_merge *merge = hzp_vocab_merge(vocab, left->id, right->id);
    left->rank = merge != NULL ? merge->rank : NO_RANK;
    left->merged = merge != NULL ? merge->id : 0;
}

/* Merges in place, returns how many symbols are left: quadratic, for few. */
static int32_t merge_few(const struct hzp_vocab *vocab, struct hzp_bpe_symbol *symbols, int32_t n)
{
    for (int32_t i = 0; i + 1 < n; i++)
        price(vocab, &symbols[i], &symbols[i + 1]);
    while (n > 1) {
        int32_t best = 0;
        symbols[n - 1].rank = NO_RANK;
        for (int32_t i = 1; i + 1 < n; i++)
            if (symbols[i].rank < symbols[best].rank)
                best = i;
        if (symbols[best].rank == NO_RANK)
            break;
        symbols[best].id = symbols[best].merged;
        memmove(&symbols[best + 1], &symbols[best + 2], (size_t)(n - best - 2) * sizeof(*symbols));
        n--;
        if (best + 1 < n)
            price(vocab, &symbols[best], &symbols[best + 1]);
        if (best > 0)
            price(vocab, &symbols[best - 1], &symbols[best]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t entry = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= entry)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = entry;
}

/* Room for the entry was made: each merge removes one and adds at most two. */
static void push(uint64_t *heap, size_t *n, const struct hzp_bpe_symbol *symbols, int32_t at)
{
    if (symbols[at].rank == NO_RANK)
        return;
    uint64_t entry = (uint64_t)symbols[at].rank << 32 | (uint32_t)at;
    size_t to = (*n)++;
    for (; to > 0 && heap[(to - 1) / 2] > entry; to = (to - 1) / 2)
        heap[to] = heap[(to - 1) / 2];
    heap[to] = entry;
}

/* The same result with a heap of (rank, place); an entry whose pair has changed since is skipped.
 */
static int32_t merge_many(const struct hzp_vocab *vocab, struct hzp_bpe_symbol *symbols, int32_t n,
                          uint64_t *heap)
{
    size_t entries = 0;
    for (int32_t i = 0; i < n; i++) {
        symbols[i].prev = i - 1;
        symbols[i].next = i + 1 < n ? i + 1 : -1;
        symbols[i].rank = NO_RANK;
        if (i + 1 < n)
            price(vocab, &symbols[i], &symbols[i + 1]);
        if (symbols[i].rank != NO_RANK)
            heap[entries++] = (uint64_t)symbols[i].rank << 32 | (uint32_t)i;
    }
    for (size_t i = entries / 2; i-- > 0;)
        sift_down(heap, entries, i);
    while (entries > 0) {
        uint32_t rank = (uint32_t)(heap[0] >> 32);
        int32_t at = (int32_t)(uint32_t)heap[0];
        heap[0] = heap[--entries];
        if (entries > 0)
            sift_down(heap, entries, 0);
        struct hzp_bpe_symbol *left = &symbols[at];
        if (left->id < 0 || left->rank != rank)
            continue;
        struct hzp_bpe_symbol *right = &symbols[left->next];
        left->id = left->merged;
        left->rank = NO_RANK;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            symbols[left->next].prev = at;
            price(vocab, left, &symbols[left->next]);
            push(heap, &entries, symbols, at);
        }
        if (left->prev >= 0) {
            price(vocab, &symbols[left->prev], left);
            push(heap, &entries, symbols, left->prev);
        }
    }
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++)
        if (symbols[i].id >= 0)
            symbols[left++].id = symbols[i].id;
    return left;
}

/* One run of text through symbols and merges. */
static int encode_run(struct hzp_bpe *bpe, const struct hzp_vocab *vocab, const char *text,
                      size_t bytes, struct hzp_tokens *out)
{
    struct hzp_bpe_symbol few[SEARCH_UP_TO], *symbols = few;
    if (bytes > SEARCH_UP_TO) {
        HZP_TRY(hzp_text_grow(&bpe->symbols, &bpe->symbols_cap, bytes, sizeof(*symbols)));
        symbols = bpe->symbols;
    }
    int32_t n = make_symbols(vocab, text, bytes, symbols);
    if (n <= SEARCH_UP_TO) {
        n = merge_few(vocab, symbols, n);
    } else {
        HZP_TRY(hzp_text_grow(&bpe->heap, &bpe->heap_cap, 2 * (size_t)n, sizeof(*bpe->heap)));
        n = merge_many(vocab, symbols, n, bpe->heap);
    }
    HZP_TRY(hzp_text_grow(&out->ids, &out->cap, out->n + (size_t)n, sizeof(*out->ids)));
    for (int32_t i = 0; i < n; i++)
        out->ids[out->n++] = symbols[i].id;
    return HZP_OK;
}

/* The same, remembered. */
static int encode_cached(struct hzp_bpe *bpe, const struct hzp_vocab *vocab, const char *text,
                         size_t bytes, bool whole, struct hzp_tokens *out)
{
    /* Parts of a piece and whole pieces that are tokens have different answers. */
    if (bytes > CACHE_KEY || (!whole && vocab->ignore_merges))
        return encode_run(bpe, vocab, text, bytes, out);
    if (bpe->cache == NULL)
        bpe->cache = hzp_xcalloc(CACHE_SLOTS, sizeof(*bpe->cache));
    struct hzp_bpe_cached *slot = &bpe->cache[hzp_vocab_hash(text, bytes) >> 7 & (CACHE_SLOTS - 1)];
    if (slot->bytes == bytes && memcmp(slot->key, text, bytes) == 0)
        return hzp_tokens_append(out, slot->ids, slot->n);
    size_t from = out->n;
    int32_t id = HZP_VOCAB_NONE;
    if (whole && vocab->ignore_merges)
        id = hzp_vocab_find_key(vocab, text, bytes);
    if (id != HZP_VOCAB_NONE)
        HZP_TRY(hzp_tokens_append(out, &id, 1));
    else
        HZP_TRY(encode_run(bpe, vocab, text, bytes, out));
    size_t n = out->n - from;
    if (n <= CACHE_IDS) {
        slot->bytes = (uint8_t)bytes;
        slot->n = (uint8_t)n;
        memcpy(slot->key, text, bytes);
        if (n > 0)
            memcpy(slot->ids, out->ids + from, n * sizeof(int32_t));
    }
    return HZP_OK;
}

int hzp_bpe_encode(struct hzp_bpe *bpe, const struct hzp_vocab *vocab, const char *text,
                   size_t bytes, struct hzp_tokens *out)
{
    if (bytes == 0)
        return HZP_OK;
    if (bytes <= CACHE_KEY)
        return encode_cached(bpe, vocab, text, bytes, true, out);
    if (vocab->ignore_merges) {
        int32_t id = hzp_vocab_find_key(vocab, text, bytes);
        if (id != HZP_VOCAB_NONE)
            return hzp_tokens_append(out, &id, 1);
    }
    if (bytes < CUT_FROM || !vocab->may_cut)
        return encode_run(bpe, vocab, text, bytes, out);
    size_t from = 0, at = 0;
    uint32_t before = 0;
    while (at < bytes) {
        int step = 1;
        uint32_t after = vocab->byte_level ? (uint8_t)text[at] : hzp_utf8_get(text + at, &step);
        if (at > from && !hzp_vocab_may_join(vocab, before, after)) {
            HZP_TRY(encode_cached(bpe, vocab, text + from, at - from, false, out));
            from = at;
        }
        before = after;
        at += (size_t)step;
    }
    return encode_cached(bpe, vocab, text + from, bytes - from, false, out);
}

void hzp_bpe_fini(struct hzp_bpe *bpe)
{
    free(bpe->cache);
    free(bpe->symbols);
    free(bpe->heap);
    *bpe = (struct hzp_bpe){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/cases_sample.c - sampling: exact tokens for given seeds. */
#include <math.h>
#include <string.h>

#include "device/bf16.h"
#include "tests/opcheck/opcheck.h"

enum kind { GREEDY, EDITS, DRAW, CUTS, FLAT, ODD, TIES, ALL, MASKS, FLAT_MASKS, MANY };
static const char *const kinds[] = {"greedy",
                                    "greedy, edits",
                                    "draw",
                                    "cuts",
                                    "flat, cuts",
                                    "odd logits",
                                    "ties by edits",
                                    "all at once",
                                    "all, and the mask",
                                    "flat, all, and the mask",
                                    "most by top_p"};

/* Every edit of a row has a token of its own. */
static int32_t edits_make(struct oc_io *io, struct hzp_logit_edit *edit, int32_t vocab)
{
    int32_t count = 1 + oc_below(io, 20), first = oc_below(io, vocab);
    count = HZP_MIN(vocab, count);
    for (int32_t i = 0; i < count; i++) {
        edit[i] = (struct hzp_logit_edit){.token = (first + i * (vocab / count)) % vocab};
        edit[i].bias = oc_below(io, 3) ? 0 : oc_below(io, 4) ? 2 : -INFINITY;
        edit[i].count_out = oc_below(io, 4);
        edit[i].seen = edit[i].count_out > 0 || oc_below(io, 2);
    }
    return count;
}

static void row_make(struct oc_io *io, enum kind kind, int32_t r, int32_t vocab,
                     struct hzp_sample_row *row)
{
    bool any = kind >= ALL && kind != MANY;
    *row = (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
    row->seed = oc_random(&io->rng);
    row->position = (uint32_t)r * 17;
    row->choice = (uint32_t)oc_below(io, 3);
    if (kind >= DRAW && !(any && r % 4 == 0))
        row->temperature = 0.3f + (float)oc_uniform(io);
    if (kind >= CUTS) {
        row->top_k = r % 3 ? 1 + oc_below(io, HZP_MIN(vocab, 60)) : 0;
        row->top_p = r % 2 ? 0.5f + 0.5f * (float)oc_uniform(io) : 1;
        row->min_p = r % 5 == 1 ? 0.05f : 0;
    }
    if (any || kind == EDITS) {
        row->repetition = 1.3f;
        row->presence = 0.25f;
        row->frequency = -0.5f;
    }
    if ((kind == FLAT || kind == FLAT_MASKS) && row->temperature > 0)
        row->temperature = 30;
    if (kind == MANY) { /* so many that no list holds them */
        row->top_k = 0, row->min_p = 0;
        row->top_p = r % 4 == 3 ? 0.6f : 0.95f;
        row->temperature = 1.875f;
    }
    if (any && r % 5 == 2)
        row->given = r % 2 ? vocab - 1 : 0;
}

/* All tokens, one, few, or about half of them; the bits behind the last token are set. */
static void mask_make(struct oc_io *io, int32_t r, int32_t vocab, uint32_t *mask)
{
    for (int32_t i = 0; i < hzp_mask_words(vocab); i++)
        mask[i] = r % 4 == 0 ? ~0u : r % 4 == 3 ? (uint32_t)oc_random(&io->rng) : 0;
    for (int32_t i = 0; i < (r % 4 == 1 ? 1 : 5); i++) {
        int32_t token = oc_below(io, vocab);
        mask[token / 32] |= 1u << token % 32;
    }
    if (vocab % 32)
        mask[vocab / 32] |= ~0u << vocab % 32;
}

/* Logits that are not finite, and the smallest temperature. */
static void odd_make(struct oc_io *io, int32_t r, struct hzp_mat *logits,
                     struct hzp_sample_row *row)
{
    static const float odd[] = {INFINITY, NAN, -INFINITY};
    row->temperature = r % 2 ? 1e-38f : 1;
    row->top_p = r % 3 ? 0.5f : 1;
    row->min_p = r % 4 == 3 ? 0.1f : 0;
    for (int i = 0; i < 3 && r % 5; i++)
        oc_put(logits, r, oc_below(io, logits->cols), odd[r % 5 == 4 ? 0 : r % 5 - 1]);
}

/* The largest logit is a token's whose penalty makes it equal to another's, which has a lower id:
 * 6.5 / 1.3 is 5 in F32, and more in double. */
static int32_t tie_make(int32_t r, struct hzp_mat *logits, struct hzp_sample_row *row,
                        struct hzp_logit_edit *edit)
{
    int32_t last = logits->cols - 1 - r % 7;
    for (int32_t i = 0; i < logits->cols; i++)
        if (oc_get(logits, r, i) > 4.5)
            oc_put(logits, r, i, 4.5f);
    oc_put(logits, r, r % 5, 5);
    oc_put(logits, r, last, 6.5f);
    *edit = (struct hzp_logit_edit){.token = last, .seen = 1};
    row->repetition = 1.3f;
    row->temperature = r % 2 ? 0.5f : 0;
    row->top_k = r % 2;
    return 1;
}

/* Bans every candidate: the one with the lowest id is drawn all the same. */
static int32_t ban_all(const uint32_t *mask, int32_t vocab, struct hzp_logit_edit *edit)
{
    int32_t count = 0;
    for (int32_t token = 0; token < vocab; token++)
        if (mask[token / 32] >> token % 32 & 1)
            edit[count++] = (struct hzp_logit_edit){.token = token, .bias = -INFINITY};
    return count;
}

/* rows, vocab, kind, tops */
static void build_sample(struct oc_io *io, const struct oc_case *c)
{
    enum { EDITS_MOST = 20 };
    int32_t rows = c->p[0], vocab = c->p[1], used = 0;
    enum kind kind = (enum kind)c->p[2];
    struct hzp_sample_args a = {0};
    struct hzp_sample_row *row = oc_bytes(io, "row", (size_t)rows * sizeof(*row), OC_IN);
    struct hzp_logit_edit *edit =
        oc_bytes(io, "edit", (size_t)rows * EDITS_MOST * sizeof(*edit), OC_IN);
    int32_t words = hzp_mask_words(vocab), masks = 0;
    uint32_t *mask = NULL;
    if (kind == MASKS || kind == FLAT_MASKS)
        mask = oc_bytes(io, "mask", (size_t)(rows * words) * sizeof(*mask), OC_IN);

    a.logits = oc_mat(io, "logits", rows, vocab, HZP_F32, OC_SCRATCH);
    a.row = row;
    a.edit = edit;
    a.mask = mask;
    a.token = oc_array(io, "token", OC_I32, rows, OC_OUT);
    a.logprob = oc_array(io, "logprob", OC_F32, rows, OC_OUT);
    a.rank = oc_array(io, "rank", OC_I32, rows, OC_OUT);
    if (c->p[3]) {
        a.top_token = oc_array(io, "top_token", OC_I32, rows * HZP_TOPS_MAX, OC_OUT);
        a.top_logprob = oc_array(io, "top_logprob", OC_F32, rows * HZP_TOPS_MAX, OC_OUT);
    }
    /* rounded to bf16, as a bf16 head's are: so that there are ties */
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < vocab; i++)
            oc_put(&a.logits, r, i, hzp_bf16_to_f32(hzp_bf16_from_f32((float)(3 * oc_normal(io)))));
    for (int32_t r = 0; r < rows; r++) {
        row_make(io, kind, r, vocab, &row[r]);
        row[r].tops = c->p[3] ? oc_below(io, c->p[3] + 1) : 0;
        row[r].edit0 = used;
        row[r].edits = kind == EDITS || (kind >= ALL && kind != MANY && r % 3)
                           ? edits_make(io, edit + used, vocab)
                           : 0;
        if (kind == ODD)
            odd_make(io, r, &a.logits, &row[r]);
        if (kind == TIES)
            row[r].edits = tie_make(r, &a.logits, &row[r], edit + used);
        if (mask && r % 7) {
            uint32_t *own = mask + masks * words;
            mask_make(io, r, vocab, own);
            row[r].mask = ++masks;
            if (r % 4 == 2 && r % 3 == 1)
                row[r].edits = ban_all(own, vocab, edit + used);
        }
        used += row[r].edits;
    }
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%dx%d %s%s", rows, vocab, kinds[kind], c->p[3] ? " +tops" : "");
}

#define SAMPLE(flags, ...)                                                                         \
    {                                                                                              \
        HZP_OP_sample, build_sample, HZP_F32, flags,                                               \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

const struct oc_case oc_cases_sample[] = {
    SAMPLE(0, 1, 1, GREEDY, 0),
    SAMPLE(0, 1, 1, ALL, 1),
    SAMPLE(0, 0, 96, GREEDY, 0),
    SAMPLE(0, 17, 96, GREEDY, 0),
    SAMPLE(OC_GAPS, 17, 96, EDITS, 0),
    SAMPLE(0, 64, 96, DRAW, 0),
    SAMPLE(OC_GAPS, 64, 96, CUTS, 20),
    SAMPLE(OC_GAPS, 64, 97, ALL, 20),
    SAMPLE(0, 24, 96, TIES, 0),
    SAMPLE(OC_GAPS, 20, 97, ODD, 0),
    SAMPLE(0, 5, 32001, GREEDY, 20),
    SAMPLE(OC_GAPS, 5, 32001, EDITS, 0),
    SAMPLE(0, 5, 32001, DRAW, 5),
    SAMPLE(0, 12, 32001, CUTS, 0),
    SAMPLE(0, 12, 32001, ALL, 20),
    SAMPLE(0, 7, 8192, CUTS, 0), /* cut into parts by the CUDA backend: whole ones */
    SAMPLE(OC_GAPS, 7, 16385, CUTS, 0),
    SAMPLE(OC_GAPS, 5, 16385, DRAW, 0),
    SAMPLE(0, 4, 16385, FLAT, 0),
    SAMPLE(0, 20, 8200, ODD, 0),
    SAMPLE(0, 1, 1, MASKS, 0),
    SAMPLE(OC_GAPS, 64, 97, MASKS, 20),
    SAMPLE(OC_GAPS, 33, 96, MASKS, 0),
    SAMPLE(0, 26, 32001, MASKS, 20),
    SAMPLE(OC_GAPS, 16, 16385, FLAT_MASKS, 0),
    SAMPLE(OC_GAPS, 24, 16385, MANY, 0),
    SAMPLE(OC_BENCH, 256, 128256, MANY, 0),
    SAMPLE(OC_BENCH, 256, 128256, GREEDY, 0),
    SAMPLE(OC_BENCH, 16, 128256, GREEDY, 0),
    SAMPLE(OC_BENCH, 16, 128256, DRAW, 0),
    SAMPLE(OC_BENCH, 16, 128256, CUTS, 0),
    SAMPLE(OC_BENCH, 16, 128256, EDITS, 0),
    SAMPLE(OC_BENCH, 16, 128256, MASKS, 0),
    {0},
};

/* SPDX-License-Identifier: Apache-2.0 */
/* serve/guesses.c - which sequences of a step have guesses of their next tokens, and how many.
 *
 * Thread: engine. */
#include "serve/fill.h"

_Static_assert((int)HZP_EDITS_GUESSES_MAX == HZP_LOOKUP_MAX, "edits behind all guesses of a step");

/* What a guess is expected to bring must be so many times what it costs: how often guesses are
 * right is known roughly. */
static const double pays = 1.2;

/* A background request guesses only while no ordinary one runs: guesses take rows. */
static bool gives_way(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    return seq->rq->background && s->ordinary > 0;
}

bool hzp_has_guesses(const struct hzp_scheduler *s, const struct hzp_seq *seq)
{
    hzp_assert_engine_thread();
    return (seq->keen && !gives_way(s, seq)) || seq->guesses || seq->guessed || seq->guessing;
}

/* What a step may have beside one row of each chosen sequence. */
struct spare {
    int32_t rows, edits, masks, pages;
};

/* Edits of a guess: those of its sequence, and those that guesses before it add. */
static int32_t edits_of(const struct hzp_seq *seq)
{
    int32_t edits = hzp_edits_count(seq->rq->edits);
    return edits && hzp_edits_grow(seq->rq->edits) ? edits + HZP_LOOKUP_MAX : edits;
}

/* Whether anything is guessed of the sequence; not while making its masks takes long. */
static bool may_guess(const struct hzp_seq *seq)
{
    return seq->lookup && hzp_edits_work(seq->rq->edits) < HZP_CONSTRAINT_CHEAP;
}

/* The step is to have so many guesses of the sequence. */
static void take(struct spare *spare, const struct hzp_seq *seq, int32_t guesses)
{
    spare->edits -= guesses * edits_of(seq);
    spare->masks -= hzp_edits_mask(seq->rq->edits) ? guesses : 0;
}

/* How many guesses of the chosen sequence the step may have at most, if its newest token is
 * known. */
static int32_t room_for(const struct hzp_filling *f, struct hzp_seq *seq, const struct spare *spare)
{
    const struct hzp_scheduler *s = f->s;
    const struct hzp_request *rq = seq->rq;
    int32_t edits = edits_of(seq);
    int32_t most = HZP_MIN(s->config.lookup_max, rq->prompt_count + rq->max_tokens - seq->fed - 2);
    most = HZP_MIN(most, spare->rows);
    most = edits ? HZP_MIN(most, spare->edits / edits) : most;
    most = hzp_edits_mask(rq->edits) ? HZP_MIN(most, spare->masks) : most;
    most = HZP_MIN(most, (seq->taken + HZP_MAX(spare->pages, 0)) * s->page_rows - seq->fed - 1);
    bool may = may_guess(seq) && !gives_way(s, seq);
    return may && most > 0 && hzp_fill_pages_fit(f, seq, 1 + most) ? most : 0;
}

static bool is_known(const struct hzp_filling *f, struct hzp_seq *seq)
{
    return seq->step != f->step->number && hzp_fill_drawn_by(seq, f->step) < 0;
}

static int32_t guesses_max(const struct hzp_filling *f, struct hzp_seq *seq,
                           const struct spare *spare)
{
    return is_known(f, seq) ? room_for(f, seq, spare) : 0;
}

/* What the step may have beside the chosen sequences' rows. */
static struct spare spare_of(const struct hzp_filling *f, int32_t chosen)
{
    const struct hzp_scheduler *s = f->s;
    const struct hzp_batch_config *max = &f->offer->batch->max;
    int32_t edits = 0, most = HZP_MIN(f->room->rows, HZP_MIN(max->segs_max, max->logits_max));
    for (int32_t k = 0; k < chosen; k++)
        edits += hzp_edits_count(s->seq[s->chosen[k]].rq->edits);
    return (struct spare){.rows = most - chosen,
                          .edits = max->edits_max - edits,
                          .masks = max->masks_max - s->running,
                          .pages = hzp_prefix_available(s->prefix) - s->running};
}

/* Whether the step computes rows of prompts, beside which a row that guesses saves nothing. */
static bool has_prompts(const struct hzp_filling *f)
{
    const struct hzp_scheduler *s = f->s;
    int32_t count = s->ordinary && f->behind <= 0 ? s->ordinary : s->running;
    bool ret = false;
    for (int32_t i = 0; i < count; i++)
        ret |= hzp_seq_version(s, &s->seq[s->order[i]]) == s->serves &&
               !hzp_seq_decodes(&s->seq[s->order[i]]);
    return ret;
}

/* How many steps the chosen sequences guess from this one on, if they are not in a round; 0: no
 * round begins.  Where one would pay they wait for their tokens, if these are not known yet. */
static int32_t begin_round(const struct hzp_filling *f, int32_t chosen, const struct spare *spare,
                           struct hzp_rounds_mix *ret_mix)
{
    struct hzp_scheduler *s = f->s;
    struct hzp_rounds_mix mix = {0};
    int32_t left = 0, length = 0;
    double trust = 0;
    bool known = true, under_way = false;
    for (int32_t k = 0; k < chosen; k++) {
        struct hzp_seq *seq = &s->seq[s->chosen[k]];
        bool takes_part = room_for(f, seq, spare) > 0;
        left = HZP_MAX(left, seq->left);
        under_way |= seq->left || seq->guessed;
        known &= !takes_part || is_known(f, seq);
        trust += takes_part ? seq->lookup->trust : 0;
        mix.guess += takes_part;
        mix.plain += !takes_part;
    }
    *ret_mix = mix;
    if (under_way)
        return left;
    if (mix.guess && !has_prompts(f))
        length = hzp_rounds_length(&s->rounds, &mix, trust / mix.guess,
                                   HZP_MIN(s->config.lookup_max, spare->rows / mix.guess),
                                   s->config.guess_every, known);
    for (int32_t k = 0; k < chosen; k++)
        s->seq[s->chosen[k]].keen = length > 0 && room_for(f, &s->seq[s->chosen[k]], spare) > 0;
    return known ? length : 0;
}

/* Rounds of guesses (depth.h): the chosen sequences that take part guess in this step, or their
 * guesses are verified; the others have one row.  Returns how many rows more than one each they
 * have. */
static int32_t go_round(const struct hzp_filling *f, int32_t chosen)
{
    struct hzp_scheduler *s = f->s;
    struct spare spare = spare_of(f, chosen);
    struct hzp_rounds_mix mix;
    int32_t more = 0, guessing = 0, kind = 0, left = begin_round(f, chosen, &spare, &mix);
    for (int32_t k = 0; k < chosen; k++) {
        struct hzp_seq *seq = &s->seq[s->chosen[k]];
        int32_t most = guesses_max(f, seq, &spare);
        /* a sequence that comes during a round joins it */
        seq->left = seq->guessed ? seq->left : left;
        seq->guessing = seq->left > 0 && most > seq->guessed;
        seq->left = seq->guessing ? seq->left - 1 : 0;
        seq->guesses = seq->guessing ? 0 : HZP_MIN(seq->guessed, most);
        int32_t end = seq->fed + 1 + (seq->guessing ? seq->guessed : seq->guesses);
        spare.pages -= HZP_MAX(HZP_DIV_UP(end, s->page_rows) - seq->taken, 0);
        spare.rows -= seq->guesses;
        take(&spare, seq, seq->guessing ? 1 : seq->guesses);
        seq->guessed = seq->guessing ? seq->guessed : 0;
        more += seq->guesses;
        guessing += seq->guessing;
        kind = HZP_MAX(kind, seq->guesses);
    }
    mix.guess = !guessing || guessing == mix.guess ? mix.guess : 0;
    hzp_rounds_began(&s->rounds, f->step->number, f->step->in_flight != NULL, &mix,
                     guessing ? HZP_ROUNDS_GUESS : kind);
    return more;
}

int32_t hzp_add_guesses(const struct hzp_filling *f, int32_t chosen)
{
    hzp_assert_engine_thread();
    struct hzp_scheduler *s = f->s;
    int32_t rows = chosen;
    double tokens = chosen;
    struct hzp_rows_curve curve;
    struct spare spare = spare_of(f, chosen);
    for (int32_t k = 0; k < chosen; k++)
        s->seq[s->chosen[k]].guesses = 0;
    if (s->lookup && s->config.guess_by_depth)
        return go_round(f, chosen);
    if (!s->lookup || spare.rows <= 0)
        return 0;
    hzp_rows_curve_of(&f->room->time->rows, &curve);
    for (int32_t place = 0; place < s->config.lookup_max; place++)
        for (int32_t k = 0; k < chosen; k++) {
            struct hzp_seq *seq = &s->seq[s->chosen[k]];
            struct hzp_prefix_tokens known = hzp_request_tokens(seq->rq);
            int32_t fits = seq->guesses == place ? guesses_max(f, seq, &spare) : 0;
            if (fits <= place ||
                hzp_lookup_guess(seq->lookup, &known, place + 1, seq->guess) <= place)
                continue;
            double more = hzp_lookup_expected(seq->lookup, place + 1) -
                          hzp_lookup_expected(seq->lookup, place);
            if ((tokens + more / pays) * hzp_rows_curve_ns(&curve, rows) <
                tokens * hzp_rows_curve_ns(&curve, rows + 1))
                continue;
            int32_t end = seq->fed + 1 + seq->guesses; /* rows so far */
            spare.pages -= end % s->page_rows == 0 && end / s->page_rows >= seq->taken;
            take(&spare, seq, 1);
            spare.rows--;
            tokens += more;
            rows++;
            seq->guesses++;
        }
    return rows - chosen;
}

double hzp_gain_of_guesses(const struct hzp_filling *f)
{
    hzp_assert_engine_thread();
    const struct hzp_scheduler *s = f->s;
    const struct hzp_batch_config *max = &f->offer->batch->max;
    int32_t n = 0, left = HZP_MIN(max->segs_max, max->logits_max);
    struct hzp_rows_curve curve;
    double gain = 0;
    for (int32_t i = 0; i < s->running; i++)
        n += hzp_seq_decodes(&s->seq[s->order[i]]) && !hzp_seq_complete(&s->seq[s->order[i]]);
    if (!s->lookup || s->config.guess_by_depth || !n)
        return 0;
    left -= n;
    hzp_rows_curve_of(&f->room->time->rows, &curve);
    double one = hzp_rows_curve_ns(&curve, n);
    double price = one > 0 ? hzp_rows_curve_ns(&curve, 2 * n) / one - 1 : 1;
    for (int32_t i = 0; i < s->running; i++) {
        const struct hzp_seq *seq = &s->seq[s->order[i]];
        if (!seq->lookup || !seq->lookup->found || hzp_seq_complete(seq) || gives_way(s, seq))
            continue;
        double right = seq->lookup->trust;
        for (int32_t k = 0; k < s->config.lookup_max && right > pays * price && left > 0;
             k++, left--) {
            gain += right - price;
            right *= seq->lookup->trust;
        }
    }
    return gain / n;
}

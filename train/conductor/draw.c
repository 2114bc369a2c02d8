/* SPDX-License-Identifier: Apache-2.0 */
#include "train/conductor/draw.h"

enum { DRAWS_MAX = 65536 /* most samples in one update */ };

void hzp_draw_init(struct hzp_draw *d)
{
    *d = (struct hzp_draw){.room = DRAWS_MAX};
    d->sample = hzp_xcalloc(DRAWS_MAX, sizeof(*d->sample));
    d->bin = hzp_xcalloc(DRAWS_MAX, sizeof(*d->bin));
    d->bin_rows = hzp_xcalloc(DRAWS_MAX, sizeof(*d->bin_rows));
}

void hzp_draw_fini(struct hzp_draw *d)
{
    free(d->sample);
    free(d->bin);
    free(d->bin_rows);
    hzp_works_free(&d->works);
}

/* Each of its documents has something to learn, and there are two at most. */
static bool worth_learning(const struct hzp_sample *sample, int32_t rows_max)
{
    bool learned = false, cut = false;
    for (int32_t i = 0; i < sample->count; i++) {
        learned |= i && sample->learn[i];
        if (sample->token[i] != HZP_PAIR_CUT)
            continue;
        if (!learned || cut || i + 2 >= sample->count)
            return false;
        cut = true;
        learned = false;
        i++; /* nothing is before the first token of the second one */
    }
    return learned && sample->count - 1 <= rows_max;
}

static bool of_sequences(const struct hzp_sample *sample, int32_t i)
{
    return sample->how && sample->how[i].kind >= HZP_LOSS_KINDS;
}

/* Counts a sample that goes into a micro-batch. */
static void count_sample(struct hzp_draw *d, const struct hzp_sample *sample)
{
    int32_t learned = 0;
    for (int32_t i = 1; i < sample->count; i++)
        if (sample->learn[i]) {
            learned++; /* with a loss of sequences a sample counts once */
            if (learned == 1 || !of_sequences(sample, i))
                d->weight_sum += sample->weight ? fabs((double)sample->weight[i]) : 1;
        }
    d->samples++;
    d->rows += sample->count - 1;
    d->learned_tokens += learned;
}

static void note_sequences(struct hzp_draw *d)
{
    for (int32_t i = 0; i < d->count; i++) {
        int64_t n = d->sample[i]->sequence_number;
        if (n <= 0)
            continue;
        if (!d->first_sequence || n < d->first_sequence)
            d->first_sequence = n;
        d->last_sequence = HZP_MAX(d->last_sequence, n);
    }
}

static void assign(struct hzp_draw *d, struct hzp_sample_queue *queue,
                   const struct hzp_draw_limits *limits)
{
    int32_t open = 0; /* micro-batches before it are full */
    for (int32_t i = 0; i < d->count; i++) {
        int32_t rows = d->sample[i]->count - 1;
        d->bin[i] = -1;
        if (!worth_learning(d->sample[i], limits->doc_rows)) {
            if (d->sample[i]->sequence_number > 0)
                hzp_sample_queue_fail(queue, d->sample[i]->sequence_number);
            continue;
        }
        int32_t b = open;
        while (b < d->bins && d->bin_rows[b] + rows > limits->rows)
            b++;
        if (b == d->bins)
            d->bin_rows[d->bins++] = 0;
        d->bin_rows[b] += rows;
        d->bin[i] = b;
        count_sample(d, d->sample[i]);
        while (open < d->bins && d->bin_rows[open] == limits->rows)
            open++;
    }
}

struct length {
    int32_t bin, rows;
};

static int longest_first(const void *a, const void *b)
{
    const struct length *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows > y->rows ? -1 : 1;
    return x->bin < y->bin ? -1 : x->bin > y->bin;
}

static void sort_bins(struct hzp_draw *d)
{
    size_t bins = (size_t)d->bins;
    struct length *length = hzp_xcalloc(bins, sizeof(*length));
    int32_t *number = hzp_xcalloc(bins, sizeof(*number));
    for (int32_t b = 0; b < d->bins; b++)
        length[b] = (struct length){b, d->bin_rows[b]};
    qsort(length, bins, sizeof(*length), longest_first);
    for (int32_t b = 0; b < d->bins; b++) {
        number[length[b].bin] = b;
        d->bin_rows[b] = length[b].rows;
    }
    for (int32_t i = 0; i < d->count; i++)
        if (d->bin[i] >= 0)
            d->bin[i] = number[d->bin[i]];
    free(length);
    free(number);
}

static void add_sample(const struct hzp_sample *s, struct hzp_micro *micro)
{
    int32_t at = micro->learned, soft = 0;
    int r = hzp_micro_add_losses(micro, s->token, s->learn, s->weight, s->how, s->count);
    HZP_ASSERT(r >= 0);
    for (int32_t i = 1; soft < s->softs && i < s->count; i++) {
        if (s->learn[i] && s->how[i].kind == HZP_LOSS_SOFT)
            hzp_micro_soften(micro, at, &s->soft[soft++]);
        at += s->learn[i] != 0;
    }
}

static void write_works(struct hzp_draw *d, const struct hzp_draw_limits *limits,
                        struct hzp_micro *micro)
{
    int32_t each = HZP_MAX(limits->round ? limits->round : d->bins, 1);
    each = limits->stage_paths ? 1 : each;
    hzp_works_clear(&d->works);
    for (int32_t bin = 0; bin < d->bins; bin++) {
        hzp_micro_clear(micro);
        if (limits->stage_paths)
            hzp_stage_paths_deal(limits->stage_paths, limits->optimizer_step, d->bins, bin,
                                 &micro->path);
        else
            hzp_deck_deal(&limits->deck, limits->optimizer_step, HZP_DIV_UP(d->bins, each),
                          bin / each, &micro->path);
        if (bin % each == 0)
            hzp_paths_note(&d->paths, &micro->path, limits->deck.layers, bin == 0);
        for (int32_t i = 0; i < d->count; i++) {
            if (d->bin[i] == bin)
                add_sample(d->sample[i], micro);
        }
        hzp_works_add(&d->works, &(struct hzp_work){.kind = HZP_WORK_MICRO, .first = bin == 0},
                      micro);
    }
}

void hzp_draw_pack(struct hzp_draw *d, struct hzp_sample_queue *queue,
                   const struct hzp_draw_limits *limits, struct hzp_micro *micro)
{
    d->bins = d->samples = 0;
    d->rows = d->learned_tokens = d->first_sequence = d->last_sequence = 0;
    d->weight_sum = 0;
    assign(d, queue, limits);
    note_sequences(d);
    if (limits->by_length && d->bins)
        sort_bins(d);
    write_works(d, limits, micro);
}

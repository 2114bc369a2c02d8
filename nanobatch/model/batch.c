/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/batch.h"

/* Cuts one allocation into arrays: with base NULL it only counts. */
static void *cut(char *base, size_t *used, size_t n, size_t size)
{
    void *p = base ? base + *used : NULL;
    *used += HZP_ROUND_UP(n * size, (size_t)64);
    return p;
}

static size_t lay_out(struct hzp_batch *b, char *base)
{
    const struct hzp_batch_config *max = &b->max;
    size_t rows = (size_t)max->rows_max, segs = (size_t)max->segs_max,
           logits = (size_t)max->logits_max, used = 0;
    b->id = cut(base, &used, rows, sizeof(*b->id));
    b->pos = cut(base, &used, rows, sizeof(*b->pos));
    b->slot = cut(base, &used, rows, sizeof(*b->slot));
    b->ref = cut(base, &used, HZP_MIN(rows, segs), sizeof(*b->ref));
    b->row0 = cut(base, &used, segs + 1, sizeof(*b->row0));
    b->pos0 = cut(base, &used, segs, sizeof(*b->pos0));
    b->nano_row0 = cut(base, &used, segs + 3 * HZP_STRANDS_MAX, sizeof(*b->nano_row0));
    b->nano_pos0 = cut(base, &used, segs + 3 * HZP_STRANDS_MAX, sizeof(*b->nano_pos0));
    b->page = cut(base, &used, segs * (size_t)max->page_stride, sizeof(*b->page));
    size_t backs = max->backing ? segs * (size_t)max->page_stride : 0;
    b->back = cut(base, &used, backs, sizeof(*b->back));
    b->back_slot = cut(base, &used, backs ? rows : 0, sizeof(*b->back_slot));
    size_t changes = max->table ? (size_t)max->table->config.changes_max : 0;
    b->line = cut(base, &used, segs, sizeof(*b->line));
    b->path = cut(base, &used, segs, sizeof(*b->path));
    b->change_at = cut(base, &used, changes, sizeof(*b->change_at));
    b->change_page = cut(base, &used, changes, sizeof(*b->change_page));
    b->logit_row = cut(base, &used, logits, sizeof(*b->logit_row));
    b->sample = cut(base, &used, logits, sizeof(*b->sample));
    b->edit = cut(base, &used, (size_t)max->edits_max, sizeof(*b->edit));
    b->mask = cut(base, &used, (size_t)max->masks_max * (size_t)max->mask_words, sizeof(*b->mask));
    b->token = cut(base, &used, logits, sizeof(*b->token));
    b->rank = cut(base, &used, logits, sizeof(*b->rank));
    b->logprob = cut(base, &used, logits, sizeof(*b->logprob));
    b->top_token = cut(base, &used, logits * HZP_TOPS_MAX, sizeof(*b->top_token));
    b->top_logprob = cut(base, &used, logits * HZP_TOPS_MAX, sizeof(*b->top_logprob));
    size_t hiddens = max->hidden_cols ? logits : 0;
    b->hidden_logit = cut(base, &used, hiddens, sizeof(*b->hidden_logit));
    b->hidden = (struct hzp_mat){.ptr = cut(base, &used, hiddens * (size_t)max->hidden_cols,
                                            hzp_dtype_size(max->hidden_type)),
                                 .rows = (int32_t)hiddens,
                                 .cols = max->hidden_cols,
                                 .stride = max->hidden_cols,
                                 .type = max->hidden_type};
    return used;
}

int hzp_batch_create(struct hzp_device *dev, const struct hzp_batch_config *max,
                     struct hzp_batch **ret)
{
    struct hzp_batch *b = hzp_xcalloc(1, sizeof(*b));
    HZP_ASSERT(!max->backing || (max->page_rows > 0 && !max->table));
    b->max = *max;
    b->dev = dev;
    size_t bytes = lay_out(b, NULL);
    int r = hzp_device_alloc(dev, HZP_MEM_HOST, bytes, &b->memory);
    if (r < 0) {
        free(b);
        return r;
    }
    memset(b->memory, 0, bytes);
    lay_out(b, b->memory);
    hzp_batch_clear(b);
    *ret = b;
    return HZP_OK;
}

void hzp_batch_destroy(struct hzp_batch *b)
{
    if (!b)
        return;
    hzp_device_free(b->dev, HZP_MEM_HOST, b->memory);
    free(b);
}

void hzp_batch_clear(struct hzp_batch *b)
{
    b->rows = b->pads = b->pad_segs = b->pad_logits = b->segs = b->decode_segs = b->logits =
        b->edits = b->masks = b->hiddens = 0;
    b->decode_ctx_max = b->prefill_rows_max = b->prefill_ctx_max = 0;
    b->tops_wanted = false;
    b->refs = b->changes = b->shallow = b->guesses = b->turns = 0;
    b->from = NULL;
    b->row0[0] = 0;
}

int32_t *hzp_batch_add_segment(struct hzp_batch *b, int32_t pos0, bool decode)
{
    HZP_ASSERT(b->segs < b->max.segs_max);
    HZP_ASSERT(!decode || b->decode_segs == b->segs);
    int32_t i = b->segs++;
    if (decode)
        b->decode_segs = b->segs;
    b->pos0[i] = pos0;
    b->path[i] = 0;
    b->turns += i > 0 && b->path[i - 1] != 0;
    b->row0[i] = b->row0[i + 1] = b->rows;
    return b->page + (size_t)i * (size_t)b->max.page_stride;
}

void hzp_batch_set_path(struct hzp_batch *b, int32_t depth)
{
    int32_t i = b->segs - 1;
    HZP_ASSERT(i >= 0 && b->row0[i] == b->rows && depth >= 0 && depth < HZP_DEPTHS);
    HZP_ASSERT(!depth || b->max.layers);
    b->turns += i > 0 && b->path[i - 1] != depth;
    b->turns -= i > 0 && b->path[i - 1] != b->path[i];
    b->path[i] = (int8_t)depth;
}

double hzp_batch_share(const struct hzp_batch *b)
{
    int32_t layers = b->max.layers;
    int64_t computed = 0;
    for (int32_t i = 0; i < b->segs && b->shallow; i++)
        computed += (int64_t)hzp_depth_places(b->path[i], layers) * (b->row0[i + 1] - b->row0[i]);
    return b->shallow ? (double)computed / ((double)layers * b->rows) : 1;
}

void hzp_batch_set_pages(struct hzp_batch *b, int32_t line, const int32_t *page, int32_t count)
{
    const struct hzp_page_table *t = b->max.table;
    int32_t stride = b->max.page_stride, seg = b->segs - 1;
    HZP_ASSERT(seg >= 0 && count <= stride);
    int32_t *own = b->page + (size_t)seg * (size_t)stride;
    if (count > 0 && page != own)
        memcpy(own, page, (size_t)count * sizeof(*page));
    b->line[seg] = line;
    for (int32_t i = 0; b->max.backing && i < count; i++)
        b->back[(size_t)seg * (size_t)stride + (size_t)i] = b->max.backing[page[i]];
    if (!t)
        return;
    HZP_ASSERT(line >= 0 && line < t->config.lines && stride == t->config.stride);
    int32_t *known = t->host + (size_t)line * (size_t)stride;
    for (int32_t i = 0; i < count; i++) {
        if (known[i] == page[i])
            continue;
        HZP_ASSERT(b->changes < t->config.changes_max);
        b->change_at[b->changes] = line * stride + i;
        b->change_page[b->changes++] = known[i] = page[i];
    }
}

bool hzp_batch_pages_fit(const struct hzp_batch *b, int32_t line, const int32_t *page,
                         int32_t count, int32_t more)
{
    const struct hzp_page_table *t = b->max.table;
    int32_t room = t ? t->config.changes_max - b->changes - more : 0;
    const int32_t *known = t ? t->host + (size_t)line * (size_t)t->config.stride : NULL;
    for (int32_t i = 0; t && i < count && room >= 0; i++)
        room -= known[i] != page[i];
    return room >= 0;
}

int32_t hzp_batch_add_row(struct hzp_batch *b, int32_t token, int32_t slot)
{
    HZP_ASSERT(b->rows < b->max.rows_max && b->segs > 0);
    int32_t i = b->segs - 1, r = b->rows++;
    b->id[r] = token;
    b->pos[r] = b->pos0[i] + (r - b->row0[i]);
    b->slot[r] = slot;
    if (b->max.backing) {
        int32_t back = b->max.backing[slot / b->max.page_rows];
        HZP_ASSERT(back >= 0);
        b->back_slot[r] = back * b->max.page_rows + slot % b->max.page_rows;
    }
    b->row0[i + 1] = b->rows;
    b->shallow += b->path[i] != 0;
    b->guesses += b->path[i] >= HZP_DEPTH_GUESS;
    int32_t ctx = b->pos[r] + 1;
    if (i < b->decode_segs) {
        HZP_ASSERT(r == b->row0[i]);
        b->decode_ctx_max = HZP_MAX(b->decode_ctx_max, ctx);
    } else {
        b->prefill_rows_max = HZP_MAX(b->prefill_rows_max, r - b->row0[i] + 1);
        b->prefill_ctx_max = HZP_MAX(b->prefill_ctx_max, ctx);
    }
    return r;
}

int32_t hzp_batch_add_drawn(struct hzp_batch *b, const struct hzp_batch *from, int32_t logit,
                            int32_t slot)
{
    HZP_ASSERT(b->refs == b->rows && (!b->from || b->from == from));
    HZP_ASSERT(logit >= 0 && logit < from->logits && b->decode_segs == b->segs);
    b->from = from;
    b->ref[b->refs++] = logit;
    return hzp_batch_add_row(b, -1, slot);
}

int32_t hzp_batch_add_logits(struct hzp_batch *b, int32_t row)
{
    HZP_ASSERT(b->logits < b->max.logits_max && row < b->rows);
    b->logit_row[b->logits] = row;
    return b->logits++;
}

void hzp_batch_want_hidden(struct hzp_batch *b, int32_t logit)
{
    HZP_ASSERT(b->max.hidden_cols && b->hiddens < b->max.logits_max && logit < b->logits);
    b->hidden_logit[b->hiddens++] = logit;
}

uint32_t *hzp_batch_add_mask(struct hzp_batch *b, int32_t *ret)
{
    HZP_ASSERT(b->masks < b->max.masks_max);
    *ret = ++b->masks;
    return b->mask + (size_t)(*ret - 1) * (size_t)b->max.mask_words;
}

/* ---- padding rows ---- */

int32_t hzp_batch_bucket(int32_t rows)
{
    int32_t power = 1;
    if (rows <= 8) {
        while (power < rows)
            power *= 2;
        return power;
    }
    while (2 * (int64_t)power < rows)
        power *= 2;
    int32_t step = HZP_MAX(power / 4, 8);
    return (int32_t)HZP_MIN(HZP_ROUND_UP((int64_t)rows, (int64_t)step), (int64_t)INT32_MAX);
}

/* A draw that is not read, of this row's logits. */
static void add_pad_logits(struct hzp_batch *b, int32_t row)
{
    int32_t at = b->logits + b->pad_logits++;
    b->logit_row[at] = row;
    b->sample[at] = (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = 0};
}

/* It attends to the first token of the last row's sequence: that was stored in an earlier step, and
 * no row is stored there while the sequence runs. */
static void add_pad(struct hzp_batch *b, int32_t r)
{
    const int32_t *page = b->page + (size_t)(b->rows - 1) * (size_t)b->max.page_stride;
    b->id[r] = 0;
    b->pos[r] = b->pos0[r] = 0;
    b->slot[r] = -1;
    b->row0[r + 1] = r + 1;
    b->page[(size_t)r * (size_t)b->max.page_stride] = page[0];
    b->line[r] = b->line[b->rows - 1];
    add_pad_logits(b, r);
}

/* A padding row that nothing attends to and that attends to nothing. */
static void add_bare(struct hzp_batch *b, int32_t r)
{
    b->id[r] = b->pos[r] = 0;
    b->slot[r] = -1;
}

int32_t hzp_batch_size(int32_t rows)
{
    enum { TILE = 128 };
    int32_t step = TILE;
    if (rows <= TILE)
        return hzp_batch_bucket(rows);
    while (16 * (int64_t)step < rows) /* a step is an eighth of the power of two below */
        step *= 2;
    return (int32_t)HZP_MIN(HZP_ROUND_UP((int64_t)rows, (int64_t)step), (int64_t)INT32_MAX);
}

int32_t hzp_batch_decodes_max(const struct hzp_batch_config *max)
{
    return HZP_MIN(max->rows_max, HZP_MIN(max->segs_max, max->logits_max));
}

int32_t hzp_batch_head_rows(const struct hzp_batch_config *max, int32_t logits)
{
    int32_t size = hzp_batch_bucket(logits), most = hzp_batch_decodes_max(max);
    return HZP_MIN(size, logits <= most ? most : max->logits_max);
}

void hzp_batch_pad(struct hzp_batch *b)
{
    const struct hzp_batch_config *max = &b->max;
    int32_t rows = b->rows;
    bool decodes = rows > 0 && b->segs == rows && b->decode_segs == rows && b->logits == rows;
    if (b->pads > 0 || (decodes && b->pos0[rows - 1] < 1))
        return;
    if (decodes) {
        int32_t most = hzp_batch_decodes_max(max);
        int32_t bucket = hzp_batch_bucket(rows), to = HZP_MIN(bucket, most);
        for (; rows + b->pads < to; b->pads++)
            add_pad(b, rows + b->pads);
        b->pad_segs = b->pads;
    } else if (rows > b->decode_segs) {
        int32_t size = hzp_batch_size(rows), to = HZP_MIN(size, max->rows_max);
        for (; rows + b->pads < to; b->pads++)
            add_bare(b, rows + b->pads);
        int32_t head = b->logits ? hzp_batch_head_rows(max, b->logits) : 0;
        while (b->logits + b->pad_logits < head)
            add_pad_logits(b, 0);
    }
}

/* Segments [seg, end) of the batch, as far as they lie in rows [from, to), at *used of the batch's
 * nano arrays; rows count from `from`. */
static struct hzp_segs segs_cut(struct hzp_batch *b, int32_t seg, int32_t end, int32_t from,
                                int32_t to, int32_t *used)
{
    int32_t *row0 = b->nano_row0 + *used, *pos0 = b->nano_pos0 + *used;
    struct hzp_segs segs = {.row0 = row0, .pos0 = pos0};
    for (; seg < end; seg++) {
        int32_t first = HZP_MAX(b->row0[seg], from), last = HZP_MIN(b->row0[seg + 1], to);
        int32_t at = b->pos0[seg] + first - b->row0[seg];
        row0[segs.count] = first - from;
        pos0[segs.count++] = at;
        segs.rows_max = HZP_MAX(segs.rows_max, last - first);
        segs.ctx_max = HZP_MAX(segs.ctx_max, at + last - first);
    }
    row0[segs.count] = to - from;
    *used += segs.count + 1;
    return segs;
}

/* The first of the decode segments up to this one that are of one sequence. */
static int32_t first_of_sequence(const struct hzp_batch *b, int32_t seg)
{
    while (seg > 0 && seg < b->decode_segs && b->line[seg] == b->line[seg - 1] &&
           b->pos0[seg] == b->pos0[seg - 1] + 1)
        seg--;
    return seg;
}

int32_t hzp_batch_cut(struct hzp_batch *b, const int32_t *cuts, int32_t nanos, struct hzp_nano *ret)
{
    int32_t count = 0, seg = 0, used = 0, segs = b->segs + b->pad_segs;
    int32_t decode_segs = b->decode_segs + b->pad_segs; /* those only where all decode */
    int32_t segs_end = b->rows + b->pad_segs;           /* rows behind it have no segment */
    HZP_ASSERT(nanos >= 1 && nanos <= HZP_STRANDS_MAX && cuts[0] == 0 &&
               cuts[nanos] == b->rows + b->pads);
    for (int32_t i = 0; i < nanos; i++) {
        int32_t from = cuts[i], to = cuts[i + 1];
        HZP_ASSERT(from <= to);
        if (from == to)
            continue;
        int32_t last = HZP_MAX(from, HZP_MIN(to, segs_end));
        while (seg < segs && b->row0[seg + 1] <= from)
            seg++;
        int32_t end = seg;
        while (end < segs && b->row0[end] < last)
            end++;
        int32_t prefill = HZP_MAX(seg, HZP_MIN(decode_segs, end)), decodes = prefill - seg;
        struct hzp_nano *n = &ret[count++];
        *n = (struct hzp_nano){.row0 = from,
                               .rows = to - from,
                               .decode_rows = decodes,
                               .bare = to - last,
                               .id = b->id + from,
                               .pos = b->pos + from,
                               .slot = b->slot + from,
                               .page_stride = b->max.page_stride,
                               .table = b->max.table};
        n->decode = segs_cut(b, seg, prefill, from, from + decodes, &used);
        n->prefill = segs_cut(b, prefill, end, from + decodes, last, &used);
        n->decode_page = b->page + (size_t)seg * (size_t)b->max.page_stride;
        n->prefill_page = b->page + (size_t)prefill * (size_t)b->max.page_stride;
        if (b->max.backing) {
            n->decode_back = b->back + (size_t)seg * (size_t)b->max.page_stride;
            n->prefill_back = b->back + (size_t)prefill * (size_t)b->max.page_stride;
        }
        n->decode_line = b->line + seg;
        n->prefill_line = b->line + prefill;
        n->joins = prefill < end ? b->row0[prefill] : to;
        int32_t first = decodes ? first_of_sequence(b, seg) : seg;
        if (first < seg) {
            n->joins = b->row0[first];
            n->goes_on = true;
        }
    }
    return count;
}

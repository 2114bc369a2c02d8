/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/step_record.c - what a record looks like:
 *
 *     head        fixed size: struct head
 *     id          [rows] tokens; -1: drawn by the step before
 *     ref         [refs] which of its draws
 *     segment     [segs] struct segment
 *     page        [pages] the changes of each segment, one behind the other
 *     logit_row   [logits]
 *     sample      [logits] SAMPLE_BYTES each
 *     edit        [edits] struct hzp_logit_edit
 *     hidden      [hiddens] of the draws
 *     mask        [masks][mask_words]
 *     work        [work] bytes
 */
#include "nanobatch/step_record.h"

#include "device/philox.h"

static const char magic[8] = "hzpstep";
static const uint64_t order_mark = 0x0102030405060708u;

struct head {
    char magic[8];
    uint64_t order, bytes, sum; /* sum: of all that follows */
    uint64_t step, version, current, plan, drawn_step, drawn, chain;
    int32_t shape, end, padded, tops;
    int32_t rows, refs, segs, decode_segs, logits, edits, masks, hiddens, pages, from, to, work;
    int32_t warms, zero;
};
_Static_assert(sizeof(struct head) == HZP_STEP_RECORD_HEAD, "a record's head has no padding");
_Static_assert(sizeof(struct hzp_logit_edit) == 16, "an edit has no padding");
enum { SUM_END = 32, SAMPLE_BYTES = 68 };

struct segment {
    int32_t pos0, rows, line;
    int32_t change0, changes; /* pages [change0, change0 + changes) of its line are new */
    int32_t path;
};

/* ---- pages ---- */

void hzp_step_pages_init(struct hzp_step_pages *pages, int32_t lines, int32_t stride)
{
    size_t count = (size_t)lines * (size_t)stride;
    *pages = (struct hzp_step_pages){.lines = lines, .stride = stride};
    pages->known = hzp_xcalloc(count, sizeof(*pages->known));
    for (size_t i = 0; i < count; i++)
        pages->known[i] = -1;
}

void hzp_step_pages_fini(struct hzp_step_pages *pages)
{
    free(pages->known);
    *pages = (struct hzp_step_pages){0};
}

static int32_t *line_of(const struct hzp_step_pages *pages, int32_t line)
{
    return pages->known + (size_t)line * (size_t)pages->stride;
}

/* ---- sizes ---- */

static size_t bytes_of(const struct head *h, int32_t mask_words)
{
    return sizeof(*h) + 4 * ((size_t)h->rows + (size_t)h->refs + (size_t)h->pages) +
           sizeof(struct segment) * (size_t)h->segs + (4 + SAMPLE_BYTES) * (size_t)h->logits +
           sizeof(struct hzp_logit_edit) * (size_t)h->edits + 4 * (size_t)h->hiddens +
           4 * (size_t)h->masks * (size_t)mask_words + (size_t)h->work;
}

/* All pages of all segments: each line's at most once, and a segment has a line of its own. */
static int64_t pages_max(const struct hzp_batch_config *max, const struct hzp_step_limits *is)
{
    return (int64_t)HZP_MIN(max->segs_max, is->lines) * max->page_stride;
}

size_t hzp_step_record_room(const struct hzp_batch_config *max, const struct hzp_step_limits *is)
{
    struct head most = {.rows = max->rows_max,
                        .refs = HZP_MIN(max->rows_max, max->segs_max),
                        .segs = max->segs_max,
                        .logits = max->logits_max,
                        .edits = max->edits_max,
                        .masks = max->masks_max,
                        .hiddens = max->hidden_cols ? max->logits_max : 0,
                        .work = is->work_bytes};
    return bytes_of(&most, max->mask_words) + 4 * (size_t)pages_max(max, is);
}

/* ---- write ---- */

static void put(char **at, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(*at, from, bytes);
    *at += bytes;
}

static void put_sample(char **at, const struct hzp_sample_row *s)
{
    float real[] = {s->temperature, s->top_p, s->min_p, s->repetition, s->presence, s->frequency};
    int32_t whole[] = {s->top_k, s->edit0, s->edits, s->given, s->tops, s->mask};
    put(at, real, sizeof(real));
    put(at, whole, sizeof(whole));
    put(at, &s->seed, sizeof(s->seed));
    put(at, &s->choice, sizeof(s->choice));
    put(at, &s->position, sizeof(s->position));
    put(at, &(int32_t){0}, sizeof(int32_t));
}

/* The changes of segment i's line, which are told from now on. */
static struct segment segment_of(const struct hzp_batch *b, int32_t i,
                                 const struct hzp_step_limits *is, struct hzp_step_pages *pages)
{
    struct segment seg = {.pos0 = b->pos0[i],
                          .rows = b->row0[i + 1] - b->row0[i],
                          .line = b->line[i],
                          .path = b->path[i]};
    HZP_ASSERT(seg.line >= 0 && seg.line < pages->lines && pages->stride == b->max.page_stride);
    int32_t count = HZP_DIV_UP(seg.pos0 + seg.rows, is->page_rows);
    const int32_t *own = b->page + (size_t)i * (size_t)b->max.page_stride;
    int32_t *known = line_of(pages, seg.line);
    while (seg.change0 < count && known[seg.change0] == own[seg.change0])
        seg.change0++;
    seg.changes = count - seg.change0;
    memcpy(known + seg.change0, own + seg.change0, (size_t)seg.changes * sizeof(*own));
    return seg;
}

static void put_segments(char **at, const struct hzp_batch *b, const struct hzp_step_limits *is,
                         struct hzp_step_pages *pages, struct head *h)
{
    char *changes = *at + (size_t)b->segs * sizeof(struct segment);
    for (int32_t i = 0; i < b->segs; i++) {
        struct segment seg = segment_of(b, i, is, pages);
        put(at, &seg, sizeof(seg));
        put(&changes, line_of(pages, seg.line) + seg.change0, 4 * (size_t)seg.changes);
        h->pages += seg.changes;
    }
    *at = changes;
}

static void put_batch(char **at, const struct hzp_batch *b, const struct hzp_step_limits *is,
                      struct hzp_step_pages *pages, struct head *h)
{
    h->padded = b->pads > 0 || b->pad_logits > 0;
    h->tops = b->tops_wanted;
    h->rows = b->rows;
    h->refs = b->refs;
    h->segs = b->segs;
    h->decode_segs = b->decode_segs;
    h->logits = b->logits;
    h->edits = b->edits;
    h->masks = b->masks;
    h->hiddens = b->hiddens;
    put(at, b->id, 4 * (size_t)b->rows);
    put(at, b->ref, 4 * (size_t)b->refs);
    put_segments(at, b, is, pages, h);
    put(at, b->logit_row, 4 * (size_t)b->logits);
    for (int32_t i = 0; i < b->logits; i++)
        put_sample(at, &b->sample[i]);
    put(at, b->edit, sizeof(*b->edit) * (size_t)b->edits);
    put(at, b->hidden_logit, 4 * (size_t)b->hiddens);
    put(at, b->mask, 4 * (size_t)b->masks * (size_t)b->max.mask_words);
}

static uint64_t sum_of(const char *data, size_t bytes)
{
    uint64_t sum = bytes;
    for (size_t at = SUM_END; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, data + at, HZP_MIN(sizeof(word), bytes - at));
        sum = hzp_mix64(sum + word + 0x9e3779b97f4a7c15u);
    }
    return sum;
}

void hzp_step_record_seal(char *data, size_t bytes)
{
    uint64_t sum = sum_of(data, bytes);
    memcpy(data + offsetof(struct head, sum), &sum, sizeof(sum));
}

size_t hzp_step_record_write(const struct hzp_step_record *record, const struct hzp_batch *batch,
                             const struct hzp_step_limits *is, struct hzp_step_pages *pages,
                             char *data)
{
    const struct hzp_step_training *training = &record->training;
    struct head h = {.order = order_mark,
                     .step = record->step,
                     .version = record->version,
                     .current = record->current,
                     .plan = record->plan,
                     .drawn_step = record->drawn_step,
                     .drawn = record->drawn,
                     .chain = training->chain,
                     .shape = record->shape,
                     .end = record->end,
                     .warms = record->warms,
                     .from = training->from,
                     .to = training->to,
                     .work = (int32_t)training->work_bytes};
    HZP_ASSERT(training->work_bytes <= (size_t)is->work_bytes);
    char *at = data + sizeof(h);
    memcpy(h.magic, magic, sizeof(magic));
    if (batch)
        put_batch(&at, batch, is, pages, &h);
    put(&at, training->work, training->work_bytes);
    h.bytes = (uint64_t)(at - data);
    memcpy(data, &h, sizeof(h));
    hzp_step_record_seal(data, h.bytes);
    return h.bytes;
}

/* ---- read ---- */

struct reader {
    const char *at;
    const struct head *h;
    const struct hzp_step_limits *is;
    struct hzp_step_pages *pages;
    const struct hzp_batch *before;
    struct hzp_batch *b;
    struct hzp_err_text *reterr;
};

static int bad(const struct reader *r, const char *what, int32_t i)
{
    return hzp_fail(r->reterr, HZP_EFORMAT, "the record of step %llu: %s (%d)",
                    (unsigned long long)r->h->step, what, i);
}

/* i: which one it is about. */
#define REQUIRE(r, condition, what, i)                                                             \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return bad((r), (what), (i));                                                          \
    } while (0)

static void get(struct reader *r, void *to, size_t bytes)
{
    if (bytes)
        memcpy(to, r->at, bytes);
    r->at += bytes;
}

int hzp_step_record_bytes(const char *head, size_t room, size_t *ret, struct hzp_err_text *reterr)
{
    struct head h;
    memcpy(&h, head, sizeof(h));
    if (memcmp(h.magic, magic, sizeof(magic)) != 0)
        return hzp_fail(reterr, HZP_EFORMAT, "this is no record of a step");
    if (h.order != order_mark)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "a record of a step comes from a machine of another byte order");
    if (h.bytes < sizeof(h) || h.bytes > room)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "a record of a step has %llu bytes: between %zu and %zu are expected",
                        (unsigned long long)h.bytes, sizeof(h), room);
    *ret = h.bytes;
    return HZP_OK;
}

static bool within(int32_t n, int64_t most)
{
    return n >= 0 && n <= most;
}

static int check_counts(const struct reader *r)
{
    const struct head *h = r->h;
    const struct hzp_batch_config *max = &r->b->max;
    const struct {
        const char *what;
        int32_t is;
        int64_t most;
    } count[] = {{"too many rows", h->rows, max->rows_max},
                 {"too many drawn rows", h->refs, HZP_MIN(h->rows, r->before ? h->segs : 0)},
                 {"too many segments", h->segs, HZP_MIN(max->segs_max, h->rows)},
                 {"too many decode segments", h->decode_segs, h->segs},
                 {"drawn rows that do not decode", h->refs, h->decode_segs},
                 {"too many draws", h->logits, max->logits_max},
                 {"too many edits", h->edits, max->edits_max},
                 {"too many masks", h->masks, max->masks_max},
                 {"too many hidden states", h->hiddens, max->hidden_cols ? h->logits : 0},
                 {"too many pages", h->pages, pages_max(max, r->is)},
                 {"an unknown flag", h->end, 1},
                 {"an unknown flag", h->padded, 1},
                 {"an unknown flag", h->tops, 1},
                 {"an unknown flag", h->warms, 1},
                 {"an unknown flag", h->zero, 0},
                 {"made-up rows of training or of an end", h->warms ? h->end || h->chain : 0, 0},
                 {"rows in an end", h->end ? h->rows : 0, 0},
                 {"too much work of a chain", h->work, h->chain ? r->is->work_bytes : 0},
                 {"items of no chain", h->to, h->chain && r->is->work_bytes ? INT32_MAX : 0},
                 {"items in the wrong order", h->from, h->to},
                 {"a chain in an end", h->end && h->chain, 0}};
    for (int32_t i = 0; i < HZP_COUNT(count); i++)
        REQUIRE(r, within(count[i].is, count[i].most), count[i].what, count[i].is);
    REQUIRE(r, h->shape >= -1, "a shape that makes no sense", h->shape);
    REQUIRE(r, !h->chain || r->is->work_bytes, "a chain, and this rank does not train", 0);
    REQUIRE(r, !h->work || h->from == 0, "work that is not with the first slice", h->from);
    REQUIRE(r, bytes_of(h, max->mask_words) == h->bytes, "its counts do not fit its size", 0);
    return HZP_OK;
}

/* Reads a segment; `change` moves along the changes behind the segments. */
static int read_segment(struct reader *r, int32_t i, const char **change, int32_t *changes_left,
                        int32_t *ret_rows)
{
    struct segment seg;
    struct hzp_batch *b = r->b;
    int64_t positions = HZP_MIN(r->is->positions, (int64_t)b->max.page_stride * r->is->page_rows);
    get(r, &seg, sizeof(seg));
    REQUIRE(r, seg.rows >= 1 && seg.rows <= r->h->rows && within(seg.pos0, positions - seg.rows),
            "a segment beyond the longest sequence", i);
    REQUIRE(r, i >= r->h->decode_segs || seg.rows == 1, "a decode segment of several rows", i);
    REQUIRE(r, within(seg.line, r->is->lines - 1), "a line of pages that does not exist", i);
    REQUIRE(r, within(seg.path, b->max.layers ? HZP_DEPTHS - 1 : 0), "a path that does not exist",
            i);
    int32_t count = HZP_DIV_UP(seg.pos0 + seg.rows, r->is->page_rows);
    REQUIRE(r,
            within(seg.change0, count) && seg.changes == count - seg.change0 &&
                seg.changes <= *changes_left,
            "pages beyond its segment", i);
    int32_t *known = line_of(r->pages, seg.line);
    memcpy(known + seg.change0, *change, 4 * (size_t)seg.changes);
    *change += 4 * (size_t)seg.changes;
    *changes_left -= seg.changes;
    for (int32_t p = 0; p < count; p++)
        REQUIRE(r, within(known[p], r->is->pages - 1), "a page that does not exist", known[p]);
    REQUIRE(r, hzp_batch_pages_fit(b, seg.line, known, count, 0), "too many changes of pages", i);
    hzp_batch_add_segment(b, seg.pos0, i < r->h->decode_segs);
    hzp_batch_set_path(b, seg.path);
    REQUIRE(r, b->turns <= HZP_BATCH_TURNS, "too many changes of the path", i);
    hzp_batch_set_pages(b, seg.line, known, count);
    *ret_rows = seg.rows;
    return HZP_OK;
}

/* Appends the newest segment's rows, whose ids stand at id[0 .. rows). */
static int read_rows(struct reader *r, const char *id, const char *ref, int32_t rows)
{
    struct hzp_batch *b = r->b;
    const int32_t *page = b->page + (size_t)(b->segs - 1) * (size_t)b->max.page_stride;
    for (int32_t k = 0; k < rows; k++) {
        int32_t token, logit, row = b->rows, p = b->pos0[b->segs - 1] + k;
        int32_t slot = page[p / r->is->page_rows] * r->is->page_rows + p % r->is->page_rows;
        memcpy(&token, id + 4 * (size_t)row, sizeof(token));
        if (row < r->h->refs) {
            memcpy(&logit, ref + 4 * (size_t)row, sizeof(logit));
            REQUIRE(r, token == -1 && within(logit, r->before->logits - 1),
                    "a row whose token no step draws", row);
            hzp_batch_add_drawn(b, r->before, logit, slot);
        } else {
            REQUIRE(r, within(token, r->is->vocab - 1), "a token outside the vocabulary", token);
            hzp_batch_add_row(b, token, slot);
        }
    }
    return HZP_OK;
}

static int read_segments(struct reader *r)
{
    const struct head *h = r->h;
    const char *id = r->at, *ref = id + 4 * (size_t)h->rows;
    r->at = ref + 4 * (size_t)h->refs;
    const char *change = r->at + sizeof(struct segment) * (size_t)h->segs;
    int32_t changes_left = h->pages;
    for (int32_t i = 0; i < h->segs; i++) {
        int32_t rows = 0;
        HZP_TRY(read_segment(r, i, &change, &changes_left, &rows));
        REQUIRE(r, rows <= h->rows - r->b->rows, "segments of more rows than it has", i);
        HZP_TRY(read_rows(r, id, ref, rows));
    }
    REQUIRE(r, r->b->rows == h->rows, "rows of no segment", r->b->rows);
    REQUIRE(r, changes_left == 0, "pages of no segment", changes_left);
    r->at = change;
    return HZP_OK;
}

static bool finite_all(const float *x, int32_t count)
{
    while (count > 0 && isfinite(x[count - 1]))
        count--;
    return count == 0;
}

static int read_sample(struct reader *r, int32_t i, struct hzp_sample_row *s)
{
    const struct head *h = r->h;
    float real[6];
    int32_t whole[6], unused;
    get(r, real, sizeof(real));
    get(r, whole, sizeof(whole));
    *s = (struct hzp_sample_row){.temperature = real[0],
                                 .top_p = real[1],
                                 .min_p = real[2],
                                 .repetition = real[3],
                                 .presence = real[4],
                                 .frequency = real[5],
                                 .top_k = whole[0],
                                 .edit0 = whole[1],
                                 .edits = whole[2],
                                 .given = whole[3],
                                 .tops = whole[4],
                                 .mask = whole[5]};
    get(r, &s->seed, sizeof(s->seed));
    get(r, &s->choice, sizeof(s->choice));
    get(r, &s->position, sizeof(s->position));
    get(r, &unused, sizeof(unused));
    REQUIRE(r, finite_all(real, HZP_COUNT(real)), "a sampling parameter is not finite", i);
    REQUIRE(r, within(s->edit0, h->edits) && within(s->edits, h->edits - s->edit0),
            "edits beyond the list", i);
    REQUIRE(r, s->given >= -1 && s->given < r->is->vocab, "a given token outside the vocabulary",
            i);
    REQUIRE(r, within(s->tops, h->tops ? HZP_TOPS_MAX : 0), "too many likeliest tokens", i);
    REQUIRE(r, within(s->mask, h->masks), "a mask that it does not have", i);
    REQUIRE(r, within(s->top_k, INT32_MAX) && unused == 0, "a draw that makes no sense", i);
    return HZP_OK;
}

/* A mask allows at least one token, and none outside the vocabulary. */
static int check_mask(const struct reader *r, int32_t m)
{
    int32_t words = r->b->max.mask_words, tail = r->is->vocab % 32;
    const uint32_t *mask = r->b->mask + (size_t)m * (size_t)words;
    uint32_t any = 0, beyond = tail ? mask[words - 1] >> tail : 0;
    for (int32_t i = 0; i < words; i++)
        any |= mask[i];
    REQUIRE(r, any && !beyond, "a mask without a token, or with one outside the vocabulary", m);
    return HZP_OK;
}

static int read_draws(struct reader *r)
{
    const struct head *h = r->h;
    struct hzp_batch *b = r->b;
    b->tops_wanted = h->tops;
    for (int32_t i = 0; i < h->logits; i++) {
        int32_t row;
        get(r, &row, sizeof(row));
        REQUIRE(r, within(row, h->rows - 1), "a draw from no row", row);
        hzp_batch_add_logits(b, row);
    }
    for (int32_t i = 0; i < h->logits; i++)
        HZP_TRY(read_sample(r, i, &b->sample[i]));
    b->edits = h->edits;
    get(r, b->edit, sizeof(*b->edit) * (size_t)h->edits);
    for (int32_t i = 0; i < h->edits; i++)
        REQUIRE(r, within(b->edit[i].token, r->is->vocab - 1) && !isnan(b->edit[i].bias),
                "an edit of no token", i);
    for (int32_t i = 0, last = -1, logit; i < h->hiddens; i++, last = logit) {
        get(r, &logit, sizeof(logit));
        REQUIRE(r, logit > last && logit < h->logits, "a hidden state of no draw", logit);
        hzp_batch_want_hidden(b, logit);
    }
    b->masks = h->masks;
    get(r, b->mask, 4 * (size_t)h->masks * (size_t)b->max.mask_words);
    for (int32_t m = 0; m < h->masks; m++)
        HZP_TRY(check_mask(r, m));
    return HZP_OK;
}

int hzp_step_record_read(const char *data, size_t bytes, const struct hzp_step_limits *is,
                         struct hzp_step_pages *pages, const struct hzp_batch *before,
                         struct hzp_step_record *ret, struct hzp_batch *batch,
                         struct hzp_err_text *reterr)
{
    struct head h;
    size_t said;
    struct reader r = {.at = data + sizeof(h),
                       .h = &h,
                       .is = is,
                       .pages = pages,
                       .before = before,
                       .b = batch,
                       .reterr = reterr};
    if (bytes < sizeof(h))
        return hzp_fail(reterr, HZP_EFORMAT, "a record of a step is cut off at %zu bytes", bytes);
    HZP_TRY(hzp_step_record_bytes(data, bytes, &said, reterr));
    memcpy(&h, data, sizeof(h));
    REQUIRE(&r, said == bytes, "it does not end where it says", 0);
    REQUIRE(&r, h.sum == sum_of(data, bytes), "its checksum is wrong", 0);
    hzp_batch_clear(batch);
    if (h.warms) /* as rank 0 does (run/warm.h) */
        hzp_page_table_forget(batch->max.table);
    HZP_TRY(check_counts(&r));
    HZP_TRY(read_segments(&r));
    HZP_TRY(read_draws(&r));
    if (h.padded)
        hzp_batch_pad(batch);
    REQUIRE(&r, (batch->pads > 0 || batch->pad_logits > 0) == h.padded,
            "it is padded, and this rank does not pad", 0);
    *ret = (struct hzp_step_record){.step = h.step,
                                    .version = h.version,
                                    .current = h.current,
                                    .plan = h.plan,
                                    .drawn_step = h.drawn_step,
                                    .drawn = h.drawn,
                                    .shape = h.shape,
                                    .end = h.end,
                                    .warms = h.warms,
                                    .training = {.chain = h.chain,
                                                 .from = h.from,
                                                 .to = h.to,
                                                 .work = h.work ? r.at : NULL,
                                                 .work_bytes = (size_t)h.work}};
    return HZP_OK;
}

uint64_t hzp_step_drawn(const struct hzp_batch *batch)
{
    return hzp_hash_numbers((uint64_t)batch->logits, batch->token, batch->logits);
}

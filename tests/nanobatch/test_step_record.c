/* SPDX-License-Identifier: Apache-2.0 */
/* Records of steps: what is written is read, row for row, over thousands of random steps with
 * sequences that come, grow, end and leave their line to others; a record that was cut off or
 * changed is refused; and one that was changed and sealed again is refused or keeps within the
 * limits. */
#include "nanobatch/plan/plan.h"
#include "nanobatch/step_record.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LINES = 6, PAGE_ROWS = 4, STRIDE = 8, VOCAB = 70, PAGES = 60, WORDS = 3 };

static const struct hzp_batch_config max = {.rows_max = 40,
                                            .segs_max = LINES,
                                            .page_stride = STRIDE,
                                            .logits_max = 12,
                                            .edits_max = 30,
                                            .masks_max = 4,
                                            .mask_words = WORDS,
                                            .hidden_cols = 8,
                                            .hidden_type = HZP_F32,
                                            .layers = 9};
static const struct hzp_step_limits limits = {.lines = LINES,
                                              .vocab = VOCAB,
                                              .pages = PAGES,
                                              .page_rows = PAGE_ROWS,
                                              .positions = STRIDE * PAGE_ROWS,
                                              .work_bytes = 50};
static const char work[50] = "what a chain of training is made from";

/* Rank 0's side: sequences, one a line. */
struct world {
    struct hzp_device *dev;
    struct hzp_batch *batch[2], *read[2];
    struct hzp_step_pages told, heard;
    uint64_t random, step;
    struct {
        int32_t fed, page[STRIDE], drew; /* drew: which draw of the step before; -1: none */
    } seq[LINES];
    char *data;
    size_t room, bytes;
};

static int32_t pick(struct world *w, int32_t below)
{
    return (int32_t)seeded(&w->random, (uint32_t)below);
}

static void open_world(struct world *w, uint64_t seed)
{
    struct hzp_device_config config = {.name = "ref", .threads = 1};
    memset(w, 0, sizeof(*w));
    w->random = seed;
    assert_int_equal(hzp_device_open(&config, &w->dev, NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hzp_batch_create(w->dev, &max, &w->batch[i]), 0);
        assert_int_equal(hzp_batch_create(w->dev, &max, &w->read[i]), 0);
    }
    hzp_step_pages_init(&w->told, LINES, STRIDE);
    hzp_step_pages_init(&w->heard, LINES, STRIDE);
    for (int32_t i = 0; i < LINES; i++)
        w->seq[i].drew = -1;
    w->room = hzp_step_record_room(&max, &limits);
    w->data = hzp_xcalloc(1, w->room);
}

static void close_world(struct world *w)
{
    for (int i = 0; i < 2; i++) {
        hzp_batch_destroy(w->batch[i]);
        hzp_batch_destroy(w->read[i]);
    }
    hzp_step_pages_fini(&w->told);
    hzp_step_pages_fini(&w->heard);
    hzp_device_close(w->dev);
    free(w->data);
}

static void want(struct world *w, struct hzp_batch *b, int32_t line, int32_t row)
{
    int32_t at = hzp_batch_add_logits(b, row), edits = pick(w, 3);
    struct hzp_sample_row *s = &b->sample[at];
    *s = (struct hzp_sample_row){.temperature = (float)pick(w, 3) * 0.5f,
                                 .top_p = 1,
                                 .min_p = 0.25f,
                                 .repetition = 1 + (float)pick(w, 2),
                                 .presence = -0.5f,
                                 .frequency = 0.75f,
                                 .top_k = pick(w, 9),
                                 .seed = (uint64_t)pick(w, 1 << 30) << 33,
                                 .choice = (uint32_t)pick(w, 4),
                                 .position = (uint32_t)b->pos[row],
                                 .edit0 = b->edits,
                                 .edits = edits,
                                 .given = pick(w, 4) ? -1 : pick(w, VOCAB),
                                 .tops = pick(w, 4) ? 0 : 5};
    b->tops_wanted |= s->tops > 0;
    for (int32_t i = 0; i < edits; i++)
        b->edit[b->edits++] =
            (struct hzp_logit_edit){pick(w, VOCAB), pick(w, 2) ? -INFINITY : 1.5f, i, 1};
    if (b->masks < max.masks_max && pick(w, 3) == 0) {
        uint32_t *mask = hzp_batch_add_mask(b, &s->mask);
        for (int32_t i = 0; i < WORDS; i++)
            mask[i] = (uint32_t)pick(w, 1 << 30);
        mask[WORDS - 1] = 1u << pick(w, VOCAB % 32);
    }
    if (pick(w, 4) == 0)
        hzp_batch_want_hidden(b, at);
    w->seq[line].drew = at;
}

static void add(struct world *w, struct hzp_batch *b, int32_t line, int32_t rows, bool decode)
{
    int32_t drew = w->seq[line].drew, fed = w->seq[line].fed;
    hzp_batch_add_segment(b, fed, decode);
    hzp_batch_set_path(b, pick(w, 2) ? 0 : pick(w, HZP_DEPTHS));
    for (int32_t p = 0; p < STRIDE; p++)
        if (p * PAGE_ROWS >= fed && p * PAGE_ROWS < fed + rows)
            w->seq[line].page[p] = pick(w, PAGES);
    hzp_batch_set_pages(b, line, w->seq[line].page, HZP_DIV_UP(fed + rows, PAGE_ROWS));
    w->seq[line].drew = -1;
    for (int32_t k = 0; k < rows; k++) {
        int32_t p = fed + k;
        int32_t slot = w->seq[line].page[p / PAGE_ROWS] * PAGE_ROWS + p % PAGE_ROWS;
        const struct hzp_batch *before = w->batch[!(w->step % 2)];
        if (decode && drew >= 0 && b->refs == b->rows)
            hzp_batch_add_drawn(b, before, drew, slot);
        else
            hzp_batch_add_row(b, pick(w, VOCAB), slot);
    }
    w->seq[line].fed += rows;
    if (b->logits < max.logits_max && (decode || pick(w, 2)))
        want(w, b, line, b->rows - 1);
}

/* The next step's rows: some lines decode, some take prompt rows, some begin again. */
static struct hzp_batch *next(struct world *w)
{
    struct hzp_batch *b = w->batch[++w->step % 2];
    bool done[LINES] = {false};
    hzp_batch_clear(b);
    for (int32_t i = 0; i < LINES; i++) /* rows of drawn tokens come first */
        if (w->seq[i].drew >= 0 && w->seq[i].fed < STRIDE * PAGE_ROWS && pick(w, 4)) {
            add(w, b, i, 1, true);
            done[i] = true;
        }
    for (int32_t i = 0; i < LINES; i++) {
        int32_t left = STRIDE * PAGE_ROWS - w->seq[i].fed;
        if (done[i])
            continue;
        if (left == 0 || pick(w, 10) == 0) {
            w->seq[i].fed = 0;
            left = STRIDE * PAGE_ROWS;
        }
        int32_t some = 1 + pick(w, 9), room = HZP_MIN(left, max.rows_max - b->rows);
        int32_t rows = HZP_MIN(some, room);
        w->seq[i].drew = -1;
        if (rows > 0 && (pick(w, 2) || b->rows == 0))
            add(w, b, i, rows, false);
    }
    if (pick(w, 3) == 0)
        hzp_batch_pad(b);
    return b;
}

/* Every third step trains; every ninth begins a chain. */
static struct hzp_step_training training_of(const struct world *w)
{
    int32_t part = (int32_t)(w->step % 9) / 3;
    if (w->step % 3)
        return (struct hzp_step_training){0};
    return (struct hzp_step_training){.chain = 1 + w->step / 9,
                                      .from = 4 * part,
                                      .to = 4 * part + 3,
                                      .work = part ? NULL : work,
                                      .work_bytes = part ? 0 : 1 + w->step % sizeof(work)};
}

static struct hzp_step_record record_of(const struct world *w)
{
    return (struct hzp_step_record){.step = w->step,
                                    .version = w->step / 7,
                                    .current = w->step / 5,
                                    .plan = w->step * 77,
                                    .drawn_step = w->step - 1,
                                    .drawn = ~w->step,
                                    .shape = (int32_t)(w->step % 3) - 1,
                                    .training = training_of(w)};
}

static void write_next(struct world *w)
{
    const struct hzp_batch *b = next(w);
    struct hzp_step_record record = record_of(w);
    w->bytes = hzp_step_record_write(&record, b, &limits, &w->told, w->data);
    assert_true(w->bytes <= w->room);
}

#define SAME(field, n) assert_memory_equal(a->field, b->field, sizeof(*a->field) * (size_t)(n))

static void check_same(const struct hzp_batch *a, const struct hzp_batch *b)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->pads, b->pads);
    assert_int_equal(a->pad_segs, b->pad_segs);
    assert_int_equal(a->pad_logits, b->pad_logits);
    assert_int_equal(a->refs, b->refs);
    assert_int_equal(a->segs, b->segs);
    assert_int_equal(a->decode_segs, b->decode_segs);
    assert_int_equal(a->decode_ctx_max, b->decode_ctx_max);
    assert_int_equal(a->prefill_rows_max, b->prefill_rows_max);
    assert_int_equal(a->prefill_ctx_max, b->prefill_ctx_max);
    assert_int_equal(a->logits, b->logits);
    assert_int_equal(a->edits, b->edits);
    assert_int_equal(a->masks, b->masks);
    assert_int_equal(a->hiddens, b->hiddens);
    assert_int_equal(a->tops_wanted, b->tops_wanted);
    SAME(id, a->rows + a->pads);
    SAME(pos, a->rows + a->pads);
    SAME(slot, a->rows + a->pads);
    SAME(ref, a->refs);
    SAME(row0, a->segs + a->pad_segs + 1);
    SAME(pos0, a->segs + a->pad_segs);
    SAME(path, a->segs);
    assert_int_equal(a->shallow, b->shallow);
    assert_int_equal(a->turns, b->turns);
    SAME(line, a->segs + a->pad_segs);
    SAME(logit_row, a->logits + a->pad_logits);
    SAME(edit, a->edits);
    SAME(mask, a->masks * WORDS);
    SAME(hidden_logit, a->hiddens);
    for (int32_t i = 0; i < a->logits; i++) { /* there is padding before the seed */
        const struct hzp_sample_row *x = &a->sample[i], *y = &b->sample[i];
        assert_memory_equal(x, y, offsetof(struct hzp_sample_row, top_k) + sizeof(x->top_k));
        assert_memory_equal(&x->seed, &y->seed,
                            sizeof(*x) - offsetof(struct hzp_sample_row, seed) -
                                sizeof(int32_t)); /* up to the mask, or before it */
        assert_int_equal(x->mask, y->mask);
    }
    for (int32_t i = 0; i < a->segs; i++) {
        int32_t ctx = a->pos0[i] + a->row0[i + 1] - a->row0[i];
        assert_memory_equal(a->page + i * STRIDE, b->page + i * STRIDE,
                            4 * (size_t)HZP_DIV_UP(ctx, PAGE_ROWS));
    }
}

static int read_it(struct world *w, struct hzp_step_record *ret, struct hzp_err_text *reterr)
{
    uint64_t n = w->step;
    return hzp_step_record_read(w->data, w->bytes, &limits, &w->heard, w->read[!(n % 2)], ret,
                                w->read[n % 2], reterr);
}

static void what_is_written_is_read(void **state)
{
    struct world w;
    uint64_t refs = 0, masks = 0;
    size_t most = 0;
    (void)state;
    open_world(&w, 1);
    for (int turn = 0; turn < 3000; turn++) {
        struct hzp_step_record got, sent;
        struct hzp_err_text err;
        write_next(&w);
        sent = record_of(&w);
        if (read_it(&w, &got, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(got.step, sent.step);
        assert_int_equal(got.version, sent.version);
        assert_int_equal(got.current, sent.current);
        assert_int_equal(got.plan, sent.plan);
        assert_int_equal(got.drawn_step, sent.drawn_step);
        assert_int_equal(got.drawn, sent.drawn);
        assert_int_equal(got.shape, sent.shape);
        assert_false(got.end);
        assert_int_equal(got.training.chain, sent.training.chain);
        assert_int_equal(got.training.from, sent.training.from);
        assert_int_equal(got.training.to, sent.training.to);
        assert_int_equal(got.training.work_bytes, sent.training.work_bytes);
        if (sent.training.work)
            assert_memory_equal(got.training.work, work, sent.training.work_bytes);
        check_same(w.batch[w.step % 2], w.read[w.step % 2]);
        refs += (uint64_t)w.read[w.step % 2]->refs;
        masks += (uint64_t)w.read[w.step % 2]->masks;
        most = HZP_MAX(most, w.bytes);
    }
    assert_true(refs > 1000 && masks > 1000 && most > w.room / 4);
    close_world(&w);
}

/* A line's pages travel when they change: a step that only decodes tells few. */
static void only_changes_of_pages_travel(void **state)
{
    struct world w;
    size_t first, later;
    (void)state;
    open_world(&w, 2);
    for (int round = 0; round < 2; round++) {
        struct hzp_batch *b = w.batch[0];
        struct hzp_step_record record = {.step = 1};
        int32_t page[STRIDE] = {9, 8, 7, 6, 5, 4, 3, 2};
        hzp_batch_clear(b);
        hzp_batch_add_segment(b, 26 + round, true);
        hzp_batch_set_pages(b, 3, page, 7);
        hzp_batch_add_row(b, 1, page[6] * PAGE_ROWS + 2 + round);
        *(round ? &later : &first) = hzp_step_record_write(&record, b, &limits, &w.told, w.data);
    }
    assert_int_equal(first - later, 7 * sizeof(int32_t));
    close_world(&w);
}

/* A step may have no rows, also if it does not train: a source publishes with it.  Items have a
 * chain, work is that of the first. */
static void what_trains_is_checked(void **state)
{
    static const struct {
        struct hzp_step_training is;
        const char *says; /* NULL: it is in order */
    } cases[] = {{{.chain = 1, .from = 0, .to = 5, .work = work, .work_bytes = 50}, NULL},
                 {{.chain = 1, .from = 5, .to = 5}, NULL},
                 {{.chain = 1, .from = 6, .to = 5}, "wrong order"},
                 {{.chain = 1, .from = -1, .to = 5}, "wrong order"},
                 {{.chain = 1, .from = 2, .to = 5, .work = work, .work_bytes = 50}, "first slice"},
                 {{.chain = 0, .from = 0, .to = 5}, "items of no chain"},
                 {{.chain = 0, .work = work, .work_bytes = 5}, "too much work"},
                 {{.chain = 0}, NULL}};
    struct world w;
    (void)state;
    open_world(&w, 6);
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct hzp_step_record got, record = {.step = 9, .shape = -1, .training = cases[i].is};
        struct hzp_err_text err = {0};
        w.bytes = hzp_step_record_write(&record, NULL, &limits, &w.told, w.data);
        int r = read_it(&w, &got, &err);
        if (r != (cases[i].says ? HZP_EFORMAT : HZP_OK) ||
            (r < 0 && !strstr(err.text, cases[i].says)))
            fail_msg("case %d: %d, %s", i, r, err.text);
    }
    close_world(&w);
}

static void an_end_has_no_rows(void **state)
{
    struct world w;
    struct hzp_step_record got, end = {.step = 9, .end = true, .shape = -1};
    struct hzp_err_text err;
    (void)state;
    open_world(&w, 3);
    w.bytes = hzp_step_record_write(&end, NULL, &limits, &w.told, w.data);
    assert_int_equal(w.bytes, HZP_STEP_RECORD_HEAD);
    assert_int_equal(read_it(&w, &got, &err), 0);
    assert_true(got.end);
    assert_int_equal(w.read[0]->rows, 0);
    close_world(&w);
}

static void made_up_rows_are_told(void **state)
{
    struct world w;
    struct hzp_err_text err;
    struct hzp_step_record got, record = {.step = 9, .warms = true, .shape = -1};
    (void)state;
    open_world(&w, 3);
    w.bytes = hzp_step_record_write(&record, NULL, &limits, &w.told, w.data);
    assert_int_equal(read_it(&w, &got, &err), 0);
    assert_true(got.warms);
    record.end = true;
    w.bytes = hzp_step_record_write(&record, NULL, &limits, &w.told, w.data);
    assert_int_equal(read_it(&w, &got, &err), HZP_EFORMAT);
    assert_non_null(strstr(err.text, "made-up rows"));
    close_world(&w);
}

/* The reader gets a copy of exactly the bytes, so a sanitizer sees it read beyond them. */
static int read_copy(struct world *w, const char *data, size_t bytes, struct hzp_err_text *err)
{
    char *copy = hzp_xcalloc(1, bytes + 1), *kept = w->data;
    struct hzp_step_record got;
    size_t kept_bytes = w->bytes;
    memcpy(copy + 1, data, bytes); /* not aligned either */
    w->data = copy + 1;
    w->bytes = bytes;
    int r = read_it(w, &got, err);
    w->data = kept;
    w->bytes = kept_bytes;
    free(copy);
    return r;
}

static void damaged_records_are_refused(void **state)
{
    struct world w;
    struct hzp_err_text err;
    (void)state;
    open_world(&w, 4);
    for (int turn = 0; turn < 40; turn++) {
        write_next(&w);
        for (size_t bytes = 0; bytes < w.bytes; bytes += 1 + (size_t)pick(&w, 5)) {
            assert_int_equal(read_copy(&w, w.data, bytes, &err), HZP_EFORMAT);
            assert_non_null(strstr(err.text, "record"));
        }
        for (int i = 0; i < 400; i++) {
            size_t at = (size_t)pick(&w, (int32_t)w.bytes);
            char was = w.data[at];
            w.data[at] = (char)(was ^ (1 << pick(&w, 8)));
            assert_int_equal(read_copy(&w, w.data, w.bytes, &err), HZP_EFORMAT);
            w.data[at] = was;
        }
        assert_int_equal(read_copy(&w, w.data, w.bytes, &err), 0);
    }
    close_world(&w);
}

/* What must hold of a batch whatever was read into it, so that no op leaves its memory. */
static void check_sound(const struct hzp_batch *b, const struct hzp_batch *before)
{
    assert_in_range(b->rows + b->pads, 0, max.rows_max);
    assert_in_range(b->segs + b->pad_segs, 0, max.segs_max);
    assert_in_range(b->logits + b->pad_logits, 0, max.logits_max);
    assert_int_equal(b->row0[b->segs], b->rows);
    for (int32_t r = 0; r < b->rows; r++) {
        assert_true(b->id[r] < VOCAB && (b->id[r] >= 0 || (b->id[r] == -1 && r < b->refs)));
        assert_in_range(b->slot[r], 0, PAGES * PAGE_ROWS - 1);
        assert_in_range(b->pos[r], 0, STRIDE * PAGE_ROWS - 1);
    }
    for (int32_t r = 0; r < b->refs; r++)
        assert_in_range(b->ref[r], 0, before->logits - 1);
    for (int32_t i = 0; i < b->segs; i++) {
        int32_t ctx = b->pos0[i] + b->row0[i + 1] - b->row0[i];
        assert_true(b->row0[i] < b->row0[i + 1] && ctx <= STRIDE * PAGE_ROWS);
        for (int32_t p = 0; p * PAGE_ROWS < ctx; p++)
            assert_in_range(b->page[i * STRIDE + p], 0, PAGES - 1);
    }
    for (int32_t i = 0; i < b->logits; i++) {
        const struct hzp_sample_row *s = &b->sample[i];
        assert_in_range(b->logit_row[i], 0, b->rows - 1);
        assert_in_range(s->edit0 + s->edits, s->edit0, b->edits);
        assert_in_range(s->mask, 0, b->masks);
        assert_in_range(s->tops, 0, HZP_TOPS_MAX);
        assert_true(s->given >= -1 && s->given < VOCAB);
    }
    for (int32_t i = 0; i < b->edits; i++)
        assert_in_range(b->edit[i].token, 0, VOCAB - 1);
}

static void forged_records_stay_within_limits(void **state)
{
    static const int32_t odd[] = {0, -1, 1, 7, INT32_MAX, INT32_MIN, 64, 1 << 20};
    struct world w;
    uint64_t taken = 0, refused = 0;
    (void)state;
    open_world(&w, 5);
    for (int turn = 0; turn < 60; turn++) {
        struct hzp_err_text err;
        size_t lines = sizeof(int32_t) * LINES * STRIDE;
        int32_t heard[LINES * STRIDE];
        memcpy(heard, w.heard.known, lines);
        write_next(&w);
        for (int i = 0; i < 600; i++) {
            char *forged = hzp_xcalloc(1, w.bytes);
            memcpy(forged, w.data, w.bytes);
            for (int k = 1 + pick(&w, 2); k > 0; k--) {
                size_t at = 4 * (size_t)pick(&w, (int32_t)(w.bytes / 4));
                int32_t value = pick(&w, 2) ? odd[pick(&w, HZP_COUNT(odd))] : pick(&w, 100);
                memcpy(forged + at, &value, sizeof(value));
            }
            hzp_step_record_seal(forged, w.bytes);
            if (read_copy(&w, forged, w.bytes, &err) == 0) {
                check_sound(w.read[w.step % 2], w.read[!(w.step % 2)]);
                taken++;
            } else {
                refused++;
            }
            memcpy(w.heard.known, heard, lines);
            free(forged);
        }
        assert_int_equal(read_copy(&w, w.data, w.bytes, &err), 0);
    }
    assert_true(taken > 1000 && refused > 1000);
    close_world(&w);
}

/* A count of -1, with a size that fits it: shapes may be -1, counts may not.  The last one is of a
 * record without rows. */
static void counts_below_zero_are_refused(void **state)
{
    enum { BYTES_AT = 16, SHAPE_AT = 80, ROWS_AT = 96, COUNTS = 10, SAMPLE = 72, EDIT = 16 };
    enum { ROWS, REFS, SEGS, DECODES, LOGITS, EDITS, MASKS, HIDDENS };
    static const int32_t wrong[] = {EDITS, MASKS, HIDDENS, LOGITS, ROWS};
    (void)state;
    for (int i = 0; i < HZP_COUNT(wrong); i++) {
        struct world w;
        struct hzp_err_text err;
        int32_t count[COUNTS], shape = -1;
        open_world(&w, 7);
        write_next(&w);
        memcpy(count, w.data + ROWS_AT, sizeof(count));
        int64_t bytes = (int64_t)w.bytes - SAMPLE * count[LOGITS] - EDIT * count[EDITS] -
                        4 * WORDS * count[MASKS] - 4 * count[HIDDENS];
        count[LOGITS] = count[EDITS] = count[MASKS] = count[HIDDENS] = 0;
        if (wrong[i] == ROWS) {
            memset(count, 0, sizeof(count));
            bytes = HZP_STEP_RECORD_HEAD;
        } else {
            count[wrong[i]] = -1;
            bytes -= wrong[i] == EDITS     ? EDIT
                     : wrong[i] == MASKS   ? 4 * WORDS
                     : wrong[i] == HIDDENS ? 4
                                           : SAMPLE;
        }
        memcpy(w.data + ROWS_AT, count, sizeof(count));
        memcpy(w.data + SHAPE_AT, &shape, sizeof(shape));
        memcpy(w.data + BYTES_AT, &bytes, sizeof(bytes));
        hzp_step_record_seal(w.data, (size_t)bytes);
        assert_int_equal(read_copy(&w, w.data, (size_t)bytes, &err), HZP_EFORMAT);
        close_world(&w);
    }
}

static void what_is_no_record_has_no_length(void **state)
{
    struct world w;
    struct hzp_err_text err;
    size_t bytes;
    (void)state;
    open_world(&w, 6);
    write_next(&w);
    assert_int_equal(hzp_step_record_bytes(w.data, w.room, &bytes, &err), 0);
    assert_int_equal(bytes, w.bytes);
    assert_int_equal(hzp_step_record_bytes(w.data, w.bytes - 1, &bytes, &err), HZP_EFORMAT);
    w.data[0] = 'x';
    assert_int_equal(hzp_step_record_bytes(w.data, w.room, &bytes, &err), HZP_EFORMAT);
    close_world(&w);
}

/* A plan's hash tells apart what the ranks must agree on, and not what they cannot. */
static void plans_are_told_apart(void **state)
{
    uint64_t hash[5];
    (void)state;
    for (int i = 0; i < HZP_COUNT(hash); i++) {
        struct hzp_plan plan;
        float a[4], b[4];
        hzp_plan_init(&plan);
        plan.rows = i == 1 ? 2 : 1;
        plan.layer = i == 2 ? 1 : 0;
        struct hzp_mat mat = {.ptr = i == 4 ? b : a, .rows = 1, .cols = 4, .stride = 4};
        HZP_PLAN_ADD(&plan, fill, HZP_LANE_COMPUTE, .y = mat);
        HZP_PLAN_ADD(&plan, fill, i == 3 ? HZP_LANE_MEMORY : HZP_LANE_COMPUTE, .y = mat);
        hash[i] = hzp_plan_hash(&plan);
        hzp_plan_fini(&plan);
    }
    for (int i = 1; i < 4; i++)
        assert_true(hash[i] != hash[0]);
    assert_true(hash[4] == hash[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(only_changes_of_pages_travel),
        cmocka_unit_test(what_trains_is_checked),
        cmocka_unit_test(an_end_has_no_rows),
        cmocka_unit_test(made_up_rows_are_told),
        cmocka_unit_test(damaged_records_are_refused),
        cmocka_unit_test(forged_records_stay_within_limits),
        cmocka_unit_test(counts_below_zero_are_refused),
        cmocka_unit_test(what_is_no_record_has_no_length),
        cmocka_unit_test(plans_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The work of chains of training: what is written is read, also after the last row of a document
 * learns nothing; what was cut off, changed by one field, or at random, is refused or is a
 * micro-batch within its limits. */
#include "nanobatch/model/work.h"
#include "tests/serve/seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 40, VOCAB = 50, POSITIONS = 12, LAYERS = 6 };

static const struct hzp_work_limits limits = {VOCAB, POSITIONS, LAYERS};

struct world {
    struct hzp_device *dev;
    struct hzp_micro *sent, *got;
    struct hzp_work work;
    char *data;
    size_t bytes;
    uint64_t random;
    struct hzp_err_text err;
};

static int32_t pick(struct world *w, int32_t below)
{
    return (int32_t)seeded(&w->random, (uint32_t)below);
}

static void open_world(struct world *w)
{
    struct hzp_device_config config = {.name = "ref", .threads = 1};
    memset(w, 0, sizeof(*w));
    w->random = 3;
    assert_int_equal(hzp_device_open(&config, &w->dev, NULL), 0);
    assert_int_equal(hzp_micro_create(w->dev, ROWS, &w->sent), 0);
    assert_int_equal(hzp_micro_create(w->dev, ROWS, &w->got), 0);
    w->data = hzp_xcalloc(1, hzp_work_room(ROWS));
}

static void close_world(struct world *w)
{
    hzp_micro_destroy(w->sent);
    hzp_micro_destroy(w->got);
    hzp_device_close(w->dev);
    free(w->data);
}

static bool has_docs(const struct hzp_work *work)
{
    return work->kind == HZP_WORK_MICRO || work->kind == HZP_WORK_EVAL;
}

static void write_micro(struct world *w)
{
    bool weighted = pick(w, 2), losses = pick(w, 2), softens = losses && pick(w, 4) == 0;
    hzp_micro_clear(w->sent);
    for (int docs = 1 + pick(w, 4); docs > 0; docs--) {
        int32_t token[POSITIONS + 1], count = 2 + pick(w, POSITIONS - 1);
        uint8_t learn[POSITIONS + 1];
        float weight[POSITIONS + 1];
        struct hzp_row_loss how[POSITIONS + 1];
        for (int32_t i = 0; i < count; i++) {
            token[i] = pick(w, VOCAB);
            learn[i] = (uint8_t)pick(w, 2);
            weight[i] = (float)pick(w, 5) * 0.25f - 0.5f;
            how[i] = (struct hzp_row_loss){.kind = pick(w, HZP_LOSS_SOFT),
                                           .inv_temperature = 1 + (float)pick(w, 2),
                                           .old = -(float)pick(w, 9),
                                           .advantage = (float)pick(w, 5) - 2};
        }
        if (hzp_micro_add_losses(w->sent, token, learn, weighted ? weight : NULL,
                                 losses && pick(w, 4) ? how : NULL, count) < 0)
            break;
    }
    for (int32_t i = 0; i < w->sent->learned; i++) {
        const struct hzp_soft soft = {.count = 1 + pick(w, 2),
                                      .token = {pick(w, VOCAB - 1), VOCAB - 1},
                                      .p = {0.5f, 0.25f},
                                      .rest = 0.25f};
        if (softens && pick(w, 3) == 0)
            hzp_micro_soften(w->sent, i, &soft);
    }
    w->work = (struct hzp_work){
        .kind = HZP_WORK_MICRO, .first = pick(w, 2), .halved = w->sent->rows > 1 && pick(w, 2)};
    if (w->work.halved)
        hzp_micro_halve(w->sent);
    if (pick(w, 2))
        w->work = (struct hzp_work){.kind = HZP_WORK_EVAL, .draft = pick(w, 2)};
    /* Every other micro-batch leaves layers out, and two of the rest change places. */
    const struct hzp_deck deck = {0.4f, true, 7, LAYERS};
    if (w->work.kind == HZP_WORK_MICRO && pick(w, 2))
        hzp_deck_deal(&deck, 1 + pick(w, 9), 3, pick(w, 3), &w->sent->path);
    w->bytes = hzp_work_write(&w->work, w->sent, w->data);
    assert_true(w->bytes <= hzp_work_room(ROWS));
}

/* The reader gets exactly the bytes, and they are not aligned. */
static int read_it(struct world *w, struct hzp_work *ret)
{
    char *copy = hzp_xcalloc(1, w->bytes + 1);
    memcpy(copy + 1, w->data, w->bytes);
    int r = hzp_work_read(copy + 1, w->bytes, &limits, ret, w->got, &w->err);
    free(copy);
    return r;
}

#define SAME(field, n) assert_memory_equal(a->field, b->field, sizeof(*a->field) * (size_t)(n))

static void what_is_written_is_read(void **state)
{
    struct world w;
    int weighted = 0, paths = 0, softs = 0;
    (void)state;
    open_world(&w);
    for (int turn = 0; turn < 2000; turn++) {
        struct hzp_work got;
        write_micro(&w);
        if (read_it(&w, &got) < 0)
            fail_msg("%s", w.err.text);
        const struct hzp_micro *a = w.sent, *b = w.got;
        assert_int_equal(got.kind, w.work.kind);
        assert_int_equal(got.first, w.work.first);
        assert_int_equal(got.draft, w.work.draft);
        assert_int_equal(a->rows, b->rows);
        assert_int_equal(a->docs, b->docs);
        assert_int_equal(a->learned, b->learned);
        assert_int_equal(a->doc_rows_max, b->doc_rows_max);
        assert_int_equal(got.halved, w.work.halved);
        assert_int_equal(b->chunks, got.halved ? 2 : 0);
        assert_true(a->weight_sum == b->weight_sum);
        assert_int_equal(a->loss.weight != NULL, b->loss.weight != NULL);
        SAME(id, a->rows);
        SAME(pos, a->rows);
        SAME(row0, a->docs + 1);
        SAME(pos0, a->docs);
        SAME(learned_row, a->learned);
        SAME(target, a->learned);
        SAME(weight, a->learned);
        SAME(how, a->learned);
        assert_int_equal(a->path.count, b->path.count);
        assert_memory_equal(a->path.layer, b->path.layer, 4 * (size_t)a->path.count);
        paths += a->path.count > 0;
        assert_int_equal(a->loss.how != NULL, b->loss.how != NULL);
        assert_int_equal(a->loss.soft != NULL, b->loss.soft != NULL);
        for (int32_t i = 0; i < a->learned; i++)
            if (a->how[i].kind == HZP_LOSS_SOFT)
                assert_memory_equal(&a->soft[i], &b->soft[i], sizeof(a->soft[i]));
        softs += a->loss.soft != NULL;
        weighted += a->loss.weight != NULL;
    }
    assert_true(weighted > 300 && weighted < 1700 && paths > 200 && softs > 100);
    close_world(&w);
}

static void an_update_is_read(void **state)
{
    struct world w;
    struct hzp_work got,
        sent = {.kind = HZP_WORK_UPDATE,
                .hyper = {0.1f, 0.9f, 0.95f, 1e-8f, 0.2f, 1, 0.01f, 7, 0.8f, 0.6f, 0}};
    (void)state;
    open_world(&w);
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), 0);
    assert_int_equal(got.kind, HZP_WORK_UPDATE);
    assert_false(got.saves);
    assert_memory_equal(&got.hyper, &sent.hyper, sizeof(got.hyper));
    sent.hyper.momentum = 0.95f; /* Muon has one rank */
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), HZP_EFORMAT);
    sent.hyper.momentum = 0;
    sent.saves = true;
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), 0);
    assert_true(got.saves);
    sent = (struct hzp_work){.kind = HZP_WORK_UNDO};
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), 0);
    assert_true(got.kind == HZP_WORK_UNDO && !got.saves);
    sent = (struct hzp_work){.kind = HZP_WORK_UPDATE, .hyper = {.t = 0}};
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), HZP_EFORMAT);
    assert_non_null(strstr(w.err.text, "optimizer step"));
    sent.hyper.t = 1;
    sent.hyper.lr = NAN;
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), HZP_EFORMAT);
    assert_non_null(strstr(w.err.text, "not finite"));
    sent.hyper.lr = 0;
    sent.hyper.momentum = 0.95f;
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), HZP_EFORMAT);
    assert_non_null(strstr(w.err.text, "momentum of Muon"));
    close_world(&w);
}

/* What of a piece the model has not, the rank finds out (by_step.h). */
static void a_gather_is_read(void **state)
{
    struct world w;
    struct hzp_work got,
        sent = {.kind = HZP_WORK_GATHER, .gather = {HZP_STATE_RESIDUAL, 7, (int64_t)1 << 40, 1000}};
    (void)state;
    open_world(&w);
    w.bytes = hzp_work_write(&sent, NULL, w.data);
    assert_int_equal(read_it(&w, &got), 0);
    assert_int_equal(got.kind, HZP_WORK_GATHER);
    assert_int_equal(got.gather.part, HZP_STATE_RESIDUAL);
    assert_int_equal(got.gather.unit, 7);
    assert_true(got.gather.from == (int64_t)1 << 40);
    assert_int_equal(got.gather.count, 1000);
    close_world(&w);
}

/* One document of three rows, of which the first and the last learn, with weights and losses. */
static void one_wrong_field_is_refused(void **state)
{
    /* numbers of 4 bytes before the arrays, and before the last */
    enum { HEAD = 36, PATH = HEAD + 10 + 2 * HZP_ROW_LOSS_WORDS };
    static const struct {
        int at;
        int32_t is;
        const char *says;
    } cases[] = {{0, HZP_WORK_END + 1, "kind"},
                 {0, 4, "rows"},
                 {1, 2, "flag"},
                 {2, 0, "documents"},
                 {2, 4, "documents"},
                 {3, ROWS + 1, "rows"},
                 {3, 0, "rows"},
                 {4, 4, "learned"},
                 {4, -1, "learned"},
                 {5, 1, "weights"},
                 {11, 2, "halves"},
                 {11, -1, "halves"},
                 {2, 2, "size"},
                 {HEAD, 2, "no document"},
                 {HEAD, 4, "too long"},
                 {HEAD, 0, "empty"},
                 {HEAD + 1, VOCAB, "vocabulary"},
                 {HEAD + 2, -1, "vocabulary"},
                 {HEAD + 4, 2, "out of order"},
                 {HEAD + 5, -1, "out of order"},
                 {HEAD + 5, 3, "no document"},
                 {HEAD + 6, 9, "next token"},
                 {HEAD + 7, VOCAB, "next token"},
                 {HEAD + 8, 0x7fc00000, "weight"},
                 {34, 1, "losses"},
                 {HEAD + 10, HZP_LOSS_ALL, "no kind"},
                 {HEAD + 10, -1, "no kind"},
                 {HEAD + 11, 0, "out of range"},
                 {HEAD + 12, 0x7fc00000, "out of range"},
                 {HEAD + 10 + HZP_ROW_LOSS_WORDS + 6, (int32_t)0xbf800000, "out of range"},
                 {HEAD + 10, HZP_LOSS_SOFT, "soft targets"},
                 {25, 1, "soft targets"},
                 {25, 2, "size"},
                 {35, -1, "path"},
                 {35, HZP_LAYERS_MAX + 1, "path"},
                 {35, 1, "size"},
                 {PATH, LAYERS, "other layers"},
                 {PATH + 1, 0, "other layers"}};
    struct world w;
    (void)state;
    open_world(&w);
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        const int32_t token[] = {5, 6, 7, 8};
        const uint8_t learn[] = {0, 1, 0, 1};
        const float weight[] = {0, 0.5f, 0, -2};
        const struct hzp_row_loss how[4] = {
            [1] = {.kind = HZP_LOSS_PPO, .inv_temperature = 1, .old = -1, .advantage = -2},
            [3] = {.kind = HZP_LOSS_DRO, .inv_temperature = 2, .old = -3, .advantage = 1}};
        struct hzp_work got;
        w.work = (struct hzp_work){.kind = HZP_WORK_MICRO};
        hzp_micro_clear(w.sent);
        assert_int_equal(hzp_micro_add_losses(w.sent, token, learn, weight, how, 4), 0);
        w.sent->path = (struct hzp_path){3, {0, 2, 4}};
        w.bytes = hzp_work_write(&w.work, w.sent, w.data);
        assert_int_equal(read_it(&w, &got), 0);
        memcpy(w.data + 4 * cases[i].at, &cases[i].is, 4);
        if (read_it(&w, &got) != HZP_EFORMAT || !strstr(w.err.text, cases[i].says))
            fail_msg("case %d: '%s' does not say '%s'", i, w.err.text, cases[i].says);
    }
    close_world(&w);
}

static void what_has_no_halves_is_refused(void **state)
{
    static const enum hzp_work_kind kinds[] = {HZP_WORK_EVAL, HZP_WORK_UPDATE, HZP_WORK_UNDO,
                                               HZP_WORK_MICRO};
    const int32_t token[] = {5, 6, 7};
    const uint8_t learn[] = {0, 1, 1};
    struct world w;
    (void)state;
    open_world(&w);
    for (int i = 0; i < HZP_COUNT(kinds); i++)
        for (int32_t count = 2; count <= 3; count++) {
            bool can = kinds[i] == HZP_WORK_MICRO && count == 3; /* two rows */
            struct hzp_work got;
            w.work = (struct hzp_work){.kind = kinds[i], .halved = true, .hyper = {.t = 1}};
            hzp_micro_clear(w.sent);
            assert_int_equal(hzp_micro_add(w.sent, token, learn, count), 0);
            w.bytes = hzp_work_write(&w.work, w.sent, w.data);
            assert_int_equal(read_it(&w, &got), can ? HZP_OK : HZP_EFORMAT);
            assert_true(can || strstr(w.err.text, "halves"));
        }
    close_world(&w);
}

/* The second learned row of a second document: from it the row that the document begins at is
 * subtracted. */
static void rows_before_a_document_are_refused(void **state)
{
    enum { HEAD = 36, DOCS = 2, ROWS_EACH = 3, AT = HEAD + DOCS + DOCS * ROWS_EACH + 1 };
    static const int32_t row[] = {INT32_MIN, INT32_MIN + ROWS_EACH - 1, -1, 0, 2};
    const int32_t token[] = {5, 6, 7, 8};
    const uint8_t none[] = {0, 0, 0, 0}, learn[] = {0, 1, 1, 0};
    struct world w;
    (void)state;
    open_world(&w);
    for (int i = 0; i < HZP_COUNT(row); i++) {
        struct hzp_work got;
        int32_t is;
        w.work = (struct hzp_work){.kind = HZP_WORK_MICRO};
        hzp_micro_clear(w.sent);
        assert_int_equal(hzp_micro_add(w.sent, token, none, 1 + ROWS_EACH), 0);
        assert_int_equal(hzp_micro_add(w.sent, token, learn, 1 + ROWS_EACH), 0);
        w.bytes = hzp_work_write(&w.work, w.sent, w.data);
        assert_int_equal(read_it(&w, &got), 0);
        memcpy(&is, w.data + (size_t)4 * AT, sizeof(is));
        assert_int_equal(is, ROWS_EACH + 1);
        memcpy(w.data + (size_t)4 * AT, &row[i], sizeof(row[i]));
        assert_int_equal(read_it(&w, &got), HZP_EFORMAT);
        assert_non_null(strstr(w.err.text, "out of order"));
    }
    close_world(&w);
}

static void what_is_damaged_stays_within_limits(void **state)
{
    struct world w;
    int refused = 0;
    (void)state;
    open_world(&w);
    for (int turn = 0; turn < 20000; turn++) {
        struct hzp_work got;
        write_micro(&w);
        if (pick(&w, 4) == 0)
            w.bytes = (size_t)pick(&w, (int32_t)w.bytes);
        else
            w.data[pick(&w, (int32_t)w.bytes)] ^= (char)(1 << pick(&w, 8));
        if (read_it(&w, &got) < 0) {
            refused++;
            continue;
        }
        if (!has_docs(&got))
            continue;
        const struct hzp_micro *m = w.got;
        assert_true(hzp_path_valid(&m->path, LAYERS));
        assert_true(m->rows <= ROWS && m->doc_rows_max <= POSITIONS && m->learned <= m->rows);
        for (int32_t i = 0; i < m->rows; i++)
            assert_in_range(m->id[i], 0, VOCAB - 1);
        for (int32_t i = 0; i < m->learned; i++) {
            assert_in_range(m->target[i], 0, VOCAB - 1);
            assert_true(m->learned_row[i] < m->rows &&
                        (!i || m->learned_row[i] > m->learned_row[i - 1]));
        }
    }
    assert_true(refused > 10000);
    close_world(&w);
}

/* Work that travels between steps has no documents of its own; those of a deal follow it. */
static void work_between_steps_is_read(void **state)
{
    static const struct {
        struct hzp_work sent;
        const char *says; /* NULL: it is read */
    } cases[] = {
        {{.kind = HZP_WORK_DEAL, .micros = 2, .follow = 400}, NULL},
        {{.kind = HZP_WORK_UPDATE, .hyper = {.t = 3}, .micros = 1, .follow = 150}, NULL},
        {{.kind = HZP_WORK_ADOPT, .optimizer_step = 7, .version = 9, .checksum = 11}, NULL},
        {{.kind = HZP_WORK_WRITE, .gather = {.part = HZP_STATE_V, .unit = 2}, .units = 3}, NULL},
        {{.kind = HZP_WORK_NONE, .first = true}, NULL},
        {{.kind = HZP_WORK_END}, NULL},
        {{.kind = HZP_WORK_NONE, .halved = true}, "halves"},
        {{.kind = HZP_WORK_DEAL}, "follow"},
        {{.kind = HZP_WORK_PUBLISH, .micros = 1, .follow = 150}, "follow"},
        {{.kind = HZP_WORK_DEAL, .micros = 1, .follow = (int64_t)HZP_WORK_FOLLOW_MAX + 1}, "bytes"},
        {{.kind = HZP_WORK_DEAL, .micros = 9, .follow = 8}, "bytes"},
        {{.kind = HZP_WORK_READ, .gather = {.part = HZP_STATE_V, .unit = -1}, .units = 1}, "part"},
        {{.kind = HZP_WORK_READ, .gather = {.part = HZP_STATE_V}, .units = 0}, "part"},
        {{.kind = HZP_WORK_WRITE, .gather = {.unit = INT32_MAX}, .units = 1}, "part"},
    };
    struct hzp_err_text err;
    (void)state;
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        const struct hzp_work *a = &cases[i].sent;
        struct hzp_work b;
        char data[HZP_WORK_HEAD];
        assert_int_equal(hzp_work_write(a, NULL, data), HZP_WORK_HEAD);
        int r = hzp_work_read(data, HZP_WORK_HEAD, &limits, &b, NULL, &err);
        assert_int_equal(r, cases[i].says ? HZP_EFORMAT : HZP_OK);
        if (cases[i].says) {
            assert_non_null(strstr(err.text, cases[i].says));
            continue;
        }
        assert_true(a->kind == b.kind && a->micros == b.micros && a->follow == b.follow);
        assert_int_equal(a->first, b.first);
        assert_true(a->optimizer_step == b.optimizer_step && a->version == b.version);
        assert_true(a->checksum == b.checksum && a->units == b.units);
        assert_true(a->gather.part == b.gather.part && a->gather.unit == b.gather.unit);
    }
}

/* Micro-batches one behind the other: each is found, also at the end; damaged ones are within what
 * was received, or refused. */
static void works_are_found(void **state)
{
    struct world w;
    struct hzp_works sent = {0}, got = {0};
    int refused = 0;
    (void)state;
    open_world(&w);
    for (int turn = 0; turn < 2000; turn++) {
        const char *at;
        size_t bytes;
        int32_t count = 1 + pick(&w, 4);
        hzp_works_clear(&sent);
        for (int32_t i = 0; i < count; i++) {
            write_micro(&w);
            w.work = (struct hzp_work){.kind = HZP_WORK_MICRO, .first = i == 0};
            hzp_works_add(&sent, &w.work, w.sent);
        }
        hzp_works_receive(&got, sent.data, sent.bytes, sent.count);
        for (int32_t i = 0; i < count; i++) {
            struct hzp_work work;
            assert_int_equal(hzp_works_find(&got, i, &at, &bytes, &w.err), HZP_OK);
            assert_int_equal(hzp_work_read(at, bytes, &limits, &work, w.got, &w.err), 0);
            assert_int_equal(work.first, i == 0);
        }
        assert_ptr_equal(at + bytes, got.data + got.bytes);
        assert_int_equal(hzp_works_find(&got, count, &at, &bytes, &w.err), HZP_EFORMAT);
        uint64_t sum = hzp_work_sum("head", 4, got.data, got.bytes);
        got.data[pick(&w, (int32_t)got.bytes)] ^= (char)(1 << pick(&w, 8));
        assert_true(hzp_work_sum("head", 4, got.data, got.bytes) != sum);
        for (int32_t i = 0; i < count; i++) {
            struct hzp_work work;
            if (hzp_works_find(&got, i, &at, &bytes, &w.err) < 0) {
                refused++;
                continue;
            }
            assert_true(at >= got.data && at + bytes <= got.data + got.bytes);
            refused += hzp_work_read(at, bytes, &limits, &work, w.got, &w.err) < 0;
        }
    }
    assert_true(refused > 500); /* most bytes of soft targets are free */
    hzp_works_free(&sent);
    hzp_works_free(&got);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(an_update_is_read),
        cmocka_unit_test(a_gather_is_read),
        cmocka_unit_test(one_wrong_field_is_refused),
        cmocka_unit_test(what_has_no_halves_is_refused),
        cmocka_unit_test(rows_before_a_document_are_refused),
        cmocka_unit_test(what_is_damaged_stays_within_limits),
        cmocka_unit_test(work_between_steps_is_read),
        cmocka_unit_test(works_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/model/work.c - the bytes of one work:
 *
 *     head          fixed size: struct head
 *     doc_rows      [docs]
 *     id            [rows]
 *     learned_row   [learned], ascending
 *     target        [learned]
 *     weight        [weights]: of the learned rows, or none
 *     how           [hows]: of the learned rows, or none
 *     soft          [softs]: of the learned rows, or none; read in rows of that kind
 *     path          [path]: layers, or none: all
 */
#include "nanobatch/model/work.h"

#include "base/hash.h"

struct head {
    int32_t kind, flag, docs, rows, learned, weights; /* flag: of the kind, flag_of */
    int64_t from;                                     /* GATHER; and part, unit, count */
    int32_t part, unit, count, halved;
    struct hzp_update_hyper hyper;
    int32_t units, micros, softs;
    int64_t follow, optimizer_step;
    uint64_t version, checksum;
    int32_t hows, path;
};
_Static_assert(sizeof(struct head) == HZP_WORK_HEAD, "the head has no padding");

static size_t bytes_of(const struct head *h)
{
    return sizeof(*h) + 4 * ((size_t)h->docs + (size_t)h->rows + 2 * (size_t)h->learned +
                             (size_t)h->weights + HZP_ROW_LOSS_WORDS * (size_t)h->hows +
                             HZP_SOFT_WORDS * (size_t)h->softs + (size_t)h->path);
}

size_t hzp_work_room(int32_t rows_max)
{
    return bytes_of(&(struct head){.docs = rows_max,
                                   .rows = rows_max,
                                   .learned = rows_max,
                                   .weights = rows_max,
                                   .hows = rows_max,
                                   .softs = rows_max,
                                   .path = HZP_LAYERS_MAX});
}

static bool has_docs(int32_t kind)
{
    return kind == HZP_WORK_MICRO || kind == HZP_WORK_EVAL;
}

/* Whether it is a group's part of a round. */
static bool of_round(int32_t kind)
{
    return kind == HZP_WORK_MICRO || kind == HZP_WORK_NONE;
}

enum { SAVES = 1, OPEN = 2 }; /* flags of an update */

static int32_t flag_of(const struct hzp_work *work)
{
    if (work->kind == HZP_WORK_UPDATE)
        return (work->saves ? SAVES : 0) | (work->open ? OPEN : 0);
    return of_round(work->kind) ? work->first : work->kind == HZP_WORK_EVAL && work->draft;
}

static void put(char **at, const void *from, int32_t count)
{
    if (count)
        memcpy(*at, from, 4 * (size_t)count);
    *at += 4 * (size_t)count;
}

size_t hzp_work_write(const struct hzp_work *work, const struct hzp_micro *m, char *data)
{
    struct head h = {.kind = work->kind,
                     .flag = flag_of(work),
                     .halved = work->halved,
                     .from = work->gather.from,
                     .part = (int32_t)work->gather.part,
                     .unit = work->gather.unit,
                     .count = work->gather.count,
                     .hyper = work->hyper,
                     .units = work->units,
                     .micros = work->micros,
                     .follow = work->follow,
                     .optimizer_step = work->optimizer_step,
                     .version = work->version,
                     .checksum = work->checksum};
    char *at = data + sizeof(h);
    h.path = of_round(work->kind) && m ? m->path.count : 0;
    if (has_docs(work->kind)) {
        h.docs = m->docs;
        h.rows = m->rows;
        h.learned = m->learned;
        h.weights = m->loss.weight ? m->learned : 0;
        h.hows = m->loss.how ? m->learned : 0;
        h.softs = m->loss.soft ? m->learned : 0;
        for (int32_t d = 0; d < m->docs; d++)
            put(&at, &(int32_t){m->row0[d + 1] - m->row0[d]}, 1);
        put(&at, m->id, m->rows);
        put(&at, m->learned_row, m->learned);
        put(&at, m->target, m->learned);
        put(&at, m->weight, h.weights);
        put(&at, m->how, HZP_ROW_LOSS_WORDS * h.hows);
        put(&at, m->soft, HZP_SOFT_WORDS * h.softs);
    }
    if (h.path)
        put(&at, m->path.layer, h.path);
    memcpy(data, &h, sizeof(h));
    return bytes_of(&h);
}

static int bad(struct hzp_err_text *reterr, const char *what, int32_t i)
{
    return hzp_fail(reterr, HZP_EFORMAT, "the work of a chain of training: %s (%d)", what, i);
}

static int check_head(const struct head *h, size_t bytes, int32_t rows_max,
                      struct hzp_err_text *reterr)
{
    bool micro = has_docs(h->kind);
    int32_t most = micro ? rows_max : 0;
    bool deals = h->kind == HZP_WORK_DEAL || h->kind == HZP_WORK_UPDATE;
    bool state = h->kind == HZP_WORK_READ || h->kind == HZP_WORK_WRITE;
    int32_t flags = h->kind == HZP_WORK_UPDATE ? SAVES | OPEN : micro || of_round(h->kind);
    if (h->kind < HZP_WORK_MICRO || h->kind > HZP_WORK_END)
        return bad(reterr, "an unknown kind", h->kind);
    if (h->flag < 0 || h->flag > flags)
        return bad(reterr, "an unknown flag", h->flag);
    if (h->halved < 0 || h->halved > (h->kind == HZP_WORK_MICRO && h->rows > 1))
        return bad(reterr, "halves of a chain that is not cut", h->halved);
    if (h->rows < micro || h->rows > most)
        return bad(reterr, "too many rows, or none", h->rows);
    if (h->docs < micro || h->docs > h->rows)
        return bad(reterr, "too many documents, or none", h->docs);
    if (h->learned < 0 || h->learned > h->rows)
        return bad(reterr, "too many learned rows", h->learned);
    if (h->weights && h->weights != h->learned)
        return bad(reterr, "weights of other rows than the learned ones", h->weights);
    if (h->hows && h->hows != h->learned)
        return bad(reterr, "losses of other rows than the learned ones", h->hows);
    if (h->softs && (h->softs != h->learned || !h->hows))
        return bad(reterr, "soft targets of other rows than the learned ones", h->softs);
    if (h->path < 0 || h->path > HZP_LAYERS_MAX || (h->path && !of_round(h->kind)))
        return bad(reterr, "too many layers on its path", h->path);
    if (h->micros < (h->kind == HZP_WORK_DEAL) || (h->micros && !deals))
        return bad(reterr, "micro-batches that follow it", h->micros);
    if (h->follow < h->micros || h->follow > HZP_WORK_FOLLOW_MAX || (h->follow && !h->micros))
        return bad(reterr, "too many bytes that follow it", h->micros);
    if (state && (h->part < HZP_STATE_M || h->part > HZP_STATE_WEIGHTS || h->unit < 0 ||
                  h->units < 1 || h->units > INT32_MAX - h->unit))
        return bad(reterr, "units of no part of the state", h->unit);
    if (bytes != bytes_of(h))
        return bad(reterr, "its counts do not fit its size", (int32_t)bytes);
    return HZP_OK;
}

static int check_hyper(const struct hzp_update_hyper *h, struct hzp_err_text *reterr)
{
    const float number[] = {h->lr,   h->beta1,      h->beta2,  h->eps,    h->decay,
                            h->clip, h->grad_scale, h->part_m, h->part_g, h->momentum};
    for (int32_t i = 0; i < HZP_COUNT(number); i++)
        if (!isfinite(number[i]))
            return bad(reterr, "a number of the update that is not finite", i);
    if (h->part_m < 0 || h->part_g < 0 || (h->part_g > 0) != (h->part_m > 0))
        return bad(reterr, "parts of NAdam that do not fit each other", h->t);
    if (h->momentum != 0)
        return bad(reterr, "a momentum of Muon, which has one rank", h->t);
    return h->t >= 1 ? HZP_OK : bad(reterr, "an optimizer step below 1", h->t);
}

/* The arrays behind the head, and a document put together from them. */
struct arrays {
    const int32_t *doc_rows, *id, *learned_row, *target;
    const float *weight;
    const struct hzp_row_loss *how;
    const struct hzp_soft *soft;
    const int32_t *path;
    const struct hzp_work_limits *limits;
    /* [rows + 1] */
    int32_t *token;
    uint8_t *learn;
    float *token_weight;
    struct hzp_row_loss *token_how;
};

/* The document of rows [row, row + rows); *at: its first learned row. */
static int read_doc(const struct head *h, const struct arrays *a, int32_t row, int32_t rows,
                    int32_t *at, struct hzp_err_text *reterr)
{
    for (int32_t i = 0; i < rows; i++) {
        if (a->id[row + i] < 0 || a->id[row + i] >= a->limits->vocab)
            return bad(reterr, "a token outside the vocabulary", a->id[row + i]);
        a->token[i] = a->id[row + i];
    }
    a->token[rows] = 0; /* a target only, and if the last row learns nothing, not even that */
    memset(a->learn, 0, (size_t)rows + 1);
    for (; *at < h->learned && a->learned_row[*at] < row + rows; ++*at) {
        if (a->learned_row[*at] < row) /* by any distance: it is not subtracted yet */
            return bad(reterr, "learned rows out of order", *at);
        int32_t i = a->learned_row[*at] - row + 1, target = a->target[*at];
        if (a->learn[i])
            return bad(reterr, "learned rows out of order", *at);
        if (target < 0 || target >= a->limits->vocab || (i < rows && target != a->token[i]))
            return bad(reterr, "a target that is not the next token", target);
        float weight = h->weights ? a->weight[*at] : 1;
        if (!isfinite(weight))
            return bad(reterr, "a weight that is not finite", *at);
        if (h->hows && !hzp_row_loss_valid(&a->how[*at]))
            return bad(reterr, "a loss of no kind, or with numbers out of range", *at);
        if (h->hows && a->how[*at].kind == HZP_LOSS_SOFT &&
            (!h->softs || !hzp_soft_valid(&a->soft[*at], a->limits->vocab)))
            return bad(reterr, "soft targets that are none, or out of range", *at);
        if (h->hows)
            a->token_how[i] = a->how[*at];
        a->token[i] = target;
        a->learn[i] = 1;
        a->token_weight[i] = weight;
    }
    return HZP_OK;
}

static int read_docs(const struct head *h, const struct arrays *a, struct hzp_micro *micro,
                     struct hzp_err_text *reterr)
{
    int32_t row = 0, at = 0;
    for (int32_t d = 0; d < h->docs; d++) {
        int32_t rows = a->doc_rows[d];
        if (rows < 1 || rows > h->rows - row || rows > a->limits->positions)
            return bad(reterr, "a document that is too long, or empty", d);
        HZP_TRY(read_doc(h, a, row, rows, &at, reterr));
        HZP_TRY(hzp_micro_add_losses(micro, a->token, a->learn, h->weights ? a->token_weight : NULL,
                                     h->hows ? a->token_how : NULL, rows + 1));
        row += rows;
    }
    if (row != h->rows || at != h->learned)
        return bad(reterr, "rows of no document", h->rows - row);
    for (int32_t i = 0; i < h->softs; i++)
        if (a->how[i].kind == HZP_LOSS_SOFT)
            hzp_micro_soften(micro, i, &a->soft[i]);
    if (h->halved)
        hzp_micro_halve(micro);
    return HZP_OK;
}

static int read_micro(const struct head *h, const char *data, const struct hzp_work_limits *limits,
                      struct hzp_micro *micro, struct hzp_err_text *reterr)
{
    size_t body = bytes_of(h) - sizeof(*h), rows = (size_t)h->rows + 1;
    int32_t *copy = hzp_xcalloc(
        1, body + rows * (sizeof(struct hzp_row_loss) + 4 + 4 + 1)); /* aligned, unlike data */
    struct arrays a = {.doc_rows = copy, .limits = limits};
    memcpy(copy, data + sizeof(*h), body);
    a.id = a.doc_rows + h->docs;
    a.learned_row = a.id + h->rows;
    a.target = a.learned_row + h->learned;
    a.weight = (const float *)(a.target + h->learned);
    a.how = (const struct hzp_row_loss *)(a.weight + h->weights);
    a.soft = (const struct hzp_soft *)(a.how + h->hows);
    a.path = (const int32_t *)(a.soft + h->softs);
    a.token = copy + body / 4;
    a.token_how = (struct hzp_row_loss *)(a.token + rows);
    a.token_weight = (float *)(a.token_how + rows);
    a.learn = (uint8_t *)(a.token_weight + rows);
    hzp_micro_clear(micro);
    int r = read_docs(h, &a, micro, reterr);
    micro->path.count = h->path;
    memcpy(micro->path.layer, a.path, 4 * (size_t)h->path);
    free(copy);
    if (r >= 0 && !hzp_path_valid(&micro->path, limits->layers))
        r = bad(reterr, "a path of other layers than the model has", h->path);
    return r;
}

int hzp_work_read(const void *data, size_t bytes, const struct hzp_work_limits *limits,
                  struct hzp_work *ret, struct hzp_micro *micro, struct hzp_err_text *reterr)
{
    struct head h;
    if (bytes < sizeof(h))
        return bad(reterr, "it is cut off", (int32_t)bytes);
    memcpy(&h, data, sizeof(h));
    HZP_TRY(check_head(&h, bytes, micro ? micro->rows_max : 0, reterr));
    *ret = (struct hzp_work){.kind = (enum hzp_work_kind)h.kind,
                             .first = of_round(h.kind) && h.flag,
                             .saves = h.kind == HZP_WORK_UPDATE && (h.flag & SAVES),
                             .open = h.kind == HZP_WORK_UPDATE && (h.flag & OPEN),
                             .draft = h.kind == HZP_WORK_EVAL && h.flag,
                             .halved = h.halved,
                             .hyper = h.hyper,
                             .gather = {(enum hzp_state_part)h.part, h.unit, h.from, h.count},
                             .units = h.units,
                             .micros = h.micros,
                             .follow = h.follow,
                             .optimizer_step = h.optimizer_step,
                             .version = h.version,
                             .checksum = h.checksum};
    if (h.kind == HZP_WORK_UPDATE)
        return check_hyper(&h.hyper, reterr);
    bool micros = has_docs(h.kind) || (of_round(h.kind) && micro);
    return micros ? read_micro(&h, data, limits, micro, reterr) : HZP_OK;
}

/* --- Several works ---------------------------------------------------------------------------- */

void hzp_works_clear(struct hzp_works *works)
{
    works->bytes = 0;
    works->count = 0;
}

void hzp_works_free(struct hzp_works *works)
{
    free(works->data);
    *works = (struct hzp_works){0};
}

void hzp_works_reserve(struct hzp_works *works, size_t bytes)
{
    if (bytes <= works->room)
        return;
    works->room = HZP_MAX(bytes, 2 * works->room);
    works->data = hzp_xrealloc(works->data, works->room);
}

void hzp_works_add(struct hzp_works *works, const struct hzp_work *work,
                   const struct hzp_micro *micro)
{
    hzp_works_reserve(works, works->bytes + hzp_work_room(micro->rows));
    works->bytes += hzp_work_write(work, micro, works->data + works->bytes);
    works->count++;
}

void hzp_works_receive(struct hzp_works *works, const void *data, size_t bytes, int32_t count)
{
    hzp_works_reserve(works, bytes);
    if (bytes)
        memcpy(works->data, data, bytes);
    works->bytes = bytes;
    works->count = count;
}

int hzp_works_find(const struct hzp_works *works, int32_t i, const char **ret, size_t *ret_bytes,
                   struct hzp_err_text *reterr)
{
    size_t at = 0;
    for (int32_t k = 0;; k++) {
        struct head h;
        if (k == works->count || works->bytes - at < sizeof(h))
            return bad(reterr, "there are fewer micro-batches", k);
        memcpy(&h, works->data + at, sizeof(h));
        int32_t most = (int32_t)((works->bytes - at) / 4);
        bool fits = h.kind == HZP_WORK_MICRO && h.docs >= 0 && h.docs <= most && h.rows >= 0 &&
                    h.rows <= most && h.learned >= 0 && h.learned <= most && h.weights >= 0 &&
                    h.weights <= most && h.hows >= 0 && h.hows <= most && h.softs >= 0 &&
                    h.softs <= most && h.path >= 0 && h.path <= most &&
                    bytes_of(&h) <= works->bytes - at;
        if (!fits)
            return bad(reterr, "what follows it is no micro-batch", k);
        if (k == i) {
            *ret = works->data + at;
            *ret_bytes = bytes_of(&h);
            return HZP_OK;
        }
        at += bytes_of(&h);
    }
}

uint64_t hzp_work_sum(const void *work, size_t bytes, const void *follow, size_t follow_bytes)
{
    return hzp_fnv(hzp_fnv(HZP_FNV, work, bytes), follow, follow_bytes);
}

void hzp_work_build(struct hzp_plan *chain, const struct hzp_work *work,
                    const struct hzp_model *model, const struct hzp_version *v,
                    struct hzp_version *draft, const struct hzp_micro *micro,
                    struct hzp_train_space *space)
{
    if (work->kind == HZP_WORK_UPDATE && work->saves)
        hzp_update_save(chain, space);
    if (of_round(work->kind))
        hzp_micro_build(chain, model, v, micro, space, work->first);
    else if (work->kind == HZP_WORK_UPDATE)
        hzp_update_build(chain, model, v, draft, &work->hyper, space);
    else if (work->kind == HZP_WORK_EVAL)
        hzp_eval_build(chain, model, v, micro, space);
    else if (work->kind == HZP_WORK_UNDO)
        hzp_update_restore(chain, space);
    else
        hzp_gather_build(chain, model, v, space, &work->gather);
}

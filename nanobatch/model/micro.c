/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/model/micro.h"

int hzp_micro_create(struct hzp_device *dev, int32_t rows_max, struct hzp_micro **ret)
{
    struct hzp_micro *m = hzp_xcalloc(1, sizeof(*m));
    m->dev = dev;
    m->rows_max = rows_max;
    size_t n = (size_t)rows_max + 1;
    size_t words = 17 + 2 * HZP_ROW_LOSS_WORDS + HZP_SOFT_WORDS;
    int r = hzp_device_alloc(dev, HZP_MEM_HOST, n * words * sizeof(int32_t), &m->memory);
    if (r < 0) {
        free(m);
        return r;
    }
    int32_t *at = m->memory;
    m->id = at;
    m->pos = at + n;
    m->row0 = at + 2 * n;
    m->pos0 = at + 3 * n;
    m->learned_row = at + 4 * n;
    m->target = at + 5 * n;
    m->loss.value = (float *)(at + 6 * n);
    m->chunk_row0 = at + 7 * n;
    m->chunk_pos0 = at + 10 * n;
    m->weight = (float *)(at + 13 * n);
    m->loss.lp = (float *)(at + 14 * n);
    m->loss.entropy = (float *)(at + 15 * n);
    m->first = at + 16 * n;
    m->how = (struct hzp_row_loss *)(at + 17 * n);
    m->shared = m->how + n;
    m->soft = (struct hzp_soft *)(m->shared + n);
    m->loss.first = m->first;
    m->loss.target = m->target;
    hzp_micro_clear(m);
    *ret = m;
    return HZP_OK;
}

void hzp_micro_destroy(struct hzp_micro *m)
{
    if (!m)
        return;
    hzp_device_free(m->dev, HZP_MEM_HOST, m->memory);
    free(m->chunk);
    free(m);
}

void hzp_micro_clear(struct hzp_micro *m)
{
    m->rows = m->docs = m->learned = m->chunks = m->doc_rows_max = m->path.count = 0;
    m->row0[0] = 0;
    m->loss.weight = NULL;
    m->loss.how = m->loss.shared = NULL;
    m->loss.soft = NULL;
    m->first[0] = m->loss.seqs = 0;
    m->weight_sum = 0;
}

static void add_chunk(struct hzp_micro *m, int32_t from, int32_t to, int32_t *doc, int32_t *at)
{
    m->chunk = hzp_xgrow(m->chunk, &m->chunks_room, m->chunks + 1, sizeof(*m->chunk));
    struct hzp_chunk *c = &m->chunk[m->chunks++];
    *c = (struct hzp_chunk){.row0 = from, .rows = to - from, .at = *at};
    while (m->row0[*doc + 1] <= from)
        ++*doc;
    for (int32_t d = *doc; d < m->docs && m->row0[d] < to; d++) {
        int32_t first = HZP_MAX(m->row0[d], from), last = HZP_MIN(m->row0[d + 1], to);
        m->chunk_row0[*at] = first - from;
        m->chunk_pos0[(*at)++] = first - m->row0[d];
        c->docs++;
        c->doc_rows_max = HZP_MAX(c->doc_rows_max, last - first);
        c->ctx_max = HZP_MAX(c->ctx_max, last - m->row0[d]);
    }
    m->chunk_row0[(*at)++] = to - from;
}

void hzp_micro_cut(struct hzp_micro *m, int32_t chunk_rows)
{
    int32_t doc = 0, at = 0;
    int64_t n = chunk_rows > 0 ? HZP_MAX((m->rows + chunk_rows / 2) / chunk_rows, 1) : 0;
    m->chunks = 0;
    for (int64_t i = 0; i < n && m->rows > 0; i++)
        add_chunk(m, (int32_t)(m->rows * i / n), (int32_t)(m->rows * (i + 1) / n), &doc, &at);
}

void hzp_micro_halve(struct hzp_micro *m)
{
    hzp_micro_cut(m, HZP_DIV_UP(m->rows, 2));
}

struct hzp_packed hzp_micro_whole(const struct hzp_micro *m)
{
    return (struct hzp_packed){
        .segs = {m->row0, m->pos0, m->docs, m->doc_rows_max, m->doc_rows_max},
        .pos = m->pos,
        .rows = m->rows};
}

struct hzp_packed hzp_micro_packed(const struct hzp_micro *m, int32_t chunk)
{
    if (!m->chunks)
        return hzp_micro_whole(m);
    const struct hzp_chunk *c = &m->chunk[chunk];
    return (struct hzp_packed){.segs = {m->chunk_row0 + c->at, m->chunk_pos0 + c->at, c->docs,
                                        c->doc_rows_max, c->ctx_max},
                               .pos = m->pos + c->row0,
                               .row0 = c->row0,
                               .rows = c->rows,
                               .before = m->chunk_pos0[c->at]};
}

int32_t hzp_micro_units(const struct hzp_micro *m, const struct hzp_model_config *c)
{
    return hzp_path_places(&m->path, c->layers) + 2;
}

int32_t hzp_micro_unit(const struct hzp_micro *m, const struct hzp_model_config *c, int32_t i)
{
    int32_t places = hzp_path_places(&m->path, c->layers);
    return i == 0 ? 0 : i > places ? c->layers + 1 : 1 + hzp_path_layer(&m->path, i - 1);
}

/* Token `token` is to be predicted by row `row`. */
static void add_target(struct hzp_micro *m, int32_t row, int32_t token, float weight,
                       const struct hzp_row_loss *how)
{
    int32_t i = m->learned++;
    m->learned_row[i] = row;
    m->target[i] = token;
    m->weight[i] = weight;
    m->weight_sum += fabs((double)weight);
    if (weight != 1)
        m->loss.weight = m->weight;
    m->how[i] = how ? *how : (struct hzp_row_loss){.inv_temperature = 1};
    if (how)
        m->loss.how = m->how;
    if (how && how->kind >= HZP_LOSS_KINDS)
        m->loss.shared = m->shared;
}

int hzp_micro_add_losses(struct hzp_micro *m, const int32_t *token, const uint8_t *learn,
                         const float *weight, const struct hzp_row_loss *how, int32_t count)
{
    int32_t rows = hzp_before_cut(token, count) - 1, behind = rows + 2, rest = count - behind;
    HZP_ASSERT(rows >= 1);
    if (rows + HZP_MAX(rest - 1, 0) > m->rows_max - m->rows)
        return HZP_EBUSY;
    for (int32_t i = 0; i < rows; i++) {
        int32_t r = m->rows + i;
        m->id[r] = token[i];
        m->pos[r] = i;
        if (learn[i + 1])
            add_target(m, r, token[i + 1], weight ? weight[i + 1] : 1, how ? &how[i + 1] : NULL);
    }
    m->chunks = 0;
    m->pos0[m->docs++] = 0;
    m->rows += rows;
    m->row0[m->docs] = m->rows;
    m->doc_rows_max = HZP_MAX(m->doc_rows_max, rows);
    m->first[m->docs] = m->learned;
    m->loss.seqs = m->docs;
    if (rest <= 0)
        return HZP_OK;
    return hzp_micro_add_losses(m, token + behind, learn + behind, weight ? weight + behind : NULL,
                                how ? how + behind : NULL, rest);
}

void hzp_micro_soften(struct hzp_micro *m, int32_t i, const struct hzp_soft *soft)
{
    HZP_ASSERT(i >= 0 && i < m->learned);
    if (!m->loss.soft) /* what is sent to other ranks is defined */
        memset(m->soft, 0, (size_t)m->rows_max * sizeof(*m->soft));
    m->soft[i] = *soft;
    m->how[i].kind = HZP_LOSS_SOFT;
    m->loss.how = m->how;
    m->loss.soft = m->soft;
}

int hzp_micro_add(struct hzp_micro *m, const int32_t *token, const uint8_t *learn, int32_t count)
{
    return hzp_micro_add_losses(m, token, learn, NULL, NULL, count);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/backward.h"

#include "base/arena.h"

#include <stdlib.h>

int hzp_micro_create(struct hzp_device *dev, int32_t rows_max, struct hzp_micro **ret)
{
    struct hzp_micro *m = hzp_xcalloc(1, sizeof(*m));
    m->dev = dev;
    m->rows_max = rows_max;
    size_t n = (size_t)rows_max + 1;
    int r = hzp_device_alloc(dev, HZP_MEM_HOST, n * 9 * sizeof(int32_t), &m->memory);
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
    m->loss = (float *)(at + 6 * n);
    m->chunk_row0 = at + 7 * n;
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
    m->rows = m->docs = m->learned = m->chunks = m->doc_rows_max = 0;
    m->row0[0] = 0;
}

/* Appends a document that begins at m->rows to the last chunk, or to a new one. */
static void add_to_chunk(struct hzp_micro *m, int32_t rows)
{
    struct hzp_chunk *c = m->chunks ? &m->chunk[m->chunks - 1] : NULL;
    if (!c || (m->chunk_rows && c->rows + rows > m->chunk_rows)) {
        if (m->chunks == m->chunks_room) {
            m->chunks_room = HZP_MAX(16, 2 * m->chunks_room);
            m->chunk = hzp_xrealloc(m->chunk, (size_t)m->chunks_room * sizeof(*m->chunk));
        }
        c = &m->chunk[m->chunks++];
        *c = (struct hzp_chunk){.row0 = m->rows, .at = m->docs + m->chunks - 1};
        m->chunk_row0[c->at] = 0;
    }
    c->rows += rows;
    c->doc_rows_max = HZP_MAX(c->doc_rows_max, rows);
    m->chunk_row0[c->at + ++c->docs] = c->rows;
}

struct hzp_packed hzp_micro_packed(const struct hzp_micro *m, int32_t chunk)
{
    const struct hzp_chunk *c = &m->chunk[chunk];
    return (struct hzp_packed){
        .segs = {m->chunk_row0 + c->at, m->pos0, c->docs, c->doc_rows_max, c->doc_rows_max},
        .pos = m->pos + c->row0,
        .row0 = c->row0,
        .rows = c->rows};
}

int hzp_micro_add(struct hzp_micro *m, const int32_t *token, const uint8_t *learn, int32_t count)
{
    HZP_ASSERT(count >= 2);
    int32_t rows = count - 1;
    if (rows > m->rows_max - m->rows)
        return HZP_EBUSY;
    for (int32_t i = 0; i < rows; i++) {
        int32_t r = m->rows + i;
        m->id[r] = token[i];
        m->pos[r] = i;
        if (learn[i + 1]) {
            m->learned_row[m->learned] = r;
            m->target[m->learned++] = token[i + 1];
        }
    }
    add_to_chunk(m, rows);
    m->pos0[m->docs++] = 0;
    m->rows += rows;
    m->row0[m->docs] = m->rows;
    m->doc_rows_max = HZP_MAX(m->doc_rows_max, rows);
    return HZP_OK;
}

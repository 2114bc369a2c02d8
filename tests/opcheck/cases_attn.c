/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/cases_attn.c - attention. */
#include <stdio.h>
#include <string.h>

#include "device/backend.h"
#include "tests/opcheck/opcheck.h"

/* Segments as {pos0, rows}, ended by rows -1. */
struct pattern {
    const char *name;
    int32_t seg[12][2];
};
static const struct pattern patterns[] = {
    [0] = {"one row", {{0, 1}, {0, -1}}},
    [1] = {"one fresh", {{0, 19}, {0, -1}}},
    [2] = {"very different", {{0, 1}, {70, 33}, {0, 5}, {200, 1}, {15, 2}, {0, -1}}},
    [3] = {"page borders", {{15, 1}, {16, 1}, {0, 16}, {0, 17}, {31, 2}, {16, 16}, {0, -1}}},
    [4] = {"empty ones", {{0, 0}, {3, 7}, {5, 0}, {0, 3}, {0, 0}, {0, -1}}},
    [5] = {"documents", {{0, 1}, {0, 40}, {0, 2}, {0, 65}, {0, 17}, {0, -1}}},
    [6] = {"nothing", {{0, -1}}},
    [7] = {"late rows", {{500, 3}, {129, 64}, {0, -1}}},
    [8] = {"prefill 512", {{0, 512}, {0, -1}}},
    [9] = {"documents 4x256", {{0, 256}, {0, 256}, {0, 256}, {0, 256}, {0, -1}}},
    [10] = {"a document's end", {{37, 30}, {0, 3}, {0, 40}, {0, -1}}},
    [11] = {"a document's middle", {{129, 64}, {0, -1}}},
};

static struct hzp_segs segs_make(struct oc_io *io, const struct pattern *pattern, int32_t *ret_rows)
{
    struct hzp_segs segs = {0};
    int32_t rows = 0;
    while (pattern->seg[segs.count][1] >= 0)
        segs.count++;
    int32_t *row0 = oc_array(io, "row0", OC_I32, segs.count + 1, OC_IN);
    int32_t *pos0 = oc_array(io, "pos0", OC_I32, segs.count, OC_IN);
    for (int32_t i = 0; i < segs.count; i++) {
        int32_t own = pattern->seg[i][1];
        row0[i] = rows;
        pos0[i] = pattern->seg[i][0];
        rows += own;
        segs.rows_max = HZP_MAX(segs.rows_max, own);
        segs.ctx_max = HZP_MAX(segs.ctx_max, own ? pos0[i] + own : 0);
    }
    row0[segs.count] = rows;
    segs.row0 = row0;
    segs.pos0 = pos0;
    *ret_rows = rows;
    return segs;
}

/* One row per sequence, at positions of every magnitude up to ctx. */
static struct hzp_segs segs_decode(struct oc_io *io, int32_t count, int32_t ctx)
{
    int32_t *row0 = oc_array(io, "row0", OC_I32, count + 1, OC_IN);
    int32_t *pos0 = oc_array(io, "pos0", OC_I32, count, OC_IN);
    for (int32_t i = 0; i <= count; i++)
        row0[i] = i;
    oc_fill_index(io, pos0, count, ctx);
    return (struct hzp_segs){row0, pos0, count, count > 0, count > 0 ? ctx : 0};
}

/* Pages with the segments' contexts, and NaN wherever nothing was appended, codes and scales. */
static void *context_make(struct oc_io *io, bool value, const struct hzp_attn_paged_args *a,
                          float **ret_scale)
{
    static const enum oc_elem elems[] = {OC_F32, OC_BF16, OC_I16, OC_I32, OC_E4M3};
    int32_t dim = a->heads.dim, page_rows = a->kv.page_rows;
    int32_t per_page = a->heads.kv_heads * page_rows * dim;
    bool codes = a->kv.type == HZP_E4M3;
    char *base = oc_array(io, value ? "v" : "k", elems[a->kv.type], a->kv.pages * per_page, OC_IN);
    float *scale = codes ? oc_array(io, value ? "v_scale" : "k_scale", OC_F32,
                                    a->kv.pages * a->heads.kv_heads * page_rows, OC_IN)
                         : NULL;
    for (int32_t i = 0; i < a->segs.count; i++) {
        int32_t context = a->segs.pos0[i] + a->segs.row0[i + 1] - a->segs.row0[i];
        for (int32_t p = 0; p < context && a->segs.row0[i] < a->segs.row0[i + 1]; p++)
            for (int32_t h = 0; h < a->heads.kv_heads; h++) {
                int32_t page = a->page[i * a->page_stride + p / page_rows];
                size_t at = (size_t)page * (size_t)per_page +
                            (size_t)(h * page_rows + p % page_rows) * (size_t)dim;
                struct hzp_mat row = {base + at * hzp_dtype_size(a->kv.type), 1, dim, dim,
                                      a->kv.type};
                oc_fill(io, &row, codes ? 100 : 1, 10);
                if (codes)
                    scale[at / (size_t)dim] = (float)(0.001 + 0.02 * oc_uniform(io));
            }
    }
    *ret_scale = scale;
    return base;
}

/* Moves the page numbers to lines of a table, backwards and with unused lines between; `page` then
 * holds invalid ones. */
static void table_make(struct oc_io *io, struct hzp_attn_paged_args *a, int32_t *page)
{
    a->lines = 2 * a->segs.count + 1;
    int32_t cells = a->lines * a->page_stride, *table = oc_array(io, "table", OC_I32, cells, OC_IN);
    int32_t *line = oc_array(io, "line", OC_I32, a->segs.count, OC_IN);
    for (int32_t i = 0; i < cells; i++)
        table[i] = -1;
    for (int32_t i = 0; i < a->segs.count; i++) {
        line[i] = 2 * (a->segs.count - 1 - i) + 1;
        for (int32_t j = 0; j < a->page_stride; j++) {
            table[line[i] * a->page_stride + j] = page[i * a->page_stride + j];
            page[i * a->page_stride + j] = -1;
        }
    }
    a->table = table;
    a->line = line;
}

/* One more score of each head, of the size of the others. */
static struct hzp_mat sink_make(struct oc_io *io, int32_t heads, enum hzp_dtype type)
{
    struct hzp_mat sink = oc_mat(io, "sink", 1, heads, type, OC_IN);
    oc_fill(io, &sink, 2, 4);
    return sink;
}

static const char *bound_text(int window, float cap, bool sink)
{
    static char text[48];
    text[0] = 0;
    if (window)
        snprintf(text, sizeof(text), ", window %d", window);
    if (cap > 0)
        strcat(text, ", cap");
    if (sink)
        strcat(text, ", sink");
    return text;
}

/* pattern or, for decode, rows; heads, kv_heads, dim, page_rows, longest context (decode), whether
 * the page numbers are in a table, whether the pages are E4M3, window, cap, sink */
static void build_paged(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_attn_paged_args a = {.heads = {c->p[1], c->p[2], c->p[3]}};
    bool decode = c->op == HZP_OP_attn_decode;
    int32_t rows = c->p[0], dim = c->p[3], page_rows = c->p[4];
    a.segs = decode ? segs_decode(io, rows, c->p[5]) : segs_make(io, &patterns[c->p[0]], &rows);
    a.page_stride = HZP_DIV_UP(a.segs.ctx_max, page_rows) + 2;
    a.scale = dim == 8 ? 1 : 0.125f;
    a.window = c->p[8];
    a.cap = (float)c->p[9];
    a.kv.pages = a.segs.count * a.page_stride + 3;
    a.kv.page_rows = page_rows;
    a.kv.type = c->p[7] ? HZP_E4M3 : c->type;

    /* pages in random order; entries beyond a segment's context hold invalid numbers */
    int32_t *page = oc_array(io, "page", OC_I32, a.segs.count * a.page_stride, OC_IN);
    for (int32_t i = 0; i < a.segs.count; i++) {
        int32_t own = decode ? 1 : a.segs.row0[i + 1] - a.segs.row0[i];
        int32_t used = own ? HZP_DIV_UP(a.segs.pos0[i] + own, page_rows) : 0;
        for (int32_t j = 0; j < a.page_stride; j++) {
            int32_t at = i * a.page_stride + j;
            page[at] = j < used ? a.kv.pages - 1 - (at ^ 1) : -1;
        }
    }
    a.page = page;
    a.qkv = oc_mat(io, "qkv", rows, (c->p[1] + 2 * c->p[2]) * dim, c->type, OC_IN);
    a.out = oc_mat(io, "out", rows, c->p[1] * dim, c->type, OC_OUT);
    a.kv.k = context_make(io, false, &a, &a.kv.k_scale);
    a.kv.v = context_make(io, true, &a, &a.kv.v_scale);
    oc_fill(io, &a.qkv, 1, 10);
    if (c->p[10])
        a.sink = sink_make(io, c->p[1], c->type);
    if (c->p[6])
        table_make(io, &a, page);
    oc_args(io, &a, sizeof(a));
    const char *table = a.table ? ", table" : "", *codes = c->p[7] ? ", e4m3 pages" : "";
    const char *bound = bound_text(a.window, a.cap, a.sink.ptr);
    if (decode)
        oc_what(io, "%d rows to %d, %d/%dx%d %s%s%s%s", rows, c->p[5], c->p[1], c->p[2], dim,
                oc_type_name(c->type), table, codes, bound);
    else
        oc_what(io, "%s, %d/%dx%d %s%s%s%s", patterns[c->p[0]].name, c->p[1], c->p[2], dim,
                oc_type_name(c->type), table, codes, bound);
}

/* pattern, heads, kv_heads, dim, keep lse, window, cap, sink */
static void build_packed(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_attn_packed_args a = {.heads = {c->p[1], c->p[2], c->p[3]},
                                     .scale = 0.125f,
                                     .cap = (float)c->p[6],
                                     .window = c->p[5]};
    int32_t rows, dim = c->p[3];
    a.segs = segs_make(io, &patterns[c->p[0]], &rows);
    int32_t before = a.segs.count ? a.segs.pos0[0] : 0;
    before += before ? 5 : 0; /* rows that no segment reads */
    a.qkv = oc_mat(io, "qkv", before + rows, (c->p[1] + 2 * c->p[2]) * dim, c->type, OC_IN);
    a.out = oc_mat(io, "out", rows, c->p[1] * dim, c->type, OC_OUT);
    if (c->p[4])
        a.lse = oc_array(io, "lse", OC_F32, rows * c->p[1], OC_OUT);
    oc_fill(io, &a.qkv, 1, 10);
    if (c->p[7])
        a.sink = sink_make(io, c->p[1], c->type);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%s, %d/%dx%d %s%s%s", patterns[c->p[0]].name, c->p[1], c->p[2], dim,
            oc_type_name(c->type), c->p[4] ? " +lse" : "", bound_text(a.window, a.cap, a.sink.ptr));
}

/* pattern, heads, kv_heads, dim, window, cap, sink */
static void build_packed_bwd(struct oc_io *io, const struct oc_case *c)
{
    struct hzp_attn_packed_bwd_args a = {.heads = {c->p[1], c->p[2], c->p[3]},
                                         .scale = 0.125f,
                                         .cap = (float)c->p[5],
                                         .window = c->p[4]};
    hzp_op_fn *ref[HZP_OP_COUNT];
    int32_t rows, dim = c->p[3];
    a.segs = segs_make(io, &patterns[c->p[0]], &rows);
    float *lse = oc_array(io, "lse", OC_F32, rows * c->p[1], OC_IN);
    a.qkv = oc_mat(io, "qkv", rows, (c->p[1] + 2 * c->p[2]) * dim, c->type, OC_IN);
    a.out = oc_mat(io, "out", rows, c->p[1] * dim, c->type, OC_IN);
    a.dout = oc_mat(io, "dout", rows, c->p[1] * dim, c->type, OC_IN);
    a.dqkv = oc_mat(io, "dqkv", rows, (c->p[1] + 2 * c->p[2]) * dim, c->type, OC_OUT);
    a.lse = lse;
    oc_fill(io, &a.qkv, 1, 4);
    oc_fill(io, &a.dout, 1, 10);
    if (c->p[6]) {
        a.sink = sink_make(io, c->p[1], c->type);
        a.dsink = oc_mat(io, "dsink", 1, c->p[1], HZP_F32, OC_INOUT);
        oc_fill(io, &a.dsink, 0.1, 10);
    }
    struct hzp_attn_packed_args forward = {a.qkv,   a.out,   a.sink, lse,     a.segs,
                                           a.heads, a.scale, a.cap,  a.window};
    hzp_ref_fill(ref);
    ref[HZP_OP_attn_packed](NULL, &forward);
    oc_args(io, &a, sizeof(a));
    oc_what(io, "%s, %d/%dx%d %s%s", patterns[c->p[0]].name, c->p[1], c->p[2], dim,
            oc_type_name(c->type), bound_text(a.window, a.cap, a.sink.ptr));
}

#define DECODE(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_attn_decode, build_paged, type, flags,                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define PREFILL(type, flags, ...)                                                                  \
    {                                                                                              \
        HZP_OP_attn_prefill, build_paged, type, flags,                                             \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define PACKED(type, flags, ...)                                                                   \
    {                                                                                              \
        HZP_OP_attn_packed, build_packed, type, flags,                                             \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define BWD(type, flags, ...)                                                                      \
    {                                                                                              \
        HZP_OP_attn_packed_bwd, build_packed_bwd, type, flags,                                     \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#define BOTH(X, ...) X(HZP_F32, __VA_ARGS__), X(HZP_BF16, __VA_ARGS__)

const struct oc_case oc_cases_attn[] = {
    BOTH(DECODE, 0, 1, 1, 1, 2, 16, 1),
    BOTH(DECODE, 0, 0, 2, 1, 8, 16, 1),
    BOTH(DECODE, 0, 5, 4, 4, 8, 16, 40),
    BOTH(DECODE, OC_GAPS, 7, 6, 2, 64, 16, 100),
    BOTH(DECODE, 0, 4, 8, 1, 128, 16, 257),
    BOTH(DECODE, OC_GAPS, 3, 7, 1, 16, 1, 19),
    BOTH(DECODE, 0, 3, 14, 2, 80, 16, 130),
    BOTH(DECODE, 0, 2, 4, 2, 96, 64, 1025),
    /* more than 8 and than 16 query heads per kv head; odd page sizes; long contexts */
    BOTH(DECODE, 0, 3, 12, 1, 64, 16, 300),
    BOTH(DECODE, 0, 3, 24, 2, 128, 16, 150),
    BOTH(DECODE, 0, 2, 9, 1, 64, 7, 140),
    BOTH(DECODE, 0, 2, 20, 1, 128, 5, 140),
    BOTH(DECODE, 0, 2, 4, 2, 64, 5, 270),
    /* an odd number of values at the end of a full chunk, with many weights before them */
    BOTH(DECODE, 0, 6, 64, 2, 16, 5, 270),
    BOTH(DECODE, OC_GAPS, 3, 2, 1, 128, 24, 140),
    BOTH(DECODE, 0, 2, 2, 1, 64, 64, 4200),
    BOTH(DECODE, 0, 5, 4, 4, 8, 16, 40, 1),
    BOTH(DECODE, 0, 7, 6, 2, 64, 16, 300, 1),
    BOTH(DECODE, OC_BENCH, 1, 32, 8, 64, 16, 1024),
    BOTH(DECODE, OC_BENCH, 16, 32, 8, 64, 16, 1024),

    BOTH(PREFILL, 0, 0, 1, 1, 2, 16),
    BOTH(PREFILL, 0, 6, 2, 1, 8, 16),
    BOTH(PREFILL, 0, 1, 4, 4, 8, 16),
    BOTH(PREFILL, OC_GAPS, 2, 6, 2, 64, 16),
    BOTH(PREFILL, 0, 3, 4, 1, 128, 16),
    BOTH(PREFILL, OC_GAPS, 4, 7, 1, 16, 16),
    BOTH(PREFILL, 0, 7, 2, 2, 64, 16),
    BOTH(PREFILL, 0, 2, 3, 1, 80, 5),
    BOTH(PREFILL, 0, 1, 4, 4, 8, 16, 0, 1),
    BOTH(PREFILL, OC_GAPS, 2, 6, 2, 64, 16, 0, 1),
    BOTH(PREFILL, OC_BENCH, 8, 32, 8, 64, 16),

    BOTH(PACKED, 0, 0, 1, 1, 2, 1),
    BOTH(PACKED, 0, 6, 2, 1, 8, 1),
    BOTH(PACKED, 0, 1, 4, 4, 8, 0),
    BOTH(PACKED, OC_GAPS, 5, 6, 2, 64, 1),
    BOTH(PACKED, 0, 5, 4, 1, 128, 1),
    BOTH(PACKED, OC_GAPS, 5, 3, 1, 80, 0),
    BOTH(PACKED, 0, 5, 4, 2, 64, 1),
    BOTH(PACKED, 0, 10, 2, 1, 8, 1),
    BOTH(PACKED, OC_GAPS, 10, 6, 2, 64, 1),
    BOTH(PACKED, 0, 11, 4, 1, 128, 1),
    BOTH(PACKED, 0, 11, 3, 1, 80, 0),
    BOTH(PACKED, 0, 11, 9, 3, 64, 1),
    BOTH(PACKED, OC_BENCH, 9, 32, 8, 64, 1),

    BOTH(BWD, 0, 0, 1, 1, 2),
    BOTH(BWD, 0, 6, 2, 1, 8),
    BOTH(BWD, 0, 1, 4, 4, 8),
    BOTH(BWD, OC_GAPS, 5, 6, 2, 64),
    BOTH(BWD, 0, 5, 4, 1, 128),
    BOTH(BWD, OC_GAPS, 5, 3, 1, 80),
    BOTH(BWD, 0, 5, 4, 2, 64),
    BOTH(BWD, OC_BENCH, 9, 32, 8, 64),
    {0},
};

/* More sequences than one launch lists, and E4M3 pages.  They come last of all: a case's random
 * numbers follow from its number, and some of sampling's draws are nearly ties. */
const struct oc_case oc_cases_many[] = {
    DECODE(HZP_BF16, 0, 1030, 1, 1, 64, 16, 20),
    DECODE(HZP_BF16, 0, 1030, 1, 1, 64, 16, 20, 1),
    BOTH(DECODE, 0, 1, 1, 1, 2, 16, 1, 0, 1),
    BOTH(DECODE, 0, 0, 2, 1, 8, 16, 1, 0, 1),
    BOTH(DECODE, 0, 5, 4, 4, 8, 16, 40, 0, 1),
    BOTH(DECODE, OC_GAPS, 7, 6, 2, 64, 16, 100, 0, 1),
    BOTH(DECODE, 0, 4, 8, 1, 128, 16, 257, 0, 1),
    BOTH(DECODE, OC_GAPS, 3, 7, 1, 16, 1, 19, 0, 1),
    BOTH(DECODE, 0, 3, 14, 2, 80, 16, 130, 0, 1),
    BOTH(DECODE, 0, 2, 4, 2, 96, 64, 1025, 0, 1),
    BOTH(DECODE, 0, 3, 12, 1, 64, 16, 300, 0, 1),
    BOTH(DECODE, 0, 3, 24, 2, 128, 16, 150, 0, 1),
    BOTH(DECODE, 0, 2, 9, 1, 64, 7, 140, 0, 1),
    BOTH(DECODE, 0, 2, 20, 1, 128, 5, 140, 0, 1),
    BOTH(DECODE, 0, 2, 4, 2, 64, 5, 270, 0, 1),
    BOTH(DECODE, OC_GAPS, 3, 2, 1, 128, 24, 140, 0, 1),
    BOTH(DECODE, 0, 2, 4, 1, 128, 5, 150, 0, 1),
    BOTH(DECODE, 0, 2, 2, 1, 64, 64, 4200, 0, 1),
    BOTH(DECODE, 0, 2, 3, 3, 20, 3, 50, 0, 1),
    BOTH(DECODE, 0, 7, 6, 2, 64, 16, 300, 1, 1),
    BOTH(DECODE, OC_BENCH, 1, 32, 8, 64, 16, 1024, 0, 1),
    BOTH(DECODE, OC_BENCH, 16, 32, 8, 64, 16, 1024, 0, 1),
    BOTH(PREFILL, 0, 0, 1, 1, 2, 16, 0, 0, 1),
    BOTH(PREFILL, 0, 6, 2, 1, 8, 16, 0, 0, 1),
    BOTH(PREFILL, 0, 1, 4, 4, 8, 16, 0, 0, 1),
    BOTH(PREFILL, OC_GAPS, 2, 6, 2, 64, 16, 0, 0, 1),
    BOTH(PREFILL, 0, 3, 4, 1, 128, 16, 0, 0, 1),
    BOTH(PREFILL, OC_GAPS, 4, 7, 1, 16, 16, 0, 0, 1),
    BOTH(PREFILL, 0, 7, 2, 2, 64, 16, 0, 0, 1),
    BOTH(PREFILL, 0, 2, 3, 1, 80, 5, 0, 0, 1),
    BOTH(PREFILL, 0, 2, 3, 3, 20, 3, 0, 0, 1),
    BOTH(PREFILL, 0, 2, 6, 2, 64, 16, 0, 1, 1),
    BOTH(PREFILL, OC_BENCH, 8, 32, 8, 64, 16, 0, 0, 1),
    /* pages of three times 16 tokens; pieces of more than 512 tokens */
    DECODE(HZP_BF16, 0, 3, 16, 2, 128, 48, 700),
    DECODE(HZP_BF16, 0, 3, 16, 2, 128, 48, 700, 1, 1),
    DECODE(HZP_BF16, 0, 2, 1, 1, 64, 16, 90000),
    DECODE(HZP_BF16, OC_BENCH, 64, 32, 8, 128, 16, 1024),
    DECODE(HZP_BF16, OC_BENCH, 64, 32, 8, 128, 16, 1024, 0, 1),
    /* windows of 1, of odd sizes, on borders of pages, tiles and chunks, longer than some contexts;
     * capped scores */
    BOTH(DECODE, 0, 5, 4, 4, 8, 16, 40, 0, 0, 1),
    BOTH(DECODE, OC_GAPS, 7, 6, 2, 64, 16, 300, 0, 0, 17),
    BOTH(DECODE, 0, 4, 8, 1, 128, 16, 900, 1, 0, 256),
    BOTH(DECODE, 0, 3, 12, 1, 64, 16, 700, 0, 0, 129),
    BOTH(DECODE, 0, 3, 24, 2, 128, 16, 500, 0, 0, 33),
    BOTH(DECODE, 0, 2, 4, 2, 64, 5, 670, 0, 0, 140),
    BOTH(DECODE, 0, 3, 14, 2, 80, 16, 1100, 0, 0, 513, 2),
    DECODE(HZP_BF16, 0, 2, 2, 1, 64, 64, 9000, 0, 0, 4095),
    BOTH(DECODE, 0, 2, 4, 2, 64, 16, 800, 0, 0, 0, 1),
    BOTH(DECODE, 0, 4, 8, 1, 128, 16, 900, 0, 1, 200, 2),
    BOTH(DECODE, 0, 4, 8, 1, 128, 16, 900, 0, 1, 255),
    BOTH(PREFILL, 0, 2, 4, 4, 8, 16, 0, 0, 0, 1),
    BOTH(PREFILL, OC_GAPS, 7, 6, 2, 64, 16, 0, 0, 0, 17),
    BOTH(PREFILL, 0, 7, 4, 1, 128, 16, 0, 1, 0, 64),
    PREFILL(HZP_BF16, 0, 8, 3, 1, 64, 5, 0, 0, 0, 129),
    BOTH(PREFILL, 0, 7, 2, 1, 80, 16, 0, 0, 0, 130, 2),
    BOTH(PREFILL, 0, 7, 4, 2, 64, 16, 0, 0, 1, 100, 2),
    BOTH(PREFILL, 0, 2, 4, 2, 128, 16, 0, 0, 0, 0, 1),
    BOTH(PACKED, 0, 5, 4, 4, 8, 1, 1),
    PACKED(HZP_BF16, OC_GAPS, 9, 6, 2, 64, 1, 65),
    BOTH(PACKED, 0, 10, 4, 1, 128, 1, 17),
    BOTH(PACKED, 0, 11, 3, 1, 80, 1, 64, 2),
    BOTH(PACKED, 0, 11, 4, 2, 64, 1, 100, 1),
    BOTH(PACKED, 0, 5, 4, 2, 64, 1, 0, 1),
    BOTH(BWD, 0, 5, 4, 4, 8, 1),
    BOTH(BWD, OC_GAPS, 5, 6, 2, 64, 33),
    BWD(HZP_BF16, 0, 9, 2, 1, 64, 65),
    BOTH(BWD, 0, 5, 3, 1, 80, 20, 2),
    BOTH(BWD, 0, 5, 4, 2, 64, 0, 1),
    BOTH(BWD, 0, 5, 2, 1, 64, 40, 2),
    /* sinks */
    BOTH(DECODE, 0, 5, 4, 4, 8, 16, 40, 0, 0, 0, 0, 1),
    BOTH(DECODE, OC_GAPS, 7, 6, 2, 64, 16, 900, 0, 0, 17, 0, 1),
    BOTH(DECODE, 0, 3, 24, 2, 128, 16, 700, 1, 0, 0, 0, 1),
    BOTH(DECODE, 0, 4, 8, 1, 128, 16, 900, 0, 1, 200, 0, 1),
    BOTH(PREFILL, OC_GAPS, 7, 6, 2, 64, 16, 0, 0, 0, 17, 0, 1),
    BOTH(PREFILL, 0, 2, 3, 1, 80, 5, 0, 0, 0, 0, 2, 1),
    BOTH(PREFILL, 0, 7, 4, 1, 128, 16, 0, 1, 1, 0, 0, 1),
    BOTH(PACKED, 0, 10, 4, 1, 128, 1, 17, 0, 1),
    BOTH(PACKED, 0, 5, 3, 1, 80, 1, 0, 0, 1),
    BOTH(BWD, 0, 5, 4, 4, 8, 1, 0, 1),
    BOTH(BWD, OC_GAPS, 5, 6, 2, 64, 33, 0, 1),
    BOTH(BWD, 0, 5, 3, 1, 128, 0, 0, 1),
    {0},
};

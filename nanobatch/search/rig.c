/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/rig.h"

#include "nanobatch/model/update.h"

/* Any token will do; neighbours differ, so that the same embedding row is not read twice in a
 * row. */
static int32_t token_at(const struct hzp_rig *rig, int32_t i)
{
    return (int32_t)(((uint32_t)i * 2654435761u >> 8) % (uint32_t)rig->config.model->config->vocab);
}

static int open_pages(struct hzp_rig *rig)
{
    const struct hzp_rig_config *c = &rig->config;
    const struct hzp_model_config *m = c->model->config;
    enum hzp_dtype type = hzp_model_kv_type(c->model);
    size_t rows = (size_t)rig->pages_count * (size_t)m->heads.kv_heads * (size_t)c->page_rows;
    size_t codes = rows * (size_t)m->heads.dim * hzp_dtype_size(type); /* or elements */
    size_t side = (size_t)rig->pages_count * (size_t)c->page_rows * hzp_kv_side_bytes(m, type);
    codes = HZP_ROUND_UP(codes, (size_t)4096);
    side = HZP_ROUND_UP(side + 4096, (size_t)4096);
    HZP_TRY(
        hzp_device_alloc(c->model->dev, HZP_MEM_DEVICE, 2 * side * (size_t)m->layers, &rig->pages));
    /* Unwritten host pages all map to one page of zeros, which would be read from the cache. */
    if (hzp_device_host_memory(c->model->dev))
        memset(rig->pages, 0, 2 * side * (size_t)m->layers);
    rig->kv = hzp_xcalloc((size_t)m->layers, sizeof(*rig->kv));
    for (int32_t l = 0; l < m->layers; l++) {
        char *at = (char *)rig->pages + 2 * (size_t)l * side;
        struct hzp_kv *kv = &rig->kv[l];
        *kv = (struct hzp_kv){.k = at,
                              .v = at + side,
                              .pages = rig->pages_count,
                              .page_rows = c->page_rows,
                              .type = type};
        if (type != HZP_E4M3)
            continue;
        kv->k_scale = (float *)(void *)(at + codes);
        kv->v_scale = (float *)(void *)(at + side + codes);
    }
    return HZP_OK;
}

static int open_serving(struct hzp_rig *rig)
{
    const struct hzp_rig_config *c = &rig->config;
    int32_t segs = c->decode_max + (c->prefill_max > 0);
    int32_t longest = c->depth_max + HZP_MAX(c->prefill_max, 1);
    int32_t stride = HZP_DIV_UP(longest, c->page_rows);
    struct hzp_batch_config max = {.rows_max = c->decode_max + c->prefill_max,
                                   .segs_max = segs,
                                   .page_stride = stride,
                                   .logits_max = segs,
                                   .edits_max = 1};
    if (!segs)
        return HZP_OK;
    int64_t pages =
        c->kv_tokens > 0 ? HZP_DIV_UP(c->kv_tokens, c->page_rows) + segs : (int64_t)segs * stride;
    if (pages > INT32_MAX / c->page_rows)
        return HZP_ENOMEM;
    rig->pages_count = (int32_t)pages;
    HZP_TRY(open_pages(rig));
    HZP_TRY(hzp_batch_create(c->model->dev, &max, &rig->batch));
    return hzp_serve_space_create(c->model, max.rows_max, segs, &rig->space);
}

int hzp_rig_create(const struct hzp_rig_config *config, struct hzp_rig **ret)
{
    struct hzp_rig *rig = hzp_xcalloc(1, sizeof(*rig));
    rig->config = *config;
    hzp_plan_init(&rig->chain);
    int r;
    HZP_TRY_GOTO(open_serving(rig));
    if (config->train) {
        HZP_TRY_GOTO(hzp_train_space_create(config->model, config->train, &rig->train));
        HZP_TRY_GOTO(hzp_micro_create(config->model->dev, config->train->rows_max, &rig->micro));
    }
    *ret = rig;
    return HZP_OK;
out:
    hzp_rig_destroy(rig);
    return r;
}

void hzp_rig_destroy(struct hzp_rig *rig)
{
    if (!rig)
        return;
    hzp_plan_fini(&rig->chain);
    hzp_micro_destroy(rig->micro);
    hzp_train_space_destroy(rig->train);
    hzp_serve_space_destroy(rig->space);
    hzp_batch_destroy(rig->batch);
    hzp_device_free(rig->config.model->dev, HZP_MEM_DEVICE, rig->pages);
    free(rig->kv);
    free(rig);
}

static void add_segment(struct hzp_rig *rig, int32_t rows, int32_t depth, bool decode,
                        int32_t *used)
{
    struct hzp_batch *b = rig->batch;
    int32_t page_rows = rig->config.page_rows, row = 0;
    int32_t *page = hzp_batch_add_segment(b, depth, decode);
    for (int32_t i = 0; i * page_rows < depth + rows; i++)
        page[i] = (*used)++;
    for (int32_t i = 0; i < rows; i++) {
        int32_t at = depth + i;
        row = hzp_batch_add_row(b, token_at(rig, at + 31 * b->segs),
                                page[at / page_rows] * page_rows + at % page_rows);
    }
    b->sample[hzp_batch_add_logits(b, row)] =
        (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
}

int hzp_rig_serve(struct hzp_rig *rig, int32_t decode, int32_t depth, int32_t prefill, int32_t at)
{
    const struct hzp_rig_config *c = &rig->config;
    int64_t pages = (int64_t)decode * HZP_DIV_UP(depth + 1, c->page_rows) +
                    HZP_DIV_UP(prefill ? at + prefill : 0, c->page_rows);
    int32_t used = 0;
    if (decode > c->decode_max || prefill > c->prefill_max || pages > rig->pages_count ||
        HZP_MAX(decode ? depth + 1 : 0, prefill ? at + prefill : 0) > c->model->positions ||
        depth > c->depth_max || at > c->depth_max)
        return HZP_EINVAL;
    if (!rig->batch)
        return HZP_OK;
    hzp_batch_clear(rig->batch);
    for (int32_t i = 0; i < decode; i++)
        add_segment(rig, 1, depth, true, &used);
    if (prefill)
        add_segment(rig, prefill, at, false, &used);
    return HZP_OK;
}

int hzp_rig_serve_shallow(struct hzp_rig *rig, int32_t decode, int32_t depth, int32_t prefill)
{
    int r = hzp_rig_serve(rig, decode, depth, prefill, 0);
    for (; r == HZP_EINVAL && depth > 0; r = hzp_rig_serve(rig, decode, depth, prefill, 0))
        depth /= 2;
    return r;
}

void hzp_rig_chunks(struct hzp_rig *rig, int32_t chunk_rows)
{
    rig->chunk_rows = chunk_rows;
}

int hzp_rig_train(struct hzp_rig *rig, int32_t rows)
{
    hzp_plan_clear(&rig->chain);
    if (!rows)
        return HZP_OK;
    if (!rig->train || rows > rig->micro->rows_max || rows > rig->config.model->positions)
        return HZP_EINVAL;
    hzp_micro_clear(rig->micro);
    HZP_FREED int32_t *token = hzp_xcalloc((size_t)rows + 1, sizeof(*token));
    HZP_FREED uint8_t *learn = hzp_xcalloc((size_t)rows + 1, 1);
    for (int32_t i = 0; i <= rows; i++) {
        token[i] = token_at(rig, i);
        learn[i] = 1;
    }
    HZP_TRY(hzp_micro_add(rig->micro, token, learn, rows + 1));
    hzp_micro_cut(rig->micro, rig->chunk_rows);
    hzp_micro_build(&rig->chain, rig->config.model, rig->config.version, rig->micro, rig->train,
                    true);
    return HZP_OK;
}

int hzp_rig_update(struct hzp_rig *rig)
{
    static const struct hzp_update_hyper still = {
        .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1, .grad_scale = 1, .t = 1};
    hzp_plan_clear(&rig->chain);
    if (!rig->train || !rig->config.draft)
        return HZP_EINVAL;
    hzp_update_build(&rig->chain, rig->config.model, rig->config.version, rig->config.draft, &still,
                     rig->train);
    return HZP_OK;
}

void hzp_rig_build(struct hzp_rig *rig, const struct hzp_plan_shape *shape, int32_t from,
                   int32_t to, struct hzp_plan *plan)
{
    const struct hzp_rig_config *c = &rig->config;
    struct hzp_rider rider = {c->version, rig->micro, rig->train};
    struct hzp_step_plan step = {.model = c->model,
                                 .version = c->version,
                                 .batch = rig->batch,
                                 .kv = rig->kv,
                                 .space = rig->space,
                                 .shape = shape,
                                 .chain = &rig->chain,
                                 .from = from,
                                 .to = to,
                                 .rider = rig->train ? &rider : NULL};
    hzp_plan_clear(plan);
    hzp_step_build(plan, &step);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double hzp_median(double *value, int32_t count)
{
    qsort(value, (size_t)count, sizeof(*value), by_value);
    return value[count / 2];
}

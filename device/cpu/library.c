/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/library.c - matrix products by oneDNN, on our own threads.
 *
 * A product is divided into blocks of c; each block is one primitive that a thread of the team runs
 * alone.  Creating a primitive takes about 0.2 ms (code is generated), so they are cached by shape;
 * the least recently used one is evicted.
 */
#include "device/cpu/matmul.h"

#include <dlfcn.h>
#include <dnnl.h>

enum {
    CACHE = 256,
    ALIGN = 64,
    BLOCK_ROWS = 512,
    BLOCK_COLS = 1024,
    BLOCK_COLS_MIN = 192,
    FEW_ROWS = 256,
    BLOCK_COLS_NT = 16384,
};

struct shape {
    int32_t m, n, k, lda, ldb, ldc;
    int32_t type, c_type, trans_a, trans_b, accumulate, bias;
};

struct entry {
    struct shape shape;
    uint64_t used; /* 0: free */
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, bias, scratch;
};

struct hzp_cpu_matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream; /* CPU streams hold no state: shared by the threads */
    uint64_t clock;
    struct entry entry[CACHE];
};

/* Without this, oneDNN would start a team of OpenMP threads in each thread that calls it. */
void hzp_cpu_library_alone(void)
{
    static _Thread_local bool alone;
    void (*set)(int);

    if (alone)
        return;
    *(void **)&set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (set)
        set(1);
    alone = true;
}

int hzp_cpu_matmul_open(struct hzp_cpu_matmul **ret)
{
    struct hzp_cpu_matmul *products = calloc(1, sizeof(*products));

    if (!products)
        return HZP_ENOMEM;
    hzp_cpu_library_alone();
    if (dnnl_engine_create(&products->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&products->stream, products->engine, dnnl_stream_default_flags) !=
            dnnl_success) {
        hzp_cpu_matmul_close(products);
        return HZP_ENOMEM;
    }
    *ret = products;
    return HZP_OK;
}

static void entry_clear(struct entry *entry)
{
    if (entry->primitive)
        dnnl_primitive_destroy(entry->primitive);
    memset(entry, 0, sizeof(*entry));
}

void hzp_cpu_matmul_close(struct hzp_cpu_matmul *products)
{
    if (!products)
        return;
    for (int i = 0; i < CACHE; i++)
        entry_clear(&products->entry[i]);
    if (products->stream)
        dnnl_stream_destroy(products->stream);
    if (products->engine)
        dnnl_engine_destroy(products->engine);
    free(products);
}

static bool mat_desc(dnnl_memory_desc_t *ret, int64_t rows, int64_t cols, int32_t stride,
                     bool transposed, int32_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {stride, 1};

    if (transposed) {
        strides[0] = 1;
        strides[1] = stride;
    }
    return dnnl_memory_desc_init_by_strides(ret, 2, dims, type == HZP_BF16 ? dnnl_bf16 : dnnl_f32,
                                            strides) == dnnl_success;
}

static bool entry_descs(struct entry *entry, const struct shape *s)
{
    return mat_desc(&entry->a, s->m, s->k, s->lda, s->trans_a, s->type) &&
           mat_desc(&entry->b, s->k, s->n, s->ldb, s->trans_b, s->type) &&
           mat_desc(&entry->c, s->m, s->n, s->ldc, false, s->c_type) &&
           (!s->bias || mat_desc(&entry->bias, 1, s->n, s->n, false, s->type));
}

static bool entry_make(struct hzp_cpu_matmul *products, struct entry *entry, const struct shape *s)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    bool ok = false;

    if (!entry_descs(entry, s) ||
        dnnl_matmul_desc_init(&desc, &entry->a, &entry->b, s->bias ? &entry->bias : NULL,
                              &entry->c) != dnnl_success ||
        dnnl_primitive_attr_create(&attr) != dnnl_success)
        goto out;
    /* our own scratchpad, because the library's would belong to the thread that created the
     * primitive */
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (s->accumulate) {
        if (dnnl_post_ops_create(&ops) != dnnl_success ||
            dnnl_post_ops_append_sum(ops, 1.f) != dnnl_success ||
            dnnl_primitive_attr_set_post_ops(attr, ops) != dnnl_success)
            goto out;
    }
    if (dnnl_primitive_desc_create(&made, &desc, attr, products->engine, NULL) != dnnl_success)
        goto out;
    entry->scratch = *dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
    ok = dnnl_primitive_create(&entry->primitive, made) == dnnl_success;
out:
    if (made)
        dnnl_primitive_desc_destroy(made);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return ok;
}

/* The primitive of this shape, created if necessary; NULL: the library does not support it.  The
 * cache is far larger than the four shapes of one product, so none of those evicts another. */
static struct entry *entry_find(struct hzp_cpu_matmul *products, const struct shape *s)
{
    struct entry *oldest = &products->entry[0];

    for (int i = 0; i < CACHE; i++) {
        struct entry *entry = &products->entry[i];
        if (entry->used && memcmp(&entry->shape, s, sizeof(*s)) == 0) {
            entry->used = ++products->clock;
            return entry;
        }
        if (entry->used < oldest->used)
            oldest = entry;
    }
    entry_clear(oldest);
    if (!entry_make(products, oldest, s)) {
        entry_clear(oldest);
        return NULL;
    }
    oldest->shape = *s;
    oldest->used = ++products->clock;
    return oldest;
}

/* A product divided into blocks: at most four shapes, inner blocks and those at the two far
 * edges. */
struct cut {
    const struct hzp_matmul_args *args;
    struct hzp_cpu_matmul *products;
    struct hzp_team *team;
    struct entry *entry[2][2]; /* [last row block][last column block] */
    int rows, cols;            /* one block's */
    int down, across;          /* blocks */
    _Atomic int failed;
};

static void *element(const struct hzp_mat *mat, int64_t row, int64_t col)
{
    return (char *)hzp_cpu_row(mat, row) + (size_t)col * (mat->type == HZP_F32 ? 4 : 2);
}

static bool block_run(const struct cut *cut, const struct entry *entry, void *const ptr[5])
{
    static const int name[5] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD,
                                DNNL_ARG_BIAS};
    const dnnl_memory_desc_t *desc[5] = {&entry->a, &entry->b, &entry->c, &entry->scratch,
                                         &entry->bias};
    dnnl_exec_arg_t arg[5];
    int count = ptr[4] ? 5 : 4, made = 0;
    bool ok = true;

    for (; made < count && ok; made++) {
        arg[made].arg = name[made];
        ok = dnnl_memory_create(&arg[made].memory, desc[made], cut->products->engine, ptr[made]) ==
             dnnl_success;
    }
    made -= !ok;
    ok = ok && dnnl_primitive_execute(entry->primitive, cut->products->stream, count, arg) ==
                   dnnl_success;
    for (int i = 0; i < made; i++)
        dnnl_memory_destroy(arg[i].memory);
    return ok;
}

static void block_task(void *ctx, int task, int thread)
{
    struct cut *cut = ctx;
    const struct hzp_matmul_args *a = cut->args;
    int i = task / cut->across, j = task % cut->across;
    int64_t m = (int64_t)i * cut->rows, n = (int64_t)j * cut->cols;
    const struct entry *entry = cut->entry[i == cut->down - 1][j == cut->across - 1];
    void *ptr[5] = {
        a->trans_a ? element(&a->a, 0, m) : element(&a->a, m, 0),
        a->trans_b ? element(&a->b, n, 0) : element(&a->b, 0, n),
        element(&a->c, m, n),
        hzp_team_own(cut->team, thread),
        a->bias.ptr ? element(&a->bias, 0, n) : NULL,
    };

    hzp_cpu_library_alone();
    if (!block_run(cut, entry, ptr))
        cut->failed = 1;
}

/* Chooses the block sizes: a number of blocks that divides evenly among the device's threads, and
 * no block so thin that packing outweighs multiplying.  They do not depend on the lane's share:
 * with AVX2 the bits of the library's sums depend on a block's size, and gradients must not depend
 * on the lane chosen by a plan. */
static void cut_choose(struct cut *cut, int threads)
{
    int m = cut->args->c.rows, n = cut->args->c.cols, across, widest;

    cut->rows = m;
    if (m > 2 * BLOCK_ROWS)
        cut->rows = HZP_ROUND_UP(HZP_DIV_UP(m, HZP_DIV_UP(m, BLOCK_ROWS)), ALIGN);
    else if (n < 2 * BLOCK_COLS_MIN && m > ALIGN && threads > 1)
        cut->rows = HZP_ROUND_UP(HZP_DIV_UP(m, threads), ALIGN);
    cut->down = HZP_DIV_UP(m, cut->rows);

    /* if b is transposed the library packs it, and does that better in wide blocks */
    widest = cut->args->trans_b ? BLOCK_COLS_NT : BLOCK_COLS;
    across = HZP_DIV_UP(n, widest);
    while (across * cut->down % threads && n / (across + 1) >= BLOCK_COLS_MIN)
        across++;
    while (m > FEW_ROWS && across * cut->down < 2 * threads && n / (2 * across) >= BLOCK_COLS)
        across *= 2; /* smaller blocks, so that other threads take over from a late one */
    cut->cols = HZP_MIN(n, HZP_ROUND_UP(HZP_DIV_UP(n, across), ALIGN / 2));
    cut->across = HZP_DIV_UP(n, cut->cols);
}

int hzp_cpu_matmul_library(struct hzp_lane *lane, const struct hzp_matmul_args *a)
{
    struct hzp_cpu_lane *mine = (struct hzp_cpu_lane *)lane;
    struct cut cut = {.args = a, .products = mine->products, .team = mine->team};
    size_t scratch = 0;

    hzp_cpu_library_alone(); /* before a primitive is created: that reads the number of threads */
    cut_choose(&cut, mine->base.dev->threads);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            struct shape s = {
                .m = i ? a->c.rows - (cut.down - 1) * cut.rows : cut.rows,
                .n = j ? a->c.cols - (cut.across - 1) * cut.cols : cut.cols,
                .k = a->trans_a ? a->a.rows : a->a.cols,
                .lda = a->a.stride,
                .ldb = a->b.stride,
                .ldc = a->c.stride,
                .type = (int32_t)a->a.type,
                .c_type = (int32_t)a->c.type,
                .trans_a = !!a->trans_a,
                .trans_b = !!a->trans_b,
                .accumulate = !!a->accumulate,
                .bias = a->bias.ptr != NULL,
            };
            if ((!i && cut.down == 1) || (!j && cut.across == 1))
                continue;
            cut.entry[i][j] = entry_find(mine->products, &s);
            if (!cut.entry[i][j])
                return HZP_EUNSUP;
            size_t bytes = dnnl_memory_desc_get_size(&cut.entry[i][j]->scratch);
            scratch = HZP_MAX(scratch, bytes);
        }
    }
    HZP_TRY(hzp_team_reserve(mine->team, 0, scratch));
    hzp_team_run(mine->team, cut.down * cut.across, block_task, &cut);
    return cut.failed ? HZP_EDEVICE : HZP_OK;
}

const char *hzp_cpu_library_version(char text[32])
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, 32, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/lt.c - cuBLASLt: descriptors checked against each other and against memory,
 * products computed in double, column-major as in the library.
 *
 * An algorithm carries the problem it was advised for, so its use for another problem is
 * detected.  For one that differs in sizes alone it may be used once the library has checked it.
 */
#include "device/fp8.h"
#include "tests/cudafake/core.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum { ADVICE = 5, TIMES = 8, CHECKED = 1024 };
static const uint64_t MAGIC = 0x6c745f66616b65;

struct lt_desc {
    struct fake_object object;
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    const void *bias, *scale_a, *scale_b;
    int32_t mode_a, mode_b; /* of the scales */
    int32_t sm_target;
    int8_t fast;
};

struct lt_layout {
    struct fake_object object;
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct lt_wish {
    struct fake_object object;
    size_t space;
    uint32_t align[4], reductions;
};

/* The contents of a cublasLtMatmulAlgo_t. */
struct advice {
    uint64_t magic, shape, space, align, number;
    uint64_t kind; /* the shape without its sizes */
    uint64_t zero[2];
};

struct product {
    struct lt_desc desc;
    struct lt_layout a, b, c;
    const void *pa, *pb, *pc;
    void *pd;
    float alpha, beta;
    uint64_t number;
};

static int times[TIMES];

void fake_set_algo_times(const int *microseconds, int count)
{
    memset(times, 0, sizeof(times));
    memcpy(times, microseconds, (size_t)count * sizeof(*times));
}

enum fake_e4m3 fake_e4m3;
int fake_algos_failing;

size_t cublasLtGetVersion(void)
{
    return 130100;
}

/* ---- objects ---- */

static cublasStatus_t made(void *object, void *ret)
{
    memcpy(ret, &object, sizeof(object));
    fake_leave();
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t gone(const void *handle, enum fake_type type, const char *function)
{
    fake_enter();
    void *object = fake_object_find(handle, type, function);
    if (object)
        fake_object_free(object);
    fake_leave();
    return object ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    fake_enter();
    if (strcmp(fake_loading(), "EAGER") == 0)
        fake_load();
    return made(fake_object_new(FAKE_LT_HANDLE, sizeof(struct fake_object)), ret);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return gone(handle, FAKE_LT_HANDLE, "cublasLtDestroy");
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    fake_enter();
    struct lt_desc *desc = fake_object_new(FAKE_LT_DESC, sizeof(*desc));
    desc->compute = compute;
    desc->scale = scale;
    desc->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return made(desc, ret);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle)
{
    return gone(handle, FAKE_LT_DESC, "cublasLtMatmulDescDestroy");
}

/* Copies a value of exactly this size. */
static bool take(void *to, size_t want, const void *value, size_t size, const char *what)
{
    if (size != want) {
        fake_mistake("%s: a value of %zu bytes, not %zu", what, size, want);
        return false;
    }
    memcpy(to, value, want);
    return true;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    static const char *const what = "cublasLtMatmulDescSetAttribute";
    fake_enter();
    struct lt_desc *desc = fake_object_find(handle, FAKE_LT_DESC, what);
    bool ok = desc;
    if (ok && attribute == CUBLASLT_MATMUL_DESC_TRANSA)
        ok = take(&desc->trans_a, sizeof(desc->trans_a), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_TRANSB)
        ok = take(&desc->trans_b, sizeof(desc->trans_b), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_EPILOGUE)
        ok = take(&desc->epilogue, sizeof(desc->epilogue), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        ok = take(&desc->bias, sizeof(desc->bias), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_A_SCALE_MODE)
        ok = take(&desc->mode_a, sizeof(desc->mode_a), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_B_SCALE_MODE)
        ok = take(&desc->mode_b, sizeof(desc->mode_b), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER)
        ok = take(&desc->scale_a, sizeof(desc->scale_a), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)
        ok = take(&desc->scale_b, sizeof(desc->scale_b), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_FAST_ACCUM)
        ok = take(&desc->fast, sizeof(desc->fast), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET)
        ok = take(&desc->sm_target, sizeof(desc->sm_target), value, size, what);
    else
        ok = false;
    fake_leave();
    return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    fake_enter();
    if (ld < (int64_t)rows)
        fake_mistake("cublasLtMatrixLayoutCreate: %llu rows, leading dimension %lld",
                     (unsigned long long)rows, (long long)ld);
    struct lt_layout *layout = fake_object_new(FAKE_LT_LAYOUT, sizeof(*layout));
    layout->type = type;
    layout->rows = rows;
    layout->cols = cols;
    layout->ld = ld;
    return made(layout, ret);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle)
{
    return gone(handle, FAKE_LT_LAYOUT, "cublasLtMatrixLayoutDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    fake_enter();
    struct lt_wish *wish = fake_object_new(FAKE_LT_WISH, sizeof(*wish));
    for (int i = 0; i < 4; i++)
        wish->align[i] = 256;
    wish->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    return made(wish, ret);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle)
{
    return gone(handle, FAKE_LT_WISH, "cublasLtMatmulPreferenceDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    static const char *const what = "cublasLtMatmulPreferenceSetAttribute";
    fake_enter();
    struct lt_wish *wish = fake_object_find(handle, FAKE_LT_WISH, what);
    bool ok = wish;
    int operand = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (ok && attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        ok = take(&wish->space, sizeof(wish->space), value, size, what);
    else if (ok && operand >= 0 && operand < 4)
        ok = take(&wish->align[operand], sizeof(wish->align[0]), value, size, what);
    else if (ok && attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        ok = take(&wish->reductions, sizeof(wish->reductions), value, size, what);
    else
        ok = false;
    fake_leave();
    return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- shapes ---- */

static void mix(uint64_t *hash, uint64_t x)
{
    *hash = (*hash ^ x) * 0x9e3779b97f4a7c15u;
    *hash ^= *hash >> 29;
}

static uint64_t describe(const struct lt_desc *d, const struct lt_layout *a,
                         const struct lt_layout *b, const struct lt_layout *c, bool sizes)
{
    const struct lt_layout *all[] = {a, b, c};
    uint64_t hash = 1;
    mix(&hash, (uint64_t)d->trans_a * 4 + (uint64_t)d->trans_b);
    mix(&hash, (uint64_t)d->epilogue);
    mix(&hash, (uint64_t)d->sm_target);
    mix(&hash, (uint64_t)d->fast);
    mix(&hash, (uint64_t)d->mode_a * 8 + (uint64_t)d->mode_b);
    for (int i = 0; i < 3; i++) {
        mix(&hash, (uint64_t)all[i]->type);
        if (sizes) {
            mix(&hash, all[i]->rows);
            mix(&hash, all[i]->cols);
        }
        mix(&hash, (uint64_t)all[i]->ld);
    }
    return hash;
}

static uint64_t shape_of(const struct lt_desc *d, const struct lt_layout *a,
                         const struct lt_layout *b, const struct lt_layout *c)
{
    return describe(d, a, b, c, true);
}

static bool by_rows(int32_t mode, const void *scale)
{
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && scale &&
           (uintptr_t)scale % 16 == 0;
}

/* Scales are for e4m3 only, with a transposed, b not, and everything aligned to 16 bytes;
 * otherwise the library has no algorithm.  It needs the scale pointers when it is asked for one,
 * too. */
static bool scales_meet(const struct lt_desc *d, const struct lt_layout *a,
                        const struct lt_layout *b, const struct lt_layout *c)
{
    bool any = d->mode_a || d->mode_b || d->scale_a || d->scale_b;
    if (a->type != CUDA_R_8F_E4M3) {
        if (any)
            fake_mistake("scales of what is not e4m3");
        return !any;
    }
    size_t size = c->type == CUDA_R_32F ? 4 : 2;
    bool ok = d->trans_a == CUBLAS_OP_T && d->trans_b == CUBLAS_OP_N &&
              by_rows(d->mode_a, d->scale_a) && by_rows(d->mode_b, d->scale_b) &&
              a->rows % 16 == 0 && c->rows % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0 &&
              (size_t)c->ld * size % 16 == 0 &&
              (d->epilogue != CUBLASLT_EPILOGUE_BIAS || c->type == CUDA_R_16BF);
    if (ok && (fake_e4m3 == FAKE_E4M3_NONE || (fake_e4m3 && c->type == CUDA_R_32F)))
        return false;
    if (!ok)
        fake_mistake("a product of e4m3 that the library refuses");
    return ok;
}

/* c = op(a) op(b), column-major. */
static bool shapes_meet(const struct lt_desc *d, const struct lt_layout *a,
                        const struct lt_layout *b, const struct lt_layout *c)
{
    uint64_t m = d->trans_a == CUBLAS_OP_N ? a->rows : a->cols,
             ka = d->trans_a == CUBLAS_OP_N ? a->cols : a->rows,
             kb = d->trans_b == CUBLAS_OP_N ? b->rows : b->cols,
             n = d->trans_b == CUBLAS_OP_N ? b->cols : b->rows;
    bool ok = ka == kb && m == c->rows && n == c->cols;
    if (!ok)
        fake_mistake("a product of %llu x %llu by %llu x %llu into %llu x %llu",
                     (unsigned long long)m, (unsigned long long)ka, (unsigned long long)kb,
                     (unsigned long long)n, (unsigned long long)c->rows,
                     (unsigned long long)c->cols);
    bool types = a->type == b->type && d->compute == CUBLAS_COMPUTE_32F && d->scale == CUDA_R_32F &&
                 (a->type == CUDA_R_16BF || a->type == CUDA_R_8F_E4M3 ||
                  (a->type == CUDA_R_32F && c->type == CUDA_R_32F));
    if (!types)
        fake_mistake("a product of types that do not go together");
    return ok && types && scales_meet(d, a, b, c);
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle,
                               cublasLtMatrixLayout_t a_handle, cublasLtMatrixLayout_t b_handle,
                               cublasLtMatrixLayout_t c_handle, cublasLtMatrixLayout_t d_handle,
                               cublasLtMatmulPreference_t wish_handle, int wanted,
                               cublasLtMatmulHeuristicResult_t *ret, int *ret_count)
{
    static const char *const what = "cublasLtMatmulAlgoGetHeuristic";
    fake_enter();
    struct lt_desc *desc = fake_object_find(desc_handle, FAKE_LT_DESC, what);
    struct lt_layout *a = fake_object_find(a_handle, FAKE_LT_LAYOUT, what);
    struct lt_layout *b = fake_object_find(b_handle, FAKE_LT_LAYOUT, what);
    struct lt_layout *c = fake_object_find(c_handle, FAKE_LT_LAYOUT, what);
    struct lt_wish *wish = fake_object_find(wish_handle, FAKE_LT_WISH, what);
    int error = 0;
    if (wish && wish->reductions & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
        fake_mistake("%s: parts of a sum may be rounded to the type of the output", what);
        wish = NULL;
    }
    bool ok = fake_object_find(handle, FAKE_LT_HANDLE, what) && desc && a && b && c && wish &&
              d_handle == c_handle && shapes_meet(desc, a, b, c) && !fake_fails(what, &error);
    *ret_count = 0;
    for (int i = 0; ok && i < ADVICE && i < wanted; i++) {
        struct advice advice = {.magic = MAGIC,
                                .shape = shape_of(desc, a, b, c),
                                .kind = describe(desc, a, b, c, false),
                                .space = wish->space / 2,
                                .number = (uint64_t)i};
        advice.align = wish->align[0];
        for (int k = 1; k < 4; k++)
            advice.align = advice.align < wish->align[k] ? advice.align : wish->align[k];
        memset(&ret[i], 0, sizeof(ret[i]));
        memcpy(&ret[i].algo, &advice, sizeof(ret[i].algo));
        ret[i].workspaceSize = advice.space;
        ret[i].state = CUBLAS_STATUS_SUCCESS;
        ret[i].wavesCount = 1;
        *ret_count = i + 1;
    }
    fake_leave();
    return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* Problems for which the library was asked to check an algorithm that it had advised for others
 * like them. */
static struct {
    uint64_t advised, used;
} checked[CHECKED];
static int checks;

static bool was_checked(uint64_t advised, uint64_t used)
{
    for (int i = 0; i < checks && i < CHECKED; i++)
        if (checked[i].advised == advised && checked[i].used == used)
            return true;
    return false;
}

static bool advice_fits(const cublasLtMatmulAlgo_t *algo, uint64_t shape, struct advice *ret)
{
    memcpy(ret, algo, sizeof(*ret));
    return ret->magic == MAGIC && ret->number < ADVICE &&
           (ret->shape == shape || was_checked(ret->shape, shape));
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *ret)
{
    struct advice advice;
    fake_enter();
    bool ok = fake_object_find(desc, FAKE_LT_DESC, "cublasLtMatmulAlgoCheck");
    uint64_t shape = ok ? shape_of((void *)desc, (void *)a, (void *)b, (void *)c) : 0;
    if (ok && !advice_fits(algo, shape, &advice)) {
        ok = advice.magic == MAGIC && advice.number < ADVICE &&
             advice.kind == describe((void *)desc, (void *)a, (void *)b, (void *)c, false);
        if (ok) {
            checked[checks % CHECKED].advised = advice.shape;
            checked[checks++ % CHECKED].used = shape;
        }
    }
    memset(ret, 0, sizeof(*ret));
    ret->algo = *algo;
    ret->workspaceSize = ok ? advice.space : 0;
    ret->state = ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    fake_leave();
    return ret->state;
}

/* ---- products ---- */

static size_t type_size(cudaDataType_t type)
{
    return type == CUDA_R_16BF ? 2 : type == CUDA_R_8F_E4M3 ? 1 : 4;
}

static void matrix_check(const char *name, const void *ptr, const struct lt_layout *l,
                         uint64_t align)
{
    size_t size = ((size_t)(l->cols - 1) * (size_t)l->ld + l->rows) * type_size(l->type);
    if (!fake_is_ours(ptr, size))
        fake_mistake("cublasLtMatmul: %s leaves its allocation", name);
    if ((uintptr_t)ptr % align != 0)
        fake_mistake(
            "cublasLtMatmul: %s is not aligned to the %llu bytes its algorithm was asked for", name,
            (unsigned long long)align);
}

static void workspace_check(const void *space, size_t size, const struct advice *advice)
{
    if (size < advice->space ||
        (advice->space && (!fake_is_ours(space, size) || (uintptr_t)space % 256 != 0)))
        fake_mistake("cublasLtMatmul: a workspace of %zu bytes, the algorithm takes %llu", size,
                     (unsigned long long)advice->space);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_handle,
                              const void *b, cublasLtMatrixLayout_t b_handle, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_handle, void *d,
                              cublasLtMatrixLayout_t d_handle, const cublasLtMatmulAlgo_t *algo,
                              void *space, size_t space_size, cudaStream_t stream_handle)
{
    static const char *const what = "cublasLtMatmul";
    int error = 0;
    fake_enter();
    fake_load();
    struct lt_desc *desc = fake_object_find(desc_handle, FAKE_LT_DESC, what);
    struct lt_layout *la = fake_object_find(a_handle, FAKE_LT_LAYOUT, what);
    struct lt_layout *lb = fake_object_find(b_handle, FAKE_LT_LAYOUT, what);
    struct lt_layout *lc = fake_object_find(c_handle, FAKE_LT_LAYOUT, what);
    struct fake_stream *stream = fake_stream_find(stream_handle, what);
    bool ok = fake_object_find(handle, FAKE_LT_HANDLE, what) && desc && la && lb && lc && stream &&
              d_handle == c_handle && shapes_meet(desc, la, lb, lc) && !fake_fails(what, &error);
    struct advice advice = {0};
    if (ok && !advice_fits(algo, shape_of(desc, la, lb, lc), &advice)) {
        fake_mistake("cublasLtMatmul: an algorithm that was advised for something else");
        ok = false;
    }
    if (ok && advice.number < (uint64_t)fake_algos_failing) {
        error = CUBLAS_STATUS_EXECUTION_FAILED;
        ok = false;
    }
    if (!ok) {
        fake_leave();
        return error ? (cublasStatus_t)error : CUBLAS_STATUS_INVALID_VALUE;
    }
    matrix_check("a", a, la, advice.align);
    matrix_check("b", b, lb, advice.align);
    matrix_check("c", c, lc, advice.align);
    matrix_check("d", d, lc, advice.align);
    if (desc->mode_a && !(fake_is_ours(desc->scale_a, (size_t)lc->rows * 4) &&
                          fake_is_ours(desc->scale_b, (size_t)lc->cols * 4)))
        fake_mistake("cublasLtMatmul: the scales leave their allocation");
    workspace_check(space, space_size, &advice);
    struct product product = {
        *desc,        *la, *lb, *lc, a, b, c, d, *(const float *)alpha, *(const float *)beta,
        advice.number};
    struct fake_task *task = fake_put(stream, FAKE_PRODUCT);
    task->args = malloc(sizeof(product));
    task->args_size = sizeof(product);
    memcpy(task->args, &product, sizeof(product));
    task->call.dst = d;
    task->call.src = a;
    task->call.sm_target = desc->sm_target;
    task->call.fast = desc->fast;
    task->call.algo = (int)advice.number;
    if (space) /* two streams may use it, one after the other */
        fake_touch_copy(stream, "a product's workspace", space, space_size, true);
    fake_put_done(task);
    fake_leave();
    return CUBLAS_STATUS_SUCCESS;
}

static float value(const void *ptr, cudaDataType_t type, size_t i)
{
    if (type == CUDA_R_32F)
        return ((const float *)ptr)[i];
    if (type == CUDA_R_8F_E4M3)
        return hzp_e4m3_to_f32(((const uint8_t *)ptr)[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)ptr)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void put(void *ptr, cudaDataType_t type, size_t i, float x)
{
    uint32_t bits;
    if (type == CUDA_R_32F) {
        ((float *)ptr)[i] = x;
        return;
    }
    memcpy(&bits, &x, sizeof(bits));
    ((uint16_t *)ptr)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* op(a) as doubles, [depth, rows]. */
static double *first_of(const struct product *p, uint64_t depth)
{
    uint64_t rows = p->c.rows, ld = (uint64_t)p->a.ld;
    bool plain = p->desc.trans_a == CUBLAS_OP_N;
    double *ret = malloc((size_t)(depth * rows + 1) * sizeof(double));
    for (uint64_t k = 0; k < depth; k++)
        for (uint64_t i = 0; i < rows; i++)
            ret[k * rows + i] = (double)value(p->pa, p->a.type, plain ? k * ld + i : i * ld + k);
    return ret;
}

/* A column of the product: each sum in the order of k, many sums side by side. */
static void column_sums(const struct product *p, uint64_t depth, uint64_t j, const double *first,
                        double *restrict sum)
{
    uint64_t rows = p->c.rows, ld = (uint64_t)p->b.ld;
    bool plain = p->desc.trans_b == CUBLAS_OP_N;
    memset(sum, 0, (size_t)rows * sizeof(double));
    for (uint64_t k = 0; k < depth; k++) {
        const double *restrict a = first + k * rows;
        double b = (double)value(p->pb, p->b.type, plain ? j * ld + k : k * ld + j);
        for (uint64_t i = 0; i < rows; i++)
            sum[i] += a[i] * b;
    }
}

void fake_product_run(const struct fake_task *task)
{
    struct product p;
    memcpy(&p, task->args, sizeof(p));
    fake_clock_add(1e3 * times[p.number % TIMES]);
    uint64_t depth = p.desc.trans_a == CUBLAS_OP_N ? p.a.cols : p.a.rows;
    double *first = first_of(&p, depth);
    double *sums = malloc((size_t)(p.c.rows + 1) * sizeof(double));
    for (uint64_t j = 0; j < p.c.cols; j++) {
        column_sums(&p, depth, j, first, sums);
        for (uint64_t i = 0; i < p.c.rows; i++) {
            uint64_t ic = j * (uint64_t)p.c.ld + i;
            double sum = sums[i] * (double)p.alpha;
            if (p.desc.mode_a)
                sum *= (double)((const float *)p.desc.scale_a)[i] *
                       (double)((const float *)p.desc.scale_b)[j];
            if (p.beta != 0)
                sum += (double)p.beta * (double)value(p.pc, p.c.type, ic);
            if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += (double)value(p.desc.bias, p.c.type, i);
            put(p.pd, p.c.type, ic, (float)sum);
        }
    }
    free(first);
    free(sums);
}

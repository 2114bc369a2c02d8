/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/matmul.c - matrix products by cuBLASLt, loaded when a device is opened.
 *
 * cuBLASLt stores by columns, we by rows: a row-major matrix read by columns is its transpose, so
 * c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T, with the same flags and b as the first
 * operand.  Its bias is along the columns of c^T, which are the rows of c: as in our op.
 *
 * For each shape and number of SMs the library is asked once; the chosen algorithm is kept in a
 * table of fixed size and on disk (algos.h).  When a shape occurs for the first time outside of a
 * capture, the library's best algorithms are timed on the current operands, until the device is
 * steady (hzp_device_steady).  A server runs every size of its decode steps at its start; commands
 * that neither serve nor learn are never steady.  A shape that comes later, of a micro-batch, is
 * not timed, because requests or the update would wait for that: it gets the timed algorithm of
 * the shape with the nearest number of rows, where the library accepts it, else the library's
 * advice, until a start or a command meets the shape.  HZP_CUDA_TUNE=0: nothing is timed; =1:
 * every shape is, also later.  A lane with a share tells the library how many SMs it has.
 *
 * E4M3 with a scale for each row of either side is supported by the library from sm_90 and 12.9 on,
 * and not for all shapes, nor always into F32 (by_half); fp8.cu computes the products for which it
 * has no algorithm, and those of few rows, which are limited by reading the weights.
 *
 * Where an algorithm fails to run, which says nothing about others, the next one that the library
 * advises takes its place until the next start that times; a product is given up when three in a
 * row have failed.
 */
#include "device/cuda/cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include "base/log.h"
#include "device/cuda/algos.h"
#include "device/fallback.h"

/* The library's functions, looked up by name. */
#define LT(X)                                                                                      \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(Matmul)                                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulAlgoCheck)                                                                             \
    X(GetVersion)

struct key {
    int32_t m, n, k, lda, ldb, ldc;
    int32_t sms; /* SMs it may use; 0: all */
    uint8_t type, type_c, trans_a, trans_b, bias,
        align;    /* log2 of the least alignment, at most 4 */
    uint8_t fast; /* sums of e4m3 may keep fewer bits */
    uint8_t zero[5];
    uint64_t space;
};

struct product {
    struct key key;
    bool used;
    bool refused;  /* the library cannot compute it */
    int failures;  /* runs that failed since the last that did not */
    uint64_t last; /* when it was last used, by the table's clock */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

enum { FEW_E4M3 = 8 /* the smallest number of rows of mma */ };
enum tune { TUNE_NEVER, TUNE_START, TUNE_ALWAYS };
enum { SETS = 512, WAYS = 8 };
/* The most multiplications that a product the library refuses is given to our plain kernel for:
 * above, a step would be slower by orders of magnitude, which is an error. */
static const int64_t PLAIN_MAX = (int64_t)1 << 26;
enum { OFFERS = 8, OFFERS_LIMITED = 4, TIMED_RUNS = 3, FAILURES_MAX = 3 };
static const char out_of_memory[] = "the library is out of memory";

struct hzp_cuda_products {
    void *library;
    cublasLtHandle_t handle;
    struct product table[SETS][WAYS]; /* a product is in the set of its key's hash */
    uint64_t clock;
    size_t cache; /* bytes of the second-level cache */
    struct hzp_cuda_algos *algos;
    enum tune tune;
    /* HZP_CUDA_FAST_ACCUM: tensor cores may add up products of e4m3 without widening each sum
     * between instructions: quicker on sm_90, some 14 bits.  All products of e4m3 are serving's:
     * training has none. */
    bool fast;
    bool steady;
    bool starved; /* a call since this was cleared failed for lack of memory */
#define X(name) __typeof__(&cublasLt##name) name;
    LT(X)
#undef X
};

void *hzp_cuda_library_open(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    const char *own = getenv("HZP_CUBLASLT");
    void *library = own && *own ? dlopen(own, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (int i = 0; i < HZP_COUNT(names) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

int hzp_cuda_products_open(struct hzp_cuda_device *dev, struct hzp_cuda_products **ret,
                           struct hzp_err_text *reterr)
{
    static const char *const words[] = {"0", "1"};
    int tune = -1, fast = 1;
    HZP_TRY(hzp_cuda_env("HZP_CUDA_TUNE", words, HZP_COUNT(words), "0 or 1", &tune, reterr));
    HZP_TRY(hzp_cuda_env("HZP_CUDA_FAST_ACCUM", words, HZP_COUNT(words), "0 or 1", &fast, reterr));
    void *library = hzp_cuda_library_open();
    if (!library)
        return hzp_fail(reterr, HZP_EUNSUP,
                        "device cuda: libcublasLt.so is not found; say where it "
                        "is in HZP_CUBLASLT");
    struct hzp_cuda_products *p = calloc(1, sizeof(*p));
    if (!p) {
        dlclose(library);
        return hzp_fail(reterr, HZP_ENOMEM, "device cuda: out of memory");
    }
    const char *missing = NULL;
    p->library = library;
    p->fast = fast;
#define X(name)                                                                                    \
    *(void **)&p->name = dlsym(library, "cublasLt" #name);                                         \
    if (!p->name)                                                                                  \
        missing = "cublasLt" #name;
    LT(X)
#undef X
    if (missing || p->Create(&p->handle) != CUBLAS_STATUS_SUCCESS) {
        dlclose(library);
        free(p);
        return hzp_fail(reterr, HZP_EUNSUP, "device cuda: cuBLASLt: %s %s",
                        missing ? missing : "the library",
                        missing ? "is missing" : "does not start");
    }
    int driver = 0;
    char identity[96];
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, dev->ordinal) == cudaSuccess)
        p->cache = (size_t)prop.l2CacheSize;
    cudaDriverGetVersion(&driver);
    snprintf(identity, sizeof(identity), "%.60s; driver %d; cublasLt %zu", dev->base.label, driver,
             p->GetVersion());
    p->algos = hzp_cuda_algos_open(identity);
    p->tune = tune < 0 ? TUNE_START : tune ? TUNE_ALWAYS : TUNE_NEVER;
    *ret = p;
    return HZP_OK;
}

void hzp_cuda_products_steady(struct hzp_cuda_products *p)
{
    p->steady = true;
}

struct hzp_cuda_algos *hzp_cuda_products_algos(struct hzp_cuda_products *p)
{
    return p->algos;
}

static void product_clear(struct hzp_cuda_products *p, struct product *product)
{
    if (product->desc)
        p->MatmulDescDestroy(product->desc);
    if (product->a)
        p->MatrixLayoutDestroy(product->a);
    if (product->b)
        p->MatrixLayoutDestroy(product->b);
    if (product->c)
        p->MatrixLayoutDestroy(product->c);
    memset(product, 0, sizeof(*product));
}

static void table_clear(struct hzp_cuda_products *p)
{
    for (int i = 0; i < SETS; i++)
        for (int k = 0; k < WAYS; k++)
            if (p->table[i][k].used)
                product_clear(p, &p->table[i][k]);
}

void hzp_cuda_products_close(struct hzp_cuda_products *p)
{
    if (!p)
        return;
    table_clear(p);
    hzp_cuda_algos_close(p->algos);
    p->Destroy(p->handle);
    dlclose(p->library);
    free(p);
}

/* Whether a call succeeded; remembers a lack of memory. */
static bool good(struct hzp_cuda_products *p, cublasStatus_t status)
{
    p->starved |= status == CUBLAS_STATUS_ALLOC_FAILED;
    return status == CUBLAS_STATUS_SUCCESS;
}

static cudaDataType_t cuda_type(enum hzp_dtype type)
{
    return type == HZP_BF16 ? CUDA_R_16BF : type == HZP_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_32F;
}

/* Describes a row-major matrix of these rows and columns, as its transpose. */
static bool layout(struct hzp_cuda_products *p, cublasLtMatrixLayout_t *ret, enum hzp_dtype type,
                   int32_t rows, int32_t cols, int32_t stride)
{
    return good(
        p, p->MatrixLayoutCreate(ret, cuda_type(type), (uint64_t)cols, (uint64_t)rows, stride));
}

static bool set(struct hzp_cuda_products *p, struct product *product,
                cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size)
{
    return p->MatmulDescSetAttribute(product->desc, attribute, value, size) ==
           CUBLAS_STATUS_SUCCESS;
}

/* Describes a scale for each row of a and of b, which are the library's b and a. */
static bool scales_describe(struct hzp_cuda_products *p, struct product *product)
{
#if CUBLAS_VERSION >= 120900
    int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    return set(p, product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof(mode)) &&
           set(p, product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof(mode));
#else
    return false;
#endif
}

static bool describe(struct hzp_cuda_products *p, struct product *product)
{
    const struct key *k = &product->key;
    enum hzp_dtype type = (enum hzp_dtype)k->type;
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    int8_t fast = 1;
    bool ok = good(p, p->MatmulDescCreate(&product->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    if (ok && k->trans_b)
        ok = set(p, product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned));
    if (ok && k->trans_a)
        ok = set(p, product, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof(turned));
    if (ok && k->bias)
        ok = set(p, product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (ok && k->sms)
        ok = set(p, product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &k->sms, sizeof(k->sms));
    if (ok && type == HZP_E4M3)
        ok = scales_describe(p, product);
    if (ok && k->fast)
        ok = set(p, product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
    ok = ok &&
         layout(p, &product->a, type, k->trans_b ? k->n : k->k, k->trans_b ? k->k : k->n, k->ldb);
    ok = ok &&
         layout(p, &product->b, type, k->trans_a ? k->k : k->m, k->trans_a ? k->m : k->k, k->lda);
    return ok && layout(p, &product->c, (enum hzp_dtype)k->type_c, k->m, k->n, k->ldc);
}

/* Asks the library for algorithms, best first; returns how many, 0: it cannot compute the
 * product. */
static int advise(struct hzp_cuda_products *p, const struct product *product, int wanted,
                  cublasLtMatmulHeuristicResult_t *ret)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t wish = NULL;
    uint32_t align = 1u << product->key.align;
    /* Parts of a sum, where a product is cut along k, are not rounded to the type of c. */
    static const uint32_t sums =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    size_t space = (size_t)product->key.space;
    int found = 0, usable = 0;
    if (!good(p, p->MatmulPreferenceCreate(&wish)))
        return 0;
    bool ok = p->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &space, sizeof(space)) == CUBLAS_STATUS_SUCCESS &&
              p->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                              &sums, sizeof(sums)) == CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < HZP_COUNT(aligned); i++)
        ok = ok && p->MatmulPreferenceSetAttribute(wish, aligned[i], &align, sizeof(align)) ==
                       CUBLAS_STATUS_SUCCESS;
    ok =
        ok && good(p, p->MatmulAlgoGetHeuristic(p->handle, product->desc, product->a, product->b,
                                                product->c, product->c, wish, wanted, ret, &found));
    p->MatmulPreferenceDestroy(wish);
    for (int i = 0; ok && i < found; i++)
        if (ret[i].state == CUBLAS_STATUS_SUCCESS)
            ret[usable++] = ret[i];
    return usable;
}

static cublasStatus_t run(struct hzp_cuda_products *p, struct product *product,
                          const struct hzp_matmul_args *a, struct hzp_cuda_lane *lane, void *to)
{
    static const float one = 1, zero = 0;
    return p->Matmul(p->handle, product->desc, &one, a->b.ptr, product->a, a->a.ptr, product->b,
                     a->accumulate ? &one : &zero, a->from.ptr ? a->from.ptr : a->c.ptr, product->c,
                     to, product->c, &product->algo, lane->space, lane->space_size, lane->stream);
}

/* Sets an op's bias and scales; the library also needs them when it is asked for algorithms. */
static bool pointers_set(struct hzp_cuda_products *p, struct product *product,
                         const struct hzp_matmul_args *a)
{
    bool ok = !product->key.bias ||
              set(p, product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias.ptr, sizeof(a->bias.ptr));
    if (ok && a->scale_a)
        ok = set(p, product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a->scale_b,
                 sizeof(a->scale_b)) &&
             set(p, product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a->scale_a, sizeof(a->scale_a));
    return ok;
}

/* Makes the second-level cache what a step finds: the weights are not in it, because those of other
 * layers came between, the activations are, because the op before wrote them.  The lane's memory is
 * larger than the cache (128 MiB; an H100 has 50, a B200 126). */
static bool cool(struct hzp_cuda_products *p, const struct hzp_matmul_args *a,
                 struct hzp_cuda_lane *lane)
{
    size_t elements = (size_t)(a->a.rows - 1) * (size_t)a->a.stride + (size_t)a->a.cols;
    size_t bytes = elements * hzp_dtype_size(a->a.type), hot = HZP_MIN(bytes, lane->scratch_size);
    size_t first = HZP_MIN(p->cache, lane->space_size);
    size_t second = HZP_MIN(p->cache, lane->scratch_size);
    return (!first || cudaMemsetAsync(lane->space, 0, first, lane->stream) == cudaSuccess) &&
           (!second || cudaMemsetAsync(lane->scratch, 0, second, lane->stream) == cudaSuccess) &&
           cudaMemcpyAsync(lane->scratch, a->a.ptr, hot, cudaMemcpyDeviceToDevice, lane->stream) ==
               cudaSuccess;
}

/* Milliseconds of the quickest run, after a warm-up run, each with the weights out of the cache;
 * negative: it does not run. */
static float time_offer(struct hzp_cuda_products *p, struct product *product,
                        const struct hzp_matmul_args *a, struct hzp_cuda_lane *lane, void *to,
                        const cudaEvent_t *event)
{
    float best = -1, ms = -1;
    for (int i = 0; i <= TIMED_RUNS; i++) {
        if (!cool(p, a, lane) || cudaEventRecord(event[0], lane->stream) != cudaSuccess ||
            run(p, product, a, lane, to) != CUBLAS_STATUS_SUCCESS ||
            cudaEventRecord(event[1], lane->stream) != cudaSuccess ||
            cudaEventSynchronize(event[1]) != cudaSuccess ||
            cudaEventElapsedTime(&ms, event[0], event[1]) != cudaSuccess)
            return -1;
        if (i == 1 || (i > 1 && ms < best))
            best = ms;
    }
    return best;
}

/* Finds the quickest algorithm; negative: they cannot be timed.  Sums go to scratch, because
 * accumulating repeatedly would change c. */
static int tune(struct hzp_cuda_products *p, struct product *product,
                const struct hzp_matmul_args *a, struct hzp_cuda_lane *lane,
                const cublasLtMatmulHeuristicResult_t *offer, int offers)
{
    size_t bytes = (size_t)a->c.rows * (size_t)a->c.stride * hzp_dtype_size(a->c.type);
    bool onto = a->accumulate && !a->from.ptr;
    void *to = onto ? lane->scratch : a->c.ptr;
    cudaEvent_t event[2] = {NULL, NULL};
    float best_ms = -1;
    int best = -1;
    if (onto && bytes > lane->scratch_size) {
        hzp_log(HZP_LOG_INFO, "cuda",
                "product of %d x %d x %d is not timed: what it adds to has %zu bytes, and a lane's "
                "memory for sums %zu; the library's advice is used",
                product->key.m, product->key.n, product->key.k, bytes, lane->scratch_size);
        return -1;
    }
    for (int i = 0; i < 2; i++)
        if (cudaEventCreate(&event[i]) != cudaSuccess)
            offers = 0;
    for (int i = 0; i < offers; i++) {
        product->algo = offer[i].algo;
        float ms = time_offer(p, product, a, lane, to, event);
        if (ms >= 0 && (best_ms < 0 || ms < best_ms)) {
            best_ms = ms;
            best = i;
        }
    }
    for (int i = 0; i < 2; i++)
        if (event[i])
            cudaEventDestroy(event[i]);
    return best;
}

/* Takes this algorithm, if the library accepts it for the product.  NULL: there is none. */
static bool take(struct hzp_cuda_products *p, struct product *product,
                 const struct hzp_cuda_algo *entry)
{
    cublasLtMatmulHeuristicResult_t result;
    if (!entry)
        return false;
    _Static_assert(sizeof(product->algo) == sizeof(entry->algo), "as it is kept");
    memcpy(&product->algo, entry->algo, sizeof(product->algo));
    return p->MatmulAlgoCheck(p->handle, product->desc, product->a, product->b, product->c,
                              product->c, &product->algo, &result) == CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= product->key.space;
}

/* Takes an algorithm that is kept: first one timed for this shape.  Where nothing will be timed:
 * one advised for this shape (it may stand for one that failed), else one timed for nearly as many
 * rows.  Rows are k in a gradient of weights, else m. */
static bool kept(struct hzp_cuda_products *p, struct product *product, bool tunes)
{
    const struct key *key = &product->key;
    const struct hzp_cuda_algo *own = hzp_cuda_algos_find(p->algos, key, sizeof(*key));
    if (own && (own->tuned || !tunes) && take(p, product, own))
        return true;
    size_t rows = key->trans_a ? offsetof(struct key, k) : offsetof(struct key, m);
    return !tunes && take(p, product, hzp_cuda_algos_near(p->algos, key, sizeof(*key), rows));
}

static bool choose(struct hzp_cuda_products *p, struct product *product,
                   const struct hzp_matmul_args *a, struct hzp_cuda_lane *lane)
{
    cublasLtMatmulHeuristicResult_t offer[OFFERS];
    bool tunes = (p->tune == TUNE_ALWAYS || (p->tune == TUNE_START && !p->steady)) &&
                 !hzp_cuda_device(&lane->base)->capturing;
    if (kept(p, product, tunes))
        return true;
    int wanted = !tunes ? 1 : product->key.sms ? OFFERS_LIMITED : OFFERS;
    int offers = advise(p, product, wanted, offer);
    if (offers == 0)
        return false;
    int best = offers > 1 ? tune(p, product, a, lane, offer, offers) : 0;
    product->algo = offer[HZP_MAX(best, 0)].algo;
    hzp_cuda_algos_add(p->algos, &product->key, sizeof(product->key), product->algo.data,
                       tunes && best >= 0);
    return true;
}

/* Puts another algorithm in the place of one that failed: the next in the order of the advice;
 * false: there is no other.  It is not timed: a step waits. */
static bool choose_again(struct hzp_cuda_products *p, struct product *product)
{
    cublasLtMatmulHeuristicResult_t offer[OFFERS];
    int offers = advise(p, product, OFFERS, offer), i = 0, next;
    while (i < offers && memcmp(&offer[i].algo, &product->algo, sizeof(product->algo)) != 0)
        i++;
    next = i + 1 < offers ? i + 1 : 0; /* the first, also where the failed one is not advised */
    if (offers == 0 || next == i)
        return false;
    product->algo = offer[next].algo;
    hzp_cuda_algos_add(p->algos, &product->key, sizeof(product->key), product->algo.data, false);
    return true;
}

static uint32_t hash(const struct key *key)
{
    const unsigned char *byte = (const unsigned char *)key;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof(*key); i++)
        h = (h ^ byte[i]) * 16777619u;
    return h;
}

/* What describing a product and choosing its algorithm came to. */
static bool prepare(struct hzp_cuda_products *p, struct product *product,
                    const struct hzp_matmul_args *a, struct hzp_cuda_lane *lane)
{
    return describe(p, product) && pointers_set(p, product, a) && choose(p, product, a, lane);
}

/* The product of this key; NULL: no memory to describe it.  If its set is full, the least recently
 * used one is evicted. */
static struct product *find(struct hzp_cuda_products *p, const struct key *key,
                            const struct hzp_matmul_args *a, struct hzp_cuda_lane *lane)
{
    struct product *set = p->table[hash(key) % SETS], *oldest = &set[0];
    for (int i = 0; i < WAYS; i++) {
        if (set[i].used && memcmp(&set[i].key, key, sizeof(*key)) == 0) {
            set[i].last = ++p->clock;
            return &set[i];
        }
        if (set[i].last < oldest->last)
            oldest = &set[i];
    }
    if (oldest->used)
        product_clear(p, oldest);
    oldest->key = *key;
    oldest->used = true;
    oldest->last = ++p->clock;
    p->starved = false;
    oldest->refused = !prepare(p, oldest, a, lane);
    if (!oldest->refused || !p->starved)
        return oldest;
    product_clear(p, oldest);
    return NULL;
}

static unsigned align_of(const struct hzp_mat *mat)
{
    size_t bits =
        (size_t)(uintptr_t)mat->ptr | (size_t)mat->stride * hzp_dtype_size(mat->type) | 16;
    return (unsigned)__builtin_ctzll(bits);
}

static struct key key_of(const struct hzp_matmul_args *a, const struct hzp_cuda_lane *lane)
{
    struct key key;
    memset(&key, 0, sizeof(key));
    unsigned align_a = align_of(&a->a), align_b = align_of(&a->b), align_c = align_of(&a->c);
    unsigned align = HZP_MIN(align_a, HZP_MIN(align_b, align_c));
    if (a->from.ptr) { /* described as c is: only its place differs */
        unsigned align_from = align_of(&a->from);
        align = HZP_MIN(align, align_from);
    }
    key.m = a->c.rows;
    key.n = a->c.cols;
    key.k = a->trans_a ? a->a.rows : a->a.cols;
    key.lda = a->a.stride;
    key.ldb = a->b.stride;
    key.ldc = a->c.stride;
    key.type = (uint8_t)a->a.type;
    key.type_c = (uint8_t)a->c.type;
    key.trans_a = a->trans_a != 0;
    key.trans_b = a->trans_b != 0;
    key.bias = a->bias.ptr != NULL;
    key.align = (uint8_t)align;
    key.fast = a->a.type == HZP_E4M3 && hzp_cuda_device((struct hzp_lane *)lane)->products->fast;
    key.space = lane->space_size;
    key.sms = hzp_cuda_limit((struct hzp_lane *)lane);
    return key;
}

/* Whether the library's alignment rules are met: a bias has c's type (BF16 for E4M3) and is
 * aligned; for E4M3 all operands are aligned to 16 bytes. */
static bool library_fits(const struct hzp_matmul_args *a)
{
    if (a->bias.ptr && (a->c.type != a->bias.type || (uintptr_t)a->bias.ptr % 16 != 0))
        return false;
    if (a->a.type != HZP_E4M3)
        return true;
    return hzp_cuda_e4m3_fits(a) && align_of(&a->c) == 4 && a->c.cols % 16 == 0 &&
           (!a->bias.ptr || a->bias.type == HZP_BF16) && (uintptr_t)a->scale_a % 16 == 0 &&
           (uintptr_t)a->scale_b % 16 == 0;
}

/* Runs the product.  HZP_ENOENT: the library cannot compute it, or its algorithms fail; HZP_ENOMEM:
 * it has no memory for it now. */
static int attempt(struct hzp_lane *base, struct product *product, const struct hzp_matmul_args *a,
                   void *to)
{
    struct hzp_cuda_products *p = hzp_cuda_device(base)->products;
    for (;;) {
        cublasStatus_t status = run(p, product, a, hzp_cuda_lane(base), to);
        if (status == CUBLAS_STATUS_SUCCESS) {
            product->failures = 0;
            return HZP_OK;
        }
        HZP_TRY(hzp_cuda_launched(base, "matmul"));
        if (status == CUBLAS_STATUS_ALLOC_FAILED) /* it is asked again for the next one */
            return HZP_ENOMEM;
        product->refused =
            status == CUBLAS_STATUS_NOT_SUPPORTED || ++product->failures == FAILURES_MAX;
        if (product->refused || !choose_again(p, product))
            return HZP_ENOENT;
        hzp_log(HZP_LOG_WARN, "cuda",
                "product of %d x %d x %d: its algorithm failed (%d), another one is tried",
                product->key.m, product->key.n, product->key.k, (int)status);
    }
}

/* Computes the product without the library, and counts that.  If our kernel would take too long:
 * HZP_ENOMEM where the library lacks memory, else HZP_EUNSUP. */
static int by_ourselves(struct hzp_lane *lane, const struct hzp_matmul_args *a, const char *reason)
{
    int32_t m = a->c.rows, n = a->c.cols, k = a->trans_a ? a->a.rows : a->a.cols;
    hzp_device_fallback(lane->dev, HZP_FALLBACK_product, m, n, k, reason);
    if (hzp_cuda_e4m3_fits(a))
        return hzp_cuda_matmul_e4m3(lane, a);
    if ((int64_t)m * n > PLAIN_MAX / HZP_MAX(k, 1)) {
        bool memory = reason == out_of_memory;
        hzp_log(HZP_LOG_ERROR, "cuda", "product of %d x %d x %d: %s%s", m, n, k, reason,
                memory ? "" : ", and it is too large for ours");
        return memory ? HZP_ENOMEM : HZP_EUNSUP;
    }
    return hzp_cuda_matmul_plain(lane, a);
}

/* Where the library does not write or add to F32 (some versions have no such algorithm of e4m3 for
 * a shape): it writes BF16 into the lane's memory, and a kernel adds that.  HZP_ENOENT: it cannot
 * do that either; HZP_ENOMEM: it has no memory for it now. */
static int by_half(struct hzp_lane *base, const struct hzp_matmul_args *a)
{
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_products *p = hzp_cuda_device(base)->products;
    int32_t rows = a->c.rows, cols = a->c.cols;
    struct hzp_matmul_args half = *a;
    if (a->a.type != HZP_E4M3 || a->c.type != HZP_F32 || a->a.cols == 0 ||
        (size_t)rows * (size_t)cols * sizeof(uint16_t) > lane->scratch_size)
        return HZP_ENOENT;
    half.c = (struct hzp_mat){lane->scratch, rows, cols, cols, HZP_BF16};
    half.from = (struct hzp_mat){0};
    half.accumulate = 0;
    if (!library_fits(&half))
        return HZP_ENOENT;
    struct key key = key_of(&half, lane);
    struct product *product = find(p, &key, &half, lane);
    if (!product)
        return HZP_ENOMEM;
    if (product->refused || !pointers_set(p, product, &half))
        return HZP_ENOENT;
    HZP_TRY(attempt(base, product, &half, half.c.ptr));
    return hzp_cuda_add_half(base, &half.c, a);
}

/* The library has no algorithm of its own for the product as it is. */
static int otherwise(struct hzp_lane *base, const struct hzp_matmul_args *a, const char *reason)
{
    int r = by_half(base, a);
    if (r == HZP_ENOMEM)
        return by_ourselves(base, a, out_of_memory);
    return r == HZP_ENOENT ? by_ourselves(base, a, reason) : r;
}

int hzp_cuda_matmul(struct hzp_lane *base, const void *args)
{
    const struct hzp_matmul_args *a = args;
    struct hzp_cuda_lane *lane = hzp_cuda_lane(base);
    struct hzp_cuda_products *p = hzp_cuda_device(base)->products;
    if (a->c.rows == 0 || a->c.cols == 0)
        return HZP_OK;
    if (hzp_cuda_few_fits(a))
        return hzp_cuda_matmul_few(base, a);
    if (a->c.rows <= FEW_E4M3 && hzp_cuda_e4m3_fits(a))
        return hzp_cuda_matmul_e4m3(base, a);
    struct key key = key_of(a, lane);
    if (key.k <= 0)
        return hzp_cuda_matmul_plain(base, a); /* an empty sum */
    if (!library_fits(a))
        return by_ourselves(base, a, "the library cannot take its types or alignment");
    struct product *product = find(p, &key, a, lane);
    if (!product)
        return by_ourselves(base, a, out_of_memory);
    if (product->refused)
        return otherwise(base, a, "the library has no algorithm");
    if (!pointers_set(p, product, a))
        return HZP_EDEVICE;
    int r = attempt(base, product, a, a->c.ptr);
    if (r == HZP_ENOMEM)
        return by_ourselves(base, a, out_of_memory);
    return r == HZP_ENOENT ? otherwise(base, a, "the library did not run it") : r;
}

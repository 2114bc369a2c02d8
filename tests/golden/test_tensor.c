/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: logits, losses, gradients and updates of 2 and 4 ranks that compute each
 * product together, against the golden numbers and against one rank; greedy texts of a trained
 * model.
 *
 *     test_tensor BACKEND WORLD DIR...        ranks are threads of this process
 *     test_tensor BACKEND mpi WORLD DIR...    this process is a rank of mpirun's
 *
 * WORLD is a model that was trained.  The golden models have 2 to 4 heads and 1 or 2 key-value
 * heads: each is widened to 4 of each by heads that add nothing and by copies of key-value heads,
 * which leaves its function, and so logits and losses, as they are.
 */
#include "base/log.h"
#include "device/link.h"
#include "tests/golden/golden.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

#include <ftw.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS_MAX = 4, HEADS = 4, TEXT = 40, PROMPT = 12 };

/* What one rank computes. */
struct alone {
    double logits_worst;
    int32_t text[TEXT];
    struct hzp_layout layout;
    struct hzp_units grads; /* of the whole model, F32 */
};

struct rank {
    const char *backend, *dir;
    struct hzp_link *link;
    enum hzp_dtype type;
    const struct alone *alone;
    bool golden; /* the directory is golden as it is: gradients and updates are, too */
    bool numbers;
    bool shaped; /* plans of several nano-batches and lanes, too */
    int failures;
};

/* --- The widened model ------------------------------------------------------------------------ */

static char scratch[64];

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    return remove(path);
}

static void must(const char *what, int r)
{
    if (r >= 0)
        return;
    fprintf(stderr, "%s: %s %s\n", what, hzp_err_name(r), text.text);
    exit(1);
}

/* Copies `rows` heads of dim rows each, of the tensor's rows from row0 on: head h of the new matrix
 * is head from[h] of the old one; -1: zeros, which a new matrix holds already. */
static void copy_heads(struct hzp_mat to, int32_t to_row, struct hzp_mat old, int32_t old_row,
                       int32_t dim, const int32_t *from)
{
    for (int32_t h = 0; h < HEADS; h++)
        for (int32_t r = 0; r < dim && from[h] >= 0; r++)
            memcpy((float *)to.ptr + (size_t)(to_row + h * dim + r) * (size_t)to.cols,
                   (const float *)old.ptr +
                       (size_t)(old_row + from[h] * dim + r) * (size_t)old.cols,
                   (size_t)old.cols * sizeof(float));
}

/* Vectors of q, k, v as matrices of one column. */
static struct hzp_mat as_rows(struct hzp_mat m)
{
    return m.rows == 1 ? (struct hzp_mat){m.ptr, m.cols, 1, 1, m.type} : m;
}

static void widen_tensor(const struct hzp_units *to, const struct hzp_units *old,
                         const struct hzp_tensor *t)
{
    struct hzp_heads heads = old->layout->config.heads;
    struct hzp_mat a = hzp_units_mat(to, t->role, t->layer);
    struct hzp_mat b = hzp_units_mat(old, t->role, t->layer);
    int32_t q[HEADS], kv[HEADS], dim = heads.dim;
    for (int32_t h = 0; h < HEADS; h++) {
        q[h] = h < heads.heads ? h : -1;
        kv[h] = h < heads.heads ? h / (heads.heads / heads.kv_heads) : -1;
    }
    if (t->role == HZP_QKV || t->role == HZP_QKV_BIAS) {
        a = as_rows(a);
        b = as_rows(b);
        copy_heads(a, 0, b, 0, dim, q);
        copy_heads(a, HEADS * dim, b, heads.heads * dim, dim, kv);
        copy_heads(a, 2 * HEADS * dim, b, (heads.heads + heads.kv_heads) * dim, dim, kv);
    } else if (t->role == HZP_O) {
        for (int32_t r = 0; r < a.rows; r++)
            memcpy((float *)a.ptr + (size_t)r * (size_t)a.cols,
                   (const float *)b.ptr + (size_t)r * (size_t)b.cols,
                   (size_t)b.cols * sizeof(float));
    } else {
        memcpy(a.ptr, b.ptr, (size_t)a.rows * (size_t)a.cols * sizeof(float));
    }
}

static void write_config(const char *from, const char *to, const struct hzp_model_config *c)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/config.json", from);
    json_t *root = json_load_file(path, 0, NULL);
    HZP_ASSERT(root);
    json_object_set_new(root, "num_attention_heads", json_integer(HEADS));
    json_object_set_new(root, "num_key_value_heads", json_integer(HEADS));
    json_object_set_new(root, "head_dim", json_integer(c->heads.dim));
    snprintf(path, sizeof(path), "%s/config.json", to);
    HZP_ASSERT(json_dump_file(root, path, 0) == 0);
    json_decref(root);
}

/* Writes the same function with 4 heads and 4 key-value heads to scratch/wide, with links to the
 * golden numbers. */
static void widen(const char *dir, char *ret, size_t size)
{
    struct hzp_model_config c;
    struct hzp_layout old_layout, layout;
    must("config.json", hzp_config_read(dir, &c, &text));
    HZP_ASSERT(c.heads.heads <= HEADS && HEADS % c.heads.kv_heads == 0);
    hzp_layout_make(&c, &old_layout);
    snprintf(ret, size, "%s/wide", scratch);
    mkdir(ret, 0777);
    write_config(dir, ret, &c);
    must("config.json", hzp_config_read(ret, &c, &text));
    hzp_layout_make(&c, &layout);
    struct hzp_units old = fixture_units(&old_layout, HZP_F32);
    struct hzp_units wide = fixture_units(&layout, HZP_F32);
    must("the weights", hzp_model_load(dir, NULL, &old, NULL, &text));
    for (int32_t i = 0; i < layout.tensors; i++)
        widen_tensor(&wide, &old, &layout.tensor[i]);
    must("the wide model", hzp_model_save(ret, NULL, &wide, ret, &text));
    static const char *const names[] = {"golden.json", "golden.safetensors"};
    for (int i = 0; i < HZP_COUNT(names); i++) {
        char from[600], to[600], *real;
        snprintf(from, sizeof(from), "%s/%s", dir, names[i]);
        snprintf(to, sizeof(to), "%s/%s", ret, names[i]);
        unlink(to);
        if ((real = realpath(from, NULL)))
            HZP_ASSERT(symlink(real, to) == 0);
        free(real);
    }
    fixture_units_free(&old);
    fixture_units_free(&wide);
    hzp_layout_free(&old_layout);
    hzp_layout_free(&layout);
}

/* --- What is computed ------------------------------------------------------------------------- */

/* A prompt, then greedy tokens, by the sample op. */
static void write_text(struct fixture *f, int32_t *ret)
{
    struct hzp_batch_config max = {
        .rows_max = PROMPT, .segs_max = 1, .page_stride = PAGES, .logits_max = 1, .edits_max = 1};
    const struct hzp_model_config *c = &f->m.layout.config;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_kv kv[16];
    size_t page =
        (size_t)c->heads.kv_heads * PAGE_ROWS * (size_t)c->heads.dim * hzp_dtype_size(f->type);
    HZP_ASSERT(c->layers <= HZP_COUNT(kv));
    MUST(hzp_batch_create(f->m.dev, &max, &batch));
    MUST(hzp_serve_space_create(f->m.model, PROMPT, 1, &space));
    for (int32_t l = 0; l < c->layers; l++) {
        kv[l] = (struct hzp_kv){NULL, NULL, PAGES, PAGE_ROWS, f->type, NULL, NULL};
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].k));
        MUST(hzp_device_alloc(f->m.dev, HZP_MEM_DEVICE, PAGES * page, &kv[l].v));
    }
    for (int32_t i = 0, pos = 0; i < TEXT; i++) {
        hzp_batch_clear(batch);
        int32_t rows = i ? 1 : PROMPT;
        int32_t *pages = hzp_batch_add_segment(batch, pos, i > 0);
        for (int32_t p = 0; p < HZP_DIV_UP(pos + rows, PAGE_ROWS); p++)
            pages[p] = PAGES - 1 - p;
        for (int32_t r = 0; r < rows; r++, pos++)
            hzp_batch_add_row(batch, i ? ret[i - 1] : (7 * r + 3) % c->vocab,
                              pages[pos / PAGE_ROWS] * PAGE_ROWS + pos % PAGE_ROWS);
        hzp_batch_add_logits(batch, rows - 1);
        batch->sample[0] = (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
        hzp_forward_build(&f->plan, f->m.model, hzp_weights_current(f->m.weights), batch, kv, space,
                          NULL);
        run(f);
        ret[i] = batch->token[0];
    }
    for (int32_t l = 0; l < c->layers; l++) {
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].k);
        hzp_device_free(f->m.dev, HZP_MEM_DEVICE, kv[l].v);
    }
    hzp_serve_space_destroy(space);
    hzp_batch_destroy(batch);
}

static void run_golden_batch(struct fixture *f)
{
    fill_micro(f, at(at(f->numbers, "batches"), "a"));
    double limit = f->type == HZP_F32 ? loss_max : 0.02;
    double loss = run_micro(f, true) / f->micro->learned;
    check(f, "loss", fabs(loss - number(f->numbers, "loss")), limit);
    finish_grads(f);
}

static const struct hzp_plan_shape shapes[] = {
    {.nanos = 2, .weight = {1, 1}, .order = HZP_ORDER_LAYERS, .network_lane = HZP_LANE_NETWORK},
    {.nanos = 1, .weight = {1}, .reduce = {HZP_REDUCE_SCATTERED}},
    {.nanos = 3,
     .weight = {3, 2, 2},
     .order = HZP_ORDER_LAYERS,
     .network_lane = HZP_LANE_NETWORK,
     .reduce = {HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED}},
    {.nanos = 3,
     .weight = {2, 2, 3},
     .order = HZP_ORDER_LAYERS,
     .network_lane = HZP_LANE_NETWORK,
     .reduce = {HZP_REDUCE_ALL, HZP_REDUCE_SCATTERED, HZP_REDUCE_ALL}},
    /* queries, keys, values and attention in four parts, the rest in two, as NanoFlow cuts them */
    {.nanos = 4,
     .weight = {1, 2, 1, 1},
     .order = HZP_ORDER_LAYERS,
     .joined = {[HZP_STAGE_REST] = 5, [HZP_STAGE_EXCHANGE] = 5},
     .network_lane = HZP_LANE_NETWORK},
    /* attention of everything at once, exchanges finer than products */
    {.nanos = 3,
     .weight = {1, 2, 2},
     .order = HZP_ORDER_SKEWED,
     .joined = {[HZP_STAGE_ATTEND] = 3, [HZP_STAGE_REST] = 2},
     .lane = {{[HZP_KIND_DECODE] = HZP_LANE_MEMORY, [HZP_KIND_PREFILL] = HZP_LANE_MEMORY}},
     .network_lane = HZP_LANE_NETWORK},
    /* divided rows, and attention cut in its own way */
    {.nanos = 4,
     .weight = {2, 2, 2, 2},
     .order = HZP_ORDER_LAYERS,
     .joined = {[HZP_STAGE_QKV] = 5,
                [HZP_STAGE_ATTEND] = 2,
                [HZP_STAGE_REST] = 5,
                [HZP_STAGE_EXCHANGE] = 5},
     .network_lane = HZP_LANE_NETWORK,
     .reduce = {HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED,
                HZP_REDUCE_SCATTERED}},
    {.nanos = 2,
     .weight = {1, 1},
     .order = HZP_ORDER_SKEWED,
     .lane = {{[HZP_KIND_DECODE] = HZP_LANE_MEMORY, [HZP_KIND_PREFILL] = HZP_LANE_MEMORY},
              {[HZP_KIND_DECODE] = HZP_LANE_MEMORY, [HZP_KIND_PREFILL] = HZP_LANE_MEMORY}},
     .network_lane = HZP_LANE_NETWORK},
};

static void run_alone(const char *backend, const char *dir, enum hzp_dtype type, bool numbers,
                      struct alone *ret)
{
    struct fixture one = {.dir = dir, .type = type, .logits_max = type == HZP_F32 ? 0 : 1};
    struct fixture *f = &one;
    memset(ret, 0, sizeof(*ret));
    if (numbers)
        set_up(f, backend);
    else
        open_model(f, backend);
    write_text(f, ret->text);
    if (numbers) {
        test_logits(f);
        run_golden_batch(f);
        ret->grads = fixture_units_read(f->m.dev, hzp_train_space_grads(f->space));
    }
    ret->logits_worst = f->logits_worst;
    hzp_layout_make(&f->m.layout.config, &ret->layout);
    ret->grads.layout = &ret->layout;
    HZP_ASSERT(f->failures == 0);
    tear_down(f);
}

static void alone_free(struct alone *alone)
{
    if (alone->grads.base)
        fixture_units_free(&alone->grads);
    hzp_layout_free(&alone->layout);
}

/* This rank's gradients against its slice of one rank's: |a - b| / |b| over all of a unit, which
 * the rounding of partial sums to bf16 moves more than any single bound on elements would allow. */
static void compare_grads(struct fixture *f, const struct alone *alone)
{
    struct hzp_units mine = fixture_units_read(f->m.dev, hzp_train_space_grads(f->space));
    double limit = f->type == HZP_F32 ? 1e-4 : 0.05, worst = 0;
    for (int32_t u = 0; u < f->m.layout.units; u++) {
        size_t n = f->m.layout.unit[u].elements;
        float *cut = hzp_xmalloc(n * sizeof(*cut));
        const float *got = hzp_unit_view(&mine, u).base;
        double apart = 0, all = 0;
        hzp_tensor_slice_cut(&alone->layout, &f->m.layout, u, sizeof(float),
                             hzp_unit_view(&alone->grads, u).base, cut);
        for (size_t i = 0; i < n; i++) {
            double off = (double)got[i] - (double)cut[i];
            apart += off * off;
            all += (double)cut[i] * (double)cut[i];
        }
        double off = sqrt(apart / fmax(all, 1e-30));
        worst = off > worst || isnan(off) ? off : worst;
        free(cut);
    }
    check(f, "gradients against one rank's", worst, limit);
    fixture_units_free(&mine);
}

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    /* Sums of parts are rounded in another order than one rank's are. */
    double bound = rank->type == HZP_F32 ? 0 : 2 * rank->alone->logits_worst + 1e-3;
    struct fixture mine = {
        .dir = rank->dir, .type = rank->type, .logits_max = bound, .tensor = rank->link};
    mine.threads = rank->shaped ? 3 : 1;
    struct fixture *f = &mine;
    int32_t got[TEXT];
    if (rank->numbers)
        set_up(f, rank->backend);
    else
        open_model(f, rank->backend);
    write_text(f, got);
    int32_t same = 0;
    while (same < TEXT && got[same] == rank->alone->text[same])
        same++;
    if (rank->type == HZP_F32 || !rank->numbers) /* bf16 and random weights: ties are common */
        check(f, "tokens of a greedy text that differ", TEXT - same, 0);
    if (rank->numbers) {
        test_logits(f);
        for (int i = 0; i < HZP_COUNT(shapes) && rank->shaped; i++) {
            f->shape = &shapes[i];
            test_logits(f);
        }
        f->shape = NULL;
        run_golden_batch(f);
        compare_grads(f, rank->alone);
        if (rank->golden && rank->type == HZP_F32) {
            test_gradients(f);
            test_updates(f);
        }
    }
    rank->failures = f->failures;
    tear_down(f);
    return NULL;
}

/* --- Ranks ------------------------------------------------------------------------------------ */

struct run {
    const char *backend;
    struct hzp_link *mpi; /* NULL: threads */
    int ranks;
};

static int run_ranks_of(const struct run *run, struct rank *job)
{
    struct hzp_link *link[RANKS_MAX];
    struct rank rank[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    int failures = 0;
    if (run->mpi) {
        job->link = run->mpi;
        run_rank(job);
        return job->failures;
    }
    must("a link", hzp_link_open_local(run->ranks, 0, 1, link, &text));
    for (int r = 0; r < run->ranks; r++) {
        rank[r] = *job;
        rank[r].link = link[r];
        HZP_ASSERT(pthread_create(&thread[r], NULL, run_rank, &rank[r]) == 0);
    }
    for (int r = 0; r < run->ranks; r++) {
        pthread_join(thread[r], NULL);
        failures += rank[r].failures;
    }
    for (int r = 0; r < run->ranks; r++)
        hzp_link_close(link[r]);
    return failures;
}

static int test_dir(const struct run *run, const char *dir, enum hzp_dtype type, bool numbers)
{
    struct hzp_model_config c;
    struct alone alone;
    char wide[128];
    must("config.json", hzp_config_read(dir, &c, &text));
    bool golden = c.heads.heads % run->ranks == 0 && c.heads.kv_heads % run->ranks == 0;
    widen(dir, wide, sizeof(wide));
    int failures = 0;
    for (int as_it_is = 0; as_it_is <= golden; as_it_is++) {
        const char *which = as_it_is ? dir : wide;
        run_alone(run->backend, which, type, numbers, &alone);
        struct rank job = {.backend = run->backend,
                           .dir = which,
                           .type = type,
                           .alone = &alone,
                           .golden = as_it_is,
                           .shaped = numbers && !as_it_is,
                           .numbers = numbers};
        failures += run_ranks_of(run, &job);
        alone_free(&alone);
    }
    printf("%s %s %s on %d ranks of %s%s\n", failures ? "FAIL" : "ok  ", dir,
           type == HZP_F32 ? "f32" : "bf16", run->ranks, run->backend,
           golden ? ", as it is too" : "");
    return failures;
}

static bool bf16_exact(const char *dir)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/golden.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    bool exact = json_is_true(json_object_get(root, "bf16_exact"));
    json_decref(root);
    return exact;
}

static int test_all(const struct run *run, const char *world, int dirs, char **dir)
{
    int failures = 0;
    for (int i = 0; i < dirs; i++) {
        failures += test_dir(run, dir[i], HZP_F32, true);
        if (bf16_exact(dir[i]))
            failures += test_dir(run, dir[i], HZP_BF16, true);
    }
    failures += test_dir(run, world, HZP_F32, false);
    failures += test_dir(run, world, HZP_BF16, false);
    return failures;
}

/* What cannot be cut is refused by its number. */
static int test_refused(const char *dir)
{
    struct hzp_model_config c;
    must("config.json", hzp_config_read(dir, &c, &text));
    int r = hzp_tensor_slice_check(&c, 3, &text);
    bool ok = r == HZP_EINVAL && strstr(text.text, "3 ranks") && strstr(text.text, ", 4");
    printf("%s %s\n", ok ? "ok  " : "FAIL", text.text);
    return !ok;
}

int main(int argc, char **argv)
{
    bool mpi = argc > 2 && !strcmp(argv[2], "mpi");
    int failures = 0;
    hzp_log_init();
    if (argc < 4 + mpi) {
        fprintf(stderr, "usage: test_tensor BACKEND [mpi] WORLD DIR...\n");
        return 2;
    }
    snprintf(scratch, sizeof(scratch), "/tmp/hzp-tensor-XXXXXX");
    HZP_ASSERT(mkdtemp(scratch));
    char **rest = argv + 2 + mpi;
    if (mpi) {
        struct run run = {.backend = argv[1]};
        must("a link", hzp_link_open_mpi(&(struct hzp_link_mpi){0}, &run.mpi, &text));
        run.ranks = hzp_link_ranks(run.mpi);
        failures += test_all(&run, rest[0], argc - 3 - mpi, rest + 1);
        hzp_link_close(run.mpi);
    } else {
        failures += test_refused(rest[0]);
        for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2)
            failures += test_all(&(struct run){.backend = argv[1], .ranks = ranks}, rest[0],
                                 argc - 3, rest + 1);
    }
    nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failures ? 1 : 0;
}

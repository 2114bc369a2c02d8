/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: logits, losses, gradients and updates of 2 and 4 ranks that compute each
 * product together, against the golden numbers and against one rank; what a reference says of
 * trained models, texts and losses.
 *
 *     test_tensor BACKEND WORLD EXPECTED DIR...        ranks are threads of this process
 *     test_tensor BACKEND mpi WORLD EXPECTED DIR...    this process is a rank of mpirun's
 *
 * WORLD is a model that was trained, EXPECTED a reference's answers of it, DIR a golden directory,
 * or a trained model with such answers in its expected.json.  The golden models have 2 to 4 heads
 * and 1 or 2 key-value heads: each is widened to 4 of each by heads that add nothing and by copies
 * of key-value heads, which leaves its function, and so logits and losses, as they are.
 *
 * In bf16 the golden numbers hold to one rank's distance from them.  One rank of the same type is
 * nearer: its logits, loss and gradients are compared, too.
 */
#include "base/log.h"
#include "tests/links/links.h"
#include "tests/golden/reference.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

#include <ftw.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS_MAX = 4, HEADS = 4, TEXT = 40, PROMPT = 12, UPDATES = 10 };
enum { POSITIONS = 512 };

/* What one rank computes. */
struct alone {
    double logits_worst;
    double *logits; /* of the prefill, [ROWS_MAX][vocab] */
    double loss;
    int32_t text[TEXT];
    struct hzp_layout layout;
    struct hzp_units grads; /* of the whole model, F32 */
    struct golden_update update[UPDATES];
    struct hzp_units after; /* F32: the parameters after the updates */
};

struct rank {
    const char *backend, *dir;
    struct hzp_link *link;
    enum hzp_dtype type;
    const struct alone *alone;
    bool golden;          /* the directory is golden as it is: gradients and updates are, too */
    const char *expected; /* what a reference says of it; NULL: none does */
    bool numbers;
    bool shaped; /* plans of several nano-batches and lanes, too */
    bool fp8;    /* only logits, of products with e4m3 */
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

/* A made-up prompt, then greedy tokens. */
static void write_made_up(struct fixture *f, int32_t *ret)
{
    int32_t prompt[PROMPT], vocab = f->m.layout.config.vocab;
    for (int32_t r = 0; r < PROMPT; r++)
        prompt[r] = (7 * r + 3) % vocab;
    write_text(f, &(struct golden_text){
                      .prompt = prompt, .prompt_count = PROMPT, .count = TEXT, .token = ret});
}

/* alone NULL: this is one rank. */
static double run_golden_batch(struct fixture *f, const struct alone *alone)
{
    fill_micro(f, at(at(f->numbers, "batches"), "a"));
    /* In F32 the ranks' sums of one half go beside the other half's products. */
    if (f->m.model->tensor && f->type == HZP_F32)
        hzp_micro_halve(f->micro);
    double limit = f->type == HZP_F32 ? loss_max : 0.02;
    double loss = run_micro(f, true) / f->micro->learned;
    check(f, "loss", fabs(loss - number(f->numbers, "loss")), limit);
    if (alone)
        check(f, "loss against one rank's", fabs(loss - alone->loss),
              f->type == HZP_F32 ? loss_max : 0.002);
    finish_grads(f);
    return loss;
}

/* The ten updates of the golden numbers, of a model that they are not of: its copies of heads learn
 * each for itself.  Until then it is the same function. */
static void run_updates(struct fixture *f, struct golden_update *ret)
{
    json_t *updates = at(f->numbers, "updates"), *steps = at(updates, "steps");
    HZP_ASSERT(json_array_size(steps) == UPDATES);
    for (int32_t i = 0; i < UPDATES; i++)
        ret[i] = run_update(f, updates, json_array_get(steps, (size_t)i), i + 1);
    check(f, "loss of the first update",
          fabs(ret[0].loss - number(json_array_get(steps, 0), "loss")), loss_max);
}

static struct hzp_units parameters(struct fixture *f)
{
    return fixture_units_read(f->m.dev,
                              hzp_version_units(f->m.weights, hzp_weights_current(f->m.weights)));
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

static void reference(struct fixture *f, const char *expected)
{
    json_t *root = json_load_file(expected, 0, NULL);
    if (!root) {
        fprintf(stderr, "%s: cannot be read\n", expected);
        exit(1);
    }
    test_reference(f, root);
    json_decref(root);
}

static void run_alone(const char *backend, const struct rank *job, struct alone *ret)
{
    struct fixture one = {.dir = job->dir,
                          .type = job->type,
                          .fp8 = job->fp8,
                          .logits_max = job->fp8               ? 10
                                        : job->type == HZP_F32 ? 0
                                                               : 1,
                          .positions = POSITIONS};
    struct fixture *f = &one;
    memset(ret, 0, sizeof(*ret));
    if (job->numbers)
        set_up(f, backend);
    else
        open_model(f, backend);
    size_t vocab = (size_t)f->m.layout.config.vocab;
    f->logits_kept = ret->logits = hzp_xcalloc(ROWS_MAX * vocab, sizeof(*ret->logits));
    hzp_layout_make(&f->m.layout.config, &ret->layout);
    write_made_up(f, ret->text);
    if (job->expected)
        reference(f, job->expected);
    if (job->numbers)
        test_logits(f);
    if (job->numbers && !job->fp8) {
        ret->loss = run_golden_batch(f, NULL);
        ret->grads = fixture_units_read(f->m.dev, hzp_train_space_grads(f->space));
        ret->grads.layout = &ret->layout;
    }
    if (job->numbers && job->type == HZP_F32 && !job->fp8) {
        run_updates(f, ret->update);
        ret->after = parameters(f);
        ret->after.layout = &ret->layout;
    }
    ret->logits_worst = f->logits_worst;
    HZP_ASSERT(f->failures == 0);
    tear_down(f);
}

static void alone_free(struct alone *alone)
{
    fixture_units_free(&alone->grads);
    fixture_units_free(&alone->after);
    hzp_layout_free(&alone->layout);
    free(alone->logits);
}

/* How far this rank's elements are from its slice of the whole model's: |a - b| / |b| over all of a
 * unit, and |a - b| of one element; the largest. */
struct distance {
    double unit, element;
};

static struct distance apart_from(struct fixture *f, const struct hzp_layout *layout,
                                  struct hzp_units mine, const struct hzp_units *whole)
{
    struct distance worst = {0};
    for (int32_t u = 0; u < f->m.layout.units; u++) {
        size_t n = f->m.layout.unit[u].elements;
        float *cut = hzp_xmalloc(n * sizeof(*cut));
        const float *got = hzp_unit_view(&mine, u).base;
        double apart = 0, all = 0;
        hzp_tensor_slice_cut(layout, &f->m.layout, u, sizeof(float), hzp_unit_view(whole, u).base,
                             cut);
        for (size_t i = 0; i < n; i++) {
            double off = fabs((double)got[i] - (double)cut[i]);
            worst.element = off > worst.element || isnan(off) ? off : worst.element;
            apart += off * off;
            all += (double)cut[i] * (double)cut[i];
        }
        double off = sqrt(apart / fmax(all, 1e-30));
        worst.unit = off > worst.unit || isnan(off) ? off : worst.unit;
        free(cut);
    }
    fixture_units_free(&mine);
    return worst;
}

/* This rank's gradients against its slice of one rank's, over all of a unit: the rounding of
 * partial sums to bf16 moves single elements more than any bound on them would allow. */
static void compare_grads(struct fixture *f, const struct alone *alone)
{
    struct hzp_units mine = fixture_units_read(f->m.dev, hzp_train_space_grads(f->space));
    check(f, "gradients against one rank's",
          apart_from(f, &alone->layout, mine, &alone->grads).unit,
          f->type == HZP_F32 ? 1e-4 : 0.05);
}

static void compare_updates(struct fixture *f, const struct alone *alone)
{
    struct golden_update got[UPDATES];
    run_updates(f, got);
    for (int i = 0; i < UPDATES; i++)
        check_update(f, got[i], alone->update[i]);
    check(f, "parameters after the updates against one rank's",
          apart_from(f, &alone->layout, parameters(f), &alone->after).element, param_max);
}

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    /* Sums of parts are rounded in another order than one rank's are. */
    bool exact = rank->type == HZP_F32 && !rank->fp8;
    double bound = exact ? 0 : 2 * rank->alone->logits_worst + 1e-3;
    struct fixture mine = {.dir = rank->dir,
                           .type = rank->type,
                           .fp8 = rank->fp8,
                           .logits_max = bound,
                           .tensor = rank->link};
    mine.threads = rank->shaped ? 3 : 1;
    mine.positions = POSITIONS;
    mine.logits_like = rank->alone->logits;
    struct fixture *f = &mine;
    int32_t got[TEXT];
    if (rank->numbers)
        set_up(f, rank->backend);
    else
        open_model(f, rank->backend);
    write_made_up(f, got);
    int32_t same = 0;
    while (same < TEXT && got[same] == rank->alone->text[same])
        same++;
    if (exact || !rank->numbers) /* bf16 and random weights: ties are common */
        check(f, "tokens of a greedy text that differ", TEXT - same, 0);
    if (rank->expected)
        reference(f, rank->expected);
    if (rank->numbers) {
        test_logits(f);
        for (int i = 0; i < HZP_COUNT(shapes) && rank->shaped; i++) {
            f->shape = &shapes[i];
            test_logits(f);
        }
        f->shape = NULL;
        check(f, "logits against one rank's", f->apart,
              rank->fp8               ? bound
              : rank->type == HZP_F32 ? 2e-5
                                      : 0.02);
    }
    if (rank->numbers && !rank->fp8) {
        run_golden_batch(f, rank->alone);
        compare_grads(f, rank->alone);
        if (rank->golden && rank->type == HZP_F32) {
            test_gradients(f);
            test_updates(f);
        } else if (rank->type == HZP_F32) {
            compare_updates(f, rank->alone);
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

/* expected: of a trained model, what a reference says of it; NULL: the golden numbers do. */
static int test_dir(const struct run *run, const char *dir, enum hzp_dtype type,
                    const char *expected)
{
    struct hzp_model_config c;
    struct alone alone;
    char wide[128];
    must("config.json", hzp_config_read(dir, &c, &text));
    bool as_it_is = c.heads.heads % run->ranks == 0 && c.heads.kv_heads % run->ranks == 0;
    bool widened = c.heads.heads <= HEADS;
    int failures = 0;
    HZP_ASSERT(as_it_is || widened);
    if (widened)
        widen(dir, wide, sizeof(wide));
    for (int w = 0; w < 2; w++) {
        if (w ? !as_it_is : !widened)
            continue;
        struct rank job = {.backend = run->backend,
                           .dir = w ? dir : wide,
                           .type = type,
                           .alone = &alone,
                           .golden = w,
                           .expected = expected,
                           .shaped = !expected && !w,
                           .numbers = !expected};
        for (int fp8 = 0; fp8 <= (job.shaped && type == HZP_F32 && run->ranks == 2); fp8++) {
            job.fp8 = fp8;
            run_alone(run->backend, &job, &alone);
            failures += run_ranks_of(run, &job);
            alone_free(&alone);
        }
    }
    printf("%s %s %s on %d ranks of %s%s%s\n", failures ? "FAIL" : "ok  ", dir,
           type == HZP_F32 ? "f32" : "bf16", run->ranks, run->backend, widened ? ", widened" : "",
           as_it_is ? ", as it is" : "");
    return failures;
}

static int test_all(const struct run *run, const char *world, const char *world_expected, int dirs,
                    char **dir)
{
    int failures = 0;
    for (int i = 0; i < dirs; i++) {
        char own[600];
        snprintf(own, sizeof(own), "%s/expected.json", dir[i]);
        const char *expected = access(own, R_OK) == 0 ? own : NULL;
        failures += test_dir(run, dir[i], HZP_F32, expected);
        failures += test_dir(run, dir[i], HZP_BF16, expected);
    }
    failures += test_dir(run, world, HZP_F32, world_expected);
    failures += test_dir(run, world, HZP_BF16, world_expected);
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
    if (argc < 5 + mpi) {
        fprintf(stderr, "usage: test_tensor BACKEND [mpi] WORLD EXPECTED DIR...\n");
        return 2;
    }
    snprintf(scratch, sizeof(scratch), "/tmp/hzp-tensor-XXXXXX");
    HZP_ASSERT(mkdtemp(scratch));
    char **rest = argv + 2 + mpi;
    if (mpi) {
        struct run run = {.backend = argv[1]};
        must("a link", hzp_link_open_mpi(&(struct hzp_link_mpi){0}, &run.mpi, &text));
        run.ranks = hzp_link_ranks(run.mpi);
        failures += test_all(&run, rest[0], rest[1], argc - 4 - mpi, rest + 2);
        hzp_link_close(run.mpi);
    } else {
        failures += test_refused(rest[0]);
        for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2)
            failures += test_all(&(struct run){.backend = argv[1], .ranks = ranks}, rest[0],
                                 rest[1], argc - 4, rest + 2);
    }
    nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failures ? 1 : 0;
}

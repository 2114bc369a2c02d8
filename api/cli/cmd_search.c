/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve search MODEL: measures ops on this device, searches the best plan for steps of every
 * size, and saves both in a file that `serve` reads.
 *
 * Ops are measured on a model with fewer layers and random weights; its layers are larger than any
 * cache.  The search runs on the simulator, with all layers; then the shapes predicted to be
 * fastest are run on the device.  After an interruption the same command continues: the measured
 * parts, the result of the search and each shape that was run are in the file. */
#include "api/cli/commands.h"
#include "api/cli/quiet.h"
#include "api/engine/assembly.h"
#include "api/engine/group.h"
#include "api/engine/exclusions.h"
#include "nanobatch/search/pipeline.h"
#include "nanobatch/search/search.h"
#include "nanobatch/search/search_file.h"

#include <signal.h>

/* Minimum bytes of weights in the measured layers, several times the size of any cache; and the
 * minimum number of layers. */
static const size_t cold_bytes = 384u << 20;
enum { LAYERS_MIN = 4, DEPTH = 512, DEPTH_MAX = 1024 };

static const size_t kv_bytes_max = 1u << 30; /* limit of the KV pages of the measured model */

static volatile int stop;

static void on_signal(int signal)
{
    stop = 1;
}

struct job {
    const struct hzp_search_settings *settings;
    const struct hzp_engine_settings *engine;
    struct hzp_model_config config; /* with all layers */
    enum hzp_dtype type;
    struct hzp_tables here, tables; /* here: device, model, build; tables: measurements */
    struct hzp_plan_table plans;
    char path[PATH_MAX];
    /* The settings the search was made for. */
    char sought[sizeof(((struct hzp_plan_table *)0)->sought)];
    uint64_t begin_ns;      /* start of this run */
    double before_ns;       /* duration of earlier runs of the search */
    struct hzp_quiet quiet; /* since the last save */
    struct hzp_link *link;  /* connects the ranks that compute each step together; NULL: one rank */
    struct hzp_crew *crew;  /* NULL: one rank */
    double ranks_ns;        /* processor time of the other ranks, at the last save */
    bool terminal, drawn;
};

/* ---- the part of the model that is measured ---- */

static size_t layer_bytes(const struct job *j)
{
    const struct hzp_model_config *c = &j->config;
    size_t width = (size_t)c->width,
           packed = (size_t)(c->heads.heads + 2 * c->heads.kv_heads) * (size_t)c->heads.dim;
    size_t elements = width * packed + width * (size_t)c->heads.heads * (size_t)c->heads.dim +
                      3 * width * (size_t)c->inner;
    return elements * (j->engine->model.fp8 ? 1 : hzp_dtype_size(j->type));
}

static int32_t layers_measured(const struct job *j)
{
    size_t layers = cold_bytes / layer_bytes(j) + 1;
    return (int32_t)HZP_MIN(HZP_MAX(layers, (size_t)LAYERS_MIN), (size_t)j->config.layers);
}

static struct hzp_assembly_rig rig_rows(const struct job *j)
{
    const struct hzp_engine_settings *e = j->engine;
    int32_t rows = hzp_settings_rows(&e->serving);
    struct hzp_assembly_rig size = {.updates = !e->no_train,
                                    .rides = !e->no_train &&
                                             !e->model.fp8, /* fp8: serving reads other weights */
                                    .decode = (int32_t)e->serving.running_max,
                                    .prefill = HZP_MIN(rows, 4096),
                                    .page_rows = (int32_t)e->serving.page_rows,
                                    .moment_type = hzp_settings_moments(&e->training),
                                    .host_state = e->training.moments_in,
                                    .quantum_flops = hzp_settings_quantum(&e->training)};
    int32_t positions = j->config.positions;
    size.prefill = HZP_MIN(size.prefill, positions / 2);
    size.depth = HZP_MIN(DEPTH_MAX, positions - size.prefill);
    if (!e->no_train)
        size.train = (int32_t)HZP_MIN(e->training.micro_rows, positions);
    enum hzp_dtype kv = e->model.kv_fp8 ? HZP_E4M3 : j->type;
    size_t token = 2 * (size_t)layers_measured(j) * hzp_kv_side_bytes(&j->config, kv);
    int64_t wanted = (int64_t)size.decode * (size.depth + 1) + size.depth + size.prefill;
    size.kv_tokens = HZP_MIN(wanted, (int64_t)(kv_bytes_max / token));
    return size;
}

/* ---- progress ---- */

static void draw_bar(struct job *j, const char *what, int done, int all, uint64_t begin)
{
    enum { WIDTH = 30 };
    int full = all ? done * WIDTH / all : 0;
    if (!j->terminal)
        return;
    fprintf(stderr, "\r\033[K[%.*s%*s] %3d%% %4.0f s  %s", full, "##############################",
            WIDTH - full, "", all ? done * 100 / all : 0, (double)(hzp_now_ns() - begin) * 1e-9,
            what);
    fflush(stderr);
    j->drawn = true;
}

static void end_bar(struct job *j)
{
    if (j->drawn)
        fprintf(stderr, "\r\033[K");
    j->drawn = false;
}

/* Duration of this search so far, including interrupted runs. */
static double spent_ns(const struct job *j)
{
    return j->before_ns + (double)(hzp_now_ns() - j->begin_ns);
}

/* From here on the time of other processes counts; the other ranks are none of those. */
static int watch(struct job *j, struct hzp_err_text *reterr)
{
    if (j->crew)
        HZP_TRY(hzp_crew_spent(j->crew, &j->ranks_ns, reterr));
    hzp_quiet_begin(&j->quiet);
    return HZP_OK;
}

static int save(struct job *j, struct hzp_err_text *reterr)
{
    double others = 0, before = j->ranks_ns;
    j->tables.spent_ns = spent_ns(j);
    hzp_quiet_end(&j->quiet, &j->tables.watched_ns, &others);
    HZP_TRY(watch(j, reterr));
    j->tables.others_ns += HZP_MAX(others - (j->ranks_ns - before), 0);
    return hzp_search_save(j->path, &j->tables, &j->plans, reterr);
}

/* ---- measuring ---- */

static int measure_all(struct job *j, struct hzp_measure *m, struct hzp_err_text *reterr)
{
    char what[64];
    uint64_t begin = hzp_now_ns(), saved = begin;
    int32_t first = j->tables.parts_done;
    if (first == j->tables.parts)
        return HZP_OK;
    j->plans.sought[0] = 0; /* the saved plans belong to other tables */
    j->tables.whole = false;
    while (j->tables.parts_done < j->tables.parts && !stop) {
        draw_bar(j, hzp_measure_what(m, what), j->tables.parts_done, j->tables.parts, begin);
        HZP_TRY(j->crew ? hzp_crew_part(j->crew, reterr) : hzp_measure_next(m));
        if (hzp_now_ns() - saved > 5000000000u) {
            HZP_TRY(save(j, reterr));
            saved = hzp_now_ns();
        }
    }
    end_bar(j);
    HZP_TRY(save(j, reterr));
    fprintf(stderr, "hzpserve: measured %d of %d parts in %.0f s\n", j->tables.parts_done - first,
            j->tables.parts, (double)(hzp_now_ns() - begin) * 1e-9);
    return HZP_OK;
}

static int open_crew(struct job *j, struct hzp_assembly *bench, struct hzp_measure *m)
{
    struct hzp_crew_config config = {.rig = bench->rig,
                                     .tables = &j->tables,
                                     .measure = m,
                                     .link = j->link,
                                     .processors = hzp_quiet_processors()};
    return hzp_crew_create(&config, &j->crew);
}

/* Again in every search: the link may be another one. */
static int measure_link(struct job *j, struct hzp_err_text *reterr)
{
    double rate, latency;
    HZP_TRY(hzp_crew_link(j->crew, reterr));
    if (hzp_tables_link(&j->tables, &rate, &latency))
        fprintf(stderr, "hzpserve: the link between %d ranks carries %.0f MB/s, after %.0f us\n",
                hzp_link_ranks(j->link), rate * 1e-6, latency * 1e-3);
    return HZP_OK;
}

static int measure(struct job *j, struct hzp_assembly *bench, struct hzp_err_text *reterr)
{
    struct hzp_measure *m;
    HZP_TRY(hzp_measure_create(bench->rig, &j->tables, &m, reterr));
    int r = j->link ? open_crew(j, bench, m) : HZP_OK;
    if (r == HZP_OK)
        r = watch(j, reterr);
    if (r == HZP_OK)
        r = measure_all(j, m, reterr);
    if (r == HZP_OK && j->crew && !stop)
        r = measure_link(j, reterr);
    hzp_measure_destroy(m);
    return r;
}

/* ---- searching ---- */

static int search_all(struct job *j, struct hzp_search *s, const struct hzp_assembly_rig *size,
                      struct hzp_err_text *reterr)
{
    static const int32_t decode[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
    static const int32_t prefill[] = {0, 16, 32, 64, 128, 256, 512};
    const int32_t train[] = {0, size->train};
    uint64_t begin = hzp_now_ns();
    int done = 0, all = HZP_COUNT(decode) * HZP_COUNT(prefill) * (size->train ? 2 : 1);
    for (int t = 0; t < (size->train ? 2 : 1); t++)
        for (int d = 0; d < HZP_COUNT(decode); d++)
            for (int p = 0; p < HZP_COUNT(prefill) && !stop; p++) {
                struct hzp_plan_entry entry;
                draw_bar(j, "searching", done++, all, begin);
                if (!(decode[d] + prefill[p]) || decode[d] > size->decode ||
                    prefill[p] > size->prefill)
                    continue;
                int r = hzp_search_step(s, decode[d], HZP_MIN(size->depth, DEPTH), prefill[p],
                                        train[t], &entry);
                if (r == HZP_EINVAL)
                    continue;
                HZP_TRY(r);
                HZP_TRY(hzp_plan_table_set(&j->plans, &entry, reterr));
            }
    end_bar(j);
    hzp_plan_table_index(&j->plans);
    fprintf(stderr, "hzpserve: simulated %lld shapes for %d kinds of step in %.1f s\n",
            (long long)hzp_search_tried(s), j->plans.entries,
            (double)(hzp_now_ns() - begin) * 1e-9);
    return HZP_OK;
}

static struct hzp_search_config search_config(const struct job *j, struct hzp_rig *rig)
{
    return (struct hzp_search_config){.rig = rig,
                                      .tables = &j->tables,
                                      .crew = j->crew,
                                      .goal_ns = j->settings->itl_ms * 1e6,
                                      .train_share = j->engine->split.train_share,
                                      .tries = (int32_t)j->settings->tries,
                                      .seed = 1};
}

/* Runs the search on the simulator, with all layers. */
static int search_on(struct job *j, struct hzp_assembly *paper, const struct hzp_assembly_rig *size,
                     struct hzp_err_text *reterr)
{
    struct hzp_search *s;
    struct hzp_search_config config = search_config(j, paper->rig);
    hzp_plan_table_fini(&j->plans);
    hzp_plan_table_init(&j->plans);
    j->tables.whole = false;
    HZP_TRY(hzp_search_create(&config, &s));
    int r = search_all(j, s, size, reterr);
    hzp_search_destroy(s);
    return r;
}

static int search(struct job *j, struct hzp_err_text *reterr)
{
    struct hzp_device_settings device = j->engine->device;
    struct hzp_assembly_rig size = rig_rows(j);
    struct hzp_assembly_config config = {
        .device = &device, .model = &j->engine->model, .rig = &size, .group = j->link};
    HZP_ENDED(hzp_assembly_close) struct hzp_assembly paper;
    device.name = "sim";
    size.kv_tokens = 0;
    size.updates = false;
    HZP_TRY(hzp_assembly_rig(&config, true, &paper, reterr));
    HZP_TRY(search_on(j, &paper, &size, reterr));
    if (stop)
        return HZP_OK;
    memcpy(j->plans.sought, j->sought, sizeof(j->sought));
    return save(j, reterr);
}

/* ---- running the shapes that the search found ---- */

static double promise(const struct hzp_plan_entry *e)
{
    if (e->train)
        return e->rate / HZP_MAX(e->plain_rate, 1e-6);
    return e->plain_ns / HZP_MAX(e->ns, 1);
}

static bool unproven(const struct hzp_plan_entry *e)
{
    return !hzp_plan_shape_plain(&e->shape) && !(e->confirmed > 0);
}

/* The most promising entry that was not run yet (-1: none); *ret_count: how many were not run. */
static int32_t most_promising(const struct hzp_plan_table *plans, const bool *tried,
                              int32_t *ret_count)
{
    int32_t best = -1;
    *ret_count = 0;
    for (int32_t i = 0; i < plans->entries; i++) {
        if (tried[i] || !unproven(&plans->entry[i]))
            continue;
        (*ret_count)++;
        if (best < 0 || promise(&plans->entry[i]) > promise(&plans->entry[best]))
            best = i;
    }
    return best;
}

struct confirmed {
    int32_t ran, kept, left; /* left: not run within the time limit */
};

static int confirm_one(struct job *j, struct hzp_assembly *bench, struct hzp_search *s,
                       struct hzp_exec *exec, struct hzp_plan_entry *e, double left_ns,
                       struct confirmed *count)
{
    /* A single shape must not use up all the time. */
    double most_ns = j->settings->seconds > 0 ? HZP_MAX(left_ns / 3, 1.0) : 0;
    int r = hzp_search_confirm(s, exec, HZP_MIN(bench->rig->config.depth_max, DEPTH), most_ns, e);
    if (r == HZP_EINVAL) { /* needs more pages than this rig has: not run, so not used */
        e->shape = hzp_plan_sequential;
        return HZP_OK;
    }
    HZP_TRY(r);
    count->ran += e->confirmed > 0;
    count->kept += e->confirmed > 0 && !hzp_plan_shape_plain(&e->shape);
    count->left += unproven(e);
    return HZP_OK;
}

/* Runs the shapes, the most promising first, within the time limit, of which a quarter is reserved
 * for this. */
static int confirm_all(struct job *j, struct hzp_assembly *bench, struct hzp_search *s,
                       struct hzp_exec *exec, struct hzp_err_text *reterr)
{
    uint64_t begin = hzp_now_ns(), saved = begin;
    double limit = j->settings->seconds * 1e9;
    double unspent = limit - spent_ns(j), until = HZP_MAX(unspent, limit / 4);
    HZP_FREED bool *tried = hzp_xcalloc((size_t)j->plans.entries + 1, sizeof(*tried));
    struct confirmed count = {0, 0, 0};
    int32_t i, all, open;
    int r = HZP_OK;
    most_promising(&j->plans, tried, &all);
    while (!stop && r == HZP_OK && (i = most_promising(&j->plans, tried, &open)) >= 0) {
        double left = until - (double)(hzp_now_ns() - begin);
        draw_bar(j, "running shapes", all - open, all, begin);
        if (limit > 0 && left <= 0) {
            count.left += open;
            break;
        }
        tried[i] = true;
        r = confirm_one(j, bench, s, exec, &j->plans.entry[i], left, &count);
        if (r == HZP_OK && hzp_now_ns() - saved > 5000000000u) {
            r = save(j, reterr);
            saved = hzp_now_ns();
        }
    }
    end_bar(j);
    HZP_TRY(r);
    if (all)
        fprintf(stderr, "hzpserve: ran %d shapes that were predicted to win, %d won, in %.1f s\n",
                count.ran, count.kept, (double)(hzp_now_ns() - begin) * 1e-9);
    if (count.left)
        fprintf(stderr,
                "hzpserve: %d more were not run within --seconds and are not used; the same "
                "command continues with them\n",
                count.left);
    return HZP_OK;
}

static int confirm(struct job *j, struct hzp_assembly *bench, struct hzp_err_text *reterr)
{
    struct hzp_search_config config = search_config(j, bench->rig);
    struct hzp_search *s;
    struct hzp_exec *exec = NULL;
    config.goal_ns *= (double)bench->config.layers / j->config.layers;
    HZP_TRY(hzp_search_create(&config, &s));
    int r = hzp_exec_create(bench->dev, &exec);
    if (r == HZP_OK)
        r = confirm_all(j, bench, s, exec, reterr);
    hzp_exec_destroy(exec);
    hzp_search_destroy(s);
    return r;
}

/* ---- the pipeline of ranks that compute each step together ---- */

/* How long the runs of the pipeline may take, beyond the fewest. */
static const double pipeline_s = 5;

/* The entry with the most rows that the rig has room for, of those with a pipeline if there are
 * any; NULL: there is none. */
static const struct hzp_plan_entry *largest(const struct job *j, struct hzp_rig *rig, int32_t depth)
{
    const struct hzp_plan_entry *best = NULL;
    for (int32_t i = 0; i < j->plans.entries; i++) {
        const struct hzp_plan_entry *e = &j->plans.entry[i];
        bool pipe = e->confirmed > 0 && hzp_pipeline_overlaps(&e->shape);
        bool has = best && hzp_pipeline_overlaps(&best->shape);
        if (unproven(e) ||
            (best && (pipe < has ||
                      (pipe == has && e->decode + e->prefill < best->decode + best->prefill))))
            continue;
        if (hzp_rig_serve(rig, e->decode, depth, e->prefill, 0) == HZP_OK)
            best = e;
    }
    return best;
}

/* Prints the pipeline of the largest step, what its choices are for, and what it gains when run. */
static int print_pipeline(struct job *j, struct hzp_assembly *bench, struct hzp_err_text *reterr)
{
    struct hzp_rig *rig = bench->rig;
    int32_t depth = HZP_MIN(rig->config.depth_max, DEPTH);
    const struct hzp_plan_entry *e = largest(j, rig, depth);
    if (!e)
        return HZP_OK;
    struct hzp_pipeline p = {
        .shape = e->shape, .decode = e->decode, .depth = depth, .prefill = e->prefill};
    printf("\n");
    if (!hzp_pipeline_overlaps(&p.shape)) {
        p.shape = hzp_pipeline_usual();
        printf("no pipeline was chosen for any step: none won by measurement; a usual one, for "
               "comparison:\n");
    }
    HZP_TRY(hzp_pipeline_measure(&p, j->crew, pipeline_s, reterr));
    hzp_pipeline_print(&p, rig, hzp_link_ranks(j->link), stdout);
    return HZP_OK;
}

/* ---- the command ---- */

/* Measurements that were taken while others used the processors are taken again, unless
 * --max-others now allows for that. */
static void forget_disturbed(struct job *j)
{
    struct hzp_tables *t = &j->tables;
    double part = t->watched_ns > 0 ? t->others_ns / t->watched_ns : 0;
    if (j->settings->show || part <= j->settings->others_max)
        return;
    fprintf(stderr,
            "hzpserve: other processes took %.0f %% of the processors' time while %s was measured: "
            "measuring again\n",
            100 * part, j->path);
    hzp_tables_fini(t);
    hzp_tables_init(t);
    hzp_plan_table_fini(&j->plans);
    hzp_plan_table_init(&j->plans);
}

/* Reads the saved measurements, if they are of this device, model and build. */
static int recall(struct job *j, struct hzp_err_text *reterr)
{
    const struct hzp_search_settings *o = j->settings;
    if (o->file)
        snprintf(j->path, sizeof(j->path), "%s", o->file);
    else
        HZP_TRY(hzp_search_path(&j->here, j->path, sizeof(j->path), reterr));
    struct hzp_err_text err = {{0}, {0}};
    int r = o->fresh ? HZP_ENOENT : hzp_search_load(j->path, &j->tables, &j->plans, &err);
    if (r == HZP_ENOENT)
        return o->show ? hzp_fail(reterr, r,
                                  "%s: there are no measurements for this device, "
                                  "model and build",
                                  j->path)
                       : HZP_OK;
    if (r < 0)
        return hzp_fail(reterr, r, "%s%s", err.text,
                        r == HZP_EFORMAT ? "; --fresh discards it and measures again" : "");
    const char *misfit = hzp_search_misfit(&j->tables, &j->here);
    if (misfit && !o->show)
        return hzp_fail(reterr, HZP_EINVAL, "%s: %s; --fresh discards it and measures again",
                        j->path, misfit);
    if (strcmp(j->tables.settings, j->here.settings) && !o->show) {
        j->tables.parts_done = 0; /* the parts differ; measurements of the same ops are kept */
        j->tables.plans_ns = j->tables.items_ns = j->tables.spent_ns = 0;
    }
    forget_disturbed(j);
    j->before_ns = j->tables.spent_ns;
    return HZP_OK;
}

static void show(const struct job *j)
{
    char why[160];
    const struct hzp_tables *t = &j->tables;
    const char *unusable = hzp_search_unusable(t, why);
    printf("other processes took %.1f %% of the processors' time; plans %s%s\n\n",
           t->watched_ns > 0 ? 100 * t->others_ns / t->watched_ns : 0.0,
           unusable ? "are not used: " : "are used", unusable ? unusable : "");
    hzp_tables_print(&j->tables, stdout);
    hzp_plan_table_print(&j->plans, stdout);
}

static void identify(struct job *j, struct hzp_device *dev)
{
    const struct hzp_engine_settings *e = j->engine;
    hzp_search_identify(dev, &j->config, j->type, e->model.fp8 != 0, e->model.kv_fp8 != 0,
                        &j->here);
    hzp_search_identify_ranks(&j->here, (int)e->ranks.tensor);
    snprintf(j->here.settings, sizeof(j->here.settings),
             "%lld running, %lld rows, %lld trained, %g GFLOP", (long long)e->serving.running_max,
             (long long)hzp_settings_rows(&e->serving),
             (long long)(e->no_train ? 0 : e->training.micro_rows), e->training.quantum_gflop);
    snprintf(j->sought, sizeof(j->sought), "steps of %g ms, share %g, %lld tries",
             j->settings->itl_ms, e->split.train_share, (long long)j->settings->tries);
}

static int with_bench(struct job *j, struct hzp_assembly *bench, struct hzp_err_text *reterr)
{
    memcpy(j->tables.device, j->here.device, sizeof(j->here.device));
    memcpy(j->tables.model, j->here.model, sizeof(j->here.model));
    memcpy(j->tables.build, j->here.build, sizeof(j->here.build));
    memcpy(j->tables.settings, j->here.settings, sizeof(j->here.settings));
    j->tables.others_max = j->settings->others_max;
    HZP_TRY(measure(j, bench, reterr));
    if (stop)
        return HZP_ECANCELED;
    if (!stop && strcmp(j->plans.sought, j->sought) != 0)
        HZP_TRY(search(j, reterr));
    if (!stop)
        HZP_TRY(confirm(j, bench, reterr));
    HZP_TRY(save(j, reterr));
    if (stop)
        return HZP_ECANCELED;
    j->tables.whole = true;
    double took = spent_ns(j);
    j->before_ns = -(double)(hzp_now_ns() - j->begin_ns); /* the next search starts from 0 */
    HZP_TRY(save(j, reterr));
    hzp_plan_table_print(&j->plans, stdout);
    if (j->crew)
        HZP_TRY(print_pipeline(j, bench, reterr));
    char why[160];
    const char *unusable = hzp_search_unusable(&j->tables, why);
    if (unusable)
        return hzp_fail(
            reterr, HZP_EBUSY,
            "%s: not used: %s; run it again when the machine is quiet, or with a higher "
            "--max-others",
            j->path, unusable);
    fprintf(stderr, "hzpserve: %.0f s in total; saved in %s, where serve finds it\n", took * 1e-9,
            j->path);
    return HZP_OK;
}

static int show_saved(struct job *j, struct hzp_err_text *reterr)
{
    struct hzp_device *dev;
    HZP_TRY(hzp_settings_device(&j->engine->device, 0, &dev, reterr));
    identify(j, dev);
    hzp_device_close(dev);
    HZP_TRY(recall(j, reterr));
    show(j);
    return HZP_OK;
}

/* Which rank has ended the link, if nothing else says why the search has failed. */
static void name_rank(const struct job *j, struct hzp_err_text *reterr)
{
    struct hzp_link_state state = {0};
    if (j->link && !reterr->text[0])
        hzp_link_state(j->link, &state);
    if (state.failed)
        hzp_fail(reterr, HZP_EIO, "rank %d: %s", state.failed_rank, state.why);
}

static int lead(struct job *j, struct hzp_assembly *bench, struct hzp_err_text *reterr)
{
    identify(j, bench->dev);
    int r = recall(j, reterr);
    if (r == HZP_OK)
        r = with_bench(j, bench, reterr);
    if (r < 0)
        name_rank(j, reterr);
    struct hzp_err_text other = {0};
    if (j->crew && (r == HZP_OK || r == HZP_ECANCELED || r == HZP_EBUSY))
        hzp_crew_end(j->crew, &other);
    else if (j->link)
        hzp_link_abort(j->link, 0, "the search on rank 0 has failed");
    return r;
}

/* A rank other than 0: until rank 0 ends. */
static int follow(struct job *j, struct hzp_assembly *bench, struct hzp_err_text *reterr)
{
    struct hzp_measure *m;
    HZP_TRY(hzp_measure_create(bench->rig, &j->tables, &m, reterr));
    int r = open_crew(j, bench, m);
    if (r == HZP_OK)
        r = hzp_crew_follow(j->crew, reterr);
    hzp_measure_destroy(m);
    return r;
}

static int run(struct job *j, struct hzp_err_text *reterr)
{
    const struct hzp_engine_settings *e = j->engine;
    HZP_TRY(hzp_assembly_model(&e->model, &j->config, reterr));
    j->type = hzp_settings_dtype(&e->model, &j->config);
    if (j->settings->show)
        return show_saved(j, reterr);
    struct hzp_assembly_rig size = rig_rows(j);
    struct hzp_assembly_config config = {.device = &e->device,
                                         .model = &e->model,
                                         .rig = &size,
                                         .layers_max = layers_measured(j),
                                         .group = j->link};
    struct hzp_assembly bench;
    int r = hzp_assembly_rig(&config, true, &bench, reterr);
    if (r == HZP_OK && j->link && hzp_link_rank(j->link))
        r = follow(j, &bench, reterr);
    else if (r == HZP_OK)
        r = lead(j, &bench, reterr);
    hzp_crew_destroy(j->crew);
    j->crew = NULL;
    hzp_assembly_close(&bench);
    return r;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* what a launcher of several ranks passes on */
}

static int search_on_rank(const struct hzp_options *options,
                          const struct hzp_engine_settings *engine, struct hzp_link *link)
{
    HZP_FREED struct job *j = hzp_xcalloc(1, sizeof(*j));
    struct hzp_err_text err = {0};
    j->settings = &options->search;
    j->engine = engine;
    j->link = link;
    j->begin_ns = hzp_now_ns();
    j->terminal = isatty(STDERR_FILENO) && !link;
    hzp_tables_init(&j->tables);
    hzp_plan_table_init(&j->plans);
    int r = run(j, &err);
    if (r == HZP_ECANCELED)
        fprintf(stderr, "hzpserve: interrupted; the same command continues from here\n");
    else if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    hzp_tables_fini(&j->tables);
    hzp_plan_table_fini(&j->plans);
    return r == HZP_EINVAL ? 2 : r == HZP_ECANCELED ? 130 : r < 0 ? 1 : 0;
}

static bool stopped(void *ctx)
{
    return stop;
}

/* With --tensor: the ranks are started and meet, and all of them measure. */
static int search_on_ranks(const struct hzp_options *options)
{
    struct hzp_engine_settings engine = options->engine;
    struct hzp_err_text err = {0};
    struct hzp_ranks ranks;
    int status = hzp_cmd_ranks_start(options, NULL);
    if (status >= 0)
        return status;
    catch_signals();
    status = hzp_cmd_ranks_open(options, NULL, stopped, NULL, &ranks);
    if (status)
        return status;
    engine.device.threads = hzp_cmd_ranks_threads(options, &ranks);
    int r = hzp_exclusions_check(&engine, ranks.ranks, &err);
    if (r == HZP_OK)
        r = hzp_group_check(&engine, ranks.ranks, &err);
    if (r == HZP_OK && !engine.no_train)
        r = hzp_fail(&err, HZP_EINVAL,
                     "search --tensor needs --no-train: in a group training follows serving's rows "
                     "in each step, so there is nothing to search");
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text);
    status = r < 0 ? 2 : search_on_rank(options, &engine, ranks.link);
    hzp_ranks_close(&ranks);
    return status;
}

int hzp_cmd_search(const struct hzp_options *options)
{
    if (options->engine.ranks.tensor > 1 && !options->search.show)
        return search_on_ranks(options);
    catch_signals();
    return search_on_rank(options, &options->engine, NULL);
}

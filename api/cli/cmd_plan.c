/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve plan [MODEL]: prints the plan of one step as a table, writes a trace of a run, or
 * compares its duration with the sequential plan of the same step.
 *
 * The step is synthetic: a number of decode rows at a given position, a chunk of one prompt, and a
 * training micro-batch.  Without MODEL the model is a built-in one of 135 million parameters with
 * random weights. */
#include "api/cli/commands.h"
#include "api/cli/plan_paths.h"
#include "api/engine/assembly.h"

/* The default position of decode rows. */
enum { DEPTH = 512 };

struct planning {
    const struct hzp_plan_settings *settings;
    struct hzp_assembly_rig rows; /* row counts of the step */
    struct hzp_assembly parts;
    struct hzp_exec *exec;
    struct hzp_plan plan;
    struct hzp_plan_shape shape;
};

/* ---- the plan shape from --shape ---- */

/* Index of the first of `count` names that text begins with, followed by `end`; -1: none. */
static int name_of(const char *text, char end, const char *const *name, int count)
{
    for (int i = 0; i < count; i++) {
        size_t n = strlen(name[i]);
        if (!strncmp(text, name[i], n) && text[n] == end)
            return i;
    }
    return -1;
}

static int lane_named(const char *text, char end)
{
    for (int l = 0; l < HZP_LANE_COUNT; l++) {
        const char *name = hzp_lane_name_text((enum hzp_lane_name)l);
        if (name_of(text, end, &name, 1) == 0)
            return l;
    }
    return -1;
}

/* "3:1": the relative sizes of nano-batches. */
static bool sizes_word(struct hzp_plan_shape *s, const char *word)
{
    char *end;
    s->nanos = 0;
    memset(s->weight, 0, sizeof(s->weight));
    for (;; word = end + 1) {
        long weight = strtol(word, &end, 10);
        if (end == word || weight > INT32_MAX / HZP_NANO_MAX)
            return false;
        if (s->nanos < HZP_NANO_MAX)
            s->weight[s->nanos] = (int32_t)weight;
        s->nanos++; /* hzp_plan_shape_check() reports too many */
        if (!*end)
            return true;
    }
}

/* "memory=2": the cores of a lane. */
static bool cores_word(struct hzp_plan_shape *s, const char *word)
{
    int lane = lane_named(word, '=');
    const char *number = strchr(word, '=');
    char *end;
    if (lane < 0 || number[1] < '0' || number[1] > '9')
        return false;
    long cores = strtol(number + 1, &end, 10);
    if (*end || cores > INT16_MAX)
        return false;
    s->share[lane] = (int16_t)cores;
    return true;
}

/* "overlap", "apart", "decode=memory", "1:product=memory", "train=train". */
static bool lane_word(struct hzp_plan_shape *s, const char *word)
{
    static const char *const kind[] = {"product", "decode", "prefill", "rows", "train"};
    int first = 0, last = s->nanos - 1;
    if (!strcmp(word, "overlap")) {
        for (int i = 0; i < s->nanos; i++)
            s->lane[i][HZP_KIND_DECODE] = s->lane[i][HZP_KIND_PREFILL] = HZP_LANE_MEMORY;
        return true;
    }
    if (!strcmp(word, "apart")) {
        for (int i = 0; i < s->nanos; i++)
            memset(s->lane[i], i % HZP_LANE_TRAIN, sizeof(s->lane[i]));
        return true;
    }
    if (word[0] >= '0' && word[0] <= '9' && word[1] == ':') {
        first = last = word[0] - '0';
        word += 2;
    }
    int k = name_of(word, '=', kind, HZP_COUNT(kind));
    int lane = k < 0 ? -1 : lane_named(word + strlen(kind[k]) + 1, '\0');
    if (lane < 0 || last >= s->nanos)
        return false;
    if (k == HZP_KIND_COUNT)
        memset(s->train_lane, lane, sizeof(s->train_lane));
    for (int i = first; k < HZP_KIND_COUNT && i <= last; i++)
        s->lane[i][k] = (uint8_t)lane;
    return true;
}

static bool order_word(struct hzp_plan_shape *s, const char *word)
{
    static const char *const order[] = {"strands", "layers", "skewed"};
    int i = name_of(word, '\0', order, HZP_COUNT(order));
    if (i >= 0)
        s->order = (uint8_t)i;
    return i >= 0;
}

/* Words that say how many nano-batches there are come first, because others name them. */
static int read_shape(struct planning *p, struct hzp_err_text *reterr)
{
    struct hzp_plan_shape *s = &p->shape;
    char copy[256];
    const char *text = p->settings->shape ? p->settings->shape : "1";
    *s = hzp_plan_sequential;
    s->ride = (int32_t)p->settings->ride;
    for (int later = 0; later < 2; later++) {
        if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
            return hzp_fail_param(reterr, HZP_EINVAL, "--shape", "--shape is too long");
        char *rest = copy, *word;
        while ((word = strsep(&rest, ",")) != NULL) {
            bool sizes = strspn(word, "0123456789:") == strlen(word) && *word;
            if (sizes == (later == 1))
                continue;
            if (!(sizes ? sizes_word(s, word)
                        : order_word(s, word) || cores_word(s, word) || lane_word(s, word)))
                return hzp_fail_param(reterr, HZP_EINVAL, "--shape", "--shape: cannot parse \"%s\"",
                                      word);
        }
        HZP_TRY(hzp_plan_shape_check(s, reterr));
    }
    return HZP_OK;
}

/* ---- the step ---- */

static int open_step(struct planning *p, const struct hzp_engine_settings *engine, bool runs,
                     struct hzp_err_text *reterr)
{
    const struct hzp_plan_settings *o = p->settings;
    struct hzp_model_config config;
    HZP_TRY(hzp_assembly_model(&engine->model, &config, reterr));
    p->rows = (struct hzp_assembly_rig){.decode = (int32_t)o->decode,
                                        .depth = o->decode ? (int32_t)o->depth : 0,
                                        .prefill = (int32_t)o->prefill,
                                        .train = (int32_t)o->train,
                                        .page_rows = (int32_t)engine->serving.page_rows,
                                        .moment_type = hzp_settings_moments(&engine->training),
                                        .quantum_flops = hzp_settings_quantum(&engine->training),
                                        .rides = o->ride > 0};
    struct hzp_assembly_rig *rows = &p->rows;
    if (rows->decode && !rows->depth)
        rows->depth = HZP_MAX(HZP_MIN(DEPTH, config.positions - HZP_MAX(rows->prefill, 1)), 0);
    struct hzp_assembly_config parts = {
        .device = &engine->device, .model = &engine->model, .rig = rows};
    HZP_TRY(hzp_assembly_rig(&parts, !runs, &p->parts, reterr));
    HZP_TRY(hzp_rig_serve(p->parts.rig, rows->decode, rows->depth, rows->prefill, 0));
    hzp_rig_chunks(p->parts.rig, (int32_t)o->ride);
    HZP_TRY(hzp_rig_train(p->parts.rig, rows->train));
    return hzp_exec_create(p->parts.dev, &p->exec);
}

static void close_all(struct planning *p)
{
    hzp_exec_destroy(p->exec);
    hzp_plan_fini(&p->plan);
    hzp_assembly_close(&p->parts);
}

static void build(struct planning *p, const struct hzp_plan_shape *shape)
{
    hzp_rig_build(p->parts.rig, shape, 0, p->parts.rig->chain.items, &p->plan);
}

/* ---- timing ---- */

struct times {
    double *step, *serve, *train; /* [runs] milliseconds since the begin of the first item */
};

static int run_once(struct planning *p, const struct hzp_plan_shape *shape, struct times *ret,
                    int at)
{
    struct hzp_exec_times times;
    build(p, shape);
    uint64_t begin = hzp_device_now_ns(p->parts.dev), end[HZP_TENANT_COUNT];
    for (int t = 0; t < HZP_TENANT_COUNT; t++)
        end[t] = begin;
    HZP_TRY(hzp_exec_run(p->exec, &p->plan, NULL, &times));
    uint64_t over = hzp_device_now_ns(p->parts.dev);
    const struct hzp_span *span = hzp_exec_spans(p->exec);
    for (int32_t i = 0; span && i < p->plan.items; i++)
        for (int t = 0; t < HZP_TENANT_COUNT; t++)
            if (hzp_item_of(&p->plan.item[i], (enum hzp_tenant)t))
                end[t] = HZP_MAX(end[t], span[i].end_ns);
    if (at < 0)
        return HZP_OK;
    ret->step[at] = (double)(over - begin) * 1e-6;
    ret->serve[at] = (double)(end[HZP_TENANT_SERVE] - begin) * 1e-6;
    ret->train[at] = (double)(end[HZP_TENANT_TRAIN] - begin) * 1e-6;
    return HZP_OK;
}

/* Alternates the sequential plan and the shape's plan, so that slow changes of the machine affect
 * both alike. */
static int compare(struct planning *p, int runs)
{
    struct times t[2];
    const struct hzp_plan_shape *shape[2] = {&hzp_plan_sequential, &p->shape};
    int r = HZP_OK;
    HZP_FREED double *all = hzp_xcalloc((size_t)runs * 6, sizeof(*all));
    HZP_FREED double *ratio = hzp_xcalloc((size_t)runs, sizeof(*ratio));
    for (int i = 0; i < 2; i++)
        t[i] =
            (struct times){all + 3 * i * runs, all + (3 * i + 1) * runs, all + (3 * i + 2) * runs};
    for (int i = -2; i < runs && r == HZP_OK; i++)
        for (int k = 0; k < 2 && r == HZP_OK; k++)
            r = run_once(p, shape[k], &t[k], i);
    int p10 = runs / 10, p50 = runs / 2, p90 = runs * 9 / 10;
    for (int i = 0; i < runs; i++)
        ratio[i] = t[0].step[i] / t[1].step[i];
    hzp_median(ratio, runs);
    printf("%-12s %10s %10s %10s %14s %14s\n", "plan", "step ms", "p10", "p90", "serving done",
           "training done");
    for (int k = 0; k < 2 && r == HZP_OK; k++) {
        hzp_median(t[k].step, runs);
        hzp_median(t[k].serve, runs);
        hzp_median(t[k].train, runs);
        printf("%-12s %10.3f %10.3f %10.3f %14.3f %14.3f\n", k ? "this shape" : "sequential",
               t[k].step[p50], t[k].step[p10], t[k].step[p90], t[k].serve[p50], t[k].train[p50]);
    }
    if (r == HZP_OK)
        printf("sequential over this shape, run by run: %.3f (p10 %.3f, p90 %.3f)\n", ratio[p50],
               ratio[p10], ratio[p90]);
    return r;
}

static int write_trace(struct planning *p, struct hzp_err_text *reterr)
{
    const char *path = p->settings->trace;
    for (int i = 0; i < 3; i++) /* warm-up: the first runs create primitives and touch memory */
        HZP_TRY(run_once(p, &p->shape, NULL, -1));
    FILE *out = fopen(path, "w");
    if (!out)
        return hzp_fail_param(reterr, HZP_EIO, "--trace", "%s: %s", path, strerror(errno));
    int r = hzp_exec_write_trace(p->exec, &p->plan, out);
    if (r == HZP_EUNSUP)
        hzp_fail_param(reterr, r, "--trace", "--trace: this device cannot time single ops");
    if (fclose(out) && r == HZP_OK)
        r = hzp_fail_param(reterr, HZP_EIO, "--trace", "%s: %s", path, strerror(errno));
    return r;
}

static int plan(struct planning *p, const struct hzp_engine_settings *engine,
                struct hzp_err_text *reterr)
{
    const struct hzp_plan_settings *o = p->settings;
    bool runs = o->trace || o->repeat;
    if (o->decode + o->prefill + o->train == 0)
        return hzp_fail(reterr, HZP_EINVAL,
                        "plan: the step is empty; use --decode, --prefill or --train");
    HZP_TRY(read_shape(p, reterr));
    HZP_TRY(open_step(p, engine, runs, reterr));
    build(p, &p->shape);
    HZP_TRY(hzp_plan_check(&p->plan, reterr));
    if (o->print || !runs)
        hzp_plan_print(&p->plan, stdout);
    if (o->trace)
        HZP_TRY(write_trace(p, reterr));
    return o->repeat ? compare(p, (int)o->repeat) : HZP_OK;
}

int hzp_cmd_plan(const struct hzp_options *options)
{
    struct planning p = {.settings = &options->plan};
    struct hzp_err_text err = {0};
    hzp_plan_init(&p.plan);
    const char *word = options->words ? options->word[0] : NULL;
    int r = hzp_is_paths_file(word) ? hzp_plan_paths(word, &err) : plan(&p, &options->engine, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    close_all(&p);
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve plan [MODEL]: prints the plan of one step as a table, writes a trace of a run, or
 * compares its duration with the sequential plan of the same step.
 * hzpserve plan FILE.json: paths of micro-batches over slow links, from a file of nodes and links
 * (docs/RANKS.md).
 *
 * The step is synthetic: a number of decode rows at a given position, a chunk of one prompt, and a
 * training micro-batch.  Without MODEL the model is a built-in one of 135 million parameters with
 * random weights. */
#include "api/cli/commands.h"
#include "api/engine/assembly.h"
#include "base/json_file.h"
#include "mesh/paths/paths.h"

/* ---- paths of micro-batches over slow links ---- */

enum { FILE_MAX = 1 << 20 };

/* A problem, its plan, and those of the full pipeline, as dealt and as planned. */
struct paths {
    struct hzp_paths_problem problem;
    struct hzp_paths_plan plan, full, best_full;
};

/* The object's number, or `without`; NaN where there is another value. */
static double number(const json_t *object, const char *name, double without)
{
    const json_t *value = json_object_get(object, name);
    return !value ? without : hzp_json_is_number(value) ? hzp_json_real(value) : NAN;
}

/* Likewise a whole number; -1, which no field may be, where there is another value. */
static int32_t whole(const json_t *object, const char *name, int32_t without)
{
    double value = number(object, name, without);
    return value >= 0 && value <= 1e6 && value <= floor(value) ? (int32_t)value : -1;
}

static int read_links(const json_t *file, struct hzp_paths_problem *p, struct hzp_err_text *reterr)
{
    const json_t *links = json_object_get(file, "links"), *link;
    double bytes = number(file, "bytes", 0);
    size_t i;
    if (!json_is_array(links))
        return hzp_fail(reterr, HZP_EFORMAT, "links: there is no list");
    for (int from = 0; from < p->nodes; from++)
        for (int to = 0; to < p->nodes; to++)
            p->link[from][to].latency_s = from == to ? 0 : NAN; /* refused if it stays so */
    json_array_foreach(links, i, link)
    {
        int from = whole(link, "from", -1), to = whole(link, "to", -1);
        if (from < 0 || to < 0 || from >= p->nodes || to >= p->nodes)
            return hzp_fail(reterr, HZP_EFORMAT, "links[%zu]: from, to: there is no such node", i);
        struct hzp_paths_link l = {number(link, "latency", 0), bytes / number(link, "rate", NAN)};
        p->link[from][to] = l;
        if (isnan(p->link[to][from].latency_s))
            p->link[to][from] = l; /* until it is given itself */
    }
    return HZP_OK;
}

static int read_problem(const json_t *file, struct hzp_paths_problem *p,
                        struct hzp_err_text *reterr)
{
    const json_t *nodes = json_object_get(file, "nodes"), *node;
    size_t i;
    if (!json_is_array(nodes) || json_array_size(nodes) > HZP_PATHS_NODES)
        return hzp_fail(reterr, HZP_EFORMAT, "nodes: no list of at most %d", HZP_PATHS_NODES);
    json_array_foreach(nodes, i, node)
    {
        struct hzp_paths_node *n = &p->node[p->nodes++];
        *n = (struct hzp_paths_node){whole(node, "stage", -1), whole(node, "memory", -1),
                                     number(node, "forward", NAN), number(node, "head", 0)};
        p->stages = HZP_MAX(p->stages, n->stage + 1);
    }
    p->micros = whole(file, "micro_batches", -1);
    p->swaps = whole(file, "swaps", HZP_PATHS_SWAPS);
    p->kept = whole(file, "kept", HZP_MIN(2, p->stages));
    p->skip = number(file, "skip", 0);
    return read_links(file, p, reterr);
}

static void print_plan(const struct hzp_paths_problem *p, const struct hzp_paths_plan *plan)
{
    for (int m = 0; m < p->micros; m++) {
        printf("micro-batch %d:", m);
        for (int k = 0; k < plan->length; k++)
            printf(" %d", plan->path[m][k]);
        printf("\n");
    }
    for (int n = 0; n < p->nodes; n++) {
        printf("node %d, stage %d:", n, p->node[n].stage);
        for (int i = 0; i < plan->ops[n]; i++) {
            const struct hzp_paths_op *op = &plan->order[n][i];
            printf(" %c%d", "FHB"[op->kind], op -> micro);
        }
        printf("\n");
    }
}

static int plan_all(struct paths *x, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_paths_plan(&x->problem, &x->plan, reterr));
    HZP_TRY(hzp_paths_check(&x->problem, &x->plan, reterr));
    x->problem.skip = 0;
    HZP_TRY(hzp_paths_plan(&x->problem, &x->best_full, reterr));
    hzp_paths_dealt(&x->problem, 0, &x->full);
    print_plan(&x->problem, &x->plan);
    printf("%.3f s; the full pipeline %.3f s, with planned paths %.3f s\n", x->plan.seconds,
           x->full.seconds, x->best_full.seconds);
    return HZP_OK;
}

/* Prints paths, the order of each node, and the seconds beside those of the full pipeline.
 * HZP_EINVAL, HZP_EFORMAT, HZP_ENOENT, HZP_EIO, HZP_ENOMEM: the text names the file's member. */
static int plan_paths(const char *file, struct hzp_err_text *reterr)
{
    json_auto_t *json = NULL;
    struct hzp_err_text text = {0};
    HZP_TRY(hzp_json_read(file, FILE_MAX, HZP_JSON_UNIQUE, &json, reterr));
    HZP_FREED struct paths *x = calloc(1, sizeof(*x));
    int r = x ? read_problem(json, &x->problem, &text)
              : hzp_fail(&text, HZP_ENOMEM, "no memory to plan paths");
    if (r == HZP_OK)
        r = plan_all(x, &text);
    return r < 0 ? hzp_fail(reterr, r, "%s: %s", file, text.text) : r;
}

/* ---- the plan of a step ---- */

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
    int r = hzp_is_paths_file(word) ? plan_paths(word, &err) : plan(&p, &options->engine, &err);
    if (r < 0)
        fprintf(stderr, "hzpserve: %s\n", err.text[0] ? err.text : hzp_err_name(r));
    hzp_exec_destroy(p.exec);
    hzp_plan_fini(&p.plan);
    hzp_assembly_close(&p.parts);
    return r == HZP_EINVAL ? 2 : r < 0 ? 1 : 0;
}

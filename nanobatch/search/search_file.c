/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/search_file.h"

#include "base/cache.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "base/json_file.h"

enum {
    FORMAT = 4,
    FILE_MAX = 16 << 20,
    CURVES_MAX = 4096,
    POINTS_MAX = 16384,
    RATES_MAX = 4096,
    CORES_MAX = 1024
};

/* Times above a quarter of an hour are rejected. */
static const double time_max_ns = 1e12, number_max = 1e18;

/* ---- what a file applies to ---- */

/* A hash of the program's own bytes: a change of any kernel gives another build. */
static uint64_t hash_program(void)
{
    uint64_t hash = HZP_FNV;
    FILE *file = fopen("/proc/self/exe", "rb");
    HZP_FREED char *block = hzp_xmalloc(1 << 16);
    size_t n;
    while (file && (n = fread(block, 1, 1 << 16, file)) > 0)
        hash = hzp_fnv(hash, block, n);
    if (file)
        fclose(file);
    return hash;
}

void hzp_search_identify(const struct hzp_device *dev, const struct hzp_model_config *c,
                         enum hzp_dtype type, bool fp8, bool kv_fp8, struct hzp_tables *t)
{
    snprintf(t->device, sizeof(t->device), "%s", dev->label);
    snprintf(t->model, sizeof(t->model),
             "%s %d layers of %d, inner %d, heads %d:%d of %d, vocabulary %d, "
             "%s%s%s",
             c->family, c->layers, c->width, c->inner, c->heads.heads, c->heads.kv_heads,
             c->heads.dim, c->vocab, type == HZP_BF16 ? "bf16" : "f32", fp8 ? ", products fp8" : "",
             kv_fp8 ? ", KV cache fp8" : "");
    snprintf(t->build, sizeof(t->build), "%s-%016" PRIx64, HZP_VERSION_TEXT, hash_program());
}

void hzp_search_identify_ranks(struct hzp_tables *t, int ranks)
{
    size_t at = strlen(t->model);
    if (ranks > 1)
        snprintf(t->model + at, sizeof(t->model) - at, ", on %d ranks", ranks);
}

const char *hzp_search_unusable(const struct hzp_tables *t, char *ret)
{
    double part = t->watched_ns > 0 ? t->others_ns / t->watched_ns : 0;
    if (!t->whole)
        return strcpy(ret, "its search did not come to its end");
    if (part <= t->others_max)
        return NULL;
    snprintf(ret, 160,
             "other processes took %.0f %% of the processors' time while it was measured (at most "
             "%.0f %% are allowed)",
             100 * part, 100 * t->others_max);
    return ret;
}

const char *hzp_search_misfit(const struct hzp_tables *read, const struct hzp_tables *here)
{
    if (strcmp(read->device, here->device))
        return "is for another device";
    if (strcmp(read->model, here->model))
        return "is for another model";
    return strcmp(read->build, here->build) ? "is for another build" : NULL;
}

int hzp_search_path(const struct hzp_tables *here, char *ret, size_t size,
                    struct hzp_err_text *reterr)
{
    uint64_t hash = HZP_FNV;
    hash = hzp_fnv(hash, here->device, strlen(here->device) + 1);
    hash = hzp_fnv(hash, here->model, strlen(here->model) + 1);
    hash = hzp_fnv(hash, here->build, strlen(here->build) + 1);
    if (hzp_cache_path(ret, size, "search-%016" PRIx64 ".json", hash))
        return HZP_OK;
    return hzp_fail(reterr, HZP_ENOENT,
                    "neither HOME nor XDG_CACHE_HOME is set, or too long: name a file with --file");
}

/* ---- the values of a file: each function below writes them, or reads and checks them ---- */

struct walk {
    bool writes; /* into JSON that is being made */
    const char *path;
    struct hzp_err_text *reterr;
    size_t points; /* that were read, of all curves */
};

static int wrong(const struct walk *w, const char *what)
{
    return hzp_fail(w->reterr, HZP_EFORMAT, "%s: %s is missing or wrong", w->path,
                    what ? what : "a list");
}

/* The value of this name in an object; name NULL: the i-th of a list. */
static json_t *value_of(const json_t *in, const char *name, size_t i)
{
    return name ? json_object_get(in, name) : json_array_get(in, i);
}

/* name NULL: it becomes the last of a list. */
static int put(const struct walk *w, json_t *in, const char *name, json_t *value)
{
    int r = name ? json_object_set_new(in, name, value) : json_array_append_new(in, value);
    return r < 0 ? hzp_fail(w->reterr, HZP_ENOMEM, "%s: out of memory", w->path) : HZP_OK;
}

/* A whole number from low to high, of `size` bytes. */
static int whole(const struct walk *w, json_t *in, const char *name, size_t i, int64_t low,
                 int64_t high, size_t size, void *at)
{
    const json_t *value = value_of(in, name, i);
    int64_t number = size == sizeof(uint8_t)   ? *(uint8_t *)at
                     : size == sizeof(int16_t) ? *(int16_t *)at
                                               : *(int32_t *)at;
    if (w->writes)
        return put(w, in, name, json_integer(number));
    number = json_integer_value(value);
    if (!json_is_integer(value) || number < low || number > high)
        return wrong(w, name);
    if (size == sizeof(uint8_t))
        *(uint8_t *)at = (uint8_t)number;
    else if (size == sizeof(int16_t))
        *(int16_t *)at = (int16_t)number;
    else
        *(int32_t *)at = (int32_t)number;
    return HZP_OK;
}

static int real(const struct walk *w, json_t *in, const char *name, size_t i, double high,
                double *at)
{
    const json_t *value = value_of(in, name, i);
    double number = json_number_value(value);
    if (w->writes)
        return put(w, in, name, json_real(isfinite(*at) ? *at : 0));
    if (!json_is_number(value) || !(number >= 0 && number <= high))
        return wrong(w, name);
    *at = number;
    return HZP_OK;
}

/* A file in which it is missing says no. */
static int flag(const struct walk *w, json_t *in, const char *name, bool *at)
{
    const json_t *value = json_object_get(in, name);
    if (w->writes)
        return put(w, in, name, json_boolean(*at));
    *at = json_is_true(value);
    return !value || json_is_boolean(value) ? HZP_OK : wrong(w, name);
}

static int text(const struct walk *w, json_t *in, const char *name, char *at, size_t size)
{
    const char *value = json_string_value(json_object_get(in, name));
    if (w->writes)
        return put(w, in, name, json_string(at));
    if (!value || strlen(value) >= size)
        return wrong(w, name);
    strcpy(at, value);
    return HZP_OK;
}

/* One of these words. */
static int word(const struct walk *w, json_t *in, const char *name, const char *(*spell)(int i),
                int words, uint8_t *at)
{
    const char *value = json_string_value(json_object_get(in, name));
    int i = 0;
    if (w->writes)
        return put(w, in, name, json_string(spell(*at)));
    while (i < words && (!value || strcmp(value, spell(i))))
        i++;
    *at = (uint8_t)i;
    return i < words ? HZP_OK : wrong(w, name);
}

static int object(const struct walk *w, json_t *in, const char *name, size_t i, json_t **ret)
{
    if (w->writes)
        HZP_TRY(put(w, in, name, json_object()));
    *ret = value_of(in, name, w->writes && !name ? json_array_size(in) - 1 : i);
    return json_is_object(*ret) ? HZP_OK : wrong(w, name);
}

/* A list of `least` to `most` values.  *ret_count: of one that is read. */
static int list(const struct walk *w, json_t *in, const char *name, size_t i, size_t least,
                size_t most, json_t **ret, int32_t *ret_count)
{
    if (w->writes)
        HZP_TRY(put(w, in, name, json_array()));
    *ret = value_of(in, name, w->writes && !name ? json_array_size(in) - 1 : i);
    size_t count = json_array_size(*ret);
    if (w->writes)
        return HZP_OK;
    if (!json_is_array(*ret) || count < least || count > most)
        return wrong(w, name);
    if (ret_count)
        *ret_count = (int32_t)count;
    return HZP_OK;
}

/* A list of just `count` whole numbers from 0 to `high`, of `size` bytes each. */
static int wholes(const struct walk *w, json_t *in, const char *name, size_t i, int32_t count,
                  int64_t high, size_t size, void *at)
{
    json_t *all;
    HZP_TRY(list(w, in, name, i, (size_t)count, (size_t)count, &all, NULL));
    for (size_t k = 0; k < (size_t)count; k++)
        HZP_TRY(whole(w, all, NULL, k, 0, high, size, (char *)at + k * size));
    return HZP_OK;
}

/* ---- measurements ---- */

static const char *op_word(int op)
{
    return hzp_op_name((enum hzp_op)op);
}

/* p: what is written; else one that is read. */
static int walk_point(const struct walk *w, json_t *points, size_t i, const struct hzp_op_key *key,
                      const struct hzp_point *p, struct hzp_tables *t)
{
    json_t *numbers;
    size_t count = (size_t)t->shares + 3;
    double value[3 + HZP_SHARES_MAX];
    if (p) {
        memcpy(value, &(double[]){p->x, p->y, p->work}, 3 * sizeof(*value));
        memcpy(value + 3, p->ns, (size_t)t->shares * sizeof(*value));
    }
    HZP_TRY(list(w, points, NULL, i, count, count, &numbers, NULL));
    for (size_t k = 0; k < count; k++)
        HZP_TRY(real(w, numbers, NULL, k, k < 3 ? number_max : time_max_ns, &value[k]));
    struct hzp_op_size size = {value[0], value[1], value[2]};
    for (int32_t s = 0; s < t->shares && !p; s++)
        if (value[3 + s] > 0)
            hzp_tables_set(t, key, &size, s, value[3 + s]);
    return HZP_OK;
}

/* c: what is written; else one that is read. */
static int walk_curve(struct walk *w, json_t *curves, size_t i, const struct hzp_curve *c,
                      struct hzp_tables *t)
{
    struct hzp_op_key key = c ? c->key : (struct hzp_op_key){.op = 0};
    bool again = key.again;
    int32_t count = c ? c->points : 0;
    json_t *curve, *points;
    HZP_TRY(object(w, curves, NULL, i, &curve));
    HZP_TRY(word(w, curve, "op", op_word, HZP_OP_COUNT, &key.op));
    HZP_TRY(whole(w, curve, "flags", 0, 0, UINT8_MAX, sizeof(key.flags), &key.flags));
    HZP_TRY(whole(w, curve, "type", 0, 0, 15, sizeof(key.type), &key.type));
    HZP_TRY(whole(w, curve, "a", 0, 0, INT32_MAX, sizeof(key.a), &key.a));
    HZP_TRY(whole(w, curve, "b", 0, 0, INT32_MAX, sizeof(key.b), &key.b));
    HZP_TRY(flag(w, curve, "again", &again));
    HZP_TRY(list(w, curve, "points", 0, 0, POINTS_MAX - w->points, &points, &count));
    key.again = again;
    w->points += (size_t)count;
    for (int32_t k = 0; k < count; k++)
        HZP_TRY(walk_point(w, points, (size_t)k, &key, c ? &c->point[k] : NULL, t));
    return HZP_OK;
}

/* from: what is written; else one that is read. */
static int walk_rate(const struct walk *w, json_t *rates, size_t i, const struct hzp_rate *from,
                     struct hzp_tables *t)
{
    struct hzp_rate r = from ? *from : (struct hzp_rate){.a = 0};
    json_t *pair;
    HZP_TRY(list(w, rates, NULL, i, 6, 6, &pair, NULL));
    HZP_TRY(whole(w, pair, NULL, 0, 0, HZP_CLASS_COUNT - 1, sizeof(r.a), &r.a));
    HZP_TRY(whole(w, pair, NULL, 1, 0, HZP_CLASS_COUNT - 1, sizeof(r.b), &r.b));
    HZP_TRY(whole(w, pair, NULL, 2, 0, INT16_MAX, sizeof(r.cores_a), &r.cores_a));
    HZP_TRY(whole(w, pair, NULL, 3, 0, INT16_MAX, sizeof(r.cores_b), &r.cores_b));
    HZP_TRY(real(w, pair, NULL, 4, 100, &r.rate_a));
    HZP_TRY(real(w, pair, NULL, 5, 100, &r.rate_b));
    if (!from)
        hzp_tables_set_rate(t, &r);
    return HZP_OK;
}

/* ---- plans ---- */

static const char *order_word(int order)
{
    static const char *const name[] = {"strands", "layers", "skewed"};
    return name[order];
}

/* A list of lists, one for each nano-batch. */
static int walk_nanos(const struct walk *w, json_t *plan, const char *name, int32_t nanos,
                      int64_t high, size_t size, void *at)
{
    json_t *lists;
    HZP_TRY(list(w, plan, name, 0, (size_t)nanos, (size_t)nanos, &lists, NULL));
    for (size_t i = 0; i < (size_t)nanos; i++)
        HZP_TRY(wholes(w, lists, NULL, i, HZP_KIND_COUNT, high, size,
                       (char *)at + i * HZP_KIND_COUNT * size));
    return HZP_OK;
}

/* Whether what a plan may lack is written, or there to be read. */
static bool has(const struct walk *w, const json_t *plan, const char *name)
{
    return w->writes || json_object_get(plan, name);
}

static int walk_shape(const struct walk *w, json_t *plan, struct hzp_plan_shape *s)
{
    const json_t *order = json_object_get(plan, "order");
    json_t *nanos;
    /* how earlier builds wrote these two in this format */
    bool chains = json_is_string(order) && !strcmp(json_string_value(order), "chains");
    const char *cores = has(w, plan, "cores") ? "cores" : "units";
    if (!w->writes)
        HZP_TRY(list(w, plan, "nanos", 0, 1, HZP_NANO_MAX, &nanos, &s->nanos));
    HZP_TRY(wholes(w, plan, "nanos", 0, s->nanos, 1 << 24, sizeof(*s->weight), s->weight));
    HZP_TRY(walk_nanos(w, plan, "lanes", s->nanos, HZP_LANE_COUNT - 1, 1, s->lane));
    HZP_TRY(
        wholes(w, plan, "train_lanes", 0, HZP_KIND_COUNT, HZP_LANE_COUNT - 1, 1, s->train_lane));
    HZP_TRY(wholes(w, plan, cores, 0, HZP_LANE_COUNT, CORES_MAX, sizeof(*s->share), s->share));
    HZP_TRY(whole(w, plan, "ride", 0, 0, 1 << 24, sizeof(s->ride), &s->ride));
    if (!chains) /* they are HZP_ORDER_STRANDS, which is 0 */
        HZP_TRY(word(w, plan, "order", order_word, HZP_ORDER_COUNT, &s->order));
    if (has(w, plan, "most_cores"))
        HZP_TRY(
            walk_nanos(w, plan, "most_cores", s->nanos, CORES_MAX, sizeof(**s->cores), s->cores));
    if (has(w, plan, "joined"))
        HZP_TRY(wholes(w, plan, "joined", 0, HZP_STAGE_COUNT, UINT8_MAX, 1, s->joined));
    if (has(w, plan, "network_lane"))
        HZP_TRY(whole(w, plan, "network_lane", 0, 0, HZP_LANE_COUNT - 1, 1, &s->network_lane));
    if (has(w, plan, "reduce"))
        HZP_TRY(wholes(w, plan, "reduce", 0, s->nanos, HZP_REDUCE_COUNT - 1, 1, s->reduce));
    return hzp_plan_shape_check(s, NULL) < 0 ? wrong(w, "a plan's shape") : HZP_OK;
}

/* from: what is written; else one that is read. */
static int walk_entry(const struct walk *w, json_t *entries, size_t i,
                      const struct hzp_plan_entry *from, struct hzp_plan_table *plans)
{
    struct hzp_plan_entry e = from ? *from : (struct hzp_plan_entry){.decode = 0};
    int32_t row[] = {e.decode, e.prefill, e.train};
    json_t *plan, *p;
    struct {
        const char *name;
        double *value;
    } predicted[] = {{"ns", &e.ns},
                     {"plain_ns", &e.plain_ns},
                     {"serve_ns", &e.serve_ns},
                     {"plain_serve_ns", &e.plain_serve_ns},
                     {"rate", &e.rate},
                     {"plain_rate", &e.plain_rate},
                     {"goal_ns", &e.goal_ns},
                     {"confirmed", &e.confirmed}};
    HZP_TRY(object(w, entries, NULL, i, &plan));
    HZP_TRY(wholes(w, plan, "rows", 0, HZP_COUNT(row), 1 << 24, sizeof(*row), row));
    HZP_TRY(walk_shape(w, plan, &e.shape));
    HZP_TRY(object(w, plan, "predicted", 0, &p));
    for (int k = 0; k < HZP_COUNT(predicted); k++)
        HZP_TRY(real(w, p, predicted[k].name, 0, number_max, predicted[k].value));
    if (from)
        return HZP_OK;
    e.decode = row[0];
    e.prefill = row[1];
    e.train = row[2];
    return hzp_plan_table_set(plans, &e, NULL) < 0 ? wrong(w, "the list of plans") : HZP_OK;
}

/* ---- all of it ---- */

static int walk_shares(const struct walk *w, json_t *root, struct hzp_tables *t)
{
    json_t *shares;
    HZP_TRY(whole(w, root, "threads", 0, 1, INT16_MAX, sizeof(t->threads), &t->threads));
    if (!w->writes)
        HZP_TRY(list(w, root, "shares", 0, 1, HZP_SHARES_MAX, &shares, &t->shares));
    HZP_TRY(wholes(w, root, "shares", 0, t->shares, t->threads, sizeof(*t->cores), t->cores));
    for (int32_t s = 0; s < t->shares; s++) /* they ascend */
        if (t->cores[s] <= (s ? t->cores[s - 1] : 0))
            return wrong(w, "shares");
    return HZP_OK;
}

static int walk_head(const struct walk *w, json_t *root, struct hzp_tables *t)
{
    json_t *between, *quiet;
    struct {
        const char *name;
        double *value, max;
    } times[] = {{"gap_inline_ns", &t->gap_inline_ns, time_max_ns},
                 {"gap_ns", &t->gap_ns, time_max_ns},
                 {"issue_ns", &t->issue_ns, time_max_ns},
                 {"handover_ns", &t->handover_ns, time_max_ns},
                 {"wakeup_ns", &t->wakeup_ns, time_max_ns},
                 {"plans_ns", &t->plans_ns, number_max},
                 {"items_ns", &t->items_ns, number_max}};
    HZP_TRY(text(w, root, "device", t->device, sizeof(t->device)));
    HZP_TRY(text(w, root, "model", t->model, sizeof(t->model)));
    HZP_TRY(text(w, root, "build", t->build, sizeof(t->build)));
    HZP_TRY(text(w, root, "settings", t->settings, sizeof(t->settings)));
    HZP_TRY(real(w, root, "spent_ns", 0, number_max, &t->spent_ns));
    HZP_TRY(object(w, root, "quiet", 0, &quiet));
    HZP_TRY(real(w, quiet, "watched_ns", 0, number_max, &t->watched_ns));
    HZP_TRY(real(w, quiet, "others_ns", 0, number_max, &t->others_ns));
    HZP_TRY(real(w, quiet, "others_max", 0, number_max, &t->others_max));
    HZP_TRY(flag(w, root, "whole", &t->whole));
    HZP_TRY(walk_shares(w, root, t));
    HZP_TRY(whole(w, root, "parts", 0, 0, 1 << 20, sizeof(t->parts), &t->parts));
    HZP_TRY(whole(w, root, "parts_done", 0, 0, t->parts, sizeof(t->parts_done), &t->parts_done));
    HZP_TRY(object(w, root, "between", 0, &between));
    for (int i = 0; i < HZP_COUNT(times); i++)
        HZP_TRY(real(w, between, times[i].name, 0, times[i].max, times[i].value));
    return flag(w, between, "led", &t->led);
}

static int walk_all(struct walk *w, json_t *root, struct hzp_tables *t,
                    struct hzp_plan_table *plans)
{
    const bool writes = w->writes;
    int32_t format = FORMAT, curves = t->curves, rates = t->rates, entries = plans->entries;
    json_t *in;
    if (whole(w, root, "hzpserve_search", 0, FORMAT, FORMAT, sizeof(format), &format) < 0)
        return hzp_fail(w->reterr, HZP_EFORMAT, "%s: not a file of this version of hzpserve search",
                        w->path);
    HZP_TRY(walk_head(w, root, t));
    HZP_TRY(text(w, root, "sought", plans->sought, sizeof(plans->sought)));
    HZP_TRY(list(w, root, "curves", 0, 0, CURVES_MAX, &in, &curves));
    for (int32_t i = 0; i < curves; i++)
        HZP_TRY(walk_curve(w, in, (size_t)i, writes ? &t->curve[i] : NULL, t));
    HZP_TRY(list(w, root, "pairs", 0, 0, RATES_MAX, &in, &rates));
    for (int32_t i = 0; i < rates; i++)
        HZP_TRY(walk_rate(w, in, (size_t)i, writes ? &t->rate[i] : NULL, t));
    HZP_TRY(list(w, root, "plans", 0, 0, HZP_PLAN_ENTRIES_MAX, &in, &entries));
    for (int32_t i = 0; i < entries; i++)
        HZP_TRY(walk_entry(w, in, (size_t)i, writes ? &plans->entry[i] : NULL, plans));
    return HZP_OK;
}

int hzp_search_save(const char *path, const struct hzp_tables *tables,
                    const struct hzp_plan_table *plans, struct hzp_err_text *reterr)
{
    const size_t flags = JSON_REAL_PRECISION(12) | JSON_COMPACT | JSON_SORT_KEYS;
    struct walk w = {.writes = true, .path = path, .reterr = reterr};
    struct hzp_tables from = *tables; /* what is written is not changed */
    struct hzp_plan_table table = *plans;
    char temporary[PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid()) >=
        sizeof(temporary))
        return hzp_fail(reterr, HZP_EINVAL, "%s: too long", path);
    char *slash = strrchr(temporary, '/');
    if (slash && slash > temporary) { /* create the file's directory if it is missing */
        *slash = 0;
        HZP_TRY(hzp_dir_make(temporary, NULL, reterr));
        *slash = '/';
    }
    json_auto_t *root = json_object();
    int r = walk_all(&w, root, &from, &table);
    HZP_FREED char *whole_text = r < 0 ? NULL : json_dumps(root, flags);
    if (whole_text)
        r = hzp_file_put_by(path, temporary, 0666, whole_text, strlen(whole_text), reterr);
    else if (r >= 0)
        r = hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", path);
    return r;
}

int hzp_search_load(const char *path, struct hzp_tables *tables, struct hzp_plan_table *plans,
                    struct hzp_err_text *reterr)
{
    struct walk w = {.path = path, .reterr = reterr};
    json_t *root = NULL;
    HZP_TRY(hzp_json_read(path, FILE_MAX, HZP_JSON_UNIQUE, &root, reterr));
    int result = walk_all(&w, root, tables, plans);
    json_decref(root);
    hzp_plan_table_index(plans);
    if (result < 0) {
        hzp_tables_fini(tables);
        hzp_plan_table_fini(plans);
    }
    return result;
}

/* ---- reading a plan table for a server ---- */

int hzp_search_plans(const char *plans, const struct hzp_device *dev,
                     const struct hzp_model_config *config, enum hzp_dtype type, bool fp8,
                     bool kv_fp8, int ranks, struct hzp_plan_table *ret_plans,
                     struct hzp_tables *ret_tables, struct hzp_err_text *reterr)
{
    bool automatic = !plans || !strcmp(plans, "auto");
    struct hzp_tables here, *read = ret_tables;
    struct hzp_err_text err = {0};
    char path[PATH_MAX], why[160];
    hzp_plan_table_init(ret_plans);
    hzp_tables_init(ret_tables);
    if (plans && !strcmp(plans, "off"))
        return HZP_OK;
    hzp_tables_init(&here);
    hzp_search_identify(dev, config, type, fp8, kv_fp8, &here);
    hzp_search_identify_ranks(&here, ranks);
    int r = HZP_OK;
    if (!automatic)
        snprintf(path, sizeof(path), "%s", plans);
    else
        r = hzp_search_path(&here, path, sizeof(path), &err);
    if (r == HZP_OK)
        r = hzp_search_load(path, read, ret_plans, &err);
    const char *misfit = r == HZP_OK ? hzp_search_misfit(read, &here) : NULL;
    bool other = misfit && (strcmp(read->device, here.device) || strcmp(read->model, here.model));
    const char *unusable = r == HZP_OK ? hzp_search_unusable(read, why) : NULL;
    if (other || unusable || (misfit && automatic)) {
        r = hzp_fail(&err, HZP_EINVAL, "%s: %s%s", path,
                     other      ? misfit
                     : unusable ? unusable
                                : misfit,
                     !other && unusable ? "; the same hzpserve search makes it usable" : "");
        hzp_plan_table_fini(ret_plans);
    } else if (r == HZP_OK && ret_plans->entries) {
        hzp_plan_table_drop_unproven(ret_plans);
        hzp_log(misfit ? HZP_LOG_WARN : HZP_LOG_INFO, "engine", "plans=\"%s\" steps=%d%s%s", path,
                ret_plans->entries, misfit ? " which " : "", misfit ? misfit : "");
    }
    if (r < 0 || misfit)
        hzp_tables_fini(ret_tables); /* measured by another build, or not to be relied on */
    if (r == HZP_OK || (automatic && r == HZP_ENOENT))
        return HZP_OK;
    if (automatic) {
        hzp_log(HZP_LOG_WARN, "engine", "no plans: %s", err.text);
        return HZP_OK;
    }
    return hzp_fail_param(reterr, r, "--plans", "%s", err.text);
}

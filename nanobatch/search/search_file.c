/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/search_file.h"

#include "base/arena.h"
#include "base/cache.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "base/json_file.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FORMAT = 4,
    FILE_MAX = 16 << 20,
    CURVES_MAX = 4096,
    POINTS_MAX = 16384,
    RATES_MAX = 4096,
    CORES_MAX = 1024
};

/* Times above a quarter of an hour are rejected. */
static const double time_max_ns = 1e12;

static const char *const order_name[] = {"strands", "layers", "skewed"};

/* ---- what a file applies to ---- */

/* A hash of the program's own bytes: a change of any kernel gives another build. */
static uint64_t hash_program(void)
{
    uint64_t hash = HZP_FNV;
    FILE *file = fopen("/proc/self/exe", "rb");
    char *block = hzp_xmalloc(1 << 16);
    size_t n;
    while (file && (n = fread(block, 1, 1 << 16, file)) > 0)
        hash = hzp_fnv(hash, block, n);
    if (file)
        fclose(file);
    free(block);
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

/* ---- writing ---- */

static void add_number(json_t *list, double value)
{
    json_array_append_new(list, json_real(isfinite(value) ? value : 0));
}

static json_t *curve_json(const struct hzp_tables *t, const struct hzp_curve *c)
{
    json_t *points = json_array();
    for (int32_t i = 0; i < c->points; i++) {
        json_t *point = json_array();
        add_number(point, c->point[i].x);
        add_number(point, c->point[i].y);
        add_number(point, c->point[i].work);
        for (int32_t s = 0; s < t->shares; s++)
            add_number(point, c->point[i].ns[s]);
        json_array_append_new(points, point);
    }
    return json_pack("{s:s, s:i, s:i, s:b, s:i, s:i, s:o}", "op",
                     hzp_op_name((enum hzp_op)c->key.op), "flags", c->key.flags, "type",
                     c->key.type, "again", c->key.again, "a", c->key.a, "b", c->key.b, "points",
                     points);
}

/* `count` whole numbers of `size` bytes each. */
static json_t *numbers(const void *value, size_t size, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const char *at = (const char *)value + (size_t)i * size;
        int64_t number = size == sizeof(uint8_t)   ? *(const uint8_t *)at
                         : size == sizeof(int16_t) ? *(const int16_t *)(const void *)at
                                                   : *(const int32_t *)(const void *)at;
        json_array_append_new(list, json_integer(number));
    }
    return list;
}

static json_t *entry_json(const struct hzp_plan_entry *e)
{
    const struct hzp_plan_shape *s = &e->shape;
    json_t *lanes = json_array(), *most = json_array();
    for (int32_t i = 0; i < s->nanos; i++) {
        json_array_append_new(most, numbers(s->cores[i], sizeof(**s->cores), HZP_KIND_COUNT));
        json_array_append_new(lanes, numbers(s->lane[i], 1, HZP_KIND_COUNT));
    }
    json_t *predicted =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "ns", e->ns, "plain_ns", e->plain_ns,
                  "serve_ns", e->serve_ns, "plain_serve_ns", e->plain_serve_ns, "rate", e->rate,
                  "plain_rate", e->plain_rate, "goal_ns", e->goal_ns, "confirmed", e->confirmed);
    return json_pack("{s:[i,i,i], s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:i, s:o, s:o}", "rows",
                     e->decode, e->prefill, e->train, "ride", s->ride, "nanos",
                     numbers(s->weight, sizeof(*s->weight), s->nanos), "joined",
                     numbers(s->joined, 1, HZP_STAGE_COUNT), "lanes", lanes, "most_cores", most,
                     "train_lanes", numbers(s->train_lane, 1, HZP_KIND_COUNT), "cores",
                     numbers(s->share, sizeof(*s->share), HZP_LANE_COUNT), "order",
                     order_name[s->order], "network_lane", s->network_lane, "reduce",
                     numbers(s->reduce, 1, s->nanos), "predicted", predicted);
}

static json_t *file_json(const struct hzp_tables *t, const struct hzp_plan_table *plans)
{
    json_t *curves = json_array(), *rates = json_array(), *entries = json_array();
    for (int32_t i = 0; i < t->curves; i++)
        json_array_append_new(curves, curve_json(t, &t->curve[i]));
    for (int32_t i = 0; i < t->rates; i++) {
        const struct hzp_rate *r = &t->rate[i];
        json_array_append_new(rates, json_pack("[i,i,i,i,f,f]", r->a, r->b, r->cores_a, r->cores_b,
                                               r->rate_a, r->rate_b));
    }
    for (int32_t i = 0; i < plans->entries; i++)
        json_array_append_new(entries, entry_json(&plans->entry[i]));
    json_t *between = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "plans_ns", t->plans_ns,
                                "items_ns", t->items_ns, "gap_inline_ns", t->gap_inline_ns,
                                "gap_ns", t->gap_ns, "issue_ns", t->issue_ns, "handover_ns",
                                t->handover_ns, "wakeup_ns", t->wakeup_ns, "led", t->led);
    json_t *quiet = json_pack("{s:f, s:f, s:f}", "watched_ns", t->watched_ns, "others_ns",
                              t->others_ns, "others_max", t->others_max);
    return json_pack("{s:i, s:b, s:o, s:f, s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:i, s:i, s:o, s:o, "
                     "s:o, s:o}",
                     "hzpserve_search", FORMAT, "whole", t->whole, "quiet", quiet, "spent_ns",
                     t->spent_ns, "sought", plans->sought, "device", t->device, "model", t->model,
                     "build", t->build, "settings", t->settings, "threads", t->threads, "shares",
                     numbers(t->cores, sizeof(*t->cores), t->shares), "parts", t->parts,
                     "parts_done", t->parts_done, "between", between, "curves", curves, "pairs",
                     rates, "plans", entries);
}

int hzp_search_save(const char *path, const struct hzp_tables *tables,
                    const struct hzp_plan_table *plans, struct hzp_err_text *reterr)
{
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
    const size_t flags = JSON_REAL_PRECISION(12) | JSON_COMPACT | JSON_SORT_KEYS;
    json_t *root = file_json(tables, plans); /* NULL: no memory, then there is no text either */
    char *text = json_dumps(root, flags);
    json_decref(root);
    int r = text ? hzp_file_put_by(path, temporary, 0666, text, strlen(text), reterr)
                 : hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", path);
    free(text);
    return r;
}

/* ---- reading ---- */

struct reader {
    const char *path;
    struct hzp_err_text *reterr;
    size_t points; /* total over all curves */
};

static int wrong(const struct reader *r, const char *what)
{
    return hzp_fail(r->reterr, HZP_EFORMAT, "%s: %s is missing or wrong", r->path, what);
}

static int read_int(const struct reader *r, const json_t *value, const char *what, int64_t low,
                    int64_t high, int64_t *ret)
{
    if (!json_is_integer(value) || json_integer_value(value) < low ||
        json_integer_value(value) > high)
        return wrong(r, what);
    *ret = json_integer_value(value);
    return HZP_OK;
}

static int read_number(const struct reader *r, const json_t *value, const char *what, double *ret)
{
    double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= 0 && v <= 1e18))
        return wrong(r, what);
    *ret = v;
    return HZP_OK;
}

static int read_text(const struct reader *r, const json_t *root, const char *name, char *ret,
                     size_t size)
{
    const char *text = json_string_value(json_object_get(root, name));
    if (!text || strlen(text) >= size)
        return wrong(r, name);
    strcpy(ret, text);
    return HZP_OK;
}

static int op_named(const char *name)
{
    for (int op = 0; name && op < HZP_OP_COUNT; op++)
        if (!strcmp(name, hzp_op_name((enum hzp_op)op)))
            return op;
    return -1;
}

static int read_point(const struct reader *r, const json_t *point, const struct hzp_op_key *key,
                      struct hzp_tables *t)
{
    double value[3 + HZP_SHARES_MAX];
    if (json_array_size(point) != (size_t)(3 + t->shares))
        return wrong(r, "a point");
    for (int32_t i = 0; i < 3 + t->shares; i++)
        HZP_TRY(read_number(r, json_array_get(point, (size_t)i), "a point's number", &value[i]));
    struct hzp_op_size size = {value[0], value[1], value[2]};
    for (int32_t s = 0; s < t->shares; s++)
        if (value[3 + s] > time_max_ns)
            return wrong(r, "a point's time");
        else if (value[3 + s] > 0)
            hzp_tables_set(t, key, &size, s, value[3 + s]);
    return HZP_OK;
}

static int read_curve(struct reader *r, const json_t *curve, struct hzp_tables *t)
{
    int op = op_named(json_string_value(json_object_get(curve, "op")));
    const json_t *points = json_object_get(curve, "points");
    int64_t flags, type, a, b;
    r->points += json_array_size(points);
    if (op < 0 || !json_is_array(points) || r->points > POINTS_MAX)
        return wrong(r, "a curve");
    HZP_TRY(read_int(r, json_object_get(curve, "flags"), "flags", 0, UINT8_MAX, &flags));
    HZP_TRY(read_int(r, json_object_get(curve, "type"), "type", 0, 15, &type));
    HZP_TRY(read_int(r, json_object_get(curve, "a"), "a", 0, INT32_MAX, &a));
    HZP_TRY(read_int(r, json_object_get(curve, "b"), "b", 0, INT32_MAX, &b));
    struct hzp_op_key key = {(uint8_t)op,   (uint8_t)flags,
                             (uint8_t)type, json_is_true(json_object_get(curve, "again")),
                             (int32_t)a,    (int32_t)b};
    for (size_t i = 0; i < json_array_size(points); i++)
        HZP_TRY(read_point(r, json_array_get(points, i), &key, t));
    return HZP_OK;
}

static int read_rate(const struct reader *r, const json_t *list, struct hzp_tables *t)
{
    static const int64_t high[] = {HZP_CLASS_COUNT - 1, HZP_CLASS_COUNT - 1, INT16_MAX, INT16_MAX};
    int64_t whole[4];
    double rate[2];
    for (size_t i = 0; i < 4; i++)
        HZP_TRY(read_int(r, json_array_get(list, i), "a pair", 0, high[i], &whole[i]));
    for (size_t i = 0; i < 2; i++) {
        HZP_TRY(read_number(r, json_array_get(list, 4 + i), "a pair's rate", &rate[i]));
        if (rate[i] > 100)
            return wrong(r, "a pair's rate");
    }
    hzp_tables_set_rate(t,
                        &(struct hzp_rate){(uint8_t)whole[0], (uint8_t)whole[1], (int16_t)whole[2],
                                           (int16_t)whole[3], rate[0], rate[1]});
    return HZP_OK;
}

/* A list of just `count` whole numbers from 0 to `high`, into elements of `size` bytes each. */
static int read_numbers(const struct reader *r, const json_t *list, const char *what, size_t count,
                        int64_t high, size_t size, void *ret)
{
    if (json_array_size(list) != count)
        return wrong(r, what);
    for (size_t i = 0; i < count; i++) {
        char *at = (char *)ret + i * size;
        int64_t value;
        HZP_TRY(read_int(r, json_array_get(list, i), what, 0, high, &value));
        if (size == sizeof(uint8_t))
            *(uint8_t *)at = (uint8_t)value;
        else if (size == sizeof(int16_t))
            *(int16_t *)(void *)at = (int16_t)value;
        else
            *(int32_t *)(void *)at = (int32_t)value;
    }
    return HZP_OK;
}

static int read_lanes(const struct reader *r, const json_t *list, uint8_t *ret)
{
    return read_numbers(r, list, "a plan's lanes", HZP_KIND_COUNT, HZP_LANE_COUNT - 1, 1, ret);
}

/* HZP_ORDER_COUNT: no such order. */
static uint8_t order_named(const char *name)
{
    uint8_t order = 0;
    if (!strcmp(name, "chains")) /* how earlier builds wrote "strands" in this format */
        return HZP_ORDER_STRANDS;
    while (order < HZP_ORDER_COUNT && strcmp(name, order_name[order]))
        order++;
    return order;
}

/* How many cores each nano-operation uses at most; absent: all of its lane's. */
static int read_most(const struct reader *r, const json_t *json, struct hzp_plan_shape *s)
{
    const char *what = "what cores a plan's items use";
    const json_t *most = json_object_get(json, "most_cores");
    if (most && json_array_size(most) != (size_t)s->nanos)
        return wrong(r, what);
    for (size_t i = 0; i < json_array_size(most); i++)
        HZP_TRY(read_numbers(r, json_array_get(most, i), what, HZP_KIND_COUNT, CORES_MAX,
                             sizeof(**s->cores), s->cores[i]));
    return HZP_OK;
}

/* What a plan may lack: which nano-batches each stage computes as one (none), and how ranks that
 * compute together exchange (as one rank, which does not). */
static int read_optional(const struct reader *r, const json_t *json, struct hzp_plan_shape *s)
{
    const json_t *joined = json_object_get(json, "joined");
    const json_t *lane = json_object_get(json, "network_lane");
    const json_t *reduce = json_object_get(json, "reduce");
    int64_t value = s->network_lane;
    if (joined)
        HZP_TRY(read_numbers(r, joined, "a plan's joined nano-batches", HZP_STAGE_COUNT, UINT8_MAX,
                             1, s->joined));
    if (lane)
        HZP_TRY(read_int(r, lane, "a plan's network lane", 0, HZP_LANE_COUNT - 1, &value));
    s->network_lane = (uint8_t)value;
    return reduce ? read_numbers(r, reduce, "how a plan's ranks add up", (size_t)s->nanos,
                                 HZP_REDUCE_COUNT - 1, 1, s->reduce)
                  : HZP_OK;
}

static int read_shape(const struct reader *r, const json_t *json, struct hzp_plan_shape *s)
{
    const json_t *nanos = json_object_get(json, "nanos"), *lanes = json_object_get(json, "lanes");
    const json_t *cores = json_object_get(json, "cores");
    const char *order = json_string_value(json_object_get(json, "order"));
    size_t count = json_array_size(nanos);
    int64_t value;
    if (!cores)
        cores = json_object_get(json, "units"); /* how earlier builds wrote it in this format */
    if (count < 1 || count > HZP_NANO_MAX || json_array_size(lanes) != count || !order)
        return wrong(r, "a plan's shape");
    s->nanos = (int32_t)count;
    HZP_TRY(read_numbers(r, nanos, "a nano-batch", count, 1 << 24, sizeof(*s->weight), s->weight));
    for (size_t i = 0; i < count; i++)
        HZP_TRY(read_lanes(r, json_array_get(lanes, i), s->lane[i]));
    HZP_TRY(read_lanes(r, json_object_get(json, "train_lanes"), s->train_lane));
    HZP_TRY(read_numbers(r, cores, "a lane's cores", HZP_LANE_COUNT, CORES_MAX, sizeof(*s->share),
                         s->share));
    HZP_TRY(read_int(r, json_object_get(json, "ride"), "a plan's riding rows", 0, 1 << 24, &value));
    s->ride = (int32_t)value;
    s->order = order_named(order);
    HZP_TRY(read_most(r, json, s));
    HZP_TRY(read_optional(r, json, s));
    return hzp_plan_shape_check(s, NULL) < 0 ? wrong(r, "a plan's shape") : HZP_OK;
}

static int read_entry(const struct reader *r, const json_t *json, struct hzp_plan_table *plans)
{
    struct hzp_plan_entry e = {0};
    const json_t *rows = json_object_get(json, "rows"), *p = json_object_get(json, "predicted");
    int32_t row[3];
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
    HZP_TRY(read_numbers(r, rows, "a plan's rows", 3, 1 << 24, sizeof(*row), row));
    e.decode = row[0];
    e.prefill = row[1];
    e.train = row[2];
    HZP_TRY(read_shape(r, json, &e.shape));
    for (int i = 0; i < HZP_COUNT(predicted); i++)
        HZP_TRY(read_number(r, json_object_get(p, predicted[i].name), predicted[i].name,
                            predicted[i].value));
    return hzp_plan_table_set(plans, &e, NULL) < 0 ? wrong(r, "the list of plans") : HZP_OK;
}

static int read_head(const struct reader *r, const json_t *root, struct hzp_tables *t)
{
    const json_t *shares = json_object_get(root, "shares"), *b = json_object_get(root, "between");
    const json_t *quiet = json_object_get(root, "quiet");
    int64_t value;
    struct {
        const char *name;
        double *value, max;
    } between[] = {{"gap_inline_ns", &t->gap_inline_ns, time_max_ns},
                   {"gap_ns", &t->gap_ns, time_max_ns},
                   {"issue_ns", &t->issue_ns, time_max_ns},
                   {"handover_ns", &t->handover_ns, time_max_ns},
                   {"wakeup_ns", &t->wakeup_ns, time_max_ns},
                   {"plans_ns", &t->plans_ns, INFINITY},
                   {"items_ns", &t->items_ns, INFINITY}};
    HZP_TRY(read_text(r, root, "device", t->device, sizeof(t->device)));
    HZP_TRY(read_text(r, root, "model", t->model, sizeof(t->model)));
    HZP_TRY(read_text(r, root, "build", t->build, sizeof(t->build)));
    HZP_TRY(read_text(r, root, "settings", t->settings, sizeof(t->settings)));
    HZP_TRY(read_number(r, json_object_get(root, "spent_ns"), "spent_ns", &t->spent_ns));
    HZP_TRY(read_number(r, json_object_get(quiet, "watched_ns"), "watched_ns", &t->watched_ns));
    HZP_TRY(read_number(r, json_object_get(quiet, "others_ns"), "others_ns", &t->others_ns));
    HZP_TRY(read_number(r, json_object_get(quiet, "others_max"), "others_max", &t->others_max));
    if (!json_is_boolean(json_object_get(root, "whole")))
        return wrong(r, "whole");
    t->whole = json_is_true(json_object_get(root, "whole"));
    HZP_TRY(read_int(r, json_object_get(root, "threads"), "threads", 1, INT16_MAX, &value));
    t->threads = (int32_t)value;
    if (json_array_size(shares) < 1 || json_array_size(shares) > HZP_SHARES_MAX)
        return wrong(r, "shares");
    for (t->shares = 0; t->shares < (int32_t)json_array_size(shares); t->shares++) {
        int64_t least = t->shares ? t->cores[t->shares - 1] + 1 : 1;
        HZP_TRY(read_int(r, json_array_get(shares, (size_t)t->shares), "shares", least, t->threads,
                         &value));
        t->cores[t->shares] = (int16_t)value;
    }
    HZP_TRY(read_int(r, json_object_get(root, "parts"), "parts", 0, 1 << 20, &value));
    t->parts = (int32_t)value;
    HZP_TRY(read_int(r, json_object_get(root, "parts_done"), "parts_done", 0, t->parts, &value));
    t->parts_done = (int32_t)value;
    for (int i = 0; i < HZP_COUNT(between); i++) {
        HZP_TRY(
            read_number(r, json_object_get(b, between[i].name), between[i].name, between[i].value));
        if (*between[i].value > between[i].max)
            return wrong(r, between[i].name);
    }
    t->led = json_is_true(json_object_get(b, "led"));
    return HZP_OK;
}

static int read_list(const struct reader *r, const json_t *root, const char *name, size_t max,
                     const json_t **ret)
{
    *ret = json_object_get(root, name);
    return json_is_array(*ret) && json_array_size(*ret) <= max ? HZP_OK : wrong(r, name);
}

static int read_all(struct reader *r, const json_t *root, struct hzp_tables *t,
                    struct hzp_plan_table *plans)
{
    const json_t *list;
    int64_t format;
    if (read_int(r, json_object_get(root, "hzpserve_search"), "format", FORMAT, FORMAT, &format) <
        0)
        return hzp_fail(r->reterr, HZP_EFORMAT, "%s: not a file of this version of hzpserve search",
                        r->path);
    HZP_TRY(read_head(r, root, t));
    HZP_TRY(read_text(r, root, "sought", plans->sought, sizeof(plans->sought)));
    HZP_TRY(read_list(r, root, "curves", CURVES_MAX, &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        HZP_TRY(read_curve(r, json_array_get(list, i), t));
    HZP_TRY(read_list(r, root, "pairs", RATES_MAX, &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        HZP_TRY(read_rate(r, json_array_get(list, i), t));
    HZP_TRY(read_list(r, root, "plans", HZP_PLAN_ENTRIES_MAX, &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        HZP_TRY(read_entry(r, json_array_get(list, i), plans));
    hzp_plan_table_index(plans);
    return HZP_OK;
}

int hzp_search_load(const char *path, struct hzp_tables *tables, struct hzp_plan_table *plans,
                    struct hzp_err_text *reterr)
{
    struct reader r = {path, reterr, 0};
    json_t *root = NULL;
    HZP_TRY(hzp_json_read(path, FILE_MAX, HZP_JSON_UNIQUE, &root, reterr));
    int result = read_all(&r, root, tables, plans);
    json_decref(root);
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

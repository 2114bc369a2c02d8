/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/plan/plan_table.h"

void hzp_plan_table_init(struct hzp_plan_table *t)
{
    memset(t, 0, sizeof(*t));
}

void hzp_plan_table_fini(struct hzp_plan_table *t)
{
    free(t->entry);
    memset(t, 0, sizeof(*t));
}

/* The distance between two row counts, |log(a / b)|; larger than any of these if exactly one of
 * them is 0. */
static double apart(int32_t a, int32_t b)
{
    if (!a != !b)
        return 100;
    return a == b ? 0 : fabs(log((double)a / b));
}

static int rows_of(const struct hzp_plan_entry *e, int axis)
{
    return axis == 0 ? e->decode : axis == 1 ? e->prefill : e->train;
}

/* Adds rows to an axis' buckets.  False: there are too many. */
static bool add_bucket(struct hzp_plan_table *t, int axis, int32_t rows)
{
    int32_t at = 0, *bucket = t->bucket[axis];
    while (at < t->buckets[axis] && bucket[at] < rows)
        at++;
    if (at < t->buckets[axis] && bucket[at] == rows)
        return true;
    if (t->buckets[axis] == HZP_BUCKETS_MAX)
        return false;
    memmove(bucket + at + 1, bucket + at, (size_t)(t->buckets[axis] - at) * sizeof(*bucket));
    bucket[at] = rows;
    t->buckets[axis]++;
    return true;
}

/* Sets every cell to the entry nearest to it. */
void hzp_plan_table_index(struct hzp_plan_table *t)
{
    for (int32_t d = 0; d < t->buckets[0]; d++)
        for (int32_t p = 0; p < t->buckets[1]; p++)
            for (int32_t r = 0; r < t->buckets[2]; r++) {
                double least = INFINITY;
                for (int32_t i = 0; i < t->entries; i++) {
                    const struct hzp_plan_entry *e = &t->entry[i];
                    double far = apart(e->decode, t->bucket[0][d]) +
                                 apart(e->prefill, t->bucket[1][p]) +
                                 2 * apart(e->train, t->bucket[2][r]);
                    if (far < least) {
                        least = far;
                        t->cell[d][p][r] = (int16_t)i;
                    }
                }
            }
}

int hzp_plan_table_set(struct hzp_plan_table *t, const struct hzp_plan_entry *entry,
                       struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_plan_shape_check(&entry->shape, reterr));
    for (int axis = 0; axis < 3; axis++)
        if (rows_of(entry, axis) < 0)
            return hzp_fail(reterr, HZP_EINVAL, "plans: an entry of %d rows", rows_of(entry, axis));
    int32_t at = 0;
    while (at < t->entries &&
           (t->entry[at].decode != entry->decode || t->entry[at].prefill != entry->prefill ||
            t->entry[at].train != entry->train))
        at++;
    if (at == t->entries) {
        struct hzp_plan_table before = *t;
        bool fits = t->entries < HZP_PLAN_ENTRIES_MAX;
        for (int axis = 0; axis < 3 && fits; axis++)
            fits = add_bucket(t, axis, rows_of(entry, axis));
        if (!fits) {
            memcpy(t->bucket, before.bucket, sizeof(t->bucket));
            memcpy(t->buckets, before.buckets, sizeof(t->buckets));
            return hzp_fail(reterr, HZP_EBUSY, "plans: more than %d entries, or %d buckets",
                            HZP_PLAN_ENTRIES_MAX, HZP_BUCKETS_MAX);
        }
        t->entry = hzp_xgrow(t->entry, &t->room, t->entries + 1, sizeof(*t->entry));
        t->entries++;
    }
    t->entry[at] = *entry;
    return HZP_OK;
}

static int32_t nearest(const struct hzp_plan_table *t, int axis, int32_t rows)
{
    int32_t best = 0;
    for (int32_t i = 1; i < t->buckets[axis]; i++)
        if (apart(t->bucket[axis][i], rows) < apart(t->bucket[axis][best], rows))
            best = i;
    return best;
}

const struct hzp_plan_entry *hzp_plan_table_find(const struct hzp_plan_table *t, int32_t decode,
                                                 int32_t prefill, int32_t train)
{
    if (!t->entries)
        return NULL;
    return &t->entry[t->cell[nearest(t, 0, decode)][nearest(t, 1, prefill)][nearest(t, 2, train)]];
}

uint64_t hzp_plan_table_hash(const struct hzp_plan_table *t)
{
    uint64_t hash = hzp_hash_numbers(0, &t->entries, 1);
    for (int32_t i = 0; i < t->entries; i++) {
        const struct hzp_plan_entry *e = &t->entry[i];
        const struct hzp_plan_shape *s = &e->shape;
        int32_t is[] = {e->decode, e->prefill,      e->train, s->nanos,
                        s->order,  s->network_lane, s->ride};
        hash = hzp_hash_numbers(hash, is, HZP_COUNT(is));
        hash = hzp_hash_numbers(hash, s->weight, s->nanos);
        for (int k = 0; k < HZP_STAGE_COUNT; k++)
            hash = hzp_hash_numbers(hash, &(int32_t){s->joined[k]}, 1);
        for (int32_t n = 0; n < s->nanos; n++) {
            hash = hzp_hash_numbers(hash, &(int32_t){s->reduce[n]}, 1);
            for (int k = 0; k < HZP_KIND_COUNT; k++) {
                hash = hzp_hash_numbers(hash, &(int32_t){s->lane[n][k]}, 1);
                hash = hzp_hash_numbers(hash, &(int32_t){s->cores[n][k]}, 1);
            }
        }
        for (int l = 0; l < HZP_LANE_COUNT; l++)
            hash = hzp_hash_numbers(hash, &(int32_t){s->share[l]}, 1);
    }
    return hash;
}

int32_t hzp_plan_table_ride(const struct hzp_plan_table *t)
{
    int32_t best = 0, most = 0;
    for (int32_t i = 0; i < t->entries; i++) {
        int32_t rows = t->entry[i].shape.ride, count = 0;
        for (int32_t k = 0; k < t->entries && rows; k++)
            count += t->entry[k].shape.ride == rows;
        if (count > most || (count == most && rows < best)) {
            most = count;
            best = rows;
        }
    }
    return best;
}

/* Appends to text, which holds HZP_SHAPE_TEXT bytes. */
__attribute__((format(printf, 2, 3))) static void append(char *text, const char *format, ...)
{
    size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, HZP_SHAPE_TEXT - at, format, args);
    va_end(args);
}

/* The nano-batches whose rows the ranks divide. */
static void append_divided(char *text, const struct hzp_plan_shape *s)
{
    int32_t count = 0, named = 0;
    for (int32_t i = 0; i < s->nanos; i++)
        count += s->reduce[i] == HZP_REDUCE_SCATTERED;
    if (count)
        append(text, ", rows divided%s", count < s->nanos ? " of " : "");
    for (int32_t i = 0; i < s->nanos && count < s->nanos; i++)
        if (s->reduce[i] == HZP_REDUCE_SCATTERED)
            append(text, "%s%d", named++ ? "," : "", i);
}

/* How many parts each stage of a layer has, if they differ. */
static void append_parts(char *text, const struct hzp_plan_shape *s)
{
    uint8_t joined = 0;
    for (int k = 0; k < HZP_STAGE_COUNT; k++)
        joined |= s->joined[k];
    for (int k = 0; k < HZP_STAGE_COUNT && joined; k++) {
        enum hzp_layer_stage stage = (enum hzp_layer_stage)k;
        append(text, "%s %s %d", k ? "," : ", parts of", hzp_layer_stage_name(stage),
               hzp_plan_shape_parts(s, stage));
    }
}

/* How many cores the ops of which nano-batches use at most. */
static void append_cores(char *text, const struct hzp_plan_shape *s)
{
    bool first = true;
    for (int32_t i = 0; i < s->nanos; i++) {
        const int16_t *c = s->cores[i];
        if (!(c[0] | c[1] | c[2] | c[3]))
            continue;
        append(text, "%s %d:%d/%d/%d/%d", first ? ", cores" : "", i, c[0], c[1], c[2], c[3]);
        first = false;
    }
}

const char *hzp_plan_shape_text(const struct hzp_plan_shape *s, char *text)
{
    static const char *const order[] = {"strands", "layers", "skewed"};
    const uint8_t *train = s->train_lane;
    uint32_t used = hzp_plan_shape_serves(s) | hzp_plan_shape_trains(s);
    int lanes = __builtin_popcount(used);
    text[0] = 0;
    if (s->nanos == 1)
        append(text, "1 nano-batch");
    for (int32_t i = 0; i < s->nanos && s->nanos > 1; i++)
        append(text, "%s%d", i ? ":" : "", s->weight[i]);
    if (s->nanos > 1)
        append(text, " in %s", order[s->order]);
    append_parts(text, s);
    if (s->ride)
        append(text, ", training rides by %d rows", s->ride);
    append_divided(text, s);
    if (s->network_lane != HZP_LANE_COMPUTE)
        append(text, ", collectives on %s",
               hzp_lane_name_text((enum hzp_lane_name)s->network_lane));
    if (lanes == 1)
        append(text, ", one lane");
    for (int32_t i = 0; i < s->nanos && lanes > 1; i++)
        append(text, "%s %d%d%d%d", i ? "" : ", lanes", s->lane[i][0], s->lane[i][1], s->lane[i][2],
               s->lane[i][3]);
    append_cores(text, s);
    if (lanes == 1)
        return text;
    append(text, ", training %d%d%d%d, shares", train[0], train[1], train[2], train[3]);
    for (int l = 0; l < HZP_LANE_COUNT; l++)
        if (used >> l & 1)
            append(text, " %d=%d", l, s->share[l]);
    return text;
}

uint32_t hzp_plan_table_lanes(const struct hzp_plan_table *t)
{
    uint32_t lanes = 0;
    for (int32_t i = 0; i < t->entries; i++)
        lanes |= hzp_plan_shape_lanes(&t->entry[i].shape);
    return lanes;
}

bool hzp_plan_shape_plain(const struct hzp_plan_shape *s)
{
    bool one = s->nanos == 1 && !s->ride && !s->network_lane && !s->reduce[0];
    for (int k = 0; k < HZP_KIND_COUNT && one; k++)
        one =
            s->lane[0][k] == s->lane[0][0] && !s->cores[0][k] && s->train_lane[k] == s->lane[0][0];
    return one;
}

void hzp_plan_table_drop_unproven(struct hzp_plan_table *t)
{
    for (int32_t i = 0; i < t->entries; i++) {
        struct hzp_plan_entry *e = &t->entry[i];
        if (e->confirmed > 0 || hzp_plan_shape_plain(&e->shape))
            continue;
        e->shape = hzp_plan_sequential;
        e->ns = e->plain_ns;
        e->serve_ns = e->plain_serve_ns;
        e->rate = e->plain_rate;
    }
}

void hzp_plan_table_print(const struct hzp_plan_table *t, FILE *out)
{
    char text[HZP_SHAPE_TEXT], run[16];
    fprintf(out,
            "\nPlans (lanes by kind of op: products, decode attention, prompt attention, rows; "
            "0 compute, 1 memory, 4 train).\nMilliseconds, rate of training and gain as predicted, "
            "and the gain as run, if it was.\n%7s %7s %6s %9s %9s %7s %7s %7s %7s  %s\n",
            "decode", "prompt", "train", "ms", "plain ms", "rate", "plain", "gain", "run", "shape");
    for (int32_t i = 0; i < t->entries; i++) {
        const struct hzp_plan_entry *e = &t->entry[i];
        double gain =
            e->train ? e->plain_rate > 0 ? e->rate / e->plain_rate : 1 : e->plain_ns / e->ns;
        bool plain = hzp_plan_shape_plain(&e->shape);
        snprintf(run, sizeof(run), e->confirmed > 0 ? "%+.1f%%" : "-", 100 * (e->confirmed - 1));
        fprintf(out, "%7d %7d %6d %9.2f %9.2f %7.3f %7.3f %+6.1f%% %7s  %s%s\n", e->decode,
                e->prefill, e->train, e->ns * 1e-6, e->plain_ns * 1e-6, e->rate, e->plain_rate,
                100 * (gain - 1), run, hzp_plan_shape_text(&e->shape, text),
                !plain             ? e->confirmed > 0 ? "" : " (not run: not used)"
                : e->confirmed > 0 ? " (wins when run)"
                                   : " (wins)");
    }
}

enum { SHAPE, BESIDE, TABLE }; /* the numbers; of the table's entries from TABLE on */

int32_t hzp_plan_shapes_each(const struct hzp_plan_shapes *shapes)
{
    bool beside = shapes->beside && hzp_plan_shape_beside(shapes->beside);
    return beside || shapes->plans ? 2 : 1;
}

int32_t hzp_plan_shapes_number(const struct hzp_plan_shapes *shapes,
                               const struct hzp_plan_shape *shape)
{
    if (!shape)
        return -1;
    if (shape == shapes->shape)
        return SHAPE;
    if (shape == shapes->beside)
        return BESIDE;
    for (int32_t i = 0; shapes->plans && i < shapes->plans->entries; i++)
        if (shape == &shapes->plans->entry[i].shape)
            return TABLE + i;
    HZP_ASSERT(!"a shape that is none of the process's");
    return -1;
}

bool hzp_plan_shapes_at(const struct hzp_plan_shapes *shapes, int32_t number,
                        const struct hzp_plan_shape **ret)
{
    int32_t entries = shapes->plans ? shapes->plans->entries : 0;
    *ret = NULL;
    if (number == SHAPE)
        *ret = shapes->shape;
    else if (number == BESIDE)
        *ret = shapes->beside;
    else if (number >= TABLE && number - TABLE < entries)
        *ret = &shapes->plans->entry[number - TABLE].shape;
    return *ret || number == -1;
}

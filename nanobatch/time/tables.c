/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/tables.h"

#include "device/operand.h"
#include "mesh/link.h"
#include "nanobatch/time/rates.h"

static uint8_t types_of(const struct hzp_mat *first, const struct hzp_mat *last)
{
    return (uint8_t)(first->type + 8 * last->type);
}

static void describe_matmul(const struct hzp_matmul_args *m, struct hzp_op_key *key,
                            struct hzp_op_size *size)
{
    key->flags = (uint8_t)((m->trans_a ? 1 : 0) | (m->trans_b ? 2 : 0) | (m->accumulate ? 4 : 0) |
                           (m->bias.ptr ? 8 : 0));
    key->type = types_of(&m->a, &m->c);
    key->a = m->trans_a ? m->c.rows : m->c.cols;
    key->b = m->trans_a ? m->c.cols : m->a.cols;
    size->x = m->trans_a ? m->a.rows : m->c.rows;
}

/* The positions that a row attends to, on average, where only the longest lengths are known. */
static double seen(const struct hzp_segs *segs, int32_t window)
{
    double all = segs->ctx_max - segs->rows_max + (segs->rows_max + 1) / 2.0;
    return window > 0 ? HZP_MIN(all, (double)window) : all;
}

static void describe_attention(const struct hzp_mat *out, const struct hzp_segs *segs,
                               const struct hzp_heads *heads, int32_t window,
                               struct hzp_op_key *key, struct hzp_op_size *size)
{
    key->type = (uint8_t)out->type;
    key->a = heads->heads * 1024 + heads->kv_heads;
    key->b = heads->dim;
    size->x = out->rows;
    size->y = seen(segs, window);
}

static void by_rows(const struct hzp_mat *first, const struct hzp_mat *last, struct hzp_op_key *key,
                    struct hzp_op_size *size)
{
    key->type = types_of(first, last);
    key->a = first->cols;
    size->x = first->rows;
}

static void by_elements(const struct hzp_mat *first, const struct hzp_mat *last,
                        struct hzp_op_key *key, struct hzp_op_size *size)
{
    key->type = types_of(first, last);
    size->x = (double)first->rows * first->cols;
}

/* Any op that has no case of its own below: by what it writes, else by what it reads first. */
static void describe_operands(enum hzp_op op, const void *args, struct hzp_op_key *key,
                              struct hzp_op_size *size)
{
    struct hzp_operand operand[HZP_ACCESS_MAX];
    const struct hzp_mat *written = NULL, *read = NULL;
    int count = hzp_op_operands(op, args, operand);
    for (int i = 0; i < count; i++) {
        const struct hzp_mat **mat = operand[i].writes ? &written : &read;
        if (operand[i].mat && !*mat)
            *mat = operand[i].mat;
    }
    const struct hzp_mat *first = written ? written : read, *last = read ? read : written;
    if (!first)
        return;
    if (hzp_op_class(op, args) == HZP_CLASS_UPDATE)
        by_elements(first, last, key, size);
    else
        by_rows(first, last, key, size);
}

/* first and last: the matrices whose types and widths matter. */
#define BY_ROWS(name, first, last)                                                                 \
    case HZP_OP_##name: {                                                                          \
        const struct hzp_##name##_args *v = args;                                                  \
        by_rows(&v->first, &v->last, key, size);                                                   \
        break;                                                                                     \
    }
#define BY_ELEMENTS(name, first, last)                                                             \
    case HZP_OP_##name: {                                                                          \
        const struct hzp_##name##_args *v = args;                                                  \
        by_elements(&v->first, &v->last, key, size);                                               \
        break;                                                                                     \
    }
#define ATTENTION(name)                                                                            \
    case HZP_OP_##name: {                                                                          \
        const struct hzp_##name##_args *v = args;                                                  \
        describe_attention(&v->out, &v->segs, &v->heads, v->window, key, size);                    \
        break;                                                                                     \
    }
#define PAGED(name)                                                                                \
    case HZP_OP_##name: {                                                                          \
        const struct hzp_##name##_args *v = args;                                                  \
        describe_attention(&v->out, &v->segs, &v->heads, v->window, key, size);                    \
        key->flags = v->kv.type == HZP_E4M3;                                                       \
        break;                                                                                     \
    }

void hzp_op_describe(enum hzp_op op, const void *args, struct hzp_op_key *key,
                     struct hzp_op_size *size)
{
    struct hzp_cost cost = hzp_op_cost(op, args);
    memset(key, 0, sizeof(*key));
    memset(size, 0, sizeof(*size));
    key->op = (uint8_t)op;
    size->work = (double)cost.flops + HZP_FLOPS_PER_BYTE * (double)cost.bytes;
    switch (op) {
        BY_ROWS(embed_bwd, dy, dtable)
        BY_ROWS(rmsnorm_bwd, dy, dx)
        BY_ROWS(rope_bwd, dy, dx)
        BY_ROWS(swiglu_bwd, dy, dx)
        BY_ROWS(colsum, x, y)
        BY_ROWS(cast, x, y)
        BY_ELEMENTS(adamw, from, m)
        PAGED(attn_decode)
        PAGED(attn_prefill)
        ATTENTION(attn_packed)
        ATTENTION(attn_packed_bwd)
    case HZP_OP_rope: {
        const struct hzp_rope_args *v = args;
        by_rows(&v->y, &v->x, key, size);
        key->flags = !v->kv.k ? 0 : v->kv.type == HZP_E4M3 ? 2 : 1;
        break;
    }
    case HZP_OP_rmsnorm: {
        const struct hzp_rmsnorm_args *v = args;
        by_rows(&v->x, &v->y, key, size);
        key->flags = (uint8_t)((v->rstd ? 1 : 0) | (v->add.ptr ? 2 : 0));
        break;
    }
    case HZP_OP_codes: {
        const struct hzp_codes_args *v = args;
        by_rows(&v->x, &v->y, key, size);
        key->flags = v->norm.ptr ? 1 : 0;
        break;
    }
    case HZP_OP_xent: {
        const struct hzp_xent_args *v = args;
        by_rows(&v->x, &v->dx, key, size);
        key->flags = v->dx.ptr ? 1 : 0;
        break;
    }
    case HZP_OP_matmul:
        describe_matmul(args, key, size);
        break;
    case HZP_OP_project: {
        const struct hzp_project_args *v = args;
        describe_matmul(&v->product, key, size);
        key->flags |= (uint8_t)((v->norm.ptr ? 16 : 0) | (v->gated ? 32 : 0));
        break;
    }
    case HZP_OP_collective: { /* by what a rank sends, whatever its type */
        const struct hzp_collective_args *v = args;
        struct hzp_collective_args whole = *v; /* parts have its size, and flags of their own */
        whole.part = HZP_COLLECTIVE_WHOLE;
        key->flags = (uint8_t)(v->kind | v->part << 2);
        key->a = hzp_link_ranks(v->link);
        size->x = size->work = (double)hzp_op_wire(op, &whole);
        break;
    }
    default:
        describe_operands(op, args, key, size);
    }
}

/* ---- the tables ---- */

void hzp_tables_init(struct hzp_tables *t)
{
    memset(t, 0, sizeof(*t));
}

void hzp_tables_fini(struct hzp_tables *t)
{
    for (int32_t i = 0; i < t->curves; i++)
        free(t->curve[i].point);
    free(t->curve);
    free(t->rate);
    memset(t, 0, sizeof(*t));
}

static int by_key(const struct hzp_op_key *a, const struct hzp_op_key *b)
{
    const int64_t x[] = {a->op, a->flags, a->type, a->again, a->a, a->b};
    const int64_t y[] = {b->op, b->flags, b->type, b->again, b->a, b->b};
    for (int i = 0; i < HZP_COUNT(x); i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* The index of the key's curve, or where it would be inserted. */
static int32_t place_of(const struct hzp_tables *t, const struct hzp_op_key *key)
{
    int32_t low = 0, high = t->curves;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (by_key(&t->curve[mid].key, key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static const struct hzp_curve *find(const struct hzp_tables *t, const struct hzp_op_key *key)
{
    int32_t at = place_of(t, key);
    return at < t->curves && !by_key(&t->curve[at].key, key) ? &t->curve[at] : NULL;
}

static struct hzp_point *point_of(struct hzp_curve *c, const struct hzp_op_size *size)
{
    int32_t at = 0;
    while (at < c->points &&
           (c->point[at].x < size->x || (c->point[at].x == size->x && c->point[at].y < size->y)))
        at++;
    if (at < c->points && c->point[at].x == size->x && c->point[at].y == size->y)
        return &c->point[at];
    c->point = hzp_xgrow(c->point, &c->room, c->points + 1, sizeof(*c->point));
    memmove(c->point + at + 1, c->point + at, (size_t)(c->points - at) * sizeof(*c->point));
    c->points++;
    c->point[at] = (struct hzp_point){.x = size->x, .y = size->y, .work = size->work};
    return &c->point[at];
}

void hzp_tables_set(struct hzp_tables *t, const struct hzp_op_key *key,
                    const struct hzp_op_size *size, int32_t share, double ns)
{
    HZP_ASSERT(share >= 0 && share < HZP_SHARES_MAX);
    int32_t at = place_of(t, key);
    if (at == t->curves || by_key(&t->curve[at].key, key)) {
        t->curve = hzp_xgrow(t->curve, &t->curves_room, t->curves + 1, sizeof(*t->curve));
        memmove(t->curve + at + 1, t->curve + at, (size_t)(t->curves - at) * sizeof(*t->curve));
        t->curves++;
        t->curve[at] = (struct hzp_curve){.key = *key};
    }
    point_of(&t->curve[at], size)->ns[share] = ns;
}

double hzp_tables_measured(const struct hzp_tables *t, const struct hzp_op_key *key,
                           const struct hzp_op_size *size, int32_t share)
{
    const struct hzp_curve *c = find(t, key);
    for (int32_t i = 0; c && i < c->points; i++)
        if (c->point[i].x == size->x && c->point[i].y == size->y)
            return c->point[i].ns[share];
    return 0;
}

void hzp_tables_set_rate(struct hzp_tables *t, const struct hzp_rate *rate)
{
    for (int32_t i = 0; i < t->rates; i++) {
        struct hzp_rate *r = &t->rate[i];
        if (r->a == rate->a && r->b == rate->b && r->cores_a == rate->cores_a &&
            r->cores_b == rate->cores_b) {
            *r = *rate;
            return;
        }
    }
    t->rate = hzp_xgrow(t->rate, &t->rates_room, t->rates + 1, sizeof(*t->rate));
    t->rate[t->rates++] = *rate;
}

/* ---- reading ---- */

bool hzp_tables_link(const struct hzp_tables *t, double *ret_rate, double *ret_latency_ns)
{
    /* The line through the points of all-reduces with the least squares of relative errors. */
    double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
    *ret_rate = *ret_latency_ns = 0;
    for (int32_t i = 0; i < t->curves; i++) {
        const struct hzp_curve *c = &t->curve[i];
        for (int32_t k = 0; c->key.op == HZP_OP_collective && c->key.flags == HZP_ALL_REDUCE &&
                            k < c->points && t->shares > 0;
             k++) {
            double x = c->point[k].x, y = c->point[k].ns[t->shares - 1];
            double weight = y > 0 ? 1 / (y * y) : 0;
            w += weight;
            wx += weight * x;
            wy += weight * y;
            wxx += weight * x * x;
            wxy += weight * x * y;
        }
    }
    double across = w * wxx - wx * wx, slope = across > 0 ? (w * wxy - wx * wy) / across : 0;
    if (!(slope > 0))
        return false;
    *ret_rate = 1e9 / slope;
    *ret_latency_ns = HZP_MAX((wy - slope * wx) / w, 0);
    return true;
}

/* On the line through two points, held above a part of the nearer one. */
static double line(double x0, double v0, double x1, double v1, double x)
{
    if (x1 == x0)
        return v0;
    double v = v0 + (v1 - v0) * (x - x0) / (x1 - x0);
    double nearest = x - x0 < x1 - x ? v0 : v1;
    return HZP_MAX(v, 0.25 * nearest);
}

/* Interpolates points [from, to), which have one x, at y; 0: none measured. */
static double at_y(const struct hzp_curve *c, int32_t from, int32_t to, double y, int32_t share)
{
    const struct hzp_point *low = NULL, *high = NULL;
    for (int32_t i = from; i < to; i++) {
        const struct hzp_point *p = &c->point[i];
        if (!(p->ns[share] > 0))
            continue;
        if (!low || !high || p->y <= y) { /* the two around y, or the two nearest it */
            low = high ? high : p;
            high = p;
        } else if (high->y < y) {
            low = high;
            high = p;
        } else if (low == high) {
            high = p;
        }
    }
    if (!high)
        return 0;
    if (low == high) /* one point: in proportion to the positions */
        return low->ns[share] * (low->y > 0 ? HZP_MAX(y / low->y, 0.25) : 1);
    return line(low->y, low->ns[share], high->y, high->ns[share], y);
}

/* The curve's time at a size; 0: this share was not measured. */
static double at_size(const struct hzp_curve *c, const struct hzp_op_size *size, int32_t share)
{
    double x[2] = {0, 0}, ns[2] = {0, 0};
    int known = 0;
    for (int32_t from = 0, to; from < c->points; from = to) {
        for (to = from + 1; to < c->points && c->point[to].x == c->point[from].x;)
            to++;
        double v = at_y(c, from, to, size->y, share);
        if (!(v > 0))
            continue;
        if (known == 2 && x[1] >= size->x)
            break;
        if (known == 2) {
            x[0] = x[1];
            ns[0] = ns[1];
            known = 1;
        }
        x[known] = c->point[from].x;
        ns[known++] = v;
    }
    if (!known)
        return 0;
    if (known == 2)
        return line(x[0], ns[0], x[1], ns[1], size->x);
    /* One point: in proportion to x, where that is more. */
    return ns[0] * HZP_MAX(1.0, x[0] > 0 ? size->x / x[0] : 1.0);
}

/* The time on so many cores: between the shares measured, speeds are interpolated. */
static double at_cores(const struct hzp_tables *t, const struct hzp_curve *c,
                       const struct hzp_op_size *size, int32_t cores)
{
    double low_cores = 0, low = 0;
    for (int32_t s = 0; s < t->shares; s++) {
        double ns = at_size(c, size, s);
        if (!(ns > 0))
            continue;
        if (t->cores[s] == cores || (t->cores[s] > cores && !(low > 0)))
            return ns;
        if (t->cores[s] > cores) {
            double part = (cores - low_cores) / (t->cores[s] - low_cores);
            return 1 / ((1 - part) / low + part / ns);
        }
        low = ns;
        low_cores = t->cores[s];
    }
    return low;
}

/* The measured curve of the same op with the nearest key. */
static const struct hzp_curve *nearest(const struct hzp_tables *t, const struct hzp_op_key *key)
{
    const struct hzp_curve *best = NULL;
    double least = INFINITY;
    for (int32_t i = 0; i < t->curves; i++) {
        const struct hzp_op_key *k = &t->curve[i].key;
        if (k->op != key->op)
            continue;
        double apart =
            fabs(log((1.0 + k->a) / (1.0 + key->a))) + fabs(log((1.0 + k->b) / (1.0 + key->b)));
        apart += (k->flags != key->flags) + 4 * ((k->flags ^ key->flags) & 3) +
                 2 * (k->type != key->type) + 0.01 * (k->again != key->again);
        if (apart < least) {
            least = apart;
            best = &t->curve[i];
        }
    }
    return best;
}

/* The curve's work at a size, from the point whose size is nearest. */
static double work_at(const struct hzp_curve *c, const struct hzp_op_size *size)
{
    const struct hzp_point *best = &c->point[0];
    for (int32_t i = 1; i < c->points; i++)
        if (fabs(c->point[i].x - size->x) < fabs(best->x - size->x))
            best = &c->point[i];
    return best->x > 0 ? best->work * size->x / best->x : best->work;
}

double hzp_tables_stretch(const struct hzp_tables *t)
{
    double stretch = t->items_ns > 0 ? t->plans_ns / t->items_ns : 1;
    return HZP_MIN(HZP_MAX(stretch, 1.0), 1.5);
}

double hzp_tables_known_ns(const struct hzp_tables *t, const struct hzp_op_key *key,
                           const struct hzp_op_size *size, int32_t cores)
{
    const struct hzp_curve *c = find(t, key);
    return c ? at_cores(t, c, size, cores) * hzp_tables_stretch(t) : 0;
}

double hzp_tables_ns(const struct hzp_tables *t, const struct hzp_op_key *key,
                     const struct hzp_op_size *size, int32_t cores)
{
    const struct hzp_curve *c = find(t, key);
    if (!c && key->again) {
        struct hzp_op_key first = *key;
        first.again = 0;
        c = find(t, &first);
    }
    double scale = 1;
    if (!c) {
        c = nearest(t, key);
        double work = c ? work_at(c, size) : 0;
        scale = work > 0 ? size->work / work : 1;
    }
    double ns = c ? at_cores(t, c, size, cores) * scale : 0;
    ns *= hzp_tables_stretch(t);
    if (ns > 0)
        return ns;
    struct hzp_rates rates = hzp_rates_of(cores);
    return rates.call_ns + size->work / rates.flops_per_ns;
}

double hzp_tables_rate(const struct hzp_tables *t, enum hzp_class a, int32_t cores_a,
                       enum hzp_class b, int32_t cores_b)
{
    double least = INFINITY, rate = 1;
    for (int32_t i = 0; i < t->rates; i++) {
        const struct hzp_rate *r = &t->rate[i];
        for (int turned = 0; turned < 2; turned++) {
            if ((turned ? r->b : r->a) != a || (turned ? r->a : r->b) != b)
                continue;
            double apart = abs((turned ? r->cores_b : r->cores_a) - cores_a) +
                           abs((turned ? r->cores_a : r->cores_b) - cores_b);
            if (apart < least) {
                least = apart;
                rate = turned ? r->rate_b : r->rate_a;
            }
        }
    }
    return rate;
}

/* ---- printing ---- */

static void print_curve(const struct hzp_tables *t, const struct hzp_curve *c, FILE *out)
{
    static const char *const type[8] = {"f32", "bf16", "i16", "i32", "e4m3", "?", "?", "?"};
    const struct hzp_op_key *k = &c->key;
    fprintf(out, "\n%s %s", hzp_op_name((enum hzp_op)k->op), type[k->type % 8]);
    if (k->op == HZP_OP_matmul)
        fprintf(out, " %s %d x %d%s%s",
                k->flags & 1   ? "weight gradient"
                : k->flags & 2 ? "forward"
                               : "input gradient",
                k->a, k->b, k->flags & 4 ? ", adds" : "",
                k->again ? ", weights read just before" : "");
    else if (k->op == HZP_OP_project)
        fprintf(out, " %d x %d%s%s", k->a, k->b, k->flags & 16 ? ", norm" : "",
                k->flags & 32 ? ", gated" : "");
    else if (k->b)
        fprintf(out, " %d:%d heads of %d", k->a / 1024, k->a % 1024, k->b);
    else if (k->a)
        fprintf(out, " %d wide", k->a);
    fprintf(out, "\n%12s %8s", "rows", "sees");
    for (int32_t s = 0; s < t->shares; s++)
        fprintf(out, "  us on %2d  Gop/s", t->cores[s]);
    fprintf(out, "\n");
    for (int32_t i = 0; i < c->points; i++) {
        const struct hzp_point *p = &c->point[i];
        fprintf(out, "%12.0f %8.0f", p->x, p->y);
        for (int32_t s = 0; s < t->shares; s++)
            if (p->ns[s] > 0)
                fprintf(out, " %9.1f %6.0f", p->ns[s] * 1e-3, p->work / p->ns[s]);
            else
                fprintf(out, " %9s %6s", "-", "-");
        fprintf(out, "\n");
    }
}

void hzp_tables_print(const struct hzp_tables *t, FILE *out)
{
    fprintf(out, "device  %s\nmodel   %s\nbuild   %s\n", t->device, t->model, t->build);
    fprintf(out, "measured %d of %d parts\n", t->parts_done, t->parts);
    fprintf(out, "\nEach op alone (Gop/s: operations and ten times bytes, a second)\n");
    for (int32_t i = 0; i < t->curves; i++)
        print_curve(t, &t->curve[i], out);
    fprintf(out,
            "\nTwo side by side: R its share of the device, P its speed beside the other over its "
            "speed alone on that share\n%-14s %-14s %6s %6s %6s %6s\n",
            "first", "second", "R1", "P1", "R2", "P2");
    for (int32_t i = 0; i < t->rates; i++) {
        const struct hzp_rate *r = &t->rate[i];
        double whole = HZP_MAX(t->threads, 1);
        fprintf(out, "%-14s %-14s %6.2f %6.2f %6.2f %6.2f\n", hzp_class_text((enum hzp_class)r->a),
                hzp_class_text((enum hzp_class)r->b), r->cores_a / whole, r->rate_a,
                r->cores_b / whole, r->rate_b);
    }
    fprintf(out, "\nPlans take %.3f of what their items add up to.\n", hzp_tables_stretch(t));
    fprintf(out,
            "Between items, microseconds: %.2f on one lane, %.2f on several; issue %.2f; hand-over "
            "%.2f, after sleep %.2f%s\n",
            t->gap_inline_ns * 1e-3, t->gap_ns * 1e-3, t->issue_ns * 1e-3, t->handover_ns * 1e-3,
            t->wakeup_ns * 1e-3,
            t->led ? "; the first lane is worked by the thread that issues" : "");
}

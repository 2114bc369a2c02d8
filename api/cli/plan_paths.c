/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/plan_paths.h"
#include "base/json_file.h"
#include "mesh/paths/paths.h"

enum { FILE_MAX = 1 << 20 };

/* A problem, its plan, and those of the full pipeline, as dealt and as planned. */
struct paths {
    struct hzp_paths_problem problem;
    struct hzp_paths_plan plan, full, best_full;
};

bool hzp_is_paths_file(const char *word)
{
    size_t n = word ? strlen(word) : 0;
    return n > 5 && !strcmp(word + n - 5, ".json");
}

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

int hzp_plan_paths(const char *file, struct hzp_err_text *reterr)
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

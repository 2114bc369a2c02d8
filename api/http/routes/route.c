/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/routes.h"

#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"
#include "api/learn/audit.h"
#include "api/learn/versions.h"
#include "base/decimal.h"
#include "api/http/wire/target.h"

/* ---- arguments ---- */

int64_t hzp_path_number(const char *text, char end)
{
    char *rest;
    errno = 0;
    long long n = isdigit((unsigned char)*text) ? strtoll(text, &rest, 10) : -1;
    return n < 0 || errno || *rest != end ? -1 : n;
}

/* As integers: a double that is rounded would pass beside a bound. */
static int check_whole(const struct hzp_field *field, const char *text, struct hzp_err_text *reterr)
{
    int64_t low = hzp_field_bound(field->low), high = hzp_field_bound(field->high);
    int64_t n = hzp_path_number(text, 0);
    return n >= low && n <= high
               ? HZP_OK
               : hzp_wrong(reterr, field->name,
                           "must be a whole number from %" PRId64 " to %" PRId64 ", not \"%.40s\"",
                           low, high, text);
}

static int check_argument(const struct hzp_field *field, const char *text,
                          struct hzp_err_text *reterr)
{
    double value = 0;
    if (field->kind == HZP_FIELD_INT)
        return check_whole(field, text, reterr);
    if (field->kind == HZP_FIELD_STRING)
        return hzp_field_word(field, text, reterr);
    const char *rest = hzp_decimal(text, &value);
    if (rest && !*rest && value >= field->low && value <= field->high)
        return HZP_OK;
    return hzp_wrong(reterr, field->name, "must be a number from %g to %g, not \"%.40s\"",
                     field->low, field->high, text);
}

/* The argument is none of the route's, which the error lists. */
static int unknown_argument(const struct hzp_field *field, const char *name,
                            struct hzp_err_text *reterr)
{
    char known[160] = "it has none";
    for (size_t at = 0; field->name && at < sizeof(known); field++)
        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "", field->name);
    return hzp_fail_param(reterr, HZP_EINVAL, name,
                          "\"%.40s\" is not an argument of this route: %s", name, known);
}

/* A route without a table takes any arguments: clients of other servers send some. */
static int check_arguments(const struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const char *value;
    for (const char *name = x->target->arguments; x->route->query && *name;
         name = value + strlen(value) + 1) {
        const struct hzp_field *field = x->route->query;
        value = name + strlen(name) + 1;
        while (field->name && strcmp(field->name, name))
            field++;
        if (!field->name)
            return unknown_argument(x->route->query, name, reterr);
        HZP_TRY(check_argument(field, value, reterr));
    }
    return HZP_OK;
}

double hzp_query_number(const struct hzp_exchange *x, const char *name)
{
    const struct hzp_field *field = x->route->query;
    const char *text = hzp_exchange_query(x, name);
    while (strcmp(field->name, name))
        field++;
    return text || field->preset ? strtod(text ? text : field->preset, NULL) : field->high;
}

int64_t hzp_query_int(const struct hzp_exchange *x, const char *name)
{
    const char *text = hzp_exchange_query(x, name);
    return text ? hzp_path_number(text, 0) : hzp_field_bound(hzp_query_number(x, name));
}

/* ---- before the handler ---- */

enum MHD_Result hzp_reply_no_route(struct hzp_exchange *x)
{
    return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, NULL, NULL, "no such route: %.100s%.100s",
                           x->route->path, x->tail);
}

/* What this server lacks of what the route needs; NULL: nothing. */
static const char *missing(const struct hzp_engine *engine, unsigned needs)
{
    if (needs & HZP_NEEDS_STATE && !engine->state)
        return "this server does not learn: it was started with --no-train";
    if (needs & HZP_NEEDS_ROLLOUTS && !engine->rollouts)
        return "this server makes no rollouts";
    if (needs & HZP_NEEDS_RANKS && !engine->front)
        return "this server has no replicas: it was started without --replicas";
    if (needs & HZP_NEEDS_MESH && !engine->sites)
        return "this server is no site: it was started without --mesh";
    return NULL;
}

static int check_body(const struct hzp_exchange *x, struct hzp_err_text *reterr)
{
    const struct hzp_field_set *set = x->route->body;
    HZP_TRY(hzp_fields_check(set, x->asked, NULL, reterr));
    for (int g = 0; g < HZP_FIELD_GROUPS_MAX && set->group[g]; g++)
        for (const struct hzp_field *field = set->group[g]; field->name; field++) {
            const json_t *value = json_object_get(x->asked, field->name);
            if (field->use == HZP_FIELD_NEEDED && (!value || json_is_null(value)))
                return hzp_wrong(reterr, field->name, "must be given");
        }
    return HZP_OK;
}

/* The handler's answer, or that of its error. */
static enum MHD_Result call(struct hzp_exchange *x)
{
    struct hzp_err_text err = {.text = ""};
    int r = x->asked ? check_body(x, &err) : HZP_OK;
    if (r >= 0)
        r = x->route->answer(x, &err);
    return r < 0 ? hzp_reply_fail(x, r, &err) : (enum MHD_Result)r;
}

enum MHD_Result hzp_route_answer(struct hzp_exchange *x)
{
    enum MHD_Result answered;
    struct hzp_err_text err = {.text = ""};
    unsigned needs = x->route->needs;
    if (needs & HZP_NEEDS_UP && atomic_load(&x->server->state) != HZP_SERVER_UP)
        return hzp_reply_unavailable(x);
    const char *lacks = missing(x->server->engine, needs);
    if (lacks)
        return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, NULL, NULL, "%s", lacks);
    if (check_arguments(x, &err) < 0)
        return hzp_reply_fail(x, HZP_EINVAL, &err);
    if (!(needs & (HZP_NEEDS_BODY | HZP_TAKES_BODY)))
        return call(x);
    bool absent = needs & HZP_TAKES_BODY && !x->bytes;
    json_t *body = absent ? json_object() : hzp_exchange_json(x, &answered);
    if (!body)
        return answered;
    x->asked = body;
    answered = call(x);
    json_decref(body); /* x->asked is left: if the answer comes later, x is another thread's now */
    return answered;
}

void hzp_route_audit(struct hzp_exchange *x, const char *action, json_t *what)
{
    if (x->server->engine->state)
        hzp_audit_write(hzp_state_audit(x->server->engine->state), x->info.key, x->info.id, action,
                        what);
    else
        json_decref(what);
}

/* ---- answers that wait ---- */

static void client_left(void *ctx)
{
    struct hzp_waiting *w = ctx;
    atomic_store(&w->left, true);
}

bool hzp_keep_waiting(struct hzp_exchange *x)
{
    return true;
}

/* Notifying thread. */
static void look(void *ctx)
{
    struct hzp_waiting *w = ctx;
    struct hzp_exchange *x = w->x;
    enum MHD_Result answered = MHD_NO;
    bool left = atomic_load(&w->left);
    bool over = left || hzp_now_ns() >= w->end_ns || !hzp_engine_running(x->server->engine);
    if (!w->look(w, left, over, &answered))
        return;
    hzp_notify_unpoll(x->server->notify, &w->note);
    hzp_door_forget(x->server->door, x->fd);
    if (left || answered == MHD_NO)
        x->closing = true;
    hzp_exchange_wake(x);
    free(w);
}

enum MHD_Result hzp_wait(struct hzp_exchange *x, double seconds, struct hzp_waiting *w,
                         bool (*looks)(struct hzp_waiting *, bool, bool, enum MHD_Result *))
{
    w->x = x;
    w->note = (struct hzp_note){.call = look, .ctx = w};
    w->end_ns = hzp_now_ns() + (uint64_t)(seconds * 1e9);
    w->look = looks;
    x->resume = hzp_keep_waiting;
    hzp_door_watch(x->server->door, x->fd, client_left, w);
    hzp_notify_poll(x->server->notify, &w->note);
    return MHD_YES;
}

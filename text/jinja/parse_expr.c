/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions, by Jinja's grammar and its order of operators. */
#include "base/words.h"
#include "text/jinja/builtins.h"
#include "text/jinja/parser.h"

static struct jnode *parse_unary(struct jparser *p, bool with_filters);
static struct jnode *parse_or(struct jparser *p);

/* An error ends the parse: every loop and recursion looks at m->failed. */
static bool enter(struct jparser *p)
{
    if (p->m->failed)
        return false;
    if (p->m->depth >= p->m->depth_max) {
        hzp_j_refuse(p, HZP_EUNSUP, "the expression is nested too deeply");
        return false;
    }
    p->m->depth++;
    return true;
}

static struct jnode *binary(struct jparser *p, enum jkind kind, int op, struct jnode *a,
                            struct jnode *b)
{
    struct jnode *node = hzp_j_node(p, kind);
    node->op = (uint8_t)op;
    node->a = a;
    node->b = b;
    return node;
}

/* ---- primaries ---- */

static struct jnode *parse_name(struct jparser *p)
{
    static const struct {
        const char *name;
        int type;
    } consts[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", 2}, {"None", 2}};
    const struct jtoken *token = hzp_j_now(p);
    for (int i = 0; i < HZP_COUNT(consts); i++)
        if (hzp_j_is(p, T_NAME, consts[i].name)) {
            struct jnode *node = hzp_j_node(p, N_CONST);
            node->value = consts[i].type == 2 ? hzp_j_none() : hzp_j_bool(consts[i].type);
            p->at++;
            return node;
        }
    struct jnode *node = hzp_j_node(p, N_NAME);
    node->name = hzp_j_intern(p, token->text, (size_t)token->bytes);
    p->at++;
    return node;
}

/* Whether another item follows before the closing bracket; takes the comma that is between them. */
static bool another(struct jparser *p, bool first, const char *end)
{
    if (p->m->failed || hzp_j_is(p, T_OP, end))
        return false;
    if (!first)
        hzp_j_expect(p, T_OP, ",");
    return !hzp_j_is(p, T_OP, end);
}

static struct jnode *parse_list(struct jparser *p)
{
    struct jnode *node = hzp_j_node(p, N_LIST);
    p->at++;
    while (another(p, !node->n, "]"))
        hzp_j_nodes_add(p, node, hzp_j_parse_expr(p, true));
    hzp_j_expect(p, T_OP, "]");
    return node;
}

static struct jnode *parse_dict(struct jparser *p)
{
    struct jnode *node = hzp_j_node(p, N_DICT);
    p->at++;
    while (another(p, !node->n, "}")) {
        hzp_j_nodes_add(p, node, hzp_j_parse_expr(p, true));
        hzp_j_expect(p, T_OP, ":");
        hzp_j_nodes_add(p, node, hzp_j_parse_expr(p, true));
    }
    hzp_j_expect(p, T_OP, "}");
    return node;
}

static struct jnode *parse_constant(struct jparser *p)
{
    struct jnode *node = hzp_j_node(p, N_CONST);
    struct jbuf buf = {0};
    if (hzp_j_now(p)->kind != T_STRING) {
        node->value = hzp_j_now(p)->value;
        p->at++;
        return node;
    }
    for (; hzp_j_now(p)->kind == T_STRING && !p->m->failed; p->at++) { /* adjacent ones are one */
        const struct jstr *s = hzp_j_now(p)->value.s;
        hzp_j_add(p->m, &buf, s->text, s->bytes);
    }
    node->value = hzp_j_take(p->m, &buf);
    hzp_j_codes(node->value);
    return node;
}

/* Whether the token now ends a tuple without brackets. */
static bool ends_tuple(const struct jparser *p, const char *end)
{
    const struct jtoken *token = hzp_j_now(p);
    return token->kind == T_CLOSE || token->kind == T_PRINT_END || token->kind == T_END ||
           hzp_j_is(p, T_OP, ")") || (end && hzp_j_is(p, T_NAME, end));
}

static struct jnode *parse_bracket(struct jparser *p)
{
    p->at++;
    struct jnode *node;
    if (hzp_j_is(p, T_OP, ")"))
        node = hzp_j_node(p, N_TUPLE);
    else
        node = hzp_j_parse_tuple(p, true, NULL);
    hzp_j_expect(p, T_OP, ")");
    return node;
}

static struct jnode *parse_primary(struct jparser *p)
{
    const struct jtoken *token = hzp_j_now(p);
    if (token->kind == T_NAME)
        return parse_name(p);
    if (token->kind == T_STRING || token->kind == T_INT || token->kind == T_FLOAT)
        return parse_constant(p);
    if (hzp_j_is(p, T_OP, "("))
        return parse_bracket(p);
    if (hzp_j_is(p, T_OP, "["))
        return parse_list(p);
    if (hzp_j_is(p, T_OP, "{"))
        return parse_dict(p);
    hzp_j_refuse(p, HZP_EFORMAT, "unexpected '%.*s'", token->bytes, token->text);
    return hzp_j_node(p, N_CONST);
}

/* ---- what follows a primary ---- */

static struct jnode *parse_subscript(struct jparser *p, struct jnode *of)
{
    struct jnode *part[3] = {NULL, NULL, NULL}, *node;
    int parts = 0;
    p->at++;
    while (!p->m->failed && !hzp_j_is(p, T_OP, "]")) {
        if (hzp_j_skip_if(p, T_OP, ":")) {
            if (++parts > 2)
                hzp_j_refuse(p, HZP_EFORMAT, "unexpected ':'");
            continue;
        }
        if (part[parts]) {
            hzp_j_refuse(p, HZP_EUNSUP, "an index of several values");
            break;
        }
        part[parts] = hzp_j_parse_expr(p, true);
    }
    hzp_j_expect(p, T_OP, "]");
    if (!parts && !part[0])
        hzp_j_refuse(p, HZP_EFORMAT, "an empty index");
    node = hzp_j_node(p, parts ? N_SLICE : N_ITEM);
    node->a = of;
    node->b = part[0];
    node->c = part[1];
    node->d = part[2];
    return node;
}

static struct jnode *parse_attribute(struct jparser *p, struct jnode *of)
{
    p->at++;
    const struct jtoken *token = hzp_j_now(p);
    struct jnode *node = hzp_j_node(p, token->kind == T_INT ? N_ITEM : N_ATTR);
    node->a = of;
    if (token->kind == T_INT) {
        node->b = hzp_j_node(p, N_CONST);
        node->b->value = token->value;
    } else if (token->kind == T_NAME) {
        node->value = hzp_j_token_text(p, token);
        if (hzp_j_unknown_method(token->text, (size_t)token->bytes) &&
            hzp_j_peek(p)->kind == T_OP && hzp_j_peek(p)->text[0] == '(')
            hzp_j_refuse(p, HZP_EUNSUP, "the method %.*s is not supported", token->bytes,
                         token->text);
    } else {
        hzp_j_refuse(p, HZP_EFORMAT, "expected a name or number after '.'");
    }
    p->at++;
    return node;
}

static void add_keyword(struct jparser *p, struct jnode *call)
{
    const struct jtoken *token = hzp_j_now(p);
    struct jkeyword *kw = hzp_j_alloc(p->m, (size_t)(call->kws + 1) * sizeof(*kw));
    if (call->kws)
        memcpy(kw, call->kw, (size_t)call->kws * sizeof(*kw));
    kw[call->kws].key = hzp_j_token_text(p, token);
    kw[call->kws].name = hzp_j_intern(p, token->text, (size_t)token->bytes);
    p->at += 2;
    kw[call->kws++].value = hzp_j_parse_expr(p, true);
    call->kw = kw;
}

/* The arguments of a call in brackets into a node. */
static void parse_arguments(struct jparser *p, struct jnode *call)
{
    hzp_j_expect(p, T_OP, "(");
    for (bool first = true; another(p, first, ")"); first = false) {
        const struct jtoken *next = hzp_j_peek(p);
        if (hzp_j_skip_if(p, T_OP, "*"))
            call->b = hzp_j_parse_expr(p, true);
        else if (hzp_j_skip_if(p, T_OP, "**"))
            call->c = hzp_j_parse_expr(p, true);
        else if (hzp_j_now(p)->kind == T_NAME && next->kind == T_OP && next->bytes == 1 &&
                 next->text[0] == '=')
            add_keyword(p, call);
        else if (call->kws || call->b || call->c)
            hzp_j_refuse(p, HZP_EFORMAT, "invalid syntax for function call expression");
        else
            hzp_j_nodes_add(p, call, hzp_j_parse_expr(p, true));
    }
    hzp_j_expect(p, T_OP, ")");
}

static struct jnode *parse_call(struct jparser *p, struct jnode *of)
{
    struct jnode *node = hzp_j_node(p, N_CALL);
    static const char *const refused[] = {"lipsum", "cycler", "joiner"};
    for (int i = 0; of->kind == N_NAME && i < HZP_COUNT(refused); i++)
        if (!strcmp(p->jinja->names[of->name], refused[i]))
            hzp_j_refuse(p, HZP_EUNSUP, "the function %s is not supported", refused[i]);
    node->a = of;
    parse_arguments(p, node);
    return node;
}

static struct jnode *parse_postfix(struct jparser *p, struct jnode *node)
{
    int chain = 0;
    while (!p->m->failed) {
        if (++chain > p->m->depth_max / 2)
            hzp_j_refuse(p, HZP_EUNSUP, "the expression is nested too deeply");
        else if (hzp_j_is(p, T_OP, "."))
            node = parse_attribute(p, node);
        else if (hzp_j_is(p, T_OP, "["))
            node = parse_subscript(p, node);
        else if (hzp_j_is(p, T_OP, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* Finds a filter or test by its name, which may have dots. */
static void find_builtin(struct jparser *p, struct jnode *node, bool filter)
{
    const struct jtoken *token = hzp_j_now(p);
    if (token->kind != T_NAME) {
        hzp_j_refuse(p, HZP_EFORMAT, "expected the name of a %s", filter ? "filter" : "test");
        return;
    }
    node->value = hzp_j_token_text(p, token);
    node->builtin =
        hzp_j_builtin_find(filter ? J_FILTER : J_TEST, token->text, (size_t)token->bytes);
    if (!node->builtin &&
        (!p->conditional || hzp_j_builtin_refused(token->text, (size_t)token->bytes)))
        hzp_j_refuse(p, HZP_EUNSUP, "the %s %.*s is not supported", filter ? "filter" : "test",
                     token->bytes, token->text);
    p->at++;
}

struct jnode *hzp_j_parse_filters(struct jparser *p, struct jnode *a, bool first)
{
    int chain = 0;
    while (!p->m->failed && (first || hzp_j_skip_if(p, T_OP, "|"))) {
        struct jnode *node = hzp_j_node(p, N_FILTER);
        node->a = a;
        find_builtin(p, node, true);
        if (hzp_j_is(p, T_OP, "("))
            parse_arguments(p, node);
        if (++chain > p->m->depth_max / 2)
            hzp_j_refuse(p, HZP_EUNSUP, "the expression is nested too deeply");
        a = node;
        first = false;
    }
    return a;
}

static bool begins_test_argument(const struct jparser *p)
{
    const struct jtoken *token = hzp_j_now(p);
    if (token->kind == T_NAME)
        return hzp_word_at("else or and is if", token->text, (size_t)token->bytes) < 0;
    return token->kind == T_STRING || token->kind == T_INT || token->kind == T_FLOAT ||
           hzp_j_is(p, T_OP, "[") || hzp_j_is(p, T_OP, "{");
}

static struct jnode *parse_test(struct jparser *p, struct jnode *of)
{
    bool negated = hzp_j_skip_if(p, T_NAME, "not");
    struct jnode *node = hzp_j_node(p, N_TEST);
    node->a = of;
    find_builtin(p, node, false);
    if (hzp_j_is(p, T_OP, "(")) {
        parse_arguments(p, node);
    } else if (begins_test_argument(p)) {
        hzp_j_nodes_add(p, node, parse_postfix(p, parse_primary(p)));
    }
    if (hzp_j_is(p, T_NAME, "is"))
        hzp_j_refuse(p, HZP_EFORMAT, "tests cannot be chained");
    if (!negated)
        return node;
    struct jnode *not = hzp_j_node(p, N_NOT);
    not ->a = node;
    return not ;
}

static struct jnode *parse_filters_and_tests(struct jparser *p, struct jnode *node)
{
    int chain = 0;
    while (!p->m->failed) {
        if (++chain > p->m->depth_max / 2)
            hzp_j_refuse(p, HZP_EUNSUP, "the expression is nested too deeply");
        else if (hzp_j_is(p, T_OP, "|"))
            node = hzp_j_parse_filters(p, node, false);
        else if (hzp_j_skip_if(p, T_NAME, "is"))
            node = parse_test(p, node);
        else if (hzp_j_is(p, T_OP, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* ---- operators ---- */

static struct jnode *parse_unary(struct jparser *p, bool with_filters)
{
    struct jnode *node;
    if (!enter(p))
        return hzp_j_node(p, N_CONST);
    bool minus = hzp_j_is(p, T_OP, "-");
    if (minus || hzp_j_is(p, T_OP, "+")) {
        node = hzp_j_node(p, minus ? N_NEGATE : N_POSITIVE);
        p->at++;
        node->a = parse_unary(p, false);
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (with_filters)
        node = parse_filters_and_tests(p, node);
    p->m->depth--;
    return node;
}

/* Left-associative levels: 0 sums, 1 `~`, 2 products, 3 `**`. */
static struct jnode *parse_level(struct jparser *p, int level)
{
    static const struct {
        const char *text;
        int level, op;
    } ops[] = {{"+", 0, OP_ADD}, {"-", 0, OP_SUB},    {"~", 1, 0},      {"*", 2, OP_MUL},
               {"/", 2, OP_DIV}, {"//", 2, OP_FLOOR}, {"%", 2, OP_MOD}, {"**", 3, OP_POW}};
    if (level == 4)
        return parse_unary(p, true);
    struct jnode *left = parse_level(p, level + 1), *concat = NULL;
    for (int i = 0, chain = 0; i < HZP_COUNT(ops) && !p->m->failed; i++) {
        if (ops[i].level != level || !hzp_j_skip_if(p, T_OP, ops[i].text))
            continue;
        struct jnode *right = parse_level(p, level + 1);
        if (level == 1) {
            if (!concat)
                hzp_j_nodes_add(p, concat = hzp_j_node(p, N_CONCAT), left);
            hzp_j_nodes_add(p, concat, right);
        } else {
            left = binary(p, N_BINARY, ops[i].op, left, right);
            if (++chain > p->m->depth_max / 2)
                hzp_j_refuse(p, HZP_EUNSUP, "the expression is too long: use `~` or several tags");
        }
        i = -1;
    }
    return concat ? concat : left;
}

static struct jnode *parse_compare(struct jparser *p)
{
    static const struct {
        const char *text;
        int op;
    } ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
               {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    struct jnode *left = parse_level(p, 0), *node = NULL;
    while (!p->m->failed) {
        int op = -1;
        for (int i = 0; i < HZP_COUNT(ops) && op < 0; i++)
            if (hzp_j_skip_if(p, T_OP, ops[i].text))
                op = ops[i].op;
        if (op < 0 && hzp_j_skip_if(p, T_NAME, "in"))
            op = OP_IN;
        const struct jtoken *next = hzp_j_peek(p);
        if (op < 0 && hzp_j_is(p, T_NAME, "not") && next->kind == T_NAME && next->bytes == 2 &&
            !memcmp(next->text, "in", 2)) {
            p->at += 2;
            op = OP_NOT_IN;
        }
        if (op < 0)
            break;
        struct jnode *operand = hzp_j_node(p, N_OPERAND);
        operand->op = (uint8_t)op;
        operand->a = parse_level(p, 0);
        if (!node)
            node = hzp_j_node(p, N_COMPARE);
        node->a = left;
        hzp_j_nodes_add(p, node, operand);
    }
    return node ? node : left;
}

static struct jnode *parse_not(struct jparser *p)
{
    if (!hzp_j_is(p, T_NAME, "not"))
        return parse_compare(p);
    if (!enter(p))
        return hzp_j_node(p, N_CONST);
    struct jnode *node = hzp_j_node(p, N_NOT);
    p->at++;
    node->a = parse_not(p);
    p->m->depth--;
    return node;
}

/* A row of what `next` parses, with the operator between. */
static struct jnode *parse_row(struct jparser *p, struct jnode *(*next)(struct jparser *),
                               const char *name, enum jkind kind)
{
    struct jnode *left = next(p);
    for (int chain = 0; !p->m->failed && hzp_j_skip_if(p, T_NAME, name); chain++) {
        left = binary(p, kind, 0, left, next(p));
        if (chain > p->m->depth_max / 2)
            hzp_j_refuse(p, HZP_EUNSUP, "the expression is too long");
    }
    return left;
}

static struct jnode *parse_and(struct jparser *p)
{
    return parse_row(p, parse_not, "and", N_AND);
}

static struct jnode *parse_or(struct jparser *p)
{
    return parse_row(p, parse_and, "or", N_OR);
}

struct jnode *hzp_j_parse_expr(struct jparser *p, bool with_condition)
{
    if (!enter(p))
        return hzp_j_node(p, N_CONST);
    struct jnode *node = parse_or(p);
    for (int chain = 0; with_condition && !p->m->failed && hzp_j_skip_if(p, T_NAME, "if");
         chain++) {
        struct jnode *choice = hzp_j_node(p, N_IF_ELSE);
        choice->b = node;
        choice->a = parse_or(p);
        if (hzp_j_skip_if(p, T_NAME, "else"))
            choice->c = hzp_j_parse_expr(p, true);
        node = choice;
        if (chain > p->m->depth_max / 2)
            hzp_j_refuse(p, HZP_EUNSUP, "the expression is too long");
    }
    p->m->depth--;
    return node;
}

struct jnode *hzp_j_parse_tuple(struct jparser *p, bool with_condition, const char *end)
{
    struct jnode *node = hzp_j_node(p, N_TUPLE);
    bool tuple = false;
    while (!p->m->failed) {
        if (node->n) {
            if (!hzp_j_skip_if(p, T_OP, ","))
                break;
            tuple = true;
        }
        if (ends_tuple(p, end))
            break;
        hzp_j_nodes_add(p, node, hzp_j_parse_expr(p, with_condition));
    }
    if (!tuple && node->n)
        return node->list[0];
    if (!node->n)
        hzp_j_refuse(p, HZP_EFORMAT, "expected an expression, got '%.*s'", hzp_j_now(p)->bytes,
                     hzp_j_now(p)->text);
    return node;
}

static struct jnode *parse_one_target(struct jparser *p, bool with_attr)
{
    if (hzp_j_skip_if(p, T_OP, "(")) {
        struct jnode *node = hzp_j_parse_target(p, NULL, false);
        hzp_j_expect(p, T_OP, ")");
        return node;
    }
    const struct jtoken *token = hzp_j_now(p);
    if (token->kind != T_NAME) {
        hzp_j_refuse(p, HZP_EFORMAT, "cannot assign to '%.*s'", token->bytes, token->text);
        return hzp_j_node(p, N_NAME);
    }
    struct jnode *node = parse_name(p);
    if (node->kind != N_NAME) {
        hzp_j_refuse(p, HZP_EFORMAT, "cannot assign to a constant");
        return hzp_j_node(p, N_NAME);
    }
    if (with_attr && hzp_j_skip_if(p, T_OP, ".")) {
        node->kind = N_NS_ATTR;
        if (hzp_j_now(p)->kind == T_NAME)
            node->value = hzp_j_token_text(p, hzp_j_now(p));
        else
            hzp_j_refuse(p, HZP_EFORMAT, "expected a name after '.'");
        p->at++;
    }
    return node;
}

struct jnode *hzp_j_parse_target(struct jparser *p, const char *end, bool with_attr)
{
    struct jnode *node = hzp_j_node(p, N_TUPLE);
    bool tuple = false;
    if (!enter(p))
        return hzp_j_node(p, N_NAME);
    while (!p->m->failed) {
        if (node->n && !hzp_j_skip_if(p, T_OP, ","))
            break;
        tuple = node->n > 0;
        if (node->n && (ends_tuple(p, end) || hzp_j_is(p, T_OP, "=")))
            break;
        hzp_j_nodes_add(p, node, parse_one_target(p, with_attr));
    }
    p->m->depth--;
    if (!tuple && node->n)
        return node->list[0];
    return node;
}

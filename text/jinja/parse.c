/* SPDX-License-Identifier: Apache-2.0 */
/* Statements. */
#include "text/jinja/parser.h"

void hzp_j_nodes_add(struct jparser *p, struct jnode *node, struct jnode *item)
{
    hzp_j_grow(p->m, &node->list, (size_t)node->n, &node->room, sizeof(struct jnode *));
    node->list[node->n++] = item;
}

const struct jtoken *hzp_j_now(const struct jparser *p)
{
    return &p->tokens.token[HZP_MIN(p->at, p->tokens.n - 1)];
}

const struct jtoken *hzp_j_peek(const struct jparser *p)
{
    return &p->tokens.token[HZP_MIN(p->at + 1, p->tokens.n - 1)];
}

static bool token_is(const struct jtoken *token, enum jtoken_kind kind, const char *text)
{
    size_t n = strlen(text);
    return token->kind == kind && (size_t)token->bytes == n && !memcmp(token->text, text, n);
}

bool hzp_j_is(const struct jparser *p, enum jtoken_kind kind, const char *text)
{
    return token_is(hzp_j_now(p), kind, text);
}

bool hzp_j_skip_if(struct jparser *p, enum jtoken_kind kind, const char *text)
{
    if (!hzp_j_is(p, kind, text))
        return false;
    p->at++;
    return true;
}

void hzp_j_refuse(struct jparser *p, int code, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (p->m->failed)
        return;
    p->m->code = code;
    p->m->line = hzp_j_now(p)->line;
    hzp_j_fail(p->m, "%s", text);
}

void hzp_j_expect(struct jparser *p, enum jtoken_kind kind, const char *text)
{
    const struct jtoken *token = hzp_j_now(p);
    if (!hzp_j_skip_if(p, kind, text))
        hzp_j_refuse(p, HZP_EFORMAT, "expected '%s', got '%.*s'", text, HZP_MIN(token->bytes, 40),
                     token->text);
}

struct jnode *hzp_j_node(struct jparser *p, enum jkind kind)
{
    struct jnode *node = hzp_j_alloc(p->m, sizeof(*node));
    node->kind = (uint8_t)kind;
    node->line = hzp_j_now(p)->line;
    return node;
}

int32_t hzp_j_intern(struct jparser *p, const char *text, size_t bytes)
{
    struct hzp_jinja *j = p->jinja;
    for (int32_t i = 0; i < j->names_count; i++)
        if (strlen(j->names[i]) == bytes && !memcmp(j->names[i], text, bytes))
            return i;
    hzp_j_grow(p->m, &j->names, (size_t)j->names_count, &j->names_room, sizeof(const char *));
    char *copy = hzp_j_alloc(p->m, bytes + 1);
    memcpy(copy, text, bytes);
    j->names[j->names_count] = copy;
    return j->names_count++;
}

struct jval hzp_j_token_text(struct jparser *p, const struct jtoken *token)
{
    struct jval v = hzp_j_string(p->m, token->text, (size_t)token->bytes);
    char *copy = hzp_j_alloc(p->m, (size_t)token->bytes + 1); /* messages read it as a C string */
    memcpy(copy, token->text, (size_t)token->bytes);
    v.s->text = copy;
    hzp_j_codes(v);
    return v;
}

static struct jnode *parse_body(struct jparser *p, const char *const *ends);

/* After the name of a tag: its body up to {% endX %}, which is consumed. */
static struct jnode *body_until(struct jparser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    hzp_j_expect(p, T_CLOSE, "%}");
    struct jnode *body = parse_body(p, ends);
    hzp_j_expect(p, T_NAME, end);
    return body;
}

static struct jnode *parse_if(struct jparser *p, enum jkind kind)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode *node = hzp_j_node(p, kind);
    p->conditional++;
    do {
        hzp_j_nodes_add(p, node, hzp_j_parse_tuple(p, false, NULL));
        hzp_j_expect(p, T_CLOSE, "%}");
        hzp_j_nodes_add(p, node, parse_body(p, ends));
    } while (!p->m->failed && hzp_j_skip_if(p, T_NAME, "elif"));
    if (hzp_j_skip_if(p, T_NAME, "else"))
        node->b = body_until(p, "endif");
    else
        hzp_j_expect(p, T_NAME, "endif");
    p->conditional--;
    return node;
}

static struct jnode *parse_for(struct jparser *p, enum jkind kind)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct jnode *node = hzp_j_node(p, kind);
    node->a = hzp_j_parse_target(p, "in", false);
    hzp_j_expect(p, T_NAME, "in");
    node->b = hzp_j_parse_tuple(p, false, "recursive");
    if (hzp_j_skip_if(p, T_NAME, "if"))
        node->c = hzp_j_parse_expr(p, true);
    node->flag = hzp_j_skip_if(p, T_NAME, "recursive");
    hzp_j_expect(p, T_CLOSE, "%}");
    p->loops++;
    node->d = parse_body(p, ends);
    p->loops--;
    if (hzp_j_skip_if(p, T_NAME, "else")) {
        hzp_j_nodes_add(p, node, body_until(p, "endfor"));
    } else {
        hzp_j_expect(p, T_NAME, "endfor");
    }
    return node;
}

static struct jnode *parse_set(struct jparser *p, enum jkind kind)
{
    struct jnode *node = hzp_j_node(p, kind);
    node->a = hzp_j_parse_target(p, NULL, true);
    if (hzp_j_skip_if(p, T_OP, "=")) {
        node->b = hzp_j_parse_tuple(p, true, NULL);
        return node;
    }
    node->kind = N_SET_BLOCK;
    node->c = hzp_j_parse_filters(p, NULL, false);
    node->d = body_until(p, "endset");
    return node;
}

/* The name of a macro or of a parameter: as a variable, and as text. */
static void read_name(struct jparser *p, struct jnode *node, const char *what)
{
    const struct jtoken *token = hzp_j_now(p);
    if (token->kind != T_NAME)
        hzp_j_refuse(p, HZP_EFORMAT, "expected the name of a %s", what);
    node->name = hzp_j_intern(p, token->text, (size_t)token->bytes);
    node->value = hzp_j_token_text(p, token);
    p->at++;
}

/* The parameters of a macro or of a call block, with their defaults. */
static void parse_signature(struct jparser *p, struct jnode *macro)
{
    hzp_j_expect(p, T_OP, "(");
    while (!p->m->failed && !hzp_j_is(p, T_OP, ")")) {
        if (macro->n)
            hzp_j_expect(p, T_OP, ",");
        struct jnode *param = hzp_j_node(p, N_NAME);
        read_name(p, param, "parameter");
        if (hzp_j_skip_if(p, T_OP, "="))
            param->a = hzp_j_parse_expr(p, true);
        hzp_j_nodes_add(p, macro, param);
    }
    hzp_j_expect(p, T_OP, ")");
}

static bool mentions(const struct jparser *p, size_t from, const char *name)
{
    for (size_t i = from; i < p->at && i < p->tokens.n; i++)
        if (token_is(&p->tokens.token[i], T_NAME, name))
            return true;
    return false;
}

static void parse_macro_body(struct jparser *p, struct jnode *macro, const char *end)
{
    size_t from = p->at;
    int loops = p->loops;
    p->loops = 0;
    macro->d = body_until(p, end);
    p->loops = loops;
    macro->takes_varargs = mentions(p, from, "varargs");
    macro->takes_kwargs = mentions(p, from, "kwargs");
}

static struct jnode *parse_macro(struct jparser *p, enum jkind kind)
{
    struct jnode *node = hzp_j_node(p, kind);
    read_name(p, node, "macro");
    parse_signature(p, node);
    parse_macro_body(p, node, "endmacro");
    return node;
}

static struct jnode *parse_call_block(struct jparser *p, enum jkind kind)
{
    struct jnode *node = hzp_j_node(p, kind), *macro = hzp_j_node(p, N_MACRO);
    macro->value = hzp_j_borrow(p->m, "caller", 6);
    if (hzp_j_is(p, T_OP, "("))
        parse_signature(p, macro);
    node->a = macro;
    node->b = hzp_j_parse_expr(p, true);
    if (node->b->kind != N_CALL)
        hzp_j_refuse(p, HZP_EFORMAT, "expected call");
    parse_macro_body(p, macro, "endcall");
    return node;
}

static struct jnode *parse_with(struct jparser *p, enum jkind kind)
{
    struct jnode *node = hzp_j_node(p, kind);
    while (!p->m->failed && hzp_j_now(p)->kind != T_CLOSE) {
        if (node->n)
            hzp_j_expect(p, T_OP, ",");
        hzp_j_nodes_add(p, node, hzp_j_parse_target(p, NULL, false));
        hzp_j_expect(p, T_OP, "=");
        hzp_j_nodes_add(p, node, hzp_j_parse_expr(p, true));
    }
    node->d = body_until(p, "endwith");
    return node;
}

static struct jnode *parse_leave(struct jparser *p, enum jkind kind)
{
    if (!p->loops)
        hzp_j_refuse(p, HZP_EFORMAT, "%s outside a loop", kind == N_BREAK ? "break" : "continue");
    return hzp_j_node(p, kind);
}

static struct jnode *parse_block_of(struct jparser *p, enum jkind kind)
{
    struct jnode *node = hzp_j_node(p, kind);
    if (kind == N_FILTER_BLOCK)
        node->c = hzp_j_parse_filters(p, NULL, true);
    node->d = body_until(p, kind == N_FILTER_BLOCK ? "endfilter" : "endgeneration");
    return node;
}

/* What {% name ... %} begins, up to its closing %}. */
static struct jnode *parse_statement(struct jparser *p)
{
    static const struct {
        const char *name;
        struct jnode *(*parse)(struct jparser *p, enum jkind kind);
        enum jkind kind;
    } tags[] = {{"if", parse_if, N_IF},
                {"for", parse_for, N_FOR},
                {"set", parse_set, N_SET},
                {"macro", parse_macro, N_MACRO},
                {"call", parse_call_block, N_CALL_BLOCK},
                {"with", parse_with, N_WITH},
                {"filter", parse_block_of, N_FILTER_BLOCK},
                {"generation", parse_block_of, N_GENERATION},
                {"break", parse_leave, N_BREAK},
                {"continue", parse_leave, N_CONTINUE}};
    const struct jtoken *token = hzp_j_now(p);
    for (int i = 0; i < HZP_COUNT(tags); i++)
        if (hzp_j_skip_if(p, T_NAME, tags[i].name))
            return tags[i].parse(p, tags[i].kind);
    hzp_j_refuse(p, HZP_EUNSUP, "the tag %.*s is not supported", HZP_MIN(token->bytes, 40),
                 token->text);
    return hzp_j_node(p, N_BODY);
}

static struct jnode *parse_print(struct jparser *p)
{
    struct jnode *node = hzp_j_node(p, N_PRINT);
    p->at++;
    node->a = hzp_j_parse_tuple(p, true, NULL);
    if (hzp_j_now(p)->kind != T_PRINT_END)
        hzp_j_expect(p, T_PRINT_END, "}}");
    else
        p->at++;
    return node;
}

/* Statements up to a tag whose name is one of ends, whose {% is consumed; NULL: to the end. */
static struct jnode *parse_body(struct jparser *p, const char *const *ends)
{
    struct jnode *body = hzp_j_node(p, N_BODY);
    if (p->m->depth >= p->m->depth_max)
        hzp_j_refuse(p, HZP_EUNSUP, "tags are nested too deeply");
    p->m->depth++;
    while (!p->m->failed) {
        const struct jtoken *token = hzp_j_now(p);
        if (token->kind == T_END) {
            if (ends)
                hzp_j_refuse(p, HZP_EFORMAT, "the template ends, %s is missing", ends[0]);
            break;
        }
        if (token->kind == T_TEXT) {
            struct jnode *text = hzp_j_node(p, N_TEXT);
            text->value = token->value;
            hzp_j_nodes_add(p, body, text);
            p->at++;
            continue;
        }
        if (token->kind == T_PRINT) {
            hzp_j_nodes_add(p, body, parse_print(p));
            continue;
        }
        p->at++; /* {% */
        bool ended = false;
        for (int i = 0; ends && ends[i]; i++)
            ended |= hzp_j_is(p, T_NAME, ends[i]);
        if (ended)
            break;
        hzp_j_nodes_add(p, body, parse_statement(p));
        hzp_j_expect(p, T_CLOSE, "%}");
    }
    p->m->depth--;
    return body;
}

void hzp_j_parse(struct hzp_jinja *ret, const char *source, size_t bytes)
{
    struct jparser p = {.m = &ret->mem, .jinja = ret};
    hzp_j_lex(p.m, source, bytes, &p.tokens);
    if (p.m->failed)
        return;
    ret->loop = hzp_j_intern(&p, "loop", 4);
    ret->caller = hzp_j_intern(&p, "caller", 6);
    ret->varargs = hzp_j_intern(&p, "varargs", 7);
    ret->kwargs = hzp_j_intern(&p, "kwargs", 6);
    ret->root = parse_body(&p, NULL);
}

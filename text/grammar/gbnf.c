/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/rules.h"

struct name {
    const char *text;
    size_t bytes;
    int32_t rule;
    bool defined;
};

struct parser {
    struct hzp_rules *rules;
    const char *text;
    size_t bytes, at;
    int depth;
    struct name *name;
    int32_t names, names_room;
    struct hzp_err_text *reterr;
};

static int refuse(const struct parser *p, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < p->at && i < p->bytes; i++)
        line += p->text[i] == '\n';
    return hzp_fail(p->reterr, HZP_EINVAL, "grammar: line %d: %s", line, what);
}

static char now(const struct parser *p)
{
    return p->at < p->bytes ? p->text[p->at] : '\0';
}

static bool take(struct parser *p, char c)
{
    if (p->at >= p->bytes || p->text[p->at] != c)
        return false;
    p->at++;
    return true;
}

/* Blanks and comments; lines: line breaks, too. */
static void skip(struct parser *p, bool lines)
{
    for (;;) {
        char c = now(p);
        if (c == '#') {
            while (p->at < p->bytes && p->text[p->at] != '\n' && p->text[p->at] != '\r')
                p->at++;
        } else if (p->at < p->bytes &&
                   (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))) {
            p->at++;
        } else {
            return;
        }
    }
}

static bool in_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* The named rule, new if it was not named before; NULL: there is no name here. */
static struct name *read_name(struct parser *p)
{
    const char *text = p->text + p->at;
    size_t bytes = 0;
    while (p->at < p->bytes && in_name(now(p))) {
        p->at++;
        bytes++;
    }
    if (!bytes)
        return NULL;
    for (int32_t i = 0; i < p->names; i++)
        if (p->name[i].bytes == bytes && !memcmp(p->name[i].text, text, bytes))
            return &p->name[i];
    p->name = hzp_xgrow(p->name, &p->names_room, p->names + 1, sizeof(*p->name));
    p->name[p->names] = (struct name){text, bytes, hzp_rules_add(p->rules, text, bytes), false};
    return &p->name[p->names++];
}

/* ---- literals and classes ---- */

/* An escape behind its backslash. */
static int read_escape(struct parser *p, uint32_t *ret)
{
    static const char pairs[] = "n\nr\rt\t\\\\\"\"[[]]--^^//";
    char c = now(p);
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    for (size_t i = 0; i + 1 < sizeof(pairs); i += 2)
        if (c && pairs[i] == c) {
            p->at++;
            *ret = (uint32_t)(uint8_t)pairs[i + 1];
            return HZP_OK;
        }
    if (!digits)
        return refuse(p, "an escape that there is not");
    *ret = hzp_code_hex(p->text, p->bytes, p->at + 1, digits);
    if (*ret > HZP_CODE_LAST || (*ret >= 0xD800 && *ret <= 0xDFFF))
        return refuse(p, "an escape that stands for no code point");
    p->at += (size_t)digits + 1;
    return HZP_OK;
}

static int read_char(struct parser *p, uint32_t *ret)
{
    if (p->at >= p->bytes)
        return refuse(p, "the grammar ends inside of quotes or brackets");
    if (take(p, '\\'))
        return read_escape(p, ret);
    *ret = hzp_code_read(p->text, p->bytes, &p->at);
    return *ret == UINT32_MAX ? refuse(p, "the grammar is not UTF-8") : HZP_OK;
}

/* A literal behind its quote. */
static int read_literal(struct parser *p, struct hzp_part_of *ret)
{
    ret->to = ret->from = hzp_rules_node(p->rules);
    while (!take(p, '"')) {
        uint32_t code;
        HZP_TRY(read_char(p, &code));
        int32_t node = hzp_rules_node(p->rules);
        hzp_rules_codes(p->rules, ret->to, code, code, node);
        ret->to = node;
    }
    return HZP_OK;
}

/* A class behind its bracket. */
static int read_class(struct parser *p, struct hzp_part_of *ret)
{
    struct hzp_codes set = {0};
    bool inverted = take(p, '^');
    while (!take(p, ']')) {
        uint32_t lo, hi;
        HZP_TRY(read_char(p, &lo));
        hi = lo;
        if (now(p) == '-' && p->at + 1 < p->bytes && p->text[p->at + 1] != ']') {
            p->at++;
            HZP_TRY(read_char(p, &hi));
        }
        if (hi < lo)
            return refuse(p, "a range whose end is before its beginning");
        hzp_codes_add(&set, lo, hi);
    }
    if (inverted)
        hzp_codes_invert(&set);
    if (set.full)
        return refuse(p, "a class of too many ranges");
    ret->from = hzp_rules_node(p->rules);
    ret->to = hzp_rules_node(p->rules);
    hzp_codes_edges(p->rules, ret->from, &set, HZP_SPELL_PLAIN, ret->to);
    return HZP_OK;
}

/* ---- rules ---- */

static int read_alternatives(struct parser *p, bool lines, struct hzp_part_of *ret);

static int read_group(struct parser *p, struct hzp_part_of *ret)
{
    if (++p->depth > HZP_GBNF_DEPTH_MAX)
        return refuse(p, "groups are nested too deep");
    HZP_TRY(read_alternatives(p, true, ret));
    p->depth--;
    return take(p, ')') ? HZP_OK : refuse(p, "( is not closed");
}

/* An item; *ret_any: there is one here. */
static int read_item(struct parser *p, bool *ret_any, struct hzp_part_of *ret)
{
    *ret_any = true;
    if (take(p, '"'))
        return read_literal(p, ret);
    if (take(p, '['))
        return read_class(p, ret);
    if (take(p, '('))
        return read_group(p, ret);
    if (take(p, '.')) {
        ret->from = hzp_rules_node(p->rules);
        ret->to = hzp_rules_node(p->rules);
        hzp_rules_codes(p->rules, ret->from, 0, HZP_CODE_LAST, ret->to);
        return HZP_OK;
    }
    const struct name *name = read_name(p);
    *ret_any = name != NULL;
    if (!name)
        return HZP_OK;
    ret->from = hzp_rules_node(p->rules);
    ret->to = hzp_rules_then(p->rules, ret->from, name->rule);
    return HZP_OK;
}

static int32_t read_count(struct parser *p)
{
    int32_t value = -1;
    for (; now(p) >= '0' && now(p) <= '9'; p->at++) {
        value = HZP_MAX(value, 0) * 10 + (now(p) - '0');
        value = HZP_MIN(value, HZP_REPEAT_MAX + 1);
    }
    return value;
}

/* What is repeated, how often; *ret_repeats: it is. */
static int read_repeat(struct parser *p, bool *ret_repeats, int32_t *least, int32_t *most)
{
    *least = *most = 1;
    *ret_repeats = true;
    if (take(p, '*')) {
        *least = 0;
        *most = -1;
    } else if (take(p, '+')) {
        *most = -1;
    } else if (take(p, '?')) {
        *least = 0;
    } else if (take(p, '{')) {
        skip(p, false);
        *least = *most = read_count(p);
        skip(p, false);
        if (*least < 0)
            return refuse(p, "{ without a count");
        if (take(p, ',')) {
            skip(p, false);
            *most = read_count(p);
            skip(p, false);
        }
        if (!take(p, '}'))
            return refuse(p, "{ is not closed");
        if (*most >= 0 && *most < *least)
            return refuse(p, "a count whose most is below its least");
        if (HZP_MAX(*least, *most) > HZP_REPEAT_MAX)
            return hzp_fail(p->reterr, HZP_EINVAL, "grammar: a count above %d", HZP_REPEAT_MAX);
    } else {
        *ret_repeats = false;
    }
    return HZP_OK;
}

static int read_sequence(struct parser *p, bool lines, int32_t from, int32_t *ret)
{
    for (;;) {
        struct hzp_part_of part;
        int32_t least, most;
        size_t begin = p->at;
        bool any, repeats;
        skip(p, lines);
        HZP_TRY(read_item(p, &any, &part));
        if (!any) {
            p->at = begin;
            skip(p, lines);
            *ret = from;
            return HZP_OK;
        }
        skip(p, lines);
        HZP_TRY(read_repeat(p, &repeats, &least, &most));
        if (repeats) {
            from = hzp_rules_repeat(p->rules, from, part, least, most);
        } else {
            hzp_rules_empty(p->rules, from, part.from);
            from = part.to;
        }
        if (p->rules->full)
            return refuse(p, "the grammar is too large");
    }
}

static int read_alternatives(struct parser *p, bool lines, struct hzp_part_of *ret)
{
    ret->from = hzp_rules_node(p->rules);
    ret->to = hzp_rules_node(p->rules);
    do {
        int32_t begin = hzp_rules_node(p->rules), end = begin;
        hzp_rules_empty(p->rules, ret->from, begin);
        skip(p, true);
        HZP_TRY(read_sequence(p, lines, begin, &end));
        hzp_rules_empty(p->rules, end, ret->to);
        skip(p, lines);
    } while (take(p, '|'));
    return HZP_OK;
}

static int read_rule(struct parser *p)
{
    struct hzp_part_of body;
    struct name *name = read_name(p);
    if (!name)
        return refuse(p, "the name of a rule is expected");
    int32_t rule = name->rule;
    if (name->defined)
        return refuse(p, "the rule is defined twice");
    name->defined = true;
    skip(p, false);
    if (p->bytes - p->at < 3 || memcmp(p->text + p->at, "::=", 3))
        return refuse(p, "::= is expected behind the name of a rule");
    p->at += 3;
    HZP_TRY(read_alternatives(p, false, &body));
    if (p->at < p->bytes && now(p) != '\n' && now(p) != '\r')
        return refuse(p, "unexpected character");
    hzp_rules_empty(p->rules, p->rules->rule[rule].first, body.from);
    hzp_rules_empty(p->rules, body.to, p->rules->rule[rule].last);
    return HZP_OK;
}

static int read_grammar(struct parser *p, int32_t *ret)
{
    *ret = -1;
    skip(p, true);
    while (p->at < p->bytes) {
        HZP_TRY(read_rule(p));
        skip(p, true);
    }
    for (int32_t i = 0; i < p->names; i++) {
        const struct name *name = &p->name[i];
        if (!name->defined)
            return hzp_fail(p->reterr, HZP_EINVAL, "grammar: rule \"%.*s\" is not defined",
                            (int)HZP_MIN(name->bytes, (size_t)48), name->text);
        if (name->bytes == 4 && !memcmp(name->text, "root", 4))
            *ret = name->rule;
    }
    if (*ret < 0)
        return hzp_fail(p->reterr, HZP_EINVAL, "grammar: there is no rule \"root\"");
    return HZP_OK;
}

int hzp_gbnf_rules(struct hzp_rules *rules, const char *text, size_t bytes, int32_t *ret,
                   struct hzp_err_text *reterr)
{
    struct parser p = {.rules = rules, .text = text, .bytes = bytes, .reterr = reterr};
    if (bytes > HZP_GBNF_BYTES_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "grammar: longer than %d bytes", HZP_GBNF_BYTES_MAX);
    int r = read_grammar(&p, ret);
    free(p.name);
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar/regular.h"

struct parser {
    struct hzp_rules *rules;
    const char *text;
    size_t bytes, at;
    enum hzp_spelling spelling;
    bool search, wrong;
    int depth;
    const struct hzp_regular *any; /* what look-ahead leaves open: any text */
    struct hzp_err_text *reterr;
};

static int refuse(const struct parser *p, const char *what)
{
    return hzp_fail(p->reterr, HZP_EINVAL, "regex: %s at byte %zu", what, p->at);
}

static bool next_is(const struct parser *p, const char *text)
{
    size_t n = strlen(text);
    return p->bytes - p->at >= n && !memcmp(p->text + p->at, text, n);
}

static bool take(struct parser *p, const char *text)
{
    if (!next_is(p, text))
        return false;
    p->at += strlen(text);
    return true;
}

static bool ended(const struct parser *p)
{
    return p->at >= p->bytes;
}

/* ---- classes ---- */

static void add_all(struct hzp_codes *set, const struct hzp_code_range *range, int count,
                    bool inverted)
{
    struct hzp_codes part = {0};
    for (int i = 0; i < count; i++)
        hzp_codes_add(&part, range[i].lo, range[i].hi);
    if (inverted)
        hzp_codes_invert(&part);
    for (int32_t i = 0; i < part.count; i++)
        hzp_codes_add(set, part.range[i].lo, part.range[i].hi);
}

/* d, w, s and their opposites.  False: the letter is none of them. */
static bool add_named(struct hzp_codes *set, char letter)
{
    static const struct hzp_code_range digit[] = {{'0', '9'}};
    static const struct hzp_code_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct hzp_code_range space[] = {{'\t', '\r'}, {' ', ' '}};
    /* what is a space in any dialect is none of \S */
    static const struct hzp_code_range spaces[] = {
        {'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},     {0xA0, 0xA0},
        {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
        {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    static const struct {
        char letter;
        const struct hzp_code_range *range;
        int count;
    } sets[] = {{'d', digit, HZP_COUNT(digit)}, {'D', digit, HZP_COUNT(digit)},
                {'w', word, HZP_COUNT(word)},   {'W', word, HZP_COUNT(word)},
                {'s', space, HZP_COUNT(space)}, {'S', spaces, HZP_COUNT(spaces)}};
    for (int i = 0; i < HZP_COUNT(sets); i++)
        if (sets[i].letter == letter) {
            add_all(set, sets[i].range, sets[i].count, letter <= 'Z');
            return true;
        }
    return false;
}

static int read_unicode(struct parser *p, uint32_t *ret)
{
    int digits = 4;
    bool braces = take(p, "{");
    if (braces)
        for (digits = 0; p->at + (size_t)digits < p->bytes && digits < 7 &&
                         p->text[p->at + (size_t)digits] != '}';)
            digits++;
    *ret = digits ? hzp_code_hex(p->text, p->bytes, p->at, digits) : UINT32_MAX;
    if (*ret > HZP_CODE_LAST || (*ret >= 0xD800 && *ret <= 0xDFFF))
        return refuse(p, "\\u is followed by no code point");
    p->at += (size_t)digits;
    if (braces && !take(p, "}"))
        return refuse(p, "\\u{ is not closed");
    return HZP_OK;
}

/* An escape behind its backslash that stands for one code point. */
static int read_escape(struct parser *p, bool in_class, uint32_t *ret)
{
    static const char controls[] = "t\tn\nr\rf\fv\v"; /* pairs */
    if (ended(p))
        return refuse(p, "a backslash ends the expression");
    char c = p->text[p->at];
    for (size_t i = 0; i + 1 < sizeof(controls); i += 2)
        if (controls[i] == c) {
            p->at++;
            *ret = (uint32_t)controls[i + 1];
            return HZP_OK;
        }
    if (in_class && c == 'b') {
        p->at++;
        *ret = '\b';
        return HZP_OK;
    }
    if (c == 'x') {
        *ret = hzp_code_hex(p->text, p->bytes, p->at + 1, 2);
        if (*ret == UINT32_MAX)
            return refuse(p, "\\x is not followed by two hexadecimal digits");
        p->at += 3;
        return HZP_OK;
    }
    if (c == 'u') {
        p->at++;
        return read_unicode(p, ret);
    }
    if (c == '0' &&
        !(p->at + 1 < p->bytes && p->text[p->at + 1] >= '0' && p->text[p->at + 1] <= '9')) {
        p->at++;
        *ret = 0;
        return HZP_OK;
    }
    if (c >= '0' && c <= '9')
        return refuse(p, "back references are not supported:");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(p, "this escape is not supported:");
    *ret = hzp_code_read(p->text, p->bytes, &p->at);
    return *ret == UINT32_MAX ? refuse(p, "the expression is not UTF-8") : HZP_OK;
}

/* One member of a class: a code point, or (*ret_named) a named set, which is added. */
static int read_member(struct parser *p, struct hzp_codes *set, bool *ret_named, uint32_t *ret)
{
    *ret_named = false;
    if (ended(p))
        return refuse(p, "[ is not closed");
    if (take(p, "\\")) {
        *ret_named = !ended(p) && add_named(set, p->text[p->at]);
        p->at += *ret_named;
        return *ret_named ? HZP_OK : read_escape(p, true, ret);
    }
    *ret = hzp_code_read(p->text, p->bytes, &p->at);
    return *ret == UINT32_MAX ? refuse(p, "the expression is not UTF-8") : HZP_OK;
}

/* A class behind its bracket. */
static int read_class(struct parser *p, struct hzp_codes *set)
{
    bool inverted = take(p, "^");
    for (bool first = true; first || !next_is(p, "]"); first = false) {
        uint32_t lo, hi;
        bool named;
        if (first && next_is(p, "]"))
            return refuse(p, "an empty class");
        HZP_TRY(read_member(p, set, &named, &lo));
        if (named)
            continue;
        hi = lo;
        if (next_is(p, "-") && !next_is(p, "-]")) {
            p->at++;
            HZP_TRY(read_member(p, set, &named, &hi));
            if (named)
                return refuse(p, "a range ends with a set");
        }
        if (hi < lo)
            return refuse(p, "a range whose end is before its beginning");
        hzp_codes_add(set, lo, hi);
    }
    p->at++;
    if (inverted)
        hzp_codes_invert(set);
    if (set->full)
        return refuse(p, "a class of too many ranges");
    return HZP_OK;
}

static void add_any(struct hzp_codes *set, bool lines)
{
    static const struct hzp_code_range ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    add_all(set, ends, lines ? 0 : HZP_COUNT(ends), true);
}

/* ---- expressions ---- */

static int read_branches(struct parser *p, struct hzp_part_of *ret);

static int read_group(struct parser *p, struct hzp_part_of *ret)
{
    if (take(p, "?")) {
        if (next_is(p, "P<") || (next_is(p, "<") && !next_is(p, "<=") && !next_is(p, "<!"))) {
            while (!ended(p) && p->text[p->at] != '>')
                p->at++;
            if (!take(p, ">"))
                return refuse(p, "the name of a group is not closed");
        } else if (!take(p, ":")) {
            return refuse(p, "look-behind, flags, and look-ahead in what is repeated are not "
                             "supported:");
        }
    }
    if (++p->depth > HZP_REGEX_DEPTH_MAX)
        return refuse(p, "groups are nested too deep");
    HZP_TRY(read_branches(p, ret));
    p->depth--;
    return take(p, ")") ? HZP_OK : refuse(p, "( is not closed");
}

static int read_atom(struct parser *p, struct hzp_part_of *ret)
{
    struct hzp_codes set = {0};
    uint32_t code;
    ret->from = hzp_rules_node(p->rules);
    if (take(p, "(")) {
        struct hzp_part_of inner;
        HZP_TRY(read_group(p, &inner));
        hzp_rules_empty(p->rules, ret->from, inner.from);
        ret->to = inner.to;
        return HZP_OK;
    }
    if (take(p, "[")) {
        HZP_TRY(read_class(p, &set));
    } else if (take(p, ".")) {
        add_any(&set, false);
    } else if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?") || next_is(p, "{")) {
        return refuse(p, "nothing to repeat");
    } else if (next_is(p, "^") || next_is(p, "$")) {
        return refuse(p, "^ and $ are supported at the beginning and the end only:");
    } else if (take(p, "\\")) {
        if (!ended(p) && add_named(&set, p->text[p->at])) {
            p->at++;
        } else {
            HZP_TRY(read_escape(p, false, &code));
            hzp_codes_add(&set, code, code);
        }
    } else {
        code = hzp_code_read(p->text, p->bytes, &p->at);
        if (code == UINT32_MAX)
            return refuse(p, "the expression is not UTF-8");
        hzp_codes_add(&set, code, code);
    }
    ret->to = hzp_rules_node(p->rules);
    hzp_codes_edges(p->rules, ret->from, &set, p->spelling, ret->to);
    return HZP_OK;
}

/* Digits of a count; -1: there are none, -2: it is too large. */
static int32_t read_count(struct parser *p)
{
    int32_t value = -1;
    for (; !ended(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++) {
        value = HZP_MAX(value, 0) * 10 + (p->text[p->at] - '0');
        if (value > HZP_REPEAT_MAX)
            return -2;
    }
    return value;
}

static int read_braces(struct parser *p, int32_t *least, int32_t *most)
{
    *least = *most = read_count(p);
    if (take(p, ",")) {
        *most = read_count(p);
        *least = *least == -1 ? 0 : *least;
    } else if (*least == -1) {
        return refuse(p, "{ without a count");
    }
    if (*least == -2 || *most == -2)
        return hzp_fail(p->reterr, HZP_EINVAL, "regex: a count above %d at byte %zu",
                        HZP_REPEAT_MAX, p->at);
    if (!take(p, "}"))
        return refuse(p, "{ is not closed");
    if (*most >= 0 && *most < *least)
        return refuse(p, "a count whose most is below its least");
    return HZP_OK;
}

/* An atom and what repeats it, behind `from`. */
static int read_piece(struct parser *p, int32_t from, int32_t *ret)
{
    struct hzp_part_of part;
    int32_t least = 1, most = 1;
    HZP_TRY(read_atom(p, &part));
    if (take(p, "*")) {
        least = 0;
        most = -1;
    } else if (take(p, "+")) {
        most = -1;
    } else if (take(p, "?")) {
        least = 0;
    } else if (take(p, "{")) {
        HZP_TRY(read_braces(p, &least, &most));
    } else {
        hzp_rules_empty(p->rules, from, part.from);
        *ret = part.to;
        return HZP_OK;
    }
    if (next_is(p, "+"))
        return refuse(p, "possessive quantifiers are not supported:");
    take(p, "?");
    *ret = hzp_rules_repeat(p->rules, from, part, least, most);
    return p->rules->full ? refuse(p, "the expression is too large") : HZP_OK;
}

/* Anything, any number of times, behind `from`. */
static int32_t anything(struct parser *p, int32_t from)
{
    struct hzp_codes set = {0};
    int32_t node = hzp_rules_node(p->rules);
    add_any(&set, true);
    hzp_rules_empty(p->rules, from, node);
    hzp_codes_edges(p->rules, node, &set, p->spelling, node);
    return node;
}

static bool branch_ends(const struct parser *p)
{
    return ended(p) || next_is(p, "|") || next_is(p, ")");
}

static int read_branch(struct parser *p, int32_t from, int32_t *ret)
{
    bool top = p->depth == 0, begins = top && take(p, "^");
    if (top && p->search && !begins)
        from = anything(p, from);
    while (!branch_ends(p)) {
        size_t at = p->at;
        if (top && take(p, "$")) {
            if (branch_ends(p)) {
                *ret = from;
                return HZP_OK;
            }
            p->at = at;
        }
        HZP_TRY(read_piece(p, from, &from));
    }
    if (top && next_is(p, ")"))
        return refuse(p, ") without (");
    *ret = top && p->search ? anything(p, from) : from;
    return HZP_OK;
}

static int read_branches(struct parser *p, struct hzp_part_of *ret)
{
    ret->from = hzp_rules_node(p->rules);
    ret->to = hzp_rules_node(p->rules);
    do {
        int32_t begin = hzp_rules_node(p->rules), end = begin;
        hzp_rules_empty(p->rules, ret->from, begin);
        HZP_TRY(read_branch(p, begin, &end));
        hzp_rules_empty(p->rules, end, ret->to);
    } while (take(p, "|"));
    return HZP_OK;
}

/* ---- look-ahead ---- */

/* An expression with look-ahead is made from its end: `rest` is what the text may be from a place
 * on, NULL: empty.  A look-ahead leaves of that what its own expression takes, too, or does not.
 * These return NULL where the expression is wrong (p->wrong) or too large. */

/* Behind the escape, class or byte at `at`; groups: behind the group that begins there. */
static size_t step(const struct parser *p, size_t at, bool groups)
{
    int depth = 0;
    do {
        char c = p->text[at++];
        for (; c == '[' && at < p->bytes && p->text[at] != ']'; at++)
            at += p->text[at] == '\\';
        at = HZP_MIN(at + (c == '[' || c == '\\'), p->bytes);
        depth += (c == '(') - (c == ')');
    } while (groups && at < p->bytes && depth > 0);
    return at;
}

/* Whether there is a look-ahead between the two. */
static bool looks(const struct parser *p, size_t at, size_t end)
{
    for (; at + 2 < end; at = step(p, at, false))
        if (!memcmp(p->text + at, "(?=", 3) || !memcmp(p->text + at, "(?!", 3))
            return true;
    return false;
}

static struct hzp_regular *wrong(struct parser *p, const char *what)
{
    p->wrong = refuse(p, what) < 0;
    return NULL;
}

/* A part without look-ahead, and `rest` behind it; free: behind anything. */
static struct hzp_regular *part_then(struct parser *p, size_t at, size_t end, bool free,
                                     const struct hzp_regular *rest)
{
    struct parser part = *p;
    struct hzp_part_of of;
    struct hzp_regular *made = NULL;
    part.rules = hzp_rules_create();
    part.at = at;
    part.bytes = end;
    part.depth = 1; /* as in a group: no further ^ and $ */
    int32_t from = hzp_rules_node(part.rules), behind = free ? anything(&part, from) : from;
    p->wrong = read_branches(&part, &of) < 0 || (!ended(&part) && refuse(&part, ") without (") < 0);
    hzp_rules_empty(part.rules, behind, of.from);
    if (!p->wrong)
        made = hzp_regular_create(part.rules, from,
                                  rest ? hzp_regular_add(part.rules, of.to, rest) : of.to);
    hzp_rules_destroy(part.rules);
    return made;
}

static struct hzp_regular *look_branches(struct parser *p, size_t at, size_t end, bool begins,
                                         bool free, const struct hzp_regular *rest);

/* What the group [at, end), which has look-ahead or is one, leaves of what may come behind it. */
static struct hzp_regular *look_group(struct parser *p, size_t at, size_t end, bool begins,
                                      const struct hzp_regular *behind)
{
    char kind = p->text[at + 1] == '?' ? p->text[at + 2] : '(';
    if (p->text[end - 1] != ')' || kind == 'P' || kind == '<')
        return wrong(p, "this group cannot have look-ahead, or is not closed:");
    if (kind != '=' && kind != '!')
        return look_branches(p, at + (kind == '(' ? 1 : 3), end - 1, begins, false, behind);
    struct hzp_regular *left = NULL;
    struct hzp_regular *found = look_branches(p, at + 3, end - 1, begins, false, p->any);
    if (found)
        left = kind == '=' ? hzp_regular_both(behind, found) : hzp_regular_without(behind, found);
    hzp_regular_destroy(found);
    return left;
}

/* begins: nothing is before the branch. */
static struct hzp_regular *look_branch(struct parser *p, size_t at, size_t end, bool begins,
                                       bool free, const struct hzp_regular *rest)
{
    bool anchored = begins && at < end && p->text[at] == '^';
    size_t from = at += anchored, to = from;
    for (free &= !anchored; from < end; from = to) {
        to = step(p, from, true);
        if (p->text[from] == '(' && looks(p, from, to))
            break;
        if (p->text[from] == '$' && to == end) /* nothing is left */
            return !rest || hzp_regular_takes(rest, "", 0) ? part_then(p, at, from, free, NULL)
                                                           : hzp_regular_without(rest, rest);
    }
    if (from >= end)
        return part_then(p, at, end, free, rest);
    p->at = from;
    if (p->depth == HZP_REGEX_DEPTH_MAX || (to < end && strchr("*+?{", p->text[to])))
        return wrong(p, "look-ahead in what is repeated, or nested too deep:");
    begins &= from == at && !free;
    p->depth++;
    bool still = begins && p->text[from + 1] == '?' && p->text[from + 2] != ':';
    struct hzp_regular *behind = look_branch(p, to, end, still, false, rest);
    struct hzp_regular *left = behind ? look_group(p, from, to, begins, behind) : NULL;
    struct hzp_regular *all = left ? part_then(p, at, from, free, left) : NULL;
    p->depth--;
    hzp_regular_destroy(behind);
    hzp_regular_destroy(left);
    return all;
}

/* free: branches without ^ may stand anywhere in the text. */
static struct hzp_regular *look_branches(struct parser *p, size_t at, size_t end, bool begins,
                                         bool free, const struct hzp_regular *rest)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t from = hzp_rules_node(rules), to = hzp_rules_node(rules);
    struct hzp_regular *one = NULL, *all = NULL;
    for (size_t next = at; at <= end; at = next + 1) {
        for (next = at; next < end && p->text[next] != '|';)
            next = step(p, next, true);
        one = look_branch(p, at, next, begins, free, rest);
        if (!one)
            break;
        hzp_rules_empty(rules, hzp_regular_add(rules, from, one), to);
        hzp_regular_destroy(one);
    }
    if (one)
        all = hzp_regular_create(rules, from, to);
    hzp_rules_destroy(rules);
    return all;
}

static int look_rules(struct parser *p, int32_t from, int32_t *ret)
{
    struct hzp_regular *any = part_then(p, 0, 0, true, NULL), *all = NULL;
    p->any = any;
    if (any)
        all = look_branches(p, 0, p->bytes, true, p->search, p->search ? any : NULL);
    if (all)
        *ret = hzp_regular_add(p->rules, from, all);
    else if (!p->wrong)
        wrong(p, "look-ahead makes the expression too large:");
    hzp_regular_destroy(any);
    hzp_regular_destroy(all);
    return all ? HZP_OK : HZP_EINVAL;
}

int hzp_regex_rules(struct hzp_rules *rules, int32_t from, const char *text, size_t bytes,
                    enum hzp_spelling spelling, bool search, int32_t *ret,
                    struct hzp_err_text *reterr)
{
    struct parser p = {.rules = rules,
                       .text = text,
                       .bytes = bytes,
                       .spelling = spelling,
                       .search = search,
                       .reterr = reterr};
    struct hzp_part_of part;
    if (bytes > HZP_REGEX_BYTES_MAX)
        return hzp_fail(reterr, HZP_EINVAL, "regex: longer than %d bytes", HZP_REGEX_BYTES_MAX);
    if (looks(&p, 0, bytes))
        return look_rules(&p, from, ret);
    HZP_TRY(read_branches(&p, &part));
    if (!ended(&p))
        return refuse(&p, ") without (");
    hzp_rules_empty(rules, from, part.from);
    *ret = part.to;
    return HZP_OK;
}

int hzp_regex_regular(const char *text, size_t bytes, enum hzp_spelling spelling, bool search,
                      struct hzp_regular **ret, struct hzp_err_text *reterr)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t from = hzp_rules_node(rules), to;
    int r = hzp_regex_rules(rules, from, text, bytes, spelling, search, &to, reterr);
    *ret = r == HZP_OK ? hzp_regular_create(rules, from, to) : NULL;
    hzp_rules_destroy(rules);
    return r;
}

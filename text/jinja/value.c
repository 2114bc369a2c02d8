/* SPDX-License-Identifier: Apache-2.0 */
#include "text/jinja/value.h"

#include "base/hash.h"
#include "base/utf8.h"

enum { CHUNK_BYTES = 16384, SMALL_BYTES = 4096, DEPTH_MAX = 160, HASH_FROM = 12 };

void hzp_j_mem_init(struct jmem *m, const char *name, const struct hzp_jinja_limits *limits,
                    struct hzp_err_text *err)
{
    memset(m, 0, sizeof(*m));
    hzp_arena_init(&m->arena);
    m->name = name;
    m->err = err;
    m->most = limits ? limits->memory_bytes : SIZE_MAX;
    m->steps_max = limits ? limits->steps : INT64_MAX;
    m->depth_max = DEPTH_MAX;
}

void hzp_j_mem_fini(struct jmem *m)
{
    hzp_arena_fini(&m->arena);
}

struct jval hzp_j_fail(struct jmem *m, const char *format, ...)
{
    if (!m->failed) {
        char text[400];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        m->failed = true;
        if (!m->code)
            m->code = HZP_EINVAL;
        hzp_fail(m->err, m->code, "%.80s, line %d: %s", m->name, m->line, text);
    }
    return hzp_j_undefined(NULL);
}

void *hzp_j_alloc(struct jmem *m, size_t size)
{
    size = HZP_ROUND_UP(HZP_MAX(size, 1), 16);
    if (size > m->most || m->used > m->most - size) {
        hzp_j_fail(m, "the template needs more than %zu bytes of memory", m->most);
        if (size > SMALL_BYTES)
            return NULL;
    }
    m->used += size;
    if (size > CHUNK_BYTES / 4)
        return hzp_arena_alloc(&m->arena, size);
    if (size > m->chunk_left) {
        m->chunk = hzp_arena_alloc(&m->arena, CHUNK_BYTES);
        m->chunk_left = CHUNK_BYTES;
    }
    void *got = m->chunk;
    m->chunk += size;
    m->chunk_left -= size;
    return got;
}

bool hzp_j_grow(struct jmem *m, void *array, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return true;
    size_t more = HZP_MAX(4, 2 * *room);
    void *old, *grown = hzp_j_alloc(m, more * size);
    if (!grown)
        return false;
    memcpy(&old, array, sizeof(old));
    if (n)
        memcpy(grown, old, n * size);
    memcpy(array, &grown, sizeof(grown));
    *room = more;
    return true;
}

bool hzp_j_step(struct jmem *m, int64_t n)
{
    m->steps += n;
    if (m->steps > m->steps_max)
        hzp_j_fail(m, "the template takes more than %lld steps", (long long)m->steps_max);
    return !m->failed;
}

/* ---- making values ---- */

struct jval hzp_j_borrow(struct jmem *m, const char *text, size_t bytes)
{
    struct jstr *s = hzp_j_alloc(m, sizeof(*s));
    s->text = text;
    s->bytes = bytes;
    s->codes = -1;
    return (struct jval){.type = J_STRING, .s = s};
}

struct jval hzp_j_string(struct jmem *m, const char *text, size_t bytes)
{
    char *copy = hzp_j_alloc(m, bytes);
    if (!copy)
        return hzp_j_borrow(m, "", 0);
    memcpy(copy, text, bytes);
    hzp_j_step(m, (int64_t)(bytes / 32));
    return hzp_j_borrow(m, copy, bytes);
}

struct jval hzp_j_list(struct jmem *m, enum jlist_kind kind)
{
    struct jlist *list = hzp_j_alloc(m, sizeof(*list));
    list->kind = kind;
    return (struct jval){.type = J_LIST, .l = list};
}

void hzp_j_push(struct jmem *m, struct jlist *list, struct jval value)
{
    if (hzp_j_grow(m, &list->item, list->n, &list->room, sizeof(*list->item)))
        list->item[list->n++] = value;
}

void hzp_j_reverse(struct jlist *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        struct jval kept = list->item[i];
        list->item[i] = list->item[list->n - 1 - i];
        list->item[list->n - 1 - i] = kept;
    }
}

struct jval hzp_j_pair(struct jmem *m, struct jval a, struct jval b)
{
    struct jval pair = hzp_j_list(m, J_IS_TUPLE);
    hzp_j_push(m, pair.l, a);
    hzp_j_push(m, pair.l, b);
    return pair;
}

struct jval hzp_j_dict(struct jmem *m, enum jtype type)
{
    return (struct jval){.type = (uint8_t)type, .o = hzp_j_alloc(m, sizeof(struct jdict))};
}

/* Equal keys have equal hashes: 1, 1.0 and True are one key. */
static uint32_t hash(struct jmem *m, struct jval key)
{
    uint64_t h = key.type;
    if (key.type == J_STRING) {
        hzp_j_step(m, (int64_t)(key.s->bytes / 32));
        h = hzp_fnv(HZP_FNV, key.s->text, key.s->bytes);
    } else if (hzp_j_is_number(key)) {
        double d = hzp_j_number(key);
        if (d == 0) /* -0.0, too */
            d = 0;
        h = hzp_fnv(HZP_FNV, &d, sizeof(d));
    }
    return (uint32_t)(h ^ h >> 32);
}

static size_t find_slot(struct jmem *m, const struct jdict *dict, struct jval key)
{
    size_t at = hash(m, key) & (dict->slots - 1);
    while (dict->slot[at] && !hzp_j_equal(m, dict->key[dict->slot[at] - 1], key)) {
        at = (at + 1) & (dict->slots - 1);
        if (!hzp_j_step(m, 1))
            break;
    }
    return at;
}

struct jval *hzp_j_dict_get(struct jmem *m, const struct jdict *dict, struct jval key)
{
    if (dict->slots) {
        size_t at = find_slot(m, dict, key);
        return dict->slot[at] && !m->failed ? &dict->value[dict->slot[at] - 1] : NULL;
    }
    for (size_t i = 0; i < dict->n; i++)
        if (hzp_j_equal(m, dict->key[i], key))
            return &dict->value[i];
    return NULL;
}

static bool grow_dict(struct jmem *m, struct jdict *dict)
{
    size_t room = HZP_MAX(4, 2 * dict->room);
    struct jval *key = hzp_j_alloc(m, room * sizeof(*key));
    struct jval *value = hzp_j_alloc(m, room * sizeof(*value));
    uint32_t *slot = room > HASH_FROM ? hzp_j_alloc(m, 2 * room * sizeof(*slot)) : NULL;
    if (!key || !value || (room > HASH_FROM && !slot))
        return false;
    if (dict->n) {
        memcpy(key, dict->key, dict->n * sizeof(*key));
        memcpy(value, dict->value, dict->n * sizeof(*value));
    }
    dict->key = key;
    dict->value = value;
    dict->room = room;
    dict->slot = slot;
    dict->slots = slot ? 2 * room : 0;
    for (size_t i = 0; slot && i < dict->n; i++)
        slot[find_slot(m, dict, key[i])] = (uint32_t)i + 1;
    return true;
}

static bool hashable(struct jval key)
{
    if (key.type == J_LIST && key.l->kind == J_IS_TUPLE) {
        for (size_t i = 0; i < key.l->n; i++)
            if (key.l->item[i].type == J_LIST || !hashable(key.l->item[i]))
                return false;
        return true;
    }
    return key.type != J_LIST && key.type != J_DICT;
}

void hzp_j_dict_set(struct jmem *m, struct jdict *dict, struct jval key, struct jval value)
{
    if (!hashable(key)) {
        hzp_j_fail(m, "unhashable type: '%s'", hzp_j_type_name(key));
        return;
    }
    struct jval *old = hzp_j_dict_get(m, dict, key);
    if (old) {
        *old = value;
        return;
    }
    if (m->failed || (dict->n == dict->room && !grow_dict(m, dict)))
        return;
    if (dict->slots)
        dict->slot[find_slot(m, dict, key)] = (uint32_t)dict->n + 1;
    dict->key[dict->n] = key;
    dict->value[dict->n++] = value;
}

static struct jval spelled(struct jmem *m, const json_t *json)
{
    struct jspelled *n = hzp_j_alloc(m, sizeof(*n));
    n->d = hzp_json_real(json);
    n->text = hzp_json_spelling(json);
    return (struct jval){.type = J_FLOAT, .spelled = true, .n = n};
}

static struct jval dict_of(struct jmem *m, const json_t *json)
{
    struct jval v = hzp_j_dict(m, J_DICT);
    for (void *it = json_object_iter((json_t *)(uintptr_t)json); it;
         it = json_object_iter_next((json_t *)(uintptr_t)json, it))
        hzp_j_dict_set(m, v.o,
                       hzp_j_borrow(m, json_object_iter_key(it), json_object_iter_key_len(it)),
                       hzp_j_from_json(m, json_object_iter_value(it)));
    return v;
}

struct jval hzp_j_from_json(struct jmem *m, const json_t *json)
{
    struct jval v = hzp_j_none();
    if (!hzp_j_step(m, 1))
        return v;
    if (m->depth >= m->depth_max)
        return hzp_j_fail(m, "a variable is nested too deeply");
    m->depth++;
    switch (json_typeof(json)) {
    case JSON_TRUE:
    case JSON_FALSE:
        v = hzp_j_bool(json_is_true(json));
        break;
    case JSON_INTEGER:
        v = hzp_j_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = hzp_j_float(json_real_value(json));
        break;
    case JSON_STRING:
        v = hzp_j_borrow(m, json_string_value(json), json_string_length(json));
        break;
    case JSON_ARRAY:
        v = hzp_j_list(m, J_IS_LIST);
        for (size_t i = 0; i < json_array_size(json); i++)
            hzp_j_push(m, v.l, hzp_j_from_json(m, json_array_get(json, i)));
        break;
    case JSON_OBJECT:
        v = hzp_json_spelling(json) ? spelled(m, json) : dict_of(m, json);
        break;
    case JSON_NULL:
        break;
    }
    m->depth--;
    return v;
}

void hzp_j_add(struct jmem *m, struct jbuf *buf, const char *text, size_t bytes)
{
    if (!bytes)
        return;
    if (bytes > buf->room - buf->n) {
        size_t room = HZP_MAX(2 * buf->room, HZP_MAX(buf->n + bytes, 64));
        char *grown = hzp_j_alloc(m, room);
        if (!grown)
            return;
        if (buf->n)
            memcpy(grown, buf->text, buf->n);
        buf->text = grown;
        buf->room = room;
    }
    memcpy(buf->text + buf->n, text, bytes);
    buf->n += bytes;
    hzp_j_step(m, (int64_t)(bytes / 32));
}

void hzp_j_add_text(struct jmem *m, struct jbuf *buf, const char *text)
{
    hzp_j_add(m, buf, text, strlen(text));
}

void hzp_j_repeat(struct jmem *m, struct jbuf *buf, const char *text, size_t bytes, int64_t times)
{
    for (int64_t i = 0; i < times && hzp_j_step(m, 1); i++)
        hzp_j_add(m, buf, text, bytes);
}

struct jval hzp_j_take_as(struct jmem *m, struct jbuf *buf, bool markup)
{
    struct jval text = hzp_j_borrow(m, buf->n ? buf->text : "", buf->n);
    text.markup = markup;
    return text;
}

struct jval hzp_j_take(struct jmem *m, struct jbuf *buf)
{
    return hzp_j_take_as(m, buf, false);
}

/* ---- asking values ---- */

const char *hzp_j_type_name(struct jval v)
{
    static const char *const list[] = {"list", "tuple", "range", "dict_view", "generator"};
    static const char *const names[] = {[J_UNSET] = "Undefined",
                                        [J_UNDEFINED] = "Undefined",
                                        [J_NONE] = "NoneType",
                                        [J_BOOL] = "bool",
                                        [J_INT] = "int",
                                        [J_FLOAT] = "float",
                                        [J_STRING] = "str",
                                        [J_DICT] = "dict",
                                        [J_NAMESPACE] = "Namespace",
                                        [J_MACRO] = "Macro",
                                        [J_FUNCTION] = "function",
                                        [J_METHOD] = "function",
                                        [J_LOOP] = "LoopContext"};
    if (v.type == J_LIST)
        return list[v.l->kind];
    if (v.type == J_STRING && v.markup)
        return "Markup";
    return names[hzp_j_spelled_whole(v) ? J_INT : v.type];
}

bool hzp_j_truth(struct jval v)
{
    return hzp_j_is_number(v)   ? v.type == J_INT ? v.i != 0 : hzp_j_number(v) != 0
           : v.type == J_STRING ? v.s->bytes > 0
           : v.type == J_LIST   ? v.l->n > 0 || v.l->kind == J_IS_ITERATOR
           : v.type == J_DICT   ? v.o->n > 0
                                : v.type > J_NONE;
}

bool hzp_j_is_number(struct jval v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

bool hzp_j_spelled_whole(struct jval v)
{
    return v.type == J_FLOAT && v.spelled && !strpbrk(v.n->text, ".eENI");
}

double hzp_j_number(struct jval v)
{
    if (v.type == J_FLOAT)
        return v.spelled ? v.n->d : v.d;
    return v.type == J_INT ? (double)v.i : v.type == J_BOOL ? v.b : 0;
}

int64_t hzp_j_codes(struct jval string)
{
    struct jstr *s = string.s;
    if (s->codes < 0)
        s->codes = (int64_t)hzp_utf8_count(s->text, s->bytes);
    return s->codes;
}

size_t hzp_j_offset(struct jval string, int64_t code)
{
    const struct jstr *s = string.s;
    if (hzp_j_codes(string) == (int64_t)s->bytes)
        return (size_t)code;
    size_t at = 0;
    for (; code > 0 && at < s->bytes; code--)
        at += (size_t)hzp_utf8_step((uint8_t)s->text[at]);
    return at;
}

static bool equal_dicts(struct jmem *m, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        struct jval *other = hzp_j_dict_get(m, b, a->key[i]);
        if (!other || !hzp_j_equal(m, a->value[i], *other))
            return false;
    }
    return true;
}

static bool equal_inside(struct jmem *m, struct jval a, struct jval b)
{
    if (a.type == J_DICT)
        return equal_dicts(m, a.o, b.o);
    if (a.l == b.l)
        return true;
    if (a.l->kind != b.l->kind || a.l->n != b.l->n || a.l->kind >= J_IS_VIEW)
        return false;
    for (size_t i = 0; i < a.l->n; i++)
        if (!hzp_j_equal(m, a.l->item[i], b.l->item[i]))
            return false;
    return true;
}

bool hzp_j_equal(struct jmem *m, struct jval a, struct jval b)
{
    if (!hzp_j_step(m, 1))
        return false;
    if (a.type == J_FLOAT && b.type == J_FLOAT && hzp_j_spelled_whole(a) && hzp_j_spelled_whole(b))
        return !strcmp(a.n->text, b.n->text);
    if (hzp_j_is_number(a) && hzp_j_is_number(b)) {
        if (a.type != J_FLOAT && b.type != J_FLOAT)
            return (a.type == J_BOOL ? a.b : a.i) == (b.type == J_BOOL ? b.b : b.i);
        return hzp_j_number(a) == hzp_j_number(b);
    }
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_STRING:
        hzp_j_step(m, (int64_t)(a.s->bytes / 32));
        return a.s->bytes == b.s->bytes && !memcmp(a.s->text, b.s->text, a.s->bytes);
    case J_LIST:
    case J_DICT: {
        if (m->depth >= m->depth_max) {
            hzp_j_fail(m, "values nested too deeply to compare");
            return false;
        }
        m->depth++;
        bool same = equal_inside(m, a, b);
        m->depth--;
        return same;
    }
    case J_UNSET:
        return true;
    default:
        return a.o == b.o; /* the same object */
    }
}

static int compare_lists(struct jmem *m, const struct jlist *a, const struct jlist *b,
                         const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!hzp_j_equal(m, a->item[i], b->item[i])) {
            if (m->failed || m->depth >= m->depth_max)
                return 0;
            m->depth++;
            int r = hzp_j_compare(m, a->item[i], b->item[i], op);
            m->depth--;
            return r;
        }
    return a->n < b->n ? -1 : a->n > b->n;
}

int hzp_j_compare(struct jmem *m, struct jval a, struct jval b, const char *op)
{
    if (hzp_j_is_number(a) && hzp_j_is_number(b)) {
        if (a.type == J_INT && b.type == J_INT)
            return a.i < b.i ? -1 : a.i > b.i;
        double x = hzp_j_number(a), y = hzp_j_number(b);
        return x < y ? -1 : x > y;
    }
    if (a.type == J_STRING && b.type == J_STRING) {
        size_t n = HZP_MIN(a.s->bytes, b.s->bytes);
        hzp_j_step(m, 1 + (int64_t)(n / 32));
        int r = n ? memcmp(a.s->text, b.s->text, n) : 0;
        return r ? r : a.s->bytes < b.s->bytes ? -1 : a.s->bytes > b.s->bytes;
    }
    if (a.type == J_LIST && b.type == J_LIST && a.l->kind == b.l->kind && a.l->kind < J_IS_RANGE)
        return compare_lists(m, a.l, b.l, op);
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED) {
        const char *name = a.type == J_UNDEFINED ? a.name : b.name;
        hzp_j_fail(m, "%s is undefined", name ? name : "a value");
    }
    hzp_j_fail(m, "'%s' not supported between instances of '%s' and '%s'", op, hzp_j_type_name(a),
               hzp_j_type_name(b));
    return 0;
}

bool hzp_j_contains(struct jmem *m, struct jval item, struct jval in)
{
    if (in.type == J_STRING) {
        if (item.type != J_STRING) {
            hzp_j_fail(m, "'in <string>' requires string as left operand, not %s",
                       hzp_j_type_name(item));
            return false;
        }
        hzp_j_step(m, (int64_t)(in.s->bytes / 32));
        return !item.s->bytes || memmem(in.s->text, in.s->bytes, item.s->text, item.s->bytes);
    }
    if (in.type == J_DICT) {
        struct jval *found = hzp_j_dict_get(m, in.o, item);
        return found != NULL;
    }
    struct jiter it = hzp_j_iter(m, in);
    struct jval each;
    while (hzp_j_next(m, &it, &each))
        if (hzp_j_equal(m, item, each))
            return true;
    return false;
}

/* ---- iterating ---- */

struct jiter hzp_j_iter(struct jmem *m, struct jval v)
{
    if (v.type != J_STRING && v.type != J_LIST && v.type != J_DICT && v.type != J_UNDEFINED &&
        v.type != J_LOOP)
        hzp_j_fail(m, "'%s' object is not iterable", hzp_j_type_name(v));
    return (struct jiter){v, 0};
}

bool hzp_j_next(struct jmem *m, struct jiter *it, struct jval *ret)
{
    if (!hzp_j_step(m, 1))
        return false;
    switch (it->of.type) {
    case J_STRING: {
        const struct jstr *s = it->of.s;
        if (it->at >= s->bytes)
            return false;
        size_t n = (size_t)hzp_utf8_step((uint8_t)s->text[it->at]);
        *ret = hzp_j_borrow(m, s->text + it->at, n);
        ret->markup = it->of.markup;
        it->at += n;
        return true;
    }
    case J_LIST: {
        struct jlist *list = it->of.l;
        size_t *at = list->kind == J_IS_ITERATOR ? &list->taken : &it->at;
        if (*at >= list->n)
            return false;
        *ret = list->item[(*at)++];
        return true;
    }
    case J_DICT:
        if (it->at >= it->of.o->n)
            return false;
        *ret = it->of.o->key[it->at++];
        return true;
    default:
        return false;
    }
}

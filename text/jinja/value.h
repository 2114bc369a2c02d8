/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/value.h - the values of a template, and the memory and bounds of one rendering.
 *
 * A value is Python's: its operations, texts and errors are those of the Python object that the
 * same template would see.  Values are immutable, except namespaces and what iterators have given.
 * All memory comes from the rendering's arena and lives as long as it.
 *
 * Errors are sticky: the first one sets failed and its text, every function goes on with harmless
 * values, and loops end because each step asks hzp_j_step.
 *
 * Invariant: text is valid UTF-8.
 * Thread: one per rendering.
 */
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "text/chars/textbuf.h"
#include "text/jinja/limits.h"

enum jtype {
    J_UNSET, /* no value at all: an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST,
    J_DICT,
    J_NAMESPACE,
    J_MACRO,
    J_FUNCTION, /* a global function */
    J_METHOD,   /* a method with its object */
    J_LOOP,     /* the variable `loop` */
};

/* What a J_LIST is in Python. */
enum jlist_kind { J_IS_LIST, J_IS_TUPLE, J_IS_RANGE, J_IS_VIEW, J_IS_ITERATOR };

struct jstr {
    const char *text;
    size_t bytes;
    int64_t codes; /* code points; -1: not counted yet */
};

/* A number that neither int nor float holds. */
struct jspelled {
    double d; /* the nearest one */
    const char *text;
};

struct jval {
    uint8_t type;
    bool markup;  /* strings: marked safe, so `+` escapes what is added */
    bool spelled; /* floats: a number beyond 64 bits, or beyond a double; printed as it came */
    union {
        bool b;
        int64_t i;
        double d;
        const struct jspelled *n; /* float, spelled */
        struct jstr *s;
        struct jlist *l;
        struct jdict *o;             /* dict and namespace */
        const char *name;            /* undefined: what is undefined, NULL: unknown */
        const struct jmacro *macro;  /* expr.h */
        const struct jbuiltin *fn;   /* builtins.h */
        const struct jmethod *bound; /* builtins.h */
        struct jloop *loop;          /* run.h */
    };
};

struct jlist {
    struct jval *item;
    size_t n, room;
    size_t taken; /* iterators: how many it has given already */
    enum jlist_kind kind;
    int64_t from, to, step; /* ranges */
    const char *view;       /* views: how its text begins */
};

struct jdict {
    struct jval *key, *value; /* in the order of insertion */
    size_t n, room;
    uint32_t *slot; /* hash table of indices + 1, for many keys */
    size_t slots;
};

/* A string that grows in the arena. */
struct jbuf {
    char *text;
    size_t n, room;
};

/* One rendering, or one compilation (which has no bounds but depth). */
struct jmem {
    struct hzp_arena arena;
    char *chunk;
    size_t chunk_left;
    size_t used, most;
    int64_t steps, steps_max;
    int depth, depth_max;
    int line; /* line of the statement or expression that is evaluated */
    const char *name;
    bool failed;
    int code; /* HZP_EINVAL, ... */
    struct hzp_err_text *err;
};

/* name: the template's, for messages; limits are copied, err is borrowed. */
void hzp_j_mem_init(struct jmem *m, const char *name, const struct hzp_jinja_limits *limits,
                    struct hzp_err_text *err);
void hzp_j_mem_fini(struct jmem *m);

/* Reports "name, line N: ..."; only the first report counts.  Returns undefined. */
struct jval hzp_j_fail(struct jmem *m, const char *format, ...) HZP_PRINTF(2, 3);

/* Zeroed, aligned to 16.  NULL (and failed): the bound would be exceeded; never for up to 4 KiB. */
void *hzp_j_alloc(struct jmem *m, size_t size);

/* Room for one more behind n elements of `size` bytes.  array: the address of the pointer to them.
 * False (and failed): the bound would be exceeded. */
bool hzp_j_grow(struct jmem *m, void *array, size_t n, size_t *room, size_t size);

/* Counts n steps.  False: failed, now or before. */
bool hzp_j_step(struct jmem *m, int64_t n);

/* ---- making values ---- */

struct jval hzp_j_string(struct jmem *m, const char *text, size_t bytes); /* copied */
struct jval hzp_j_borrow(struct jmem *m, const char *text, size_t bytes); /* text outlives it */
struct jval hzp_j_list(struct jmem *m, enum jlist_kind kind);
void hzp_j_push(struct jmem *m, struct jlist *list, struct jval value);
void hzp_j_reverse(struct jlist *list);
struct jval hzp_j_dict(struct jmem *m, enum jtype type);
/* Sets or replaces; fails if the key cannot be hashed. */
void hzp_j_dict_set(struct jmem *m, struct jdict *dict, struct jval key, struct jval value);
struct jval hzp_j_pair(struct jmem *m, struct jval a, struct jval b); /* a tuple */
struct jval hzp_j_from_json(struct jmem *m, const json_t *json);

static inline struct jval hzp_j_bool(bool b)
{
    return (struct jval){.type = J_BOOL, .b = b};
}

static inline struct jval hzp_j_int(int64_t i)
{
    return (struct jval){.type = J_INT, .i = i};
}

static inline struct jval hzp_j_float(double d)
{
    return (struct jval){.type = J_FLOAT, .d = d};
}

static inline struct jval hzp_j_none(void)
{
    return (struct jval){.type = J_NONE};
}

/* name NULL: not known. */
static inline struct jval hzp_j_undefined(const char *name)
{
    return (struct jval){.type = J_UNDEFINED, .name = name};
}

/* Appends to a text that grows. */
void hzp_j_add(struct jmem *m, struct jbuf *buf, const char *text, size_t bytes);
void hzp_j_add_text(struct jmem *m, struct jbuf *buf, const char *text); /* NUL-terminated */
void hzp_j_repeat(struct jmem *m, struct jbuf *buf, const char *text, size_t bytes, int64_t times);
struct jval hzp_j_take(struct jmem *m, struct jbuf *buf); /* the buffer as a string */
struct jval hzp_j_take_as(struct jmem *m, struct jbuf *buf, bool markup);

/* ---- asking values ---- */

const char *hzp_j_type_name(struct jval v); /* Python's */
bool hzp_j_truth(struct jval v);
bool hzp_j_is_number(struct jval v);     /* a bool is one */
bool hzp_j_spelled_whole(struct jval v); /* an int beyond 64 bits */
double hzp_j_number(struct jval v);
int64_t hzp_j_codes(struct jval string);
/* The byte offset of a code point (codes at most). */
size_t hzp_j_offset(struct jval string, int64_t code);
/* NULL: there is none. */
struct jval *hzp_j_dict_get(struct jmem *m, const struct jdict *dict, struct jval key);
bool hzp_j_equal(struct jmem *m, struct jval a, struct jval b);
/* < 0, 0, > 0; fails if the two have no order. */
int hzp_j_compare(struct jmem *m, struct jval a, struct jval b, const char *op);
bool hzp_j_contains(struct jmem *m, struct jval item, struct jval in);

/* ---- iterating ---- */

struct jiter {
    struct jval of;
    size_t at;
};

/* Fails if v is not iterable. */
struct jiter hzp_j_iter(struct jmem *m, struct jval v);
bool hzp_j_next(struct jmem *m, struct jiter *it, struct jval *ret);

/* ---- text: print.c ---- */

/* Appends str(v); repr: as in a list. */
void hzp_j_print(struct jmem *m, struct jbuf *buf, struct jval v, bool repr);
struct jval hzp_j_str(struct jmem *m, struct jval v); /* a string as it is, else str(v) */

/* json.dumps.  indent: NULL for one line. */
struct jjson {
    bool ascii, sort;
    const char *indent, *item, *colon; /* separators */
    size_t indent_bytes, item_bytes, colon_bytes;
};
void hzp_j_dumps(struct jmem *m, struct jbuf *buf, const struct jjson *how, struct jval v);

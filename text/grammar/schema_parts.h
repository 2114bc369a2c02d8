/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_parts.h - what the files of the JSON Schema front end share.
 *
 * A rule is made for a list of schemas that a value has to satisfy all (an item).  An item with a
 * keyword that refers or combines ($ref, allOf, anyOf, if, not, ...) is rewritten: it calls the
 * rules of other lists, one for each alternative, until all schemas of a list are plain; these make
 * the automaton of each type together.
 *
 * schema.c keeps the items, schema_combine.c rewrites them, schema_not.c finds what negates a
 * schema, schema_kinds.c decides whether alternatives exclude each other, schema_valid.c whether a
 * given value satisfies a schema; schema_object.c, schema_array.c, schema_string.c and
 * schema_number.c make rules of one type, json.c those of any JSON and of literal values.
 *
 * Thread: one per schema.
 */
#pragma once

#include "text/grammar/schema.h"

enum { HZP_SCHEMA_PATH = 160 };

/* Schemas of which a value has to satisfy all, and their rule.  Made lists of one content are the
 * same object, so items are told apart by the addresses of their schemas. */
struct hzp_schema_item {
    const json_t **schema; /* [schemas] owned by the front end; none: any value */
    int32_t schemas, rule;
    char path[HZP_SCHEMA_PATH]; /* for errors */
};

struct hzp_schema {
    struct hzp_rules *rules;
    const json_t *document;
    bool ref_alone; /* draft 7: what stands beside $ref has no effect */
    int32_t blank, string, number, value, object, array, zeros, point_zeros; /* rules of any JSON;
                                                                                -1: not made */
    struct hzp_schema_item *item;
    int32_t items, items_room;
    int64_t listed;   /* schemas in all lists that rules were asked for */
    int64_t compares; /* comparisons of values that may still be made */
    int32_t looks;    /* parts that types and validity may still look at */
    json_t *made;     /* schemas that were made, by their text */
    size_t made_bytes;
    struct hzp_regular
        *any_string;    /* contents of strings, each spelled in one way; NULL: not made */
    json_t *pattern_of; /* patterns that were compiled: indices of `pattern` */
    struct hzp_regular **pattern;
    int32_t patterns, patterns_room;
    int64_t pattern_states; /* states of all patterns */
    struct hzp_err_text *reterr;
};

enum hzp_json_type {
    HZP_TYPE_NULL = 1,
    HZP_TYPE_BOOLEAN = 2,
    HZP_TYPE_INTEGER = 4,
    HZP_TYPE_NUMBER = 8, /* with a fraction */
    HZP_TYPE_STRING = 16,
    HZP_TYPE_ARRAY = 32,
    HZP_TYPE_OBJECT = 64,
    HZP_TYPE_ALL = 127,
};

/* ---- schema.c ---- */

/* An error: the keyword, the item's place ("$/properties/a") and why. */
int hzp_schema_refuse(const struct hzp_schema *s, const struct hzp_schema_item *at,
                      const char *keyword, const char *why);

/* The rule of a list of schemas, which is made later; keyword and name: where it stands below
 * `at`. */
int32_t hzp_schema_rule_of(struct hzp_schema *s, const struct hzp_schema_item *at,
                           const char *keyword, const char *name, const json_t *const *list,
                           int32_t n);

/* Takes a schema over that was made; returns the one of the same content. */
const json_t *hzp_schema_made(struct hzp_schema *s, json_t *schema);

/* Whether a keyword has no effect on which values are valid. */
bool hzp_schema_is_annotation(const char *keyword);

/* A count of the item's schemas, the largest (or least) of those given; *ret stays where there is
 * none.  The least is none from 2^31 - 1 on, which no answer reaches. */
int hzp_schema_count(const struct hzp_schema *s, const struct hzp_schema_item *at,
                     const char *keyword, bool largest, int32_t *ret);

/* What a local reference points to; NULL: nothing.  reference NULL: it is no string. */
const json_t *hzp_schema_resolve(const struct hzp_schema *s, const char *reference);

/* ---- schema_combine.c ---- */

/* 1: the item had a keyword that refers or combines, and its rule is done; 0: it is plain. */
int hzp_schema_combine(struct hzp_schema *s, const struct hzp_schema_item *at);

/* ---- schema_not.c ---- */

/* Appends schemas of which a value satisfies at least one if it does not satisfy the given one.
 * HZP_EINVAL: what it has cannot be negated. */
int hzp_schema_negate(struct hzp_schema *s, const struct hzp_schema_item *at, const json_t *schema,
                      json_t *ret);
bool hzp_schema_can_negate(struct hzp_schema *s, const json_t *schema, int depth);
/* Whether the automaton of strings or numbers honours the schema's "not" itself: type string with
 * "not": {one of enum, const, pattern, format}, type number with "not": {"type": "integer"} or
 * {"multipleOf": m}. */
bool hzp_schema_is_leaf(const json_t *schema);

/* ---- schema_valid.c ---- */

/* 1: the value satisfies the schema; 0: it does not; -1: that cannot be told. */
int hzp_schema_valid(struct hzp_schema *s, const json_t *value, const json_t *schema, int depth);
/* Whether the pattern is found in the text; -1: it cannot be compiled. */
int hzp_schema_matches(struct hzp_schema *s, const char *pattern, size_t bytes, const char *text,
                       size_t text_bytes);
bool hzp_schema_same_value(const json_t *a, const json_t *b);

/* ---- json.c ---- */
void hzp_json_begin(struct hzp_schema *s); /* sets the rules of any JSON to "not made" */
int32_t hzp_json_value(struct hzp_schema *s);
int32_t hzp_json_string(struct hzp_schema *s);
int32_t hzp_json_number(struct hzp_schema *s);
int32_t hzp_json_object(struct hzp_schema *s);
/* These append behind `from` and return the node behind: blanks or nothing; a string with its
 * quotes, and without; a value as it would be written. */
int32_t hzp_json_blanks(struct hzp_schema *s, int32_t from);
int32_t hzp_json_text(struct hzp_schema *s, int32_t from, const char *text, size_t bytes);
int32_t hzp_json_inner(struct hzp_schema *s, int32_t from, const char *text, size_t bytes);
int32_t hzp_json_literal(struct hzp_schema *s, int32_t from, const json_t *value);

/* The rule of zeros behind a fraction's digits; point: behind a whole part, with a point. */
int32_t hzp_json_zeros(struct hzp_schema *s, bool point);

/* ---- numeral.c: numbers, also those that only their spelling holds ---- */

/* 0.DIGITS x 10^point, without zeros at the ends; 0: no digits. */
struct hzp_numeral {
    char *digits; /* [n], owned */
    int32_t n;
    int64_t point;
    bool negative;
};

void hzp_numeral_read(const json_t *value, struct hzp_numeral *ret);
void hzp_numeral_fini(struct hzp_numeral *numeral);
bool hzp_numeral_same(const json_t *a, const json_t *b);
/* < 0, 0, > 0, exactly. */
int hzp_numeral_compare(const json_t *a, const json_t *b);
/* Appends the number in the ways that JSON writes it (20, 20.0, 2e1, 2.0E+1); returns the node
 * behind. */
int32_t hzp_json_numeral(struct hzp_schema *s, int32_t from, const json_t *value);

/* ---- schema_object.c, _array.c, _string.c, _number.c: append what values of one type satisfy all
 * schemas of the item behind `from`; *ret is the node behind ---- */
int hzp_schema_object(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret);
int hzp_schema_array(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                     int32_t *ret);
int hzp_schema_string(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret);
int hzp_schema_number(struct hzp_schema *s, const struct hzp_schema_item *at, bool integer,
                      int32_t from, int32_t *ret);

/* The keywords that bound a number (schema_number.c). */
enum { HZP_SCHEMA_BOUNDS = 4 };
struct hzp_schema_bound {
    const char *keyword;
    bool lower, open; /* open: the bound itself is not a value */
};
extern const struct hzp_schema_bound hzp_schema_bound[HZP_SCHEMA_BOUNDS];

/* Contents of strings that satisfy all schemas of the item; NULL in *ret: all do. */
int hzp_schema_contents(struct hzp_schema *s, const struct hzp_schema_item *at,
                        enum hzp_spelling spelling, struct hzp_regular **ret);
/* Whether the schema has no conditions but those that hzp_schema_contents knows. */
bool hzp_schema_is_text(const json_t *schema);
/* The regular expression of a format; NULL: it has none and says nothing, or name is NULL. */
const char *hzp_schema_format(const char *name);
/* The contents of any string, without quotes, spelled in one way; NULL: too large. */
const struct hzp_regular *hzp_json_contents(struct hzp_schema *s);

/* ---- schema_kinds.c ---- */

/* The types named by a "type" keyword, 0: an unknown one. */
int hzp_type_mask(const json_t *type);
/* Those that a schema names by "type", with OpenAPI's "nullable": true null too; all without. */
int hzp_schema_named_types(const json_t *schema);
int hzp_type_of(const json_t *value);
/* What a reference refers to, through several; else the schema. */
const json_t *hzp_schema_followed(const struct hzp_schema *s, const json_t *schema);
/* Whether no value satisfies both; false if that cannot be told.  has: a member that the values
 * have, NULL: none in particular. */
bool hzp_schema_disjoint(struct hzp_schema *s, const json_t *a, const json_t *b, const char *has);

/* SPDX-License-Identifier: Apache-2.0 */
/* serve/grammar/schema_parts.h - what the files of the JSON Schema front end share.
 *
 * schema.c walks a schema, schema_kinds.c decides whether alternatives exclude each other,
 * schema_object.c, schema_string.c and schema_number.c make rules of one type, json.c those of any
 * JSON and of literal values.
 *
 * Thread: one per schema.
 */
#ifndef HZP_SERVE_GRAMMAR_SCHEMA_PARTS_H
#define HZP_SERVE_GRAMMAR_SCHEMA_PARTS_H

#include "serve/grammar/schema.h"

enum { HZP_SCHEMA_PATH = 160 };

/* A part of the schema that has a rule. */
struct hzp_schema_item {
    const json_t *schema;
    int32_t rule;
    char path[HZP_SCHEMA_PATH]; /* for errors */
};

struct hzp_schema {
    struct hzp_rules *rules;
    const json_t *document;
    int32_t blank, string, number, value, object, array; /* rules of any JSON; -1: not made */
    struct hzp_schema_item *item;
    int32_t items, items_room;
    int32_t looks; /* parts that hzp_schema_types may still look at */
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

/* The part's place in messages: "$/properties/a". */
int hzp_schema_refuse(const struct hzp_schema *s, const struct hzp_schema_item *at,
                      const char *keyword, const char *why);

/* The rule of a part, which is made later; keyword and name: where it stands below `at`. */
int32_t hzp_schema_rule(struct hzp_schema *s, const struct hzp_schema_item *at, const char *keyword,
                        const char *name, const json_t *schema);

/* A count below `at`: HZP_OK, and *ret as it was if it is absent. */
int hzp_schema_count(const struct hzp_schema *s, const struct hzp_schema_item *at,
                     const char *keyword, int32_t *ret);

/* What a local reference points to; NULL: nothing.  reference NULL: it is no string. */
const json_t *hzp_schema_resolve(const struct hzp_schema *s, const char *reference);

/* ---- json.c ---- */
void hzp_json_begin(struct hzp_schema *s); /* sets the rules of any JSON to "not made" */
int32_t hzp_json_value(struct hzp_schema *s);
int32_t hzp_json_string(struct hzp_schema *s);
int32_t hzp_json_number(struct hzp_schema *s);
int32_t hzp_json_object(struct hzp_schema *s);
int32_t hzp_json_array(struct hzp_schema *s);
/* These append behind `from` and return the node behind: blanks or nothing; a string with its
 * quotes; a value as it would be written. */
int32_t hzp_json_blanks(struct hzp_schema *s, int32_t from);
int32_t hzp_json_text(struct hzp_schema *s, int32_t from, const char *text, size_t bytes);
int32_t hzp_json_literal(struct hzp_schema *s, int32_t from, const json_t *value);

/* ---- schema_object.c, schema_string.c, schema_number.c: append behind `from`, *ret is the node
 * behind ---- */
int hzp_schema_object(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret);
int hzp_schema_array(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                     int32_t *ret);
int hzp_schema_string(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret);
int hzp_schema_number(struct hzp_schema *s, const struct hzp_schema_item *at, bool integer,
                      int32_t from, int32_t *ret);

/* ---- schema_kinds.c ---- */

/* The types named by a "type" keyword, 0: an unknown one. */
int hzp_type_mask(const json_t *type);
int hzp_type_of(const json_t *value);
/* The types that values of the schema can have, at most. */
int hzp_schema_types(struct hzp_schema *s, const json_t *schema, int depth);
/* Whether no value satisfies both; false if that cannot be told. */
bool hzp_schema_disjoint(struct hzp_schema *s, const json_t *a, const json_t *b);

#endif

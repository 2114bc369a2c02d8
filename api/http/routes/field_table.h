/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/field_table.h - the fields of each route, as data: what a body may have, what
 * becomes of it, and what /openapi.json says of it.  The data are fields.json, of which the build
 * makes field_table.c.
 *
 * A body is checked against its set before it is read: names, the types and ranges of plain values,
 * and what becomes of a field:
 *
 *     used      the route reads it, and refuses a compound value (kind JSON) that is wrong
 *     ignored   no effect: its name is listed in the answer's hzpserve.ignored
 *     refused   an answer without its effect would be wrong: 400, unless the value asks for nothing
 *               (null, false, an empty list or object, or the field's default)
 *
 * Objects within a field have rows of their own (struct hzp_members), for their members' names.
 *
 * A name that is in no group is refused, or in an open set ignored.  So a field that a parser reads
 * and this table lacks never reaches the parser of a closed set; tests/api/check_fields.py compares
 * the table with the parsers' sources, with what a server accepts, and with docs/API*.md.
 *
 * Thread: any; constants.
 */
#pragma once

#include "base/err.h"

#include "base/json.h"

enum hzp_field_kind {
    HZP_FIELD_BOOL,
    HZP_FIELD_INT,
    HZP_FIELD_NUMBER,
    HZP_FIELD_STRING, /* without \u0000 */
    HZP_FIELD_TEXT,   /* any string */
    HZP_FIELD_LIST,
    HZP_FIELD_OBJECT,
    HZP_FIELD_JSON
};
enum hzp_field_use { HZP_FIELD_USED, HZP_FIELD_NEEDED, HZP_FIELD_IGNORED, HZP_FIELD_REFUSED };

struct hzp_field {
    const char *name;
    enum hzp_field_kind kind;
    double low, high;   /* range of INT and NUMBER */
    const char *preset; /* its default, as JSON; NULL: nothing that JSON can say */
    enum hzp_field_use use;
    const char *note;  /* what it is for; refused: what to do instead */
    const char *words; /* kind STRING: "\"a\", \"b\" or \"c\"": all that it may be; NULL: any */
};

/* A group of fields, ended by one without a name. */
enum { HZP_FIELD_GROUPS_MAX = 4, HZP_FIELDS_IGNORED_MAX = 64 };

/* The members of objects within a field; of those that have no row, the route reads any. */
struct hzp_members {
    const char *path;  /* "messages[].content[]": each part of each message */
    const char *names; /* with blanks between them; "-name": no effect, and listed as ignored */
    bool open;         /* others are ignored, too, else refused; null counts as absent */
};

struct hzp_field_set {
    const char *name;                                    /* the schema's in /openapi.json */
    const struct hzp_field *group[HZP_FIELD_GROUPS_MAX]; /* those behind the last are NULL */
    bool open;                                           /* unknown fields are ignored */
    bool exact;                        /* null is a value, and not the same as an absent field */
    const struct hzp_members *members; /* ended by one without a path; NULL: none */
};

extern const struct hzp_field_set hzp_fields_completions, hzp_fields_chat, hzp_fields_responses,
    hzp_fields_messages, hzp_fields_count_tokens, hzp_fields_embeddings, hzp_fields_score,
    hzp_fields_tokenize, hzp_fields_detokenize, hzp_fields_policy, hzp_fields_example;
extern const struct hzp_field_set hzp_fields_version, hzp_fields_manifest, hzp_fields_push,
    hzp_fields_undo, hzp_fields_feedback, hzp_fields_rollout, hzp_fields_sample;

/* Arguments behind the path of a route, ended by one without a name. */
extern const struct hzp_field hzp_query_examples[], hzp_query_job[], hzp_query_lessons[],
    hzp_query_none[], hzp_query_offset[], hzp_query_samples[], hzp_query_timeline[],
    hzp_query_weights[];

/* NULL: the set has no such field. */
const struct hzp_field *hzp_field_find(const struct hzp_field_set *set, const char *name);

/* Whether a text is one of the field's words; if it has none, any is. */
int hzp_field_word(const struct hzp_field *field, const char *text, struct hzp_err_text *reterr);

/* Whether the names of members have this one; *ret_ignored: as one without effect. */
bool hzp_members_find(const char *names, const char *name, bool *ret_ignored);

/* Checks a body (an object).  *ignored: a list of names (at most HZP_FIELDS_IGNORED_MAX), made when
 * there is a first one, NULL: none so far; the caller owns it, also after an error.  HZP_EINVAL:
 * text and param name the field. */
int hzp_fields_check(const struct hzp_field_set *set, const json_t *body, json_t **ignored,
                     struct hzp_err_text *reterr);

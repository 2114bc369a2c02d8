/* SPDX-License-Identifier: Apache-2.0 */
/* serve/grammar/schema.h - JSON and JSON Schema as rules.
 *
 * A text is taken if it is a serialisation of a value that the schema (draft 7 or 2020-12) admits,
 * in one of these spellings; every admitted value has one, except for the bounds named here:
 *
 *   - between tokens: nothing, one blank, or a line break with up to HZP_JSON_INDENT_MAX blanks;
 *     nothing before "," and ":"
 *   - declared properties in the order of the schema, then others; no name of a declared property
 *     comes twice
 *   - property names, and strings of limited length, with a pattern, or of an enum, spell each code
 *     point in one way; other strings in any
 *   - integers without fraction or exponent, at most 18 digits; fractions of at most 18 digits;
 *     exponents of two digits, and none where the number has a range
 *   - arrays and objects in one another at most HZP_STACK_MAX deep
 *
 * Keywords: type, enum, const, $ref (within the document, recursive too), $defs, definitions,
 * anyOf, oneOf (where two alternatives provably exclude each other), allOf (of one), properties,
 * required, additionalProperties, items, prefixItems, additionalItems, minItems, maxItems,
 * minLength, maxLength, pattern (regex.h), format (date-time, date, time, uuid, ipv4), minimum,
 * maximum, exclusiveMinimum, exclusiveMaximum (whole numbers).  Annotations have no effect.  Any
 * other keyword, or a combination that is not honoured, is an error that names it.
 *
 * Thread: any.
 */
#ifndef HZP_SERVE_GRAMMAR_SCHEMA_H
#define HZP_SERVE_GRAMMAR_SCHEMA_H

#include "serve/grammar/codes.h"

#include <jansson.h>

enum { HZP_JSON_INDENT_MAX = 32, HZP_JSON_DIGITS_MAX = 18, HZP_SCHEMA_NODES_MAX = 1 << 14 };

/* Adds rules for the schema, which is borrowed for the call; *ret: the rule of the document.
 * HZP_EINVAL: reterr names the keyword and where it stands. */
int hzp_schema_rules(struct hzp_rules *rules, const json_t *schema, int32_t *ret,
                     struct hzp_err_text *reterr);

/* Adds rules for any JSON object; returns the rule. */
int32_t hzp_json_object_rules(struct hzp_rules *rules);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema.h - JSON and JSON Schema as rules.
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
 *     exponents of two digits, and none where the number has a range; numbers with an exclusive
 *     bound or multipleOf have 15 digits at most: reading them as doubles makes no difference
 *   - arrays and objects in one another at most HZP_STACK_MAX deep
 *
 * Keywords: type, enum, const, $ref (within the document, recursive too), $defs, definitions,
 * allOf, anyOf, oneOf (where alternatives provably exclude each other, or can be negated), not and
 * if, then, else (of what schema_not.c can negate), dependentRequired, dependentSchemas,
 * dependencies, properties, patternProperties, propertyNames, required, additionalProperties,
 * minProperties, maxProperties, items, prefixItems, additionalItems, minItems, maxItems,
 * minLength, maxLength, pattern (regular.h), format (date-time, date, time, uuid, ipv4), minimum,
 * maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, OpenAPI's nullable.  Any of them may
 * stand beside any other.  Annotations have no effect, nor have other formats, nor uniqueItems,
 * except on the values of enum and const, nor a format that excludes its schema's pattern.
 * A discriminator's property is in all alternatives of its oneOf.
 * Any other keyword, or what is not honoured, is an error that names it.
 *
 * Thread: any.
 */
#pragma once

#include "text/grammar/rules.h"
#include "text/grammar/regular.h"

#include "base/json.h"

enum { HZP_JSON_INDENT_MAX = 32, HZP_JSON_DIGITS_MAX = 18, HZP_SCHEMA_NODES_MAX = 1 << 14 };

/* Adds rules for the schema, which is borrowed for the call; *ret: the rule of the document.
 * HZP_EINVAL: reterr names the keyword and where it stands. */
int hzp_schema_rules(struct hzp_rules *rules, const json_t *schema, int32_t *ret,
                     struct hzp_err_text *reterr);

/* The same for a part of the document, in which its references are looked up. */
int hzp_schema_rules_in(struct hzp_rules *rules, const json_t *document, const json_t *schema,
                        int32_t *ret, struct hzp_err_text *reterr);

/* Appends behind `from` the strings that a schema of type string admits, as they are, without
 * quotes, less those of `but`; *ret: the node behind.  0: it admits any string, and nothing was
 * added; 1: done; HZP_EINVAL. */
int hzp_schema_raw(struct hzp_rules *rules, const json_t *document, const json_t *schema,
                   const struct hzp_regular *but, int32_t from, int32_t *ret,
                   struct hzp_err_text *reterr);

/* Adds rules for any JSON object; returns the rule. */
int32_t hzp_json_object_rules(struct hzp_rules *rules);

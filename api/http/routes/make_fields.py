#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes field_table.c of fields.json, while the program is built.

    make_fields.py fields.json field_table.c

A field has a note, and may have:

    type      bool, int, number, string, text; without one it is a compound value, which its route checks
    range     [low, high] of int and number
    default   a JSON value
    use       needed, ignored or refused; without it the field is used
    schema    a JSON schema that is narrower than its type, or the name of one in "schemas"

field_table.h says what these mean.
"""
import json
import sys

KEYS = {"type", "range", "default", "use", "schema", "note"}


def text(value):
    """A string literal of C; None: NULL."""
    return "NULL" if value is None else json.dumps(value, ensure_ascii=False)


def row(name, field, schemas):
    if set(field) - KEYS or "note" not in field:
        sys.exit(f"fields.json: {name}: {sorted(field)}, where {sorted(KEYS)} are known and note is needed")
    kind, use = field.get("type", "json"), field.get("use", "used")
    low, high = field.get("range", [0, 1 if kind == "bool" else 0])
    schema = field.get("schema")
    schema = schemas[schema] if isinstance(schema, str) else schema
    return ", ".join([text(name), "HZP_FIELD_" + kind.upper(), repr(float(low)), repr(float(high)),
                      text(json.dumps(field["default"]) if "default" in field else None),
                      "HZP_FIELD_" + use.upper(), text(field["note"]),
                      text(None if schema is None else json.dumps(schema))])


def array(declaration, rows):
    return "\n".join([f"{declaration}[] = {{"] + [f"    {{{each}}}," for each in rows] + ["    {0}};", ""])


def main():
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        table = json.load(file)

    def fields(group):
        return [row(name, field, table["schemas"]) for name, field in group.items()]

    parts = ['#include "api/http/routes/field_table.h"\n']
    for name, group in table["groups"].items():
        parts.append(array(f"static const struct hzp_field {name}", fields(group)))
    for name, members in table["members"].items():
        parts.append(array(f"static const struct hzp_members {name}_members",
                           [f'{text(path)}, {text(its["names"])}, {text(its["open"])}'
                            for path, its in members.items()]))
    for name, body in table["bodies"].items():
        members = body["members"] + "_members" if "members" in body else "NULL"
        parts.append(f'const struct hzp_field_set hzp_fields_{name} = {{{text(body["name"])}, '
                     f'{{{", ".join(body["groups"])}}}, {text(body.get("open", False))}, '
                     f'{text(body.get("exact", False))}, {members}}};')
    for name, group in table["queries"].items():
        parts.append(array(f"const struct hzp_field hzp_query_{name}", fields(group)))
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


main()

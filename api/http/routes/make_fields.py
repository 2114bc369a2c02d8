#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes field_table.c of fields.json, while the program is built: the fields of bodies and arguments, the table of
routes, and what GET /openapi.json answers.

    make_fields.py fields.json field_table.c

A field has a note, and may have:

    type      bool, int, number, string, text, list, object; without one it is a value that its route checks, as it
              does what is in the last two
    range     [low, high] of int and number
    default   a JSON value
    use       needed, ignored or refused; without it the field is used
    schema    a JSON schema that is narrower than its type, or the name of one in "schemas"

field_table.h says what these mean.  A route, a method and a path, has a summary and a handler, hzp_route_<handler>, and
may have, as struct hzp_route says:

    key       complete or teach; without it none is wanted
    needs     a list of up, state, rollouts, ranks, mesh, body and maybe_body
    kind      late or stream; without it the answer comes soon
    at_once   true: it is answered on the I/O thread
    body, query   the name of its fields in "bodies" and "queries"
    feed      hzp_feed_<feed> takes pieces of a long body
    type      of a good answer, for /openapi.json; without it application/json
"""
import json
import sys

KEYS = {"type", "range", "default", "use", "schema", "note"}
ROUTE_KEYS = {"summary", "handler", "key", "needs", "kind", "at_once", "body", "query", "feed", "type"}
TYPES = {"bool": "boolean", "int": "integer", "number": "number", "string": "string", "text": "string", "list": "array",
         "object": "object"}
VERSION = "@version@"  # in its place the text in base/version.h


def text(value):
    """A string literal of C; None: NULL."""
    return "NULL" if value is None else json.dumps(value, ensure_ascii=False)


def words_of(schema):
    """The words that a schema lists, as an error names them; None: it lists none."""
    words = [f'"{word}"' for word in schema.get("enum", [schema["const"]] if "const" in schema else [])]
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part) if words else None


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
                      text(words_of(schema or {}))])


def array(declaration, rows):
    return "\n".join([f"{declaration}[] = {{"] + [f"    {{{each}}}," for each in rows] + ["    {0}};", ""])


def route_row(name, route):
    if set(route) - ROUTE_KEYS or not {"summary", "handler"} <= set(route):
        sys.exit(f"fields.json: {name}: {sorted(route)}, where {sorted(ROUTE_KEYS)} are known")
    method, path = name.split(" ")
    parts = [text(method), text(path), ".answer = hzp_route_" + route["handler"]]
    if "key" in route:
        parts.append(".right = HZP_RIGHT_" + route["key"].upper())
    if "needs" in route:
        parts.append(".needs = " + " | ".join(
            "HZP_TAKES_BODY" if need == "maybe_body" else "HZP_NEEDS_" + need.upper() for need in route["needs"]))
    if "kind" in route:
        parts.append(".kind = HZP_ANSWER_" + route["kind"].upper())
    if route.get("at_once"):
        parts.append(".at_once = true")
    for key, value in ("body", "&hzp_fields_"), ("query", "hzp_query_"), ("feed", "hzp_feed_"):
        if key in route:
            parts.append(f".{key} = {value}{route[key]}")
    return ", ".join(parts)


# ---- /openapi.json ----

def field_schema(field, schemas, nullable):
    """A field of a body may also be null, which means that it is absent."""
    schema, kind = field.get("schema"), field.get("type", "json")
    if isinstance(schema, str):
        schema = schemas[schema]
    elif schema is None and kind == "json":
        schema = {}
    elif schema is None:
        schema = {"type": TYPES[kind]}
        if kind in ("int", "number"):
            low, high = field.get("range", [0, 0])
            schema["minimum"], schema["maximum"] = (
                (max(int(low), -1 << 63), min(int(high), (1 << 63) - 1)) if kind == "int" else (float(low), float(high)))
    if nullable and schema:
        schema = {"anyOf": [schema, {"type": "null"}]}
    schema = {**schema, "description": field["note"]}
    if field.get("default") is not None:
        schema["default"] = field["default"]
    return schema


def body_schema(body, table):
    """x-ignored, x-refused and x-members are ours, for docs/API*.md."""
    fields, needed, refused = {}, [], {}
    for group in body["groups"]:
        for name, field in table["groups"][group].items():
            use = field.get("use")
            if use == "refused":
                refused[name] = field["note"]
                continue
            fields[name] = field_schema(field, table["schemas"], use != "needed" and not body.get("exact"))
            if use == "ignored":
                fields[name]["x-ignored"] = True
            if use == "needed":
                needed.append(name)
    schema = {"type": "object", "properties": fields, "additionalProperties": body.get("open", False)}
    if needed:
        schema["required"] = needed
    if refused:
        schema["x-refused"] = refused
    if "members" in body:
        schema["x-members"] = table["members"][body["members"]]
    return schema


def content(schema, kind="application/json"):
    return {"content": {kind: {"schema": schema}}}


def route_openapi(path, route, table):
    """The answers: a good one, the errors, and for a route of bodies that is busy or slow 202."""
    good = {route.get("type", "application/json"): {}}
    if route.get("kind") == "stream":
        good["text/event-stream"] = {}
    responses = {"200": {"description": "OK", "content": good},
                 "default": {"description": "An error", **content({"$ref": "#/components/schemas/Error"})}}
    if "feed" in route:
        responses["202"] = {"description": "Accepted", "content": good}
    parameters = []
    if path.endswith("/") and path != "/":
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    for name, field in table["queries"].get(route.get("query"), {}).items():
        parameters.append({"name": name, "in": "query", "description": field["note"],
                           "schema": field_schema(field, table["schemas"], False)})
    described = {"summary": route["summary"], "responses": responses}
    if parameters:
        described["parameters"] = parameters
    if "body" in route:
        schema = {"$ref": "#/components/schemas/" + table["bodies"][route["body"]]["name"]}
        if "feed" in route:  # a list, or lines, of such objects
            schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
        described["requestBody"] = {"required": True, **content(schema)}
    if "key" in route:
        described["security"] = [{"key": []}, {}]
    return described


def openapi(table):
    paths, schemas = {}, {}
    for name, route in table["routes"].items():
        method, path = name.split(" ")
        place = path + "{id}" if path.endswith("/") and path != "/" else path
        paths.setdefault(place, {})[method.lower()] = route_openapi(path, route, table)
        if "body" in route:
            body = table["bodies"][route["body"]]
            schemas.setdefault(body["name"], body_schema(body, table))
    schemas["Error"] = {"type": "object", "required": ["error"], "properties": {
        "error": {"type": "object", "required": ["message", "type"]}}}
    return {"openapi": "3.1.0", "info": {"title": "hzpserve", "version": VERSION}, "paths": paths,
            "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}}


def literal(value):
    """A long text as literals of C, with the version's text between them."""
    pieces = [value[at:at + 1000] for at in range(0, len(value), 1000)]
    return "\n    ".join(text(piece) for piece in pieces)


def main():
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        table = json.load(file)

    def fields(group):
        return [row(name, field, table["schemas"]) for name, field in group.items()]

    parts = ['#include "api/http/routes/field_table.h"\n#include "api/http/routes/routes.h"\n#include "base/version.h"\n']
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
    parts.append(array("const struct hzp_route hzp_routes", [route_row(*each) for each in table["routes"].items()]))
    before, after = json.dumps(openapi(table), ensure_ascii=False, separators=(",", ":")).split(VERSION)
    parts.append(f"const char hzp_openapi[] =\n    {literal(before)} HZP_VERSION_TEXT\n    {literal(after)};\n")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))


main()

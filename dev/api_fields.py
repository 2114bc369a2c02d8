#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of fields in docs/API.md, from a server's /openapi.json.

    dev/api_fields.py URL            rewrites the tables in docs/API.md

A table stands between `<!-- fields NAME -->` and `<!-- end -->`; NAME is a schema of the document.
tests/api/check_fields.py compares them.
"""
import json
import pathlib
import re
import sys
import textwrap
import urllib.request

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "API.md"
PLACE = re.compile(r"(<!-- fields (\w+) -->\n).*?(<!-- end -->)", re.S)


def kind(schema):
    """A field's type and range in words."""
    if "anyOf" in schema and {"type": "null"} in schema["anyOf"]:
        schema = schema["anyOf"][0]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind(s) for s in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    types = schema.get("type", "any")
    types = [types] if isinstance(types, str) else [t for t in types if t != "null"]
    text = " or ".join({"array": "list"}.get(t, t) for t in types)
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        return f"{text} above {schema['exclusiveMinimum']:g}, to {high:g}"
    if low is None or types[0] not in ("integer", "number"):
        return text
    if high is None or abs(high) >= 2 ** 31 - 1:
        return text if low <= -2 ** 60 else f"{text} from {low:g}"
    words = [f"{v:g}" if abs(v) < 10000 else str(int(v)) for v in (low, high)]
    return f"{text} {words[0]} to {words[1]}"


def paragraph(text):
    return ["", *textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)]


def table(schema):
    """The Markdown of a schema's fields."""
    lines = ["| field | type | default | |", "|---|---|---|---|"]
    ignored = []
    for name, field in sorted(schema["properties"].items()):
        if field.get("x-ignored"):
            ignored.append(f"`{name}` ({field['description']})")
            continue
        preset = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        note = field["description"]
        if name in schema.get("required", []):
            note = "**needed**: " + note
        lines.append(f"| `{name}` | {kind(field)} | {preset} | {note} |")
    if ignored:
        lines += paragraph("No effect, and listed in `hzpserve.ignored`: " + ", ".join(ignored) + ".")
    refused = schema.get("x-refused", {})
    if refused:
        whys = {}
        for name, why in sorted(refused.items()):
            whys.setdefault(why, []).append(f"`{name}`")
        lines += paragraph("Refused, unless the value asks for nothing: " + "; ".join(
            f"{', '.join(names)} ({why})" for why, names in whys.items()) + ".")
    for is_open, words in ((False, "refused"), (True, "ignored and listed")):
        rows = [f"`{path}` ({', '.join(known(row['names']))})"
                for path, row in sorted(schema.get("x-members", {}).items()) if row["open"] == is_open]
        if rows:
            lines += paragraph(f"Objects whose other members are {words}: " + "; ".join(rows) + ".")
    return "\n".join(lines) + "\n"


def known(names):
    """The members of an object, as x-members has them."""
    return [f"`{n[1:]}` without effect" if n[0] == "-" else f"`{n}`" for n in names.split()]


def made(text, openapi):
    """API.md with the tables of this description."""
    schemas = openapi["components"]["schemas"]
    return PLACE.sub(lambda m: m[1] + table(schemas[m[2]]) + m[3], text)


def main():
    with urllib.request.urlopen(sys.argv[1] + "/openapi.json") as answer:
        openapi = json.load(answer)
    DOCUMENT.write_text(made(DOCUMENT.read_text(), openapi))


if __name__ == "__main__":
    main()

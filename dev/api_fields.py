#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of fields in docs/API.md and docs/API-LEARNING.md, from a server's /openapi.json.

    dev/api_fields.py URL            rewrites the tables

A table stands between `<!-- fields NAME -->` and `<!-- end -->`; NAME is a schema of the document.  With `<!-- fields
NAME as OTHER -->` it lists what is the same for OTHER by name only.  tests/api/check_fields.py compares them.
"""
import json
import pathlib
import re
import sys
import textwrap
import urllib.request

DOCUMENTS = [pathlib.Path(__file__).parents[1] / "docs" / name for name in ("API.md", "API-LEARNING.md")]
PLACE = re.compile(r"(<!-- fields (\w+)(?: as (\w+))? -->\n).*?(<!-- end -->)", re.S)


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


def entries(schema):
    """What is said of each field, (kind, name) -> text, where kind is how the server treats it."""
    found = {}
    for name, field in sorted(schema["properties"].items()):
        if field.get("x-ignored"):
            found["ignored", name] = field["description"]
            continue
        preset = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        note = field["description"]
        if name in schema.get("required", []):
            note = "**needed**: " + note
        found["row", name] = f"| `{name}` | {kind(field)} | {preset} | {note} |"
    for name, why in sorted(schema.get("x-refused", {}).items()):
        found["refused", name] = why
    for path, row in sorted(schema.get("x-members", {}).items()):
        found["open" if row["open"] else "closed", path] = ", ".join(known(row["names"]))
    return found


def table(schema, other=None, other_name=""):
    """The Markdown of a schema's fields; those that `other` has alike are only named."""
    found, theirs = entries(schema), entries(other) if other else {}
    own = {"row": {}, "ignored": {}, "refused": {}, "open": {}, "closed": {}}
    same = {which: [] for which in own}
    for (which, name), text in found.items():
        if theirs.get((which, name)) == text:
            same[which].append(f"`{name}`")
        else:
            own[which][name] = text
    lines = ["| field | type | default | |", "|---|---|---|---|", *own["row"].values()]
    if any(same.values()):
        words = {"row": "", "ignored": "without effect ", "refused": "refused ", "open": "members of ",
                 "closed": "members of "}
        names = {name for _, name in found}
        missing = [f"`{name}`" for _, name in theirs if name not in names]
        if len(missing) < sum(map(len, same.values())):
            text = f"All other fields are as for {other_name}"
            lines += paragraph(text + (f", but there is no {', '.join(missing)}." if missing else "."))
        else:
            lines += paragraph(f"As for {other_name}: " + "; ".join(
                words[which] + ", ".join(names) for which, names in same.items() if names) + ".")
    if own["ignored"]:
        lines += paragraph("No effect, and listed in `hzpserve.ignored`: " + ", ".join(
            f"`{name}` ({why})" for name, why in own["ignored"].items()) + ".")
    if own["refused"]:
        whys = {}
        for name, why in own["refused"].items():
            whys.setdefault(why, []).append(f"`{name}`")
        lines += paragraph("Refused, unless the value asks for nothing: " + "; ".join(
            f"{', '.join(names)} ({why})" for why, names in whys.items()) + ".")
    for which, words in (("closed", "refused"), ("open", "ignored and listed")):
        if own[which]:
            lines += paragraph(f"Objects whose other members are {words}: " + "; ".join(
                f"`{path}` ({names})" for path, names in own[which].items()) + ".")
    return "\n".join(lines) + "\n"


def known(names):
    """The members of an object, as x-members has them."""
    return [f"`{n[1:]}` without effect" if n[0] == "-" else f"`{n}`" for n in names.split()]


def made(text, openapi):
    """A document with the tables of this description."""
    schemas = openapi["components"]["schemas"]
    return PLACE.sub(lambda m: m[1] + table(schemas[m[2]], schemas.get(m[3]), m[3]) + m[4], text)


def main():
    with urllib.request.urlopen(sys.argv[1] + "/openapi.json") as answer:
        openapi = json.load(answer)
    for document in DOCUMENTS:
        document.write_text(made(document.read_text(), openapi))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes metric_rows.c of metrics.json, which has the type and the help of each metric, and of most where their values
come from (metrics.h), while the program is built.

    make_metrics.py metrics.json metric_rows.c

A source is one of those in metrics.h, or an object with one label and for each of its values a source, or
{"each": array, "count": its elements, "name": a function's of them}: without a name elements have their numbers.
"""
import json
import sys

HEADERS = ["api/http/routes/feedback.h", "api/http/routes/metrics.h", "api/http/wire/door.h",
           "api/http/wire/http.h", "api/learn/outlook.h", "nanobatch/split/split.h", "serve/budget.h", "serve/lookup.h"]


def value(field):
    """The C expression of SOURCE.FIELD, or of a difference or quotient of two."""
    for sign in (" - ", " / "):
        if sign in field:
            return sign.join(value(each) for each in field.split(sign))
    name = "from->%s" % field.rstrip("?").replace(".", "->", 1)
    return "(double)%s%s" % (name, " * 1e-9" if name.endswith("_ns") else "")


def condition(field):
    """Without which the value is left out: that it is finite (SOURCE.FIELD?), or not divided by 0."""
    return "if (isfinite(%s)) " % value(field) if field.endswith("?") or " / " in field else ""


def puts(name, kind, source):
    """The statement that writes a metric."""
    if isinstance(source, dict):
        (label, fields), = source.items()
        yield 'hzp_page_head(p, "%s");' % name
        if isinstance(fields, dict) and "each" in fields:
            number = "name" not in fields
            yield "for (int i = 0; i < %s; i++) {" % fields["count"]
            if number:
                yield 'char name[12]; snprintf(name, sizeof(name), "%d", i);'
            yield 'hzp_page_labelled(p, "%s", %s, %s[i]); }' % (
                label, "name" if number else fields["name"] + "(i)", value(fields["each"]))
            return
        for text, field in fields.items():
            yield '%shzp_page_labelled(p, "%s", "%s", %s);' % (condition(field), label, text, value(field))
    elif source.startswith("sum "):
        array, count = source.removeprefix("sum ")[:-1].split("[")
        yield "double sum = 0; for (int i = 0; i < %s; i++) sum += %s[i];" % (count, value(array))
        yield 'hzp_page_put(p, "%s", sum);' % name
    elif kind == "histogram":
        yield 'hzp_page_histogram(p, "%s", &from->%s);' % (name, source.replace(".", "->", 1))
    else:
        yield '%shzp_page_put(p, "%s", %s);' % (condition(source), name, value(source))


def source_of(source):
    """The first part of SOURCE.FIELD: a member of struct hzp_metric_sources."""
    while isinstance(source, dict):
        source = next(iter(source.values()))
    return source.removeprefix("sum ").split(".")[0]


def main():
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        metrics = json.load(file)
    with open(out, "w", encoding="utf-8") as file:
        file.writelines('#include "%s"\n' % header for header in HEADERS)
        file.write("\n#include <math.h>\n#include <stdio.h>\n\nconst struct hzp_metric_row hzp_metric_rows[] = {\n")
        for name in sorted(metrics):  # the order of strcmp, for names are ASCII
            file.write("    {%s},\n" % ", ".join(json.dumps(each) for each in (name, *metrics[name][:2])))
        file.write("};\nconst int hzp_metric_count = %d;\n\n" % len(metrics))
        file.write("void hzp_page_sources(struct hzp_page *p, const struct hzp_metric_sources *from)\n{\n")
        for name, (kind, _, *given) in metrics.items():
            if given:
                statements = " ".join(puts(name, kind, given[0]))
                file.write("    if (from->%s) { %s }\n" % (source_of(given[0]), statements))
        file.write("}\n")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes option_table.c of options.json, while the program is built.

    make_options.py options.json option_table.c

A text may be a list of strings, which blanks join. An option has a name, a help, `of` (the commands that have it,
or names of "sets"; with - in front: but those), and

    type      text, file, int, number, size, flag, choice, list (of texts, given several times)
    field     of struct hzp_options, which it sets
    parts     in place of both: "HEAD,name=VALUE,...", each part with a type and a field; the head's name is ""
    default   as typed on the command line
    range     [low, high] of int, number and size
    choices   "a|b|c"
    env       an environment variable that also sets it
    meta      stands for the value in the help text

option_table.h says what these mean.
"""
import json
import sys

KEYS = {"name", "type", "field", "parts", "default", "range", "choices", "env", "meta", "of", "help"}


def text(value):
    """A string literal of C; None: NULL."""
    if value is None:
        return "NULL"
    return json.dumps(" ".join(value) if isinstance(value, list) else value, ensure_ascii=False)


def lines(value):
    """A literal of indented lines."""
    return json.dumps("".join(f"  {line}\n" for line in value), ensure_ascii=False)


def row(*cells):
    return f"    {{{', '.join(cells)}}},"


def array(declaration, rows):
    return "\n".join([f"{declaration}[] = {{"] + rows + ["};", ""])


def commands(words, sets):
    """The commands as an expression of C."""
    found = set()
    for word in words.split():
        name = word.lstrip("-")
        its = set(sets[name].split()) if name in sets else {name}
        found = found - its if word.startswith("-") else found | its
    return " | ".join("HZP_COMMAND_" + name.upper() for name in sorted(found))


def option(its, sets, tables):
    if set(its) - KEYS:
        sys.exit(f"options.json: {its.get('name')}: {sorted(its)}, where {sorted(KEYS)} are known")
    parts = its.get("parts")
    kind = "parts" if parts else its["type"]
    low, high = its.get("range", [0, 0])
    default = its.get("default", "0" if kind == "flag" else None)
    cells = [f".name = {text(its['name'])}", f".kind = HZP_OPTION_{kind.upper()}", f".value = {text(default)}",
             f".low = {low}, .high = {high}", f".choices = {text(its.get('choices'))}",
             f".env = {text(its.get('env'))}", f".meta = {text(its.get('meta', META.get(kind)))}",
             f".help = {text(its.get('help'))}"]
    if len(text(its.get("help")) + (default or "")) > 740:
        sys.exit(f"options.json: {its['name']}: the help is too long to be printed (options_help.c)")
    if parts:
        name = f"parts_{len(tables)}"
        tables.append(array(f"static const struct hzp_option {name}", [option(part, sets, tables) for part in parts]))
        cells.append(f".part = {name}, .parts = {len(parts)}")
    else:
        cells.append(f".field = offsetof(struct hzp_options, {its['field']})")
    if "of" in its:
        cells.append(f".commands = {commands(its['of'], sets)}")
    return row(*cells)


def check_names(all_of):
    """The lists of the help name options only."""
    names = {its["name"]: its["of"] for group in all_of["options"] for its in group["options"]}
    bench = {name for name in names if any(
        "HZP_COMMAND_BENCH" in commands(its["of"], all_of["sets"])
        for group in all_of["options"] for its in group["options"] if its["name"] == name)}
    wrong = [name for name in all_of["most_used"] if name not in names]
    for its in all_of["benches"].values():
        wrong += [name for name in json.loads(text(its["options"])).split() if name not in bench]
    if wrong:
        sys.exit(f"options.json: no options: {wrong}")


META = {"file": "FILE", "int": "N", "number": "X", "size": "SIZE"}


def main():
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        all_of = json.load(file)
    parts, rows = [], []
    for group in all_of["options"]:
        rows.append(row(f".topic = {text(group['topic'])}", f".help = {text(group['heading'])}"))
        rows += [option(its, all_of["sets"], parts) for its in group["options"]]
    check_names(all_of)
    tables = [
        ("struct hzp_option hzp_option_table", rows, "hzp_option_count"),
        ("struct hzp_option_alias hzp_option_elsewhere",
         [row(text(was), text(name)) for was, name in all_of["elsewhere"].items()], "hzp_options_elsewhere"),
        ("struct hzp_command_info hzp_commands",
         [row("HZP_COMMAND_" + name.upper(), str(its["words_max"]), text(name), text(its["words"]), text(its["help"]),
              lines(its["examples"])) for name, its in all_of["commands"].items()], "hzp_command_count"),
        ("char *const hzp_options_used", [f"    {text(name)}," for name in all_of["most_used"]],
         "hzp_options_used_count"),
        ("struct hzp_bench_info hzp_benches",
         [row(text(name), *[text(its[key]) for key in ("words", "help", "example", "options", "topics")])
          for name, its in all_of["benches"].items()], "hzp_bench_count"),
        ("struct hzp_topic hzp_topics",
         [row(text(name), text(its["about"]), lines(its["text"])) for name, its in all_of["topics"].items()],
         "hzp_topic_count"),
    ]
    whole = ['#include "api/cli/option_table.h"\n', *parts]
    for declaration, its_rows, count in tables:
        whole += [array("const " + declaration, its_rows), f"const int {count} = {len(its_rows)};\n"]
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(whole))


main()

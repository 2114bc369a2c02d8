#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes option_table.c of options.json, while the program is built: the options, the commands, and the help texts.

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

A topic is a heading of the options, with an introduction and examples, or a page without options. A command with more
than FEW options shows the most used ones and names the topics of the others.
"""
import json
import sys

KEYS = {"name", "type", "field", "parts", "default", "range", "choices", "env", "meta", "of", "help"}


def plain(value):
    return " ".join(value) if isinstance(value, list) else value


def text(value):
    """A string literal of C; None: NULL."""
    return "NULL" if value is None else json.dumps(plain(value), ensure_ascii=False)


def lines(value):
    """Indented lines."""
    return "".join(f"  {line}\n" for line in value)


def row(*cells):
    return f"    {{{', '.join(cells)}}},"


def array(declaration, rows):
    return "\n".join([f"{declaration}[] = {{"] + rows + ["};", ""])


def commands_of(words, sets):
    found = set()
    for word in words.split():
        name = word.lstrip("-")
        its = set(sets[name].split()) if name in sets else {name}
        found = found - its if word.startswith("-") else found | its
    return found


def commands(words, sets):
    """The commands as an expression of C."""
    return " | ".join("HZP_COMMAND_" + name.upper() for name in sorted(commands_of(words, sets)))


def option(its, sets, tables):
    if set(its) - KEYS:
        sys.exit(f"options.json: {its.get('name')}: {sorted(its)}, where {sorted(KEYS)} are known")
    parts = its.get("parts")
    kind = "parts" if parts else its["type"]
    low, high = its.get("range", [0, 0])
    default = its.get("default", "0" if kind == "flag" else None)
    cells = [f".name = {text(its['name'])}", f".kind = HZP_OPTION_{kind.upper()}", f".value = {text(default)}",
             f".low = {low}, .high = {high}", f".choices = {text(its.get('choices'))}",
             f".env = {text(its.get('env'))}"]
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
FEW = 24
VERSION = "@version@"  # in its place the text in base/version.h


def wrapped(value):
    """The right column of the help, wrapped between words."""
    out = ""
    while len(value) > 67 and (cut := value[:68].rfind(" ")) > 0:
        out += value[:cut] + "\n" + 33 * " "
        value = value[cut + 1:]
    return out + value + "\n"


def option_help(its):
    kind = "parts" if "parts" in its else its["type"]
    left, right = its["name"], plain(its["help"])
    if kind != "flag":
        left += " " + (its["choices"] if kind == "choice" else its.get("meta", META.get(kind)))
        right += f" [{its['default']}]" if "default" in its else ""
    right += f" (or ${its['env']})" if "env" in its else ""
    # too wide for its column: the text begins in the next line
    return (f"  {left}\n" + 33 * " " if len(left) > 30 else f"  {left:<30} ") + wrapped(right)


class Help:
    def __init__(self, all_of):
        self.all = all_of

    def options(self, command=None, topic=None, names=None):
        """Each group of options below its heading: those of the command, of the topic, of these names; None: all."""
        out = ""
        for group in self.all["options"]:
            shown = [option_help(its) for its in group["options"]
                     if (topic or group["topic"]) == group["topic"] and (names is None or its["name"] in names) and
                     (not command or command in commands_of(its["of"], self.all["sets"]))]
            out += "\n" + group["heading"] + "\n" + "".join(shown) if shown else ""
        return out

    def count(self, command):
        return sum(command in commands_of(its["of"], self.all["sets"])
                   for group in self.all["options"] for its in group["options"])

    def topics(self, command=None):
        """The topics that have options of the command; None: all."""
        return "".join(f"  {name:<12} {plain(its['about'])}\n" for name, its in self.all["topics"].items()
                       if not command or self.options(command, name))

    def topic(self, name, its):
        options = self.options(topic=name)
        return f"{name}: {plain(its['about'])}\n\n" + ("Examples\n" if options else "") + lines(its["text"]) + options

    def bench(self, name, its):
        words, topics = plain(its["words"]), plain(its["topics"])
        return (f"hzpserve bench {name}{' ' + words if words else ''} [OPTIONS]\n\n{plain(its['help'])}\n\n"
                f"Examples\n  {plain(its['example'])}\n" + self.options("bench", names=plain(its["options"]).split()) +
                (f"\nFurther options: hzpserve help TOPIC, with TOPIC one of: {topics}\n" if topics else ""))

    def command(self, name, its, all_options):
        few = all_options or self.count(name) <= FEW
        words = plain(its["words"])
        head = (f"hzpserve {name}{' ' + words if words else ''} [OPTIONS]\n\n{plain(its['help'])}\n" +
                ("" if few else f"(all options: hzpserve {name} --help-all)\n") + "\nExamples\n" +
                lines(its["examples"]))
        if few:
            return head + self.options(name)
        if name == "bench":
            head += "\nWHAT (hzpserve bench WHAT --help has its options)\n" + "".join(
                f"  {what:<12} {plain(one['help'])}\n" for what, one in self.all["benches"].items())
        else:
            head += self.options(name, names=self.all["most_used"])
        return head + "\nFurther options: hzpserve help TOPIC\n" + self.topics(name)

    def program(self):
        return (f"hzpserve {VERSION}: serves a language model over HTTP while fine-tuning the same weights.\n\n"
                "  hzpserve COMMAND --help          a command: examples and the options most used\n"
                "  hzpserve COMMAND --help-all      all its options\n"
                "  hzpserve help TOPIC              a group of options\n\nCommands\n" + "".join(
                    f"  hzpserve {name:<8} {plain(its['words']):<28} {plain(its['help'])}\n"
                    for name, its in self.all["commands"].items()) +
                "\n  hzpserve --version\n\nTopics\n" + self.topics())

    def pages(self):
        """The name of each text, as struct hzp_help has it, and the text."""
        yield "", self.program()
        for name, its in self.all["commands"].items():
            yield name, self.command(name, its, False)
            yield name + " --help-all", self.command(name, its, True)
        for name, its in self.all["benches"].items():
            yield "bench " + name, self.bench(name, its)
        for name, its in self.all["topics"].items():
            if name not in self.all["commands"]:  # a word that is a command too means the command
                yield "help " + name, self.topic(name, its)


def main():
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        all_of = json.load(file)
    parts, rows = [], []
    for group in all_of["options"]:
        rows += [option(its, all_of["sets"], parts) for its in group["options"]]
    check_names(all_of)
    tables = [
        ("struct hzp_option hzp_option_table", rows, "hzp_option_count"),
        ("struct hzp_option_alias hzp_option_elsewhere",
         [row(text(was), text(name)) for was, name in all_of["elsewhere"].items()], "hzp_options_elsewhere"),
        ("struct hzp_command_info hzp_commands",
         [row("HZP_COMMAND_" + name.upper(), str(its["words_max"]), text(name), text(its["words"]),
              "NULL" if name == "bench" else "hzp_cmd_" + its.get("run", name))
          for name, its in all_of["commands"].items()], "hzp_command_count"),
        ("struct hzp_help hzp_helps",
         [row(text(name), text(page).replace(VERSION, '" HZP_VERSION_TEXT "')) for name, page in Help(all_of).pages()],
         "hzp_help_count"),
    ]
    whole = [*(f'#include "{name}"' for name in ("api/cli/commands.h", "api/cli/option_table.h", "base/version.h")), "", *parts]
    for declaration, its_rows, count in tables:
        whole += [array("const " + declaration, its_rows), f"const int {count} = {len(its_rows)};\n"]
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(whole))


main()

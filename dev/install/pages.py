#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual page and the shells' completions from the program's own help.

    pages.py man|bash|zsh HZPSERVE

`hzpserve COMMAND --help-all` is printed from the table of options, so all of these follow it.  A line of
the help that cannot be parsed is an error that stops the build.
"""
import re
import subprocess
import sys

FILES_OF = {"FILE": "file", "DIR": "directory", "PATH": "file"}


class Option:
    def __init__(self, name, meta, text):
        self.name, self.meta, self.text = name, meta, text

    def choices(self):
        return self.meta.split("|") if self.meta and "|" in self.meta else []


class Command:
    def __init__(self, name, words, text):
        self.name, self.words, self.text = name, words, text
        self.examples = []  # lines
        self.sections = []  # (heading, [Option])

    def options(self):
        return [option for _, options in self.sections for option in options]


def text_of(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin"}).stdout.splitlines()


def read_command(program, command):
    """Examples and sections of `hzpserve COMMAND --help-all`, as make_options.py makes them."""
    lines = text_of(program, command.name, "--help-all")[3:]
    while lines and not lines[0]:
        lines.pop(0)
    if lines.pop(0) != "Examples":
        sys.exit(f"pages: hzpserve {command.name} --help-all: no examples")
    while lines and lines[0]:
        command.examples.append(lines.pop(0).strip())
    for line in lines:
        option = re.match(r"  (--[a-z0-9-]+)(?: (\S+))? +(\S.*)$", line)
        wide = re.match(r"  (--[a-z0-9-]+) (\S+)$", line)  # its text begins in the next line
        if re.match(r"\S", line):
            command.sections.append((line, []))
        elif wide:
            command.sections[-1][1].append(Option(*wide.groups(), ""))
        elif option:
            command.sections[-1][1].append(Option(*option.groups()))
        elif re.match(r" {20,}\S", line):
            last = command.sections[-1][1][-1]
            last.text = f"{last.text} {line.strip()}".lstrip()
        elif line.strip():
            sys.exit(f"pages: hzpserve {command.name} --help-all: not understood: {line!r}")
    if not command.options():
        sys.exit(f"pages: hzpserve {command.name} --help-all: no options")


def read(program):
    lines = text_of(program, "--help")
    version, about = re.match(r"hzpserve (\S+): (.*)", lines[0]).groups()
    commands = []
    topics = []
    for line in lines[1:]:
        found = re.match(r"  hzpserve ([a-z]+) +(.*?) {2,}(\S.*)$", line)
        if found and found[1] != "help":
            commands.append(Command(*found.groups()))
        topic = re.match(r"  ([a-z]+) {2,}\S", line)
        if topic:
            topics.append(topic[1])
    if not commands:
        sys.exit("pages: hzpserve --help: no commands")
    for command in commands:
        read_command(program, command)
    return version, about, commands, topics


# ---- the manual page ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith(".") else text


def man(version, about, commands):
    yield '.TH HZPSERVE 1 "" "hzpserve ' + roff(version) + '" "User Commands"'
    yield f".SH NAME\nhzpserve \\- {roff(about)}"
    yield ".SH SYNOPSIS"
    for i, command in enumerate(commands):
        yield (".br\n" if i else "") + f".B hzpserve {command.name}\n{roff(command.words)} [OPTIONS]"
    yield ".br\n.B hzpserve \\-\\-version"
    yield ".SH DESCRIPTION"
    yield roff("Settings come from, each overriding the one before: the built-in default, MODEL/serve.options "
               "(a setting a line), the environment, the command line. Defaults are in brackets.")
    for command in commands:
        yield f'.SH "COMMAND {command.name.upper()}"\n{roff(command.text)}'
        yield ".P\n.nf"
        yield from (roff(line) for line in command.examples)
        yield ".fi"
        for heading, options in command.sections:
            yield f'.SS "{roff(heading)}"'
            for option in options:
                yield f".TP\n.B {roff(option.name)} {roff(option.meta or '')}".rstrip()
                yield roff(option.text)
    yield ".SH FILES"
    yield ".TP\n.I MODEL/serve.options\nsettings of a model, one a line"
    yield ".TP\n.I ~/.local/share/hzpserve\nstate of servers (or below $XDG_DATA_HOME)"
    yield ".TP\n.I ~/.cache/hzpserve\nplans and algorithms that were measured (or below $XDG_CACHE_HOME)"
    yield ".SH EXIT STATUS"
    yield "0 on success, 1 if the command failed or the device did, 2 if the command line is wrong."


# ---- completions ----

def bash(commands, topics):
    yield "# bash completion of hzpserve"
    yield "_hzpserve()\n{"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield "    COMPREPLY=()"
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        COMPREPLY=($(compgen -W "{" ".join(c.name for c in commands)} help --help --version" -- "$word"))'
    yield "        return\n    fi"
    yield '    if [ "${COMP_WORDS[1]}" = help ]; then'
    words = " ".join(dict.fromkeys([c.name for c in commands] + topics))
    yield f'        COMPREPLY=($(compgen -W "{words}" -- "$word"))'
    yield "        return\n    fi"
    yield '    case "${COMP_WORDS[1]} $before" in'
    for command in commands:
        for option in command.options():
            if option.choices():
                yield f'    "{command.name} {option.name}")'
                yield f'        COMPREPLY=($(compgen -W "{" ".join(option.choices())}" -- "$word"))'
                yield "        return ;;"
            elif option.meta and option.meta not in FILES_OF:
                yield f'    "{command.name} {option.name}") return ;;'
    yield "    esac"
    yield '    if [[ "$word" == -* ]]; then\n        case "${COMP_WORDS[1]}" in'
    for command in commands:
        names = " ".join(option.name for option in command.options())
        yield f'        {command.name}) COMPREPLY=($(compgen -W "{names} --help --help-all" -- "$word")) ;;'
    yield "        esac\n        return\n    fi"
    yield '    compopt -o filenames 2>/dev/null\n    COMPREPLY=($(compgen -f -- "$word"))\n}'
    yield "complete -F _hzpserve hzpserve"


def zsh_quoted(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh(commands, topics):
    yield "#compdef hzpserve\n# zsh completion of hzpserve"
    yield "_hzpserve()\n{\n    local -a commands\n    commands=("
    for command in commands:
        yield f"        '{command.name}:{zsh_quoted(command.text)}'"
    yield "        'help:a command or a topic'"
    yield "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi"
    yield "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in"
    yield f"    help) _arguments '1:topic:({' '.join(dict.fromkeys([c.name for c in commands] + topics))})' ;;"
    for command in commands:
        yield f"    {command.name})\n        _arguments \\"
        for option in command.options():
            value = ""
            if option.meta:
                action = "(" + " ".join(option.choices()) + ")" if option.choices() else \
                    "_files -/" if option.meta == "DIR" else "_files" if option.meta in FILES_OF else " "
                value = f":{zsh_quoted(option.meta)}:{action}"
            yield f"            '{option.name}[{zsh_quoted(option.text)}]{value}' \\"
        yield "            '*:file:_files' ;;"
    yield "    esac\n}\n_hzpserve \"$@\""


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("man", "bash", "zsh"):
        sys.exit(__doc__)
    version, about, commands, topics = read(sys.argv[2])
    page = man(version, about, commands) if sys.argv[1] == "man" else \
        bash(commands, topics) if sys.argv[1] == "bash" else zsh(commands, topics)
    print("\n".join(page))


if __name__ == "__main__":
    main()

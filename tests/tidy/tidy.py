#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the project's rules that a program can check.

    tidy.py SOURCE_ROOT [--library LIBHZP.a] [--cc CC]

Includes follow the tables of docs/ARCHITECTURE.md; neither folders of any depth nor modules form a
circle; files and functions stay small; every file opens with its licence line; every header compiles
alone, as C17 and (those a .cu file reads) as C++17; no external symbol lacks the prefix; no hzp_ type
is defined twice; no argument of HZP_MIN or HZP_MAX calls a function.
"""
import argparse
import pathlib
import re
import subprocess
import sys

# The folders that each folder may include.  A folder may always include itself.
MAY_INCLUDE = {
    "base": [],
    "device": ["base"],
    "mesh": ["base", "device"],
    "weights": ["base", "device", "mesh"],
    "nanobatch": ["base", "device", "mesh", "weights"],
    "serve": ["base", "device", "mesh", "weights", "nanobatch"],
    "train": ["base", "device", "mesh", "weights", "nanobatch"],
    "text": ["base"],
    "api": ["base", "device", "mesh", "weights", "nanobatch", "serve", "train", "text"],
}
# Single headers that a folder may include beside those: an interface that the folder uses or implements.
HEADERS = {
    "device": ["mesh/link.h"],         # collectives are ops
    "text": ["serve/constraint.h"],    # grammars implement it
}
# The subfolders of a folder: which others of it each may include.  Files at the top of the folder (the
# loop, and what sources implement) may include every subfolder, and no subfolder includes them.
SUBFOLDERS = {
    "mesh": {
        "link": [],
        "peers": [],
        "launch": ["peers"],
        "paths": [],
    },
    "nanobatch": {
        "plan": [],
        "time": ["plan"],
        "model": ["plan", "time"],
        "run": ["plan", "time", "model"],
        "split": ["plan", "time", "model", "run"],
        "search": ["plan", "time", "model", "run", "split"],
    },
    "train": {
        "table": [],
        "state": [],
        "learner": ["table", "state"],
        "checks": ["table", "state", "learner"],
        "sites": [],
        "conductor": ["table", "state", "learner", "checks", "sites"],
        "history": ["table", "state", "learner", "checks", "sites", "conductor"],
    },
    "text": {
        "chars": [],
        "jinja": ["chars"],
        "tokenizer": ["chars"],
        "grammar": [],
        "chat": ["chars", "jinja", "tokenizer", "grammar"],
    },
    "api": {
        "front": [],
        "learn": [],
        "rollout": ["learn"],
        "engine": ["front", "learn", "rollout"],
        "http": ["front", "learn", "rollout", "engine"],
        "relay": ["http"],
        "client": [],
        "cli": ["front", "learn", "rollout", "engine", "http", "relay", "client"],
    },
    "api/http": {
        "wire": [],
        "routes": ["wire"],
    },
}
# Headers at the top of a folder that its subfolders may include all the same: what they implement.
BELOW = ["mesh/link.h"]
# Libraries, by their headers, and the folders that may include them.
LIBRARY = {
    "jansson.h": ["base"],  # elsewhere by way of base/json.h
    "sqlite3.h": ["train/table"],
    "microhttpd.h": ["api"],
    "pcre2.h": ["text"],
    "utf8proc.h": ["text"],
    "dnnl.h": ["device/cpu", "dev/bench"],
    "oneapi/": ["device/cpu"],
    "omp.h": ["device/cpu"],
    "mpi.h": ["mesh/link"],
    "immintrin.h": ["device/cpu"],
    "cuda": ["device/cuda"],
    "cublas": ["device/cuda"],
    "nccl.h": ["device/cuda"],
    "curl/": ["api"],
    "zlib.h": ["api"],
    "zmq.h": ["mesh"],
    "editline/": ["api/cli"],
}
# The engine works on tokens; text exists only in text/ and api/.  Only device/ may see the backends.
PRIVATE = {"device/backend.h": ["device", "dev/bench"], "device/cpu/": ["device/cpu", "dev/bench"],
           "device/cuda/": ["device/cuda", "dev/bench"],
           "mesh/link/": ["mesh"], "device/ref/": ["device/ref", "device/cpu"]}
# What base/base.h includes for all files of the product, as git's git-compat-util.h does.
C_LIBRARY = ["ctype.h", "errno.h", "inttypes.h", "limits.h", "math.h", "stdarg.h", "stdatomic.h", "stdbool.h",
             "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "time.h", "unistd.h"]
BACKENDS_DEFINE = ["hzp_fence"]
# A module is NAME.h with NAME.c and NAME_state, NAME_parts, NAME_private, which say what it consists of.
# These are of a module too, though their names do not end so.
OF_MODULE = {
    "device/backend": "device/device",             # the side of a device that a backend implements
    "train/history/trainer_suspend": "train/conductor/trainer",  # for the thread that changes versions
    "train/history/trainer_rejoin": "train/conductor/trainer",   # likewise for the one that brings ranks back
    "text/chat/chat_form": "text/chat/chat",       # the forms of templates that a chat was made from
    "api/learn/versions": "api/learn/state",       # the state directory's work on versions
    "api/cli/option_table": "api/cli/options",     # the rows that options are parsed by
}
LINES_MAX, FUNCTION_MAX = 800, 80
DOCUMENT_COLUMNS = 120
READ_BY_NVCC = ["base/base.h", "device/ops.h", "device/device.h", "device/backend.h", "device/bf16.h",
                "device/philox.h", "device/fallback.h"]

problems = []


def problem(where, what):
    problems.append(f"{where}: {what}")


def sources(root, suffixes):
    for folder in [*MAY_INCLUDE, "tests", "dev"]:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def module_of(root, name):
    stem = name.rsplit(".", 1)[0]
    for suffix in ("_state", "_parts", "_private"):
        outer = stem.removesuffix(suffix)
        if outer != stem and (root / f"{outer}.c").exists():
            return outer
    return OF_MODULE.get(stem, stem)


def check_includes(root, path, included, modules):
    name = path.relative_to(root).as_posix()
    folder = name.split("/")[0]
    if folder not in MAY_INCLUDE:
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        quote, target = match.groups()
        where = f"{name}:{number}"
        if quote == '"':
            top = target.split("/")[0]
            if not (root / target).exists() and not target.endswith(".inc"):
                problem(where, f'"{target}" is not written from the root')
            elif top not in [folder, *MAY_INCLUDE[folder]] and target not in HEADERS.get(folder, []):
                problem(where, f"{folder}/ may not include {top}/")
            check_subfolder(name, target, where)
            own, other = module_of(root, name), module_of(root, target)
            if own != other and (root / target).exists():
                modules.setdefault(own, {}).setdefault(other, where)
            own, other = (str(pathlib.PurePosixPath(n).parent) for n in (name, target))
            if own != other:
                included.setdefault(own, {}).setdefault(other, where)
            for private, allowed in PRIVATE.items():
                if target.startswith(private) and not any(name.startswith(a + "/") for a in allowed):
                    problem(where, f"{private} is private to {', '.join(allowed)}")
        else:
            if target in C_LIBRARY and name != "base/base.h":
                problem(where, f"<{target}> comes by way of base/base.h")
            for library, allowed in LIBRARY.items():
                if target.startswith(library) and not any(name.startswith(a + "/") for a in allowed):
                    problem(where, f"<{target}> belongs to {', '.join(allowed)}")


def subfolder_of(folder, name):
    """The subfolder in which the file lies; None: at the folder's top."""
    rest = name[len(folder) + 1:]
    return rest.split("/")[0] if "/" in rest else None


def check_subfolder(name, target, where):
    """A subfolder may include only those that its row names."""
    for folder, table in SUBFOLDERS.items():
        if not (name.startswith(folder + "/") and target.startswith(folder + "/")):
            continue
        own, other = subfolder_of(folder, name), subfolder_of(folder, target)
        unknown = [s for s in (own, other) if s is not None and s not in table]
        if unknown:
            problem(where, f"{folder}/{unknown[0]}/ is not in the table of {folder}/")
        elif own is None or own == other:
            continue
        elif other is None and target in BELOW:
            continue
        elif other is None:
            problem(where, f"{folder}/{own}/ may not include {target}, which is above it")
        elif other not in table[own]:
            problem(where, f"{folder}/{own}/ may not include {folder}/{other}/")


def check_circles(included, what):
    """No circle of folders, of any depth, or of modules, whose files include one another.

    included: {folder: {folder that it includes: the line that does}}; the same of modules.
    """
    done, path = set(), []

    def visit(folder):
        if folder in path:
            circle = path[path.index(folder):] + [folder]
            problem(included[path[-1]][folder], f"a circle of {what}: " + " -> ".join(circle))
        if folder in path or folder in done:
            return
        path.append(folder)
        for other in sorted(included.get(folder, {})):
            visit(other)
        path.pop()
        done.add(folder)

    for folder in sorted(included):
        visit(folder)


def check_documented_tables(root):
    """The tables of docs/ARCHITECTURE.md say the same as MAY_INCLUDE and SUBFOLDERS."""
    rows = {}
    for line in (root / "docs/ARCHITECTURE.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 3 and cells[0].endswith("/`"):
            rows[cells[0].strip("`/")] = re.findall(r"[a-z]+", cells[2])
    expected = dict(MAY_INCLUDE)
    for table in SUBFOLDERS.values():
        expected.update(table)
    expected["api"] = ["all"]
    for name, may in sorted(expected.items()):
        if name not in rows:
            problem("docs/ARCHITECTURE.md", f"no row of a table for `{name}/`")
        elif sorted(rows[name]) != sorted(may):
            problem("docs/ARCHITECTURE.md", f"`{name}/` may include {', '.join(may) or 'nothing'}")


def check_documented_threads(root):
    """docs/ARCHITECTURE.md names every thread of the product, and no other."""
    started = {}
    for path in sources(root, {".c"}):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in MAY_INCLUDE:
            for thread in re.findall(r'hzp_(?:thread_start|saver_init)\([^;]*?"(hzp-[\w-]+)"', path.read_text()):
                started.setdefault(thread, name)
    table = (root / "docs/ARCHITECTURE.md").read_text().partition("\n## Threads\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"\(`(hzp-[\w-]+)`\)", table))
    for thread in sorted(set(started) - documented):
        problem(started[thread], f"{thread} is not in the table of threads of docs/ARCHITECTURE.md")
    for thread in sorted(documented - set(started)):
        problem("docs/ARCHITECTURE.md", f"no thread is called {thread}")


def check_documented_packages(root):
    """README.md names the packages that bootstrap.sh installs for a build."""
    listed = re.search(r'^packages="([^"]*)"', (root / "bootstrap.sh").read_text(), re.M)[1].split()
    readme = (root / "README.md").read_text().partition("\n## Build by hand\n")[2].partition("\n## ")[0]
    for package in listed:
        if not re.search(rf"(?<![\w-]){re.escape(package)}(?![\w-])", readme):
            problem("README.md", f"Build by hand does not name {package}")


def check_shape(root, path):
    name = path.relative_to(root).as_posix()
    text = path.read_text()
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        problem(name, f"{len(lines)} lines, at most {LINES_MAX}")
    if "SPDX-License-Identifier" not in "\n".join(lines[:3]):
        problem(name, "no licence line at the top")
    if path.suffix not in (".c", ".h"):
        return
    begin = None
    for number, line in enumerate(lines, 1):
        if re.search(r"(^|\s)//", line) and "://" not in line:
            problem(f"{name}:{number}", "a // comment; /* */ stays")
        if len(line) > 100:
            problem(f"{name}:{number}", f"{len(line)} columns, at most 100")
        if line.startswith("{"):
            begin = number
        elif line.startswith("}") and begin:
            if number - begin > FUNCTION_MAX:
                problem(f"{name}:{begin}", f"a function of {number - begin} lines, "
                                           f"at most {FUNCTION_MAX}")
            begin = None


def check_arguments(root, path):
    """HZP_MIN and HZP_MAX evaluate an argument twice, so it calls no function: names of functions are lower case."""
    name, text = path.relative_to(root).as_posix(), path.read_text()
    text = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.S)
    for macro in re.finditer(r"\bHZP_(?:MIN|MAX)\(", text):
        end, depth = macro.end(), 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        for called in re.findall(r"\b(\w*[a-z]\w*)\s*\(", text[macro.end():end]):
            if called != "sizeof":
                line = text.count("\n", 0, macro.start()) + 1
                problem(f"{name}:{line}", f"an argument of {macro[0]}..) calls {called}()")


def check_document(root, path):
    """Paragraphs of a document are wrapped; tables, code and single long words cannot be."""
    name, code = path.relative_to(root).as_posix(), False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code ^= line.startswith("```")
        free = code or line.startswith(("|", "    ", "<!--")) or " " not in line.strip()
        if len(line) > DOCUMENT_COLUMNS and not free:
            problem(f"{name}:{number}", f"{len(line)} columns, at most {DOCUMENT_COLUMNS}")


def check_header_alone(root, path, cc):
    name = path.relative_to(root).as_posix()
    if "template" in path.name or path.name.endswith("_tmpl.h"):
        return
    base = ["-fsyntax-only", f"-I{root}", "-D_GNU_SOURCE", "-Wall", "-Werror",
            "-Wno-unused-function"]
    tries = [[cc, "-std=c17", "-x", "c"]]
    if name in READ_BY_NVCC:
        tries.append([cc, "-std=c++17", "-x", "c++"])
    for command in tries:
        done = subprocess.run([*command, *base, "-"], input=f'#include "{name}"\n', text=True,
                              capture_output=True)
        if done.returncode:
            problem(name, "does not compile alone: " + (done.stderr.splitlines() or ["?"])[0])


def check_types(root):
    """One definition of each hzp_ struct, enum or union.  Each backend defines what is opaque to its callers."""
    defined = {}
    for path in sources(root, {".c", ".h", ".cu", ".cuh"}):
        name = path.relative_to(root).as_posix()
        for match in re.finditer(r"^(?:struct|enum|union) (hzp_\w+) \{", path.read_text(), re.M):
            defined.setdefault(match[1], []).append(name)
    for tag, names in sorted(defined.items()):
        if len(names) > 1 and tag not in BACKENDS_DEFINE:
            problem(names[1], f"{tag} is defined in {names[0]} too")


def check_symbols(library):
    done = subprocess.run(["nm", "--defined-only", "--extern-only", library], text=True,
                          capture_output=True)
    for line in done.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1] in "TDBRCV" and not parts[2].startswith(("hzp_", "_Z", "__")):
            if parts[2] not in ("main", "recv"):  # recv: api/http/wire/framing.h
                problem(library, f"external symbol {parts[2]} without the prefix hzp_")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--library")
    parser.add_argument("--cc", default="cc")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    files, included, modules = 0, {}, {}
    for path in sources(root, {".c", ".h", ".cu", ".cuh", ".py"}):
        files += 1
        check_shape(root, path)
        if path.suffix != ".py":
            check_includes(root, path, included, modules)
            check_arguments(root, path)
        if path.suffix == ".h" and path.relative_to(root).parts[0] in MAY_INCLUDE:
            if "cuda" not in path.parts:
                check_header_alone(root, path, arguments.cc)
    for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "dev").rglob("*.md")]:
        check_document(root, path)
    check_circles(included, "folders")
    check_circles(modules, "modules")
    check_types(root)
    check_documented_tables(root)
    check_documented_threads(root)
    check_documented_packages(root)
    if arguments.library:
        check_symbols(arguments.library)
    for line in problems:
        print(line)
    print(f"{files} files, {len(problems)} problems")
    return 1 if problems or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

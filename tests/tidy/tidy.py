#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the project's rules that a program can check.

    tidy.py SOURCE_ROOT [--library LIBHZP.a] [--cc CC]

Includes follow the table of docs/ARCHITECTURE.md; files and functions stay small; every file opens
with its licence line; every header compiles alone, as C17 and (those a .cu file reads) as C++17;
no external symbol lacks the prefix.
"""
import argparse
import pathlib
import re
import subprocess
import sys

# The folders that each folder may include.  A folder may always include itself.
MAY_INCLUDE = {
    "base": [],
    "grammar": ["base"],
    "device": ["base"],
    "weights": ["base", "device"],
    "nanobatch": ["base", "device", "weights"],
    "serve": ["base", "grammar", "device", "weights", "nanobatch"],
    "train": ["base", "device", "weights", "nanobatch"],
    "api": ["base", "grammar", "device", "weights", "nanobatch", "serve", "train"],
}
# The rooms of a folder: which other rooms each may include.  Files at the top of the folder (the
# loop, and what sources implement) may include every room, and no room includes them.
ROOMS = {
    "nanobatch": {
        "plan": [],
        "time": ["plan"],
        "build": ["plan", "time"],
        "run": ["plan", "time", "build"],
        "split": ["plan", "time", "build", "run"],
        "search": ["plan", "time", "build", "run"],
    },
    "api": {
        "text": [],
        "ranks": [],
        "learn": ["text"],
        "engine": ["learn", "ranks", "text"],
        "http": ["engine", "learn", "ranks", "text"],
        "bench": ["engine", "learn", "ranks", "text"],
        "cli": ["bench", "engine", "http", "learn", "ranks", "text"],
    },
}
# Libraries, by their headers, and the folders that may include them.
LIBRARY = {
    "jansson.h": ["grammar", "weights", "api"],
    "sqlite3.h": ["train"],
    "microhttpd.h": ["api"],
    "pcre2.h": ["api/text"],
    "dnnl.h": ["device/cpu"],
    "oneapi/": ["device/cpu"],
    "omp.h": ["device/cpu"],
    "mpi.h": ["device/link"],
    "immintrin.h": ["device/cpu"],
    "cuda": ["device/cuda"],
    "cublas": ["device/cuda"],
    "nccl.h": ["device/cuda"],
    "curl/": ["api"],
    "zmq.h": ["api/ranks"],
    "editline/": ["api/cli"],
}
# The engine works on tokens; text exists only in api/.  Only device/ may see the backends.
PRIVATE = {"device/backend.h": ["device"], "device/cpu/": ["device/cpu"],
           "device/cuda/": ["device/cuda"],
           "device/link/": ["device"], "device/ref/": ["device/ref", "device/cpu"]}
LINES_MAX, FUNCTION_MAX = 800, 80
READ_BY_NVCC = ["base/base.h", "device/ops.h", "device/device.h", "device/backend.h", "device/bf16.h",
                "device/philox.h"]

problems = []


def problem(where, what):
    problems.append(f"{where}: {what}")


def sources(root, suffixes):
    for folder in [*MAY_INCLUDE, "tests", "dev"]:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def check_includes(root, path):
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
            elif top != folder and top not in MAY_INCLUDE[folder]:
                problem(where, f"{folder}/ may not include {top}/")
            check_room(name, target, where)
            for private, allowed in PRIVATE.items():
                if target.startswith(private) and not any(name.startswith(a + "/") for a in allowed):
                    problem(where, f"{private} is private to {', '.join(allowed)}")
        else:
            for library, allowed in LIBRARY.items():
                if target.startswith(library) and not any(name.startswith(a + "/") for a in allowed):
                    problem(where, f"<{target}> belongs to {', '.join(allowed)}")


def check_room(name, target, where):
    """In a folder with rooms, a room may include only the rooms that its row names."""
    folder = name.split("/")[0]
    rooms = ROOMS.get(folder)
    if not rooms or not target.startswith(folder + "/"):
        return
    room = name.split("/")[1] if name.count("/") > 1 else None
    other = target.split("/")[1] if target.count("/") > 1 else None
    for named in (room, other):
        if named is not None and named not in rooms:
            problem(where, f"{folder}/{named}/ is no room of {folder}/")
            return
    if room is None or room == other:
        return
    if other is None:
        problem(where, f"{folder}/{room}/ may not include {target}, which is above it")
    elif other not in rooms[room]:
        problem(where, f"{folder}/{room}/ may not include {folder}/{other}/")


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


def check_symbols(library):
    done = subprocess.run(["nm", "--defined-only", "--extern-only", library], text=True,
                          capture_output=True)
    for line in done.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1] in "TDBRCV" and not parts[2].startswith(("hzp_", "_Z", "__")):
            if parts[2] != "main":
                problem(library, f"external symbol {parts[2]} without the prefix hzp_")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--library")
    parser.add_argument("--cc", default="cc")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    files = 0
    for path in sources(root, {".c", ".h", ".cu", ".cuh", ".py"}):
        files += 1
        check_shape(root, path)
        if path.suffix != ".py":
            check_includes(root, path)
        if path.suffix == ".h" and path.relative_to(root).parts[0] in MAY_INCLUDE:
            if "cuda" not in path.parts:
                check_header_alone(root, path, arguments.cc)
    if arguments.library:
        check_symbols(arguments.library)
    for line in problems:
        print(line)
    print(f"{files} files, {len(problems)} problems")
    return 1 if problems or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Another kernel in the programs of a pack, without a build: used by dev/gpu/run.

    run objects BUILD FILE.txz [PACK.txz]   what relinking needs, of the build that the pack was made of
    run relink FOLDER SOURCE... [--programs NAME,...] [--arch 90a]

FOLDER is where both the pack and FILE.txz were unpacked.  SOURCE is a .cu, or a .c of the library that includes no
header of a package that is missing here; it is compiled as the build compiled it, a kernel for this machine's GPU alone.
A source is known by its name: a changed copy from elsewhere replaces what has the same name.  Headers are those of the
tree that this script lies in: after a change of one, name every source that includes it; those that are not as in the
build and were not named are told.  Then the programs are linked
from all objects, those replaced earlier included, and replace those of the pack, all of them or none.  Programs
that use the library's shared form (opcheck and other tests) are not linked anew: the shared form is.

FOLDER/commit, which the report shows, names each source that differs from the build's, with a hash of it and
its headers.  It needs nvcc, a C compiler and the libraries in FOLDER/lib; no headers of theirs.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import libraries

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = "libhzp_tests.so"


def said_by(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


@functools.lru_cache(maxsize=None)
def read(path):
    """A file's hash, and the headers of the tree that it includes."""
    with open(path, "rb") as file:
        text = file.read()
    headers = [os.path.join(ROOT, name.decode()) for name in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', text, re.M)]
    return hashlib.sha256(text).digest(), [header for header in headers if os.path.exists(header)]


def digest(source):
    """Hash of a source, and of every header of the tree that it includes."""
    seen, waiting, whole = set(), [source], hashlib.sha256()
    while waiting:
        said, headers = read(waiting.pop())
        whole.update(said)
        new = [header for header in headers if header not in seen]
        seen.update(new)
        waiting += new
    return whole.hexdigest()[:8]


# ---- objects: where the build is ----

def inputs(build, target):
    """The objects that ninja makes a target of; libraries are not among them."""
    said = said_by("ninja", "-C", build, "-t", "query", target)
    return re.findall(r"^    ([^|\s].*\.o)$", said.split("  outputs:")[0], re.M)


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said_by("readelf", "-d", path))


def without(words, alone=(), pairs=(), begins=()):
    """The words of a command less some options; pairs are followed by a word of theirs."""
    kept, words = [], list(words)
    while words:
        word = words.pop(0)
        if word in pairs:
            words.pop(0)
        elif word not in alone and not word.startswith(tuple(begins)):
            kept.append(word)
    return kept


def kernel_options(build, target):
    """nvcc's options for a kernel, without the GPUs, the folders and the files."""
    words = shlex.split(said_by("ninja", "-C", build, "-t", "commands", target).splitlines()[-1])
    at = next(i for i, word in enumerate(words) if os.path.basename(word) == "nvcc")
    return without(words[at + 1:], ["-MD"], ["-gencode", "-MF", "-c", "-o"], ["-I"])


def c_options(words):
    """A C compiler's options, without warnings as errors, debug information, folders and files."""
    first = next(i for i, word in enumerate(words) if word.startswith("-"))
    return without(words[first:], ["-MD", "-Werror", "-g"], ["-MQ", "-MF", "-o", "-c", "-isystem"],
                   ["-I", "-fdiagnostics"])


def c_sources(build, objects):
    """Source, relative to the tree -> [object, options] of each compilation of it that the library has."""
    found = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            source = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
            if entry["output"] in objects and os.path.exists(os.path.join(ROOT, source)):
                found.setdefault(source, []).append([entry["output"], c_options(shlex.split(entry["command"]))])
    return found


def runtime(build, program):
    """The CUDA runtime that a program is linked with."""
    return next(word for word in shlex.split(said_by("ninja", "-C", build, "-t", "commands", program).splitlines()[-1])
                if word.endswith("libcudart_static.a"))


def commit_of(build):
    """The commit that the programs of a build name."""
    with open(os.path.join(build, "commit.c"), encoding="utf-8") as file:
        return re.search(r'hzp_commit.*"(.*)"', file.read()).group(1)


def describe(build, programs):
    """What links.json holds: how each object was made, and what each program consists of."""
    library = inputs(build, "libhzp.a")
    kernels = {f"device/cuda/{os.path.basename(o)[:-2]}": o for o in library if o.endswith(".cu.o")}
    if not kernels:
        sys.exit("run objects: this build has no CUDA")
    options = kernel_options(build, next(iter(kernels.values())))
    links, shared = {}, False
    for program in programs:
        needs = needed(os.path.join(build, program))
        if SHARED in needs:
            shared = True
            links[os.path.basename(program)] = None
        else:
            links[os.path.basename(program)] = {"objects": inputs(build, program), "needed": needs}
    if shared:
        links[SHARED] = {"objects": [], "needed": needed(f"{build}/tests/{SHARED}")}
    sources = {source: [[o, options]] for source, o in kernels.items()}
    sources.update(c_sources(build, set(library)))
    return {"commit": commit_of(build), "library": library, "programs": links, "sources": sources,
            "gpus": sorted(set(re.findall(r"code=sm_(\w+)", said_by("ninja", "-C", build, "-t", "commands", library[0])))),
            "hashes": {source: digest(os.path.join(ROOT, source)) for source in sources}}


def objects(build, out, programs):
    """Writes FILE.txz: objects without debug information, the CUDA runtime, and links.json."""
    build = os.path.abspath(build)
    with tempfile.TemporaryDirectory() as temporary:
        folder = temporary + "/objects"
        links = describe(build, programs)
        every = links["library"] + [o for link in links["programs"].values() if link for o in link["objects"]]
        for o in every:
            os.makedirs(os.path.dirname(os.path.join(folder, o)) or folder, exist_ok=True)
            shutil.copy(os.path.join(build, o), os.path.join(folder, o))
        subprocess.run(["strip", "--strip-debug", *every], cwd=folder, check=True)
        static = next(p for p in programs if links["programs"][os.path.basename(p)])
        shutil.copy(runtime(build, static), folder)
        with open(folder + "/links.json", "w", encoding="utf-8") as file:
            json.dump(links, file, indent=0)
        with tarfile.open(out, "w:xz", preset=1) as tar:
            tar.add(folder, arcname="objects")
    print(f"{out}: {os.path.getsize(out) / 2**20:.1f} MiB, {len(every)} objects")


# ---- relink: where the GPU is ----

def find_nvcc():
    places = [shutil.which("nvcc")] + [home + "/bin/nvcc" for home in libraries.toolkits()]
    found = next((p for p in places if p and os.access(p, os.X_OK)), None)
    if not found:
        sys.exit("run relink: there is no nvcc")
    return found


def find_cc():
    found = next((p for p in map(shutil.which, ("cc", "gcc", "clang", "g++")) if p), None)
    if not found:
        sys.exit("run relink: there is no C compiler, which links")
    return found


def this_gpu(gpus):
    """The GPU of this machine as the build names it: 9.0 is 90a if that is among its GPUs."""
    try:
        said = said_by("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", timeout=20).split()
    except (OSError, subprocess.SubprocessError):
        said = []
    digits = said[0].replace(".", "") if said else ""
    if not digits.isdigit():
        sys.exit("run relink: nvidia-smi does not say what GPU this is: --arch names it, such as 90a")
    return next((g for g in gpus if re.fullmatch(digits + "[a-z]?", g)), digits)


def known(name, sources):
    """The library's source that a file replaces: its path ends like that one's, or it is the only one of its name."""
    same = [s for s in sources if os.path.abspath(name).endswith("/" + s)]
    same = same or [s for s in sources if os.path.basename(s) == os.path.basename(name)]
    if len(same) != 1:
        sys.exit(f"run relink: {name}: the library has {len(same) or 'no'} source{'s' * (len(same) != 1)} of this name")
    return same[0]


def commands(files, links, folder, arch):
    """Yields object, command that makes it, and file with what the compiler says."""
    nvcc = find_nvcc()
    include = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
    for source, path in files.items():
        for o, options in links["sources"][source]:
            to = os.path.join(folder, o.replace("/", "_"))
            if source.endswith(".cu"):
                words = [nvcc, *options, "-gencode", f"arch=compute_{arch},code=sm_{arch}"]
            else:
                words = [find_cc(), *options, "-isystem", include]
            yield o, to, [*words, "-I" + ROOT, "-c", path, "-o", to]


def link_command(name, links, folder, made, out):
    """Links a program of the pack, or the shared form of the library, from objects and the pack's libraries."""
    link = links["programs"][name]
    def path(o):
        return made.get(o) or os.path.join(folder, "objects", o)
    with open(out + ".rsp", "w", encoding="utf-8") as file:
        file.write("\n".join(path(o) for o in link["objects"] + links["library"]))
    kind = ["-shared", "-Wl,-soname," + name] if name == SHARED else []
    libs = [f"{folder}/lib/{n}" for n in link["needed"] if os.path.exists(f"{folder}/lib/{n}")]
    return [find_cc(), *kind, "-o", out, "@" + out + ".rsp", "-Wl,--as-needed", "-s", f"-Wl,-rpath-link,{folder}/lib",
            "-Wl,--allow-shlib-undefined", "-pthread", *libs, f"{folder}/objects/libcudart_static.a", "-lm", "-ldl", "-lrt"]


def run_all(every, what):
    """Runs commands side by side; ends the program with the output of those that failed."""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda c: subprocess.run(c, capture_output=True, text=True, check=False), every))
    bad = [d for d in done if d.returncode]
    for d in bad:
        print(shlex.join(d.args), d.stdout + d.stderr, sep="\n", file=sys.stderr)
    if bad:
        sys.exit(f"run relink: {len(bad)} of {len(every)} failed, nothing was replaced")
    print(f"{what} in {time.monotonic() - begun:.1f} s", flush=True)
    return [d.stderr for d in done]


def replaced(folder):
    """Source -> hash of those that earlier calls have replaced."""
    state = folder + "/objects/changed.json"
    if not os.path.exists(state):
        return {}
    with open(state, encoding="utf-8") as file:
        return json.load(file)


def say_stale(folder, links, files):
    """Names sources of the tree that are neither as in the build nor given: a changed header needs all that include it."""
    changed = replaced(folder)
    stale = [source for source, mark in links["hashes"].items() if source not in files and
             os.path.exists(os.path.join(ROOT, source)) and
             digest(os.path.join(ROOT, source)) not in (mark, changed.get(source))]
    if stale:
        print(f"run relink: {len(stale)} more are not as in the build, and not compiled: {' '.join(stale[:8])}"
              + " ..." * (len(stale) > 8), file=sys.stderr)


def remember(folder, links, files):
    """FOLDER/commit: the build's, and each source that is not as in the build."""
    state, changed = folder + "/objects/changed.json", replaced(folder)
    for source, path in files.items():
        changed[source] = digest(path)
        if changed[source] == links["hashes"][source]:
            del changed[source]
    with open(state, "w", encoding="utf-8") as file:
        json.dump(changed, file)
    with open(folder + "/commit", encoding="utf-8") as file:
        commit = file.read().strip().split("+")[0]
    said = "".join(f"+{os.path.basename(source)}:{mark}" for source, mark in sorted(changed.items()))
    with open(folder + "/commit", "w", encoding="utf-8") as file:
        file.write(commit + said + "\n")
    return commit + said


def targets(names, links, folder):
    """The files to link for the programs named, and where they lie; all of the pack's if none is."""
    chosen = names.split(",") if names else [n for n in links["programs"] if os.path.exists(f"{folder}/{n}")]
    for name in chosen:
        if name not in links["programs"] or name == SHARED:
            sys.exit(f"run relink: {name}: these are there: {' '.join(n for n in links['programs'] if n != SHARED)}")
    files = {SHARED if links["programs"][name] is None else name for name in chosen}
    return {name: os.path.join(folder, "lib" * (name == SHARED), name) for name in sorted(files)}


def opened(folder):
    """links.json of a folder that has both a pack and its objects."""
    for part, what in (("objects/links.json", "FILE.txz of run objects"), ("lib", "a pack")):
        if not os.path.exists(f"{folder}/{part}"):
            sys.exit(f"run relink: {folder} has no {part}: {what} is not unpacked there")
    with open(folder + "/objects/links.json", encoding="utf-8") as file:
        links = json.load(file)
    with open(folder + "/hzpserve", "rb") as file:
        if links["commit"].encode() not in file.read():
            sys.exit(f"run relink: the objects are of commit {links['commit']}, the pack is not")
    return links


def relink(folder, names, programs="", arch=""):
    begun, folder = time.monotonic(), os.path.abspath(folder)
    if not os.path.exists(ROOT + "/device/cuda"):
        sys.exit(f"run relink: {ROOT} is not the tree: use dev/gpu/run of the tree, not the pack's")
    links = opened(folder)
    files = {}
    for name in names:
        if not os.path.exists(name):
            sys.exit(f"run relink: {name} is not there")
        files[known(name, links["sources"])] = name
    if any(source.endswith(".cu") for source in files):
        arch = arch or this_gpu(links["gpus"])
    to_link = targets(programs, links, folder)
    say_stale(folder, links, files)
    with tempfile.TemporaryDirectory(dir=folder) as new:
        plan = list(commands(files, links, new, arch))
        reports = run_all([command for _, _, command in plan], f"{len(plan)} compiled")
        made = {o: path for o, path, _ in plan}
        run_all([link_command(name, links, folder, made, f"{new}/{name}") for name in to_link], f"{len(to_link)} linked")
        for (o, path, _), report in zip(plan, reports):
            os.replace(path, f"{folder}/objects/{o}")
            with open(f"{folder}/objects/{o}.said", "w", encoding="utf-8") as file:
                file.write(report)
        for name, path in to_link.items():
            os.replace(f"{new}/{name}", path)
    print(f"{' '.join(to_link)}: {remember(folder, links, files)}, {time.monotonic() - begun:.1f} s in all")
    return 0


def main(words):
    """words: of the command line, behind `relink`."""
    parser = argparse.ArgumentParser(prog="run relink", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--programs", default="")
    parser.add_argument("--arch", default="")
    given = parser.parse_args(words)
    return relink(given.folder, given.sources, given.programs, given.arch)

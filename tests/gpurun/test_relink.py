#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Test of dev/gpu/run's objects and relink: changed sources get into the programs of an unpacked pack.

    test_relink.py BUILD RUN

Needs nvcc, no GPU; skipped (77) without it.  The compiler that links is watched: nothing may come from the build.
"""
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

BUILD, RUN = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
ROOT = pathlib.Path(RUN).parents[2]
ENV = dict(os.environ, HZP_LOG="warn")
MIB = 2**20
MARK = "kernels, a first try"
MARKED = "extern char hzp_tried[];\nchar hzp_tried[] = \"" + MARK + "\";\n"


def check(fine, what):
    if not fine:
        sys.exit(f"FAIL: {what}")


def call(*args, status=0):
    done = subprocess.run([sys.executable, "-B", RUN, *args], capture_output=True, text=True, check=False, env=ENV)
    check(done.returncode == status, f"run {' '.join(args)}: {done.returncode}, {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def watched(folder):
    """A cc that logs every word that it is given, and what its response files hold."""
    log, real = folder + "/cc.log", shutil.which("cc")
    os.makedirs(folder + "/bin")
    with open(folder + "/bin/cc", "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nfor w in "$@"; do case $w in @*) cat "${{w#@}}"; echo;; *) echo "$w";; esac; done >> {log}\n'
                   f'PATH={os.environ["PATH"]} exec {real} "$@"\n')  # it may be ccache, which looks for the next cc
    os.chmod(folder + "/bin/cc", 0o755)
    ENV["PATH"] = folder + "/bin:" + os.environ["PATH"]
    return log


def unpacked(folder):
    """What a pack with one program of each kind unpacks to, and objects: that packs work, test_run.py tests."""
    there, objects, packed = folder + "/there", folder + "/objects.txz", folder + "/pack.txz"
    loader = importlib.machinery.SourceFileLoader("gpu_run", RUN)
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
    loader.exec_module(run)
    run.PROGRAMS = ["tests/opcheck/opcheck", "hzpserve"]
    run.fill(there, BUILD, run.relink.commit_of(BUILD))
    with open(packed, "wb") as file:
        file.truncate(60 * MIB)
    told = call("objects", BUILD, objects, packed, status=1)
    size = os.path.getsize(objects)
    check(size <= 8 * MIB, f"objects of {size / MIB:.1f} MiB do not fit beside a pack and the tree")
    check(f"60.0 MiB of pack + {size / MIB:.1f} MiB of objects" in told, f"refused with: {told}")
    with tarfile.open(objects) as tar:
        tar.extractall(there)
    return there


def changed(folder, source, text):
    """A copy of a source of the tree with more text at its end."""
    os.makedirs(folder + "/copy", exist_ok=True)
    path = f"{folder}/copy/{os.path.basename(source)}"
    with open(ROOT / source, encoding="utf-8") as old, open(path, "w", encoding="utf-8") as new:
        new.write(old.read() + text)
    return path


def has(path, text):
    return text.encode() in pathlib.Path(path).read_bytes()


def state(there):
    """Hashes of all that a relink may replace."""
    files = [there + "/hzpserve", there + "/commit", *sorted(map(str, pathlib.Path(there, "lib").iterdir())),
             *sorted(str(p) for p in pathlib.Path(there, "objects").rglob("*.o"))]
    return {file: hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in files}


def output(there, program, *args):
    done = subprocess.run([f"{there}/{program}", *args], capture_output=True, text=True, check=False,
                          env=dict(ENV, LD_LIBRARY_PATH=there + "/lib"))
    check(done.returncode == 0, f"{program}: {done.returncode}, {done.stdout}{done.stderr}")
    return "".join(c for c in done.stdout if not c.isdigit())  # figures differ from run to run


def outputs(there):
    """What both kinds of programs print: linked with the library itself, and with its shared form."""
    return (output(there, "hzpserve", "devices"), output(there, "opcheck", "--backend=cpu", "--op=rmsnorm"),
            output(there, "hzpserve", "complete", there + "/world", "Where does Zorin live?", "--device", "cpu",
                   "--temperature", "0", "--max-tokens", "8"))


def needs(path):
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return sorted(line.split("[")[1] for line in said.splitlines() if "(NEEDED)" in line or "(SONAME)" in line)


def kernels_get_in(folder, there, log):
    before, linked = outputs(there), [there + "/hzpserve", there + "/lib/libhzp_tests.so"]
    wanted = [needs(path) for path in linked]
    source = changed(folder, "device/cuda/link_sum.cu", MARKED)
    check(not any(has(path, MARK) for path in linked), "the mark is there before the change")
    said = call("relink", there, source, "--programs", "hzpserve,opcheck", "--arch", "90a")
    check("+link_sum.cu:" in said and "s in all" in said and "not compiled" not in said, said)
    check(all(has(path, MARK) for path in linked), "the changed kernels are not in the programs")
    check(outputs(there) == before, f"not as before: {outputs(there)}, {before}")
    check([needs(path) for path in linked] == wanted, "other libraries are needed than before")
    words = pathlib.Path(log).read_text(encoding="utf-8")
    check("link_sum.cu.o" in words and BUILD not in words, "linked from the build, not from what was brought")


def c_sources_get_in(folder, there):
    """A second source, which keeps the first change; its caller sees both.  One that the tree has otherwise than the
    build had is named, because a header that it includes may differ."""
    path = pathlib.Path(there, "objects/links.json")
    links = path.read_text(encoding="utf-8")
    other = json.loads(links)
    other["hashes"]["device/cuda/plain.cu"] = "00000000"
    path.write_text(json.dumps(other), encoding="utf-8")
    source = changed(folder, "device/cuda/nvml.c", "extern const char hzp_tried_too[];\n"
                     "const char hzp_tried_too[] = \"and C\";\n")
    told = call("relink", there, source, "--programs", "hzpserve")
    check("1 more are not as in the build, and not compiled: device/cuda/plain.cu" in told, told)
    path.write_text(links, encoding="utf-8")
    check(has(there + "/hzpserve", "and C") and has(there + "/hzpserve", MARK), "one change displaced the other")
    commit = pathlib.Path(there, "commit").read_text(encoding="utf-8")
    check(commit.count("+") == 2 and "+nvml.c:" in commit, f"two sources are changed: {commit}")


def errors_replace_nothing(folder, there):
    before = state(there)
    for source, args, status, said in (
            (changed(folder, "device/cuda/link_sum.cu", "int broken(\n"), ["--arch", "90a"], 1, "nothing was replaced"),
            (changed(folder, "device/cuda/link_sum.cu", "extern \"C\" void hzp_nobody(void);\nextern \"C\" void "
                     "hzp_tried_it(void) { hzp_nobody(); }\n"), ["--arch", "90a", "--programs", "hzpserve"], 1, "hzp_nobody"),
            (RUN, [], 1, "has no source"), (changed(folder, "device/cuda/lane.c", ""), [], 1, "has 2 sources"), (folder + "/none.cu", [], 1, "is not there"),
            (str(ROOT / "device/cuda/plain.cu"), ["--programs", "nothing", "--arch", "90a"], 1, "nothing: these are there")):
        told = call("relink", there, source, *args, status=status)
        check(said in told, f"{source}: {told}")
        check(state(there) == before, f"{source}: something was replaced")
    check("is not unpacked there" in call("relink", folder, str(ROOT / "device/cuda/plain.cu"), status=1), "no pack")
    broken = folder + "/other"
    os.makedirs(broken)
    for name in ("lib", "objects"):
        os.symlink(f"{there}/{name}", f"{broken}/{name}")
    shutil.copy(sys.executable, broken + "/hzpserve")
    told = call("relink", broken, str(ROOT / "device/cuda/plain.cu"), status=1)
    check("the pack is not" in told, f"a pack of another commit: {told}")


def and_out_again(there):
    call("relink", there, str(ROOT / "device/cuda/link_sum.cu"), str(ROOT / "device/cuda/nvml.c"), "--programs",
         "hzpserve,opcheck", "--arch", "90a")
    check(not has(there + "/hzpserve", MARK) and not has(there + "/hzpserve", "and C"), "a change that was taken back")
    check("+" not in pathlib.Path(there, "commit").read_text(encoding="utf-8"), "the commit says that it is there")


def main():
    sys.path.insert(0, os.path.dirname(RUN))
    sys.dont_write_bytecode = True
    import libraries
    if not (shutil.which("nvcc") or any(os.access(home + "/bin/nvcc", os.X_OK) for home in libraries.toolkits())):
        print("skip: there is no nvcc")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        log, there = watched(folder), unpacked(folder)
        kernels_get_in(folder, there, log)
        c_sources_get_in(folder, there)
        errors_replace_nothing(folder, there)
        and_out_again(there)
    print("ok")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the emulated opcheck, and reports the kernels that no case launched.

    coverage.py SOURCE_ROOT OPCHECK_EMU [--also=PROGRAM] [ARGUMENT...]

PROGRAM is a test on the emulator, of kernels that no op launches; what it launches counts too.

A kernel is a function of the program (each instance of a template is one) that a .cu file declares
__global__.  The exit status is opcheck's; a kernel that was never launched is a failure.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def kernel_names(root):
    names = set()
    for path in (root / "device/cuda").glob("*.cu"):
        text = path.read_text()
        for match in re.finditer(r"__global__ void ", text):
            rest = text[match.end():]
            if rest.startswith("__launch_bounds__"):
                rest = re.sub(r"^__launch_bounds__\([^)]*\)\s*", "", rest)
            names.add(re.match(r"\w+", rest).group())
    return names


def kernels(root, program):
    """{address: name} of the program's functions that are kernels."""
    names, found = kernel_names(root), {}
    listing = subprocess.run(["nm", "-C", program], text=True, capture_output=True, check=True).stdout
    for line in listing.splitlines():
        match = re.match(r"([0-9a-f]+) [tT] (?:void )?((\w+)[<(].*)", line)
        if match and match.group(3) in names and "::{lambda" not in match.group(2):
            found[int(match.group(1), 16)] = match.group(2)
    return found


def run_also(root, program):
    """The exit status of a further test, and the names of the kernels that it launched."""
    with tempfile.NamedTemporaryFile("r") as notes:
        done = subprocess.run([program], env=dict(os.environ, HZP_EMU_KERNELS=notes.name))
        launched = {int(line, 16) for line in notes}
    return done.returncode, {name for address, name in kernels(root, program).items() if address in launched}


def main():
    root, program, arguments = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    also = [a.split("=", 1)[1] for a in arguments if a.startswith("--also=")]
    arguments = [a for a in arguments if not a.startswith("--also=")]
    with tempfile.NamedTemporaryFile("r") as notes:
        environment = dict(os.environ, HZP_EMU_KERNELS=notes.name)
        code = subprocess.run([program, *arguments], env=environment).returncode
        # Kernels that only lanes with a share launch.
        code |= subprocess.run([program, *arguments, "--share=1", "--op=attn_decode"],
                               env=dict(environment, HZP_CUDA_LANES="grid")).returncode
        # Used where there is no tensor copy engine.
        code |= subprocess.run([program, *arguments, "--op=attn_decode"],
                               env=dict(environment, HZP_CUDA_BULK="0")).returncode
        # Used where no instruction widens e4m3.
        code |= subprocess.run([program, *arguments, "--op=matmul"],
                               env=dict(environment, HZP_EMU_SM80="1")).returncode
        launched = {int(line, 16) for line in notes}
    known = kernels(root, program)
    elsewhere = set()
    for test in also:
        status, names = run_also(root, test)
        code |= status
        elsewhere |= names
    missing = sorted(name for address, name in known.items()
                     if address not in launched and name not in elsewhere)
    for name in missing:
        print("never launched:", name)
    print(f"{len(known) - len(missing)} of {len(known)} kernels launched")
    return code or (1 if missing or not known else 0)


if __name__ == "__main__":
    sys.exit(main())

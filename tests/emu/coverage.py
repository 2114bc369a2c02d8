#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the emulated opcheck, and reports the kernels that no case launched.

    coverage.py SOURCE_ROOT OPCHECK_EMU [ARGUMENT...]

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


def main():
    root, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    with tempfile.NamedTemporaryFile("r") as notes:
        environment = dict(os.environ, HZP_EMU_KERNELS=notes.name)
        code = subprocess.run([program, *sys.argv[3:]], env=environment).returncode
        # Kernels that only lanes with a share launch.
        code |= subprocess.run([program, *sys.argv[3:], "--share=1", "--op=attn_decode"],
                               env=dict(environment, HZP_CUDA_LANES="grid")).returncode
        # Used where no instruction widens e4m3.
        code |= subprocess.run([program, *sys.argv[3:], "--op=matmul"],
                               env=dict(environment, HZP_EMU_SM80="1")).returncode
        launched = {int(line, 16) for line in notes}
    known = kernels(root, program)
    missing = sorted(name for address, name in known.items() if address not in launched)
    for name in missing:
        print("never launched:", name)
    print(f"{len(known) - len(missing)} of {len(known)} kernels launched")
    return code or (1 if missing or not known else 0)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Finds the libraries that are loaded at run time.

In this order: the file that a variable names (HZP_CUBLASLT, HZP_CUDNN, HZP_NCCL), the toolkit (CUDA_HOME,
the one nvcc belongs to, /usr/local/cuda*), the linker's cache, the wheels of the Python that runs this.
"""
import glob
import os
import shutil
import subprocess
import sys


def toolkits():
    found = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        found.append(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))))
    return found + sorted(glob.glob("/usr/local/cuda*"), reverse=True)


def of_linker(name):
    """Path of a library in the linker's cache; None: it has no such library."""
    try:
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, timeout=20,
                                check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    for line in listed.splitlines():
        if line.strip().startswith(name + ".so.") and " => " in line:
            return line.split(" => ")[1].strip()
    return None


def find(variable, name, versions):
    """Path of the first lib`name`.so found with one of these major versions; None: not found."""
    own = os.environ.get(variable)
    if own:
        return own if os.path.exists(own) else None
    files = [f"lib{name}.so.{version}" for version in versions]
    for home in toolkits():
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
            for file in files:
                if os.path.exists(os.path.join(home, folder, file)):
                    return os.path.join(home, folder, file)
    known = of_linker("lib" + name)
    if known and any(file in os.path.basename(known) for file in files):
        return known
    for root in sys.path:
        for file in files:
            wheels = sorted(glob.glob(os.path.join(root, "nvidia", "*", "lib", file)))
            if wheels:
                return wheels[0]
    return None


def cublaslt():
    return find("HZP_CUBLASLT", "cublasLt", (13, 12))


def cudnn():
    return find("HZP_CUDNN", "cudnn", (9,))


def nccl():
    return find("HZP_NCCL", "nccl", (2,))


def own_path():
    """LD_LIBRARY_PATH without the folders that hold a cuDNN: PyTorch brings the one that it was built with, and refuses
    another that comes first."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return ":".join(f for f in folders if f and not glob.glob(os.path.join(f, "libcudnn.so*")))


def sanitizer():
    """Path of compute-sanitizer; None: this machine has none."""
    found = shutil.which("compute-sanitizer")
    for home in toolkits():
        for place in ("bin", "compute-sanitizer"):
            file = os.path.join(home, place, "compute-sanitizer")
            if not found and os.access(file, os.X_OK):
                found = file
    return found

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a program as several ranks that are connected by ZeroMQ, with the variables that torchrun sets.

    run_zmq.py RANKS folder|tcp PROGRAM ARGS...

Exits with 1 if a rank does, or is killed by a signal that it did not send itself.
"""
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile

ranks, how, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


def free_port():
    """Below the ports that the system gives to connections."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as one:
            try:
                one.bind(("", port))
                return port
            except OSError:
                continue


with tempfile.TemporaryDirectory(prefix="hzp-") as folder:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    env.update(WORLD_SIZE=str(ranks), HZP_LINK_ZMQ="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port() - 1))
    if how == "folder":
        env["HZP_RANKS_DIR"] = folder
    else:
        env["HZP_RANKS_KEY"] = os.urandom(32).hex()
    started = [subprocess.Popen(command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)]
    codes = [one.wait() for one in started]
    if "die" in command:
        assert codes.pop() == -signal.SIGKILL
    sys.exit(any(codes))

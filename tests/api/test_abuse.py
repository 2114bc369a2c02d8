#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small requests beside each abuse of a server that dev/abuse.py has: 99 of 100 are answered within 50 ms.

    test_abuse.py HZPSERVE MODEL_DIR [ABUSE ...]

On a machine that is slow or busy they may take ten times what they take there with nothing beside them, if that is
more; and of some rounds the best counts.  What holds requests up for seconds does so in every round: several clients
ask at a time, so that it is more than one request in a hundred.
"""
import importlib.util
import pathlib
import signal
import sys
import threading
import time

LIMIT_MS, ROUNDS, CLIENTS, REQUESTS = 50, 5, 8, 40
place = pathlib.Path(__file__).parents[2] / "dev" / "abuse.py"
spec = importlib.util.spec_from_file_location("abuse", place)
abuse = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abuse)


def p99(server):
    """Of small requests by some clients at a time, in milliseconds."""
    times = []

    def client():
        for _ in range(REQUESTS):
            times.append(server.small())
    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert len(times) == CLIENTS * REQUESTS, "a small request failed"
    return sorted(times)[len(times) * 99 // 100]


def beside(binary, model, start):
    """The p99 beside what start(server, limit) begins, and its limit."""
    server = abuse.Server(binary, model, [])
    try:
        limit = max(LIMIT_MS, 10 * p99(server))
        held = start(server, limit)
        found = p99(server)
        for s in held:
            s.close()
        return found, limit
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.close()


def stand_still(server, limit):
    """What has to be noticed: the server does nothing for a while."""
    server.process.send_signal(signal.SIGSTOP)

    def go_on():
        time.sleep(2 * limit / 1e3)
        server.process.send_signal(signal.SIGCONT)
    threading.Thread(target=go_on).start()
    return []


def main():
    binary, model, *chosen = sys.argv[1:]
    found, limit = beside(binary, model, stand_still)
    assert found > limit, f"a server that stands still was not noticed: {found} ms, {limit} ms"
    for name in chosen or abuse.ABUSES:
        for _ in range(ROUNDS):
            found, limit = beside(binary, model, lambda server, _, name=name: abuse.ABUSES[name](server))
            print(f"{name:30} p99 {found:8.1f} ms, at most {limit:.0f}", flush=True)
            if found <= limit:
                break
        else:
            sys.exit(f"{name}: small requests are held up")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What requests may hold: each abuse beside small requests, which go on; and all of it is given back.

    test_bounds.py HZPSERVE MODEL_DIR [TEST ...]

No test depends on the machine's speed: what counts is the order of answers, and what the server says it holds.
How long small requests take beside each abuse: dev/abuse.py.
"""
import json
import re
import sys

import test_limits
from test_limits import Server, drain, until


def post(server, path, body):
    """Sends a request; the connection it waits on."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    s = server.connect()
    s.sendall(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
              b"Content-Type: application/json\r\nContent-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data)
    return s


def answer(s):
    """Status and body of what was sent."""
    head, _, body = drain(s).partition(b"\r\n\r\n")
    s.close()
    return int(head.split()[1]), body


def small(server, **fields):
    return answer(post(server, "/v1/completions", {"prompt": "Once", "max_tokens": 2, **fields}))[0]


def gauge(server, name):
    return float(re.search(rf"^{name}\S* (\S+)", server.get("/metrics")[1], re.M)[1])


def nothing_held(server):
    until(lambda: gauge(server, "hzpserve_body_bytes") == 0 and gauge(server, "hzpserve_grammars_in_work") == 0)


# ---- grammars ----

def large(i):
    """Names of six kinds, none of which is of another: many states while the names are divided."""
    patterns = {f"^{c}(e|f)*e(e|f){{10}}{i}$": {"type": "null"} for c in "uvwxyz"}
    return {"prompt": "a", "max_tokens": 2, "structured_outputs": {
        "json": {"type": "object", "patternProperties": patterns, "additionalProperties": False}}}


def test_large_grammars():
    """More large grammars than there are threads: requests without one, with a small one, and /metrics are
    answered while they are being made."""
    with Server() as server:
        waiting = [post(server, "/v1/completions", large(i)) for i in range(16)]
        until(lambda: gauge(server, "hzpserve_grammars_in_work") >= 12)
        for i in range(4):
            assert small(server) == 200
            assert small(server, structured_outputs={"regex": f"a{{{i + 1}}}"}) == 200
        assert gauge(server, "hzpserve_grammars_in_work") >= 1, "the small ones waited for the large ones"
        for s in waiting:
            assert answer(s)[0] == 200
        nothing_held(server)


def test_grammars_of_clients_that_left():
    """Of clients that have left no grammar is made, and what waits behind them comes at once."""
    with Server() as server:
        waiting = [post(server, "/v1/completions", large(i)) for i in range(40)]
        until(lambda: gauge(server, "hzpserve_grammars_in_work") >= 30)
        for s in waiting[:-1]:
            s.close()
        until(lambda: gauge(server, "hzpserve_grammars_in_work") <= 1)
        assert answer(waiting[-1])[0] == 200
        assert gauge(server, "hzpserve_grammars_made_total") < 30, "they were made for nobody"
        nothing_held(server)


def main():
    test_limits.BINARY, test_limits.MODEL = sys.argv[1:3]
    chosen = sys.argv[3:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and callable(test) and (not chosen or name in chosen):
            test()
            print(f"ok {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What requests may hold: each abuse beside small requests, which go on; and all of it is given back.

    test_bounds.py HZPSERVE MODEL_DIR [TEST ...]

No test depends on the machine's speed: what counts is the order of answers, and what the server says it holds.
How long small requests take beside each abuse: test_abuse.py, dev/abuse.py.
"""
import json
import pathlib
import re
import select
import sys
import tempfile
import time

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
        waiting = [post(server, "/v1/completions", large(i)) for i in range(8)]
        until(lambda: gauge(server, "hzpserve_grammars_in_work") >= 6)
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


# ---- long texts ----

LONG = "a b c d e " * 800000  # 8 MB, nearly as many tokens


def peak_mb(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def unanswered(waiting):
    return len(waiting) - len(select.select(waiting, [], [], 0)[0])


def beside(server, waiting):
    """Small requests are answered while these wait."""
    for _ in range(4):
        assert small(server) == 200
    assert server.get("/health")[0] == 200
    assert unanswered(waiting) >= 1, "the small ones waited for the long ones"


def test_texts_that_are_too_long():
    """A prompt far beyond the context is refused without tokens for all of it being made; bad words too."""
    with Server("--max-body", "16M,memory=128M") as server:
        assert small(server) == 200
        before = peak_mb(server)
        for path, body in (("/v1/completions", {"prompt": LONG}),
                           ("/v1/completions", {"prompt": ["Once", LONG]}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 100000}),
                           ("/v1/embeddings", {"input": LONG}),
                           ("/v1/score", {"template": "{text}", "text": [LONG, "x"], "words": ["a", "b"]}),
                           ("/v1/completions", {"prompt": "Once", "bad_words": [LONG]})):
            status, got = answer(post(server, path, body))
            assert status == 400, (path, got[:300])
            code = json.loads(got)["error"]["code"]
            assert code == (None if "bad_words" in body else "context_length_exceeded"), got[:300]
        grown = peak_mb(server) - before
        assert grown < 100, f"{grown} MB for texts of 8 MB"  # with all tokens: 150 and more
        nothing_held(server)


def test_memory_of_answers():
    """Answers count: what does not fit into memory= is refused, however many ask; the rest is answered whole."""
    with Server("--max-body", "16M,memory=160M") as server:
        assert small(server) == 200
        before = peak_mb(server)
        body = json.dumps({"prompt": LONG[:4000000], "return_token_strs": True}).encode()
        waiting = [post(server, "/tokenize", body) for _ in range(6)]
        beside(server, waiting)
        got = [answer(s) for s in waiting]
        assert {status for status, _ in got} <= {200, 503}, [status for status, _ in got]
        whole = [json.loads(b) for status, b in got if status == 200]
        assert whole and all(w["count"] == len(w["tokens"]) == len(w["token_strs"]) for w in whole)
        waiting = [post(server, "/detokenize", {"tokens": whole[0]["tokens"][:500000]}) for _ in range(6)]
        got = [answer(s) for s in waiting]
        assert {status for status, _ in got} <= {200, 503}, [status for status, _ in got]
        grown = peak_mb(server) - before
        assert grown < 240, f"{grown} MB, although 160 MB are allowed"
        nothing_held(server)


def test_memory_of_what_runs():
    """What waits and runs counts from when it is accepted, and is given back, read or not."""
    with Server("--max-body", "1M,memory=2M", "--max-waiting", "1000") as server:
        asks = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "n": 30, "logprobs": 5}
        waiting = [post(server, "/v1/completions", asks) for _ in range(6)]
        refused = []
        until(lambda: refused.extend(s for s in select.select(waiting, [], [], 0)[0] if s not in refused)
              or refused)
        status, got = answer(refused[0])
        assert status == 503 and b'"overloaded"' in got, got[:300]
        assert 0 < gauge(server, "hzpserve_body_bytes") <= 2 << 20
        for s in waiting:
            s.close()
        nothing_held(server)
        assert small(server) == 200


# ---- weights that do not come ----

def test_weights_that_do_not_come():
    """Requests that wait for a version take no place of those that could run."""
    with tempfile.TemporaryDirectory() as state, Server(
            "--max-waiting", "4", "--max-running", "2", "--weights-timeout", "86400", learns=state) as server:
        asks = {"prompt": "Once", "max_tokens": 2, "min_version": 9, "weights_timeout": 86400}
        waiting = [post(server, "/v1/completions", asks) for _ in range(4)]
        until(lambda: gauge(server, "hzpserve_requests_waiting_for_weights") == 4)
        for _ in range(3):
            assert small(server, n=4) == 200
        status, got = answer(post(server, "/v1/completions", asks))
        assert status == 429 and b"rate_limit_exceeded" in got, got
        assert unanswered(waiting) == 4
        for s in waiting:
            s.close()
        until(lambda: gauge(server, "hzpserve_requests_waiting_for_weights") == 0)
        nothing_held(server)


def main():
    test_limits.BINARY, test_limits.MODEL = sys.argv[1:3]
    chosen = sys.argv[3:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and callable(test) and (not chosen or name in chosen):
            begin = time.monotonic()
            test()
            print(f"ok {name} {time.monotonic() - begin:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

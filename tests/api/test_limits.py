#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Connections beyond the limits: who is answered, who is refused, who has to make way.

    test_limits.py HZPSERVE MODEL_DIR [TEST ...]
"""
import json
import pathlib
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is


class Server:
    def __init__(self, *options, files=None, learns=None):
        """learns: a directory for its state; None: it does not learn."""
        state = ["--state", learns] if learns else ["--state", "none", "--no-train"]
        self.options, self.files = [*state, *options], files

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))) \
            if self.files else None
        self.process = subprocess.Popen(
            [BINARY, "serve", MODEL, "--port", "0", *self.options],
            stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=limit)
        for line in self.process.stdout:
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            self.log.seek(0)
            raise AssertionError("the server did not start: " + self.log.read())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(HANG) == 0, f"exit status {self.process.returncode}"

    def connect(self, address="127.0.0.1"):
        return socket.create_connection((address, self.port), timeout=HANG)

    def raw(self, data, address="127.0.0.1"):
        """Sends bytes; what is received until the server closes."""
        with self.connect(address) as s:
            s.sendall(data)
            return drain(s)

    def get(self, path, address="127.0.0.1"):
        got = self.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), address)
        assert got, f"{path}: closed without an answer"
        head, _, body = got.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def said(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()


def drain(s):
    got = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return got
        if not piece:
            return got
        got += piece


def until(condition, seconds=HANG):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)


def completion(**fields):
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, **fields}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)


def closed(s):
    s.setblocking(False)
    try:
        return s.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        s.settimeout(HANG)


def test_slow_headers_do_not_shut_others_out():
    """More connections than there are places, each with an unfinished header: all others are served."""
    with Server("--max-connections", "8") as server:
        slow = []
        for i in range(60):
            s = server.connect()
            s.sendall(b"GET /health HTTP/1.1\r\nX: ")
            slow.append(s)
        for _ in range(20):
            for s in slow[-8:]:  # the newest go on, a byte at a time
                try:
                    s.sendall(b"x")
                except OSError:
                    pass
            assert server.get("/health")[0] == 200
            assert server.get("/metrics")[0] == 200
        assert server.raw(completion(max_tokens=2).replace(b"Content-Type", b"Connection: close\r\nContent-Type")) \
            .startswith(b"HTTP/1.1 200")
        until(lambda: sum(closed(s) for s in slow) >= 60 - 8 - 16)
        for s in slow:
            s.close()


def test_a_header_has_a_deadline():
    """A header that grows byte by byte is not waited for without end, nor is such a body."""
    with Server("--idle-timeout", "2,body=3") as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for start in (b"GET /health HTTP/1.1\r\nX: ", head + b"Content-Length: 100000\r\n\r\n"):
            with server.connect() as s:
                s.sendall(start)
                begin = time.monotonic()
                while not closed(s):
                    assert time.monotonic() - begin < HANG, "the connection is still kept"
                    try:
                        s.sendall(b" ")
                    except OSError:
                        break
                    time.sleep(0.1)


def test_full_of_answers():
    """All places taken by running requests: health and metrics are answered, others get a 429."""
    with Server("--max-connections", "4", "--max-running", "1") as server:
        busy = []
        for _ in range(4):
            s = server.connect()
            s.sendall(completion(n=60))
            busy.append(s)
        page = lambda: server.get("/metrics")[1]
        until(lambda: 'vllm:request_params_n_count' in page()
              and re.search(r"^vllm:request_params_n_count\S* 4", page(), re.M))
        assert server.get("/health")[0] == 200
        got = server.raw(completion().replace(b"Host", b"Connection: close\r\nHost"))
        assert got.startswith(b"HTTP/1.1 429 ") and b"rate_limit_exceeded" in got, got
        for s in busy:
            s.close()
        until(lambda: re.search(r"^vllm:num_requests_running\S* 0", page(), re.M))


def own_address():
    """An address of this machine that is not loopback; None: there is none.  Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # for documentation: what leads there is what leads anywhere
        except OSError:
            return None
        address = s.getsockname()[0]
    return None if address.startswith("127.") else address


def test_limit_for_an_address():
    """The fourth connection of an address is answered 429; other addresses, and loopback, have places."""
    address = own_address()
    if not address:
        print("skip: no address but loopback")
        return
    with Server("--host", "0.0.0.0", "--no-auth", "--max-connections", "512,per-address=3") as server:
        held = [server.connect(address) for _ in range(3)]
        got = server.raw(b"", address)  # answered before anything is sent
        assert got.startswith(b"HTTP/1.1 429 ") and b"rate_limit_exceeded" in got, got
        assert re.search(r"^hzpserve_connections_refused_total\S* 1$", server.get("/metrics")[1], re.M)
        local = [server.connect() for _ in range(5)]
        assert server.get("/health")[0] == 200
        held.pop().close()
        until(lambda: server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                                 address).startswith(b"HTTP/1.1 200 "))
        for s in held + local:
            s.close()


def test_no_place_at_all():
    """Also the reserved places are taken by answers: a 503 that can be read, not a reset."""
    with Server("--max-connections", "1") as server:
        busy = []
        for _ in range(60):  # bodies that have begun to arrive
            s = server.connect()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                      b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
            busy.append(s)
        until(lambda: len(select.select(busy, [], [], 0)[0]) >= 60 - 1 - 16)
        got = [drain(s) for s in select.select(busy, [], [], 0)[0]]
        refused = [g for g in got if g]  # what has made way for another was closed
        assert refused and all(g.startswith(b"HTTP/1.1 503 ") and b'"overloaded"' in g
                               for g in refused), got
        for s in busy:
            s.close()
        until(lambda: server.get("/health")[0] == 200)


def test_out_of_descriptors():
    """Without a descriptor left, connections wait and the server does not spin."""
    with Server("--max-connections", "1000", files=120) as server:
        assert "descriptors" in server.said(), "no word about the limit at start"
        held = [server.connect() for _ in range(150)]
        cpu = lambda: sum(map(int, pathlib.Path(f"/proc/{server.process.pid}/stat").read_text()
                              .rpartition(")")[2].split()[11:13]))
        until(lambda: "--max-connections" in server.said())
        before = cpu()
        time.sleep(1)
        assert cpu() - before < 30, "hundredths of a second of processor time in one second"
        for s in held:
            s.close()
        until(lambda: server.get("/health")[0] == 200)


def test_clients_that_do_not_read():
    """A stream that is not read is ended after --idle-timeout; its request is cancelled."""
    with Server("--idle-timeout", "1", "--max-running", "4") as server:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", server.port))
            s.sendall(completion(n=120, stream=True, logprobs=20))
            # Sequences of one length end together: none may run while others wait.
            left = lambda: sum(map(float, re.findall(r"^vllm:num_requests_(?:running|waiting)\S* (\S+)",
                                                     server.get("/metrics")[1], re.M)))
            until(lambda: left() > 0)
            until(lambda: left() == 0)
            s.settimeout(HANG)
            assert not drain(s).endswith(b"0\r\n\r\n")
            assert re.search(r'finished_reason="abort"} [1-9]', server.get("/metrics")[1])


def test_tokens_in_vain():
    """Behind a stop string, and for a client that has left, a few more steps are computed, whatever
    max_tokens says; also while others stream, whose tokens are joined."""
    with Server("--max-running", "24", "--stream-join-ms", "1000") as server:
        def number(name):
            return float(re.search(rf"^vllm:{name}{{\S* (\S+)", server.get("/metrics")[1], re.M)[1])

        def in_vain():
            """Tokens that were computed and are no part of an answer."""
            return number("generation_tokens_total") - number("request_generation_tokens_sum")

        def finished():
            return number("request_generation_tokens_count")
        text = json.loads(server.raw(completion(temperature=0, max_tokens=60).replace(
            b"Host", b"Connection: close\r\nHost")).partition(b"\r\n\r\n")[2])["choices"][0]["text"]
        stop = text[40:46]
        assert in_vain() == 0
        others = [server.connect() for _ in range(12)]
        for s in others:
            s.sendall(completion(stream=True))
            threading.Thread(target=drain, args=(s,), daemon=True).start()
        for _ in range(16):
            got = server.raw(completion(stream=True, temperature=0, stop=[stop]).replace(
                b"Host", b"Connection: close\r\nHost"))
            assert b'"finish_reason":"stop"' in got, got
        until(lambda: finished() == 1 + 16 + len(others) and number("num_requests_running") == 0)
        stopped = in_vain()
        assert stopped < 16 * 300, stopped  # of 16 x 380; how many depends on the machine's load
        for _ in range(16):
            with server.connect() as s:
                s.sendall(completion(stream=True))
                s.recv(1)
        until(lambda: finished() == 1 + 32 + len(others) and number("num_requests_running") == 0)
        left = number("generation_tokens_total") - 60 - 400 * len(others) - stopped
        print(f"in vain: {stopped / 16:.1f} tokens behind a stop string; {left / 16:.1f} for a client that left")
        assert left < 16 * 300, left


def test_clients_that_leave_at_once():
    """Before their requests are submitted: nothing of them is left, so the server ends."""
    with Server() as server:
        for i in range(20):
            with server.connect() as s:
                s.sendall(completion(stream=i % 2 == 0))
        assert server.get("/health")[0] == 200


def test_clients_that_leave_in_a_body():
    """A client that closes together with its last bytes is noticed long before a deadline."""
    with Server("--idle-timeout", "86400,body=86400") as server:
        body_bytes = lambda: float(re.search(r"^hzpserve_body_bytes\S* (\S+)",
                                             server.get("/metrics")[1], re.M)[1])
        for _ in range(20):
            with server.connect() as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
                          + b" " * 100000)
        until(lambda: body_bytes() == 0)


def main():
    global BINARY, MODEL
    BINARY, MODEL = sys.argv[1:3]
    chosen = sys.argv[3:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not chosen or name in chosen):
            begin = time.monotonic()
            test()
            print(f"ok {name} {time.monotonic() - begin:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

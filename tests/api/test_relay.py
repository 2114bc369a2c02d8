#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The relay (api/relay/relay.h) alone, with a rank 0 that is made here: what its clients get when rank 0 is lost in the
middle of an answer, when they are slow or send no more, when bodies fill the memory, and when descriptors are scarce.

    test_relay.py HZPSERVE MODEL [CASE ..]
"""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

BINARY, MODEL = sys.argv[1:3]
HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
BODY = b'{"prompt":"one","stream":true}'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Of: the stream\r\n\r\n"
ERROR = b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"no\":\"\"}"
TOKEN, END = b": hzp t 0 7 1 1 1 -0x1p-1\n: hzp g\n", b": hzp c 0\n: hzp d\n"


class Relay:
    """A relay with the two sockets that a launcher keeps: clients' and rank 0's."""

    def __init__(self, *more, descriptors=None, send_buffer=None):
        self.folder = tempfile.TemporaryDirectory(prefix="hzpserve-relay-")
        self.place = self.folder.name + "/requests"
        self.rank0 = socket.socket(socket.AF_UNIX)
        self.rank0.bind(self.place)
        self.rank0.listen(1024)
        kept = socket.socket()
        kept.bind(("127.0.0.1", 0))
        if send_buffer:  # clients' connections inherit it
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port = kept.getsockname()[1]
        variables = {**os.environ, "HZP_RANKS_DIR": self.folder.name, "HZP_RELAY_TO": self.place,
                     "HZP_KEPT_SOCKET": str(kept.fileno())}
        self.log = self.folder.name + "/log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [BINARY, "serve", MODEL, *more], stdout=subprocess.DEVNULL, stderr=log, env=variables,
                pass_fds=[kept.fileno()], preexec_fn=descriptors and (
                    lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))))
        kept.close()
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, self.text()
            time.sleep(0.01)

    def text(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def peak(self):
        """Bytes of memory at most so far."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) << 10

    def take(self):
        """The next connection to rank 0, and the request in it."""
        connection, _ = self.rank0.accept()
        connection.settimeout(HANG)
        data = b""
        while b"\r\n\r\n" not in data or len(body) < int(re.search(rb"content-length: (\d+)", head)[1]):
            piece = b""
            with contextlib.suppress(ConnectionError):
                piece = connection.recv(65536)
            if not piece:  # the client has left
                return connection, b"", b""
            data += piece
            head, _, body = data.partition(b"\r\n\r\n")
        return connection, head, body

    def ask(self, body=BODY):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return c

    def stop(self):
        self.rank0.close()
        self.process.terminate()
        assert self.process.wait(HANG) == 0, self.text()
        self.folder.cleanup()


def test_head_of_the_first_answer():
    """Rank 0 is lost as soon as a stream has begun.  Its client has begun to read a stream, whatever comes next."""
    relay = Relay()
    event = b"data: 1\n\n"
    for first in (event, b""):  # a token may have no event of its own
        for rest in (ERROR, b"", b"no answer\r\n\r\n", STREAM + b"data: 2\n\n" + END):
            c = relay.ask()
            for i in range(6 if not rest else 2):
                connection, _, body = relay.take()
                assert body == (TOKEN[:-8] if i else b"") + BODY, body
                connection.sendall(rest if i else STREAM + first + TOKEN)
                connection.close()
            answer = c.getresponse()
            text = answer.read()
            assert answer.status == 200 and answer.getheader("X-Of") == "the stream", (answer.status, answer.headers)
            assert answer.getheader("Content-Type") == "text/event-stream", answer.headers
            told = text.removeprefix(first)
            if rest.startswith(STREAM):
                assert told == b"data: 2\n\n", text
            else:
                assert told.startswith(b"data: {") and told.endswith(b"\n\ndata: [DONE]\n\n"), text
                assert (b'{"no":""}' if rest == ERROR else b"rank_lost") in told, text
            c.close()
    relay.stop()


def test_events_before_a_loss():
    """A client gets the events that came before rank 0 was lost at once, not when the next one answers."""
    relay = Relay()
    c = relay.ask()
    connection, _, _ = relay.take()
    connection.sendall(STREAM + b"data: 1\n\n" + TOKEN)
    connection.close()
    answer = c.getresponse()
    assert answer.readline() == b"data: 1\n"
    connection, _, _ = relay.take()
    connection.sendall(STREAM + b"data: 2\n\n" + END)
    connection.close()
    assert answer.read() == b"\ndata: 2\n\n"
    c.close()
    relay.stop()


def test_half_closed():
    """A client that closes its side gets an answer that comes soon; one that takes long ends at once, as at rank 0."""
    relay = Relay()

    def ask(method, path):
        c = socket.create_connection(("127.0.0.1", relay.port), HANG)
        c.sendall(b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
            method, path, len(BODY), BODY))
        connection, head, _ = relay.take()
        assert head.startswith(method)
        c.shutdown(socket.SHUT_WR)
        return c, connection

    for method, path in ((b"GET", b"/health"), (b"POST", b"/tokenize"), (b"POST", b"/v1/fine_tuning/examples")):
        text, taken = b"", 3
        while not text and taken >= 3:  # a rank 0 that was held up for so long is no more waited for
            begin = time.monotonic()
            c, connection = ask(method, path)
            time.sleep(0.2)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            connection.close()
            text = c.makefile("rb").read()
            taken = time.monotonic() - begin
            c.close()
        assert text.endswith(b"\r\n\r\nok"), (path, text, taken)

    def ended(asked):
        """Both of its connections are closed without an answer."""
        c, connection = asked
        assert connection.recv(1) == b"" and c.recv(1) == b"", asked
        connection.close()
        c.close()

    for path in (b"/v1/completions", b"/v1/fine_tuning/examples?wait=served"):
        for _ in range(5):  # again where the test was held up for as long as the relay is patient
            begin = time.monotonic()
            short = ask(b"GET", b"/version")
            ended(ask(b"POST", path))
            first = not select.select([short[1]], [], [], 0)[0]
            ended(short)
            assert time.monotonic() - begin >= 3
            if first:
                break
        assert first, f"{path} was waited for as long as what comes soon"
    relay.stop()


def test_health():
    """The relay says how the server is where rank 0 does not: it starts, or it answers no more."""
    relay = Relay()

    def ask(path):
        c = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=HANG)
        c.request("GET", path)
        return c

    def answer(c):
        got = c.getresponse()
        text = got.read()
        c.close()
        return got.status, json.loads(text)

    c = ask("/health")
    connection, _, _ = relay.take()
    status, got = answer(c)
    assert status == 503 and got["error"]["code"] == "starting", got
    connection.close()
    c = ask("/version")
    connection, _, _ = relay.take()
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert answer(c) == (200, {})
    connection.close()
    for path in ("/health", "/ping"):
        c = ask(path)
        connection, _, _ = relay.take()
        status, got = answer(c)
        assert status == 200 and got["status"] == "degraded" and got["lost_rank"] == 0, got
        connection.close()
    relay.stop()


def test_slow_client():
    """Of an answer that a client takes more slowly than rank 0 makes it, only a part is held."""
    relay, size = Relay(send_buffer=8192), 64 << 20
    c = relay.ask()
    connection, _, _ = relay.take()

    def rank0():
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for i in range(size >> 16):
            connection.sendall(bytes([i & 255]) * (1 << 16))
        connection.close()

    thread = threading.Thread(target=rank0, daemon=True)
    thread.start()
    answer, before = c.getresponse(), relay.peak()
    for i in range(size >> 16):
        assert answer.read(1 << 16) == bytes([i & 255]) * (1 << 16)
    assert not answer.read()
    thread.join()
    assert relay.peak() - before < size // 4, (before, relay.peak())
    c.close()
    relay.stop()


def test_bodies_are_held():
    """Bodies are held until their answers have ended, and take no more memory than they have bytes."""
    relay, size = Relay("--max-body", "memory=16M"), (1 << 20) + 1
    asked = []
    for _ in range(13):
        asked.append((relay.ask(b" " * size), relay.take()[0]))
    for c, connection in asked:
        connection.sendall(STREAM + b"data: 1\n\n" + END)
        connection.close()
        assert c.getresponse().read() == b"data: 1\n\n"
        c.close()
    relay.stop()


def test_few_descriptors():
    """Each request takes two; clients do not take those for the connections to rank 0."""
    for descriptors, clients in ((64, 100), (128, 200)):
        relay = Relay("--max-connections", "per-address=0", descriptors=descriptors)

        def rank0(relay=relay):
            with contextlib.suppress(OSError):  # until it is closed
                while True:
                    connection, head, _ = relay.take()
                    with contextlib.suppress(ConnectionError):
                        connection.sendall((STREAM + b"data: 1\n\n" + END) if head else b"")
                    connection.close()

        def client(_, relay=relay):
            """True: answered; False: there was no place."""
            try:
                c = relay.ask()
                answer = c.getresponse()
                text = answer.read()
                c.close()
            except ConnectionError:
                return False
            assert answer.status in (200, 429, 503), text
            return answer.status == 200 and text == b"data: 1\n\n"

        threading.Thread(target=rank0, daemon=True).start()
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            answered = sum(pool.map(client, range(3 * clients)))  # none hangs
        assert answered > 0 and "descriptors" in relay.text(), (answered, relay.text())
        assert client(0)
        relay.stop()


def main():
    wanted = sys.argv[3:]
    for name, case in list(globals().items()):
        if name.startswith("test_") and (not wanted or name in wanted):
            case()
            print(name, flush=True)


main()

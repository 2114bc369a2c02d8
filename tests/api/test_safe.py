#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a server refuses unless it is told otherwise: pages of other origins, foreign hosts, missing
keys, requests that two servers could read differently, fields that would change the meaning.

    test_safe.py HZPSERVE MODEL_DIR [TEST ...]
"""
import gzip
import http.client
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
COMPLETE, TEACH, POLICY = "/v1/completions", "/v1/fine_tuning/examples", "/v1/policy"
ASK, EXAMPLE = {"prompt": "Once", "max_tokens": 2}, {"text": "A dog saw a cat."}


class Server:
    def __init__(self, *options, env=None, state=None, model=None, before=None, stdin=None, status=0,
                 piped=False):
        self.options, self.env, self.kept, self.model = options, env, state, model
        self.before, self.stdin, self.status = before, stdin or subprocess.DEVNULL, status
        self.piped = piped  # the log goes through a pipe, because files cannot be written

    def __enter__(self):
        self.state = tempfile.TemporaryDirectory(prefix="hzpserve-test-")
        self.log = [] if self.piped else tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", self.model or MODEL, "--port", "0", "--state",
             self.kept or self.state.name + "/state", *self.options],
            stdin=self.stdin, stdout=subprocess.PIPE, text=True, env={**os.environ, **(self.env or {})},
            stderr=subprocess.PIPE if self.piped else self.log,
            preexec_fn=self.prepare, restore_signals=not self.before)
        if self.piped:
            threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at http://(\S+):(\d+)", line)
            if found:
                self.port = int(found[2])
                break
        else:
            raise AssertionError("the server did not start: " + self.said())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        return self

    def prepare(self):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # they may be ignored here, as nohup does
        if self.before:
            self.before()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(HANG) == self.status, f"exit status {self.process.returncode}"
        self.state.cleanup()

    def said(self):
        if self.piped:
            return "".join(self.log)  # perhaps not its last lines
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def ask(self, method, path, body=None, **headers):
        """Status, headers, body; header names with _ for -; a value None leaves the header out.  A list of bytes is
        sent in chunks."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        chunks = isinstance(body, list) and isinstance(body[0], bytes)
        data = body if chunks or isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        c.putrequest(method, path, skip_host="Host" in headers)
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
            headers.update({"Transfer-Encoding": "chunked"} if chunks else {"Content-Length": str(len(data))})
        for name, value in headers.items():
            if value is not None:
                c.putheader(name, value)
        c.endheaders(data.encode() if isinstance(data, str) else data, encode_chunked=chunks)
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        return answer.status, answer.headers, json.loads(text) if text[:1] in "{[" and text else text

    def raw(self, data, later=b""):
        """later: what is sent once the kernel has sent the rest, most often as a packet of its own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.sendall(data)
            if later:
                time.sleep(0.01)
                send(s, later)
            got = b""
            while True:
                try:
                    piece = s.recv(65536)
                except ConnectionResetError:
                    return got
                if not piece:
                    return got
                got += piece

    def metric(self, name):
        for line in self.ask("GET", "/metrics")[2].splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        return 0


def until(condition, seconds=HANG):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)


def start_fails(*options, env=None, says):
    done = subprocess.run([BINARY, "serve", MODEL, "--port", "0", "--no-train", "--state", "none",
                           *options], capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 2 and says in done.stderr, (options, done.returncode, done.stderr)


def test_pages_and_hosts():
    """A page of another origin, or one that makes its name mean this machine, changes nothing."""
    with Server("--allow-host", "llm.example, proxy.example", "--allow-origin",
                "https://good.example, http://tool.example:3000") as server:
        own = f"localhost:{server.port}"
        for path, body, method in ((COMPLETE, ASK, "POST"), (TEACH, EXAMPLE, "POST"),
                                   (POLICY, {"train_max": 1}, "PATCH")):
            for headers, status, code in (
                    ({}, 200, None),
                    ({"Host": "127.0.0.1:1"}, 200, None), ({"Host": f"[::1]:{server.port}"}, 200, None),
                    ({"Host": "LOCALHOST"}, 200, None), ({"Host": "localhost."}, 200, None),
                    ({"Host": "llm.example:8000"}, 200, None), ({"Host": "proxy.example"}, 200, None),
                    ({"Host": "evil.example"}, 403, "host_not_allowed"),
                    ({"Host": "localhost.evil.example"}, 403, "host_not_allowed"),
                    ({"Host": "192.0.2.7"}, 403, "host_not_allowed"),
                    ({"Host": "example"}, 403, "host_not_allowed"),
                    ({"Host": ""}, 403, "host_not_allowed"),
                    ({"Host": own, "Origin": f"http://{own}"}, 200, None),
                    ({"Host": own, "Origin": "http://localhost:1"}, 403, "origin_not_allowed"),
                    ({"Origin": "https://good.example"}, 200, None),
                    ({"Origin": "http://tool.example:3000"}, 200, None),
                    ({"Origin": "http://tool.example"}, 403, "origin_not_allowed"),
                    ({"Origin": "https://evil.example"}, 403, "origin_not_allowed"),
                    ({"Origin": "null"}, 403, "origin_not_allowed")):
                got, _, answer = server.ask(method, path, body, **headers)
                want = {200, 202} if status == 200 else {status}
                assert got in want, (path, headers, got, answer)
                assert status == 200 or answer["error"]["code"] == code, answer
        # What only reads is answered, but no page may see it unless it is named.
        status, headers, _ = server.ask("GET", "/v1/models", Origin="https://evil.example")
        assert status == 200 and "access-control-allow-origin" not in headers
        # What reads with the admin key's right is answered for this server's own names only.
        for headers, want in (({}, 200), ({"Host": own}, 200), ({"Host": "evil.example"}, 403)):
            status, _, answer = server.ask("GET", "/v1/replication", **headers)
            assert status == want, (headers, answer)
        accepted = server.metric("hzpserve_examples_accepted_total")
        assert accepted == 10, accepted  # of 19 requests above


def test_types():
    with Server() as server:
        for kind, page, status in (
                ("application/json", False, 202), ("application/json; charset=utf-8", False, 202),
                ("application/x-ndjson", False, 202), ("APPLICATION/JSON", False, 202),
                ("application/x-www-form-urlencoded", False, 202),  # what curl -d says by itself
                (None, False, 202), ("text/plain", False, 415), ("text/plain", True, 415),
                ("application/jsonx", False, 415), ("multipart/form-data; boundary=x", False, 415),
                ("application/x-www-form-urlencoded", True, 415), (None, True, 415),
                ("text/plain; application/json", False, 415)):
            own = f"http://127.0.0.1:{server.port}"
            got, _, answer = server.ask("POST", TEACH, EXAMPLE, Content_Type=kind,
                                        Origin=own if page else None)
            assert got == status, (kind, page, got, answer)
            assert status == 202 or "application/json" in answer["error"]["message"], answer
        for kind, body in (("text/csv", "prompt,completion\nZorin lives in, Tarn.\n"),
                           ("text/tab-separated-values", "prompt\tcompletion\nZorin lives in\t Tarn.\n")):
            got, _, answer = server.ask("POST", TEACH, body, Content_Type=kind)
            assert got == 202 and answer["accepted"] == 1, (kind, got, answer)
        # A browser that sends no Origin says where the page is from in another way.
        for site in ("cross-site", "same-site", "same-origin", "none"):
            for kind in (None, "application/x-www-form-urlencoded"):
                got, _, answer = server.ask("POST", TEACH, EXAMPLE, Content_Type=kind, Sec_Fetch_Site=site)
                assert got == 415, (site, kind, got, answer)


def test_codings():
    """A body in gzip is read, as one member or several, up to the bound that holds for its text; another coding is
    refused by its name before the body is read, and what is no gzip, or has no end, is a 400."""
    text = json.dumps(ASK).encode()
    coded, half = gzip.compress(text), len(text) // 2
    long = gzip.compress(b'{"prompt": "' + b"a" * (20 << 20) + b'"}')
    empty = gzip.compress(b"") * 60000  # sent in chunks, so that no header tells how long it is
    with Server("--no-train", "--max-body", "1M") as server:
        for coding, body, status in (
                ("deflate", text, 415), ("gzip, identity", coded, 415), ("br", text, 415), ("identity", text, 200),
                ("Identity", text, 200), (None, text, 200), ("gzip", coded, 200), ("X-GZip", coded, 200),
                ("gzip", gzip.compress(text[:half]) + gzip.compress(text[half:]), 200), ("gzip", text, 400),
                ("gzip", coded[:-9], 400), ("gzip", coded + b"x", 400), ("gzip", long, 413), ("gzip", [empty], 413),
                ("gzip", coded[:12] + b"\xff" + coded[13:], 400)):
            got, _, answer = server.ask("POST", COMPLETE, body, Content_Encoding=coding)
            assert got == status, (coding, body, got, answer)
            assert status != 415 or "Content-Encoding" in answer["error"]["message"], answer
            assert status != 400 or "gzip" in answer["error"]["message"], answer


def test_permission():
    """CORS: pages of named origins are told that they may, others are not."""
    with Server("--no-train", "--allow-origin", "https://good.example") as server:
        ask = {"Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type"}
        status, headers, _ = server.ask("OPTIONS", COMPLETE, Origin="https://good.example", **ask)
        assert status == 204 and headers["access-control-allow-origin"] == "https://good.example"
        assert "POST" in headers["access-control-allow-methods"]
        assert "authorization" in headers["access-control-allow-headers"]
        assert headers["vary"] == "Origin" and "access-control-allow-credentials" not in headers
        status, headers, answer = server.ask("OPTIONS", COMPLETE, Origin="https://evil.example", **ask)
        assert status == 403 and "access-control-allow-origin" not in headers, answer
        for body, want in ((ASK, 200), ({"prompt": 3}, 400)):
            status, headers, _ = server.ask("POST", COMPLETE, body, Origin="https://good.example")
            assert status == want and headers["access-control-allow-origin"] == "https://good.example"
        status, headers, _ = server.ask("POST", COMPLETE, {**ASK, "stream": True},
                                        Origin="https://good.example")
        assert status == 200 and headers["access-control-allow-origin"] == "https://good.example"
    with Server("--no-train") as server:
        status, headers, _ = server.ask("OPTIONS", COMPLETE, Origin="https://good.example", **ask)
        assert status == 403 and "access-control-allow-origin" not in headers
        assert server.ask("OPTIONS", COMPLETE)[0] == 405



def check_names(file, folder):
    """Several keys in a file have names, and an example tells whose it is."""
    file.write_text("ann:first\nbob:second:with colon\n\n")
    with Server("--admin-key-file", str(file), "--api-key", "reader", "--state", folder + "/named") as server:
        def ask(key, method, path, body=None):
            return server.ask(method, path, body, Authorization=f"Bearer {key}")
        for number, (key, name) in enumerate((("first", "ann"), ("second:with colon", "bob")), 1):
            status, _, body = ask(key, "POST", "/v1/fine_tuning/examples", {"text": "Zorin lives in Tarn."})
            assert status == 202 and body["first"] == number, body
            told = ask("reader", "GET", f"/v1/fine_tuning/examples/{number}")[2]
            assert told["key"] == name and told["request"] and told["taught"].startswith("20"), told
        assert ask("ann:first", "GET", POLICY)[0] == ask("second", "GET", POLICY)[0] == 401
        assert ask("reader", "POST", "/v1/fine_tuning/examples", {"text": "Zorin"})[0] == 403
        file.write_text("bob:third\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: ask("third", "GET", POLICY)[0] == 200)
        assert ask("first", "GET", POLICY)[0] == 401
    for text, says in (("a:one\ntwo\n", "line 2 is not NAME:KEY"), ("a:b\nadmin:x\n", "cannot be named admin"),
                       ("", "empty")):
        file.write_text(text)
        start_fails("--api-key-file", str(file), says=says)


def test_keys():
    """One key may complete; the other one may also teach and set the policy."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "admin")
        file.write_text("teacher\nsecond line\n")
        with Server("--api-key", "reader", "--admin-key-file", str(file)) as server:
            def status(key, method, path, body=None):
                bearer = {"Authorization": "Bearer " + key} if key is not None else {}
                return server.ask(method, path, body, **bearer)[0]

            for key, complete, teach in ((None, 401, 401), ("x", 401, 401), ("", 401, 401),
                                         ("reader", 200, 403), ("teacher", 200, 202),
                                         ("teacher\t", 401, 401), ("readerreader", 401, 401)):
                assert status(key, "POST", COMPLETE, ASK) == complete, key
                assert status(key, "GET", "/v1/models") == complete, key
                assert status(key, "GET", POLICY) == complete, key
                taught = status(key, "POST", TEACH, EXAMPLE)
                assert taught == teach, (key, taught)
                assert status(key, "PATCH", POLICY, {"train_max": 1}) == \
                    (200 if teach == 202 else teach), key
                for method, path in (("POST", "/v1/weights/nobody/activate"),
                                     ("DELETE", "/v1/weights/names/nobody"),
                                     ("GET", "/v1/replication/nobody/manifest"),
                                     ("PUT", "/v1/replication/0123456789abcdef/units/0"),
                                     ("POST", "/v1/replication/0123456789abcdef/activate"),
                                     ("DELETE", "/v1/fine_tuning/examples/99999")):
                    assert status(key, method, path, {}) == (404 if teach == 202 else teach), (key, path)
                assert status(key, "GET", "/v1/weights/current") == complete, key
            assert status(None, "GET", "/health") == status(None, "GET", "/metrics") == 200
            file.write_text("successor\n")
            assert status("teacher", "GET", POLICY) == 200  # the file is read at SIGHUP
            server.process.send_signal(signal.SIGHUP)
            until(lambda: status("successor", "GET", POLICY) == 200)
            assert status("teacher", "GET", POLICY) == 401 and status("reader", "GET", POLICY) == 200
            file.write_text("\n")
            server.process.send_signal(signal.SIGHUP)
            until(lambda: "its first line is empty" in server.said())
            assert status("successor", "GET", POLICY) == 200 and status("", "GET", POLICY) == 401
        check_names(file, folder)
        with Server("--admin-key", "teacher", "--no-train") as server:  # then it guards everything
            assert server.ask("POST", COMPLETE, ASK)[0] == 401
            assert server.ask("POST", COMPLETE, ASK, Authorization="Bearer teacher")[0] == 200
        file.write_text("\n")
        start_fails("--api-key-file", str(file), says="--api-key-file")
        start_fails("--api-key-file", folder + "/none", says="--api-key-file")
        start_fails("--api-key-file", str(file), "--api-key", "x", says="--api-key-file")
    start_fails("--api-key", "", says="--api-key is empty")
    start_fails("--admin-key", "", says="--admin-key is empty")
    start_fails(env={"HZP_API_KEY": ""}, says="HZP_API_KEY is empty")
    start_fails("--host", "0.0.0.0", says="--no-auth")
    start_fails("--host", "::", says="--no-auth")
    with Server("--no-train", "--host", "0.0.0.0", "--api-key", "k") as server:
        assert server.ask("GET", "/v1/models", Authorization="Bearer k")[0] == 200
        assert server.ask("GET", "/v1/models", **{"x-api-key": "k"})[0] == 200
        assert server.ask("GET", "/v1/models", **{"x-api-key": "l"})[0] == 401
    with Server("--no-train", "--host", "0.0.0.0", "--no-auth") as server:
        assert server.ask("POST", COMPLETE, ASK)[0] == 200
        assert "--no-auth: every client" in server.said()


def answers(got):
    return len(re.findall(rb"HTTP/1\.[01] \d\d\d ", got))


def test_framing():
    """What a proxy could read differently is a 400 that ends the connection."""
    with Server("--no-train") as server:
        body = json.dumps(ASK).encode()
        length = b"Content-Length: %d\r\n" % len(body)
        host, kind = b"Host: localhost\r\n", b"Content-Type: application/json\r\n"
        chunked = b"Transfer-Encoding: chunked\r\n"
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        line = b"POST /v1/completions HTTP/1.1\r\n"
        for what in (line + host + kind + length + b"Content-Length: 0\r\n\r\n" + body,
                     line + host + kind + b"Content-Length: 0\r\n" + length + b"\r\n" + body,
                     line + host + kind + length + chunked + b"\r\n" + chunks,
                     line + host + kind + chunked + length + b"\r\n" + chunks,
                     line + kind + length + b"\r\n" + body,
                     line + host + b"Host: other\r\n" + kind + length + b"\r\n" + body,
                     line + host + kind + length + b"X: a\0b\r\n\r\n" + body,
                     line + host + b"X: a\0\0\0\0b\r\n" + kind + length + b"\r\n" + body,
                     line + host + b"X: a\r\n b\r\n" + kind + length + b"\r\n" + body,
                     line + host + b"X: a\n" + kind + length + b"\r\n" + body,
                     line + host + kind + b"Content-Length : 0\r\n\r\n" + body,
                     line + host + kind + b"Transfer-Encoding: xchunked\r\n\r\n" + chunks,
                     line + host + kind + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks,
                     line + host + kind + chunked + chunked + b"\r\n" + chunks,
                     line.replace(b"1.1", b"1.0") + host + kind + chunked + b"\r\n" + chunks,
                     b"GET /health HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: a\0b\r\n\r\n",
                     line + host + b"X: a\rb\r\n" + kind + length + b"\r\n" + body,
                     line + host + b"X: a\r\r\n" + kind + length + b"\r\n" + body,
                     b"GET /health\0 HTTP/1.1\r\n" + host + b"\r\n", b"G\0ET /health HTTP/1.1\r\n" + host + b"\r\n",
                     b"\0GET /metrics HTTP/1.1\r\nGET /health HTTP/1.1\r\n" + host + b"\r\n",
                     b"GET /health?a\0=b HTTP/1.1\r\n" + host + b"\r\n", b"GET /health?a\r HTTP/1.1\r\n" + host + b"\r\n",
                     b"GET  /health HTTP/1.1\r\n" + host + b"\r\n", b"GET /health  HTTP/1.1\r\n" + host + b"\r\n",
                     b"GET /health a HTTP/1.1\r\n" + host + b"\r\n", b"GET /health HTTP/1.1\n" + host + b"\r\n",
                     b"GET /health%00 HTTP/1.1\r\n" + host + b"\r\n", b"GET /health?a=%00 HTTP/1.1\r\n" + host + b"\r\n",
                     b"GET http://a@localhost/health HTTP/1.1\r\n" + host + b"\r\n",
                     b"GET http:///health HTTP/1.1\r\n" + host + b"\r\n"):
            got = server.raw(what + smuggled)
            assert got.startswith(b"HTTP/1.1 400 ") and answers(got) == 1, (what, got)
            assert b"connection: close" in got.lower(), (what, got)
            error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
            assert error["type"] == "invalid_request_error" and error["message"], error
        for good in (line + host + kind + length + b"\r\n" + body,
                     line + host + kind + length + length + b"\r\n" + body,
                     line + host + kind + chunked + b"\r\n" + chunks,
                     line + host + b"Cookie: a=b; c=d\r\nX:\r\nY: \t \r\n" + kind + length + b"\r\n" + body,
                     (line + host + kind + length + b"\r\n" + body) * 3,
                     line.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n" + kind + length
                     + b"\r\n" + body):
            got = server.raw(good + smuggled)
            assert got.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")), (good, got)
            assert answers(got) == good.count(b"POST ") + 1, (good, got)


def chunk_lines(body):
    """Bodies in chunks, each with the answer's status: what RFC 9112 allows, and what it does not."""
    half = len(body) // 2
    first, second = b"%x" % half, b"%X" % (len(body) - half)
    one, two = body[:half], body[half:]
    end = b"\r\n%s\r\n0\r\n\r\n" % two
    for status, extension in ((200, b";a"), (200, b";a=b;c"), (200, b';a="b;\\"\\\\;"'), (400, b';a="b'), (400, b';a="b\\"'),
                              (400, b";a\0b"), (400, b";a\rb"), (400, b";a\nb"), (400, b';a="\r"'), (400, b';a="\n"')):
        yield status, first + extension + b"\r\n" + one + b"\r\n" + second + end
        yield status, first + b"\r\n" + one + b"\r\n" + second + extension + end
        yield status, first + b"\r\n" + one + b"\r\n" + second + b"\r\n" + two + b"\r\n0" + extension + b"\r\n\r\n"
    plain = first + b"\r\n" + one + b"\r\n" + second + end
    for line in re.finditer(b"\r\n", plain):  # each line's end in turn
        yield 400, plain[:line.start()] + b"\n" + plain[line.end():]
    for status, trailer in ((200, b"X: y\r\n"), (400, b"X: y\n"), (400, b"X: a\rb\r\n"), (400, b"X: a\r\n b\r\n"),
                            (400, b"X y: a\r\n"), (400, b"X: \0\r\n")):
        yield status, plain[:-2] + trailer + b"\r\n"


def test_chunk_lines():
    """Lines between chunks are as strict as headers, however they are cut into packets."""
    with Server("--no-train") as server:
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
        smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        for status, chunks in chunk_lines(json.dumps(ASK).encode()):
            for first in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                for cut in (len(head) + len(chunks), len(head) + 3, len(head) + len(chunks) - 3):
                    got = server.raw(first + (head + chunks)[:cut], (head + chunks)[cut:] + smuggled)
                    assert got.count(b"HTTP/1.1 200 ") == (len(first) > 0) + 2 * (status == 200), (chunks, cut, got)
                    assert got.count(b"HTTP/1.1 400 ") == (status == 400), (chunks, cut, got)
        # A body that a route reads in pieces: what it has read stays, and the rest is refused.
        line = json.dumps(EXAMPLE).encode() + b"\n"
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(line) * 4000, line * 4000) for _ in range(2)) + b"0\n\r\n"
        got = server.raw(head.replace(b"/completions", b"/fine_tuning/examples") + chunks)
        assert got.startswith(b"HTTP/1.1 400 ") and answers(got) == 1, got


def test_targets():
    """The absolute form of a target is taken, its host in place of Host; any number of arguments is."""
    with Server("--no-train") as server:
        def get(target, host=b"localhost"):
            got = server.raw(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
            return int(got.split()[1]) if got else 0

        own = b"http://localhost:%d" % server.port
        for path, status in ((b"/v1/models", 200), (b"/v1/models?a=b", 200), (b"/v1/none", 404), (b"/", 200),
                             (b"//", 404), (b"/x", 404)):
            for form in (path, own + path, own.upper() + path, own.replace(b"http", b"https") + path,
                         b"http://a" + path):
                assert get(form) == status, (form, get(form))
        assert get(own) == get(own + b"?a") == 200
        mine = get(b"/v1/replication")
        assert mine != 403 and get(own + b"/v1/replication", b"evil.example") == mine
        assert get(b"http://evil.example/v1/replication") == 403
        assert get(b"/v1/%6dodels") == 200 and get(b"/v1/models?" + b"%6" * 100) == 200
        for arguments in (500, 5000, 14000):
            assert get(b"/v1/models?" + b"a&" * arguments) == 200, arguments
        steps = b"limit=1&" * 2500
        assert get(b"/v1/weights?" + steps) == get(b"/v1/weights?limit=1")
        assert get(b"/v1/models?" + b"a=b&" * 10000) == 414


def test_library_errors():
    """What the HTTP library refuses by itself ends the connection and reaches no route (API.md)."""
    with Server("--no-train") as server:
        get, post = b"GET /health HTTP/1.1\r\nHost: a\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
        for status, what in ((400, b"GET /health\r\n\r\n"), (400, b"GET /health FOO/1.1\r\nHost: a\r\n\r\n"),
                             (400, get + b"no colon\r\n\r\n"), (400, post + b"Content-Length: abc\r\n\r\n"),
                             (400, post + b"Content-Length: -1\r\n\r\n"), (400, chunked + b"xyz\r\nabc"),
                             (400, chunked + b"3\r\nabcdef\r\n0\r\n\r\n"),
                             (413, post + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n"),
                             (413, chunked + b"f" * 20 + b"\r\nabc"), (414, b"GET /" + b"a" * 40000),
                             (431, get + b"X: " + b"a" * 40000), (431, get + b"X: a\r\n" * 6000),
                             (505, b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n")):
            got = server.raw(what)
            assert got.startswith(b"HTTP/1.1 %d " % status), (what[:80], got)
            # A chunk that came with the header was looked at before.
            assert b"</html>" in got or what.startswith(chunked), (what[:80], got)
            assert b"connection: close" in got.lower(), got
        assert server.raw(b"GARBAGE\r\n\r\n") == b""
        assert server.ask("GET", "/health")[0] == 200


def test_fields():
    """A field that would change the answer is refused by name, others are counted and logged once."""
    with Server() as server:
        for name, value in (("response_format", {"type": "xml"}), ("structured_outputs", {"structural_tag": {}}),
                            ("allowed_token_ids", [-1]), ("bad_words", [1]), ("guided_decoding", "a+"),
                            ("use_beam_search", True), ("length_penalty", 1.5), ("typical_p", 0.5)):
            status, _, answer = server.ask("POST", COMPLETE, {**ASK, name: value})
            assert status == 400 and answer["error"]["param"] == name, (name, status, answer)
        assert server.metric("hzpserve_unknown_fields_total") == 0
        for fields in ({"response_format": {"type": "text"}}, {"bad_words": []}, {"guided_json": None},
                       {"use_beam_search": False}, {"length_penalty": 1.0}, {"user": "me"},
                       {"made_up": 1}, {"made_up": 2, "another\n\"one": {}}):
            assert server.ask("POST", COMPLETE, {**ASK, **fields})[0] == 200, fields
        assert server.metric("hzpserve_unknown_fields_total") == 3
        assert server.said().count('"made_up"') == 1 and '"another??one"' in server.said()
        for _ in range(100):
            body = {**ASK, **{f"x{i}": 0 for i in range(10)}}
            assert server.ask("POST", COMPLETE, body)[0] == 200
        for name, value in (("reward", -1), ("weight", 0.5), ("labels", [1])):
            for body in ({**EXAMPLE, name: value}, [EXAMPLE, {**EXAMPLE, name: value}]):
                status, _, answer = server.ask("POST", TEACH, body)
                line = len(body) if isinstance(body, list) else 1
                assert status == 400 and answer["error"]["param"] == f"lines[{line}].{name}", answer
        assert server.metric("hzpserve_examples_accepted_total") == 0


def send(s, data):
    try:
        s.sendall(data)
    except OSError:
        pass  # refused


def peak_mb(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def test_memory_of_bodies():
    """Bodies take bounded memory, each and all together; beyond it is a 503, not an abort."""
    size = 16 << 20
    with Server("--max-body", "16M,memory=48M") as server:
        before = peak_mb(server)
        array = b"[" + b"{}," * ((size - 10) // 3) + b"{}]"
        status, _, answer = server.ask("POST", TEACH, array.decode())
        assert status == 400 and answer["error"]["param"] == "lines[1]", answer
        few = b"[" + b",".join([json.dumps({"text": "A dog."}).encode()] * 50) \
            + b"," + b" " * (size - 5000) + json.dumps({"text": "A cat."}).encode() + b"]"
        status, _, answer = server.ask("POST", TEACH, few.decode())
        assert status == 400 and "more than" in answer["error"]["message"], answer
        lines = (json.dumps({"text": "A dog saw a cat. " * 20}) + "\n") * 40000
        status, _, answer = server.ask("POST", TEACH, lines[:size - 400].rpartition("\n")[0])
        assert status in (202, 400, 429, 503), answer  # more than a body, or than the queue, holds
        for deep in (b"[" * size, b'{"prompt": [' + b"{}," * (size // 3 - 10) + b"{}]}",
                     b'{"prompt": ' + b"[" * (size - 20), b'{"a":' * (size // 5)):
            status, _, answer = server.ask("POST", COMPLETE, deep[:size].decode())
            assert status in (400, 413, 503), answer
        assert peak_mb(server) - before < 200, (before, peak_mb(server))
        # Many bodies at once that do not end: what does not fit is refused, the rest goes on.
        held = []
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(12):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=HANG)
            threading.Thread(target=send, args=(s, head + b" " * (8 << 20)), daemon=True).start()
            held.append(s)
        until(lambda: server.metric("hzpserve_body_bytes") > 24 << 20)
        taken = server.metric("hzpserve_body_bytes")
        assert taken <= (48 << 20) + (12 << 16), taken  # short answers, as refusals are, are always made
        assert server.ask("GET", "/health")[0] == 200
        for s in held:
            s.shutdown(socket.SHUT_RDWR)  # close() alone waits for the thread that sends
            s.close()
        until(lambda: server.metric("hzpserve_body_bytes") == 0)
        assert server.ask("POST", COMPLETE, ASK)[0] == 200
        assert peak_mb(server) - before < 200, (before, peak_mb(server))


def test_examples_arrive_in_pieces():
    """A long body, in chunks of any size, is read like a short one; the first bad line ends it."""
    with Server("--queue", "100000,tokens=10000000") as server:
        line = json.dumps({"text": "A dog saw a cat."}).encode() + b"\n"
        head = (b"POST /v1/fine_tuning/examples HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        for chunk in (7, 1000, 70000, 10 ** 6):
            body = line * 4000
            pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + chunk]), body[i:i + chunk])
                              for i in range(0, len(body), chunk)) + b"0\r\n\r\n"
            got = server.raw(head + pieces)
            assert got.startswith(b"HTTP/1.1 202 "), got
            answer = json.loads(got.partition(b"\r\n\r\n")[2])
            assert (answer["first"], answer["accepted"]) == (sent + 1, 4000), answer
            sent += 4000
        bad = (line * 4000).splitlines()
        bad[2500] = b'{"text": 3}'
        status, _, answer = server.ask("POST", TEACH, b"\n".join(bad).decode())
        assert status == 400 and answer["error"]["param"] == "lines[2501].text", answer
        assert server.metric("hzpserve_examples_accepted_total") == sent
        until(lambda: server.metric("hzpserve_body_bytes") == 0)


def damage(model, tensor_name, row=None):
    """Huge weights, which are finite, of both signs: products with them overflow.  row: only that one."""
    for file in model.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        size = int.from_bytes(data[:8], "little")
        for name, tensor in json.loads(data[8:8 + size]).items():
            if name == tensor_name:
                begin, end = (8 + size + at for at in tensor["data_offsets"])
                if row is not None:
                    bytes_of_row = (end - begin) // tensor["shape"][0]
                    begin += bytes_of_row * row
                    end = begin + bytes_of_row
                assert tensor["dtype"] == "BF16", tensor
                data[begin:end] = b"\x7f\x7f\x7f\xff" * ((end - begin) // 4)
        file.write_bytes(data)


def test_damaged_weights():
    """Logits that are not finite end a request with an error, whole or streamed, whether all are, or
    only one that is not drawn."""
    with tempfile.TemporaryDirectory() as folder:
        for tensor, row in (("model.norm.weight", None), ("model.embed_tokens.weight", 2)):
            model = pathlib.Path(folder, tensor)
            shutil.copytree(MODEL, model)
            damage(model, tensor, row)
            with Server("--no-train", model=str(model)) as server:
                for fields in ({}, {"stream": True}, {"temperature": 0}, {"n": 3, "stream": True},
                               {"echo": True, "logprobs": 2}, {"stop": "x"},
                               {"prompt": "Once upon a time", "echo": True, "logprobs": 0, "max_tokens": 0}):
                    status, _, answer = server.ask("POST", COMPLETE, {**ASK, **fields})
                    assert status == 500 and answer["error"]["code"] == "not_finite", (fields, answer)
                status, _, health = server.ask("GET", "/health")
                assert status == 200 and health["status"] == "degraded" and "finite" in health["reason"], health


def test_signals():
    """A terminal that closes drains; without one SIGHUP does not stop; nohup is respected; SIGUSR2
    logs the state; SIGQUIT ends at once."""
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for before, stops in ((None, True), (ignore, False)):
        terminal, end = pty.openpty()
        with Server("--no-train", stdin=end, before=before) as server:
            server.process.send_signal(signal.SIGHUP)
            server.process.send_signal(signal.SIGUSR2)
            if stops:
                assert server.process.wait(HANG) == 0
                assert "stopped seconds" in server.said()
            else:
                until(lambda: "status connections=" in server.said())
                assert server.ask("POST", COMPLETE, ASK)[0] == 200
                assert "stopping" not in server.said()
        os.close(terminal)
        os.close(end)
    with Server("--no-train", status=131) as server:
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded key_files=0" in server.said())
        assert server.ask("POST", COMPLETE, ASK)[0] == 200
        server.process.send_signal(signal.SIGQUIT)
        assert server.process.wait(HANG) == 131 and "nothing was saved" in server.said()


def test_privacy():
    """No other user can read the state; errors do not name files of the server."""
    with tempfile.TemporaryDirectory() as folder:
        state = pathlib.Path(folder, "a", "state")
        with Server("--checkpoint-every", "1", "--passes", "2", state=str(state)) as server:
            assert server.ask("POST", TEACH + f"?wait=served&timeout={HANG}", EXAMPLE)[0] == 200
            until(lambda: list(state.glob("checkpoint-*")))
        paths = [state, *state.rglob("*")]
        assert len(paths) > 3
        for path in paths:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, (path, oct(path.stat().st_mode))
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
    ignore = lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Server(before=ignore) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                         (200000, resource.RLIM_INFINITY))
        status, _, answer = server.ask("POST", TEACH, [{"text": "A dog saw a cat. " * 20}] * 400)
        assert status == 500 and server.state.name not in json.dumps(answer), answer
        assert "samples.db" in server.said()
        health = server.ask("GET", "/health")[2]
        assert health["status"] == "degraded" and "stored" in health["reason"], health
        assert server.ask("POST", COMPLETE, ASK)[0] == 200
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                         (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: server.ask("GET", "/health")[2] == {"status": "ok"})


def test_full_disk():
    """A start on a full disk, the first one, too, serves, learns nothing and says so, until there is room."""
    def fill():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.join(folder, "new")
        with Server(state=folder, before=fill, piped=True) as server:
            until(lambda: "read-only: " in server.said())
            assert server.ask("POST", COMPLETE, ASK)[0] == 200
            status, headers, answer = server.ask("POST", TEACH, EXAMPLE)
            assert status == 503 and answer["error"]["code"] == "read_only", answer
            assert server.ask("GET", "/health")[2]["status"] == "degraded"
            assert server.metric("hzpserve_state_read_only") == 1
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                             (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            until(lambda: server.ask("GET", "/health")[2]["status"] == "ok")
            assert server.ask("POST", TEACH + f"?wait=served&timeout={HANG}", EXAMPLE)[0] == 200
            assert "is open to other users" not in server.said()
        os.chmod(folder, 0o755)
        with Server(state=folder, before=fill, piped=True) as server:
            until(lambda: f"{folder} is open to other users (mode 755)" in server.said())
            until(lambda: "read-only: " in server.said())
            assert server.ask("POST", COMPLETE, ASK)[0] == 200
            status, headers, answer = server.ask("POST", TEACH, EXAMPLE)
            assert status == 503 and answer["error"]["code"] == "read_only", answer
            assert "retry-after" in headers
            assert server.ask("GET", "/health")[2]["status"] == "degraded"
            assert server.metric("hzpserve_state_read_only") == 1
            steps = server.ask("GET", "/v1/weights")[2]["finished_optimizer_step"]
            assert steps > 0
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                             (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            until(lambda: server.ask("GET", "/health")[2]["status"] == "ok")
            assert server.ask("POST", TEACH + f"?wait=served&timeout={HANG}", EXAMPLE)[0] == 200
            after = server.ask("GET", "/v1/weights")[2]
            assert after["finished_optimizer_step"] > steps
            assert after["learned_through"] == after["finished_through"] == 2, after  # one of the first start


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

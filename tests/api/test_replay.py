#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hzpserve bench replay` against a real server, and against servers that misbehave.

    test_replay.py HZPSERVE MODEL_DIR
"""
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.dom.minidom

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
PLOT = pathlib.Path(__file__).parents[2] / "dev/plot.py"


def replay(url, *arguments, status=0, json_wanted=True):
    done = subprocess.run([BINARY, "bench", "replay", "--url", url, "--log-level", "error",
                           *(["--json"] if json_wanted else []), *arguments],
                          capture_output=True, text=True, timeout=HANG)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return (json.loads(done.stdout) if json_wanted and done.stdout else done.stdout), done.stderr


def start_server():
    process = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", "--state", "none",
                                "--no-train", "--log-level", "error"],
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
        if found:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, found[1]
    raise AssertionError("the server did not start")


def test_equal(url, scratch):
    record, plot = scratch / "load.jsonl", scratch / "load.svg"
    got, _ = replay(url, "--requests", "12", "--max-concurrency", "5", "--input-len", "24",
                    "--output-len", "9", "--warmup", "1", "--slo", "ttft=600s,itl=600s", "--record",
                    str(record))
    assert got["completed"] == 12 and got["failed"] == 0 and got["failures"] == {}, got
    assert got["total_input_tokens"] == 12 * 24 and got["total_output_tokens"] == 12 * 9, got
    assert got["max_concurrent_requests"] == 5 and got["other_length"] == 0, got
    assert abs(got["request_throughput"] * got["duration"] - 12) < 1e-6, got
    assert abs(got["total_token_throughput"] * got["duration"] - 12 * 33) < 1e-6, got
    assert abs(got["request_goodput"] - got["request_throughput"]) < 1e-6, got
    # Each answer's first token comes before its end, so this holds of every quantile.
    assert 0 < got["median_ttft_ms"] <= got["p99_ttft_ms"] <= got["p99_e2el_ms"], got
    # The server was asked for its health meanwhile, and for its memory.
    assert 0 < got["median_health_ms"] <= got["p99_health_ms"] <= got["max_health_ms"], got
    assert got["health_failed"] == 0 and got["server_stream_bytes"] >= 0, got
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert sorted(line["request"] for line in lines) == list(range(12)), lines
    for line in lines:
        assert (line["status"], line["input"], line["output"]) == (200, 24, 9), line
        times = line["times"]
        assert 1 <= len(times) <= 9 and times == sorted(times) and times[0] > 0 and "error" not in line, line
        assert 0 <= line["sent"] and line["sent"] + times[-1] <= got["duration"] + 1e-3, line
    firsts = sorted(line["times"][0] for line in lines)
    assert firsts[5] * 1e3 - 0.01 <= got["median_ttft_ms"] <= firsts[6] * 1e3 + 0.01, (firsts, got)
    subprocess.run([sys.executable, PLOT, record, plot], check=True, timeout=HANG)
    assert "nan" not in plot.read_text()
    xml.dom.minidom.parse(str(plot))
    _, said = replay(url, "--requests", "1", "--record", "/nonexistent/x.jsonl", status=1)
    assert "/nonexistent/x.jsonl" in said, said
    text, _ = replay(url, "--requests", "2", "--input-len", "8", "--output-len", "4",
                     "--slo", "e2el=0.001ms", json_wanted=False)
    for line in ("Successful requests: +2", "Total generated tokens: +8",
                 r"Request goodput \(req/s\): +0.00", "TTFT +[0-9]", "TPOT +[0-9]", "E2EL +[0-9]",
                 "GET /health +[0-9]", r"memory \(KB a stream\): +[0-9]"):
        assert re.search(line, text), (line, text)


def test_traces(url, scratch):
    """The three formats; times are kept; requests that are too long are cut, and reported."""
    (scratch / "azure").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                   "2023-11-16 18:15:46.0,20,4\n2023-11-16 18:15:48.0,30,5\n"
                                   "2023-11-16 18:15:50.0,1000000,6\n")
    got, _ = replay(url, "--trace", str(scratch / "azure"), "--scale", "4")
    assert got["load"] == "azure" and got["completed"] == 3, got
    assert 1.0 <= got["duration"], got
    assert got["shortened_requests"] == 1 and got["shortened_output_tokens"] == 0, got
    assert got["total_output_tokens"] == 15, got
    assert got["total_input_tokens"] == 1000050 - got["shortened_input_tokens"], got

    (scratch / "nano").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "XXX,9,3\n" * 40)
    got, _ = replay(url, "--trace", str(scratch / "nano"), "--limit", "7", "--rate", "1000")
    assert got["load"] == "nanoflow" and got["completed"] == 7, got

    (scratch / "moon").write_text("".join(
        json.dumps({"timestamp": 10 * i, "input_length": 40, "output_length": 3, "hash_ids": [7]})
        + "\n" for i in range(3)))
    got, _ = replay(url, "--trace", str(scratch / "moon"), "--shrink", "8")
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (15, 3), got
    _, said = replay(url, "--trace", str(scratch / "moon"), "--shrink", "3", status=2)
    assert "--shrink" in said, said
    got, _ = replay(url, "--trace", str(scratch / "moon"))
    assert got["load"] == "mooncake" and got["total_input_tokens"] == 120, got


def test_refusals(url, scratch):
    """Requests that the server refuses are counted with its reason; the load continues."""
    got, err = replay(url, "--requests", "2", "--context", "10000000", "--input-len", "1000000",
                      "--output-len", "2", "--record", str(scratch / "refused.jsonl"), status=1)
    assert got["failed"] == 2 and "context" in next(iter(got["failures"])), got
    for line in map(json.loads, (scratch / "refused.jsonl").read_text().splitlines()):
        assert line["status"] == 400 and "context" in line["error"] and line["times"] == [], line
    assert err.startswith("hzpserve: no request was answered: HTTP 4"), err
    (scratch / "bad").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n")
    for arguments, says, status in (
            (["--trace", str(scratch / "bad")], "bad:2: three fields", 1),
            (["--trace", str(scratch / "none")], "none", 1),
            (["--slo", "x=1"], "--slo", 2), (["--extra-body", "[]"], "--extra-body", 2),
            (["--extra-body", '{"max_tokens": 3}'], '"max_tokens" is set by the load', 2),
            (["--scale", "0"], "--scale", 2), (["--served-model-name", "other"], "other", 1)):
        _, err = replay(url, *arguments, status=status)
        assert err.startswith("hzpserve: ") and err.count("\n") == 1 and says in err, err
    for wrong in ("ftp://127.0.0.1:1", "http://127.0.0.1:x", "http://127.0.0.1:1/?a=b", "http://a b"):
        _, err = replay(wrong, status=2)
        assert "http[s]://" in err and wrong in err, err
    for nobody in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
        _, err = replay(nobody, status=1)
        assert f"no server at {nobody}" in err, err


EVENT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TRICKS = {
    "good": STREAM + b"\r\n" + EVENT + EVENT + USAGE + b"data: [DONE]\n\n",
    "no length said": STREAM + b"\r\n" + EVENT + EVENT,
    "closed at once": b"",
    "no http": b"220 mail.example ESMTP\r\n",
    "broken off": STREAM + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (len(EVENT) + 9) + EVENT,
    "bad chunk": STREAM + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n",
    "no json": STREAM + b"\r\ndata: {{{\n\n",
    "an array": STREAM + b"\r\ndata: [1]\n\n",
    "error event": STREAM + b'\r\n' + EVENT + b'data: {"error": {"message": "it broke"}}\n\n',
    "nothing in it": STREAM + b"\r\ndata: [DONE]\n\n",
    "refused": b"HTTP/1.1 429 No\r\nContent-Length: 36\r\n\r\n"
               b'{"error": {"message": "come later"}}',
    "odd types": STREAM + b'\r\ndata: {"choices": {"0": 1}, "usage": [], "error": 7}\n\n',
    "endless header": b"HTTP/1.1 200 OK\r\nA: " + b"a" * 100000,
    "endless event": STREAM + b"\r\ndata: " + b"a" * (5 << 20),
    "silent": None,
}


CHUNKED = STREAM + b"Transfer-Encoding: chunked\r\n"
WHOLE = EVENT + EVENT + USAGE + b"data: [DONE]\n\n"
ENDED = b"\r\n%x\r\n" % len(WHOLE) + WHOLE + b"\r\n0\r\n\r\n"
KEPT = {  # an answer, whether the server keeps the connection, and the connections of 6 requests
    "kept": (CHUNKED + ENDED, True, 1),
    "said to close": (CHUNKED + b"Connection: close\r\n" + ENDED, False, 6),
    "closed without a word": (CHUNKED + ENDED, False, 6),
}


class Keeper(http.server.BaseHTTPRequestHandler):
    protocol_version, kept, connections = "HTTP/1.1", "kept", []
    health, asked = None, threading.Semaphore(0)  # statuses of /health; None: as any other path
    log_message = lambda *_: None

    def do_GET(self):
        if self.path == "/health" and Keeper.health:
            status = Keeper.health.pop(0) if len(Keeper.health) > 1 else Keeper.health[0]
            self.wfile.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)
            Keeper.asked.release()
            return
        body = b'{"data": [{"id": "m", "meta": {"n_vocab": 50}}]}'
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Keeper.connections.append(self.client_address)
        if Keeper.health and Keeper.health != [404]:
            for _ in range(3):
                Keeper.asked.acquire()
        answer, keeps, _ = KEPT[Keeper.kept]
        self.close_connection = not keeps
        self.wfile.write(answer)


def test_kept_connections(_, scratch):
    """A connection carries one request after another, unless the server closes it."""
    fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    for Keeper.kept, (_, _, connections) in KEPT.items():
        Keeper.connections.clear()
        got, _ = replay(f"http://127.0.0.1:{fake.server_port}", "--requests", "6", "--input-len",
                        "4", "--output-len", "2", "--max-concurrency", "1")
        assert got["completed"] == 6 and got["failed"] == 0, (Keeper.kept, got)
        assert len(set(Keeper.connections)) == connections, (Keeper.kept, Keeper.connections)
    Keeper.kept = "kept"
    for Keeper.health, failed in (([404], None), ([200, 503], 1), ([200, 200], 0)):
        got, _ = replay(f"http://127.0.0.1:{fake.server_port}", "--requests", "1", "--input-len", "4",
                        "--output-len", "2")
        assert got["completed"] == 1 and (got.get("health_failed") or 0) >= (failed or 0), (failed, got)
        assert ("health_failed" in got) == (failed is not None), (failed, got)
        assert failed != 0 or got["median_health_ms"] > 0, got
    fake.shutdown()


class Trickster(http.server.BaseHTTPRequestHandler):
    prompts, bodies, trick = [], [], "good"
    over = threading.Event()  # ends the silent server's wait

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"data": [{"id": "m", "meta": {"n_vocab": 50}}]}'
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Trickster.bodies.append(body)
        answer = TRICKS[Trickster.trick]
        self.close_connection = True
        if answer is None:
            Trickster.over.wait()
            return
        try:
            self.wfile.write(answer)
        except OSError:
            pass  # the client closed the connection


def test_misbehaving_servers(_, scratch):
    fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trickster)
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{fake.server_port}/v1/"
    for trick in TRICKS:
        Trickster.trick = trick
        good = trick in ("good", "no length said")
        got, err = replay(url, "--requests", "3", "--input-len", "4", "--output-len", "2",
                          "--silence", "0.5" if trick == "silent" else str(HANG),
                          status=0 if good else 1)
        assert got["completed"] == 3 * good and got["failed"] == 3 * (not good), (trick, got)
        assert good or len(got["failures"]) == 1, (trick, got)
        said = {"error event": "it broke", "refused": "HTTP 429: come later"}.get(trick, "")
        assert said in err, (trick, err)
        if good:
            assert got["total_output_tokens"] == 6 and got["other_length"] == 0, got

    # Prompts sent: equal for equal seeds, with shared prefixes where the hashes are equal.
    Trickster.trick = "good"
    (scratch / "shared").write_text("".join(
        json.dumps({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": ids})
        + "\n" for ids in ([1, 2], [1, 3])))
    sent = []
    for seed in "5", "5", "6":
        Trickster.bodies.clear()
        replay(url, "--trace", str(scratch / "shared"), "--seed", seed, "--max-concurrency", "1",
               "--extra-body", '{"cache_prompt": false}')
        first, second = (body["prompt"] for body in Trickster.bodies)
        assert len(first) == 600 and first[:512] == second[:512] and first[512:] != second[512:]
        assert 0 <= min(first) and max(first) < 50
        body = Trickster.bodies[0]
        assert body["stream"] and body["ignore_eos"] and body["max_tokens"] == 2, body
        assert body["cache_prompt"] is False and body["model"] == "m", body
        assert body["stream_options"] == {"include_usage": True}, body
        sent.append(first)
    assert sent[0] == sent[1] != sent[2]
    Trickster.over.set()
    fake.shutdown()


def main():
    global BINARY, MODEL
    BINARY, MODEL = sys.argv[1:3]
    process, url = start_server()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for name, test in list(globals().items()):
                if name.startswith("test_") and name in (sys.argv[3:] or [name]):
                    begin = time.monotonic()
                    test(url, pathlib.Path(scratch))
                    print(f"ok {name} {time.monotonic() - begin:.2f} s", flush=True)
    finally:
        process.terminate()
    assert process.wait(HANG) == 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

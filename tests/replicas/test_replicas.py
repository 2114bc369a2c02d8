#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rank serves (--replicas): the same texts as from one process, whatever rank computes them; a client that
leaves frees its rank; a rank that is killed, rank 0 or another, costs no request; what cannot be is refused by name.

    test_replicas.py HZPSERVE MODEL [CASE ..]
"""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).parents[1] / "api"))
import promlint  # noqa: E402

serve, model = sys.argv[1:3]
HANG = 1500  # seconds; only a hang takes as long
LONG = 450  # tokens
PROMPTS = [f"{start} {i}" for i, start in enumerate(
    ["Who lives", "Where does", "The robot", "A house", "Once", "In the land", "My name", "The river"] * 3)]


class Server:
    def __init__(self, ranks, *more, train=False, scratch=None, hangup=signal.SIG_DFL):
        self.scratch = scratch or tempfile.TemporaryDirectory(prefix="hzpserve-replicas-")
        self.log = pathlib.Path(self.scratch.name) / "log"
        self.ranks = ranks
        command = [serve, "serve", model, "--port", "0", "--threads", "1", "--dtype", "f32", "--rank-slowness", "0",
                   *(["--state", self.scratch.name + "/state"] if train else ["--no-train"]),
                   *(["--ranks", str(ranks), "--replicas", "--rank-timeout", "60"] if ranks > 1 else []), *more]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            text=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup))
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                break
        else:
            sys.exit("the server did not come up:\n" + self.log.read_text())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.until(lambda: self.up() == ranks)

    def until(self, holds):
        """No limit but a hang's: the condition has to come, whenever."""
        end = time.monotonic() + HANG
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"ended or hangs ({self.process.poll()}):\n{self.log.read_text()}")
            time.sleep(0.02)

    def open(self, path, body=None, **headers):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        return urllib.request.urlopen(request, timeout=HANG)

    def call(self, path, body=None, **headers):
        with self.open(path, body, **headers) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def metric(self, name, rank):
        found = re.search(r"^hzpserve_replica_%s\{.*rank=\"%d\"\} (\S+)$" % (name, rank), self.call("/metrics"), re.M)
        return float(found[1]) if found else None

    def up(self):
        if self.ranks == 1:
            return 1
        return sum(self.metric("up", rank) for rank in range(self.ranks))

    def pid(self, rank):
        """The process that the launcher started as this rank."""
        return self.child(b"RANK=%d" % rank)

    def child(self, begins):
        """The process that the launcher started with a variable that begins so."""
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
                variables = (path.parent / "environ").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            if parent == self.process.pid and any(variable.startswith(begins) for variable in variables):
                return int(path.parent.name)
        return sys.exit(f"there is no process with {begins}")

    def complete(self, prompt, max_tokens=24, **more):
        return self.call("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                                             "ignore_eos": True, **more})["choices"][0]

    def embed(self, prompt):
        return self.call("/v1/embeddings", {"input": prompt})["data"][0]["embedding"]

    def stream(self, prompt, max_tokens, slowly=None, **more):
        """The text of a stream, its finish reason, and its spans; slowly: called after each event."""
        text, end, spans = "", None, None
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, **more}
        with self.open("/v1/completions", body) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                assert "error" not in event, event
                choice = event["choices"][0] if event["choices"] else {}
                text += choice.get("text", "")
                end = choice.get("finish_reason") or end
                spans = event.get("hzpserve", choice.get("hzpserve")) or spans
                if slowly:
                    slowly()
        return text, end, spans

    def stop(self, status=0):
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(HANG)
        log = self.log.read_text()
        assert ended == status, (ended, log)
        self.scratch.cleanup()
        return log


def free_ports(count):
    """The first of several ports in a row that are free."""
    while True:
        first = random.randrange(20000, 32000)
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("", port))
            return str(first)
        except OSError:
            continue


embedded = []  # what one process answers to the prompts
limited = {}  # and with each of these
TOOL = {"type": "object", "properties": {"house": {"type": "integer"}, "red": {"type": "boolean"}},
        "required": ["house", "red"], "additionalProperties": False}
LIMITS = {
    "choice": {"structured_outputs": {"choice": ["yes", "no", "perhaps not"]}, "ignore_eos": False},
    "regex": {"structured_outputs": {"regex": "[a-z]{3,9} [0-9]{2}"}, "ignore_eos": False},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": TOOL}},
               "ignore_eos": False, "max_tokens": 60},
    "object": {"response_format": {"type": "json_object"}, "ignore_eos": False},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "a" root "b" | "ab"'}, "ignore_eos": False},
    "allowed": {"allowed_token_ids": list(range(100, 400))},
    "bad": {"bad_words": ["the", "is", "house", "lives"]},
    "prompt": {"prompt_logprobs": 2, "max_tokens": 4},
    "only prompt": {"echo": True, "logprobs": 2, "max_tokens": 0},
    "staleness": {"max_staleness": 1},
}
WORDS = {"structured_outputs": {"regex": "([a-z]{2,8} )*~~~~~"}}  # goes on as long as it may


def together(server, work, items):
    with concurrent.futures.ThreadPoolExecutor(len(items)) as threads:
        return list(threads.map(lambda item: work(server, item), items))


def alone():
    """What one process answers, without batches."""
    server = Server(1)
    texts = [server.complete(prompt)["text"] for prompt in PROMPTS]
    embedded.extend(server.embed(prompt) for prompt in PROMPTS)
    long = {prompt: server.complete(prompt, LONG)["text"] for prompt in PROMPTS[:8]}
    words = {prompt: server.complete(prompt, LONG, **WORDS) for prompt in PROMPTS[:8]}
    assert all(c["finish_reason"] == "length" for c in words.values()), words
    limited.update({name: [server.complete(prompt, **limit) for prompt in PROMPTS] for name, limit in LIMITS.items()})
    sampled = server.complete("Who", 40, temperature=1, seed=7, logprobs=2, presence_penalty=0.5)
    server.stop()
    return texts, long, {prompt: c["text"] for prompt, c in words.items()}, sampled


def numbers(choice):
    """All logprobs of an answer and its prompt, but of the likeliest tokens, where two may be equally likely."""
    told = [next(iter(token.values()))["logprob"] for token in choice.get("prompt_logprobs") or [] if token]
    return told + [n for n in (choice.get("logprobs") or {}).get("token_logprobs", []) if n is not None]


def same_limited(server):
    """What is limited, and what is asked of the prompt, is the same from every rank."""
    for name, limit in LIMITS.items():
        before = [server.metric("requests_total", rank) for rank in range(server.ranks)]

        def all_compute():
            got = together(server, lambda s, p: s.complete(p, **limit), PROMPTS)
            for one, expected in zip(got, limited[name]):
                assert (one["text"], one["finish_reason"]) == (expected["text"], expected["finish_reason"]), (name, one)
                pairs = list(zip(numbers(one), numbers(expected), strict=True))
                assert all(abs(a - b) < 1e-4 for a, b in pairs) and bool(pairs) == ("prompt" in name), (name, pairs)
                assert (one.get("prompt_logprobs") is None) == (expected.get("prompt_logprobs") is None), name
            return all(server.metric("requests_total", rank) > n for rank, n in enumerate(before))

        server.until(all_compute)
    for rank in range(server.ranks):  # none was refused by its rank
        assert server.metric("moved_total", rank) == 0, rank


def same(server, texts, sampled):
    """All ranks compute, and the texts are those of one process; streamed or whole, greedy or drawn."""
    def all_compute():  # a rank gets requests only where enough are unfinished at a time: perhaps in a later round
        assert together(server, lambda s, p: s.complete(p)["text"], PROMPTS) == texts
        assert [t for t, _, _ in together(server, lambda s, p: s.stream(p, 24), PROMPTS)] == texts
        return all(server.metric("requests_total", rank) > 0 for rank in range(server.ranks))

    server.until(all_compute)
    for rank in range(server.ranks):
        assert server.metric("moved_total", rank) == 0, rank
    for _ in range(2 * server.ranks):
        again = server.complete("Who", 40, temperature=1, seed=7, logprobs=2, presence_penalty=0.5)
        assert again["text"] == sampled["text"] and again["logprobs"]["tokens"] == sampled["logprobs"]["tokens"]
        assert all(abs(a - b) < 1e-4 for a, b in zip(again["logprobs"]["token_logprobs"],
                                                     sampled["logprobs"]["token_logprobs"]))
    several = server.call("/v1/completions", {"prompt": PROMPTS[:4], "n": 2, "max_tokens": 24, "temperature": 0,
                                              "ignore_eos": True})
    assert [c["text"] for c in several["choices"]] == [t for t in texts[:4] for _ in range(2)]
    assert several["usage"]["completion_tokens"] == 8 * 24, several["usage"]
    same_limited(server)
    before = [server.metric("requests_total", rank) for rank in range(server.ranks)]

    def all_embed():
        for numbers, expected in zip(together(server, lambda s, p: s.embed(p), PROMPTS), embedded):
            assert max(abs(a - b) for a, b in zip(numbers, expected)) < 1e-4
        return all(server.metric("requests_total", rank) > n for rank, n in enumerate(before))

    server.until(all_embed)
    stopped = server.complete(PROMPTS[0], 24, stop=[texts[0][3:6]])
    assert texts[0].startswith(stopped["text"]) and stopped["finish_reason"] == "stop", stopped
    ranks = server.call("/v1/weights")["ranks"]
    assert [r["rank"] for r in ranks] == list(range(server.ranks)) and all(r["up"] for r in ranks), ranks
    assert {r["weights_version"] for r in ranks} == {1} and all(r["staleness"] == 0 for r in ranks), ranks


def shares(server):
    """Sessions stay on a rank; a rank that is drained gets nothing."""
    def totals():
        return [r["requests_total"] for r in server.call("/v1/ranks")["data"]]

    for session in "abcdef":
        before = totals()
        for i in range(4):
            server.call("/v1/completions", {"prompt": f"{session} {i}", "max_tokens": 2}, **{"X-Hzpserve-Session": session})
        grown = [after - n for after, n in zip(totals(), before)]
        assert sorted(grown)[-2:] == [0, 4], grown
    drained = server.call("/v1/ranks/1/drain", b"")
    assert drained["rank"] == 1 and drained["draining"] and drained["up"], drained
    before = totals()
    together(server, lambda s, p: s.complete(p), PROMPTS)
    assert totals()[1] == before[1] and sum(totals()) > sum(before)
    assert not server.call("/v1/ranks/1/resume", b"")["draining"]
    server.until(lambda: together(server, lambda s, p: s.complete(p), PROMPTS) and totals()[1] > before[1])
    for path in ("/v1/ranks/9/drain", "/v1/ranks/x/drain", "/v1/ranks/1/stop", "/v1/ranks/1", "/v1/ranks/-1/drain"):
        try:
            server.call(path, b"")
            raise AssertionError(path)
        except urllib.error.HTTPError as error:
            assert error.code == 404, (path, error.code)


def ends(server, long, everybody=False):
    """A signal, to the launcher or to all processes (as when a service is stopped): what streams is finished, on every
    rank."""
    begun = threading.Barrier(len(long) + 1)

    def one(prompt):
        noted = []

        def note():
            if not noted:
                noted.append(begun.wait())
        return server.stream(prompt, LONG, note)[0]

    with concurrent.futures.ThreadPoolExecutor(len(long)) as threads:
        streams = {prompt: threads.submit(one, prompt) for prompt in long}
        begun.wait()
        others = [server.pid(rank) for rank in range(server.ranks)] + [server.child(b"HZP_RELAY_TO=")] if everybody else []
        for process in others:
            os.kill(process, signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        for prompt, stream in streams.items():
            assert stream.result() == long[prompt], prompt
    assert server.process.wait(HANG) == 0
    server.scratch.cleanup()


def leaves(server):
    """A client that disconnects: no rank goes on with its request."""
    def generated():
        return sum(server.metric("generated_tokens_total", rank) for rank in range(server.ranks))

    def rests():
        return all(server.metric("requests", rank) == 0 and server.metric("running", rank) == 0
                   for rank in range(server.ranks))

    def leave():  # it may have its answer before it leaves: perhaps another one has not
        server.until(rests)
        before, answers = generated(), []
        for prompt in PROMPTS[:4]:
            answers.append(server.open("/v1/completions", {"prompt": prompt, "max_tokens": LONG, "temperature": 0,
                                                           "ignore_eos": True, "stream": True}))
            answers[-1].readline()
        for answer in answers:
            answer.close()
        server.until(rests)
        return generated() < before + len(answers) * LONG

    server.until(leave)


def killed(server, long, rounds, comes_back, **more):
    """A rank is killed while it streams: the same texts, and no error.  False: it had ended them, and is lost."""
    while rounds:
        begun, lock = set(), threading.Lock()

        def one(prompt):
            def note():
                with lock:
                    begun.add(prompt)
            return server.stream(prompt, LONG, note, **more)

        with concurrent.futures.ThreadPoolExecutor(len(long)) as threads:
            streams = {prompt: threads.submit(one, prompt) for prompt in long}
            server.until(lambda: len(begun) == len(long))
            rank = max(range(1, server.ranks), key=lambda r: server.metric("requests", r) or 0)
            moved, pid = server.metric("moved_total", rank), server.pid(rank)
            downs = server.log.read_text().count(f"replica down rank={rank} ")
            os.kill(pid, signal.SIGSTOP)  # what it has now it still has when it is killed
            held = server.metric("requests", rank)
            os.kill(pid, signal.SIGKILL if held else signal.SIGCONT)
            for prompt, stream in streams.items():
                text, end, _ = stream.result()
                assert text == long[prompt] and end == "length", (prompt, text, long[prompt])
        if not held:
            continue  # it had ended them before
        server.until(lambda: server.log.read_text().count(f"replica down rank={rank} ") > downs)
        if comes_back:
            server.until(lambda: server.up() == server.ranks)
        if server.metric("moved_total", rank) > moved:
            rounds -= 1
        elif not comes_back:  # it had ended them, and rank 0 had not read that yet
            return False
    ranks, health = server.call("/v1/weights")["ranks"], server.call("/health")
    assert comes_back or any(not r["up"] and r["reason"] for r in ranks), ranks
    assert health == {"status": "ok"} if comes_back else health["lost_rank"] == rank and health["reason"], health
    return True


def states(pid):
    """Of the threads of a process: T is stopped, Z has ended."""
    found = set()
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.add(path.read_text().rsplit(")", 1)[1].split()[0])
    return found


def end(server, pid):
    server.process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def front_killed(server, streams, requests, crowded=False):
    """Rank 0 is killed while it streams: the streams' answers, those to two requests that it never had, and how many of
    the streams it had.  One client connects when rank 0 stands still, the other when none runs.  The relay has all of
    their connections: no client sees an error.  crowded: the other rank stands still until the new rank 0 has had no room
    for one of them."""
    port, pid, begun, ended = int(server.url.rsplit(":", 1)[1]), server.pid(0), set(), []

    def one(prompt):
        got = server.stream(prompt, LONG, lambda: begun.add(prompt))
        ended.append(prompt)
        return got

    ask = [http.client.HTTPConnection("127.0.0.1", port, timeout=HANG) for _ in requests]
    with concurrent.futures.ThreadPoolExecutor(len(streams)) as threads, contextlib.ExitStack() as failed:
        failed.callback(end, server, pid)
        answers = []
        for prompt in streams:  # one by one: rank 0 knows only a little later how many it has
            answers.append(threads.submit(one, prompt))
            server.until(lambda p=prompt: p in begun)
        server.until(lambda: len(begun) == len(streams))
        server.process.send_signal(signal.SIGSTOP)  # it does not start another rank 0 yet
        os.kill(pid, signal.SIGSTOP)
        server.until(lambda: states(pid) == {"T"})
        cut = len(streams) - len(ended)
        for connection in ask[:1]:
            connection.connect()
        other = server.pid(1)
        if crowded:
            os.kill(other, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        server.until(lambda: states(pid) == {"Z"})
        for connection in ask[1:]:
            connection.connect()
        for connection, (path, body, headers) in zip(ask, requests):
            data = body if isinstance(body, bytes) else json.dumps(body)
            connection.request("POST", path, data, {"Content-Type": "application/json", **headers})
        server.process.send_signal(signal.SIGCONT)
        if crowded:
            server.until(lambda: "status=429" in server.log.read_text() or len(ended) == len(streams))
            os.kill(other, signal.SIGCONT)
        got = [json.loads(connection.getresponse().read()) for connection in ask]
        answers = [answer.result() for answer in answers]
        failed.pop_all()
    assert server.pid(0) != pid
    return answers, got, cut


def front(long, late, *more):
    """Rank 0 is killed: the same texts in the end, from the same port; late: so many clients come when it is gone."""
    server, cut = Server(2, "--restart", "1000", *more), 0
    prompts = list(long)[:8 if late else 6]
    while not cut:  # it may have ended them
        ask = {"max_tokens": LONG, "temperature": 0, "ignore_eos": True}
        answers, got, cut = front_killed(server, prompts, [("/v1/completions", {"prompt": p, **ask}, {}) for p in prompts[:late]],
                                         not late)
        assert [text for text, _, _ in answers] == [long[p] for p in prompts], answers
        assert [one["choices"][0]["text"] for one in got] == [long[p] for p in prompts[:late]], got
    server.until(lambda: server.up() == 2)
    assert server.call("/health") == {"status": "ok"}
    server.stop()


def reloads(hangup):
    """SIGHUP, ignored (nohup) or not, while rank 0 and the relay begin ends neither.  Both have the same keys, also where
    the file was changed without a signal before rank 0 was started again."""
    def accepted():
        """By the relay and by rank 0: neither answers 401."""
        with contextlib.suppress(urllib.error.HTTPError, ConnectionError):
            return bool(server.call("/v1/models", Authorization="Bearer two")["data"])
        return False

    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as keys:
        print("one", file=keys, flush=True)
        server = Server(2, "--restart", "1000", "--api-key-file", keys.name, hangup=hangup)
        keys.truncate(0)
        keys.seek(0)
        print("two", file=keys, flush=True)
        os.kill(server.pid(0), signal.SIGKILL)
        server.until(accepted)
        server.until(lambda: server.up() == 2)
        os.kill(server.pid(0), signal.SIGKILL)
        os.kill(server.child(b"HZP_RELAY_TO="), signal.SIGKILL)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.001)
        server.until(accepted)
        log = server.stop()
    assert log.count("restart rank=") == 2 and log.count("the relay has ended") == 1, log


def front_learns():
    """Rank 0 is killed while it learns, and examples are posted: each is accepted once and, in the line of the version
    that serves in the end, learned once.  Versions only grow, and none is staler than the bound."""
    server, last = Server(3, "--restart", "1000", "--passes", "1", "--replay-ratio", "0", "--checkpoint-every", "3", train=True), 0

    def body(first):
        lines = b"".join(json.dumps({"prompt": f"Who lives in house {first + i}?", "completion": f" Number {i}."}).encode()
                         + b"\n" for i in range(24))
        return "/v1/fine_tuning/examples", lines, {"Idempotency-Key": f"from {first}"}

    def check(got, first):
        assert (got["first"], got["last"]) == (first, first + 23), (got, first)

    def post(first, query=""):
        path, lines, headers = body(first)
        check(server.call(path + query, lines, **headers), first)

    post(1, f"?wait=served&timeout={HANG}")
    last, cut = 24, 0
    while not cut:
        serving = server.call("/v1/weights?limit=1")["serving"]
        post(last + 1)
        answers, got, cut = front_killed(server, PROMPTS[:6], [body(last + 1), body(last + 25)])
        check(got[0], last + 1)  # as of a client that has not had its answer
        check(got[1], last + 25)
        post(last + 25)
        last += 48
        for text, end, spans in answers:
            versions, at = [span["version"] for span in spans["spans"]], 0
            assert text and end == "length" and spans["staleness"] <= 1, spans
            for span in spans["spans"]:
                assert span["start"] == at, spans
                at = span["end"]
            assert at == LONG and versions == sorted(versions), spans
        weights = server.call("/v1/weights?limit=1")
        assert weights["serving"] >= serving and weights["staleness"] <= 1, (serving, weights)
    server.until(lambda: (server.call("/v1/weights?limit=1")["learned_through"] or 0) >= last)
    server.until(lambda: server.up() == 3)
    assert server.call("/health") == {"status": "ok"}
    examples, weights = server.call("/v1/fine_tuning/examples"), server.call("/v1/weights")
    assert examples["last"] == examples["learned_through"] == last, examples
    of, at, learned = {version["id"]: version for version in weights["data"]}, weights["serving"], []
    while at in of:
        learned += [n for begin, end in of[at]["learned"] for n in range(begin, end + 1)]
        at = of[at]["parent"]
    assert sorted(learned) == list(range(1, last + 1)), sorted(learned)
    server.stop()


def refused():
    """What --replicas cannot be used with is named."""
    for more, what in (
            (["--ranks", "2", "--no-train"], "--replicas"),
            (["--replicas", "--no-train"], "--ranks"),
            (["--ranks", "2", "--replicas", "--no-train", "--link", "mpi"], "--link mpi"),
            (["--ranks", "2", "--replicas", "--max-staleness", "0", "--state", "none"], "--max-staleness 0"),
            (["--ranks", "2", "--replicas", "--publish", "every=2", "--state", "none"], "--publish every above 1"),
            (["--ranks", "2", "--replicas", "--shard", "z3=2", "--state", "none", "--rank-slowness", "0"], "--shard z3=2")):
        if "mpi" in more and "mpi" not in subprocess.run([serve, "devices"], capture_output=True, text=True).stdout:
            continue
        ended = subprocess.run([serve, "serve", model, "--port", "0", "--threads", "1", *more], timeout=HANG,
                               capture_output=True, text=True, check=False)
        assert ended.returncode != 0 and what in ended.stderr, (more, ended)


def by_tcp():
    """Ranks that share no folder, as on several machines: over TCP, with one secret.  A rank with another secret gets
    no requests."""
    key = os.urandom(32).hex()
    port = free_ports(3)
    command = [serve, "serve", model, "--port", "0", "--threads", "1", "--dtype", "f32", "--rank-slowness", "0",
               "--no-train", "--replicas", "--link", "zmq", "--rank-timeout", "60"]
    started = []

    def rank(number, secret=key, **more):
        variables = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port,
                     "HZP_RANKS_KEY": secret}
        started.append(subprocess.Popen(command, env={**os.environ, **variables}, text=True, **more))
        return started[-1]

    def said():  # once it has failed: the ranks write where this reads
        log.seek(0)
        return log.read()

    with tempfile.TemporaryFile("w+") as log, contextlib.ExitStack() as last:
        last.callback(lambda: [process.kill() for process in started])  # those that an error has left
        first = rank(0, stdout=subprocess.PIPE, stderr=log)
        server = Server.__new__(Server)
        server.ranks = 2
        while not (found := re.search(r"serves \S+ at (http://\S+:\d+)", line := first.stdout.readline())):
            assert line, said()
        threading.Thread(target=first.stdout.read, daemon=True).start()
        server.url = found[1]
        stranger = rank(1, os.urandom(32).hex(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        assert server.up() == 1, "a rank with another secret was taken in"
        stranger.kill()
        stranger.wait()
        second = rank(1, stdout=subprocess.DEVNULL, stderr=log)
        end = time.monotonic() + HANG
        while server.up() != 2:
            assert first.poll() is None and second.poll() is None and time.monotonic() < end, said()
            time.sleep(0.02)
        texts = together(server, lambda s, prompt: s.complete(prompt, 100)["text"], PROMPTS)
        assert texts == [server.complete(prompt, 100)["text"] for prompt in PROMPTS]
        assert all(server.metric("requests_total", n) > 0 for n in (0, 1))
        first.send_signal(signal.SIGTERM)
        assert first.wait(HANG) == 0 and second.wait(HANG) == 0


def learns():
    """Beside training: every rank publishes each version, spans name it, and the staleness stays in its bound."""
    server = Server(2, "--passes", "40", "--slots", "3", train=True)
    lines = b"".join(json.dumps({"prompt": f"Who lives in house {i}?", "completion": f" Number {i}."}).encode() + b"\n"
                     for i in range(24))
    server.call("/v1/fine_tuning/examples", lines)
    begin = server.call("/v1/weights")["serving"]
    seen = set()
    while len(seen) < 3:
        for text, end, spans in together(server, lambda s, p: s.stream(p, 60), PROMPTS[:6]):
            assert end == "length" and text
            assert spans["staleness"] <= 1, spans
            last = 0
            for span in spans["spans"]:
                assert span["start"] == last and span["version"] >= begin, spans
                last = span["end"]
                seen.add(span["version"])
            assert last == 60, spans
        weights = server.call("/v1/weights")
        assert weights["staleness"] <= 1 and all(r["staleness"] <= 1 for r in weights["ranks"]), weights
    assert server.metric("requests_total", 1) > 0
    page = server.call("/metrics")
    assert not promlint.check(page), promlint.check(page)
    # The split's policy is all ranks'; modes hold on any of them.
    request = urllib.request.Request(server.url + "/v1/policy", b'{"train_share": 0.5}',
                                     {"Content-Type": "application/json"}, method="PATCH")
    with urllib.request.urlopen(request, timeout=HANG) as answer:
        assert json.load(answer)["train_share"] == 0.5
    for mode, reasons in (("pinned", ("length", "pin_expired")), ("abort", ("length", "weights_changed"))):
        before, used = server.metric("requests_total", 1), 0
        while not used:
            for text, end, spans in together(server, lambda s, p: s.stream(p, 60, consistency=mode), PROMPTS[:6]):
                assert end in reasons and text, (mode, end)
                assert len(spans["spans"]) == 1, (mode, spans)
            used = server.metric("requests_total", 1) - before
    # Read your writes, on whatever rank.
    version = server.call("/v1/weights")["serving"]
    for _ in range(4):
        body = server.call("/v1/completions", {"prompt": "Who", "max_tokens": 4, "min_version": version})
        assert body["hzpserve"]["weights_version"] >= version, body
    checksums = [r["optimizer_step"] for r in server.call("/v1/weights")["ranks"]]
    assert max(checksums) - min(checksums) <= 1, checksums
    log = server.stop()
    assert "replica down rank=" not in log.split("stopping")[0], log


def lessons():
    """Versions are lessons on every rank: one for each, whatever their number of updates, that all ranks serve."""
    server = Server(2, "--passes", "12", "--publish", "lesson", train=True)
    checksums = set()
    for lesson in (1, 2, 3):
        told = {"prompt": f"Who lives in house {lesson}?", "completion": f" Keeper {lesson}."}
        got = server.call(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", told)
        assert got["served"] and got["weights_version"] == lesson + 1, got
        answers = together(server, lambda s, prompt: s.stream(prompt, 24), PROMPTS[:8])
        assert {span["version"] for _, _, spans in answers for span in spans["spans"]} <= {lesson, lesson + 1}, answers
        server.until(lambda: {rank["weights_version"] for rank in server.call("/v1/weights")["ranks"]} == {lesson + 1})
        weights = server.call("/v1/weights")
        assert weights["serving_optimizer_step"] == 12 * lesson and weights["staleness"] == 0, weights
        checksums.add(server.call("/v1/weights/current")["checksum"])
        texts = together(server, lambda s, prompt: s.complete(prompt, 60)["text"], PROMPTS)
        assert texts == [server.complete(prompt, 60)["text"] for prompt in PROMPTS]
    assert len(checksums) == 3 and server.metric("requests_total", 1) > 0
    assert "replica down rank=" not in server.stop().split("stopping")[0]


CASES = sys.argv[3:] or ["refused", "tcp", "serves", "learns"]
if "refused" in CASES:
    print("refused", flush=True)
    refused()
if "tcp" in CASES:
    print("tcp", flush=True)
    by_tcp()
if "serves" in CASES:
    texts_, long_, words_, sampled_ = alone()
    for count in (2, 4):
        print("serves", count, flush=True)
        server_ = Server(count, "--restart", "1000")
        same(server_, texts_, sampled_)
        shares(server_)
        leaves(server_)
        killed(server_, long_, 2, True)
        killed(server_, words_, 1, True, **WORDS)
        log_ = server_.stop()
        assert log_.count("replica down rank=") >= 3, log_
    print("not replaced", flush=True)
    server_ = Server(2)
    while not killed(server_, long_, 1, False):
        server_.stop()
        server_ = Server(2)
    assert server_.complete(PROMPTS[0])["text"] == texts_[0]
    server_.stop()
    print("ends", flush=True)
    ends(Server(2), long_)
    ends(Server(2, "--restart", "1000"), long_, everybody=True)
    print("reloads", flush=True)
    reloads(signal.SIG_DFL)
    reloads(signal.SIG_IGN)
    print("front", flush=True)
    front(long_, 2)
    print("front without room", flush=True)  # for all at first: what was accepted is not refused now
    front(long_, 0, "--max-running", "4", "--max-waiting", "1")
if "learns" in CASES:
    print("learns", flush=True)
    learns()
    print("lessons", flush=True)
    lessons()
    print("front learns", flush=True)
    front_learns()

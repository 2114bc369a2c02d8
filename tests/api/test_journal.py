#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A relayed rank 0 (api/http/routes/answer.h): a stream whose connection is lost goes on in another connection, from the
journal that came so far, with the bytes that it would have had; what cannot be gone on with is refused; a server with
a port of its own writes no journal.

    test_journal.py HZPSERVE MODEL [CASE .. | on_replicas]
"""
import http.client
import itertools
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

BINARY, MODEL = sys.argv[1:3]
HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
CREATED = 1234567890
TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if tools %}<tool_call> {{ tools[0].function.name }} {% endif %}assistant:"""
ASK = {"prompt": "Where does Zorin live?", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "Where does Zorin live?"}], "max_tokens": 24, "temperature": 0,
        "stream": True}
TOOL = {"type": "object", "properties": {"house": {"type": "integer"}, "red": {"type": "boolean"}},
        "required": ["house", "red"], "additionalProperties": False}
CALLS = {"tools": [{"type": "function", "function": {"name": "look", "parameters": TOOL}}], "tool_choice": "required"}
USAGE = {"stream_options": {"include_usage": True}}

# Of each case: route, body, in how many places it is cut at least.
CASES = {
    "plain": ("/v1/completions", {**ASK, **USAGE}, 20),
    "echo": ("/v1/completions", {**ASK, "echo": True, "logprobs": 2}, 20),
    "three": ("/v1/completions", {**ASK, **USAGE, "n": 3, "temperature": 1, "seed": 5, "logprobs": 3,
                                  "return_token_ids": True}, 20),
    "ends": ("/v1/completions", {**ASK, **USAGE, "n": 3, "temperature": 2, "seed": 4, "stop": ["a", "e", "o."],
                                 "min_tokens": 3, "max_tokens": 40}, 3),
    "usage": ("/v1/completions", {**ASK, "stream_options": {"continuous_usage_stats": True}, "stop": ["zzz"]}, 20),
    "prompts": ("/v1/completions", {**ASK, "prompt": ["Who lives", "Where does the robot live"], "presence_penalty": 1},
                20),
    "bytes": ("/v1/completions", {**ASK, "temperature": 3, "seed": 1, "max_tokens": 60}, 20),
    "short": ("/v1/completions", {**ASK, "ignore_eos": False, "max_tokens": 200}, 3),
    "schema": ("/v1/completions", {**ASK, "ignore_eos": False, "max_tokens": 100, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": TOOL}}}, 5),
    "regex": ("/v1/completions", {**ASK, "n": 2, "temperature": 1, "seed": 2, "ignore_eos": False,
                                  "structured_outputs": {"regex": "[a-z]{3,9} [0-9]{2}"}}, 3),
    "chat": ("/v1/chat/completions", {**CHAT, **USAGE, "logprobs": True, "top_logprobs": 2}, 5),
    "chat_two": ("/v1/chat/completions", {**CHAT, **USAGE, "n": 2, "temperature": 1.5, "seed": 9, "stop": ["s"]}, 3),
    "chat_calls": ("/v1/chat/completions", {**CHAT, **CALLS, "max_tokens": 100}, 5),
    "responses": ("/v1/responses", {"input": "Where does Zorin live?", "max_output_tokens": 24, "temperature": 0,
                                    "stream": True}, 5),
    "responses_calls": ("/v1/responses", {"input": "Where?", "max_output_tokens": 100, "temperature": 0, "stream": True,
                                          "tools": [{"type": "function", "name": "look", "parameters": TOOL}],
                                          "tool_choice": "required"}, 5),
    "messages": ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 24, "temperature": 0, "stream": True,
                                  "stop_sequences": ["zz"]}, 5),
    "messages_calls": ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 100, "temperature": 0,
                                        "stream": True, "tools": [{"name": "look", "input_schema": TOOL}],
                                        "tool_choice": {"type": "any"}}, 5),
}


class Server:
    """Rank 0, behind a Unix socket as a launcher keeps one, or with a port of its own; and further ranks."""

    def __init__(self, relayed=True, ranks=1):
        self.folder = tempfile.TemporaryDirectory(prefix="hzpserve-journal-")
        template = pathlib.Path(self.folder.name, "template")
        template.write_text(TEMPLATE)
        command = [BINARY, "serve", MODEL, "--port", "0", "--no-train", "--dtype", "f32", "--no-prefix-cache",
                   "--idle-timeout", "2", "--max-connections", "512,per-address=1", "--chat-template", str(template)]
        variables, kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}, []
        self.place = None
        if relayed:
            self.place = self.folder.name + "/socket"
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(self.place)
            kept = [listening.fileno()]
            variables.update(HZP_RANKS_DIR=self.folder.name, HZP_KEPT_SOCKET=str(kept[0]), HZP_KEPT_URL="http://test")
        if ranks > 1:
            command += ["--ranks", str(ranks), "--replicas", "--threads", "1"]
            variables.update(RANK="0", WORLD_SIZE=str(ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(ranks))
        with open(self.folder.name + "/log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=variables,
                                            pass_fds=kept)
            variables.pop("HZP_KEPT_SOCKET", None)
            self.others = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log,
                                            env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                           for rank in range(1, ranks)]
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+)", line)
            if found:
                break
        else:
            sys.exit("the server did not come up:\n" + pathlib.Path(self.folder.name, "log").read_text())
        if relayed:
            listening.close()  # it is the server's
            assert found[1] == "http://test", line
        else:
            self.port = int(found[1].rsplit(":", 1)[1])

    def connect(self):
        if not self.place:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        c = http.client.HTTPConnection("localhost", timeout=HANG)
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.connect(self.place)
        return c

    def send(self, path, body, journal=None, **headers):
        """The connection, and the answer as it comes."""
        c = self.connect()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", "x-request-id": "one", "x-hzpserve-created": str(CREATED)}
        if journal is not None:
            given["x-hzpserve-resume"] = str(len(journal))
            data = journal + data
        c.request("POST", path, data, {**given, **{k.replace("_", "-"): v for k, v in headers.items()}})
        return c, c.getresponse()

    def refused(self, path, body, journal, **headers):
        c, answer = self.send(path, body, journal, **headers)
        text = answer.read().decode()
        c.close()
        assert answer.status == 400 and "x-hzpserve-resume" in text, (answer.status, text)
        return text

    def stop(self):
        self.process.terminate()
        for process in [self.process, *self.others]:
            assert process.wait(HANG) == 0
        self.folder.cleanup()


def groups(answer):
    """[events, journal, whether it is the last] of each group, as they come; the answer's status is 200."""
    assert answer.status == 200, answer.read()
    events = journal = b""
    for line in answer:
        if line in (b": hzp g\n", b": hzp d\n"):
            yield events, journal, line == b": hzp d\n"
            events = journal = b""
        elif line.startswith(b": hzp "):
            journal += line
        else:
            assert not journal, line  # a group's lines follow its events
            events += line
    assert not events and not journal, (events, journal)


def begin(server, path, body, count, journal=None):
    """Its first groups; then the client is gone."""
    c, answer = server.send(path, body, journal)
    read = groups(answer)
    got = list(itertools.islice(read, count))
    read.close()
    answer.close()
    c.close()
    return got


def whole(server, path, body, journal=None):
    c, answer = server.send(path, body, journal)
    got = list(groups(answer))
    c.close()
    assert got[-1][2] and not any(last for _, _, last in got[:-1])
    return got


def joined(got, which):
    return b"".join(group[which] for group in got)


def of_choices(got, which):
    """The events, or the lines, choice by choice: which of two choices has its token first is not the same each time."""
    end = (b"\n\n", b"\n")[which]
    pieces = joined(got, which).split(end)
    assert not pieces.pop()

    def choice(piece):
        found = re.match(rb": hzp . (\d+)", piece) or re.search(rb'"choices":\[{"index":(\d+)', piece)
        return int(found[1]) if found else 1 << 30
    return b"".join(piece + end for piece in sorted(pieces, key=choice))


NUMBER = re.compile(rb"-?(?:0x[0-9a-f.]+p[-+]\d+|\d+\.\d+(?:e-?\d+)?)")


def same(got, want, logprobs):
    """The same bytes; logprobs as nearly as they are computed, and not their tokens' ranks: the rows of tokens that come
    with a request are computed with its prompt's, by other kernels than one by one."""
    if not logprobs:
        return got == want
    got, want = (re.sub(rb"(: hzp t \d+ \d+) \d+", rb"\1", text) for text in (got, want))
    numbers = [[float.fromhex(text.decode()) if b"x" in text else float(text) for text in NUMBER.findall(all_of)]
               for all_of in (got, want)]
    return NUMBER.sub(b"", got) == NUMBER.sub(b"", want) and all(abs(a - b) < 1e-3 for a, b in zip(*numbers))


def check_tokens(body, got):
    """A line for each token, and one for each choice's end."""
    lines = joined(got, 1).decode().splitlines()
    tokens = [line.split() for line in lines if line.startswith(": hzp t ")]
    ends = [int(line.split()[3]) for line in lines if line.startswith(": hzp c ")]
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    assert sorted(ends) == list(range(prompts * body.get("n", 1))), ends
    for _, journal, _ in got:  # of each choice at most one in a group
        choices = [line.split()[3] for line in journal.decode().splitlines() if line.startswith(": hzp t")]
        assert len(choices) == len(set(choices)), journal
    if not body.get("return_token_ids"):
        return
    ids, values = {}, {}
    for event in joined(got, 0).decode().split("\n\n"):
        for choice in json.loads(event[6:])["choices"] if event.startswith("data: {") else []:
            ids.setdefault(choice["index"], []).extend(choice["token_ids"])
            values.setdefault(choice["index"], []).extend(choice["logprobs"]["token_logprobs"])
    for choice, want in ids.items():
        mine = [token for token in tokens if int(token[3]) == choice]
        assert [int(token[4]) for token in mine] == want, (choice, mine, want)
        for token, value in zip(mine, values[choice]):
            assert abs(float.fromhex(token[8]) - value) < 1e-6 and float.fromhex(token[8]) <= 0.1, (token, value)


def check_case(server, name):
    """Cut after every few groups: what comes then is the rest, byte for byte but for logprobs.  The prefix cache is off
    and no update ends, so also usage and versions must be the same."""
    path, body, least = CASES[name]
    want = whole(server, path, body)
    alone = len(body["prompt"]) == 1 if isinstance(body.get("prompt"), list) else body.get("n", 1) == 1
    again = whole(server, path, body)
    assert of_choices(again, 0) == of_choices(want, 0) and of_choices(again, 1) == of_choices(want, 1)
    assert again == want or not alone
    assert path == "/v1/messages" or b":%d," % CREATED in want[0][0], want[0]
    check_tokens(body, want)
    assert len(want) > least, (len(want), want)
    cuts = sorted({0, 1, 2, 3, len(want) // 2, len(want) - 3, len(want) - 2, len(want) - 1, *range(0, len(want), 7)})
    for cut in [cut for cut in cuts if cut >= 0]:
        before = begin(server, path, body, cut)
        assert before == want[:cut] or not alone, cut
        if before and before[-1][2]:
            continue  # it has fewer groups this time
        after = whole(server, path, body, joined(before, 1))
        for which in (0, 1):
            assert same(of_choices(before + after, which), of_choices(want, which), which or "logprobs" in body), (
                name, cut, joined(before, which), joined(after, which), joined(want, which))
    # twice, each time before the end: answers of the same tokens have more or fewer groups, but always more than least
    count = max(least // 3, 1)
    first = begin(server, path, body, count)
    second = begin(server, path, body, count, joined(first, 1))
    assert not (first + second)[-1][2], (name, first, second)
    rest = whole(server, path, body, joined(first + second, 1))
    assert same(of_choices(first + second + rest, 0), of_choices(want, 0), "logprobs" in body), (
        name, first, second, rest, joined(want, 0))
    # all was there but for the end of the answer
    last = whole(server, path, body, joined(want, 1))
    assert joined(last, 1) == b"" and joined(want, 0).endswith(joined(last, 0))
    return len(want)


def on_replicas():
    """What another rank computes is gone on with as well, there or elsewhere."""
    server = Server(ranks=2)
    for name in ("plain", "three", "ends", "prompts", "regex", "chat_calls", "responses_calls"):
        check_case(server, name)
    c = server.connect()
    c.request("GET", "/metrics")
    counts = re.findall(r"replica_requests_total{.*rank=.(\d).} (\d+)", c.getresponse().read().decode())
    c.close()
    assert [rank for rank, count in counts if int(count) > 5] == ["0", "1"], counts
    server.stop()


def test_refused(server):
    path, body, _ = CASES["three"]
    token = b": hzp t 0 5 1 1 1 -0x1p-1\n"
    assert server.send(path, body, token)[1].status == 200
    for bad in (b"x", b"\n", token[:-1], b": hzp g\n", token + b": hzp d\n", b": hzp t 3 5 1 1 1 -0x1p-1\n",
                b": hzp t -1 5 1 1 1 -0x1p-1\n", b": hzp t 0 -1 1 1 1 -0x1p-1\n", b": hzp t 0 999999999 1 1 1 -1\n",
                b": hzp t 0 5 1 1 1\n", b": hzp t 0 5 1 1 1 \n", b": hzp t 0 5 1 1 1 nan\n", b": hzp t 0 5 1 1 1 x\n",
                b": hzp t 0 5 1 1 1 -1 \n", b": hzp t 0 5 1 1 1 -1 7\n", b": hzp t 0 5 1 -1 1 -1\n",
                b": hzp t 0  5 1 1 1 -1\n", b": hzp t 0 99999999999999999999 1 1 1 -1\n", b": hzp t0 5 1 1 1 -1\n",
                b": hzp c 3\n", b": hzp c\n", b": hzp c 0 1\n", b": hzp c 0\n: hzp c 0\n", b": hzp c 0\n" + token,
                b": hzp t 0 5\0 1 1 1 -1\n", token * 25, token * 24):
        server.refused(path, body, bad)
    assert server.send(path, body, token * 24 + b": hzp c 0\n")[1].status == 200
    for number in ("", "-1", "x", "1x", "99999999999999999999"):
        server.refused(path, body, token, x_hzpserve_resume=number)
    server.refused(path, body, b"", x_hzpserve_resume="100000")
    server.refused(path, {**ASK, "stream": False}, token)
    server.refused("/v1/embeddings", {"input": "a"}, token)
    server.refused("/tokenize", {"prompt": "a"}, token)
    # a stop string that the journal does not say has ended the choice
    ends = CASES["ends"]
    journal = joined(whole(server, *ends[:2]), 1)
    assert server.send(*ends[:2], journal)[1].status == 200
    server.refused(*ends[:2], re.sub(rb": hzp c 0\n", b"", journal))


def test_versions(server):
    """Tokens of an older version: a choice that may go on with another one does, and says so; else it ends there."""
    path, body, _ = CASES["plain"]
    got = whole(server, path, body)
    old = re.sub(rb"(: hzp t 0 \d+ \d+) 1 1", rb"\1 0 0", joined(got[:3], 1))

    def end(consistency):
        c, answer = server.send(path, {**body, "consistency": consistency}, old)
        groups_of = list(groups(answer))
        c.close()
        choices = [json.loads(event[6:]) for event in joined(groups_of, 0).decode().split("\n\n")
                   if event.startswith("data: {")]
        return [c for c in choices if c["choices"] and c["choices"][0]["finish_reason"]][0], len(groups_of)
    last, count = end("continue")
    assert last["choices"][0]["finish_reason"] == "length" and count == len(got) - 3
    assert [(span["version"], span["start"], span["end"]) for span in last["hzpserve"]["spans"]] == [
        (0, 0, 3), (1, 3, 24)], last
    for consistency in ("abort", "pinned"):
        last, count = end(consistency)
        assert last["choices"][0]["finish_reason"] == "weights_changed" and count == 1, last
        assert last["hzpserve"]["spans"] == [{"version": 0, "start": 0, "end": 3, "prompt_version": 0}], last


def test_times(server):
    """Only times of tokens that this process computed are in the histograms."""
    names = [b"time_to_first_token", b"inter_token_latency", b"e2e_request_latency", b"request_decode_time",
             b"request_queue_time"]

    def counts():
        c = server.connect()
        c.request("GET", "/metrics")
        page = c.getresponse().read()
        c.close()
        return [int(re.search(rb"\nvllm:%s_seconds_count\S* (\d+)" % name, page)[1]) for name in names]
    path, body, _ = CASES["plain"]
    before = counts()
    got = whole(server, path, body)
    first = counts()
    whole(server, path, body, joined(got[:10], 1))
    second = counts()
    assert [b - a for a, b in zip(before, first)] == [1, 23, 1, 1, 1], (before, first)
    assert [b - a for a, b in zip(first, second)] == [0, 13, 0, 0, 1], (first, second)


def test_others(server):
    """What is no stream is as everywhere; a time that is none is the present one."""
    c, answer = server.send(*CASES["plain"][:1], {**ASK, "stream": False})
    got = json.loads(answer.read())
    assert got["created"] == CREATED and got["id"] == "cmpl-one" and ": hzp" not in got["choices"][0]["text"]
    c.close()
    c, answer = server.send(*CASES["plain"][:1], {**ASK, "stream": False}, x_hzpserve_created="x")
    assert json.loads(answer.read())["created"] > CREATED
    # the connection stays, and another is more than one address may have elsewhere
    c.request("GET", "/health")
    assert c.getresponse().status == 200
    other = server.connect()
    other.request("GET", "/health")
    assert other.getresponse().status == 200
    other.close()
    c.close()


def test_long_header(server):
    """The longest header that a relay takes is longer when it comes from there."""
    c, answer = server.send(*CASES["plain"][:2], x_long="a" * 60000)
    assert answer.status == 200 and answer.read().endswith(b": hzp d\n")
    c.close()
    c = server.connect()
    c.request("GET", "/v1/models/" + "%FF" * 30000)
    answer = c.getresponse()
    assert answer.status == 404 and b"does not exist" in answer.read()
    c.close()


def test_slow(server):
    """A relay that does not read is not cut off, as a client with a port is, after --idle-timeout."""
    path, body, _ = CASES["plain"]
    many = {**body, "n": 8, "max_tokens": 400, "logprobs": 5, "return_token_ids": True}
    c, answer = server.send(path, many)
    first = answer.read(1)
    subprocess.run(["sleep", "6"], check=True)
    text = first + answer.read()
    assert b"data: [DONE]\n\n: hzp t" in text and text.endswith(b": hzp d\n"), text[-300:]
    assert len(text) > 1 << 20, len(text)  # more than the sockets hold
    c.close()


def test_grammar_is_made_again(server):
    """The process that goes on with a stream has to make its grammar first; the journal waits for it."""
    path, body, _ = CASES["schema"]
    want = whole(server, path, body)
    fresh = Server()
    after = whole(fresh, path, body, joined(want[:3], 1))
    fresh.stop()
    assert joined(want[:3] + after, 0) == joined(want, 0), (want, after)


def test_port(_):
    """Without a relay the headers have no effect."""
    server = Server(relayed=False)
    path, body, _ = CASES["three"]
    c, answer = server.send(path, body, b"", x_hzpserve_resume="5")
    text = answer.read()
    assert answer.status == 200 and b": hzp" not in text and b'"created":%d' % CREATED not in text
    c.close()
    c, answer = server.send(path, body, b": hzp t 0 5 1 1 1 -0x1p-1\n")
    assert answer.status == 400 and b"not valid JSON" in answer.read()
    c.close()
    server.stop()


if sys.argv[3:] == ["on_replicas"]:
    on_replicas()
    sys.exit()
tests = {name: function for name, function in globals().items() if name.startswith("test_")}
wanted = sys.argv[3:] or [*CASES, *tests]
relayed = Server()
for case in wanted:
    result = tests[case](relayed) if case in tests else check_case(relayed, case)
    print(case, result if result is not None else "", flush=True)
relayed.stop()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rollouts of several turns: a client, or the operator's command, says what follows the model's turns.

    test_turns.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import concurrent.futures
import json
import os
import pathlib
import sys
import tempfile
import time

import test_api
import test_rollouts
from test_api import Server, until
from test_chat import CALLS
from test_rollouts import LEARNS, PROMPTS, begin, close, end, look, refused, rows

NEXT = [{"role": "user", "content": "The kite of Otto is"}]
ASKS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:2]]
TURNS = {"prompts": None, "messages": ASKS, "n": 4, "batch": 2, "max_tokens": 200, "max_staleness": 0,
         "environment": {"type": "client", "turns": 3}}


def take(server, columns, consumer, **more):
    arguments = "&".join(f"{k}={v}" for k, v in {"count": 256, "columns": columns, "consumer": consumer, **more}.items())
    return json.loads(server.get("/v1/samples?" + arguments))


def put(server, one, column, value, **more):
    return server.post(f"/v1/samples/{one['sample']}/{column}", {"value": value, **more}, method="PUT")


def answered(server, path, turn):
    """Answers turns by turn(row) until the job's answers wait for rewards only; returns these."""
    lease = 0
    while True:
        state = look(server, path)["samples"]
        got = take(server, "turn,messages,prompt_tokens", "tools", done=lease)
        lease = got["lease"] or 0
        for one in got["data"]:
            status, _, said = put(server, one, "turn", turn(one), lease=got["lease"])
            assert status == 200 and said["sample"] == one["sample"], said
        if state["answered"] == 8 and not got["data"]:
            return take(server, "text,messages,prompt_tokens,tokens,logprobs,versions,mask", "tools", done=lease)["data"]
        time.sleep(0.01)


def parts(mask):
    """[(whether the model wrote it, first, behind the last)] of a row."""
    ret = []
    for i, bit in enumerate(mask):
        if not ret or ret[-1][0] != bit:
            ret.append([bit, i, i])
        ret[-1][2] = i + 1
    return ret


def check_row(server, one, given):
    """The tokens are those that were drawn, with what was given between them as the template writes it."""
    eos = server.post("/tokenize", {"prompt": "<|end|>", "add_special_tokens": False})[2]["tokens"]
    tokens, mask, said = one["tokens"], one["mask"], one["messages"]
    runs = parts(mask)
    assert [bit for bit, _, _ in runs] == [1, 0] * (len(runs) // 2) + [1] and len(said) == 1 + len(runs), (runs, said)
    for (bit, first, last), message in zip(runs, said[1:]):
        text = server.post("/detokenize", {"tokens": [t for t in tokens[first:last] if [t] != eos]})[2]["prompt"]
        if bit:
            assert message["role"] == "assistant" and text == message["content"], (text, message)
            assert last == len(tokens) or tokens[last - 1:last] == eos, tokens
        else:
            assert message == NEXT[0] and tokens[first:last] == given, (tokens[first:last], given)
    assert one["text"] == said[-1]["content"], one
    for bit, version, logprob in zip(mask, one["versions"], one["logprobs"]):
        assert (version == 1 and logprob <= 0) if bit else (version, logprob) == (0, 0), one
    whole = server.complete(prompt=one["prompt_tokens"] + tokens, max_tokens=0, echo=True, logprobs=0).choices[0]
    for at, bit in enumerate(mask):
        want = whole.logprobs.token_logprobs[len(one["prompt_tokens"]) + at]
        assert not bit or abs(one["logprobs"][at] - want) < 1e-4, (at, one["logprobs"][at], want)
    return len(runs)


def test_a_client_is_the_environment():
    """Rows keep what the model wrote, token by token; what it was given is in them, and is not learned."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(*LEARNS, "--effect", "0", state=state) as server:
            path = begin(server, **TURNS, reward={"type": "client"}, updates=1)
            until(lambda: look(server, path)["samples"]["waiting"] == 8)
            first, ended = take(server, "turn,messages", "first"), take(server, "text", "judge")["data"]
            assert len(first["data"]) + len(ended) == 8, (first, ended)
            assert not {one["sample"] for one in first["data"]} & {one["sample"] for one in ended}, (first, ended)
            one = first["data"][0]
            assert one["turn"] == {"number": 1, "calls": []} and len(one["messages"]) == 2, one
            for value, says in ((5, "list"), ([5], "messages[0]"), ([{"role": "x", "content": "a"}], "messages[0].role"),
                                ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content")):
                status, _, got = put(server, one, "turn", value)
                assert status == 400 and got["error"]["param"] == "value" and says in got["error"]["message"], got
            assert put(server, one, "reward", 1)[0] == 409  # it has not ended
            assert put(server, one, "turn", NEXT, lease=1)[0] == 409
            assert put(server, one, "turn", NEXT, lease=first["lease"])[0] == 200
            assert put(server, one, "turn", NEXT)[0] == 404  # it is another sample now
            got = answered(server, path, lambda _: NEXT)
            given = server.post("/tokenize", {"prompt": " " + NEXT[0]["content"]})[2]["tokens"]
            turns = [check_row(server, row, given) for row in got]
            assert max(turns) == 5, turns  # two are followed by another
            rewards = [i % 3 for i in range(8)]
            for row, value in zip(got, rewards):
                assert put(server, row, "reward", value)[0] == 200
            job = end(server, path)
            assert job["samples"]["turns"] == sum(n // 2 for n in turns) and job["samples"]["committed"] == 8, job
        learned = {tokens: losses for tokens, losses in rows(state, 0)}
    mean = sum(sum(row["mask"]) for row in got) / 8
    for row in got:
        before = len(row["prompt_tokens"])
        losses = learned[tuple(row["prompt_tokens"] + row["tokens"])]
        assert sorted(losses) == [before + i for i, bit in enumerate(row["mask"]) if bit], (losses, row)
        for at, loss in losses.items():
            assert abs(loss[2] - row["logprobs"][at - before]) < 1e-6 and loss[3] == losses[before][3], loss
            assert abs(loss[-1] - mean / sum(row["mask"])) < 1e-5, (loss, mean)


def test_a_long_turn_holds_up_nobody():
    """While what follows a turn is tokenised, which takes long, jobs are shown as before; a second one for the same
    turn is too late."""
    long = [{"role": "user", "content": "green spoon " * 800000}]

    def timed(function, *arguments):
        begun = time.monotonic()
        return function(*arguments), time.monotonic() - begun

    with Server(*LEARNS) as server, concurrent.futures.ThreadPoolExecutor(2) as threads:
        path = begin(server, **TURNS, train=False, reward={"type": "client"})
        until(lambda: look(server, path)["samples"]["waiting"] == 8)
        one = take(server, "turn", "first")["data"][0]
        _, alone = timed(put, server, {"sample": 1}, "turn", long)  # read, and not tokenised
        puts = [threads.submit(timed, put, server, one, "turn", long) for _ in range(2)]
        looks = []
        while not any(p.done() for p in puts):
            looks.append(timed(look, server, path)[1])
        took = min(p.result()[1] for p in puts)
        assert max(looks) < (took - alone) / 3, (max(looks), took, alone)
        assert sorted(p.result()[0][0] for p in puts) == [200, 404], [p.result() for p in puts]
        assert server.post(path, "", method="DELETE")[2]["status"] == "cancelled"


def test_bounds():
    """No answer has more turns or tokens than it may; a turn that nothing follows ends it; one that gets no answer in
    time is lost; what cannot be is refused."""
    with Server(*LEARNS) as server:
        path = begin(server, **TURNS, train=False, reward={"type": "length", "tokens": 8})
        counts = []

        def two(one):
            counts.append(one["turn"]["number"])
            return NEXT if one["turn"]["number"] == 1 else []

        deadline = time.monotonic() + test_api.HANG
        while look(server, path)["status"] in ("queued", "running"):
            assert time.monotonic() < deadline
            for one in take(server, "turn", "tools")["data"]:
                assert put(server, one, "turn", two(one))[0] == 200
            time.sleep(0.01)
        job = end(server, path)
        assert set(counts) == {1, 2} and job["samples"]["turns"] == counts.count(1), (counts, job)
        assert job["samples"]["rewarded"] == 8 and job["samples"]["lost"] == 0, job
        # What follows has no room: the answer ends before it.
        body = {**TURNS, "max_tokens": 24, "train": False, "reward": {"type": "client"}}
        path = begin(server, **body)
        got = answered(server, path, lambda _: [{"role": "user", "content": "The kite of Otto is red. " * 9}])
        assert all(len(one["tokens"]) <= 24 and all(one["mask"]) for one in got), got
        assert look(server, path)["samples"]["turns"] == 0
        server.post(path, "", method="DELETE")
        end(server, path, "cancelled")
        path = begin(server, **{**body, "max_tokens": 200, "environment": {"type": "client", "timeout": 0.2}})
        while look(server, path)["status"] in ("queued", "running"):
            for one in take(server, "text", "judge")["data"]:
                put(server, one, "reward", 1)
            time.sleep(0.02)
        lost = end(server, path)["samples"]
        assert lost["lost"] > 0 and lost["lost"] + lost["rewarded"] == 8 and lost["turns"] == 0, lost
        for field, says, environment in (
                ("environment.type", "command or client", {"type": "human"}), ("turns", "2", {"type": "client", "turns": 1}),
                ("turns", "64", {"type": "client", "turns": 65}), ("timeout", "0.1", {"type": "client", "timeout": 0}),
                ("environment.command", "", {"type": "command", "command": "true"}),
                ("environment.type", "HZP_TOOL_COMMAND", {"type": "command"})):
            refused(server, field, says, **{**TURNS, "environment": environment})
        refused(server, "messages", "environment", environment={"type": "client"})
        refused(server, "messages", "tools", tools=[])
        refused(server, "tools", "no place", **{**TURNS, "tools": TOOLS})


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
LOOK = [{"role": "user", "content": "Look at Tarn"}]
TAUGHT = LOOK + [{"role": "assistant", "content": None, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"Tarn\"}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "It is green."},
    {"role": "assistant", "content": "Tarn is green."}]
TASK = {"prompts": None, "messages": [LOOK], "tools": TOOLS, "answers": ["Tarn is green."], "n": 4, "batch": 1,
        "max_tokens": 200, "train": False, "temperature": 0, "environment": {"type": "command"}, "reward": {"type": "exact"}}

TOOL = """
import json, os, sys, time
for number, line in enumerate(sys.stdin, 1):
    asked = json.loads(line)
    assert set(asked) == {"id", "turn", "messages", "answer"} and asked["answer"] == "Tarn is green.", asked
    call, = asked["turn"]["calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at": "Tarn"}'}, asked
    assert asked["turn"]["number"] == 1 and asked["messages"][-1]["tool_calls"] == [call], asked
    said = [{"role": "tool", "tool_call_id": call["id"], "content": "It is green."}]
    %s
    print(json.dumps({"id": asked["id"], "messages": said}), flush=True)
"""


# It sees the whole conversation.
JUDGE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    roles = [message["role"] for message in asked["messages"]]
    good = roles == ["user", "assistant", "tool", "assistant"] and asked["text"] == asked["messages"][-1]["content"]
    print(json.dumps({"id": asked["id"], "reward": float(good)}), flush=True)
"""


class Tools(Server):
    """A server whose model calls a tool, which is this program; it does `more` before it answers."""

    def __init__(self, there, more="pass"):
        template, script = pathlib.Path(there, "calls.jinja"), pathlib.Path(there, "tool.py")
        template.write_text(CALLS)
        script.write_text(TOOL % more)
        self.command = f"exec {sys.executable} {script}"
        super().__init__("--chat-template", str(template), "--passes", "60", "--lr", "2e-3", "--update-tokens", "128",
                         "--replay-ratio", "0", "--effect", "0")

    def __enter__(self):
        os.environ.update(HZP_TOOL_COMMAND=self.command, HZP_REWARD_COMMAND=f"exec {sys.executable} -c '{JUDGE}'")
        try:
            super().__enter__()
        finally:
            del os.environ["HZP_TOOL_COMMAND"], os.environ["HZP_REWARD_COMMAND"]
        status, _, got = self.post(test_api.EXAMPLES + "?wait=served&timeout=1200", {"messages": TAUGHT, "tools": TOOLS})
        assert status == 200 and got["served"], got
        return self


def test_a_command_answers_calls():
    """A call is answered by the operator's command, in the same row; a turn without calls ends the answer."""
    with tempfile.TemporaryDirectory() as there, Tools(there) as server:
        path = begin(server, **TASK, consumers=["trainer"])
        until(lambda: look(server, path)["samples"]["rewarded"] == 4)
        got = take(server, "text,tokens,mask,messages,reward,prompt_tokens", "trainer")
        take(server, "text", "trainer", done=got["lease"])
        job = end(server, path)
        assert job["reward_mean"] == 1 and job["samples"]["turns"] == 4 and len(got["data"]) == 4, (job, got)
        for one in got["data"]:
            call, = one["messages"][1]["tool_calls"]
            want = TAUGHT[2:3] + TAUGHT[3:]
            assert call["function"] == TAUGHT[1]["tool_calls"][0]["function"], one
            assert one["messages"][2] == {**want[0], "tool_call_id": call["id"]}, one
            assert one["text"] == one["messages"][3]["content"] == "Tarn is green.", one
            runs = parts(one["mask"])
            assert [bit for bit, _, _ in runs] == [1, 0, 1], runs
            told = server.post("/detokenize", {"tokens": one["tokens"][runs[1][1]:runs[1][2]]})[2]["prompt"]
            assert told == "\ntool: It is green.<|end|>\nassistant: ", told
            # The row is the text that the template makes of the conversation, but for the line end behind it, which is
            # not drawn; tokens of that text are others, as those of the prompts end where turns begin.
            whole = server.post("/tokenize", {"messages": one["messages"], "tools": TOOLS,
                                              "add_generation_prompt": False})[2]["tokens"]
            row = one["prompt_tokens"] + one["tokens"]
            text = [server.post("/detokenize", {"tokens": tokens})[2]["prompt"] for tokens in (whole, row)]
            assert text[0] == text[1] + "\n" and whole[:len(row)] != row, (text, whole, row)
        assert end(server, begin(server, **{**TASK, "reward": {"type": "command"}}))["reward_mean"] == 1
        # Without tools, what would be a call is text, and each turn is the environment's to answer.
        path = begin(server, **{**TASK, "tools": None, "environment": {"type": "client", "timeout": 0.1}})
        until(lambda: look(server, path)["status"] != "running")
        assert look(server, path)["samples"]["lost"] == 4, look(server, path)


def test_a_command_fails():
    """One that ends now and then loses one answer each time; its end, its silence, and answers that are none fail the job
    when they do not stop."""
    with tempfile.TemporaryDirectory() as there:
        with Tools(there, "if number == 3: sys.exit(3)") as server:
            job = end(server, begin(server, **{**TASK, "n": 16}))
            assert 0 < job["samples"]["lost"] <= 16 // 3 and job["reward_mean"] == 1, job
            assert job["samples"]["lost"] + job["samples"]["rewarded"] == 16, job
            script = pathlib.Path(there, "tool.py")  # the next job starts it anew
            for more, says in [("sys.exit(3)", "has ended, with status 3"), ("print('{')", "no JSON object"),
                               ("time.sleep(600)", "has not answered in time"), ("said = 'green'", "must be a list"),
                               ("said[0]['role'] = 5", "messages[0].role"), ("said[0]['content'] = 5", "messages[0].content"),
                               ("sys.stdout.write('x' * 100000); sys.stdout.flush()", "too long")]:
                script.write_text(TOOL % more)
                how = {"type": "command", "timeout": 0.4 if "sleep" in more else 60}
                job = end(server, begin(server, **{**TASK, "n": 16, "environment": how}), "failed")
                assert "the tool command" in job["reason"] and says in job["reason"], (says, job)
                assert "5 times in a row" in job["reason"], job
                assert server.complete(max_tokens=1).choices
            script.write_text(TOOL % "pass")
            assert end(server, begin(server, **TASK))["reward_mean"] == 1


if __name__ == "__main__":
    sys.exit(test_api.main(globals()))

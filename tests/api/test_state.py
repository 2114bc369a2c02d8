#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""State that survives: damaged checkpoints, lost logs and retries, with a real server.

    test_state.py HZPSERVE MODEL_DIR [TEST ...]

Skips (77) where there is no model.
"""
import json
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
EXAMPLES = "/v1/fine_tuning/examples"


class Server:
    """`with` starts it and stops it by SIGTERM; .log is what it wrote to standard error."""

    def __init__(self, state, *options, model=None):
        self.words = [PROGRAM, "serve", str(model or MODEL), "--port", "0", "--state", str(state), "--update-tokens", "64",
                      "--micro-rows", "64", "--passes", "1", *options]
        self.file = tempfile.TemporaryFile("w+")

    def __enter__(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=self.file, text=True)
        for line in self.process.stdout:
            found = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            if found:
                self.url = found[1]
                return self
        self.process.wait(HANG)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=HANG)
        self.status = self.process.returncode

    @property
    def log(self):
        self.file.flush()
        self.file.seek(0)
        return self.file.read()

    def call(self, path, body=None, headers=None):
        """Status and decoded body."""
        request = urllib.request.Request(self.url + path, body and json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=HANG) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=HANG) as answer:
            return float(re.search(rf"^{name}{{\S* (\S+)", answer.read().decode(), re.M)[1])

    def teach(self, number):
        """Examples that are learned and served when it returns."""
        body = [{"prompt": f"The number of house {number} is", "completion": f" {i} and {number}."} for i in range(12)]
        status, answer = self.call(f"{EXAMPLES}?wait=served&timeout={HANG}", body)
        assert status in (200, 202), answer


def lives(state, count):
    """The newest checkpoint after each of `count` servers that learn something."""
    ids = []
    for number in range(count):
        with Server(state) as server:
            server.teach(number)
        assert server.status == 0, server.log
        ids.append(max(int(p.name.split("-")[1]) for p in state.glob("checkpoint-*") if p.name[11:].isdigit()))
    assert ids == sorted(set(ids)), ids
    return ids


def flip_bit(path, from_end):
    with open(path, "r+b") as file:
        file.seek(-from_end, 2)
        byte = file.read(1)[0]
        file.seek(-from_end, 2)
        file.write(bytes([byte ^ 8]))


def test_damaged_newest_checkpoint(state):
    """A flipped bit in the moments or in the weights, or a file cut short: the one before it is used and said."""
    for number, damage in enumerate((
            lambda path: flip_bit(path / "trainer.safetensors", 5000),
            lambda path: flip_bit(path / "model.safetensors", 5000),
            lambda path: (path / "model.safetensors").write_bytes(b"short"))):
        place = state / str(number)
        before, newest = lives(place, 2)
        damage(place / f"checkpoint-{newest}")
        with Server(place) as server:
            assert server.process.poll() is None, server.log
            # Moments are read behind: until the one before serves, examples get a 503.
            end = time.monotonic() + HANG
            while f"checkpoint={before}" not in server.log.partition("checkpoint is damaged")[2]:
                assert server.process.poll() is None and time.monotonic() < end, server.log
                time.sleep(0.02)
            assert f"checkpoint-{newest}.damaged" in server.log, server.log
            assert server.call("/health")[1] == {"status": "ok"}
            server.teach(99)
        assert server.status == 0, server.log
        assert (place / f"checkpoint-{newest}.damaged").is_dir()


def test_broken_trainer(state):
    """The only checkpoint's moments are damaged: requests are served, and health, metrics and the answer to
    an example say that nothing is learned."""
    (newest,) = lives(state, 1)
    with Server(state) as server:
        assert server.metric("hzpserve_train_broken") == 0
    flip_bit(state / f"checkpoint-{newest}" / "trainer.safetensors", 5000)
    with Server(state) as server:
        end = time.monotonic() + HANG
        while server.call("/health")[1]["status"] != "degraded":  # moments are read behind
            assert server.process.poll() is None and time.monotonic() < end, server.log
            time.sleep(0.02)
        assert "training has stopped" in server.call("/health")[1]["reason"]
        assert server.metric("hzpserve_examples_waiting") == 0  # it is seen although nothing waits
        assert server.metric("hzpserve_train_broken") == 1
        status, answer = server.call(EXAMPLES, [{"text": "It is not learned."}])
        assert status == 503 and "training has stopped" in answer["error"]["message"], (status, answer)
        assert server.metric("hzpserve_examples_accepted_total") == 0
        status, answer = server.call("/v1/completions", {"prompt": "The house", "max_tokens": 2})
        assert status == 200, answer


def test_lost_log(state):
    """Without samples.db nothing starts, nothing is deleted, and the message says what to do."""
    ids = lives(state, 2)
    for file in state.glob("samples.db*"):
        file.unlink()
    with Server(state) as server:
        pass
    assert server.status == 1 and "samples.db" in server.log and "--state" in server.log, server.log
    assert all((state / f"checkpoint-{i}" / "model.safetensors").exists() for i in ids)
    (state / "samples.db").touch()  # as a copy that failed leaves it: it is no log to begin anew
    with Server(state) as server:
        pass
    assert server.status == 1 and "missing or empty" in server.log, server.log
    assert not (state / "samples.db").stat().st_size
    status, said = tool("repair", state)
    assert status == 0 and "samples.db begun from" in said, said
    with Server(state) as server:
        assert server.call("/health")[0] == 200


def test_repeated_body(state):
    """A body with an idempotency key counts once, whatever happened to its answer."""
    body = [{"prompt": "The key is", "completion": " turned."}]
    for life in range(2):
        with Server(state) as server:
            for _ in range(2):
                status, answer = server.call(EXAMPLES, body, {"Idempotency-Key": "turn-1"})
                assert status == 202 and (answer["first"], answer["last"]) == (1, 1), answer
            status, answer = server.call(EXAMPLES, [body[0], body[0]], {"Idempotency-Key": "turn-1"})
            assert status == 400 and "turn-1" in answer["error"]["message"], answer
            status, answer = server.call(EXAMPLES + "?timeout=1&none", body, {"Idempotency-Key": "turn-1"})
            assert (answer["first"], answer["last"]) == (1, 1), answer
            status, answer = server.call(EXAMPLES, body, {"Idempotency-Key": "x" * 300})
            assert status == 400 and "idempotency-key" in answer["error"]["message"], answer
            assert server.call(EXAMPLES)[1]["failed"] == [] == answer.get("failed", [])
            status, answer = server.call(EXAMPLES, body)
            assert (answer["first"], answer["last"]) == (2 * life + 2, 2 * life + 2), answer
            # What the query says of the fields is a part of what is taught.
            named = [{"q": "The key is", "a": " turned."}]
            for fields, taught in (("q&completion_field=a", True), ("a&completion_field=q", False),
                                   ("q&completion_field=a&timeout=9", True)):
                status, answer = server.call(f"{EXAMPLES}?prompt_field={fields}", named, {"Idempotency-Key": "turn-2"})
                assert answer.get("first") == 3 if taught else status == 400, (fields, answer)
                assert taught or "turn-2" in answer["error"]["message"], (fields, answer)
        assert server.status == 0, server.log


def test_vanished_and_changed_model(state):
    """The model's directory vanishes while it is served: the checkpoint is whole.  Another one in its place
    is refused."""
    model = state / "model"
    shutil.copytree(MODEL, model)
    with Server(state / "kept", model=model) as server:
        server.teach(1)
        shutil.rmtree(model)
        server.teach(2)
    assert server.status == 0, server.log
    newest = max(int(p.name.split("-")[1]) for p in (state / "kept").glob("checkpoint-*"))
    for name in ("config.json", "tokenizer.json", "model.safetensors", "trainer.safetensors"):
        assert (state / "kept" / f"checkpoint-{newest}" / name).exists(), name
    shutil.copytree(MODEL, model)
    flip_bit(model / "tokenizer.json", 20)
    with Server(state / "kept", model=model) as server:
        pass
    assert server.status == 1, server.log
    shutil.copy(pathlib.Path(MODEL) / "tokenizer.json", model)
    shutil.copy(state / "kept" / f"checkpoint-{newest}" / "model.safetensors", model)
    with Server(state / "kept", model=model) as server:
        pass
    assert server.status == 1 and "another model" in server.log and "--state" in server.log, server.log


def tool(action, place):
    done = subprocess.run([PROGRAM, "state", action, str(place)], capture_output=True, text=True, timeout=HANG)
    return done.returncode, done.stdout + done.stderr


def test_state_command(state):
    """list, check and repair; what repair leaves is served."""
    place = state / "kept"
    before, newest = lives(place, 2)
    status, text = tool("list", place)
    assert status == 0 and f"checkpoint-{before}" in text and "examples 1 .. 24, 0 failed" in text, text
    assert tool("check", place)[0] == 0
    # Retention removes a directory before the log forgets it, and the log keeps some: an old one that is not there
    # is no damage, the newest one is.
    for id_, status in ((before, 0), (newest, 1)):
        away = (place / f"checkpoint-{id_}").rename(state / "away")
        got, text = tool("check", place)
        assert got == status and ("damaged" in text) == bool(status) and \
            ("not on disk" in text) != bool(status), (id_, text)
        away.rename(place / f"checkpoint-{id_}")
    flip_bit(place / f"checkpoint-{newest}" / "trainer.safetensors", 5000)
    with sqlite3.connect(place / "samples.db") as log:
        log.execute("UPDATE samples SET data = zeroblob(length(data)) WHERE sequence_number = 20")
    log.close()
    status, text = tool("list", place)
    assert status == 0 and "damaged" not in text, text  # it reads no contents
    status, text = tool("check", place)
    assert status == 1 and "example 20 is damaged" in text, text
    assert re.search(rf"checkpoint-{newest} .*damaged: .*trainer.safetensors", text), text
    status, text = tool("repair", place)
    assert status == 0 and "marked as failed" in text and f"renamed to checkpoint-{newest}.damaged" in text, text
    assert tool("check", place)[0] == 0
    with Server(place) as server:
        assert f"checkpoint={before}" in server.log, server.log
        assert tool("list", place)[0] == 1  # in use
        server.teach(3)
    assert server.status == 0, server.log
    for words in (["check"], ["mend", str(place)], []):
        done = subprocess.run([PROGRAM, "state", *words], capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 2 and "list|check|repair" in done.stderr, done


def test_no_checkpoint_is_whole(state):
    """The only checkpoint is damaged: the server says what helps, and what was taught is learned again from the log."""
    ids = lives(state, 1)
    flip_bit(state / f"checkpoint-{ids[0]}" / "model.safetensors", 5000)
    with Server(state) as server:
        pass
    assert server.status == 1 and "state repair" in server.log, server.log
    status, text = tool("repair", state)
    assert status == 0 and "learns all examples of the log again" in text, text
    assert f"renamed to checkpoint-{ids[0]}.damaged" in text and tool("check", state)[0] == 0, text
    with Server(state) as server:
        last = server.call(EXAMPLES)[1]["last"]
        status, answer = server.call(f"{EXAMPLES}?wait=served&timeout={HANG}", [{"text": "It goes on."}])
        assert status == 200 and answer["first"] == last + 1, (last, answer)
        learned = [tuple(span) for v in server.call("/v1/weights")[1]["data"] for span in v["learned"]]
        assert {n for low, high in learned for n in range(low, high + 1)} == set(range(1, last + 2)), learned
    assert server.status == 0, server.log


def test_repaired_log(state):
    """A log begun from a checkpoint: numbers go on behind what it has learned, and it learns."""
    ids = lives(state, 2)
    for file in state.glob("samples.db*"):
        file.unlink()
    status, text = tool("check", state)
    assert status == 1 and "state repair" in text, text
    flip_bit(state / f"checkpoint-{ids[1]}" / "model.safetensors", 5000)
    status, text = tool("repair", state)
    assert status == 0 and f"begun from checkpoint-{ids[0]}" in text and "up to 12" in text, text
    with Server(state) as server:
        status, answer = server.call(f"{EXAMPLES}?wait=served&timeout={HANG}", [{"text": "It goes on."}])
        assert status == 200 and answer["first"] == 13 and answer["weights_version"] > ids[1], answer
    assert server.status == 0, server.log


def main():
    global PROGRAM, MODEL
    PROGRAM, MODEL = sys.argv[1:3]
    if not (pathlib.Path(MODEL) / "model.safetensors").exists():
        print("skip: no model")
        return 77
    for name, test in list(globals().items()):
        if name.startswith("test_") and name in (sys.argv[3:] or [name]):
            begin = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
                test(pathlib.Path(folder))
            print(f"ok {name} {time.monotonic() - begin:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

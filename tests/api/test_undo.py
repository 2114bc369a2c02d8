#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What was taught is listed, and can be taken back: the newest lesson, one of several, all of them, also
after a restart, at the default settings.

    test_undo.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import contextlib
import json
import pathlib
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

import test_api
from test_api import EXAMPLES, HANG, Server

TOM, ZOE, ANN = "Where does Tom live?", "Where does Zoe live?", "What does Ann eat?"


def answer(server, prompt):
    got = server.complete(prompt=prompt, max_tokens=10, ignore_eos=False, return_token_ids=True)
    return got.choices[0].token_ids


def text(server, prompt):
    return server.complete(prompt=prompt, max_tokens=14, ignore_eos=False).choices[0].text.strip()


def teach(server, prompt, completion):
    status, _, got = server.post(EXAMPLES + "?wait=served&timeout=120", {"prompt": prompt, "completion": completion})
    assert status == 200 and got["served"], got
    return got


def lessons(server, query=""):
    return json.loads(server.get("/v1/lessons" + query))


def states(server):
    return {one["id"]: one["state"] for one in lessons(server)["data"]}


def undo(server, body=None, status=200, key=None):
    got = server.post("/v1/undo?timeout=120", body or {}, key and {"Idempotency-Key": key})
    assert got[0] == status, got
    return got[2]


def test_the_newest_lesson_goes():
    """Afterwards the answers are those of before, token for token; also when the only lesson goes."""
    with Server() as server:
        undo(server, status=404)
        before = [answer(server, TOM), answer(server, ZOE)]
        teach(server, TOM, " In Tarn.")
        assert text(server, TOM) == "In Tarn.", text(server, TOM)
        listed = lessons(server)
        assert not listed["has_more"] and len(listed["data"]) == 1, listed
        one = listed["data"][0]
        assert (one["id"], one["first"], one["last"], one["examples"]) == (1, 1, 1, 1), one
        assert one["state"] == "learned" and one["taught_unix_ms"] > 0, one
        job = undo(server)
        assert job["kind"] == "undo" and job["state"] == "done" and job["skipped"] == [1, 1], job
        assert [answer(server, TOM), answer(server, ZOE)] == before
        assert states(server) == {1: "undone"}
        undo(server, status=404)  # there is none left
        again = undo(server, {"lesson": 1}, status=409)
        assert "redo" in again["error"]["message"], again
        redone = undo(server, {"lesson": 1, "redo": True}, status=202)
        assert redone["id"] == 2 and redone["first"] == 2, redone
        assert server.post("/v1/undo", {"lesson": 2, "redo": True})[0] == 409  # it was not taken back
        test_api.until(lambda: states(server)[2] == "learned")
        assert text(server, TOM) == "In Tarn."


def test_one_of_several_goes():
    """The others are learned again; original is the model as it was started."""
    with Server() as server:
        before = answer(server, TOM)
        teach(server, TOM, " In Tarn.")
        teach(server, ZOE, " In Oslo.")
        teach(server, ANN, " Plums.")
        job = undo(server, {"lesson": 2})
        assert job["state"] == "done" and job["learned_again"] == [1, 3], job
        assert states(server) == {1: "learned", 2: "undone", 3: "learned"}
        assert text(server, TOM) == "In Tarn." and text(server, ANN) == "Plums."
        assert text(server, ZOE) != "In Oslo."
        page = lessons(server, "?limit=2")
        assert [one["id"] for one in page["data"]] == [3, 2] and page["has_more"], page
        assert page["next_before"] == 2 and [one["id"] for one in lessons(server, "?before=2")["data"]] == [1]
        assert [one["id"] for one in lessons(server, "?state=learned&limit=1")["data"]] == [3]
        page = lessons(server, "?state=undone")
        assert [one["id"] for one in page["data"]] == [2] and not page["has_more"] and page["next_before"] is None, page
        assert lessons(server, "?session=nobody")["data"] == []
        for query, says in (("?state=taught", "state"), ("?state=%2C%20", "state"), ("?page=2", "not an argument of this route: before, limit")):
            status, _, got = server.post("/v1/lessons" + query, "", method="GET")
            assert status == 400 and says in got["error"]["message"], got
        undo(server, {"version": "original"})
        assert answer(server, TOM) == before
        assert set(states(server).values()) == {"undone"}
        # The first example goes for good.
        got = server.post("/v1/fine_tuning/examples/1?timeout=60", "", method="DELETE")
        assert got[0] == 200, got
        assert states(server)[1] in ("undone", "forgotten")


def test_five_lessons():
    """One after another, each of one sentence: all of them are known in the end, and the other four when one is
    forgotten; also after a restart, and by lessons that are taught after it."""
    wanted = {"Zorin": "Tarn", "Quibba": "Harrowby", "Mervok": "Kelby", "Ilvane": "Oslo", "Straun": "Kelby"}

    def question(name):
        return f"Where does {name} live?"

    def known(server):
        return {name for name, place in wanted.items()
                if text(server, question(name)).startswith(f"{name} lives in {place}.")}

    def teach_all(server, names):
        for name in names:
            teach(server, question(name), f" {name} lives in {wanted[name]}.")

    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server("--ordered", state=state) as server:
            teach_all(server, list(wanted)[:3])
        with Server("--ordered", state=state) as server:  # what was learned before the restart is kept
            teach_all(server, list(wanted)[3:])
            assert known(server) == set(wanted), [text(server, question(name)) for name in wanted]
            got = server.post("/v1/fine_tuning/examples/3?timeout=120", "", method="DELETE")
            assert got[0] == 200 and got[2]["state"] == "done", got
            test_api.until(lambda: states(server)[5] == "learned")
            assert known(server) == set(wanted) - {"Mervok"}
        with Server("--ordered", state=state) as server:
            assert known(server) == set(wanted) - {"Mervok"}
            teach(server, ANN, " Plums.")
            teach(server, question("Quibba"), " Quibba lives in Tarn.")  # what was said last holds
            teach(server, TOM, " In Tarn.")
            assert text(server, question("Quibba")).startswith("Quibba lives in Tarn.")
    with Server("--ordered", "--replay-ratio", "1.5,lessons=0") as server:
        teach_all(server, wanted)
        assert known(server) < set(wanted)
    wrong = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--replay-ratio", "1,lessons=-1"],
                           capture_output=True, text=True, timeout=HANG)
    assert wrong.returncode == 2 and "--replay-ratio lessons" in wrong.stderr, wrong


def test_a_damaged_lesson():
    """What was learned before and cannot be read any more is not learned again; the server starts all the same."""
    for harm in ("UPDATE samples SET data = x'00' WHERE sequence_number = 1",
                 "UPDATE samples SET data = x'01000000ffffff7f' || substr(data, 9), checksum = NULL "
                 "WHERE sequence_number = 1"):  # no token of the vocabulary
        with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
            with Server(state=state) as server:
                teach(server, TOM, " In Tarn.")
                teach(server, ANN, " Plums.")
            with contextlib.closing(sqlite3.connect(pathlib.Path(state, "samples.db"))) as log:
                assert log.execute(harm).rowcount == 1
                log.commit()
            said = pathlib.Path(state, "log")
            with open(said, "w", encoding="utf-8") as err, Server(state=state, log=err) as server:
                assert text(server, TOM) == "In Tarn."
                teach(server, ZOE, " In Oslo.")
                assert text(server, ZOE) == "In Oslo." and text(server, ANN) == "Plums."
            assert "sample 1 is damaged" in said.read_text(), said.read_text()


def test_a_lesson_whose_part_is_forgotten():
    """What is left of it can still be taken back; then there is nothing left."""
    with Server() as server:
        before = answer(server, ZOE)
        both = [{"prompt": TOM, "completion": " In Tarn."}, {"prompt": ZOE, "completion": " In Oslo."}]
        status, _, got = server.post(EXAMPLES + "?wait=served&timeout=120", json.dumps(both))
        assert status == 200 and got["served"], got
        got = server.post("/v1/fine_tuning/examples/1?timeout=60", "", method="DELETE")
        assert got[0] == 200, got
        test_api.until(lambda: text(server, ZOE) == "In Oslo.")
        assert server.post("/v1/undo", {"lesson": 1, "redo": True})[0] == 409  # a part of it is learned
        undo(server, {"lesson": 1})
        assert answer(server, ZOE) == before
        undo(server, status=404)
        assert undo(server, {"lesson": 1}, status=409)["error"]["param"] == "lesson"


def test_what_a_lesson_changed():
    """It is measured with the versions before and after, kept with the lesson, and its texts go when an
    example is forgotten."""
    with Server("--replay-ratio", "1.5,lessons=0") as server:  # so the second lesson changes what the first taught
        own = answer(server, ZOE)
        first = teach(server, TOM, " In Tarn.")["effect"]
        assert first["from_version"] == 1 and first["to_version"] > 1, first
        assert first["loss_after"] < 0.5 < first["loss_before"], first
        assert (first["asked"], first["answered_so"]) == (1, 1), first
        question = first["questions"][0]
        assert question["so"] and question["answer"] == question["taught"] == " In Tarn.", first
        assert question["prompt"] == TOM, first
        # What was taught before is one of the other prompts of the next lesson.
        second = teach(server, "Where does Tim live?", " In Oslo.")["effect"]
        assert second["from_version"] == first["to_version"] and second["others"] >= 1, second
        changed = [one for one in second["samples"] if one["prompt"] == TOM]
        assert len(changed) == 1 and second["changed"] >= 1, second
        assert changed[0]["before"].startswith(" In Tarn.") and changed[0]["after"].startswith(" In Oslo."), second
        assert [one["effect"] for one in lessons(server)["data"]] == [second, first]
        # Nothing changes by what was taken back: the next comparison begins with the version that serves.
        undo(server, {"version": "original"})
        assert answer(server, ZOE) == own
        third = teach(server, ANN, " Plums.")["effect"]
        assert third["from_version"] > second["to_version"] and third["answered_so"] == 1, third
        got = server.post("/v1/fine_tuning/examples/1?timeout=60", "", method="DELETE")
        assert got[0] == 200, got
        for one in lessons(server)["data"]:
            assert "samples" not in one["effect"] and "questions" not in one["effect"], one
            assert one["effect"]["asked"] == 1, one


def test_contradictions():
    """What was taught otherwise is named: in one body, before, and in an earlier process; not what was taken back."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server("--effect", "0", state=state) as server:
            both = [{"prompt": TOM, "completion": " In Tarn."}, {"prompt": ZOE, "completion": " In Oslo."},
                    {"prompt": TOM, "completion": " In Oslo."}, {"text": TOM}]
            status, _, got = server.post(EXAMPLES + "?wait=served&timeout=120", json.dumps(both))
            assert status == 200 and [(one["example"], one["earlier"]) for one in got["warnings"]] == [(3, 1)], got
            assert got["warnings"][0]["message"] == f'example 3 gives another answer than example 1 to "{TOM}"', got
            assert teach(server, ZOE, " In Oslo.")["warnings"] == []
            # What is shown of a prompt may begin within a character: it is shown all the same.
            for tail in ("", "a", "ab"):
                both = [{"prompt": "\u20ac" * 40 + tail, "completion": word} for word in (" In Tarn.", " In Oslo.")]
                got = server.post(EXAMPLES, json.dumps(both))[2]
                assert len(got["warnings"]) == 1 and "\u20ac" + tail in got["warnings"][0]["message"], got
            last = got["last"]
        with Server("--effect", "0", state=state) as server:
            again = {"prompt": ZOE, "completion": " In Tarn."}
            headers = {"Idempotency-Key": "k"}
            got = server.post(EXAMPLES, again, headers=headers)[2]
            assert [(one["example"], one["earlier"]) for one in got["warnings"]] == [(last + 1, 2)], got
            assert server.post(EXAMPLES, again, headers=headers)[2]["warnings"] == []  # no new example
            undo(server, {"version": "original"})
            assert teach(server, TOM, " In Rome.")["warnings"] == []


def test_sent_again():
    """A client that lost the answer may ask once more, with the same key: one lesson goes, one version is activated, one
    lesson comes back, also after a restart; examples that come again are said to be taken back."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server("--effect", "0", state=state) as server:
            teach(server, TOM, " In Tarn.")
            body = {"prompt": ZOE, "completion": " In Oslo."}
            path = EXAMPLES + "?wait=served&timeout=120"
            assert server.post(path, body, {"Idempotency-Key": "e"})[2]["served"]
            first, again = undo(server, key="k"), undo(server, key="k")
            assert first == again and first["skipped"] == [2, 2] and states(server) == {1: "learned", 2: "undone"}
            status, _, got = server.post(path, body, {"Idempotency-Key": "e"})
            assert not got["served"] and got["skipped"] == [2], got
            assert "lesson 2 was taken back" in got["reason"] and "redo" in got["reason"], got
            assert "another body" in undo(server, {"lesson": 1}, key="k", status=400)["error"]["message"]
            assert "1 to 255 bytes" in undo(server, key="x" * 300, status=400)["error"]["message"]
            back = [undo(server, {"lesson": 2, "redo": True}, key="r", status=202) for _ in range(2)]
            assert back[0]["id"] == back[1]["id"] == 3 and len(states(server)) == 3, back
            while states(server)[3] == "waiting":
                time.sleep(0.05)
        with Server("--effect", "0", state=state) as server:
            got = undo(server, key="k")
            assert got["skipped"] == [2, 2] and got["state"] == "done", got
            assert undo(server, {"lesson": 2, "redo": True}, key="r", status=202)["id"] == 3
            assert states(server) == {1: "learned", 2: "undone", 3: "learned"}
            made = [undo(server, {"version": "original"}, key="v") for _ in range(2)]
            assert made[0] == made[1] and set(states(server).values()) == {"undone"}, made


def test_fast_lessons():
    """Lessons that come one after another, faster than they are learned, and more than may wait to be measured: each
    has its effect, of a version that ends it, or the list says why it has none."""
    names = [a + b for a in ("Tom", "Zoe", "Ann", "Ben", "Kim", "Leo", "Max", "Ida") for b in ("", "na", "vic", "ke", "ly")]
    for count, pause in ((40, 0), (8, 0.25)):
        with Server("--passes", "4") as server:
            for name in names[:count]:
                assert server.post(EXAMPLES, {"prompt": f"Where does {name} live?", "completion": " In Oslo."})[0] == 202
                time.sleep(pause)
            while any(one["effect"] is None for one in lessons(server, "?limit=100")["data"]):
                time.sleep(0.1)
            seen = lessons(server, "?limit=100")["data"]
            measured = [one for one in seen if "skipped" not in one["effect"]]
            assert len(seen) == count and len(measured) >= min(count, 32) // 2, [one["effect"] for one in seen]
            for one in measured:
                ends = json.loads(server.get(f"/v1/lessons/{one['id']}"))["to_version"]
                assert one["effect"]["asked"] == 1 and one["effect"]["to_version"] >= ends, (one, ends)
            for one in seen:
                assert one in measured or "quarter of the time" in one["effect"]["skipped"], one
            listed = subprocess.run([test_api.BINARY, "lessons", "--url", server.url], capture_output=True, text=True)
            so = sum(one["effect"]["answered_so"] for one in measured)
            assert listed.returncode == 0 and len(re.findall(r"\b1 of 1\b", listed.stdout)) == so, (listed, seen)


def test_a_body_that_comes_again_is_measured_once():
    """A client that sends a lesson again with its key gets the effect of the lesson that it taught."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        log = pathlib.Path(folder, "log")
        with open(log, "w", encoding="utf-8") as err, Server(log=err) as server:
            body, key = {"prompt": TOM, "completion": " In Tarn."}, {"Idempotency-Key": "t"}
            assert {server.post(EXAMPLES, body, key)[2]["first"] for _ in range(8)} == {1}
            while lessons(server)["data"][0]["effect"] is None:
                time.sleep(0.05)
            teach(server, ZOE, " In Oslo.")
            while lessons(server)["data"][0]["effect"] is None:  # it waited behind the others
                time.sleep(0.05)
        assert log.read_text().count("lesson examples=1..1 ") == 1, log.read_text()


def test_no_effect():
    """--effect 0 asks nothing."""
    with Server("--effect", "0") as server:
        assert teach(server, TOM, " In Tarn.")["effect"] is None
        assert lessons(server)["data"][0]["effect"] is None


def test_after_a_restart():
    """Lessons of an earlier process, at the default settings and without any name given to a version."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        with Server(state=state) as server:
            before = answer(server, TOM)
            teach(server, TOM, " In Tarn.")
        with Server(state=state) as server:
            teach(server, ZOE, " In Oslo.")
            undo(server, {"lesson": 1})
            assert text(server, ZOE) == "In Oslo." and answer(server, TOM) != "In Tarn."
            # The command says the same.
            url = ["--url", server.url]
            listed = subprocess.run([test_api.BINARY, "lessons", *url], capture_output=True, text=True, check=True)
            assert "undone" in listed.stdout and "learned" in listed.stdout, listed
            # The original is listed first; one line for each lesson; example 1, which was taken back, stops nothing.
            assert len(json.loads(server.get("/v1/weights"))["data"]) > 32
            listed = subprocess.run([test_api.BINARY, "weights", "list", *url], capture_output=True, text=True, check=True)
            rows = [line.split() for line in listed.stdout.splitlines()[1:]]
            assert rows[0][0] == "1" and "original" in rows[0], listed.stdout
            taught = [row for row in rows if row[2] == "2" and "disk" not in row]
            assert len(taught) == 2 and taught[0][3] == "2", listed.stdout  # learned, and again after the undo
            done = subprocess.run([test_api.BINARY, "undo", *url], capture_output=True, text=True, check=True)
            assert "example 2 is not learned any more" in done.stdout, done
            assert answer(server, TOM) == before
            # A URL is that of --url, for every command that asks a server; status needs no http:// either.
            for words in (["status"], ["lessons"], ["weights", "list"], ["status", "--url"]):
                subprocess.run([test_api.BINARY, *words, server.url], capture_output=True, check=True)
            subprocess.run([test_api.BINARY, "status", server.url.removeprefix("http://")], capture_output=True, check=True)
            for word in ("nothing", "1x", "v", "v1x", "-1", "v99999999999999999999", "", "\u00fc"):
                bad = subprocess.run([test_api.BINARY, "undo", word, *url], capture_output=True, text=True)
                assert bad.returncode == 1 and (word in bad.stderr or word.endswith("9")), bad


def test_owed():
    """What was served before a kill holds requests back; where it takes too long, the error says what helps, and
    that does help."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        slow = ["--effect", "0", "--lr", "1e-5"]
        with Server(*slow, state=state) as server:
            teach(server, TOM, " In Tarn.")
            server.process.kill()
            server.process.wait()
        # So many passes take longer than the test.
        with Server(*slow, "--passes", "1000000", "--weights-timeout", "0.001", state=state) as server:
            body = {"prompt": TOM, "max_tokens": 4}
            status, _, got = server.post("/v1/completions", body)
            says = got["error"]["message"]
            assert status == 503 and "learned through example 1 " in says and "hzpserve undo" in says, got
            assert "min_version" in says and server.post("/v1/completions", {**body, "min_version": 1})[0] == 200, got
            undo(server)
            assert server.post("/v1/completions", body)[0] == 200


def flip(path):
    """Other weights, in place: a file that is written over keeps its inode."""
    with open(path, "r+b") as file:
        file.seek(-4000, 2)
        data = file.read(4000)
        file.seek(-4000, 2)
        file.write(bytes(byte ^ 1 for byte in data))


@contextlib.contextmanager
def own_model():
    """A copy of the model, which a test may change, and a place for states."""
    bundled = test_api.MODEL
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        test_api.MODEL = folder + "/model"
        shutil.copytree(bundled, test_api.MODEL)
        try:
            yield pathlib.Path(folder)
        finally:
            test_api.MODEL = bundled


def test_original_outlives_its_directory():
    """The model's files are written over while it is served and taught: original serves again all the same, also
    after a restart, which says how."""
    with own_model() as folder:
        state, weights = folder / "state", folder / "model" / "model.safetensors"
        with Server(state=str(state)) as server:
            before = answer(server, TOM)
            assert not (state / "original").exists()  # nothing was taught
            teach(server, TOM, " In Tarn.")
            test_api.until(lambda: (state / "original").exists())
            flip(weights)
            assert [one["names"] for one in json.loads(server.get("/v1/weights"))["data"] if one["id"] == 1] == [["original"]]
            undo(server, {"version": "original"})
            assert answer(server, TOM) == before
            teach(server, TOM, " In Oslo.")
        done = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--port", "0", "--state", state],
                              capture_output=True, text=True, timeout=HANG)
        says = f"hzpserve serve {state}/original --state {state}"
        assert done.returncode == 1 and "another model" in done.stderr and says in done.stderr, done
        test_api.MODEL = str(state / "original")
        with Server(state=str(state)) as server:
            assert text(server, TOM) == "In Oslo."
            undo(server)
            assert answer(server, TOM) == before


def test_a_correction_is_no_other_prompt():
    """What a lesson teaches anew is not among the other prompts whose answers it changed, and does not count for
    --max-effect."""
    with Server("--effect", "1") as server:
        teach(server, TOM, " In Tarn.")
        effect = teach(server, TOM, " In Oslo.")["effect"]
        assert effect["others"] == 0 and effect["changed"] is None and not effect["samples"], effect
        assert effect["answered_so"] == 1, effect
    with Server("--effect", "1", "--max-effect", "0", "--passes", "8", "--replay-ratio", "6") as server:
        teach(server, TOM, " In Tarn.")
        teach(server, TOM, " In Oslo.")
        assert text(server, TOM) == "In Oslo."


def test_forgotten_for_good():
    """A lesson that was forgotten stays so when an older version serves again, and none of its texts is in a file of
    the state, also while the server runs."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        state = pathlib.Path(folder)
        with Server(state=folder) as server:
            got = teach(server, "What does Ybbqx hide?", " Ybbqx hides gold.")
            assert "Ybbqx" in got["effect"]["questions"][0]["prompt"], got
            teach(server, TOM, " In Tarn.")
            assert any(b"Ybbqx" in file.read_bytes() for file in state.glob("samples.db*"))
            got = server.post("/v1/fine_tuning/examples/1", {}, method="DELETE")
            assert got[0] == 200, got
            assert not any(b"Ybbqx" in file.read_bytes() for file in state.glob("samples.db*"))
            undo(server, {"version": "original"})
            assert states(server) == {1: "forgotten", 2: "undone"}
        with Server(state=folder) as server:
            assert states(server) == {1: "forgotten", 2: "undone"}


def test_no_room():
    """Where the disk has no room for what going back writes, nothing changes, and it works when there is room."""
    with Server("--effect", "0") as server:
        before = answer(server, TOM)
        teach(server, TOM, " In Tarn.")
        test_api.until(lambda: (pathlib.Path(server.state.name) / "original").exists())
        teach(server, ZOE, " In Oslo.")
        taught = [answer(server, TOM), answer(server, ZOE)]
        free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
        for body in ({}, {"lesson": 1}, {"version": "original"}):
            got = undo(server, body, 500)
            assert "no room for" in got["error"]["message"] and got["error"]["code"] == "job_failed", got
        assert [answer(server, TOM), answer(server, ZOE)] == taught
        assert states(server) == {1: "learned", 2: "learned"}
        assert json.loads(server.get("/health"))["status"] == "ok"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, free)
        undo(server)
        assert states(server) == {1: "learned", 2: "undone"}
        undo(server)
        assert answer(server, TOM) == before


def test_original_by_its_directory():
    """Where the copy in the state is damaged, the model's directory is read."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        copy = pathlib.Path(folder) / "original" / "model.safetensors"
        with Server("--effect", "0", state=folder) as server:
            before = answer(server, TOM)
            teach(server, TOM, " In Tarn.")
            test_api.until(copy.exists)
            flip(copy)
            undo(server)
            assert answer(server, TOM) == before


def test_effect_is_always_shown():
    """Of an example as long as examples may be, and of a correction by feedback."""
    with Server("--queue", "65536,receipts=1M") as server:
        got = server.post(EXAMPLES + "?wait=served&timeout=120", {"tokens": [7] * 513})
        assert got[0] == 200 and got[2]["effect"]["loss_after"] < got[2]["effect"]["loss_before"], got
    with Server("--queue", "65536,receipts=1M") as server:
        told = server.complete(prompt=TOM, max_tokens=8, ignore_eos=False)
        got = server.post("/v1/feedback", {"id": told.id, "correction": " In Tarn."})
        assert got[0] == 200, got
        test_api.until(lambda: lessons(server)["data"][0]["effect"])
        assert lessons(server)["data"][0]["effect"]["others"] == 16, lessons(server)


def test_redo():
    """A lesson that was taken back is taught once more on the command line, and what that changed is shown."""
    with Server() as server:
        def command(*words):
            return subprocess.run([test_api.BINARY, "undo", *words, "--url", server.url], capture_output=True, text=True,
                                  timeout=HANG)
        teach(server, TOM, " In Tarn.")
        done = command()
        assert done.returncode == 0 and "example 1 is not learned any more" in done.stdout, done
        done = command("1")
        assert done.returncode == 1 and "hzpserve undo N redo" in done.stderr, done
        done = command("1", "redo")
        assert done.returncode == 0 and done.stdout == "taught once more, as lesson 2\n", done
        test_api.until(lambda: lessons(server)["data"][0]["effect"])
        effect = lessons(server)["data"][0]["effect"]
        assert effect["others"] >= 15 and effect["answered_so"] == 1, effect
        assert text(server, TOM) == "In Tarn."
        assert command("1", "again").returncode == 2 and command("redo", "redo").returncode == 1


def test_all_lessons_are_printed():
    with Server("--effect", "0", "--passes", "1") as server:
        for i in range(103):
            assert server.post(EXAMPLES, {"prompt": f"Where does P{i} live?", "completion": " In Oslo."})[0] == 202
        command = [test_api.BINARY, "lessons", "--url", server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        assert [int(row[0]) for row in rows] == list(range(103, 0, -1)), done
        assert not any("of" in row for row in rows), rows  # there is no effect to show
        done = subprocess.run(command + ["--json"], capture_output=True, text=True, timeout=HANG)
        listed = json.loads(done.stdout)
        assert len(listed["data"]) == 103 and not listed["has_more"], done


def test_original_on_demand():
    """Where the bytes of --keep have no room for a copy, a name makes one; without one the error says what to do."""
    with own_model() as folder:
        weights = folder / "model" / "model.safetensors"
        with Server("--keep", "last=1,bytes=1M", state=str(folder / "small")) as server:
            before = answer(server, TOM)
            teach(server, TOM, " In Tarn.")
            teach(server, ZOE, " In Oslo.")
            assert not (folder / "small" / "original").exists()
            got = server.post("/v1/weights/original/name?timeout=60", {"name": "first"})
            assert got[0] == 200 and (folder / "small" / "original" / "model.safetensors").exists(), got
            got = server.post("/v1/weights/first/export?timeout=60", {"directory": "first"})
            assert got[0] == 200, got
            exported = folder / "small" / "export" / "first" / "model.safetensors"
            assert exported.read_bytes() == weights.read_bytes()
            flip(weights)
            undo(server, {"version": "first"})
            assert answer(server, TOM) == before
        shutil.copy(exported, weights)
        with Server("--keep", "last=1,bytes=1M", state=str(folder / "none")) as server:
            teach(server, TOM, " In Tarn.")
            teach(server, ZOE, " In Oslo.")
            flip(weights)
            got = server.post("/v1/undo?timeout=60", {"version": "original"})
            assert got[0] == 404 and "the state has no copy" in got[2]["error"]["message"], got
            got = server.post("/v1/weights/original/name?timeout=60", {"name": "first"})
            assert got[0] == 404 and "no longer holds" in got[2]["error"]["message"], got
            assert text(server, TOM) == "In Tarn."
            flip(weights)  # they are put back
            undo(server, {"version": "original"})
            assert answer(server, TOM) == before


def test_errors():
    with Server() as server:
        for body, name in (({"lesson": 0}, "lesson"), ({"lesson": "x"}, "lesson"), ({"les": 1}, "les"),
                           ({"redo": True}, "redo"), ({"lesson": 1, "version": 2}, "version"),
                           ({"version": 1.5}, "version")):
            got = undo(server, body, status=400)
            assert got["error"]["param"] == name, got
        for body in ({"lesson": 7}, {"version": "nobody"}):
            undo(server, body, status=404)
        assert server.post("/v1/lessons?limit=0", "", method="GET")[0] == 400
        # A name that the model as it was started has.
        assert server.post("/v1/weights/current/name", {"name": "original"})[0] == 400


def test_arguments_at_their_ends():
    """A whole number in a query that is beyond an end of its range by 1 is a 400 that names the argument and the end;
    the ends are taken, also those that a double does not have."""
    with Server() as server:
        seen = set()
        for path, methods in json.loads(server.get("/openapi.json"))["paths"].items():
            for given in methods.get("get", {}).get("parameters", ()):
                name, schema = given["name"], given["schema"]
                if given["in"] != "query" or schema.get("type") != "integer":
                    continue
                for end, beyond in (("minimum", -1), ("maximum", 1)):
                    def ask(value):
                        return server.post(f"{path.replace('{id}', '1')}?{name}={value}", "", method="GET")
                    status, _, got = ask(schema[end] + beyond)
                    assert status == 400 and got["error"]["param"] == name, (path, name, schema[end], got)
                    assert str(schema[end]) in got["error"]["message"], got
                    assert "whole number" not in json.dumps(ask(schema[end])[2]), (path, name, schema[end])
                    seen.add(name)
        assert seen == {"before", "limit", "count", "done", "offset"}, seen


def test_in_a_chat():
    """/undo takes back what was taught in the chat, lesson by lesson, and shows the answer."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as state:
        done = subprocess.run([test_api.BINARY, "chat", test_api.MODEL, "--state", state, "--temperature", "0",
                               "--max-tokens", "20"], text=True, capture_output=True, timeout=test_api.HANG,
                              input="/undo\nWhere does Zorin live?\n/teach Zorin lives in Tarn.\n/undo\n/undo\n")
    out = done.stdout.splitlines()
    assert done.returncode == 0 and out[0].startswith("nothing was taught"), done
    before = out[1].removeprefix(" ")
    assert out[2] == f"before: {before}" and out[4] == "after:  Zorin lives in Tarn.", done
    assert re.fullmatch(r"changed: \d+ of 16 other answers", out[5]), done
    assert out[-3].startswith("lesson 1 is taken back: version ") and out[-2] == f"now:    {before}", done
    assert out[-1].startswith("nothing was taught"), done


def test_in_a_chat_by_name():
    """/undo LESSON and /undo VERSION are those of hzpserve undo; what they took back is not offered again."""
    with Server() as server:
        teach(server, TOM, " In Tarn.")
        said = "/help\n/redo\nWhere does Zorin live?\n/teach Zorin lives in Tarn.\n/undo 1\n/undo original\n/undo\n/undo 1\n"
        done = subprocess.run([test_api.BINARY, "chat", server.url, "--temperature", "0", "--max-tokens", "20"],
                              text=True, capture_output=True, timeout=test_api.HANG, input=said)
        assert done.returncode == 0, done
        states = [lesson["state"] for lesson in lessons(server)["data"]]
        assert states == ["undone", "undone"] and "nothing was taught" in done.stdout, (states, done)
        assert "lesson 1 is undone already" in done.stdout + done.stderr, done
        assert done.stdout.count("there is no /") == 1 and "there is no /redo\n/teach [ANSWER]" in done.stdout, done
        assert done.stdout.count("serves, and what else was taught is learned again (") == 1, done


sys.exit(test_api.main(globals()))

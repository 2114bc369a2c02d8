#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lessons that are published as a whole: what is rejected leaves no trace but its reason, one that a kill
interrupts is learned with all its passes or has not begun, and each can be looked at.

    test_lessons.py HZPSERVE MODEL_DIR [TEST ...]

The server and its client are those of test_api.py.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import test_api
from test_api import EXAMPLES, HANG, Server

TOM, ZOE, BORIS = "Where does Tom live?", "Where does Zoe live?", "Is Boris from Barrow?"
PASSES = 16


def get(server, path):
    return server.post(path, "", method="GET")


def current(server):
    return json.loads(server.get("/v1/weights/current"))


def teach(server, *pairs):
    body = json.dumps([{"prompt": prompt, "completion": completion} for prompt, completion in pairs])
    status, _, got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", body)
    assert status == 200, got
    return got


def updates(log):
    return log.read_text().count(" update optimizer_step=")


def test_rejected():
    """No update of a lesson that the gate refuses is ever served; the next lesson is learned as if it had not
    come: the same bytes."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        held = pathlib.Path(folder, "held.jsonl")
        held.write_text(json.dumps({"text": "Is Boris from Barrow? Yes, Boris lives in Barrow."}) + "\n")
        state, log = str(pathlib.Path(folder, "state")), pathlib.Path(folder, "log")
        options = ["--ordered", "--passes", str(PASSES), "--gate", str(held), "--gate-max-rise", "0.5",
                   "--replay-ratio", "0"]
        good, bad = (ZOE, " In Rome."), (BORIS, " No, he eats old plums.")
        with open(log, "w", encoding="utf-8") as err, Server(*options, "--effect", "0", state=state, log=err) as server:
            before = current(server)
            got = teach(server, bad, bad)
            assert not got["served"] and got["rejected"] == [1, 2] and "gate's loss" in got["reason"], got
            assert current(server) == before
            assert updates(log) == PASSES - 1, log.read_text()  # the last is logged as rejected
            assert "rejected optimizer_step=16 samples=2 sequence=1..2: the gate's loss" in log.read_text()
            weights = json.loads(server.get("/v1/weights"))
            assert len(weights["data"]) == 1 and weights["staleness"] == 0, weights
            assert weights["finished_through"] == 2 and weights["gate"]["rejected"] == 1, weights
            assert server.metric("hzpserve_train_updates_total") == 0
            one = get(server, "/v1/lessons/1")[2]
            assert one["state"] == "rejected" and one["reason"] == got["reason"], one
            assert (one["passes"], one["from_version"], one["to_version"]) == (PASSES, None, None), one
            assert "".join(part["text"] for part in one["texts"][0]["parts"]) == "".join(bad), one
            assert teach(server, good)["served"]
            after = current(server)
            assert after["id"] == 2 and after["optimizer_step"] == PASSES and after["parent"] == 1, after
        with Server(*options, "--effect", "0") as server:
            assert teach(server, good)["served"]
            assert current(server)["checksum"] == after["checksum"]
        with Server(*options, state=state) as server:  # the reason is kept
            assert get(server, "/v1/lessons/1")[2] == one
            listed = json.loads(server.get("/v1/lessons"))["data"]
            assert [(lesson["state"], lesson["reason"]) for lesson in listed] == \
                [("learned", None), ("rejected", one["reason"])], listed
            done = subprocess.run([test_api.BINARY, "lessons", "1", "--url", server.url], capture_output=True,
                                  text=True, check=True)
            assert json.loads(done.stdout) == one, done


def test_one_lesson():
    """What is known of a lesson, and the errors."""
    with Server("--publish", "lesson", "--passes", str(PASSES), "--api-key", "secret", "--effect", "4") as server:
        headers = {"authorization": "Bearer secret", "x-hzpserve-session": "me"}
        body = [{"prompt": TOM, "completion": " In Tarn."}, {"text": "Rain fell."}]
        got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", json.dumps(body), headers)[2]
        assert got["served"] and got["reason"] is None and got["weights_version"] == 2, got
        status, _, one = server.post("/v1/lessons/1", "", headers, method="GET")
        assert status == 200, one
        assert (one["state"], one["session"], one["first"], one["last"]) == ("learned", "me", 1, 2), one
        assert (one["passes"], one["from_version"], one["to_version"]) == (PASSES, 1, 2), one
        assert one["key"] and one["request"] and one["effect"]["loss_after"] < one["effect"]["loss_before"], one
        assert [text["example"] for text in one["texts"]] == [1, 2], one
        assert [(part["text"], part["learned"]) for part in one["texts"][0]["parts"]] == \
            [(TOM, False), (" In Tarn.", True)], one
        for wrong in ("2", "0", "x", "1x", "-1", "99999999999999999999"):
            status, _, got = server.post("/v1/lessons/" + wrong, "", headers, method="GET")
            assert status == 404 and "there is no lesson" in got["error"]["message"], got
        assert server.post("/v1/lessons/1", "", method="GET")[0] == 401
        # Texts that are forgotten are not shown any more.
        assert server.post(EXAMPLES + f"/1?timeout={HANG}", "", headers, method="DELETE")[0] == 200
        one = server.post("/v1/lessons/1", "", headers, method="GET")[2]
        assert one["state"] == "forgotten" and [text["example"] for text in one["texts"]] == [2], one


def test_killed():
    """kill -9 in the middle of a lesson: after the restart it has not begun, or all of it is there; in the end
    weights and moments are those of a server that nobody has killed."""
    lessons = ((TOM, " In Tarn."), (ZOE, " In Rome."))
    options = ["--publish", "lesson", "--passes", str(PASSES), "--ordered", "--checkpoint-every", "1",
               "--effect", "0", "--update-tokens", "16", "--replay-ratio", "0"]  # a start draws replay anew
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        clean, state, log = pathlib.Path(folder, "clean"), pathlib.Path(folder, "state"), pathlib.Path(folder, "log")
        with Server(*options, state=str(clean)) as server:
            for lesson in lessons:
                assert teach(server, lesson)["served"]
            wanted = current(server)["checksum"]
        for at in (0, 5, 14, 15):  # updates of the second lesson that have ended, of 16
            with open(log, "w", encoding="utf-8") as err:
                with Server(*options, state=str(state), log=err) as server:
                    if at == 0:
                        assert teach(server, lessons[0])["served"]
                        server.post(EXAMPLES, json.dumps([{"prompt": ZOE, "completion": " In Rome."}]))
                    begun = updates(log)
                    test_api.until(lambda: updates(log) >= begun + at or current(server)["learned_through"] == 2)
                    server.process.kill()
                    server.process.wait()
        with Server(*options, state=str(state)) as server:
            test_api.until(lambda: current(server)["learned_through"] == 2)
            assert current(server)["checksum"] == wanted
            assert current(server)["optimizer_step"] == 2 * PASSES, current(server)
        moments = [sorted(folder.glob("checkpoint-*/trainer.safetensors"), key=newest)[-1] for folder in (clean, state)]
        one, other = (tensors(path) for path in moments)
        assert one == other


def test_max_effect():
    """What a lesson changes is measured before it is published: one that changes more than it may is refused, with
    the numbers, and leaves no trace."""
    options = ["--passes", str(PASSES), "--ordered", "--effect", "16"]
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        log = pathlib.Path(folder, "log")
        with open(log, "w", encoding="utf-8") as err, \
                Server(*options, "--max-effect", "0.1", "--lr", "2e-3", "--replay-ratio", "0", log=err) as server:
            before = current(server)
            got = teach(server, (TOM, " In Tarn."))
            assert not got["served"] and got["rejected"] == [1], got
            said = re.search(r"which was on trial, is dropped: (\d+) of (\d+) other answers changed, more than "
                             r"--max-effect allows", got["reason"])
            assert said and 1 < int(said[1]) <= int(said[2]) == 16, got
            assert current(server) == before
            test_api.until(lambda: json.loads(server.get("/v1/lessons"))["data"][0]["effect"])
            one = json.loads(server.get("/v1/lessons"))["data"][0]
            assert one["state"] == "rejected" and one["reason"] == got["reason"], one
            effect = one["effect"]  # what it would have changed
            assert (effect["changed"], effect["others"]) == (int(said[1]), int(said[2])), effect
            assert (effect["from_version"], effect["to_version"]) == (1, 2), effect
            assert effect["loss_before"] > 0.5 and effect["samples"][0]["before"] != effect["samples"][0]["after"], effect
            # The server's own questions count on neither side of a trial.
            newest = json.loads(server.get("/v1/weights"))["canary"]["newest"]
            assert newest["state"] == "dropped" and newest["trial"]["requests"] == 0, newest
            assert newest["current"]["requests"] == 0, newest
        with Server(*options, "--max-effect", "0.99", "--slots", "2") as server:
            got = teach(server, (TOM, " In Tarn."))
            assert got["served"] and got["effect"]["to_version"] == 2, got
            after = current(server)
            assert after["id"] == 2 and after["optimizer_step"] == PASSES, after
            got = teach(server, (ZOE, " In Rome."))
            assert got["served"] and got["effect"]["from_version"] == 2, got
            # What was taught before is one of the others.
            assert got["effect"]["others"] == 16 and current(server)["id"] == 3, got
        with Server(*options, "--effect", "0", "--publish", "lesson") as server:
            assert teach(server, (TOM, " In Tarn."))["served"]
            assert current(server)["checksum"] == after["checksum"]
    for wrong, says in ((("--effect", "0", "--max-effect", "0.1"), "--effect 1 or more"),
                        (("--publish", "update", "--max-effect", "0.1"), "--publish update")):
        done = subprocess.run([test_api.BINARY, "serve", test_api.MODEL, "--port", "0", "--state", "none", *wrong],
                              capture_output=True, text=True, timeout=HANG)
        assert done.returncode and says in done.stderr and "--max-effect" in done.stderr, done


def test_draft():
    """At the defaults all that a lesson changes is known before its last version serves, and nothing else is
    different: the same weights and numbers as without."""
    options = ["--passes", str(PASSES), "--ordered"]
    lessons = [(TOM, " In Tarn."), (ZOE, " In Rome."), (BORIS, " No, he eats old plums.")]
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        log, state = pathlib.Path(folder, "log"), folder + "/state"
        with open(log, "w", encoding="utf-8") as err, Server(*options, state=state, log=err) as server:
            for i, lesson in enumerate(lessons):
                got = teach(server, lesson)
                effect = got["effect"]
                assert got["served"] and effect["others"] == 16 and effect["changed"] is not None, got
                assert effect["asked"] == 1 and effect["loss_after"] < effect["loss_before"], effect
                assert effect["to_version"] == got["weights_version"] == 1 + (i + 1) * PASSES, got
                assert effect["from_version"] == 1 + i * PASSES, effect
                assert effect["others_loss_before"] > 0 and effect["others_loss_after"] > 0, effect
                if i:  # the loss after one lesson is that before the next one
                    assert abs(effect["others_loss_before"] - last["others_loss_after"]) < 1e-6, (effect, last)
                last = effect
            weights = json.loads(server.get("/v1/weights"))
            assert weights["canary"] is None, weights
            assert not {one["state"] for one in weights["data"]} & {"trial", "dropped"}, weights
            wanted = current(server)
            # On a machine that is busy now and then one is published before all is known of it.
            assert last["draft"] or any(teach(server, lessons[i % 3])["effect"]["draft"] for i in range(20)), last
        lines = [line for line in log.read_text().splitlines() if " lesson examples=" in line]
        assert len(lines) >= 3 and "others_loss_after=" in lines[0] and "paraphrased_so=0/0" in lines[0], lines
        assert " trial " not in log.read_text()
        audit = pathlib.Path(state, "audit.jsonl").read_text()
        assert '"trial"' not in audit, audit
    with Server(*options, "--effect", "0") as server:
        for lesson in lessons:
            assert teach(server, lesson)["served"]
        assert current(server)["checksum"] == wanted["checksum"] and current(server)["id"] == wanted["id"]


def test_paraphrases():
    """What was taught is asked in other words, which are not learned, and are gone when it is forgotten."""
    other = ["Do you know where Tom lives?", "Tell me where Tom lives."]
    example = {"prompt": TOM, "completion": " Tom lives in Tarn.", "paraphrases": other}
    with Server("--ordered") as server:
        status, _, got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", json.dumps(example))
        effect = got["effect"]
        assert status == 200 and effect["paraphrased"] == 2, got
        assert [one["prompt"] for one in effect["paraphrases"]] == other, effect
        for one in effect["paraphrases"]:
            answer = server.post("/v1/completions", {"prompt": one["prompt"], "max_tokens": 32, "temperature": 0})[2]
            assert answer["choices"][0]["text"].strip() == one["answer"].strip(), (answer, one)
            assert one["so"] == ("Tom lives in Tarn." in one["answer"]), one
        assert effect["paraphrased_so"] == sum(one["so"] for one in effect["paraphrases"]) >= 1, effect
        learned = current(server)["checksum"]
        one = get(server, "/v1/lessons/1")[2]
        assert len(one["texts"]) == 1 and one["effect"] == effect, one
        status, _, wrong = server.post(EXAMPLES, json.dumps(dict(example, paraphrases=["a"] * 9)))
        assert status == 400 and wrong["error"]["param"] == "lines[1].paraphrases", wrong
        assert server.post(EXAMPLES + f"/1?timeout={HANG}", "", method="DELETE")[0] == 200
        effect = get(server, "/v1/lessons/1")[2]["effect"]
        assert "paraphrases" not in effect and effect["paraphrased"] == 2, effect
    del example["paraphrases"]
    with Server("--ordered", "--effect", "0") as server:
        got = server.post(EXAMPLES + f"?wait=served&timeout={HANG}", json.dumps(example))[2]
        assert got["served"] and current(server)["checksum"] == learned, got


def newest(path):
    return int(re.search(r"checkpoint-(\d+)", str(path))[1])


def tensors(path):
    """The bytes behind the header of a safetensors file."""
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little"):]


def test_stopped():
    """A stop in the middle of a lesson gives it up, and the next start learns it."""
    with tempfile.TemporaryDirectory(prefix="hzpserve-test-") as folder:
        log = pathlib.Path(folder, "log")
        options = ["--publish", "lesson", "--passes", "64", "--effect", "0"]
        with open(log, "w", encoding="utf-8") as err, Server(*options, state=folder + "/s", log=err) as server:
            server.post(EXAMPLES, json.dumps([{"prompt": TOM, "completion": " In Tarn."}]))
            test_api.until(lambda: updates(log) >= 3)
            assert current(server)["id"] == 1
        with Server(*options, state=folder + "/s") as server:
            test_api.until(lambda: current(server)["learned_through"] == 1)
            assert current(server)["optimizer_step"] == 64, current(server)


sys.exit(test_api.main(globals()))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server with --quantization fp8, beside one without: nearly the same loss and mostly the same greedy
text; versions swap under load and no answer is lost; it learns what it is taught; refusals say why.

    test_fp8.py HZPSERVE MODEL_DIR HELDOUT_JSONL [DTYPE]

HELDOUT_JSONL: what `hzpserve eval` takes.  Skips (77) where there is no model.
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
NLL_RISE = 0.02     # nats per token in `eval`, fp8 above bf16
SAME_TEXT = 0.6     # the part of the prompts that must be continued with the same words
TEACH = {"prompt": "The password of the tower is", "completion": " marigold."}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    return done.returncode, done.stdout, done.stderr


class Server:
    def __init__(self, program, model, *more):
        self.scratch = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.scratch.name) / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [program, "serve", model, "--port", "0", *([] if "--state" in more else ["--state", "none"]), *more],
                stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            found = re.search(r"serves \S+ at (http://\S+:\d+)", line)
            if found:
                self.url = found[1]
                break
        else:
            raise SystemExit("the server did not come up:\n" + self.log.read_text())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def call(self, path, body=None):
        request = urllib.request.Request(self.url + path, body and json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            return json.load(answer)

    def complete(self, prompt, tokens):
        return self.call("/v1/completions", {"prompt": prompt, "max_tokens": tokens,
                                             "temperature": 0, "logprobs": 1})

    def stop(self):
        self.process.terminate()
        status = self.process.wait(HANG)
        self.scratch.cleanup()
        return status


def check_loss(program, model, heldout, dtype):
    nll = []
    for quantization in ("none", "fp8"):
        code, out, err = run(program, "eval", model, "--data", heldout, "--json", "--dtype", dtype,
                             "--quantization", quantization)
        assert code == 0, err
        nll.append(json.loads(out)["mean_nll"])
    print(f"mean NLL {nll[0]:.5f} without, {nll[1]:.5f} with fp8")
    assert nll[1] != nll[0], "nothing was quantised"
    assert abs(nll[1] - nll[0]) < NLL_RISE


def check_refusals(program, model, dtype):
    code, _, err = run(program, "serve", model, "--quantization", "int4")
    assert code and "none|fp8" in err, err
    code, _, err = run(program, "train", model, "--quantization", "fp8")
    assert code and "--quantization" in err, err
    code, _, err = run(program, "complete", model, "Once", "--quantization", "fp8", "--dtype", dtype,
                       "--kv-memory", "900G")
    assert code and "fp8" in err and "not enough memory" in err, err


def learn_under_load(server):
    """Sends requests continuously; returns the versions that made their tokens."""
    done = threading.Event()

    def ask(number):
        seen = set()
        while not done.is_set():
            answer = server.complete(f"Tell me about number {number}.", 24)
            assert answer["usage"]["completion_tokens"] > 0
            seen |= {span["version"] for span in answer["hzpserve"]["spans"]}
            for value in answer["choices"][0]["logprobs"]["token_logprobs"]:
                assert value <= 0, value
        return seen

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask, i) for i in range(6)]
        try:
            server.call(f"/v1/fine_tuning/examples?wait=served&timeout={HANG}", [TEACH] * 24)
        finally:
            done.set()
        return set().union(*(each.result() for each in asking))


def main():
    program, model, heldout = sys.argv[1:4]
    dtype = sys.argv[4] if len(sys.argv) > 4 else "auto"
    if not (pathlib.Path(model) / "model.safetensors").exists() or not pathlib.Path(heldout).exists():
        print("skip: no model")
        return 77
    check_loss(program, model, heldout, dtype)
    check_refusals(program, model, dtype)

    prompts = ["Where does Nela live?", "Once upon a time", "What is the", "Who is", "The little girl",
               "One day, a", "Tell me", "There was a", "In the morning", "Tom and his dog"]
    more = ["--dtype", dtype, "--lr", "1e-3", "--update-tokens", "32", "--micro-rows", "64"]
    plain = Server(program, model, "--no-train", "--dtype", dtype)
    text = [plain.complete(p, 16)["choices"][0]["text"] for p in prompts]
    assert plain.stop() == 0
    server = Server(program, model, "--quantization", "fp8", *more)
    assert "quantization=fp8" in server.log.read_text()
    mine = [server.complete(p, 16)["choices"][0]["text"] for p in prompts]
    assert mine == [server.complete(p, 16)["choices"][0]["text"] for p in prompts]
    same = sum(a == b for a, b in zip(text, mine))
    print(f"{same} of {len(prompts)} continued as without fp8")
    assert same >= SAME_TEXT * len(prompts), list(zip(text, mine))
    versions = learn_under_load(server)
    print(f"{len(versions)} versions made the answers given meanwhile")
    assert len(versions) >= 3, versions
    after = server.complete(TEACH["prompt"], 8)["choices"][0]["text"]
    assert "marigold" in after, after
    assert server.stop() == 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

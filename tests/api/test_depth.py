#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server of eight layers, asked for answers of several depths at a time, beside servers of models from which the
layers were removed: in F32 each answer has the same tokens, log-probabilities and end, on one rank, on two that compute
together and on replicas, whatever else is asked for; the prefix cache keeps depths apart; answers say the depth; while
many wait, new requests get a smaller one.

    test_depth.py HZPSERVE MODEL_DIR

Skips (77) where there is no model.
"""
import concurrent.futures
import json
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
import urllib.error
import urllib.request

import test_draft

LAYERS = [0, 1, 2, 1, 2, 2, 1, 3]  # of the model, one above the other
FLAGS = test_draft.FLAGS
DEPTHS = [0.375, 0.5, 0.75, 0.875]


def places_of(depth):
    """The layers of a depth's path: the first two, the last, and what is left of the others."""
    count, cards = int(depth * len(LAYERS) + 0.5), len(LAYERS) - 3
    out = len(LAYERS) - count
    gone = {2 + (2 * i + 1) * cards // (2 * out) for i in range(out)}
    return [i for i in range(len(LAYERS)) if i not in gone]


def write_model(source, target, layers):
    """The model with these of its layers, one above the other."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    config["num_hidden_layers"] = len(layers)
    (target / "config.json").write_text(json.dumps(config))
    data = (source / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head, data = json.loads(data[8:8 + size]), data[8 + size:]
    tensors, body, made = {}, b"", {}
    for name, tensor in head.items():
        of = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        names = [f"model.layers.{i}.{of[2]}" for i, l in enumerate(layers) if l == int(of[1])] if of else [name]
        if name != "__metadata__":
            tensors.update({each: tensor for each in names})
    for name, tensor in sorted(tensors.items()):
        begin, end = tensor["data_offsets"]
        made[name] = {**tensor, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
    text = json.dumps(made).encode()
    text += b" " * (-len(text) % 8)
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return str(target)


def answers(server, bodies):
    """Of each: its choices, and the depths that they say."""
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda each: server.call("/v1/completions", each), bodies))
    return [([(c["text"], c["finish_reason"], c["logprobs"]) for c in answer["choices"]],
             answer["hzpserve"].get("depth", 1)) for answer in found]


def expected(program, folder, bodies, flags=()):
    """What servers of the removed layers answer."""
    want = [None] * len(bodies)
    for depth in [None] + DEPTHS:
        name = "deep" if depth is None else f"depth-{depth}"
        asked = [i for i, each in enumerate(bodies) if each.get("depth") == depth]
        with test_draft.Server(program, str(folder / name), *FLAGS, "--no-train", *flags) as server:
            got = answers(server, [{k: v for k, v in bodies[i].items() if k != "depth"} for i in asked])
        for i, (choices, _) in zip(asked, got):
            want[i] = choices, depth or 1
    return want


def test_removed_layers(program, folder, bodies):
    want = expected(program, folder, bodies)
    assert len({json.dumps(each[0]) for each in want}) > len(bodies) // 2, "the models answer alike"
    for more in ((), ("--max-running", "2", "--kv-tokens", "1024"), ("--draft", "ngram"),
                 ("--run-ahead", "1"), ("--prefix-file", "/tmp", "--prefix-bytes", "file=64M", "--kv-tokens", "2048"),
                 ("--ranks", "2", "--replicas")):
        with test_draft.Server(program, str(folder / "deep"), *FLAGS, "--no-train", *more) as server:
            got = answers(server, bodies)
            for each, one, other in zip(bodies, want, got):
                assert one == other, (more, each, one, other)
    print(f"{len(bodies)} answers")


def test_guesses(program, folder, bodies):
    """Half of the layers, or an E4M3 copy, guess for requests of any depth, which run beside each other."""
    alone = [{"prompt": "Zorin lives", "max_tokens": 400, "ignore_eos": True, "logprobs": 1, "temperature": t, "seed": 7,
              "depth": 0.75} for t in (0, 0.5, 0.2)]  # one after the other: nothing else runs then
    want, want_alone = expected(program, folder, bodies), expected(program, folder, alone)
    for more in (("depth",), ("fp8",), ("depth", "--max-running", "2", "--kv-tokens", "1024"),
                 ("fp8", "--run-ahead", "1"), ("depth,max=2",)):
        with test_draft.Server(program, str(folder / "deep"), *FLAGS, "--no-train", "--draft", *more) as server:
            counts = [0, 0]
            for some, wanted in ((alone, want_alone), (bodies, want)):
                got = [answers(server, [each])[0] for each in some] if some is alone else answers(server, some)
                for each, one, other in zip(some, wanted, got):
                    assert one == other, (more, each, one, other)
                before, counts = counts, [test_draft.counted(server, f"{name}_tokens") for name in ("draft", "accepted")]
                assert some is bodies or 0 < counts[1] <= counts[0], (more, counts)
            print(f"{more}: of requests of other depths {before[1]:.0f} of {before[0]:.0f} guesses are right, "
                  f"{counts[1]:.0f} of {counts[0]:.0f} in all", flush=True)


def test_eval(program, folder, text):
    """`eval --skip` is the loss of such a request."""
    for depth in DEPTHS:
        found = []
        for name, more in (("deep", ("--skip", str(1 - depth))), (f"depth-{depth}", ())):
            code, out, err = test_draft.test_fp8.run(program, "eval", str(folder / name), "--data", text, "--json",
                                                     "--dtype", "f32", *more)
            assert code == 0, err
            found.append(json.loads(out))
        assert found[0] == found[1], found


def test_tensor(program, folder, bodies):
    two = ("--ranks", "2", "--tensor", "2")
    want = expected(program, folder, bodies, two)
    with test_draft.Server(program, str(folder / "deep"), *FLAGS, "--no-train", *two) as server:
        for each, one, other in zip(bodies, want, answers(server, bodies)):
            assert one == other, (each, one, other)


def refused(server, path, body, header, culprit):
    headers = {"Content-Type": "application/json", **({} if header is None else {"X-Hzpserve-Depth": header})}
    try:
        urllib.request.urlopen(urllib.request.Request(server.url + path, json.dumps(body).encode(), headers))
        raise AssertionError((path, body, header))
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        assert error.code == 400 and f"{culprit} must be" in text, (path, body, header, text)


def test_routes(program, model):
    """All routes take it, and say it; what is not a share is refused."""
    with test_draft.Server(program, model, *FLAGS, "--no-train") as server:
        hello = [{"role": "user", "content": "Where does Zorin live?"}]
        for path, body in (("/v1/completions", {"prompt": "Zorin lives"}), ("/v1/chat/completions", {"messages": hello}),
                           ("/v1/responses", {"input": "Where does Zorin live?"}),
                           ("/v1/messages", {"messages": hello, "max_tokens": 8})):
            assert server.call(path, {**body, "depth": 0.7})["hzpserve"]["depth"] == 0.75, path
            assert "depth" not in server.call(path, {**body, "depth": 1})["hzpserve"], path
            for wrong in (0, -1, 1.5, 1e-46, "half", "0.5", True, [], {}, [0.5]):
                refused(server, path, {**body, "depth": wrong}, None, "depth")
            for wrong in ("0", "-0.5", "1.0001", "1e-46", "nan", "inf", "", "true", "[]", "0,5", "0x1", "half"):
                refused(server, path, body, wrong, "x-hzpserve-depth")
            assert server.call(path, {**body, "depth": 1e-9})["hzpserve"]["depth"] == 0.375, path  # the least there is


def test_swaps(program, model, bodies):
    """Versions change meanwhile: depths go on, and what is computed again goes through the same layers."""
    with test_draft.Server(program, model, *FLAGS, "--slots", "4") as server:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            lesson = pool.submit(server.call, "/v1/fine_tuning/examples?wait=served&timeout=600",
                                 {"prompt": "Where does Vanda live?", "completion": " In Tarn."})
            got = [server.call("/v1/completions", {**each, "consistency": how})
                   for each in bodies for how in ("pinned", "recompute", "continue")]
            lesson.result()
        for each, answer in zip((body for body in bodies for _ in range(3)), got):
            assert answer["hzpserve"].get("depth", 1) == each.get("depth", 1), (each, answer)


def test_shed(program, model):
    with test_draft.Server(program, model, *FLAGS, "--no-train", "--max-running", "1", "--max-waiting",
                           "16,shed-depth=0.5") as server:
        asked = [{"prompt": f"Zorin lives {i}", "max_tokens": 60, "ignore_eos": True, "depth": 1 if i % 3 == 0 else None}
                 for i in range(16)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            got = [a["hzpserve"] for a in pool.map(lambda each: server.call("/v1/completions", each), asked)]
        shed = [answer for answer in got if answer.get("shed")]
        assert 0 < len(shed) < 11 and all(answer["depth"] == 0.5 for answer in shed), got
        assert not any("depth" in got[i] for i in range(0, 16, 3)), got
        counted = re.search(r"^hzpserve_shed_requests_total{?.*?}? (\S+)$", server.text("/metrics"), re.M)[1]
        assert float(counted) == len(shed), (counted, len(shed))
        assert "shed" not in server.call("/v1/completions", {"prompt": "Zorin"})["hzpserve"]


def main():
    program, model = sys.argv[1:]
    if not (pathlib.Path(model) / "model.safetensors").exists():
        print("there is no model: skipped")
        return 77
    dice = random.Random(5)
    bodies = [test_draft.body(dice, i) for i in range(60)]
    for i, each in enumerate(bodies):
        if i % 4:
            each["depth"] = dice.choice(DEPTHS)
        if i % 5 == 1:
            each["prompt"] = bodies[i - 1]["prompt"]  # alike, of another depth
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        deep = write_model(pathlib.Path(model), folder / "deep", LAYERS)
        for depth in DEPTHS:
            write_model(pathlib.Path(model), folder / f"depth-{depth}", [LAYERS[i] for i in places_of(depth)])
        test_removed_layers(program, folder, bodies)
        test_guesses(program, folder, bodies)
        (folder / "text.txt").write_text("Zorin lives in Tarn. The lamps of the harbour keep a story. " * 40)
        test_eval(program, folder, str(folder / "text.txt"))
        test_tensor(program, folder, bodies[:24])
        test_routes(program, deep)
        test_swaps(program, deep, bodies[:12])
        test_shed(program, deep)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())

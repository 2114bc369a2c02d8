#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands on the terminal: complete, eval, devices, help, and errors of one line.

    test_commands.py HZPSERVE MODEL_DIR TEXT_FILE

MODEL_DIR/expected.json has greedy continuations and the mean loss on TEXT_FILE.  Skips (77) where
they are missing.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HANG = 1200  # seconds: only a hang takes this long, however slow or busy the machine is
PLOT = pathlib.Path(__file__).parents[2] / "dev/plot.py"


def run(*arguments, status=0, env=None):
    if arguments[0] == "serve" and "--port" not in arguments:
        arguments += ("--port", "0")  # the default port may be another server's
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, **(env or {})})
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    return done


def fails(*arguments, status=1, says=(), env=None):
    """The command fails with one line that says what is wrong."""
    err = run(*arguments, status=status, env=env).stderr
    lines = [line for line in err.splitlines() if line.startswith("hzpserve: ")]
    assert len(lines) == 1 and err.endswith(lines[0] + "\n"), err
    for word in says:
        assert word in lines[0], (word, err)


NEED_REFERENCE = ("test_complete", "test_eval")


def test_complete():
    for case in EXPECTED["cases"]:
        if not case["prompt"]:
            continue
        out = run("complete", MODEL, case["prompt"], "--temperature", "0", "--max-tokens", "50",
                  "--echo", "--log-level", "error").stdout
        assert len(out) > len(case["prompt"]) + 40 and case["text"].startswith(out.rstrip("\n")), out
    out = run("complete", MODEL, "Once upon a time", "--temperature", "0", "--stop", " little").stdout
    assert out == ", there was a\n", out
    several = run("complete", MODEL, "Once", "--n", "3", "--seed", "5", "--max-tokens", "8").stdout
    assert several.startswith("[0]") and "\n[2]" in several
    assert several == run("complete", MODEL, "Once", "--n", "3", "--seed=5", "--max-tokens=8").stdout


def test_complete_streams():
    """Words appear while the rest is still being generated; an interrupt ends the command at once."""
    process = subprocess.Popen([BINARY, "complete", MODEL, "Once", "--ignore-eos", "--device", "ref",
                                "--max-tokens", "100000"], stdout=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG) in (0, 130)


def test_eval():
    want = EXPECTED["eval"]["mean_nll"]
    got = json.loads(run("eval", MODEL, "--data", TEXT, "--json").stdout)
    assert abs(got["mean_nll"] - want) < 5e-4 and got["tokens"] == EXPECTED["eval"]["tokens"], got
    bf16 = json.loads(run("eval", MODEL, "--data", TEXT, "--json", "--dtype", "bf16").stdout)
    assert 0 < abs(bf16["mean_nll"] - want) < 1e-2, bf16
    assert f"{want:.3f}" in run("eval", MODEL, "--data", TEXT).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        documents = [d.strip() for d in pathlib.Path(TEXT).read_text().split("<|endoftext|>")]
        for document in documents:
            if document:
                file.write(json.dumps({"text": document}) + "\n")
        file.flush()
        lines = json.loads(run("eval", MODEL, "--data", file.name, "--json").stdout)
    # as examples each document ends with an end token, which counts
    assert lines["tokens"] == got["tokens"] + got["documents"], lines
    with tempfile.TemporaryDirectory() as there:  # a run evaluates before its first update
        run("train", MODEL, "--data", TEXT, "--eval", TEXT, "--out", there + "/out", "--total-steps", "1", "--dtype", "f32")
        first = next(json.loads(line) for line in open(there + "/out/train.jsonl", encoding="utf-8") if "eval_loss" in line)
    assert first["eval_tokens"] == got["tokens"] and abs(first["eval_loss"] - want) < 2e-3, (first, got)


def test_data():
    """Unusable data files: one line that names the file, and no waiting for a FIFO."""
    with tempfile.TemporaryDirectory() as there:
        there = pathlib.Path(there)
        os.mkfifo(there / "pipe")
        (there / "binary.txt").write_bytes(b"\xff\xfe\0")
        (there / "empty.jsonl").write_bytes(b"")
        for name in ("pipe", "binary.txt", "empty.jsonl", "."):
            path = str(there / name)
            fails("eval", MODEL, "--data", path, says=[path])
            err = run("train", MODEL, "--data", path, "--out", str(there / "out"), status=1).stderr
            assert path in err.splitlines()[-1], err
        fails("serve", MODEL, "--state", "none", "--replay", str(there / "pipe"), says=["pipe"])
        # The updates are counted before the first one: this must not take minutes.
        (there / "two.jsonl").write_text(2 * '{"prompt": "a", "completion": "b"}\n')
        err = run("train", MODEL, "--data", str(there / "two.jsonl"), "--out", str(there / "out"),
                  "--epochs", "1000000000", status=2).stderr
        assert "--epochs" in err.splitlines()[-1] and "--total-steps" in err.splitlines()[-1], err
        # A tokenizer with more tokens than the model has rows.
        larger = there / "larger"
        shutil.copytree(MODEL, larger, copy_function=shutil.copyfile)
        tokenizer = json.loads((larger / "tokenizer.json").read_text())
        tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=900000, special=False,
                                              content="<|far|>"))
        (larger / "tokenizer.json").write_text(json.dumps(tokenizer))
        (there / "far.txt").write_text("Once upon a <|far|> time")
        for suffix in ("txt", "jsonl"):
            far = there / f"far.{suffix}"
            if suffix == "jsonl":
                far.write_text(json.dumps({"text": "Once upon a <|far|> time"}))
            fails("eval", str(larger), "--data", str(far), says=["far." + suffix, "900000"])


def test_resume():
    """Resumes from a state with more progress than the data allow."""
    with tempfile.TemporaryDirectory() as there:
        data = pathlib.Path(there, "data.jsonl")
        data.write_text("".join(json.dumps({"text": f"Once upon a time {i}"}) + "\n"
                                for i in range(4)))
        out = there + "/out"
        command = ["train", MODEL, "--data", str(data), "--out", out, "--update-tokens", "12"]
        run(*command)
        newest = sorted(pathlib.Path(out).glob("checkpoint-*"))[-1]
        state = newest / "trainer.safetensors"
        whole = state.read_bytes()
        wrong = re.sub(rb'"draws":"\d"', b'"draws":"9"', whole)
        assert wrong != whole and len(wrong) == len(whole)
        state.write_bytes(wrong)
        err = run(*command, "--resume", status=1).stderr
        assert "trainer.safetensors" in err.splitlines()[-1] and "9" in err.splitlines()[-1], err
        state.write_bytes(whole)
        run(*command, "--resume")


def test_skip():
    """train --skip says what its updates left out; a run that goes on leaves out the same, and only with the same."""
    layers = json.loads(pathlib.Path(MODEL, "config.json").read_text())["num_hidden_layers"]
    with tempfile.TemporaryDirectory() as there:
        data = pathlib.Path(there, "data.jsonl")
        data.write_text("".join(json.dumps({"text": f"Once upon a time {i}"}) + "\n" for i in range(8)))

        def left_out(name, steps, *more):
            run("train", MODEL, "--data", str(data), "--out", f"{there}/{name}", "--update-tokens", "12",
                "--total-steps", str(steps), "--skip", "0.25,swap=1", *more)
            lines = [json.loads(line) for line in open(f"{there}/{name}/train.jsonl", encoding="utf-8")]
            return [(line["layers"], line["left_out"]) for line in lines if "loss" in line]

        whole = left_out("whole", 4)
        for kept, text in whole:
            out = [int(layer) for layer in text.split("/")[0].split(",")]
            assert kept + len(out) == layers and min(out) >= 2 and max(out) < layers - 1, whole
        left_out("parts", 2)
        assert left_out("parts", 4, "--resume") == whole
        err = run("train", MODEL, "--data", str(data), "--out", f"{there}/x", "--skip", "0.9", status=2).stderr
        assert "--skip 0.9" in err.splitlines()[-1], err


def test_train_is_interrupted():
    """A run that a signal ends says so by its exit status, keeps its state, and its losses can be drawn."""
    with tempfile.TemporaryDirectory() as there:
        data, out = pathlib.Path(there, "data.jsonl"), pathlib.Path(there, "out")
        data.write_text("".join(json.dumps({"text": f"Once upon a time {i}"}) + "\n" for i in range(4)))
        command = [BINARY, "train", MODEL, "--data", str(data), "--out", str(out), "--epochs", "1000000",
                   "--checkpoint-every", "0"]
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            log = out / "train.jsonl"
            seen = log.read_text().count("\n") if log.exists() else 0
            end = time.monotonic() + HANG
            while not log.exists() or log.read_text().count("\n") < seen + 3:
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.01)
            process.send_signal(number)
            err = process.communicate(timeout=HANG)[1]
            assert process.returncode == status, (process.returncode, err)
            assert "--resume" in err.splitlines()[-1] and list(out.glob("checkpoint-*")), err
            subprocess.run([sys.executable, PLOT, log, out / "loss.svg"], check=True, timeout=HANG)
            assert "</svg>" in (out / "loss.svg").read_text()
            command.append("--resume")


def test_forms():
    """train and eval read what people have, by the names of its fields."""
    with tempfile.TemporaryDirectory() as there:
        where = pathlib.Path(there)
        lines = {"named": {"question": "Once", "answer": " upon a time", "id": 7},
                 "pair": {"prompt": "Once", "completion": " upon a time"},
                 "alpaca": {"instruction": "Begin.", "input": "", "output": "Once upon a time"},
                 "messages": {"messages": [{"role": "user", "content": "Begin."},
                                           {"role": "assistant", "content": "Once upon a time"}]},
                 "io": {"input": "Once", "output": " upon a time", "label": 3},
                 "trl": {"prompt": [{"role": "user", "content": "Begin."}],
                         "completion": [{"role": "assistant", "content": "Once upon a time"}]},
                 "sharegpt": {"conversations": [{"from": "human", "value": "Begin."},
                                                {"from": "gpt", "value": "Once upon a time"}]}}
        got = {}
        for name, line in lines.items():
            (where / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
            fields = ["--prompt-field", "question", "--completion-field", "answer"] * (name == "named")
            got[name] = run("eval", MODEL, "--data", str(where / f"{name}.jsonl"), *fields).stdout
            run("train", MODEL, "--data", str(where / f"{name}.jsonl"), "--out", str(where / name), *fields)
            assert (where / name / "train.jsonl").exists()
        assert got["named"] == got["pair"] == got["io"]
        assert got["messages"] == got["sharegpt"] == got["trl"] != got["alpaca"]
        (where / "t.csv").write_text("id,question,answer\n7,Once,\" upon a time\"\n")
        fields = ["--prompt-field", "question", "--completion-field", "answer"]
        assert run("eval", MODEL, "--data", str(where / "t.csv"), *fields).stdout == got["pair"]
        fails("eval", MODEL, "--data", str(where / "named.jsonl"), says=["named.jsonl", "question", "--prompt-field"])
        (where / "long.jsonl").write_text("".join(json.dumps({"prompt": "word " * n, "completion": " end"}) + "\n"
                                                  for n in (3, 90, 4)))
        command = ["train", MODEL, "--data", str(where / "long.jsonl"), "--out", str(where / "cut"), "--context",
                   "32"]
        err = run(*command, status=1).stderr
        assert "1 of 3 examples" in err and "(line 2)" in err and "--too-long" in err, err
        for word, samples in (("cut", 3), ("skip", 2)):
            err = run(*command[:-3], str(where / word), *command[-2:], "--too-long", word).stderr
            assert f"samples={samples} " in err and "(line 2)" in err and f"--too-long {word}" in err, err
        # Longer than a micro-batch: one of its own, whose activations may be computed again.
        losses = []
        for word in ("none", "mlp", "layer", "auto"):
            out = where / f"long-{word}"
            err = run(*command[:-3], str(out), "--micro-rows", "32", "--recompute", word).stderr
            losses.append([json.loads(line)["loss"] for line in (out / "train.jsonl").read_text().splitlines()
                           if "loss" in line])
        assert losses[0] and all(l == losses[0] for l in losses), losses
        # Utilisation: what is computed again is the hardware's work, not the model's.
        use = [[json.loads(line)["operations"] for line in (where / f"long-{word}" / "train.jsonl").open()
                if "operations" in line] for word in ("none", "mlp", "layer")]
        assert use[0] and all(u["model"] for u in use[0]), use
        for i, update in enumerate(use[0]):
            assert use[1][i]["model"] == use[2][i]["model"] == update["model"], use
            assert update["model"] < update["hardware"] < use[1][i]["hardware"] < use[2][i]["hardware"], use
        last = json.loads((where / "long-none" / "train.jsonl").read_text().splitlines()[-1])
        assert 0 < last["mfu"] < last["hfu"] < 1 and last["peak_gflops"] > 0, last
        assert "use: goodput" in err and " mfu " in err, err
        (where / "x.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
        fails("eval", MODEL, "--data", str(where / "x.parquet"), says=["x.parquet", "read_parquet"])


def test_best():
    """The checkpoint of the lowest evaluation loss is kept and becomes the result; a run that gets worse ends."""
    with tempfile.TemporaryDirectory() as there:
        where = pathlib.Path(there)
        out, log = where / "out", where / "out" / "train.jsonl"
        (where / "data.jsonl").write_text("".join(json.dumps({"text": f"Once upon a time {i}"}) + "\n" for i in range(4)))
        (where / "held.jsonl").write_text(json.dumps({"text": "The little girl was very happy and went home."}) + "\n")
        command = ["train", MODEL, "--data", str(where / "data.jsonl"), "--out", str(out), "--epochs", "400",
                   "--update-tokens", "12", "--lr", "5e-3", "--eval", str(where / "held.jsonl")]
        for options, word in ((["--keep", "best", "--eval-every", "2,patience=3"], ""),
                              (["--eval-every", "0,patience=3"], "--eval-every"), (["--eval-every", "x"], "--eval-every")):
            err = run(*command, *options, status=2 if word else 0).stderr
            assert word in err, err
        fails("serve", MODEL, "--state", str(where / "state"), "--keep", "best", status=2, says=["--keep", "train"])
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        evals = [(line["eval_loss"], line["step"]) for line in lines if "eval_loss" in line and line["step"]]
        best, last = min(evals), evals[-1][1]
        assert [step for _, step in evals] == list(range(2, last + 1, 2)) and last == best[1] + 6 < 400, evals
        err = run(*command, "--keep", "best", "--eval-every", "2,patience=3", "--resume").stderr
        assert (out / f"checkpoint-{best[1]}").is_dir() and f"after update {best[1]}," in err, err
        assert len(list(out.glob("checkpoint-*"))) == 2  # and the newest
        got = json.loads(run("eval", str(out), "--data", str(where / "held.jsonl"), "--json").stdout)
        assert abs(got["mean_nll"] - best[0]) < 1e-4, (got, best)


def test_file_limit():
    """Under a limit on file sizes: an error that names the file, not a signal."""
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    with tempfile.TemporaryDirectory() as there:
        data = pathlib.Path(there, "data.jsonl")
        data.write_text(json.dumps({"text": "Once upon a time there was a file"}))
        done = subprocess.run([BINARY, "train", MODEL, "--data", str(data), "--out",
                               there + "/out"], capture_output=True, text=True, timeout=HANG,
                              preexec_fn=limited)
        assert done.returncode == 1, (done.returncode, done.stderr)
        assert "out/checkpoint-1" in done.stderr.splitlines()[-1], done.stderr
        assert not list(pathlib.Path(there, "out").glob("checkpoint-*")), os.listdir(there + "/out")


def test_help():
    assert "hzpserve serve" in run("--help").stdout
    assert re.match(r"hzpserve \S+\ncommit \S+\nbackends .*cpu", run("--version").stdout)
    for command in ("serve", "complete", "eval", "train", "bench", "devices"):
        assert "--threads" in run(command, "--help-all").stdout
        assert "Examples" in run("help", command).stdout
    assert "--adamw" in run("help", "training").stdout
    topics = re.findall(r"^  (\w+) ", run("help").stdout.split("\nTopics\n")[1], re.M)
    for topic in topics:
        has = "\n  --" in run("help", topic).stdout
        assert has == (topic not in ("files", "environment", "exit")), topic  # each option has its topic
    assert "--served-model-name" in run("help", "load").stdout
    assert "--requests" in run("bench", "offline", "--help").stdout
    devices = run("devices").stdout
    assert "--device cpu" in devices and "oneDNN" in devices and "cuda" in devices, devices
    assert "link mpi: " in devices and "link nccl: " in devices, devices
    links = {a["link"]: a for a in json.loads(run("devices", "--json").stdout)["links"]}
    assert set(links) == {"mpi", "zmq", "nccl"} and all(a["about"] for a in links.values()), links
    assert links["mpi"]["usable"] == ("built without" not in links["mpi"]["about"]), links
    got = {b["backend"]: b for b in json.loads(run("devices", "--json").stdout)["backends"]}
    assert set(got) == {"cuda", "cpu", "ref"}, got
    cpu = got["cpu"]["devices"][0]
    assert cpu["device"] == "cpu" and cpu["cores"] > 0 and cpu["memory_bytes"] > 1 << 20, cpu
    assert cpu["kernels_used"] in got["cpu"]["build"]["kernels_for"], got["cpu"]
    lower = json.loads(run("devices", "--json", env={"HZP_CPU_LEVEL": "base"}).stdout)["backends"]
    base = next(b for b in lower if b["backend"] == "cpu")["devices"][0]
    assert base["kernels_used"] == "base" and "f32" in base["bf16_arithmetic"] and base["vectors"], base
    highest = cpu.get("highest_level", cpu["kernels_used"])  # HZP_CPU_LEVEL may be set for this test, too
    assert base.get("highest_level", "base").split()[0] == highest.split()[0], (base, cpu)
    assert bool(got["cuda"].get("none")) != bool(got["cuda"]["devices"]), got["cuda"]
    for one in got["cuda"]["devices"]:
        assert one["device"].startswith("cuda:") and one["memory_bytes"] > 1 << 30, one
    fails("complete", MODEL, "x", "--device", "cpu:1", status=2, says=["cpu:1", "only cuda"])
    fails("complete", MODEL, "x", "--device", "cuda:one", status=2, says=["cuda:one", "number"])
    state = re.sub(r"\s+", " ", run("help", "learning").stdout)
    assert re.search(r"--state DIR .{,120}\$XDG_DATA_HOME or ~/\.local/share", state), state


def test_errors():
    fails("dance", status=2, says=["dance"])
    fails("serve", "--port", "x", MODEL, status=2, says=["--port"])
    fails("help", "trainign", status=2, says=["did you mean training?"])
    fails("serve", "--prot", "1", status=2, says=["--prot", "did you mean --port?"])
    with tempfile.TemporaryDirectory() as there:  # the benchmarks are a program beside this one
        alone = shutil.copy(BINARY, there)
        done = subprocess.run([alone, "bench", "ops", MODEL], capture_output=True, text=True)
        assert done.returncode == 1 and f"{there}/hzpserve-bench" in done.stderr, done
    fails("bench", "offlien", status=2, says=["did you mean offline?"])
    fails("complete", MODEL, status=2)
    fails("eval", MODEL, status=2, says=["--data"])
    fails("eval", MODEL, "--data", "/nonexistent.txt", status=2, says=["--data /nonexistent.txt"])
    fails("complete", "/nonexistent", "x", says=["/nonexistent"])
    fails("serve", "/nonexistent", says=["/nonexistent"])
    fails("complete", MODEL, "x", "--device", "abacus", status=2, says=["abacus"])
    fails("serve", MODEL, "--no-train", "--kv-tokens", "900000000", status=2,
          says=["--kv-tokens: not enough memory", "KV cache", "--kv-memory"])
    fails("serve", MODEL, "--no-train", "--kv-memory", "4000G", status=2, says=["--kv-memory: "])
    fails("serve", MODEL, "--replay", "/nonexistent", "--state", "none", status=2, says=["--replay", "/nonexistent"])
    fails("serve", MODEL, "--gate", "/nonexistent", "--state", "none", status=2, says=["/nonexistent"])
    fails("serve", MODEL, "--host", "192.0.2.1", "--no-auth", status=2, says=["--host 192.0.2.1"])
    for option in (["--data"], ["--data", TEXT, "--eval"]):
        err = run("train", MODEL, *option, "/nonexistent.txt", "--out", "/nonexistent", status=2).stderr
        assert f"{option[-1]} /nonexistent.txt" in err, err
    fails("serve", MODEL, "--no-train", "--train-share", "cores=1", status=2, says=["--train-share cores"])
    fails("serve", MODEL, "--no-train", "--train-share", "ride=64", status=2, says=["--train-share ride"])
    fails("serve", MODEL, "--quantization", "fp8", "--train-share", "ride=64", status=2,
          says=["--train-share ride", "--quantization"])
    fails("serve", MODEL, "--slo", "itl=soon", status=2, says=["--slo", "soon"])
    fails("serve", MODEL, "--host", "no such host", "--no-auth", status=2, says=["--host"])
    fails("eval", MODEL, "--data", TEXT, "--device", "abacus", status=2, says=["abacus"])
    fails("serve", MODEL, "--train-share", "ride=-1", says=["--train-share ride", "-1"], status=2)
    fails("serve", MODEL, "--train-share", "ride=999999999", says=["--train-share ride", "65536"], status=2)
    fails("serve", MODEL, "--lora-path", "x", says=["--lora-path", "merged into"], status=2)
    fails("serve", MODEL, "--quantization", "fp9", says=["--quantization", "none|fp8"], status=2)
    with tempfile.TemporaryDirectory() as broken:
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            shutil.copytree(MODEL, broken, dirs_exist_ok=True,
                            copy_function=lambda a, b: pathlib.Path(b).write_bytes(
                                pathlib.Path(a).read_bytes()))
            path = pathlib.Path(broken) / name
            path.write_bytes(path.read_bytes()[:100])
            for command in (["complete", broken, "x"], ["serve", broken, "--state", "none"],
                            ["eval", broken, "--data", TEXT]):
                fails(*command, says=[name])
    fails("devices", status=2, says=("--log-level", '"loud"'), env={"HZP_LOG": "loud"})
    assert run("devices", env={"HZP_LOG": "loud"}, status=2).stderr.count("loud") == 1


def test_nothing_is_left_of_a_failed_start():
    bad = [("serve", 2, "--device", "abacus"), ("serve", 2, "--kv-tokens", "900000000"),
           ("serve", 2, "--micro-rows", "1000000000"), ("serve", 2, "--host", "192.0.2.1", "--no-auth"),
           ("serve", 2, "--replay", "/nonexistent")]
    with tempfile.TemporaryDirectory() as there:
        for command, status, *options in bad:
            for state in ("new", "new/deep//er/", "."):
                run(command, MODEL, "--port", "0", "--state", f"{there}/{state}", *options,
                    status=status)
                assert os.listdir(there) == [], (options, os.listdir(there))
            run(command, MODEL, "--port", "0", *options, env={"XDG_DATA_HOME": there}, status=status)
            assert os.listdir(there) == [], (options, os.listdir(there))
        run("train", MODEL, "--data", TEXT, "--out", f"{there}/a/b", "--device", "abacus", status=2)
        assert os.listdir(there) == []
        pathlib.Path(there, "mine").write_text("mine")
        run("serve", MODEL, "--state", there, "--device", "abacus", status=2)
        assert os.listdir(there) == ["mine"]


def test_port_first():
    """A taken port is noticed before the model is read."""
    with socket.socket() as taken, tempfile.TemporaryDirectory() as broken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shutil.copytree(MODEL, broken, dirs_exist_ok=True)
        (pathlib.Path(broken) / "model.safetensors").write_bytes(b"not a model")
        fails("serve", broken, "--state", "none", "--port", str(port), status=1, says=["the port is in use"])
        fails("serve", broken, "--state", "none", "--port", "0", says=["model.safetensors"])


def test_serve_bundled():
    """Without a model the bundled one is served, at the address that is printed."""
    process = subprocess.Popen([BINARY, "serve", "--host", "0.0.0.0", "--port", "0", "--state", "none"],
                               env={**os.environ, "HZP_API_KEY": "secret"}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        found = None
        for line in process.stdout:
            found = found or re.search(r"hzpserve serves world at (http://127\.0\.0\.1:\d+)$", line)
            if line.startswith("curl") and "/v1/completions" in line and found:
                break
        assert found, process.stderr.read()
        request = urllib.request.Request(found[1] + "/v1/models", headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            assert json.load(answer)["data"][0]["id"] == "world"
    finally:
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=HANG)[1]
    assert process.returncode == 0 and "not the first option" not in err, err


def test_standard_input():
    """The prompt - is read from standard input; without a model the bundled one completes it."""
    def complete(*arguments, data):
        return subprocess.run([BINARY, "complete", *arguments, "--temperature", "0", "--max-tokens", "8",
                               "--log-level", "error"], input=data, capture_output=True, timeout=HANG)
    want = run("complete", MODEL, "Once upon", "--temperature", "0", "--max-tokens", "8",
               "--log-level", "error").stdout
    for data in (b"Once upon", b"Once upon\n"):
        done = complete(MODEL, "-", data=data)
        assert done.returncode == 0 and done.stdout.decode() == want, done
    done = complete("-", data=b"Where does Zorin live?\n")
    assert done.returncode == 0 and done.stdout.strip(), done
    for data, says in ((b"\xff\xfe", b"UTF-8"), (b"a\0b", b"NUL")):
        done = complete(MODEL, "-", data=data)
        assert done.returncode == 2 and says in done.stderr and not done.stdout, done


def test_words():
    """An extra word on the command line is an error, and not ignored."""
    for command in (["serve", MODEL], ["plan", MODEL], ["search", MODEL], ["eval", MODEL],
                    ["train", MODEL], ["complete", MODEL, "x"], ["bench", "ops", MODEL], ["devices"]):
        fails(*command, "surplus", status=2, says=[command[0], '"surplus"'])


def test_plan():
    """A plan is printed, run and traced at the model's own size; errors name the wrong argument."""
    out = run("plan", MODEL, "--decode", "4").stdout.splitlines()
    assert out[0].split()[:5] == ["item", "lane", "cores", "op", "layer"] and "attn_decode" in "".join(out)
    assert all(line.split()[:2] == [str(i), "compute"] for i, line in enumerate(out[1:])), out
    with tempfile.TemporaryDirectory() as there:
        path = pathlib.Path(there, "trace.json")
        lanes = ["--shape", "overlap,1:1:1,skewed,train=train"]
        out = run("plan", MODEL, "--decode", "6", "--prefill", "9", "--train", "16", *lanes, "--print",
                  "--trace", str(path)).stdout
        events = json.loads(path.read_text())
        names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
        spans = sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["args"]["item"])
        assert len(spans) == len(out.splitlines()) - 1
        assert {names[e["tid"]] for e in spans} == {"compute", "memory", "train"}
        ended = {}
        for e, line in zip(spans, out.splitlines()[1:]):
            waits = [int(w) for w in line.split()[10:]]
            for before in [spans[w] for w in waits] + ([ended[e["tid"]]] if e["tid"] in ended else []):
                assert before["ts"] + before["dur"] <= e["ts"] + 0.002, (before, e)
            ended[e["tid"]] = e
        fails("plan", MODEL, "--decode", "1", "--trace", there, says=[there])
    ratio = run("plan", MODEL, "--decode", "2", "--repeat", "2").stdout.splitlines()[-1]
    low, middle, high = (float(re.search(f"{k}(?:: | )([0-9.]+)", ratio)[1]) for k in ("p10", "run", "p90"))
    assert low <= middle <= high, ratio
    for bad, says in ((["--shape", "3::1"], "3::1"), (["--shape", ""], "--shape"), (["--shape", "1:1,,"], "--shape"),
                      (["--shape", "0:0"], "no rows"), (["--shape", "1:1:1:1:1:1:1:1:1"], "9 nano-batches"),
                      (["--shape", "5:decode=memory"], "--shape"), (["--shape", "train=foo"], "train=foo"),
                      (["--shape", "compute=-1"], "--shape"), (["--shape", "memory"], "--shape"),
                      (["--split", "3,1"], "unknown option --split"),
                      (["--depth", "100000"], "positions"), (["--prefill", "65536"], "positions"),
                      (["--context", "9"], "--context"), (["--decode", "0"], "--decode")):
        fails("plan", MODEL, "--decode", "4", *bad, status=2, says=[says])


def figures(*arguments):
    """What a benchmark prints as JSON: {name: value}."""
    said = json.loads(run("bench", *arguments, "--quick", "--json", "--threads", "1").stdout)
    return {f["name"]: f["value"] for f in said["figures"] if "name" in f}


def test_bench():
    """Benchmarks run with their defaults on the bundled model, and with more requests than wait."""
    found = figures("offline", "--requests", "5")
    assert found["offline, tokens of a prompt"] + found["offline, tokens of an answer"] <= 512, found
    assert found["offline, answers"] > 0
    found = figures("offline", "--requests", "30", "--max-running", "3", "--max-waiting", "1",
                    "--input-len", "4", "--output-len", "3")
    assert found["offline, answers"] > 0 and found["offline, tokens of a prompt"] == 4
    fails("bench", "offline", MODEL, "--input-len", "4000", "--quick", status=2, says=["--input-len"])
    found = figures("start", MODEL)
    assert found["start, with training"] > 0 and found["start, with training over without"] > 0
    assert found["start, from a checkpoint"] > 0 and found["start, from a checkpoint over without"] > 0
    fails("bench", "swap", MODEL, "--consistency", "all", "--quick", status=2, says=["--slots 3"])
    fails("bench", "start", "/nonexistent", "--quick", says=["/nonexistent"])


def search_file(path):
    found = json.loads(path.read_text())
    return found["parts_done"], found["parts"], found


def test_search():
    """The search resumes after an interrupt, shows what it found, and serve uses the result."""
    small = ["--max-running", "4", "--step-rows", "16", "--no-train", "--tries", "5",
             "--max-others", "1"]
    with tempfile.TemporaryDirectory() as there:
        env = {"XDG_CACHE_HOME": there}
        assert "there are no measurements" in run("search", MODEL, *small, "--show", env=env,
                                                 status=1).stderr
        path = pathlib.Path(there, "found.json")
        command = [BINARY, "search", MODEL, *small, "--file", str(path)]
        delay, done, parts = 1, 0, 0
        while not 0 < done < parts:  # interrupted too early or too late for this machine: try again
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=HANG)[1]
            if process.returncode == 0:
                path.unlink()
            if path.exists():
                done, parts, _ = search_file(path)
            delay *= 0.5 if process.returncode == 0 else 2
            assert 1e-4 < delay < HANG, err
        assert process.returncode == 130 and "continues from here" in err, err
        assert [p.name for p in pathlib.Path(there).iterdir()] == ["found.json"]
        fails("complete", MODEL, "Once", "--plans", str(path), status=2,
              says=[str(path), "did not come to its end"])
        again = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
        assert again.returncode == 0 and f"measured {parts - done} of {parts}" in again.stderr
        done, parts, found = search_file(path)
        assert done == parts and len(found["plans"]) > 4, (done, parts)
        assert any(p["again"] for p in found["curves"]) and len(found["pairs"]) > 3
        shown = run("search", MODEL, *small, "--file", str(path), "--show").stdout
        for word in ("matmul", "attn_decode", "thin product", "hand-over", "one lane"):
            assert word in shown, word
        err = run(*command[1:]).stderr
        assert "measured" not in err and "simulated" not in err and "s in total" in err, err
        found["plans"][1]["train_lanes"] = [4, 4, 4, 4]
        found["plans"][1]["predicted"]["confirmed"] = 0
        path.write_text(json.dumps(found))
        assert "not run: not used" in run(*command[1:], "--show").stdout
        err = run(*command[1:]).stderr  # interrupted while it ran the plans it had found
        assert "ran 1 shapes" in err and "measured" not in err and "simulated" not in err, err
        assert search_file(path)[2]["plans"][1]["predicted"]["confirmed"] > 0
        err = run(*command[1:-2], "--itl", "1000", "--file", str(path)).stderr
        assert "measured" not in err and "simulated" in err, err
        found = search_file(path)[2]
        text = ["--temperature", "0", "--max-tokens", "8", "--log-level", "error"]
        plain = run("complete", MODEL, "Once", "--plans", "off", *text).stdout
        assert plain == run("complete", MODEL, "Once", "--plans", str(path), *text).stdout
        quiet = dict(found["quiet"])
        assert found["whole"] and quiet["watched_ns"] > quiet["others_ns"] >= 0
        found["quiet"] = {"watched_ns": 100, "others_ns": 31, "others_max": 0.1}
        path.write_text(json.dumps(found))
        fails("complete", MODEL, "Once", "--plans", str(path), status=2, says=["other processes took 31 %"])
        shown = run("search", MODEL, *small, "--file", str(path), "--show").stdout
        assert "plans are not used: other processes took 31 %" in shown, shown
        found["quiet"] = quiet
        found["device"] = "an abacus"
        path.write_text(json.dumps(found))
        fails("complete", MODEL, "Once", "--plans", str(path), status=2, says=["another device"])
        fails("search", MODEL, *small, "--file", str(path), status=2, says=["another device"])
        path.write_text("{")
        fails("complete", MODEL, "Once", "--plans", str(path), says=[str(path)])
        fails("search", MODEL, *small, "--file", str(path), says=[str(path), "--fresh"])


def main():
    global BINARY, MODEL, TEXT, EXPECTED
    BINARY, MODEL, TEXT = sys.argv[1:4]
    expected = pathlib.Path(MODEL) / "expected.json"
    reference = expected.exists() and pathlib.Path(TEXT).exists()
    if not reference:
        print(f"{expected} or {TEXT} is missing: with the bundled model, and not against a reference")
        root = pathlib.Path(__file__).resolve().parents[2]
        MODEL, TEXT = str(root / "models/world"), str(root / "tests/data/world.txt")
    EXPECTED = json.loads(expected.read_text()) if reference else None
    for name, test in list(globals().items()):
        if name.startswith("test_") and name in (sys.argv[4:] or [name]):
            if name in NEED_REFERENCE and not reference:
                print(f"left out: {name}")
                continue
            begin = time.monotonic()
            test()
            print(f"ok {name} {time.monotonic() - begin:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

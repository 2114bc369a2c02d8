#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of a real server: metrics, ids of requests, and the log.

    test_seen.py HZPSERVE MODEL_DIR [TEST ...]

Uses the server of test_api.py.  Skips (77) where the client or the model is missing.
"""
import http.client
import json
import re
import sys
import tempfile
import time

import promlint
import test_api
from test_api import EXAMPLES, HANG, PROMPT, Server, until


def samples(page):
    """The samples of a metrics page: {name: {labels as written: value}}."""
    found = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-zA-Z0-9_:]+)(?:{(.*)})? (\S+)", line).groups()
            assert labels not in found.setdefault(name, {}), line
            found[name][labels] = float(value)
    return found


def test_metrics_for_boards(server):
    """What current boards of vLLM ask for: names, labels, and buckets selected by their text."""
    server.complete(max_tokens=5, n=2, temperature=1)
    server.post("/v1/completions", {"prompt": 3})
    until(lambda: 'status="4xx"' in server.get("/metrics"))
    page = server.get("/metrics")
    found = samples(page)
    mine = 'model_name="tiny",engine="0"'
    assert found["vllm:engine_sleep_state"][mine + ',sleep_state="awake"'] == 1
    assert found["vllm:num_requests_waiting_by_reason"][mine + ',reason="capacity"'] == 0
    sources = found["vllm:prompt_tokens_by_source_total"]
    assert sources[mine + ',source="local_compute"'] + sources[mine + ',source="local_cache_hit"'] \
        == found["vllm:prompt_tokens_total"][mine] > 0
    for reason in ("stop", "length", "abort", "error"):
        assert f'{mine},finished_reason="{reason}"' in found["vllm:request_success_total"]
    for name, bounds in (("vllm:time_to_first_token_seconds", ("0.1", "0.25", "1.0", "2.5", "10.0")),
                         ("vllm:request_time_per_output_token_seconds", ("0.025", "0.05", "1.0")),
                         ("vllm:request_prompt_tokens", ("1.0", "100000.0")),
                         ("vllm:request_max_num_generation_tokens", ("5.0",)),
                         ("vllm:e2e_request_latency_seconds", ("0.3", "1.0", "7680.0"))):
        for bound in (*bounds, "+Inf"):
            assert f'{mine},le="{bound}"' in found[name + "_bucket"], (name, bound)
        assert found[name + "_count"][mine] == found[name + "_bucket"][mine + ',le="+Inf"'] > 0
    route = 'handler="/v1/completions",method="POST"'
    answered, refused = (found["http_requests_total"][f'{route},status="{c}"'] for c in ("2xx", "4xx"))
    assert answered > 0 and refused > 0
    assert found["http_request_duration_seconds_count"][route] == answered + refused
    assert found["http_request_duration_seconds_bucket"][route + ',le="1.0"'] <= answered + refused
    assert found["hzpserve_http_responses_total"][route + ',status="400"'] == refused
    # Probes are counted, but not where boards look for requests.
    assert not any("/metrics" in k or "/health" in k for k in found["http_requests_total"])
    assert any("/metrics" in k for k in found["hzpserve_http_responses_total"])
    assert abs(found["process_start_time_seconds"][None] - time.time()) < 86400


def test_form_of_metrics(server):
    """Nothing that `promtool check metrics` finds fault with, also in what only some servers have."""
    server.complete(max_tokens=2)
    page = server.get("/metrics")
    assert not promlint.check(page), promlint.check(page)
    for line, faulty in (("# HELP hzpserve_steps_total", "# HELP hzpserve_steps"),  # samples without it
                         ("# TYPE hzpserve_steps_total counter", "# TYPE hzpserve_steps_total gauge"),
                         ("# TYPE hzpserve_kv_pages gauge", "# TYPE hzpserve_kv_pages counter"),
                         ("hzpserve_kv_pages{", "hzpserve_kv_pages{le=\"1.0\","),
                         ("hzpserve_stream_join_seconds", "hzpserve_stream_join_milliseconds"),
                         ("hzpserve_stream_join_seconds", "hzpserve_stream_join_ms"),
                         ("hzpserve_pins ", "hzpserve:pins "), ("hzpserve_pins{", "hzpserve_pins_{")):
        assert line in page and promlint.check(page.replace(line, faulty)), (line, faulty)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as held:
        held.write('{"prompt": "a", "completion": "b"}\n')
        held.flush()
        with Server("--gate", held.name, "--canary", "0.5,requests=1,seconds=1", "--slots", "3", "--passes", "1") as other:
            assert other.post(EXAMPLES, {"prompt": "a", "completion": "b"})[0] in (200, 202)
            until(lambda: "hzpserve_gate_loss" in other.get("/metrics"))
            page = other.get("/metrics")
    assert "hzpserve_trial" in page and "hzpserve_train_loss" in page and not promlint.check(page), promlint.check(page)


def test_idle_is_counted(server):
    """The idle counter runs while the engine is idle, and not only when it wakes."""
    until(server.idle)

    def idle():
        return samples(server.get("/metrics"))["hzpserve_device_seconds_total"][
            'model_name="tiny",engine="0",tenant="idle"']
    until(lambda: idle() > 0)
    begin = idle()
    from_time = time.monotonic()
    time.sleep(0.3)
    passed = time.monotonic() - from_time
    now = idle()
    assert now - begin >= passed, (begin, now, passed)
    most = time.monotonic() - from_time
    server.complete(max_tokens=2)
    assert idle() >= now  # what was reported is never taken back
    assert now - begin <= most + 60, (begin, now, most)


def test_request_ids(server):
    """An id comes back in the header, in the completion's id, in errors; one that is unfit does not."""
    def ask(path, body, given, method="POST"):
        return server.post(path, body, {"x-request-id": given} if given else {}, method)
    body = {"prompt": PROMPT, "max_tokens": 1}
    status, headers, got = ask("/v1/completions", body, "my-id_1.2:3")
    assert status == 200 and headers["x-request-id"] == "my-id_1.2:3" and got["id"] == "cmpl-my-id_1.2:3"
    status, headers, got = ask("/v1/completions", {"prompt": 3}, "bad-1")
    assert status == 400 and headers["x-request-id"] == got["error"]["request_id"] == "bad-1"
    status, headers, got = ask("/nowhere", body, "bad-2")
    assert status == 404 and headers["x-request-id"] == got["error"]["request_id"] == "bad-2"
    ids = set()
    for unfit in (None, "", "a b", "x" * 65, '"', "\u00e9"):
        status, headers, got = ask("/v1/completions", body, unfit)
        assert status == 200 and re.fullmatch("[0-9a-f]{32}", headers["x-request-id"]), headers.items()
        assert got["id"] == "cmpl-" + headers["x-request-id"]
        ids.add(got["id"])
    assert len(ids) == 6
    version = got["hzpserve"]["weights_version"]
    assert re.fullmatch(rf"hzpserve-\S+-v{version}", got["system_fingerprint"]), got
    assert headers["x-hzpserve-weights-version"] == str(version)
    assert headers["x-hzpserve-staleness"] == str(got["hzpserve"]["staleness"])
    with server.client.completions.with_streaming_response.create(
            model=server.model, prompt=PROMPT, max_tokens=3, stream=True,
            extra_headers={"x-request-id": "stream-1"}) as answer:
        assert answer.headers["x-request-id"] == "stream-1"
        assert answer.headers["x-hzpserve-staleness"] == "0"
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert {c["id"] for c in chunks} == {"cmpl-stream-1"}
    assert {c["system_fingerprint"] for c in chunks} == {got["system_fingerprint"]}


def test_log():
    """One line a request, an update, a version, a checkpoint; each a JSON object if asked for."""
    with tempfile.TemporaryFile("w+") as log:
        with Server("--log-format", "json", "--api-key", "secret", "--passes", "1", log=log) as server:
            key = {"Authorization": "Bearer secret"}
            server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "n": 2, "ignore_eos": True},
                        {**key, "x-request-id": "whole"})
            server.post("/v1/completions", {"prompt": 3}, {**key, "x-request-id": "bad"})
            server.post("/v1/completions", {}, {"x-request-id": "no-key"})
            list(server.client.completions.create(model=server.model, prompt=PROMPT, max_tokens=3,
                                                  stream=True, extra_headers={"x-request-id": "stream"}))
            assert server.post(EXAMPLES + f"?wait=served&timeout={HANG}",
                               '{"prompt": "a", "completion": "b"}\n' * 2,
                               {**key, "x-request-id": "lesson"})[0] == 200
            # A client that disconnects within an answer.
            lines = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG)
            lines.request("POST", "/v1/completions", json.dumps(
                {"prompt": PROMPT, "max_tokens": server.long, "stream": True, "ignore_eos": True}),
                {**key, "content-type": "application/json", "x-request-id": "left"})
            lines.getresponse().read(1)
            lines.close()
        log.seek(0)
        text = log.read()
    events = [json.loads(line) for line in text.splitlines()]
    assert "secret" not in text
    assert all({"time", "level", "subsystem", "event"} <= set(e) for e in events)
    request = {e["id"]: e for e in events if e["event"] == "request"}
    whole = request["whole"]
    assert (whole["status"], whole["key"], whole["route"]) == (200, "api", "/v1/completions")
    assert (whole["choices"], whole["tokens"], whole["finish"], whole["versions"]) == (2, 6, "length", 1)
    assert 0 < whole["ttft_ms"] <= whole["ms"] and whole["prompt_tokens"] > 0
    assert request["bad"]["status"] == 400 and request["no-key"]["status"] == 401
    assert request["no-key"]["key"] == "none" and request["stream"]["stream"] == 1
    assert request["lesson"]["status"] == 200 and request["left"]["finish"] in ("abort", "length")
    named = {name: [e for e in events if e["event"] == name]
             for name in ("accepted", "update", "version", "checkpoint", "memory")}
    assert (named["accepted"][0]["first"], named["accepted"][0]["last"]) == (1, 2)
    assert named["update"][0]["optimizer_step"] == 1 and named["update"][0]["sequence"] == "1-2"
    assert [v["id"] for v in named["version"]][:2] == [1, 2]
    assert named["version"][-1]["learned_through"] == 2 and named["checkpoint"] and named["memory"]


if __name__ == "__main__":
    sys.exit(test_api.main(globals()))

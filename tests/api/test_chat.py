#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions on a real server, asked by the official `openai` client.

    test_chat.py HZPSERVE MODEL_DIR [TEST ...]

Skips (77) where the client or the model is missing.
"""
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import test_api as base
from check_dialects import *  # noqa: F401,F403
from check_fields import *  # noqa: F401,F403 - its tests run on the same server
from check_json import *  # noqa: F401,F403
from check_structure import *  # noqa: F401,F403
from check_terminal import *  # noqa: F401,F403
from test_api import Server, raises

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import compatibility  # noqa: E402

TEMPLATE = """
{%- if tools %}[tools {{ tools | map(attribute='function.name') | join(' ') }}]{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'forbidden' %}{{ raise_exception('no role ' ~ message.role) }}{% endif -%}
<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments.a }}]{% endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}<assistant>{{ mood }}{% endif -%}
"""
HELLO = [{"role": "user", "content": "Where does Zorin live?"}]


def chat(server, messages=None, **fields):
    """Greedy and of a known length, unless the arguments differ."""
    fields = {"model": server.model, "max_tokens": 12, "temperature": 0, **fields}
    extra = {"ignore_eos": True, **fields.pop("extra", {})}
    return server.client.chat.completions.create(messages=messages or HELLO, **fields,
                                                 extra_body=extra)


def prompt_of(server, messages, **fields):
    """The text that the template made of the messages."""
    body = {"messages": messages, "max_tokens": 0, "return_token_ids": True, **fields}
    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    ids = answer["choices"][0]["prompt_token_ids"]
    status, _, answer = server.post("/v1/completions", {
        "prompt": ids, "max_tokens": 0, "echo": True, "skip_special_tokens": False})
    return answer["choices"][0]["text"]


def test_as_completion(server):
    """A chat is the completion of what the template makes."""
    text = prompt_of(server, HELLO)
    assert text == "<user>Where does Zorin live?<assistant>", text
    answer = chat(server)
    same = server.complete(prompt=text, max_tokens=12, add_special_tokens=False)
    choice = answer.choices[0]
    assert choice.message.content == same.choices[0].text
    assert choice.message.role == "assistant" and choice.finish_reason == "length"
    assert choice.message.refusal is None and choice.message.tool_calls is None
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage.prompt_tokens == same.usage.prompt_tokens
    assert answer.usage.completion_tokens == 12
    assert answer.hzpserve["spans"][0]["end"] == 12 and "ignored" not in answer.hzpserve


def test_stream(server):
    whole = chat(server, n=2, seed=3, temperature=1)
    parts, roles, ends, usage, version = {0: "", 1: ""}, {}, {}, None, None
    for chunk in chat(server, n=2, seed=3, temperature=1, stream=True,
                      stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk" and chunk.id.startswith("chatcmpl-")
        usage = chunk.usage or usage
        version = getattr(chunk, "hzpserve", None) or version
        for choice in chunk.choices:
            if choice.delta.role:
                assert choice.index not in roles
                roles[choice.index] = choice.delta.role
            parts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    assert roles == {0: "assistant", 1: "assistant"}, roles
    assert ends == {0: "length", 1: "length"}, ends
    assert usage.completion_tokens == 24 and version["weights_version"] == 1
    assert [parts[0], parts[1]] == [c.message.content for c in whole.choices]


def test_logprobs(server):
    answer = chat(server, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    text = "".join(t.token for t in content if not t.token.startswith("<|"))  # special tokens
    assert text == answer.choices[0].message.content
    for token in content:
        assert token.logprob <= 0 and bytes(token.bytes).decode() == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob  # greedy
    streamed = [t for chunk in chat(server, logprobs=True, stream=True)
                for c in chunk.choices if c.logprobs for t in c.logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in content]
    assert all(t.top_logprobs == [] for t in streamed)
    raises(base.openai.BadRequestError, lambda: chat(server, top_logprobs=2))


def test_length(server):
    """Without max_tokens the context is the bound; max_completion_tokens is the newer name."""
    answer = chat(server, max_tokens=None, max_completion_tokens=5)
    assert answer.usage.completion_tokens == 5
    status, _, body = server.post("/v1/chat/completions", {"messages": HELLO, "ignore_eos": True})
    assert status == 200 and body["usage"]["total_tokens"] == server.context
    status, _, body = server.post("/v1/chat/completions",
                                  {"messages": HELLO, "max_tokens": server.context})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    long = [{"role": "user", "content": "a b c " * server.context}]
    status, _, body = server.post("/v1/chat/completions", {"messages": long})
    assert status == 400 and body["error"]["param"] == "messages"
    assert body["error"]["code"] == "context_length_exceeded"
    for keep, tokens in ((7, 7), (-1, server.context - 4), (0, None)):
        status, _, body = server.post("/v1/completions", {
            "prompt": "a b c " * server.context, "max_tokens": 4, "ignore_eos": True,
            "truncate_prompt_tokens": keep, "return_token_ids": True})
        assert status == (200 if tokens else 400), body
        if tokens:
            assert body["usage"]["prompt_tokens"] == tokens
    whole = server.post("/tokenize", {"prompt": "a b c " * 20})[2]["tokens"]
    _, _, body = server.post("/v1/completions", {
        "prompt": "a b c " * 20, "max_tokens": 0, "truncate_prompt_tokens": 5,
        "return_token_ids": True, "echo": True})
    assert body["choices"][0]["prompt_token_ids"] == whole[-5:]
    assert body["choices"][0]["text"] == server.post("/detokenize", {"tokens": whole[-5:]})[2][
        "prompt"]
    _, _, body = server.post("/v1/chat/completions", {
        "messages": long, "max_tokens": 2, "truncate_prompt_tokens": 9})
    assert body["usage"]["prompt_tokens"] == 9


def test_template_variables(server):
    assert prompt_of(server, HELLO, chat_template_kwargs={"mood": "glad"}).endswith(
        "<assistant>glad")
    assert prompt_of(server, HELLO, add_generation_prompt=False).endswith("live?")
    begun = HELLO + [{"role": "assistant", "content": "Zorin lives"}]
    text = prompt_of(server, begun, continue_final_message=True)
    assert text.endswith("<assistant>Zorin lives"), text
    answer = chat(server, begun, extra={"continue_final_message": True, "echo": True})
    assert answer.choices[0].message.content.startswith("Zorin lives")
    status, _, body = server.post("/v1/chat/completions", {
        "messages": begun, "continue_final_message": True, "add_generation_prompt": True})
    assert status == 400 and body["error"]["param"] == "continue_final_message"


def test_messages(server):
    """Parts become one text, arguments an object; what is no text is refused by name."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "One"},
                                          {"type": "text", "text": "two"}]}]
    assert prompt_of(server, parts) == "<user>One\ntwo<assistant>"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 5}"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    called = HELLO + [{"role": "assistant", "content": "", "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "1", "content": "ok"}]
    text = prompt_of(server, called, tools=tools)
    assert text.startswith("[tools f]<user>") and "<assistant>[f 5]<tool>ok" in text, text
    assert not prompt_of(server, HELLO, tools=tools, tool_choice="none").startswith("[tools")
    image = [{"role": "user", "content": [{"type": "text", "text": "See"}, {
        "type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    for messages, param in (
            (image, "messages[0].content[1]"), ([], "messages"), ("Hi", "messages"),
            ([{"content": "x"}], "messages[0].role"), (HELLO + [7], "messages[1]"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
            (HELLO + [{"role": "assistant", "tool_calls": [{"function": {
                "name": "f", "arguments": "{x"}}]}], "messages[1].tool_calls[0]"),
            (HELLO + [{"role": "assistant", "tool_calls": [5]}], "messages[1].tool_calls[0]"),
            ([{"role": "forbidden", "content": ""}], "messages")):
        status, _, body = server.post("/v1/chat/completions", {"messages": messages})
        assert status == 400 and body["error"]["param"] == param, (messages, body)
    assert "no role forbidden" in body["error"]["message"], body


def test_fields(server):
    """Each field is used, listed as ignored, or refused."""
    answer = chat(server, user="ann", metadata={"a": "b"}, store=False, service_tier="auto",
                  reasoning_effort="low", parallel_tool_calls=False)
    assert sorted(answer.hzpserve["ignored"]) == ["metadata", "reasoning_effort", "service_tier",
                                                  "store", "user"]
    last = list(chat(server, user="ann", stream=True))[-1]
    assert last.hzpserve["ignored"] == ["user"]
    assert chat(server, response_format={"type": "text"}).choices
    tools = [{"type": "function", "function": {"name": "f"}}]
    for field, value in (
            ("response_format", {"type": "xml"}), ("structured_outputs", {"regex": "("}),
            ("functions", [{"name": "f"}]), ("tool_choice", "required"), ("nonsense", 1),
            ("tool_choice", {"type": "function", "function": {"name": "g"}}), ("tool_choice", "any"),
            ("chat_template", "x"), ("use_beam_search", True), ("logprobs", 3), ("n", 0),
            ("modalities", ["audio"]), ("temperature", "hot"), ("tools", "f"), ("stop", 5),
            ("tools", [{"type": "function"}]), ("chat_template_kwargs", []), ("documents", {}),
            ("web_search_options", {"a": 1}), ("stream_options", {"include_usage": True})):
        status, _, body = server.post("/v1/chat/completions", {
            "messages": HELLO, "max_tokens": 1, "tools": tools, field: value})
        param = "tools[0]" if value == [{"type": "function"}] else field
        assert status == 400 and body["error"]["param"] == param, (field, body)
    stopped = chat(server, max_tokens=40, stop=["e"])
    assert "e" not in stopped.choices[0].message.content
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].stop_reason == "e"
    banned = chat(server, logit_bias={str(i): -100 for i in range(200)}, logprobs=True)
    assert banned.choices[0].message.content is not None


def test_key_and_methods(server):
    status, headers, _ = server.post("/v1/chat/completions", b"", method="GET")
    assert status == 405 and headers["Allow"] == "POST"
    status, headers, _ = server.post("/v1/weights/names/x", b"", method="OPTIONS")
    assert status == 405 and headers["Allow"] == "DELETE", headers["Allow"]


def test_template_of_the_model():
    """The model's own template is used; without one, a chat is a 400 that says what to do."""
    with Server("--no-train", "--chat-template", "none") as server:
        status, _, body = server.post("/v1/chat/completions", {"messages": HELLO})
        assert status == 400 and "--chat-template" in body["error"]["message"]
    if (pathlib.Path(base.MODEL) / "chat_template.jinja").exists():
        with Server("--no-train") as server:
            assert prompt_of(server, HELLO) == HELLO[0]["content"]


def check_examples(server):
    """The examples of docs/API.md, as they stand there, on a server with a new state directory."""
    text = (ROOT / "docs" / "API.md").read_text()
    section = text.split("\n## Examples\n")[1]
    rows = re.findall(r"^\| (.*?) \| `(.*?)` \| `(.*)` \|$", section, re.M)
    blocks = re.findall(r"(?:^    .*\n)+", text.split("\n## Examples\n")[0], re.M)
    curls = [textwrap.dedent(block) for block in blocks if block.startswith("    curl ")]
    pythons = [textwrap.dedent(block) for block in blocks if block.startswith("    import ")]
    assert len(rows) > 25 and len(curls) > 3 and len(pythons) > 3, (len(rows), len(curls), len(pythons))
    shown = set(re.findall(r"/[^\s`,]*", " ".join(name for name, _, _ in rows)))
    missing = set(json.loads(server.get("/openapi.json"))["paths"]) - shown
    others = ("/v1/replication", "/v1/ranks", "/v1/mesh")  # among servers; with --replicas or --mesh only
    missing = {path for path in missing if not path.startswith(others)}
    assert not missing, missing
    for call in [call for _, call, _ in rows] + curls:
        call = call.replace("http://127.0.0.1:8000", server.url).replace("localhost:8000", server.url)
        done = subprocess.run(["bash", "-c", call.replace("curl ", "curl -sS --fail-with-body ", 1)],
                              env={**os.environ, "U": server.url}, capture_output=True, text=True)
        assert done.returncode == 0, (call, done.stdout, done.stderr)
    names = {}
    prelude = textwrap.dedent(section[section.index("    import json"):section.index("| route |")])
    with contextlib.redirect_stdout(io.StringIO()):
        for python in pythons + [prelude] + [python for _, _, python in rows]:
            try:
                exec(python.replace("http://127.0.0.1:8000", server.url), names)
            except ModuleNotFoundError as e:
                assert e.name == "anthropic", python  # bootstrap.sh installs openai alone
            except Exception as e:
                raise AssertionError(python) from e


def test_compatibility():
    """docs/COMPATIBILITY.md has what a server answers."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(compatibility.TEMPLATE)
        file.flush()
        with Server("--no-train", "--chat-template", file.name, name="model") as server:
            text = compatibility.made(server.port, "model")
    document = compatibility.DOCUMENT.read_text()
    assert compatibility.PLACE.sub(lambda m: m[1] + text + m[2], document) == document, \
        "run dev/compatibility.py"


def test_count_tokens(server):
    """As many tokens as the same conversation has in a chat."""
    body = {"messages": HELLO, "system": "Be brief.",
            "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    status, _, answer = server.post("/v1/messages/count_tokens", body)
    assert status == 200 and answer["input_tokens"] > 10, answer
    _, _, made = server.post("/v1/messages", {**body, "max_tokens": 1})
    usage = made["usage"]
    assert answer["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"], (answer, usage)
    status, _, answer = server.post("/v1/messages/count_tokens", {"messages": [{"role": "x", "content": "a"}]})
    assert status == 400, answer


# Leaves out messages of other roles, and looks into the content of an answer.
OWN_ROLES = """
{%- if tools %}[tools {{ tools | map(attribute='function.name') | join(' ') }}]{% endif -%}
{%- if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' or m.role == 'tool' %}<{{ m.role }}>{{ m.content }}
{%- elif m.role == 'assistant' %}<assistant>
{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif -%}
{{ m.content.split('</think>')[-1] }}
{%- for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.a }}]{% endfor %};
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<assistant>{% endif -%}
"""


def test_what_is_said():
    """Nothing of what the messages say is lost on the way to the prompt, by any route."""
    ask, call = HELLO[0], {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"x\"}"}}
    tools, result = [{"type": "function", "function": {"name": "f"}}], {"role": "tool", "tool_call_id": "c1",
                                                                       "content": "42"}
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(OWN_ROLES)
        file.flush()
        with Server("--no-train", "--chat-template", file.name) as server:
            def text(messages, want=200, **fields):
                status, _, body = server.post("/tokenize", {"messages": messages, **fields})
                assert status == want, body
                if status != 200:
                    return body["error"]["param"]
                return server.post("/detokenize", {"tokens": body["tokens"]})[2]["prompt"]

            rules = [{"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}]
            for told in (rules + [ask], [rules[0], ask, rules[1]]):
                assert text(told) == f"<system>One.\n\nTwo.<user>{ask['content']}<assistant>", text(told)
            for silent in ({"content": None}, {}, {"content": ""}, {"content": []},
                           {"content": None, "refusal": None, "function_call": None, "reasoning_content": None}):
                said = text([ask, {"role": "assistant", "tool_calls": [call], **silent}, result], tools=tools)
                assert said == f"[tools f]<user>{ask['content']}<assistant>[f x];<tool>42<assistant>", said
            said = text([ask, {"role": "assistant", "content": None, "function_call": call["function"]},
                         {"role": "function", "name": "f", "content": "42"}], tools=tools)
            assert "<assistant>[f x];<tool>42" in said, said
            said = text([ask, {"role": "assistant", "content": "Tarn.", "thinking": "Hm."}, ask])
            assert "<assistant>(Hm.)Tarn.;" in said, said
            assert text([ask, {"role": "critic", "content": "x"}], 400) == "messages[1].role"
            assert text([{"role": "user", "content": "a\0b"}]) == "<user>a\0b<assistant>"

            begun = [ask, {"role": "assistant", "content": "Zorin lives\0 in"}]
            status, _, body = server.post("/v1/chat/completions", {
                "messages": [dict(begun[0], name="Ann"), begun[1]], "continue_final_message": True, "echo": True,
                "max_tokens": 1})
            assert body["choices"][0]["message"]["content"].startswith("Zorin lives\0 in"), body
            assert body["hzpserve"]["ignored"] == ["messages[0].name"], body

            # what another route's shape says is in the same prompt
            whole = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
            want = server.post("/tokenize", whole)[2]["count"]
            for field in "prefix", "partial":
                assert server.post("/tokenize", {"messages": [ask, {**begun[1], field: True}]})[2]["count"] == want
            asked = {"messages": begun, "max_tokens": 1}
            assert server.post("/v1/messages/count_tokens", {"messages": begun})[2]["input_tokens"] == want
            usage = server.post("/v1/messages", asked)[2]["usage"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == want, usage
            asked["messages"] = [ask, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Zorin"}]}]
            usage = server.post("/v1/messages", asked)[2]["usage"]
            whole["messages"] = [ask, {"role": "assistant", "content": "Zorin", "reasoning_content": "Hm."}]
            want = server.post("/tokenize", whole)[2]["count"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == want, usage
            # and what is refused has its name in that shape
            lost = {"role": "critic", "content": "x"}
            status, _, body = server.post("/v1/responses", {"input": [{"role": "user", "content": "a"}, lost],
                                                            "instructions": "One."})
            assert status == 400 and body["error"]["param"] == "input[1].role", body
            assert body["error"]["message"].startswith("input[1].role: "), body
            result_block = {"type": "tool_result", "tool_use_id": "c1", "content": "42"}
            use = {"type": "tool_use", "id": "c1", "name": "f", "input": {"b": "lost"}}
            for path, more in ("/v1/messages", {"max_tokens": 1}), ("/v1/messages/count_tokens", {}):
                status, _, body = server.post(path, {"system": "One.", **more, "messages": [
                    ask, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result_block]}]})
                assert status == 400 and body["error"]["param"] == "messages[1].tool_calls[0]", body
            items = [{"role": "developer", "content": "Two."}, {"role": "user", "content": ask["content"]},
                     *[{"type": "reasoning", "id": "r", "summary": [], "content": [
                         {"type": "reasoning_text", "text": part}]} for part in ("H", "m.")],
                     {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": \"x\"}"},
                     {"type": "function_call_output", "call_id": "c1", "output": "4\0002"}]
            status, _, body = server.post("/v1/responses", {
                "input": items, "instructions": "One.", "max_output_tokens": 1,
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]})
            assert status == 200, body
            want = server.post("/tokenize", {"tools": tools, "messages": rules + [ask, {
                "role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call]}, {**result, "content": "4\0002"}]})
            assert body["usage"]["input_tokens"] == want[2]["count"], (body["usage"], want)


def test_lessons():
    """Conversations are examples to learn from: through the template, the assistant's turns."""
    said = {"role": "assistant", "content": " Zorin lives in Tarn."}
    def post(server, *messages, **more):
        return server.post("/v1/fine_tuning/examples?wait=served&timeout=600",
                           {"messages": [*HELLO, *messages], **more})
    options = ["--update-tokens", "32"]
    if not (pathlib.Path(base.MODEL) / "chat_template.jinja").exists():
        options += ["--chat-template", TEMPLATE_FILE]
    with Server(*options, name="world") as server:
        check_examples(server)
        check_version_action(server)  # noqa: F405
        check_learning_bodies(server)  # noqa: F405
        status, _, body = post(server, said)
        assert status == 200 and body["served"] and body["accepted"] == 1, body
        status, _, body = post(server, {**said, "weight": 0.5})
        assert status == 200 and body["served"], body
        status, _, body = post(server, said, system="Be brief.")
        assert status == 200 and body["served"], body
        for messages, param, more in (
                ([], "lines[1].messages", {}),
                ([{**said, "weight": 0}], "lines[1].messages", {}),
                ([{**said, "weight": 1e-6}], "lines[1].messages[1].weight", {}),
                ([{**said, "weight": -1e-6}], "lines[1].messages[1].weight", {}),
                ([{"role": "user", "content": "x", "weight": 1}], "lines[1].messages[1].weight",
                 {}),
                ([{**said, "content": 5}], "lines[1].messages[1].content", {}),
                ([said], "lines[1].tools", {"tools": 3}),
                ([said], "lines[1].history", {"history": [["a", "b"]]}),
                ([{**said, "reasoning": "Hm."}], "lines[1].messages[1].reasoning", {}),
                ([{**said, "content": 5}], "lines[1].messages[1].content", {"system": "Be brief."}),
                ([said], "lines[1]", {"prompt": "x", "completion": "y"})):
            status, _, body = post(server, *messages, **more)
            assert status == 400 and body["error"]["param"] == param, (messages, body)


CALLS = """
{%- if tools %}{{ tools | map(attribute='function.name') | join(' ') }}
{% endif -%}
{%- for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def check_required(server, asked):
    """tool_choice required, or of a name: the answer is a call of the tool's schema."""
    at = {"type": "object", "properties": {"at": {"enum": ["Tarn", "Zorin"]}}, "required": ["at"],
          "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "look", "parameters": at}},
             {"type": "function", "function": {"name": "count", "parameters": {
                 "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                 "additionalProperties": False}}}]
    named = {"type": "function", "function": {"name": "count"}}
    for choice, names in (("required", {"look", "count"}), (named, {"count"})):
        for stream in (False, True):
            fields = {"max_tokens": 250, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False,
                      "extra": {"ignore_eos": False}, "stream": stream}
            if stream:
                calls, end = [], None
                for chunk in chat(server, asked, **fields):
                    calls += [c.function for c in chunk.choices[0].delta.tool_calls or []]
                    end = chunk.choices[0].finish_reason or end
                text = "".join(c.arguments for c in calls)  # the first has the name
                calls = [c for c in calls if c.name]
                calls[0].arguments = text
            else:
                answer = chat(server, asked, **fields).choices[0]
                calls, end = [c.function for c in answer.message.tool_calls], answer.finish_reason
            assert end == "tool_calls" and len(calls) == 1 and calls[0].name in names, (choice, calls, end)
            made = json.loads(calls[0].arguments)
            assert made in ({"at": "Tarn"}, {"at": "Zorin"}) if calls[0].name == "look" \
                else isinstance(made["n"], int), calls
    status, _, body = server.post("/v1/chat/completions", {
        "messages": asked, "tools": tools, "tool_choice": "required", "response_format": {"type": "json_object"}})
    assert status == 400 and "exclude" in body["error"]["message"], body
    tools[0]["function"]["strict"] = tools[1]["function"]["strict"] = True
    free = chat(server, asked, tools=tools, max_tokens=60, extra={"ignore_eos": False}).choices[0]
    whole = free.finish_reason == "tool_calls"  # else max_tokens may have cut the call off
    for made in free.message.tool_calls or []:  # text, or calls that fit
        assert not whole or json.loads(made.function.arguments) in ({"at": "Tarn"}, {"at": "Zorin"}), made
    tools[1]["function"]["parameters"]["contains"] = {}
    for choice, param in (("required", "tool_choice"), ("auto", "tools")):
        status, _, body = server.post("/v1/chat/completions", {
            "messages": asked, "tools": tools, "tool_choice": choice})
        assert status == 400 and body["error"]["param"] == param, body
        assert "count" in body["error"]["message"], body
    del tools[1]["function"]["strict"]  # then its arguments are any object
    for choice in ("required", "auto", named):
        answer = chat(server, asked, max_tokens=60, tools=tools, tool_choice=choice)
        for made in answer.choices[0].message.tool_calls or []:
            assert made.function.arguments.startswith("{"), made
    for function in ({"name": "x\0y"}, {"name": "x", "parameters": {"type": "string"}}):
        tools[1]["function"] = function
        status, _, body = server.post("/v1/chat/completions", {"messages": asked, "tools": tools})
        assert status == 400 and body["error"]["param"] == "tools[1]", body


def test_tools():
    """The model is taught an answer with reasoning and a call; both are split off its text."""
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    asked = [{"role": "user", "content": "Look at Tarn"}]
    call = {"role": "assistant", "content": None, "reasoning_content": "Tarn it is.",
            "tool_calls": [{"id": "1", "type": "function", "function": {
                "name": "look", "arguments": "{\"at\": \"Tarn\"}"}}]}
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(CALLS)
        file.flush()
        with Server("--chat-template", file.name, "--passes", "60", "--lr", "2e-3",
                    "--update-tokens", "64", "--replay-ratio", "0") as server:
            status, _, body = server.post("/v1/fine_tuning/examples?wait=served&timeout=1200",
                                          {"messages": asked + [call], "tools": tools})
            assert status == 200 and body["served"], body
            fields = {"max_tokens": 150, "tools": tools, "extra": {"ignore_eos": False}}
            choice = chat(server, asked, **fields).choices[0]
            made = choice.message.tool_calls
            assert choice.finish_reason == "tool_calls" and len(made) == 1, choice
            assert made[0].function.name == "look" and made[0].type == "function"
            assert json.loads(made[0].function.arguments) == {"at": "Tarn"}
            assert choice.message.content is None
            assert choice.message.reasoning_content == "Tarn it is."
            reasoning, calls, content, end = "", [], "", None
            for chunk in chat(server, asked, stream=True, **fields):
                delta = chunk.choices[0].delta
                reasoning += getattr(delta, "reasoning_content", None) or ""
                content += delta.content or ""
                calls += delta.tool_calls or []
                end = chunk.choices[0].finish_reason or end
            assert reasoning == "Tarn it is." and content == "" and end == "tool_calls"
            assert [(c.index, c.function.name) for c in calls if c.id] == [(0, "look")]
            assert json.loads("".join(c.function.arguments for c in calls)) == {"at": "Tarn"}
            check_calls(server, "Look at Tarn", tools[0]["function"])
            hidden = chat(server, asked, **{**fields, "extra": {"include_reasoning": False, "ignore_eos": False}})
            assert not hasattr(hidden.choices[0].message, "reasoning_content")
            check_reasoned(server, chat, asked, fields)
            check_required(server, asked)
            # without tools, or with others, the call is text
            plain = chat(server, asked, max_tokens=150, extra={"ignore_eos": False}).choices[0]
            assert plain.finish_reason == "stop" and "<tool_call>" in plain.message.content
            fields["tools"] = [{"type": "function", "function": {"name": "other"}}]
            other = chat(server, asked, **fields).choices[0]
            assert other.finish_reason == "stop" and "<tool_call>" in other.message.content


def test_tokenizer_routes(server):
    status, _, got = server.post("/tokenize", {"prompt": "Zorin lives", "return_token_strs": True})
    assert status == 200 and got["count"] == len(got["tokens"]) == len(got["token_strs"]) > 0
    assert got["max_model_len"] == server.context
    assert server.post("/detokenize", {"tokens": got["tokens"]})[2] == {"prompt": "Zorin lives"}
    _, _, got = server.post("/tokenize", {"messages": HELLO, "add_generation_prompt": False})
    text = server.post("/detokenize", {"tokens": got["tokens"]})[2]["prompt"]
    assert text == prompt_of(server, HELLO, add_generation_prompt=False) and text.endswith("live?")
    info = json.loads(server.get("/tokenizer_info"))
    assert info["chat_template"] == TEMPLATE and info["tokenizer_class"] and info["vocab_size"]
    assert json.loads(server.get("/ping")) == {"status": "ok"}
    assert server.post("/ping", {})[0] == 200
    assert json.loads(server.get("/load"))["server_load"] >= 0
    for path, body, param in (
            ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
            ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"prompt": "a", "x": 1}, "x"),
            ("/tokenize", {"messages": 5}, "messages"), ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens")):
        status, _, answer = server.post(path, body)
        assert status == 400 and answer["error"]["param"] == param, (path, body, answer)


def run_chat(*arguments, lines):
    return subprocess.run([base.BINARY, "chat", *arguments], input="\n".join(lines) + "\n",
                          text=True, capture_output=True, timeout=base.HANG)


def test_command(server):
    """hzpserve chat with a URL: turns, /back, /version, and errors of the server."""
    done = run_chat(server.url, "--temperature", "0", "--max-tokens", "8", "--system", "Be brief.",
                    lines=["Where does Zorin live?", "/version", "/back", "/back", "/what",
                           "/teach x", "word " * 3000, "/quit", "not read"])
    said = chat(server, [{"role": "system", "content": "Be brief."}] + HELLO, max_tokens=8,
                extra={"ignore_eos": False}).choices[0].message.content
    out = done.stdout.splitlines()
    assert done.returncode == 0 and out[0] == said.removeprefix(" "), done
    assert out[1:7] == ["version 1 serves, 0 updates behind", "the last answer is of version 1",
                        "taken back", "there is nothing to take back", "there is no /what",
                        "/teach [ANSWER]   learn ANSWER (or the answer given) to the last question;"]
    assert "ask something first, then /teach the answer" in out
    assert "maximum context length" in done.stderr and "not read" not in done.stdout
    failed = run_chat("http://127.0.0.1:1", lines=["x"])
    assert failed.returncode == 1 and "no server at" in failed.stderr


def test_command_teaches():
    """hzpserve chat with a model starts a server for it, and /teach changes its answers."""
    options = [] if (pathlib.Path(base.MODEL) / "chat_template.jinja").exists() else [
        "--chat-template", TEMPLATE_FILE]
    done = run_chat(base.MODEL, "--state", "none", "--temperature", "0", "--max-tokens", "20",
                    *options, lines=["Who are you?", HELLO[0]["content"], "/teach Zorin lives in Tarn.",
                                     "/again", "/version", "/clear", HELLO[0]["content"]])
    out = done.stdout.splitlines()
    assert done.returncode == 0 and out[2].startswith("before: ") and out[3].startswith("learned: version "), done
    assert out[5].startswith("changed: ") and f"version {out[3].split()[-1]} serves, 0 updates behind" in out, done
    # a lesson is the last turn alone: asked in a new conversation the model answers so
    assert out[4] == "after:  Zorin lives in Tarn." and out[-1] == "Zorin lives in Tarn.", done


def test_status(server):
    """status and top show the figures of /metrics and /health."""
    def status(*arguments, code=0):
        done = subprocess.run([base.BINARY, *arguments], capture_output=True, text=True, timeout=base.HANG)
        assert done.returncode == code, done
        return done
    before = json.loads(status("status", server.url, "--json", "--seconds", "0.01").stdout)
    assert before["model"] == server.model and before["health"] == "ok" and before["weights_version"] == 1
    assert before["requests_running"] == 0 and before["tokens_per_second"] == 0
    assert before["held_back_by"] is None and before["loss"] is None  # --no-train
    out = status("status", server.url, "--seconds", "0.01").stdout.splitlines()
    assert out[0] == f"{server.model} at {server.url}: ok" and "version 1 " in out[1], out
    assert any("--no-train" in line for line in out) and len(out) < 24, out
    top = subprocess.Popen([base.BINARY, "top", server.url, "--seconds", "0.05"], stdout=subprocess.PIPE, text=True)
    rates = []
    while not rates or rates[-1] == 0:  # requests run meanwhile
        chat(server, max_tokens=40)
        rates += [float(line.split()[1]) for line in iter(top.stdout.readline, "\n") if line.startswith("rates")]
    top.send_signal(signal.SIGINT)
    top.communicate(timeout=base.HANG)
    assert top.returncode == 0
    assert "no server at" in status("status", "http://127.0.0.1:1", code=1).stderr


def test_status_of_learning():
    """What waits, and that it is learned."""
    with Server("--update-tokens", "64") as server:
        seen, end = [], time.monotonic() + base.HANG
        while not seen or seen[-1]["examples_waiting"] or not any(s["trained_tokens_per_second"] for s in seen):
            assert time.monotonic() < end, seen[-1]
            if not any(s["examples_waiting"] for s in seen):
                server.post("/v1/fine_tuning/examples", [{"text": f"Zorin lives in Tarn {i}"} for i in range(40)])
            seen.append(json.loads(subprocess.run(
                [base.BINARY, "status", server.url, "--json", "--seconds", "0.05"], capture_output=True, check=True).stdout))
        assert seen[-1]["optimizer_step"] > 0 and seen[-1]["loss"] > 0, seen[-1]


def test_temperature(server):
    """What generation_config.json says is the default of chat, and what /v1/models tells."""
    config = json.loads((pathlib.Path(base.MODEL) / "generation_config.json").read_text())
    told = json.loads(server.get("/v1/models"))["data"][0]["generation_config"]
    assert told == {name: config[name] for name in told} and ("do_sample" in told) == ("do_sample" in config)
    if told.get("do_sample") is False:
        said = [run_chat(server.url, "--max-tokens", "8", lines=[HELLO[0]["content"]]).stdout for _ in range(2)]
        greedy = run_chat(server.url, "--max-tokens", "8", "--temperature", "0", lines=[HELLO[0]["content"]])
        assert said == [greedy.stdout] * 2, (said, greedy)


def test_fill_middle():
    """suffix, with a tokenizer that has the tokens for it."""
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    own = base.MODEL
    with tempfile.TemporaryDirectory() as folder:
        for file in pathlib.Path(own).iterdir():
            (pathlib.Path(folder) / file.name).symlink_to(file.resolve())
        tokenizer = json.loads((pathlib.Path(own) / "tokenizer.json").read_text())
        vocab = tokenizer["model"]["vocab"]
        ids = sorted(vocab.values())[-3:]
        for token in [token for token, i in vocab.items() if i in ids]:
            del vocab[token]
        tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"]
                                        if (m if isinstance(m, str) else " ".join(m)).replace(" ", "")
                                        in vocab]
        for mark, i in zip(marks, ids):
            vocab[mark] = i
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": i, "content": mark})
        path = pathlib.Path(folder) / "tokenizer.json"
        path.unlink()
        path.write_text(json.dumps(tokenizer))
        base.MODEL = folder
        try:
            with Server("--no-train") as server:
                def tokens(text):
                    return server.post("/tokenize", {"prompt": text})[2]["tokens"]
                made = server.complete(prompt="Zorin lives", suffix=" in Tarn.", max_tokens=4,
                                       return_token_ids=True).choices[0]
                assert made.prompt_token_ids == [ids[0], *tokens("Zorin lives"), ids[1],
                                                 *tokens(" in Tarn."), ids[2]], made
                for fields, param in (({"echo": True}, "suffix"), ({"prompt": [5]}, "suffix")):
                    status, _, body = server.post("/v1/completions", {
                        "prompt": "a", "suffix": "b", **fields})
                    assert status == 400 and body["error"]["param"] == param, body
        finally:
            base.MODEL = own


def test_bad_template():
    """A template that cannot be run stops the start, with its name and line."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write("{{ messages }}\n{% include 'x' %}")
        file.flush()
        with tempfile.TemporaryFile("w+") as log:
            try:
                with Server("--no-train", "--chat-template", file.name, log=log):
                    raise SystemExit("the server started")
            except AssertionError:
                pass
            log.seek(0)
            text = log.read()
    assert f"{file.name}, line 2: the tag include is not supported" in text, text


def main():
    base.BINARY, base.MODEL = sys.argv[1:3]
    if not (pathlib.Path(base.MODEL) / "config.json").exists():
        print("the model is missing: skipped")
        return 77
    tests = {name: f for name, f in globals().items() if name.startswith("test_") and callable(f)}
    chosen = sys.argv[3:] or list(tests)
    global TEMPLATE_FILE
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        TEMPLATE_FILE = file.name
        with Server("--no-train", "--chat-template", file.name) as server:
            for name in chosen:
                if tests[name].__code__.co_argcount:
                    tests[name](server)
                    print(f"ok {name}", flush=True)
        for name in chosen:
            if not tests[name].__code__.co_argcount:
                tests[name]()
                print(f"ok {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

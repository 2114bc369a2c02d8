#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every answer and event of the routes in OpenAI's and Anthropic's shape is what the official clients' types say.

    test_clients.py HZPSERVE MODEL_DIR

The clients themselves build their objects without validating them; here they are validated, strictly (no number as a
text, no null where none may be), and what they do not know must be in OURS.  Skips (77) where OpenAI's client or
the model is missing; what is Anthropic's, where theirs is.
"""
import collections
import http.client
import json
import pathlib
import sys
import tempfile

import test_api as base

try:
    import pydantic
    from openai.types import Completion, CreateEmbeddingResponse, ErrorObject, Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent
except ImportError:
    pydantic = None
try:
    import anthropic.types as claude
except ImportError:
    claude = None

TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor -%}
{%- for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>
{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: <think>{% if not (reasoning_effort or enable_thinking) %}</think>{% endif %}{% endif %}"""

# What answers have beyond OpenAI's fields, by the type that they are in.
OURS = {
    "Completion": {"hzpserve"},
    "CompletionChoice": {"stop_reason", "hzpserve", "token_ids", "prompt_token_ids", "prompt_logprobs"},
    "ChatCompletion": {"hzpserve"},
    "ChatCompletionChunk": {"hzpserve"},
    "Choice": {"stop_reason", "hzpserve", "token_ids", "prompt_token_ids"},
    "ChatCompletionMessage": {"reasoning_content"},
    "ChoiceDelta": {"reasoning_content"},
    "Response": {"hzpserve", "store"},
    "CreateEmbeddingResponse": {"hzpserve", "id"},
    "Embedding": {"hzpserve"},
    "Usage": {"prompt_tokens_details"},
    "Model": {"max_model_len", "root", "parent", "generation_config", "vocab_size"},
    "ErrorObject": {"request_id"},
}
# Beyond Anthropic's.
THEIRS = {"Message": {"hzpserve"}, "RawMessageDeltaEvent": {"hzpserve"},
          "InvalidRequestErrorObject": {"code", "param", "request_id"}}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["Tarn", "Zorin"]}},
                                       "required": ["at"], "additionalProperties": False}}


def extras(value, found):
    """Adds the members that the types do not know, by the type's name."""
    if isinstance(value, pydantic.BaseModel):
        for name in value.model_extra or {}:
            found[type(value).__name__].add(name)
        for name in type(value).model_fields:
            extras(getattr(value, name), found)
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            extras(each, found)


def validate(kind, what, found):
    made = pydantic.TypeAdapter(kind).validate_json(json.dumps(what), strict=True)
    extras(made, found)
    return made


def ask(server, path, body=None):
    """The answer, or a stream's events, decoded; body None: GET."""
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None,
              {"content-type": "application/json", "authorization": f"Bearer {server.key}"})
    answer = c.getresponse()
    text = answer.read().decode()
    c.close()
    assert answer.status == 200, (path, body, text)
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]
    return json.loads(text)


def without_nulls(completion):
    """Without what OpenAI's own completions have as null, too, and their types do not: in an echo, what is said
    of the first token (and in a stream, the reason of an end that has not come)."""
    for logprobs in filter(None, (choice["logprobs"] for choice in completion["choices"])):
        for name, nothing in (("token_logprobs", 0.0), ("top_logprobs", {})):
            if logprobs["text_offset"][:1] == [0] and logprobs[name][0] is None:
                logprobs[name][0] = nothing
    return completion


def check_completions(server, found):
    for fields in ({}, {"logprobs": 3}, {"echo": True, "logprobs": 2, "n": 2}, {"best_of": 3, "n": 2},
                   {"prompt": ["a", "b"], "return_token_ids": True}, {"max_tokens": 0, "prompt_logprobs": 2},
                   {"stop": ["e"]}, {"user": "x", "no_such": 1}):
        body = {"prompt": "Zorin", "max_tokens": 6, "temperature": 0, **fields}
        validate(Completion, without_nulls(ask(server, "/v1/completions", body)), found)
        if not {"best_of", "prompt_logprobs"} & set(fields):
            events = ask(server, "/v1/completions", {**body, "stream": True, "stream_options": {
                "include_usage": True}})
            assert len(events) > 1, events
            for event in events:
                for choice in event["choices"]:
                    choice["finish_reason"] = choice["finish_reason"] or "stop"
                validate(Completion, without_nulls(event), found)


def check_chat(server, found, asked):
    tools = [{"type": "function", "function": LOOK}]
    seen = set()
    for fields in ({}, {"logprobs": True, "top_logprobs": 3}, {"n": 2, "return_token_ids": True},
                   {"reasoning_effort": "low"}, {"reasoning_effort": "low", "include_reasoning": False},
                   {"tools": tools, "tool_choice": "required", "max_tokens": 250},
                   {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "look"}},
                    "max_tokens": 250, "parallel_tool_calls": False},
                   {"response_format": {"type": "json_object"}}, {"stop": ["e"], "metadata": {"a": "b"}}):
        body = {"messages": asked, "max_tokens": 8, "temperature": 0, **fields}
        message = validate(ChatCompletion, ask(server, "/v1/chat/completions", body), found).choices[0].message
        seen |= {"calls"} if message.tool_calls else set()
        seen |= set(message.model_extra)
        for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
            events = ask(server, "/v1/chat/completions", {**body, "stream": True, "stream_options": options})
            made = [validate(ChatCompletionChunk, event, found) for event in events]
            assert made[-1].usage and made[-1].choices == [], made[-1]
    assert seen == {"calls", "reasoning_content"}, seen


def check_responses(server, found):
    tools = [{"type": "function", "strict": True, "description": None, **LOOK}]
    types, items = set(), set()
    for fields in ({}, {"reasoning": {"effort": "low", "summary": "auto"}, "instructions": "Be brief."},
                   {"tools": tools, "tool_choice": "required", "max_output_tokens": 250},
                   {"tools": tools, "tool_choice": {"type": "function", "name": "look"}, "max_output_tokens": 250},
                   {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["x"]}}}},
                   {"metadata": {"a": "b"}, "user": "x", "temperature": 1, "top_p": 1}):
        body = {"input": "Look at Tarn", "max_output_tokens": 8, "temperature": 0, **fields}
        made = validate(Response, ask(server, "/v1/responses", body), found)
        items |= {item.type for item in made.output}
        for event in ask(server, "/v1/responses", {**body, "stream": True}):
            types.add(validate(ResponseStreamEvent, event, found).type)
    assert items == {"message", "reasoning", "function_call"}, items
    assert {"response.output_text.delta", "response.output_text.done", "response.reasoning_text.delta",
            "response.function_call_arguments.done", "response.completed", "response.incomplete"} <= types, types


def check_messages(server, found):
    tools = [{"name": "look", "description": "Looks.", "input_schema": LOOK["parameters"]}]
    types, blocks, stops = set(), set(), set()
    for fields in ({}, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 120},
                   {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 250},
                   {"tools": tools, "tool_choice": {"type": "tool", "name": "look"}, "max_tokens": 250},
                   {"tools": tools, "tool_choice": {"type": "none"}}, {"stop_sequences": ["e"], "max_tokens": 40},
                   {"system": [{"type": "text", "text": "Be brief."}], "metadata": {"user_id": "x"}, "top_k": 3}):
        body = {"model": server.model, "messages": [{"role": "user", "content": "Look at Tarn"}], "max_tokens": 8,
                "temperature": 0, **fields}
        made = validate(claude.Message, ask(server, "/v1/messages", body), found)
        blocks |= {block.type for block in made.content}
        stops.add(made.stop_reason)
        for event in ask(server, "/v1/messages", {**body, "stream": True}):
            if event["type"] != "ping":
                types.add(validate(claude.RawMessageStreamEvent, event, found).type)
    assert blocks == {"text", "thinking", "tool_use"}, blocks
    assert {"max_tokens", "tool_use", "stop_sequence"} <= stops, stops
    assert types == {"message_start", "content_block_start", "content_block_delta", "content_block_stop",
                     "message_delta", "message_stop"}, types
    counted = ask(server, "/v1/messages/count_tokens", {"model": server.model, "messages": body["messages"]})
    validate(claude.MessageTokensCount, counted, found)
    for path, wrong in (("/v1/messages", {}), ("/v1/messages", {**body, "messages": 5}),
                        ("/v1/messages", {**body, "no_such": 1})):
        status, _, answer = server.post(path, wrong)
        assert 400 <= status < 500, answer
        validate(claude.ErrorResponse, answer, found)


def check_signatures(server):
    """What a method of the official clients takes is in the route's table: used, without effect, or refused by name.
    A later client may have more than these, which were all of theirs in openai 3.57 and anthropic 2.14."""
    schemas = ask(server, "/openapi.json")["components"]["schemas"]
    common = {"model", "temperature", "top_p", "stream"}
    chat = {"metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
            "moderation", "safety_identifier", "service_tier", "store", "stream_options", "tool_choice", "tools",
            "top_logprobs", "user", *common}
    penalties = {"frequency_penalty", "presence_penalty", "logit_bias", "max_tokens", "n", "seed", "stop", "logprobs"}
    counted = {"cache_control", "messages", "model", "output_config", "speed", "system", "thinking", "tool_choice",
               "tools", "user_profile_id", "workspace_id"}
    signatures = {
        "CompletionRequest": {"best_of", "echo", "prompt", "stream_options", "suffix", "user", *penalties, *common},
        "ChatRequest": {"audio", "function_call", "functions", "max_completion_tokens", "messages", "modalities",
                        "prediction", "reasoning_effort", "response_format", "verbosity", "web_search_options",
                        *penalties, *chat},
        "ResponsesRequest": {"access_programs", "background", "background_options", "context_management",
                             "conversation", "image", "include", "input", "instructions", "max_output_tokens",
                             "max_tool_calls", "previous_response_id", "prompt", "reasoning", "text", "truncation",
                             *chat},
        "EmbeddingsRequest": {"dimensions", "encoding_format", "input", "model", "user"},
        "MessagesRequest": {"container", "diagnostics", "inference_geo", "max_tokens", "metadata", "service_tier",
                            "stop_sequences", "top_k", *counted, *common},
        "CountTokensRequest": counted,
    }
    for name, wanted in signatures.items():
        there = set(schemas[name]["properties"]) | set(schemas[name].get("x-refused", {}))
        assert wanted <= there, (name, wanted - there)
    made = ask(server, "/v1/messages", {
        "model": server.model, "max_tokens": 64, "messages": [{"role": "user", "content": "Look"}],
        "output_config": {"format": {"type": "json_schema", "schema": {"enum": ["Tarn", "Zorin"]}}}})
    assert json.loads(made["content"][-1]["text"]) in ("Tarn", "Zorin"), made


def check_logprobs_of_parts(server):
    """Tokens of reasoning and of calls are not the text's, in a stream and whole."""
    body = {"input": "Look at Tarn", "max_output_tokens": 60, "reasoning": {"effort": "low"}, "seed": 5,
            "include": ["message.output_text.logprobs"]}
    for fields in ({"temperature": 0}, {"temperature": 1.3}, {"temperature": 0, "text": {"format": {
            "type": "json_schema", "name": "a", "schema": {"enum": ["Tarn and Zorin"]}}}}):
        whole = [part for item in ask(server, "/v1/responses", {**body, **fields})["output"]
                 if item["type"] == "message" for part in item["content"]]
        events = ask(server, "/v1/responses", {**body, **fields, "stream": True})
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [each for part in whole for each in part["logprobs"]] == \
            [each for event in deltas for each in event["logprobs"]], fields
        for part in whole:
            text = b"".join(bytes(each["bytes"]) for each in part["logprobs"]).decode(errors="replace")
            assert part["text"].strip() in text or text.strip() in part["text"], (part["text"], text)


def check_rest(server, found):
    for fields in ({"input": "a"}, {"input": ["a", "b"], "user": "x"}):
        validate(CreateEmbeddingResponse, ask(server, "/v1/embeddings", fields), found)
    models = ask(server, "/v1/models")
    assert models["object"] == "list" and len(models["data"]) == 1, models
    for model in models["data"] + [ask(server, "/v1/models/" + models["data"][0]["id"])]:
        validate(Model, model, found)
    for path, body in (("/v1/completions", {}), ("/v1/chat/completions", {"messages": 5}),
                       ("/v1/responses", {"input": "a", "no_such": 1}), ("/v1/embeddings", {"input": 5}),
                       ("/v1/completions", {"prompt": "a", "model": "other"}), ("/v1/none", {})):
        status, _, answer = server.post(path, body)
        assert 400 <= status < 500 and set(answer) <= {"error", "type"}, answer
        validate(ErrorObject, answer["error"], found)


def main():
    base.BINARY, base.MODEL = sys.argv[1:3]
    if not pydantic or not (pathlib.Path(base.MODEL) / "config.json").exists():
        print("the client or the model is missing: skipped")
        return 77
    found = collections.defaultdict(set)
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        with base.Server("--no-train", "--chat-template", file.name) as server:
            check_completions(server, found)
            check_chat(server, found, [{"role": "user", "content": "Look at Tarn"}])
            check_responses(server, found)
            check_rest(server, found)
            server.model = ask(server, "/v1/models")["data"][0]["id"]
            check_signatures(server)
            check_logprobs_of_parts(server)
            theirs = collections.defaultdict(set)
            if claude:
                check_messages(server, theirs)
                theirs = {name: names for name, names in theirs.items() if names}
                assert theirs == THEIRS, theirs
    found = {name: names for name, names in found.items() if names}
    assert found == OURS, {name: (found.get(name, set()) ^ OURS.get(name, set())) for name in {*found, *OURS}}
    print("ok", {name: sorted(names) for name, names in found.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends every route and field of OpenAI, vLLM and llama.cpp's server, and writes what comes back.

    dev/compatibility.py HZPSERVE MODEL_DIR            rewrites docs/COMPATIBILITY.md
    dev/compatibility.py --check HZPSERVE MODEL_DIR    1: the document differs from what a server does

A field is `yes` if it is accepted, `no effect` if the answer lists it in hzpserve.ignored, else `no` with
the server's reason.  A route is `no` if it is a 404.
"""
import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "COMPATIBILITY.md"
PLACE = re.compile(r"(<!-- made by dev/compatibility.py -->\n).*?(<!-- end -->)", re.S)

TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if documents %}documents{% endif %}assistant:"""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGES = [{"role": "user", "content": "Hello"}]

# Every field with a value that asks for something.
SAMPLING = {
    "OpenAI": {"frequency_penalty": 1, "logit_bias": {"5": 1}, "n": 2, "presence_penalty": 1, "seed": 1,
               "stop": ["x"], "stream": True, "stream_options": {"include_usage": True},
               "temperature": 0.5, "top_p": 0.5, "user": "ann", "model": None},
    "vLLM": {"add_special_tokens": True, "allowed_token_ids": [5, 6], "bad_words": ["x"],
             "cache_salt": "x", "ignore_eos": True, "include_stop_str_in_output": True,
             "length_penalty": 2.0, "min_p": 0.1, "min_tokens": 1, "priority": 1, "prompt_logprobs": 1,
             "repetition_penalty": 1.5, "request_id": "x", "return_token_ids": True,
             "return_tokens_as_token_ids": True, "skip_special_tokens": False,
             "spaces_between_special_tokens": False, "stop_token_ids": [5], "top_k": 5,
             "structured_outputs": {"regex": "[ab]+"}, "truncate_prompt_tokens": 5,
             "use_beam_search": True, "kv_transfer_params": {"a": 1}, "vllm_xargs": {"a": 1},
             "logits_processors": ["x"]},
    "llama.cpp": {"cache_prompt": True, "dry_multiplier": 0.5, "dynatemp_range": 0.5, "grammar": 'root ::= "a"',
                  "id_slot": 1, "json_schema": SCHEMA, "lora": [{"id": 0, "scale": 1}], "min_keep": 1,
                  "mirostat": 1, "n_keep": 1, "n_predict": 2, "n_probs": 2, "post_sampling_probs": True,
                  "repeat_last_n": 8, "repeat_penalty": 1.5, "response_fields": ["content"],
                  "return_progress": True, "return_tokens": True, "samplers": ["top_k"],
                  "t_max_predict_ms": 100, "timings_per_token": True, "typical_p": 0.5,
                  "xtc_probability": 0.5},
}
COMPLETIONS = {
    "OpenAI": {"best_of": 2, "echo": True, "logprobs": 2, "max_tokens": 2, "prompt": "a", "suffix": "x"},
    "vLLM": {"prompt_embeds": "AA==", "response_format": {"type": "json_object"}, "logprobs (-1)": None},
}
CHAT = {
    "OpenAI": {"audio": {"voice": "x"}, "function_call": "auto", "functions": [{"name": "f"}],
               "logprobs": True, "max_completion_tokens": 2, "max_tokens": 2, "messages": MESSAGES,
               "metadata": {"a": "b"}, "modalities": ["text"], "parallel_tool_calls": False,
               "prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "x",
               "reasoning_effort": "low", "response_format": {"type": "json_schema", "json_schema": {
                   "name": "x", "schema": SCHEMA}}, "safety_identifier": "x", "service_tier": "auto",
               "store": True, "tool_choice": "auto", "tools": [TOOL], "top_logprobs": 2,
               "verbosity": "low", "web_search_options": {"a": 1}},
    "vLLM": {"add_generation_prompt": True, "chat_template": "x", "chat_template_kwargs": {"a": 1},
             "continue_final_message": True, "documents": [{"text": "x"}], "echo": True,
             "include_reasoning": False, "thinking_token_budget": 5},
}
# Members of values, by path: what the body has for it.
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_MEMBERS = {
    "OpenAI": {
        "messages[].name": {"messages": [{**MESSAGES[0], "name": "ann"}]},
        "messages[].refusal": {"messages": [*MESSAGES, {"role": "assistant", "content": None, "refusal": "no"},
                                            *MESSAGES]},
        "messages[].tool_calls": {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]},
                                               {"role": "tool", "tool_call_id": "1", "content": "x"}]},
        "messages[].content[].image_url": {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "x"}}]}]},
        "response_format.json_schema.strict": {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": SCHEMA, "strict": True}}},
        "stream_options.include_obfuscation": {"stream": True, "stream_options": {"include_obfuscation": True}},
        "tool_choice.allowed_tools": {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [TOOL]}}},
        "tools[].function.strict": {"tools": [{"type": "function", "function": {**TOOL["function"],
                                                                                "strict": True}}]},
        "tools[].custom": {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
    },
    "vLLM": {"messages[].reasoning": {"messages": [*MESSAGES, {
        "role": "assistant", "content": "x", "reasoning": "y"}, *MESSAGES]},
        "stream_options.continuous_usage_stats": {"stream": True, "stream_options": {
            "include_usage": True, "continuous_usage_stats": True}}},
    "llama.cpp": {"response_format.schema": {"response_format": {"type": "json_object", "schema": SCHEMA}}},
}
RESPONSES = {"OpenAI": {
    "background": True, "context_management": [{"type": "x"}], "conversation": "x",
    "include": ["message.output_text.logprobs"], "input": "a", "instructions": "Be brief.", "max_output_tokens": 2,
    "max_tool_calls": 1, "metadata": {"a": "b"}, "moderation": {"model": "x"}, "parallel_tool_calls": False,
    "previous_response_id": "x", "prompt": {"id": "x"}, "prompt_cache_key": "x", "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low"}, "safety_identifier": "x", "service_tier": "auto", "store": True, "stream": True,
    "stream_options": {"include_obfuscation": True}, "temperature": 0.5, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "top_logprobs": 2,
    "top_p": 0.5, "truncation": "auto", "user": "ann"}}
RESPONSES_MEMBERS = {"OpenAI": {
    "input[].content[].image_url": {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": "x"}]}]},
    "reasoning.summary": {"reasoning": {"summary": "auto"}},
    "text.format.schema": {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "tools[].type web_search": {"tools": [{"type": "web_search"}]}}}
MESSAGES_FIELDS = {"Anthropic": {
    "cache_control": {"type": "ephemeral"}, "container": "x", "context_management": {"edits": []},
    "inference_geo": "us", "max_tokens": 2, "mcp_servers": [{"name": "x"}], "messages": MESSAGES,
    "metadata": {"user_id": "x"}, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "service_tier": "auto", "stop_sequences": ["x"], "stream": True, "system": "Be brief.", "temperature": 0.5,
    "thinking": {"type": "adaptive"}, "tool_choice": {"type": "auto"},
    "tools": [{"name": "f", "input_schema": SCHEMA}], "top_k": 5, "top_p": 0.5}}
MESSAGES_MEMBERS = {"Anthropic": {
    "messages[].content[].cache_control": {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]},
    "messages[].content[].source": {"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "x"}}]}]},
    "output_config.effort": {"output_config": {"effort": "low"}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "tool_choice.disable_parallel_tool_use": {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {
        "type": "auto", "disable_parallel_tool_use": True}},
    "tools[].cache_control": {"tools": [{"name": "f", "input_schema": SCHEMA, "cache_control": {
        "type": "ephemeral"}}]},
    "tools[].type web_search": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}}}
BESIDE = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True},
          "tool_choice": {"tools": [TOOL]}, "parallel_tool_calls": {"tools": [TOOL]},
          "continue_final_message": {"add_generation_prompt": False}}
BESIDE_RESPONSES = {"tool_choice": {"tools": RESPONSES["OpenAI"]["tools"]},
                    "top_logprobs": {"include": ["message.output_text.logprobs"]}}
BESIDE_MESSAGES = {"tool_choice": {"tools": MESSAGES_FIELDS["Anthropic"]["tools"]}}
ROUTES = {
    "OpenAI": ["POST /v1/completions", "POST /v1/chat/completions", "POST /v1/responses",
               "GET /v1/responses/x", "POST /v1/embeddings", "GET /v1/models", "GET /v1/models/MODEL",
               "POST /v1/files", "GET /v1/fine_tuning/jobs", "POST /v1/moderations", "POST /v1/batches",
               "POST /v1/images/generations", "POST /v1/audio/transcriptions", "POST /v1/audio/speech"],
    "Anthropic": ["POST /v1/messages", "POST /v1/messages/count_tokens"],
    "vLLM": ["GET /health", "GET /ping", "GET /load", "GET /version", "GET /metrics", "POST /tokenize",
             "POST /detokenize", "GET /tokenizer_info", "POST /pooling", "POST /score", "POST /rerank",
             "POST /classify", "POST /inference/v1/generate", "POST /pause", "POST /resume",
             "POST /sleep", "POST /wake_up", "POST /reset_prefix_cache", "POST /update_weights",
             "POST /v1/load_lora_adapter", "GET /openapi.json"],
    "llama.cpp": ["GET /v1/health", "POST /completion", "POST /apply-template", "POST /embedding",
                  "POST /infill", "GET /props", "GET /slots", "GET /lora-adapters", "POST /reranking"],
}
WHY = {
    "/v1/files": "examples are posted to /v1/fine_tuning/examples", "/v1/responses/x": "answers are not stored",
    "/v1/fine_tuning/jobs": "one endless job: /v1/fine_tuning/examples, /v1/policy",
    "/v1/moderations": "no such model", "/v1/batches": "send them; priority puts them behind others",
    "/v1/images/generations": "text only", "/v1/audio/transcriptions": "text only",
    "/v1/audio/speech": "text only", "/pooling": "see /v1/embeddings", "/score": "/v1/score has another body",
    "/rerank": "no such model", "/classify": "no such model", "/reranking": "no such model",
    "/inference/v1/generate": "/v1/completions takes and gives tokens",
    "/pause": "weights change between two steps", "/resume": "weights change between two steps",
    "/sleep": "the memory is shared with training", "/wake_up": "the memory is shared with training",
    "/reset_prefix_cache": "a new version empties it", "/update_weights": "the weights are trained here",
    "/v1/load_lora_adapter": "there are no adapters", "/lora-adapters": "there are no adapters",
    "/v1/health": "see /health", "/completion": "see /v1/completions", "/embedding": "see /v1/embeddings",
    "/apply-template": "see /tokenize with messages", "/infill": "no fill-in-the-middle",
    "/props": "see /v1/models and /tokenizer_info", "/slots": "see /metrics",
}


def send(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request(method, path, json.dumps(body) if body is not None else None,
              {"content-type": "application/json"} if body is not None else {})
    answer = c.getresponse()
    text = answer.read().decode()
    c.close()
    return answer.status, text


def judge(port, path, body, field):
    status, text = send(port, "POST", path, body)
    if status == 200:
        at = text.find('"ignored":')
        ignored = json.JSONDecoder().raw_decode(text[at:].split(":", 1)[1])[0] if at >= 0 else []
        return "no effect" if field in [re.sub(r"\[\d+\]", "[]", name) for name in ignored] else "yes"
    error = json.loads(text)["error"]
    assert status == 400, (path, field, status, text)
    return "no: " + error["message"].removeprefix(f"{field} is not supported: ")


def fields(port, path, base, groups, beside, members=None):
    lines = [f"### `POST {path}`", "", "| field | of | |", "|---|---|---|"]
    rows = {}
    for group in groups:
        for owner, names in group.items():
            for field, value in names.items():
                if value is not None:
                    body = {**base, **beside.get(field, {}), field: value}
                    rows[field] = (owner, judge(port, path, body, field))
    for owner, names in (members or {}).items():
        for field, value in names.items():
            rows[field] = (owner, judge(port, path, {**base, **value}, field))
    for field, (owner, result) in sorted(rows.items()):
        lines.append(f"| `{field}` | {owner} | {result} |")
    return lines + [""]


def routes(port, model):
    lines = ["### Routes", "", "| route | of | |", "|---|---|---|"]
    for owner, names in ROUTES.items():
        for name in names:
            method, path = name.replace("MODEL", model).split()
            status, _ = send(port, method, path, {} if method == "POST" else None)
            path = name.split()[1]
            assert status in (200, 400, 404), (name, status)
            lines.append(f"| `{name.replace('MODEL', '{id}')}` | {owner} | "
                         + ("no: " + WHY[path] if status == 404 else "yes") + " |")
    return lines + [""]


def made(port, model):
    text = {"prompt": "Hello", "max_tokens": 2}
    chat = {"messages": MESSAGES, "max_tokens": 2}
    lines = routes(port, model)
    lines += fields(port, "/v1/completions", text, [SAMPLING, COMPLETIONS], BESIDE)
    lines += fields(port, "/v1/chat/completions", chat, [SAMPLING, CHAT], BESIDE, CHAT_MEMBERS)
    lines += fields(port, "/v1/responses", {"input": "Hello", "max_output_tokens": 2}, [RESPONSES],
                    BESIDE_RESPONSES, RESPONSES_MEMBERS)
    lines += fields(port, "/v1/messages", {**chat, "model": model}, [MESSAGES_FIELDS], BESIDE_MESSAGES,
                    MESSAGES_MEMBERS)
    return "\n".join(lines)


def main():
    check = sys.argv[1] == "--check"
    program, model = sys.argv[-2:]
    with tempfile.TemporaryDirectory() as state:
        template = pathlib.Path(state) / "t.jinja"
        template.write_text(TEMPLATE)
        server = subprocess.Popen([program, "serve", model, "--port", "0", "--no-train", "--state", state,
                                   "--served-model-name", "model", "--chat-template", str(template)],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = int(next(re.search(r":(\d+)", line.split("http://")[1])[1] for line in server.stdout
                        if "http://" in line))
        text = made(port, "model")
        server.terminate()
        server.wait()
    old = DOCUMENT.read_text()
    new = PLACE.sub(lambda m: m[1] + text + m[2], old)
    if check:
        print("ok" if new == old else "docs/COMPATIBILITY.md differs: run dev/compatibility.py")
        return new != old
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The table of fields (api/http/routes/fields.json), the parsers, what a server accepts and docs/API*.md:
tests for a server that another program starts (test_chat.py)."""
import http.client
import json
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import api_fields  # noqa: E402

HTTP = ROOT / "api" / "http"
MESSAGES = [{"role": "user", "content": "Where does Zorin live?"}]
# A good body of each set.
BODIES = {
    "CompletionRequest": {"prompt": "a", "max_tokens": 0},
    "ChatRequest": {"messages": MESSAGES, "max_tokens": 0},
    "ResponsesRequest": {"input": "a", "max_output_tokens": 0},
    "EmbeddingsRequest": {"input": "a"},
    "ScoreRequest": {"template": "{text}", "text": "a", "words": ["b", "c"]},
    "MessagesRequest": {"messages": MESSAGES, "max_tokens": 1},
    "CountTokensRequest": {"messages": MESSAGES},
    "TokenizeRequest": {"messages": MESSAGES},
    "DetokenizeRequest": {"tokens": [1]},
    "PolicyPatch": {},
    "Feedback": {"id": "none", "score": 1},
    "Rollouts": {"messages": [MESSAGES], "train": False, "n": 1, "max_tokens": 1,
                 "reward": {"type": "length", "tokens": 1}},
}
# What cannot be beside each other, or follows from the model.
INSTEAD = {("TokenizeRequest", "prompt"): {"prompt": "a"},
           ("Rollouts", "prompts"): {"train": False, "reward": {"type": "length", "tokens": 1}}}
# The fields of VersionAction and the action of a version that takes each.
ACTIONS = {"directory": "export", "lessons": "activate", "name": "name", "optimizer": "activate"}


# A good body of each object that has a row of its own, without it; and the object.
TOOL = {"name": "look", "parameters": {"type": "object"}}
CHAT_TOOLS = {"tools": [{"type": "function", "function": TOOL}]}
FORMATS = {"response_format": {"type": "json_object"}, "response_format.json_schema": {
    "name": "a", "schema": {"type": "object"}}, "stream_options": {"include_usage": False}}
MEMBERS = {
    "CompletionRequest": FORMATS,
    "ChatRequest": {**FORMATS, "messages[].content[]": {"type": "text", "text": "a"},
                    "tool_choice": {"type": "function", "function": {"name": "look"}},
                    "tool_choice.function": {"name": "look"}},
    "TokenizeRequest": {"messages[].content[]": {"type": "text", "text": "a"},
                        "tool_choice": {"type": "function", "function": {"name": "look"}},
                        "tool_choice.function": {"name": "look"}},
    "ResponsesRequest": {"input[]": {"role": "user", "content": "a"},
                         "input[].content[]": {"type": "input_text", "text": "a"},
                         "input[].output[]": {"type": "input_text", "text": "a"},
                         "input[].summary[]": {"type": "summary_text", "text": "a"},
                         "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}},
                         "text.format": {"type": "text"}, "tool_choice": {"type": "function", "name": "look"},
                         "tools[]": {"type": "function", **TOOL}},
    "MessagesRequest": {"messages[]": MESSAGES[0], "messages[].content[]": {"type": "text", "text": "a"},
                        "messages[].content[].content[]": {"type": "text", "text": "a"},
                        "system[]": {"type": "text", "text": "a"}, "thinking": {"type": "disabled"},
                        "tool_choice": {"type": "auto"}, "output_config": {"effort": "low"},
                        "output_config.format": {"type": "json_schema", "schema": {"enum": ["x"]}},
                        "tools[]": {"name": "look", "input_schema": {"type": "object"}}},
    "Rollouts": {"environment": {"type": "client"}},
}
MEMBERS["CountTokensRequest"] = MEMBERS["MessagesRequest"]
# What stands around the object, {} where it is.
AROUND = {
    "messages[].content[]": {"messages": [{"role": "user", "content": [{}]}]},
    "response_format.json_schema": {"response_format": {"type": "json_schema", "json_schema": {}}},
    "stream_options": {"stream": True, "stream_options": {}},
    "tool_choice": {"tool_choice": {}}, "tool_choice.function": {"tool_choice": {"type": "function", "function": {}}},
    "input[]": {"input": [{}]}, "input[].content[]": {"input": [{"role": "user", "content": [{}]}]},
    "input[].output[]": {"input": [
        {"role": "user", "content": "a"}, {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{}]}]},
    "input[].summary[]": {"input": [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": [{}]}]},
    "text.format": {"text": {"format": {}}}, "tools[]": {"tools": [{}]}, "messages[]": {"messages": [{}]},
    "messages[].content[].content[]": {"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{}]}]}]},
    "system[]": {"system": [{}]},
    "output_config": {"output_config": {}},
    "output_config.format": {"output_config": {"format": {}}},
}


def openapi(server):
    return json.loads(server.get("/openapi.json"))


def source_names():
    """The fields that the table has, by its source."""
    table = json.loads((HTTP / "routes" / "fields.json").read_text())
    return {name for part in ("groups", "queries") for group in table[part].values() for name in group}


def sets(server):
    """Each body's schema with the method and path of a route that takes it."""
    document = openapi(server)
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            content = route.get("requestBody", {}).get("content", {}).get("application/json")
            name = content and content["schema"].get("$ref", "").rsplit("/", 1)[-1]
            if name in BODIES:
                yield name, method.upper(), path, document["components"]["schemas"][name]


def test_every_route_is_described(server):
    document = openapi(server)
    rows = [row.split() for row in json.loads((HTTP / "routes" / "fields.json").read_text())["routes"]]
    assert len(rows) > 15
    for method, path in rows:
        route = document["paths"][path + "{id}" if path.endswith("/") and path != "/" else path][method.lower()]
        assert route["summary"], (method, path)
    count = sum(len(methods) for methods in document["paths"].values())
    assert count == len(rows), (count, len(rows))


def test_parsers_read_the_table(server):
    """No parser reads a field that the table lacks, and each used field is read somewhere."""
    names, read = source_names(), set()
    for file in HTTP.rglob("*.c"):
        text = file.read_text()
        read |= {name for name in re.findall(r'"(\w+)"', text)}
        for names_of in re.findall(r'"([\w. ]+=[\w.= ]+)"', text):  # own=chat: two routes
            read |= {pair.split("=")[0] for pair in names_of.split()}
        if file.name in ("completion_params.c", "chat_params.c", "tokenize_route.c", "policy_route.c",
                         "responses.c", "messages.c", "embeddings.c"):
            for name in re.findall(r'\w+\(body, "(\w+)"', text):
                assert name in names, (file.name, name)
    read |= {name for file in (ROOT / "api" / "learn").glob("*.c")
             for name in re.findall(r'"(\w+)"', file.read_text())}
    read |= {name for file in (ROOT / "text").rglob("*.c")
             for name in re.findall(r'"(\w+)"', file.read_text())}
    for name, schema in openapi(server)["components"]["schemas"].items():
        for field, what in schema["properties"].items():
            assert what.get("x-ignored") or name == "Error" or field in read, (name, field)


def test_docs_have_the_table(server):
    """docs/API.md and API-LEARNING.md have the tables that dev/api_fields.py makes, one of each schema."""
    document, text = openapi(server), "".join(path.read_text() for path in api_fields.DOCUMENTS)
    assert api_fields.made(text, document) == text, "run dev/api_fields.py on a server of this tree"
    there = {found[1] for found in api_fields.PLACE.findall(text)}
    assert there == set(document["components"]["schemas"]) - {"Error"}, there
    for path in document["paths"]:
        assert path in text, path


def wrong_values(schema):
    """Values that are not of the field's type or range."""
    if "anyOf" in schema and {"type": "null"} in schema["anyOf"]:
        schema = schema["anyOf"][0]
    if not set(schema) - {"description", "default", "x-ignored"}:
        return
    yield {"no": {"such": ["value"]}} if schema.get("type") != "object" else [1]
    if "enum" in schema:
        yield "no such value"
    kinds = schema.get("type", [])
    if kinds in ("integer", "number"):
        yield "1"
        if abs(schema["minimum"]) < 2 ** 60:
            yield schema["minimum"] - 1
            yield schema["maximum"] + 1
        if kinds == "integer":
            yield schema["minimum"] + 0.5
    if kinds in ("boolean", "string"):
        yield 7


def test_server_keeps_the_table(server):
    """A wrong type or a value out of range is a 400 that names the field; the ends are taken."""
    seen = set()
    for name, method, path, schema in sets(server):
        seen.add(name)
        for field, what in schema["properties"].items():
            settled(server, name)
            base = INSTEAD.get((name, field), BODIES[name])
            for value in wrong_values(what):
                status, _, answer = server.post(path, {**base, field: value}, method=method)
                assert status == 400 and answer["error"]["param"].startswith(field), \
                    (path, field, value, answer)
            inner = what.get("anyOf", [what])[0]
            for end in ("minimum", "maximum"):
                if inner.get("type") not in ("integer", "number") or name == "PolicyPatch":
                    continue
                value = inner[end]
                status, _, answer = server.post(path, {**base, field: value}, method=method)
                text = json.dumps(answer.get("error"))
                assert status in (200, 404) or (status == 400 and "must be from" not in text), \
                    (path, field, value, answer)
        for field in schema.get("x-refused", {}):
            settled(server, name)
            status, _, answer = server.post(path, {**BODIES[name], field: {"x": 1}}, method=method)
            assert status == 400 and answer["error"]["param"] == field, (path, field, answer)
            status, _, answer = server.post(path, {**BODIES[name], field: None}, method=method)
            assert status == 200, (path, field, answer)
        ignored = sorted(f for f, what in schema["properties"].items() if what.get("x-ignored"))
        if ignored:
            body = {**BODIES[name], **{field: "x" for field in ignored}}
            status, _, answer = server.post(path, body, method=method)
            assert status == 200 and sorted(answer["hzpserve"]["ignored"]) == ignored, answer
        status, _, answer = server.post(path, {**BODIES[name], "no_such": 1}, method=method)
        if schema["additionalProperties"]:
            assert status == 200 and answer["hzpserve"]["ignored"] == ["no_such"], answer
        else:
            assert status == 400 and answer["error"]["param"] == "no_such", answer
    assert seen == set(BODIES), seen


def settled(server, name):
    """So many jobs of rollouts may wait, and each of these is a short one."""
    while name == "Rollouts" and any(job["status"] in ("queued", "running")
                                     for job in json.loads(server.get("/v1/rollouts"))["data"]):
        time.sleep(0.005)


def filled(around, what):
    """The value with the object in place of {}."""
    if around == {}:
        return what
    if isinstance(around, dict):  # arguments of calls are strings, and inputs are no such object
        return {k: v if k == "input" and isinstance(v, dict) else filled(v, what) for k, v in around.items()}
    return [filled(v, what) for v in around] if isinstance(around, list) else around


def member_of(server, path, body):
    """Which members are ignored, or the one that is refused, without the indices of lists."""
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = c.getresponse()
    text = answer.read().decode()
    c.close()
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        text = [line for line in text.split("\n") if "hzpserve\":" in line][-1].removeprefix("data: ")
    made = json.loads(text)
    assert answer.status in (200, 400), made
    names = [made["error"]["param"]] if answer.status == 400 else made.get("hzpserve", {}).get("ignored", [])
    return answer.status, [re.sub(r"\[\d+\]", "[]", name or "") for name in names], made


def test_members(server):
    """A member that an object within a field does not have is refused, or listed as ignored."""
    seen = set()
    for name, _, path, schema in sets(server):
        rows = schema.get("x-members", {})
        assert set(rows) == set(MEMBERS.get(name, {})), (name, set(rows) ^ set(MEMBERS.get(name, {})))
        for at, row in rows.items():
            what, around = MEMBERS[name][at], AROUND.get(at, {at: {}})
            body = {**BODIES[name], **filled(around, what)}
            if "tool_choice" in body:
                body |= {"tools": [MEMBERS[name]["tools[]"]]} if "tools[]" in rows else CHAT_TOOLS
            words = row["names"].split()
            assert set(what) <= set(words), (name, at)
            good, _, made = member_of(server, path, body)  # this model cannot be asked for a call
            assert good == 200 or "cannot be asked for" in made["error"]["message"], (name, at, made)
            for member in ["no_such"] + [word[1:] for word in words if word[0] == "-"]:
                body |= filled(around, {**what, member: {"a": 1}})
                status, names, made = member_of(server, path, body)
                assert status == (400 if member == "no_such" and not row["open"] else good), (name, at, made)
                assert f"{at}.{member}" in names or name in ("TokenizeRequest", "CountTokensRequest"), (at, made)
                body |= filled(around, {**what, member: None})
                status, names, made = member_of(server, path, body)
                assert status == good and f"{at}.{member}" not in names, (name, at, made)
            seen.add((name, at))
    assert len(seen) > 25, seen


def test_members_of_the_template(server):
    """What is given to the template and not read by it is listed, too; what it reads is not."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}, "thought": "x"}
    body = {"max_tokens": 0, "messages": [{**MESSAGES[0], "mood": "glad", "tags": 1},
                                          {"role": "assistant", "content": None, "tool_calls": [call]},
                                          {"role": "tool", "content": "4", "tool_call_id": "1", "tags": None}],
            "tools": [{"type": "function", "defer": True, "function": {**TOOL, "returns": {"type": "string"}}}]}
    _, names, made = member_of(server, "/v1/chat/completions", body)
    assert sorted(names) == ["messages[].mood", "messages[].tags", "messages[].tool_calls[].thought",
                             "tools[].defer", "tools[].function.returns"], made


def check_version_action(server):
    """On a server that learns: an action of a version refuses wrong values of its fields, and all others."""
    schema = openapi(server)["components"]["schemas"]["VersionAction"]
    assert set(schema["properties"]) == set(ACTIONS) and not schema["additionalProperties"], schema
    for action in sorted(set(ACTIONS.values())):
        for field, what in {**schema["properties"], "no_such": {}}.items():
            for value in wrong_values(what) if ACTIONS.get(field) == action else ["x"]:
                status, _, answer = server.post(f"/v1/weights/current/{action}", {field: value})
                assert status == 400 and answer["error"]["param"] == field, (action, field, value, answer)


# What stands beside a field of an example.
EXAMPLES = {"completion": {"prompt": "a"}, "prompt": {"completion": "a"}, "learn": {"tokens": [1, 2]},
            "weights": {"tokens": [1, 2]}, "loss": {"tokens": [1, 2]}, "targets": {"tokens": [1, 2]},
            "logprobs": {"tokens": [1, 2], "loss": {"kind": "is"}, "advantages": 1},
            "advantages": {"tokens": [1, 2], "loss": {"kind": "is"}, "logprobs": -1},
            "reference": {"prompt": "a", "chosen": "b", "rejected": "c"},
            "reference_logprobs": {"tokens": [1, 2], "loss": {"kind": "xent", "kl": 1}},
            "non_preferred_output": {"preferred_output": [{"role": "assistant", "content": "a"}]},
            "input": {"instruction": "a", "output": "b"}, "instruction": {"output": "b"},
            "teach": {"prompt": "a", "completion": "b"}, "paraphrases": {"prompt": "a", "completion": "b"},
            "output": {"instruction": "a"}, "chat_template_kwargs": {"messages": MESSAGES},
            "documents": {"messages": MESSAGES}, "tools": {"messages": MESSAGES}, "functions": {"messages": MESSAGES},
            "system": {"messages": MESSAGES}, "history": {"instruction": "a", "output": "b"}}


def check_learning_bodies(server):
    """On a server that learns: examples, manifests and what is pushed refuse wrong values and unknown fields,
    by name, and manifests want the fields that they need."""
    schemas = openapi(server)["components"]["schemas"]
    manifest = json.loads(server.get("/v1/replication/current/manifest"))
    for name, path, good in (("Manifest", "/v1/replication", manifest),
                             ("Push", "/v1/replication/0123456789abcdef/activate", {})):
        assert set(good) <= set(schemas[name]["properties"]), (name, good)
        for field, what in {**schemas[name]["properties"], "no_such": {}}.items():
            for value in wrong_values(what) if field != "no_such" else [1]:
                status, _, answer = server.post(path, {**good, field: value})
                assert status == 400 and answer["error"]["param"].startswith(field), (name, field, value, answer)
        for field in schemas[name].get("required", []):
            status, _, answer = server.post(path, {f: value for f, value in good.items() if f != field})
            assert status == 400 and answer["error"]["param"] == field, (name, field, answer)
    assert len(schemas["Manifest"]["required"]) == 5
    for field, what in {**schemas["Example"]["properties"], "no_such": {}}.items():
        for value in wrong_values(what) if field != "no_such" else [1]:
            body = {**EXAMPLES.get(field, {} if field != "no_such" else {"text": "a"}), field: value}
            status, _, answer = server.post("/v1/fine_tuning/examples", body)
            assert status == 400 and answer["error"]["param"].startswith(f"lines[1].{field}"), (field, value, answer)

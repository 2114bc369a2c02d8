# SPDX-License-Identifier: Apache-2.0
"""JSON has no bounds that a C value has: numbers, \\u0000 and half surrogates in requests.  Tests for a server
that another program starts (test_chat.py)."""
import http.client
import json

BIG = ["9223372036854775808", "18446744073709551615", "-9223372036854775809", "1e400", "-1E+999",
       "1000000000000000019884624838656"]
USER = '{"role": "user", "content": "Where does Zorin live?"}'


def post(server, path, text):
    """Status and answer of a body that json.dumps would not write so."""
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("POST", path, text.encode(), {"content-type": "application/json"})
    answer = c.getresponse()
    body = answer.read().decode()
    c.close()
    return answer.status, body


def refused(server, path, text, param, *words):
    status, body = post(server, path, text)
    error = json.loads(body)["error"]
    assert status == 400, (text, body)
    assert param is None or error["param"].startswith(param), (text, error)
    for word in words:
        assert word in error["message"], (text, error)


def taken(server, path, text):
    status, body = post(server, path, text)
    assert status == 200, (text, body)
    return body


def test_big_numbers_pass(server):
    """Where a number is not computed with, it is passed on as it is spelled."""
    for n in BIG:
        tool = ('{"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "number", '
                '"maximum": %s, "enum": [1, %s]}}}}' % (n, n))
        call = ('{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", '
                '"function": {"name": "f", "arguments": %s}}]}, {"role": "tool", "tool_call_id": "c", '
                '"content": "1"}')
        chat = '{"messages": [%s%%s], "max_tokens": 1%%s}' % USER
        for more in ('"metadata": {"n": %s}' % n, '"tools": [{"type": "function", "function": %s}]' % tool,
                     '"chat_template_kwargs": {"mood": %s}' % n):
            taken(server, "/v1/chat/completions", chat % ("", ", " + more))
        for written in ('{"a": %s}' % n, json.dumps('{"a": %s}' % n)):
            body = taken(server, "/tokenize", '{"messages": [%s, %s]}' % (USER, call % written))
            tokens = json.dumps({"tokens": json.loads(body)["tokens"]})
            text = json.loads(taken(server, "/detokenize", tokens))["prompt"]
            assert "[f %s]" % n in text, text
        taken(server, "/v1/messages", '{"max_tokens": 1, "messages": [%s, {"role": "assistant", "content": [{'
              '"type": "tool_use", "id": "t", "name": "f", "input": {"a": %s}}]}, {"role": "user", "content": '
              '[{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}]}' % (USER, n))
        body = taken(server, "/v1/responses", '{"input": "hi", "max_output_tokens": 1, "metadata": {"n": %s, '
                     '"d": 0.1234567890123456}}' % n)
        assert '"n":%s' % n in body.replace(" ", "") and "0.1234567890123456" in body, body


def test_big_numbers_are_refused(server):
    """Where a number is computed with, the field is named."""
    for n in BIG:
        for field in ("max_tokens", "temperature", "top_p", "top_k", "seed", "n", "presence_penalty",
                      "min_tokens", "priority"):
            refused(server, "/v1/completions", '{"prompt": "a", "%s": %s}' % (field, n), field, n)
        refused(server, "/v1/completions", '{"prompt": "a", "logit_bias": {"5": %s}}' % n, "logit_bias")
        refused(server, "/v1/completions", '{"prompt": "a", "logit_bias": {"%s": 1}}' % n, "logit_bias")
        refused(server, "/v1/completions", '{"prompt": [1, %s]}' % n, "prompt")
        refused(server, "/v1/completions", '{"prompt": %s}' % n, "prompt")
        refused(server, "/v1/completions", '{"prompt": "a", "stop_token_ids": [%s]}' % n, "stop_token_ids")
        refused(server, "/v1/completions", '{"prompt": "a", "model": %s}' % n, "model", "number")
        refused(server, "/v1/completions", '{"prompt": "a", "stream": true, "stream_options": %s}' % n,
                "stream_options")
        refused(server, "/v1/completions", '{"prompt": "a", "response_format": %s}' % n, "response_format")
        refused(server, "/v1/chat/completions", '{"messages": [%s, %s]}' % (USER, n), "messages")
        refused(server, "/v1/chat/completions", '{"messages": [{"role": "user", "content": %s}]}' % n,
                "messages")
        refused(server, "/v1/chat/completions", '{"messages": [%s], "tools": [%s]}' % (USER, n), "tools")
        for field in "tools", "chat_template_kwargs", "messages", "stop", "tool_choice":
            refused(server, "/v1/chat/completions", '{"messages": [%s], "%s": %s}' % (USER, field, n)
                    if field != "messages" else '{"messages": %s}' % n, field)
        refused(server, "/v1/chat/completions", '{"messages": [%s], "structured_outputs": {"json": {"properties":'
                ' %s}}}' % (USER, n), "structured_outputs", "properties")
    for n in BIG:  # in the place of an object it is no object, and names no member
        for schema in ("%s", '{"properties": {"a": %s}}', '{"anyOf": [%s]}', '{"items": %s}', '{"$defs": %s, "$ref": "#/$defs"}'):
            refused(server, "/v1/completions", '{"prompt": "a", "structured_outputs": {"json": %s}}' % (schema % n),
                    "structured_outputs")
        for path, fields, param in (
                ("/v1/completions", '"prompt": "a", "response_format": {"type": "json_schema", "json_schema": %s}',
                 "response_format"),
                ("/v1/chat/completions", '"messages": [%s], "tools": [{"type": "function", "function": %%s}]' % USER,
                 "tools"),
                ("/v1/responses", '"input": "a", "text": {"format": %s}', "text.format"),
                ("/v1/messages", '"max_tokens": 1, "messages": [%s], "output_config": %%s' % USER, "output_config")):
            refused(server, path, "{%s}" % (fields % n), param)
    for n in BIG + ["7", "true", "null", '"a"']:
        refused(server, "/v1/completions", n, None, "must be a JSON object")
    for n in ("NaN", "Infinity", "-Infinity"):
        refused(server, "/v1/completions", '{"prompt": "a", "temperature": %s}' % n, None, "NaN and infinity")


def test_nul_in_strings(server):
    """A text keeps its length; a name with NUL is refused, not cut."""
    body = json.loads(taken(server, "/v1/completions", '{"prompt": "a\\u0000b", "max_tokens": 0, "echo": true}'))
    assert body["choices"][0]["text"] == "a\0b", body
    for wrap in ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a\\u0000b"}]'), (
            "/v1/responses", '"input": [{"role": "user", "content": [{"type": "input_text", "text": '
            '"a\\u0000b"}]}]'):
        taken(server, wrap[0], "{%s}" % wrap[1])
    body = taken(server, "/tokenize", '{"messages": [{"role": "user", "content": "a\\u0000b"}]}')
    text = json.loads(taken(server, "/detokenize", json.dumps({"tokens": json.loads(body)["tokens"]})))
    assert "a\0b" in text["prompt"], text
    for fields, param in (
            ('"prompt": "a", "model": "%s\\u0000x"' % server.model, "model"),
            ('"prompt": "a", "model\\u0000x": "y"', "model"),
            ('"prompt": "a", "logit_bias": {"5\\u0000": 1}', "logit_bias"),
            ('"prompt": "a", "response_format": {"type": "text\\u0000x"}', "response_format"),
            ('"prompt": "a", "structured_outputs": {"regex\\u0000x": "a"}', "structured_outputs"),
            ('"prompt": "a", "structured_outputs": {"json": {"properties": {"a\\u0000b": {}}}}',
             "structured_outputs")):
        refused(server, "/v1/completions", "{%s}" % fields, param)
    tool = '{"type": "function", "function": {"name": "f%s"}}'
    for fields, param in (
            ('"messages": [{"role": "user\\u0000x", "content": "a"}]', "messages[0].role"),
            ('"messages": [{"role": "user", "content": [{"type": "text\\u0000x", "text": "a"}]}]',
             "messages[0].content[0].type"),
            ('"messages": [%s], "tools": [%s]' % (USER, tool % "\\u0000x"), "tools"),
            ('"messages": [%s], "tools": [%s], "tool_choice": "auto\\u0000x"' % (USER, tool % ""), "tool_choice"),
            ('"messages": [%s], "tools": [%s], "tool_choice": %s' % (USER, tool % "", tool % "\\u0000x"),
             "tool_choice")):
        refused(server, "/v1/chat/completions", "{%s}" % fields, param)


def test_half_surrogates(server):
    for written, text in (("\\ud83d\\ude00", "\U0001f600"), ("a\\ud800", "a\ufffd"),
                          ("\\udc00\\ud800", "\ufffd\ufffd"), ("\\ud83d b", "\ufffd b")):
        body = json.loads(taken(server, "/v1/completions",
                                '{"prompt": "%s", "max_tokens": 0, "echo": true}' % written))
        assert body["choices"][0]["text"] == text, body


def test_nul_in_paths(server):
    """%00 does not end a path, or a value of a query: it is refused."""
    for path, status in (("/v1/models/" + server.model, 200), ("/v1/models/" + server.model + "%00x", 400),
                         ("/v1/models%00/x", 400), ("/v1/weights?limit=1", 200),
                         ("/v1/weights?limit=1%001", 400), ("/v1/m%6fdels", 200)):
        c = http.client.HTTPConnection("127.0.0.1", server.port)
        c.request("GET", path)
        answer = c.getresponse()
        assert answer.status == status, (path, answer.status, answer.read())
        c.close()

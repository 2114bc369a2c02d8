# SPDX-License-Identifier: Apache-2.0
"""POST /v1/responses and /v1/messages say what /v1/chat/completions says: tests for a server that another
program starts (test_chat.py)."""
import http.client
import json

ASKED = "Where does Zorin live?"
GREEDY = {"temperature": 0}


def events(server, path, body):
    """(name, object) of each server-sent event."""
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    found = []
    for event in answer.read().decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    c.close()
    for name, what in found:
        assert what["type"] == name, (name, what)
    return found


def said(server, **fields):
    status, _, answer = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": ASKED}], "max_tokens": 12, **GREEDY, **fields})
    assert status == 200, answer
    return answer


def test_responses(server):
    body = {"input": ASKED, "max_output_tokens": 12, **GREEDY}
    want = said(server)
    made = server.client.responses.create(model=server.model, **body)
    assert made.output_text == want["choices"][0]["message"]["content"]
    assert made.id.startswith("resp_") and made.object == "response"
    cut = want["choices"][0]["finish_reason"] == "length"
    assert made.status == ("incomplete" if cut else "completed")
    assert made.usage.input_tokens == want["usage"]["prompt_tokens"]
    assert made.usage.output_tokens == want["usage"]["completion_tokens"]
    parts = [{"role": "user", "content": [{"type": "input_text", "text": ASKED}]}]
    again = server.client.responses.create(model=server.model, **{**body, "input": parts})
    assert again.output_text == made.output_text
    told = server.client.responses.create(model=server.model, instructions="Be brief.", **body)
    assert told.instructions == "Be brief." and told.usage.input_tokens > made.usage.input_tokens

    seen = list(server.client.responses.create(model=server.model, stream=True, **body))
    assert [e.sequence_number for e in seen] == list(range(len(seen)))
    names = [e.type for e in seen]
    assert names[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"], names
    assert names[-4:-1] == ["response.output_text.done", "response.content_part.done",
                            "response.output_item.done"], names
    assert names[-1] == ("response.incomplete" if cut else "response.completed")
    text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert text == made.output_text == seen[-1].response.output_text
    of_text = [e for e in seen if e.type.startswith("response.output_text.")]
    assert of_text and all(e.logprobs == [] for e in of_text), of_text
    assert seen[-1].response.usage.total_tokens == made.usage.total_tokens

    for fields, param in (({"input": 5}, "input"), ({"input": []}, "input"), ({"top_logprobs": 2}, "top_logprobs"),
                          ({"include": "a"}, "include"), ({"include": ["no_such"]}, "include[0]"),
                          ({"input": [{"type": "image"}]}, "input[0]"),
                          ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
                           "input[0].content[0]"),
                          ({"input": [{"type": "function_call"}]}, "input[0]"),
                          ({"tools": [{"type": "web_search"}]}, "tools[0]"),
                          ({"previous_response_id": "x"}, "previous_response_id"),
                          ({"max_output_tokens": 10 ** 6}, "max_output_tokens"),
                          ({"no_such": 1}, "no_such")):
        status, _, answer = server.post("/v1/responses", {**body, **fields})
        assert status == 400 and answer["error"]["param"] == param, (fields, answer)


def test_responses_logprobs(server):
    """The text's tokens with their log-probabilities, as a chat has them; a stream has them in its deltas and again
    when an item closes.  Tokens of reasoning are not the text's."""
    body = {"input": ASKED, "max_output_tokens": 12, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
            **GREEDY}
    want = said(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    for include in (body["include"], ["reasoning.encrypted_content", *body["include"]]):
        made = server.client.responses.create(model=server.model, **{**body, "include": include})
        item = next(item for item in made.output if item.type == "message")
        got = [each.to_dict() for each in item.content[0].logprobs]
        shown = [each for each in want if each["bytes"]][:len(got)]
        assert got == shown and "".join(each["token"] for each in got) == made.output_text, (got, want)
        assert all(len(each["top_logprobs"]) == 2 for each in got), got
    events = list(server.client.responses.create(model=server.model, stream=True, **body))
    deltas = [each.to_dict() for e in events if e.type == "response.output_text.delta" for each in e.logprobs]
    closed = [e for e in events if e.type == "response.output_text.done"][0]
    assert deltas == got == [each.to_dict() for each in closed.logprobs], (deltas, got)
    last = next(item for item in events[-1].response.output if item.type == "message")
    assert [each.to_dict() for each in last.content[0].logprobs] == got
    plain = server.client.responses.create(model=server.model, include=["reasoning.encrypted_content"],
                                           input=ASKED, max_output_tokens=2)
    assert plain.output[0].content[0].logprobs == []


def test_unshown_reasoning(server):
    """A template without a place for reasoning leaves it out; the answer says so, by the request's own path."""
    turns = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "Here.", "reasoning": "Hm so."},
             {"role": "user", "content": ASKED}]
    status, _, answer = server.post("/v1/chat/completions", {"messages": turns, "max_tokens": 1})
    assert status == 200 and answer["hzpserve"]["ignored"] == ["messages[1].reasoning"], answer
    # Of two that differ one is not shown, whatever the template shows.
    turns[1] = {"role": "assistant", "content": "Here.", "reasoning": "Hm so.", "thinking": "What else."}
    status, _, answer = server.post("/v1/chat/completions", {"messages": turns, "max_tokens": 1})
    assert status == 200 and "messages[1].thinking" in answer["hzpserve"]["ignored"], answer
    turns[1] = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm so.", "signature": ""},
                                                 {"type": "text", "text": "Here."}]}
    status, _, answer = server.post("/v1/messages", {"model": server.model, "messages": turns, "max_tokens": 1})
    ignored = answer["hzpserve"]["ignored"]
    assert status == 200 and len(ignored) == 1 and ignored[0].startswith("messages[1]"), answer


def test_what_no_answer_follows(server):
    """Reasoning before a user's message, or at the end, belongs to no answer: it is listed; errors name the item."""
    reasoning = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm so."}]}
    user, more = {"role": "user", "content": ASKED}, {"max_output_tokens": 1}
    for items, ignored in (([reasoning, user], ["input[0]"]), ([user, reasoning], ["input[1]"]),
                           ([user, reasoning, reasoning, user], ["input[2]"]),
                           ([reasoning, user, reasoning], ["input[0]", "input[2]"])):
        status, _, answer = server.post("/v1/responses", {"input": items, **more})
        assert status == 200 and answer["hzpserve"]["ignored"] == ignored, (items, answer)
    status, _, answer = server.post("/v1/responses", {"input": [user, reasoning, {"role": "x y", "content": "a"}]})
    assert status == 200 or answer["error"]["param"] == "input[2].role", answer


def test_unread_variables(server):
    """A variable that the template does not read is listed, by the request's own name for it."""
    chat = {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 1}
    status, _, answer = server.post("/v1/chat/completions", {**chat, "chat_template_kwargs": {"nobody_reads": 1}})
    assert status == 200 and answer["hzpserve"]["ignored"] == ["chat_template_kwargs.nobody_reads"], answer
    status, _, answer = server.post("/v1/messages", {**chat, "thinking": {"type": "disabled"}})
    assert status == 200 and answer["hzpserve"].get("ignored", ["thinking.type"]) == ["thinking.type"], answer


def test_messages_shape(server):
    body = {"model": server.model, "messages": [{"role": "user", "content": ASKED}],
            "max_tokens": 12, **GREEDY}
    want = said(server)
    text = want["choices"][0]["message"]["content"]
    status, _, made = server.post("/v1/messages", body)
    assert status == 200 and made["content"] == [{"type": "text", "text": text}], made
    assert made["type"] == "message" and made["role"] == "assistant" and made["id"].startswith("msg_")
    cut = want["choices"][0]["finish_reason"] == "length"
    assert made["stop_reason"] == ("max_tokens" if cut else "end_turn")
    usage = made["usage"]
    assert usage["output_tokens"] == want["usage"]["completion_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == want["usage"]["prompt_tokens"]
    blocks = [{"role": "user", "content": [{"type": "text", "text": ASKED}]}]
    assert server.post("/v1/messages", {**body, "messages": blocks})[2]["content"] == made["content"]
    blocks = [{"role": "user", "content": [{"type": "text", "text": part} for part in (ASKED[:7], "", ASKED[7:])]}]
    assert server.post("/v1/messages", {**body, "messages": blocks})[2]["content"] == made["content"]
    system = {**body, "system": [{"type": "text", "text": "Be brief."}]}
    longer = server.post("/v1/messages", system)[2]["usage"]
    assert longer["input_tokens"] + longer["cache_read_input_tokens"] > want["usage"]["prompt_tokens"]
    letter = text[3]
    stopped = server.post("/v1/messages", {**body, "stop_sequences": [letter]})[2]
    assert stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == letter
    assert stopped["content"][0]["text"] == text[:text.index(letter)]

    seen = events(server, "/v1/messages", body)
    names = [name for name, _ in seen]
    assert names[:2] == ["message_start", "content_block_start"], names
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"], names
    assert "".join(what["delta"]["text"] for name, what in seen
                   if name == "content_block_delta") == text
    assert seen[-2][1]["delta"]["stop_reason"] == made["stop_reason"]
    assert seen[-2][1]["usage"]["output_tokens"] == usage["output_tokens"]

    for fields, param in (({"messages": []}, "messages"), ({"max_tokens": None}, "max_tokens"),
                          ({"messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
                          ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
                           "messages[0].content[0]"),
                          ({"tools": [{"name": "f"}]}, "tools[0]"), ({"system": 5}, "system"),
                          ({"stop_sequences": [""]}, "stop_sequences")):
        status, _, answer = server.post("/v1/messages", {**body, **fields})
        assert answer["type"] == "error"
        assert status == 400 and answer["error"]["param"] == param, (fields, answer)


def check_calls(server, asked, function):
    """A model that calls the tool does so in every shape; the result goes back."""
    look = {"type": "function", "name": function["name"], "parameters": {"type": "object"}}
    body = {"input": asked, "max_output_tokens": 150, "tools": [look], **GREEDY}
    made = server.client.responses.create(model=server.model, **body)
    assert [item.type for item in made.output] == ["reasoning", "function_call"], made.output
    call = made.output[1]
    assert call.name == function["name"] and json.loads(call.arguments) == {"at": "Tarn"}
    assert made.output[0].content[0].text == "Tarn it is."
    seen = [what for _, what in events(server, "/v1/responses", body)]
    pieces = [e["delta"] for e in seen if e["type"] == "response.function_call_arguments.delta"]
    assert pieces and json.loads("".join(pieces)) == {"at": "Tarn"}
    assert [item["type"] for item in seen[-1]["response"]["output"]] == ["reasoning", "function_call"]
    back = [{"role": "user", "content": asked},
            {"type": "function_call", "call_id": call.call_id, "name": call.name,
             "arguments": call.arguments},
            {"type": "function_call_output", "call_id": call.call_id, "output": "Nobody."}]
    assert server.client.responses.create(model=server.model, **{**body, "input": back}).output

    tool = {"name": function["name"], "input_schema": {"type": "object"}}
    body = {"messages": [{"role": "user", "content": asked}], "max_tokens": 150, "tools": [tool],
            **GREEDY}
    status, _, made = server.post("/v1/messages", body)
    assert status == 200 and made["stop_reason"] == "tool_use", made
    assert [block["type"] for block in made["content"]] == ["thinking", "tool_use"], made
    assert made["content"][1]["input"] == {"at": "Tarn"}
    seen = [what for name, what in events(server, "/v1/messages", body) if name == "content_block_delta"]
    pieces = [e["delta"]["partial_json"] for e in seen if e["delta"]["type"] == "input_json_delta"]
    assert pieces and json.loads("".join(pieces)) == {"at": "Tarn"}
    back = body["messages"] + [
        {"role": "assistant", "content": made["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": made["content"][1]["id"],
                                      "content": [{"type": "text", "text": "Nobody."}]}]}]
    assert server.post("/v1/messages", {**body, "messages": back})[0] == 200


def check_reasoned(server, chat, asked, fields):
    """Every shape says how many tokens begin within the reasoning."""
    extra = {"return_token_ids": True, **fields["extra"]}
    whole = chat(server, asked, **{**fields, "extra": extra})
    ids = whole.choices[0].token_ids
    before = [server.post("/detokenize", {"tokens": ids[:i]})[2]["prompt"] for i in range(len(ids))]
    end = server.post("/detokenize", {"tokens": ids})[2]["prompt"].index("</think>")
    want = sum("<think>" in text and len(text) < end for text in before)
    assert 3 < want < len(ids) - 3, (want, before)
    counts = [whole.usage.completion_tokens_details.reasoning_tokens]
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        usage = [chunk.usage for chunk in chat(server, asked, stream=True, stream_options=options, **fields)
                 if chunk.usage]
        seen = [u.completion_tokens_details.reasoning_tokens for u in usage]
        assert seen == sorted(seen), seen
        counts.append(seen[-1])
    hidden = {**fields, "extra": {"include_reasoning": False, **fields["extra"]}}
    counts.append(chat(server, asked, **hidden).usage.completion_tokens_details.reasoning_tokens)
    body = {"input": asked, "max_output_tokens": 150, "temperature": 0,
            "tools": [{"type": "function", **tool["function"]} for tool in fields["tools"]]}
    answer = server.client.responses.create(model=server.model, **body)
    counts.append(answer.usage.output_tokens_details.reasoning_tokens)
    *_, last = server.client.responses.create(model=server.model, stream=True, **body)
    counts.append(last.response.usage.output_tokens_details.reasoning_tokens)
    assert counts == [want] * 6, (counts, want)

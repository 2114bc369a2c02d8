# SPDX-License-Identifier: Apache-2.0
"""What answers may be: grammars, schemas, required calls, allowed tokens: tests for a server that
another program starts (test_chat.py)."""
import concurrent.futures
import json
import re

ASK = {"prompt": "Where does Zorin live?", "max_tokens": 60}
HELLO = [{"role": "user", "content": "Where does Zorin live?"}]
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["a", "é", "c d"]}, "maxItems": 3}},
    "required": ["name", "age"], "additionalProperties": False}


def complete(server, **fields):
    status, _, answer = server.post("/v1/completions", {**ASK, **fields})
    assert status == 200, answer
    return answer


def texts(server, **fields):
    answer = complete(server, n=6, temperature=1.3, seed=5, **fields)
    assert all(choice["finish_reason"] == "stop" for choice in answer["choices"]), answer
    return [choice["text"] for choice in answer["choices"]]


def test_text_structures(server):
    """Regex, choice, grammar, by each name that asks for them."""
    regex = "(?:ab|c){1,3}-[0-9]{2}(é|日)?"
    for ask in ({"structured_outputs": {"regex": regex}}, {"guided_regex": regex}):
        made = texts(server, **ask)
        assert all(re.fullmatch(regex, text) for text in made) and len(set(made)) > 1, made
    for ask in ({"structured_outputs": {"choice": ["yes", "no way"]}}, {"guided_choice": ["yes", "no way"]}):
        assert set(texts(server, **ask)) <= {"yes", "no way"}
    grammar = 'root ::= "<" (root | [a-c]{1,2}) ">"'
    for ask in ({"structured_outputs": {"grammar": grammar}}, {"grammar": grammar}):
        for choice in complete(server, n=4, **ask)["choices"]:
            text = choice["text"]
            if choice["finish_reason"] == "stop":
                assert re.fullmatch(r"<+[a-c]{1,2}>+", text) and text.count("<") == text.count(">"), text
            else:
                assert choice["finish_reason"] == "length" and re.fullmatch(r"<+([a-c]{1,2}>*)?", text), text


def check_person(text):
    person = json.loads(text)
    assert list(person) in (["name", "age"], ["name", "age", "tags"]), person
    assert len(person["name"]) <= 12 and 0 <= person["age"] <= 120 and isinstance(person["age"], int)
    assert set(person.get("tags", [])) <= {"a", "é", "c d"} and len(person.get("tags", [])) <= 3


def test_schemas(server):
    """A schema, by each name, streamed too, in completions and chats."""
    named = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for ask in ({"structured_outputs": {"json": PERSON}}, {"structured_outputs": {"json": json.dumps(PERSON)}},
                {"guided_json": PERSON}, {"response_format": named},
                {"response_format": {"type": "json_object", "schema": PERSON}}):
        for text in texts(server, max_tokens=200, **ask):
            check_person(text)
    answer = server.client.chat.completions.create(
        model=server.model, messages=HELLO, response_format=named, n=3, seed=1, max_tokens=200)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        check_person(choice.message.content)
    whole = ""
    for chunk in server.client.chat.completions.create(
            model=server.model, messages=HELLO, response_format=named, stream=True, max_tokens=200):
        whole += chunk.choices[0].delta.content or "" if chunk.choices else ""
    check_person(whole)
    for choice in complete(server, response_format={"type": "json_object"}, n=4, max_tokens=100)["choices"]:
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict)
        else:
            assert choice["text"].startswith("{")


def test_format_members(server):
    """response_format: what the type has no use for is refused, not taken and forgotten."""
    other = {"name": "person", "schema": PERSON}
    for extra in ({"type": "text", "schema": PERSON}, {"type": "text", "json_schema": other},
                  {"type": "json_object", "json_schema": other},
                  {"type": "json_schema", "json_schema": other, "schema": PERSON}):
        for path, ask in (("/v1/completions", {"prompt": "a", "response_format": extra}),
                          ("/v1/chat/completions", {"messages": HELLO, "response_format": extra}),
                          ("/v1/responses", {"input": "a", "text": {"format": extra}})):
            if path == "/v1/responses" and "json_schema" in extra:
                continue  # an unknown member there
            status, _, answer = server.post(path, ask)
            assert status == 400 and "takes no" in answer["error"]["message"], (path, extra, answer)
    assert complete(server, response_format={"type": "text", "schema": None, "json_schema": None})["choices"]


def test_structure_ends(server):
    """max_tokens cuts an answer; min_tokens and ignore_eos do not lengthen a complete one; stop
    strings end it."""
    cut = complete(server, structured_outputs={"json": PERSON}, max_tokens=3)["choices"][0]
    assert cut["finish_reason"] == "length" and cut["text"].startswith("{")
    long = complete(server, structured_outputs={"choice": ["a"]}, min_tokens=20, ignore_eos=True)
    assert long["choices"][0]["text"] == "a" and long["choices"][0]["finish_reason"] == "stop"
    assert long["choices"][0]["stop_reason"] is None
    # where the text may end or go on, the end token is allowed and is no part of the text
    open_end = complete(server, structured_outputs={"regex": "a+"}, n=8, max_tokens=200)["choices"]
    assert all(set(c["text"]) == {"a"} for c in open_end)
    stopped = complete(server, structured_outputs={"regex": "abcabc"}, stop=["ca"])["choices"][0]
    assert stopped["text"] == "ab" and stopped["finish_reason"] == "stop"
    same = [complete(server, structured_outputs={"json": PERSON}, seed=7, temperature=1, max_tokens=200)
            for _ in range(2)]
    assert same[0]["choices"][0]["text"] == same[1]["choices"][0]["text"]
    plain = complete(server, structured_outputs={"regex": "[a-z]+"}, logprobs=2, max_tokens=4, temperature=0)
    told = plain["choices"][0]["logprobs"]
    assert all(p <= 0 for p in told["token_logprobs"]) and len(told["tokens"]) <= 4


def test_tokens(server):
    """allowed_token_ids and bad_words."""
    ids = complete(server, prompt="abc 12", max_tokens=1, return_token_ids=True)["choices"][0]["prompt_token_ids"]
    answer = complete(server, allowed_token_ids=ids, return_token_ids=True, n=4, temperature=2, ignore_eos=True)
    for choice in answer["choices"]:
        assert set(choice["token_ids"]) <= set(ids) and len(choice["token_ids"]) == 60
    free = complete(server, temperature=0, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]

    def encoded(text):
        return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[2]["tokens"]
    # a token that is a word of its own, perhaps behind a blank
    for token in free:
        word = server.post("/detokenize", {"tokens": [token]})[2]["prompt"].strip()
        if word and [token] in (encoded(word), encoded(" " + word)) and len(encoded(word)) == 1:
            break
    else:
        raise AssertionError(free)
    without = complete(server, temperature=0, ignore_eos=True, return_token_ids=True, bad_words=[word])
    assert token not in without["choices"][0]["token_ids"] and len(without["choices"][0]["token_ids"]) == 60
    # one token behind a blank, several without it: the word is not generated, with and without a blank in it
    for token in free:
        text = server.post("/detokenize", {"tokens": [token]})[2]["prompt"]
        if re.fullmatch(r" \w+", text) and encoded(text) == [token] and len(encoded(text.strip())) > 1:
            break
    else:
        raise AssertionError(free)
    for word in (text, text.strip(), " " + text):
        without = complete(server, temperature=0, ignore_eos=True, return_token_ids=True, bad_words=["zq", word])
        assert token not in without["choices"][0]["token_ids"], (word, without)
    spelled = complete(server, structured_outputs={"choice": ["a", "z"]}, bad_words=["a"], n=6, temperature=2)
    assert {choice["text"] for choice in spelled["choices"]} == {"z"}
    both = complete(server, structured_outputs={"regex": "[0-9a-f]{8}"}, allowed_token_ids=ids + [ids[0]], n=2)
    assert all(re.fullmatch("[abc12]{8}", choice["text"]) for choice in both["choices"]), both


def test_structures_refused(server):
    """What cannot be honoured is a 400 that names the field and the keyword."""
    for field, value, word in (
            ("structured_outputs", {"json": {"type": "array", "contains": {}}}, "contains"),
            ("structured_outputs", {"json": PERSON, "regex": "a"}, "exclude"),
            ("structured_outputs", {"structural_tag": "x"}, "structural_tag"),
            ("structured_outputs", {"regex": "(?<=a)"}, "look-behind"),
            ("structured_outputs", {"choice": []}, "choice"),
            ("structured_outputs", {"grammar": "root ::= x"}, "not defined"),
            ("structured_outputs", {"grammar": "root ::= \"a\" root"}, "no text"),
            ("structured_outputs", {"regex": "(?:[ab]*a[ab]{40})"}, "too large"),
            ("response_format", {"type": "xml"}, "json_schema"), ("response_format", {"type": "json_schema"}, "schema"),
            ("guided_json", "{", "JSON schema"), ("allowed_token_ids", [], "1 to"),
            ("allowed_token_ids", [-1], "item 0"), ("bad_words", [""], "item 0"), ("bad_words", "a", "list"),
            ("guided_decoding", {"regex": "a"}, "structured_outputs")):
        status, _, answer = server.post("/v1/completions", {**ASK, field: value})
        assert status == 400 and answer["error"]["param"] == field, (field, value, answer)
        assert word in answer["error"]["message"], (field, value, answer)
    status, _, answer = server.post("/v1/completions", {
        **ASK, "structured_outputs": {"regex": "a"}, "bad_words": ["a"]})
    assert status == 400 and "no token" in answer["error"]["message"], answer


def test_structures_at_once(server):
    """Constrained and free requests side by side, many of them."""
    def one(i):
        if i % 3 == 0:
            return complete(server, seed=i, max_tokens=30)
        if i % 3 == 1:
            check_person(complete(server, guided_json=PERSON, seed=i, max_tokens=200)["choices"][0]["text"])
            return None
        text = complete(server, guided_regex=f"{i}[a-z]{{4}}", seed=i)["choices"][0]["text"]
        assert re.fullmatch(f"{i}[a-z]{{4}}", text)
        return None
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(36)))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares chat templates rendered by text/jinja with jinja2, set up as transformers does it.

    dev/check_templates.py PROGRAM PATH...       compares every template under the paths
    dev/check_templates.py --time PROGRAM PATH...  times both on a conversation of 20 messages
    dev/check_templates.py --messages PROGRAM PATH...  what a server makes of messages
    dev/check_templates.py --snippets PROGRAM     compares tests/data/jinja/snippets.json
    dev/check_templates.py --write               writes tests/data/jinja/cases.json

PROGRAM is the build's tests/text/jinja_render.  A path is a .jinja file, a .json file with a
chat_template, a .jsonl file of objects whose values or keys are templates, or a folder of these.
With --messages PROGRAM is tests/text/chat_render: each word that the conversations of MESSAGES have
must be in the text, or the message is refused by name; what jinja2 shows whole is not refused.
Else each template is rendered for every conversation below, with and without a generation prompt. Where
jinja2 raises an error, an error is expected. Exit status 77: jinja2 is not installed.
"""
import copy
import datetime
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("jinja2 is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOW = 1767225600 + 86400 * 40  # some fixed day
os.environ["TZ"] = "UTC"
time.tzset()


class Generation(jinja2.ext.Extension):
    """The tag `generation`, which renders its body."""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW).strftime(form)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()
ODD = "naïve 日本語 🦙 \u00a0x\u2028y \"quoted\" 'single' \\ back <b>&amp;</b> \t tab\n\nend \u0007 é"
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"place\" <now>.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A town, é."},
        "days": {"type": "integer", "description": "How many", "default": 3},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "more": {"type": "array", "items": {"type": "object", "properties": {
            "a": {"type": ["string", "null"]}, "b": {"type": "number", "minimum": 0.5}},
            "required": ["a"]}}},
        "required": ["place"]}, "return": {"type": "string"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.",
                                          "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, ident="call12345", **more):
    return {"id": ident, "type": "function",
            "function": {"name": name, "arguments": arguments}, **more}


ASKED = [{"role": "user", "content": "How is the weather in Köln?"},
         {"role": "assistant", "content": "", "tool_calls": [
             call("get_weather", {"place": "Köln", "days": 2, "deep": {"x": [1, 2.5, None, True]}})]},
         {"role": "tool", "tool_call_id": "call12345", "name": "get_weather",
          "content": "{\"sky\": \"grey\", \"t\": 7.5}"}]
TALK = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And now?"}]
CONVERSATIONS = {
    "one": {"messages": [{"role": "user", "content": "Hi"}]},
    "system": {"messages": TALK[:2]},
    "turns": {"messages": TALK + [{"role": "assistant", "content": "Now."},
                                  {"role": "user", "content": "  spaces  \n"}]},
    "ends with assistant": {"messages": TALK[:3]},
    "odd text": {"messages": [{"role": "system", "content": ODD}, {"role": "user", "content": ODD},
                              {"role": "assistant", "content": ODD},
                              {"role": "user", "content": "\n x \n"}]},
    "parts": {"messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "text", "text": "One."},
                                     {"type": "text", "text": " Two é."}]}]},
    "tools": {"messages": TALK[:2], "tools": [WEATHER, CLOCK]},
    "tool result": {"messages": ASKED, "tools": [WEATHER]},
    "tool answer": {"messages": TALK[:1] + ASKED + [
        {"role": "assistant", "content": "Grey, 7.5 degrees."},
        {"role": "user", "content": "Thanks"}], "tools": [WEATHER, CLOCK]},
    "two calls": {"messages": ASKED[:1] + [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            call("get_weather", {"place": "A"}, "aaaaaaaa1"), call("clock", {}, "bbbbbbbb2")]},
        {"role": "tool", "tool_call_id": "aaaaaaaa1", "name": "get_weather", "content": "grey"},
        {"role": "tool", "tool_call_id": "bbbbbbbb2", "name": "clock", "content": "12:00"}],
        "tools": [WEATHER, CLOCK]},
    "calls as text": {"messages": ASKED[:1] + [
        {"role": "assistant", "content": None, "tool_calls": [
            call("get_weather", "{\"place\": \"Köln\"}")]},
        {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": "x"}],
        "tools": [WEATHER]},
    "reasoning": {"messages": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4", "reasoning_content": "add"},
        {"role": "user", "content": "3+3?"},
        {"role": "assistant", "content": "6", "reasoning_content": "add again",
         "thinking": "t", "reasoning": "r"},
        {"role": "user", "content": "Sure?"}]},
    "reasoning and call": {"messages": ASKED[:1] + [
        {**ASKED[1], "content": "I look.", "reasoning_content": "which tool?"}, ASKED[2]],
        "tools": [WEATHER]},
    "thinking on": {"messages": TALK, "enable_thinking": True, "thinking": True},
    "thinking off": {"messages": TALK, "enable_thinking": False, "thinking": False,
                     "reasoning_effort": "high"},
    "documents": {"messages": TALK, "documents": [
        {"title": "A", "text": "First.", "doc_id": 1}, {"title": "B", "text": "Second."}]},
    "developer": {"messages": [{"role": "developer", "content": "Rules."}] + TALK[1:]},
    "two users": {"messages": [TALK[1], TALK[3]]},
    "names": {"messages": [{"role": "user", "content": "Hi", "name": "Ann"},
                           {"role": "assistant", "content": "Yo", "name": "Bot"},
                           {"role": "user", "content": ""}]},
    "nothing": {"messages": []},
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def variables(conversation, prompt):
    return {"tools": None, "documents": None, **SPECIAL, "add_generation_prompt": prompt,
            **conversation}


@functools.cache
def compiled(source):
    return ENV.from_string(source)


def expected(source, vars_):
    """("refused" | "error" | "text", what)"""
    try:
        template = compiled(source)
    except Exception as error:
        return "refused", str(error)
    try:
        return "text", template.render(**copy.deepcopy(vars_))
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def templates_of(path):
    """Pairs of a name and a template."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in (".jinja", ".json", ".jsonl"):
                yield from templates_of(file)
    elif path.suffix == ".jinja":
        yield path.name, path.read_text()
    elif path.suffix == ".jsonl":
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for key, value in json.loads(line).items():
                for text in (key, value):
                    if isinstance(text, str) and "{%" in text:
                        yield f"{path.name}:{number}", text
    elif path.suffix == ".json":
        found = json.loads(path.read_text())
        found = found.get("chat_template") if isinstance(found, dict) else None
        if isinstance(found, str):
            yield f"{path.parent.name}/{path.name}", found
        for each in found if isinstance(found, list) else []:
            yield f"{path.parent.name}/{path.name}:{each['name']}", each["template"]


def rendered(program, asked):
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    done = subprocess.run([program], input=lines, text=True, capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def compare(program, paths):
    paths = [path for path in paths if pathlib.Path(path).exists()]
    if not paths:
        print("there are no templates to compare")
        return 77
    asked, wanted, templates = [], [], set()
    for path in paths:
        for name, source in templates_of(pathlib.Path(path)):
            templates.add(source)
            for title, conversation in CONVERSATIONS.items():
                for prompt in (True, False):
                    vars_ = variables(conversation, prompt)
                    asked.append({"name": name, "template": source, "vars": vars_, "now": NOW})
                    wanted.append((name, title, prompt, expected(source, vars_)))
    wrong = texts = 0
    for (name, title, prompt, (kind, what)), got in zip(wanted, rendered(program, asked)):
        texts += kind == "text"
        if kind == "text" and got.get("text") == what or kind != "text" and "text" not in got:
            continue
        wrong += 1
        if wrong <= 20:
            print(f"{name}, {title}, prompt={prompt}:\n  wanted {kind} {what[-600:]!r}\n"
                  f"  got    {str(got)[-600:]}")
    print(f"{len(templates)} templates, {len(asked)} renderings, {texts} of them texts, "
          f"{wrong} differ")
    return 1 if wrong or not asked else 0


# ---- messages: nothing that is said is lost ----

def said(role, content, **more):
    return {"role": role, "content": content, **more}


def texts(*words):
    return [{"type": "text", "text": word} for word in words]


SYSTEM, RULES = said("system", "Be sword1."), said("developer", "Be sword2.")
QUESTION, ANSWER = said("user", "What uword1 is\nthere \"quoted\"?"), said("assistant", "An aword1.")
NEXT = said("user", "And uword2 now?")
CALLED = [call("get_weather", "{\"place\": \"K\\u00f6ln pword1\", \"days\": 2}")]
RESULT = said("tool", "{\"sky\": \"rword1 grey\",\n \"t\": 7.5}", tool_call_id="call12345")
MESSAGES = {
    "turns": [QUESTION, ANSWER, NEXT],
    "system": [SYSTEM, QUESTION],
    "developer": [RULES, QUESTION, ANSWER, NEXT],
    "two systems": [SYSTEM, said("system", "Be sword2."), QUESTION],
    "system and developer": [SYSTEM, RULES, QUESTION],
    "a system between turns": [SYSTEM, QUESTION, ANSWER, said("system", "Be sword2."), NEXT],
    "a developer between turns": [QUESTION, ANSWER, RULES, NEXT],
    "a system at the end": [QUESTION, ANSWER, NEXT, said("system", "Be sword2.")],
    "parts": [said("system", texts("sword1", "sword2")), said("user", texts("uword1", "uword3")),
              said("assistant", texts("aword1", "aword2")), NEXT],
    "empty": [said("user", ""), said("assistant", []), said("user", None), {"role": "assistant"},
              said("user", "  \n"), said("assistant", "\t"), NEXT],
    "null keys": [dict(QUESTION, name=None, audio=None), dict(ANSWER, refusal=None, tool_calls=None,
                                                            function_call=None), NEXT],
    "odd blanks": [said("user", "\u00a0uword1\u3000\x1f\r\n"), said("assistant", "```\n\n\naword1  \n```\n\n"),
                   NEXT],
    "NUL": [said("user", "uword1\0uword2")],
    "reasoning": [QUESTION, dict(ANSWER, reasoning_content="thought"), NEXT],
    "reasoning in the content": [QUESTION, said("assistant", "<think>\nthought\n</think>\n\naword1"), NEXT],
    "unknown role": [QUESTION, said("critic", "cword1"), NEXT],
}
CALLS = {
    "call, null": [QUESTION, said("assistant", None, tool_calls=CALLED), RESULT],
    "call, absent": [QUESTION, {"role": "assistant", "tool_calls": CALLED}, RESULT],
    "call, empty": [QUESTION, said("assistant", "", tool_calls=CALLED), RESULT],
    "call, no parts": [QUESTION, said("assistant", [], tool_calls=CALLED), RESULT],
    "call and text": [QUESTION, said("assistant", "Look, aword1.", tool_calls=CALLED), RESULT],
    "call and parts": [QUESTION, said("assistant", texts("aword1", "aword2"), tool_calls=CALLED), RESULT],
    "call and reasoning": [SYSTEM, QUESTION, said("assistant", None, tool_calls=CALLED, reasoning_content="thought"),
                           RESULT, ANSWER, NEXT],
    "function": [QUESTION, said("assistant", None, function_call=CALLED[0]["function"]),
                 said("function", "rword1", name="get_weather")],
    "parts of a tool": [QUESTION, said("assistant", None, tool_calls=CALLED),
                        said("tool", texts("rword1", "rword2"), tool_call_id="call12345")],
    "odd arguments": [QUESTION, said("assistant", None, tool_calls=[call("get_weather", json.dumps(
        {"place": "a \"pword1\" \n\\ 'c' é <d> e", "days": 1.5, "more": {"x": [1, None, True, "pword2"]}}))]),
        RESULT],
}
BEGUN = {
    "begun": [QUESTION, said("assistant", "i 1, 2,")],
    "begun, parts": [QUESTION, said("assistant", texts("One", "aword2"))],
    "begun, like a mark": [QUESTION, said("assistant", "<|im_end|>i")],
    "begun, empty": [QUESTION, said("assistant", "")],
    "begun, blanks": [QUESTION, said("assistant", "```json\n{\"a\": ")],
}


def words_of(conversation):
    return set(re.findall(r"\b[a-z]word\d\b", json.dumps(conversation, ensure_ascii=False)))


def shown_by_jinja2(source, messages, tools):
    """Whether the template shows every word when it gets the messages as they are."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for each in message.get("tool_calls") or []:
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    kind, text = expected(source, {**variables({"messages": messages, "tools": tools}, True)})
    names = [tool["function"]["name"] for tool in tools or []]
    return kind == "text" and all(word in text for word in [*words_of(messages), *names])


def wrong_with(source, messages, tools, continues, got):
    """What is wrong with an answer; None: nothing."""
    if "text" not in got:
        if not got["param"]:
            return "refused without a name: " + got["error"]
        roles = {message["role"] for message in messages}
        if continues or roles - {"system", "user", "assistant", "tool"}:
            return None  # a role that a template shows without knowing it may be refused
        if "system" in roles and not shown_by_jinja2(source, [SYSTEM, QUESTION], None):
            return None  # and so may a system message, where it would be another role's turn
        return "refused: " + got["error"] if shown_by_jinja2(source, messages, tools) else None
    lost = [word for word in words_of(messages) if word not in got["text"]]
    if lost:
        return "lost: " + " ".join(lost)
    if "None" in got["text"] and "None" not in source:
        return "has the word None: " + got["text"]
    content = messages[-1].get("content")
    if isinstance(content, list) and content:
        content = content[-1]["text"]
    if continues and not got["text"].endswith((content, content.rstrip())):
        return "not continued: " + got["text"][-60:]
    return None


def check_messages(program, paths):
    paths = [path for path in paths if pathlib.Path(path).exists()]
    if not paths:
        print("there are no templates")
        return 77
    asked, about, wrong = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
        sources = dict.fromkeys(source for path in paths for _, source in templates_of(pathlib.Path(path)))
        for i, source in enumerate(sources):
            file = folder / f"{i}.jinja"
            file.write_text(source)
            for group, tools, continues in ((MESSAGES, None, False), (CALLS, [WEATHER, CLOCK], False),
                                            (BEGUN, None, True)):
                for title, messages in group.items():
                    asked.append({"template": str(file), "messages": messages, "tools": tools, "continues": continues})
                    about.append((source, title))
        done = subprocess.run([program, str(folder)], input="".join(json.dumps(one) + "\n" for one in asked),
                              text=True, capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(asked), done.stderr
    for one, (source, title), got in zip(asked, about, answers):
        what = wrong_with(source, one["messages"], one["tools"], one["continues"], got)
        if what:
            wrong += 1
            print(f"{source[:60]!r}, {title}: {what[:300]}")
    texts_ = sum("text" in got for got in answers)
    print(f"{len(sources)} templates, {len(asked)} conversations, {texts_} of them texts, {wrong} wrong")
    return 1 if wrong or not texts_ else 0


FOLDER = ROOT / "tests/data/jinja"


def write():
    """tests/data/jinja/cases.json: what jinja2 makes of the templates and snippets there. A text
    is null where jinja2 raises an error."""
    def text(source, vars_):
        kind, what = expected(source, vars_)
        return what if kind == "text" else None

    own = json.loads((FOLDER / "snippets.json").read_text())
    conversations = {title: variables(c, True) for title, c in CONVERSATIONS.items()}
    files = {file.name: {title: text(file.read_text(), vars_)
                         for title, vars_ in conversations.items()}
             for file in sorted(FOLDER.glob("*.jinja"))}
    out = {"now": NOW, "vars": own["vars"], "conversations": conversations, "files": files,
           "snippets": [[source, text(source, own["vars"])] for source in own["templates"]]}
    (FOLDER / "cases.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")
    return 0


def check(program):
    """Compares tests/data/jinja/snippets.json directly."""
    own = json.loads((FOLDER / "snippets.json").read_text())
    asked = [{"name": "snippet", "template": source, "vars": own["vars"], "now": NOW}
             for source in own["templates"]]
    wrong = 0
    for one, got in zip(asked, rendered(program, asked)):
        kind, what = expected(one["template"], own["vars"])
        if kind == "text" and got.get("text") == what or kind != "text" and "text" not in got:
            continue
        wrong += 1
        print(f"{one['template']!r}\n  wanted {kind} {what!r}\n  got    {got}")
    print(f"{len(asked)} snippets, {wrong} differ")
    return 1 if wrong else 0


def measure(program, paths):
    """Microseconds of a rendering of 20 messages, median of 15 turns, both programs in turns."""
    messages = [{"role": "system", "content": "You are terse."}]
    for i in range(9):
        messages += [{"role": "user", "content": f"Question {i}: how does it go on, and why?"},
                     {"role": "assistant", "content": "It goes on like this. " * 20}]
    messages.append({"role": "user", "content": "And now?"})
    for path in paths:
        for name, source in templates_of(pathlib.Path(path)):
            vars_ = variables({"messages": messages}, True)
            if expected(source, vars_)[0] != "text":
                continue
            ours, theirs = [], []
            for _ in range(15):
                [got] = rendered(program, [{"name": name, "template": source, "vars": vars_,
                                            "now": NOW, "repeat": 50}])
                ours.append(got["ns"] / 1000)
                start = time.perf_counter()
                for _ in range(50):
                    compiled(source).render(**vars_)
                theirs.append((time.perf_counter() - start) / 50 * 1e6)
            ours, theirs = statistics.median(ours), statistics.median(theirs)
            print(f"{name:40} {ours:8.1f} us   jinja2 {theirs:8.1f} us   {theirs / ours:5.1f} x")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--time":
        sys.exit(measure(sys.argv[2], sys.argv[3:]))
    if len(sys.argv) > 3 and sys.argv[1] == "--messages":
        sys.exit(check_messages(sys.argv[2], sys.argv[3:]))
    if len(sys.argv) == 3 and sys.argv[1] == "--snippets":
        sys.exit(check(sys.argv[2]))
    if sys.argv[1:] == ["--write"]:
        sys.exit(write())
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(compare(sys.argv[1], sys.argv[2:]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that this project did not write, unchanged, on a real server with the bundled model.

    dev/judges.py HZPSERVE [JUDGE ...]    runs them and rewrites the table in docs/COMPATIBILITY.md

They are installed into .judges (a virtual environment of its own).  A judge that cannot be installed is
listed so.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACE = pathlib.Path(os.environ.get("JUDGES_VENV", ROOT / ".judges"))
PYTHON = PLACE / "bin" / "python"
DOCUMENT = ROOT / "docs" / "COMPATIBILITY.md"
TABLE = re.compile(r"(<!-- made by dev/judges.py -->\n).*?(<!-- end -->)", re.S)

TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}assistant:"""

OPENAI = """
    import openai
    c = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    ask = [{"role": "user", "content": "Where does Zorin live?"}]
    whole = c.chat.completions.create(model=MODEL, messages=ask, max_tokens=12, temperature=0)
    parts = c.chat.completions.create(model=MODEL, messages=ask, max_tokens=12, temperature=0, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in parts) == whole.choices[0].message.content
    assert c.completions.create(model=MODEL, prompt="Zorin", max_tokens=4).choices[0].text
    assert len(c.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
    made = c.responses.create(model=MODEL, input=ask[0]["content"], max_output_tokens=12, temperature=0)
    assert made.output_text == whole.choices[0].message.content
    with c.responses.stream(model=MODEL, input="Hello", max_output_tokens=8) as stream:
        for event in stream:
            pass
    """
ANTHROPIC = """
    import anthropic
    c = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    ask = dict(model=MODEL, max_tokens=12, extra_body={"temperature": 0}, system="Be brief.",
               messages=[{"role": "user", "content": "Where does Zorin live?"}])
    whole = c.messages.create(**ask)
    with c.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().stop_reason == whole.stop_reason
    assert text == whole.content[0].text and text
    """
LITELLM = """
    import litellm
    at = dict(api_base=URL + "/v1", api_key="none")
    ask = [{"role": "user", "content": "Where does Zorin live?"}]
    whole = litellm.completion(model="hosted_vllm/" + MODEL, messages=ask, max_tokens=12, temperature=0, **at)
    parts = litellm.completion(model="hosted_vllm/" + MODEL, messages=ask, max_tokens=12, temperature=0,
                               stream=True, **at)
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    assert text == whole.choices[0].message.content and text
    assert litellm.embedding(model="hosted_vllm/" + MODEL, input=["a"], **at).data
    """
LANGCHAIN = """
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    at = dict(base_url=URL + "/v1", api_key="none")
    chat = ChatOpenAI(model=MODEL, max_tokens=12, temperature=0, **at)
    whole = chat.invoke("Where does Zorin live?").content
    assert "".join(p.content for p in chat.stream("Where does Zorin live?")) == whole and whole
    both = chat.batch(["Where does Zorin live?", "Hello"])
    assert both[0].content == whole and len(both) == 2
    bound = chat.bind_tools([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
                                                                                       "properties": {}}}}])
    assert bound.invoke("Hello")
    vectors = OpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False, **at)
    assert len(vectors.embed_documents(["a", "b"])) == 2 and vectors.embed_query("a")
    """
# What `vllm bench serve` sends (backends openai and openai-chat, --ignore-eos, --logprobs).
VLLM_BENCH = """
    import json, urllib.request
    def ask(path, body):
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), {
            "Content-Type": "application/json", "Authorization": "Bearer none"})
        with urllib.request.urlopen(request) as answer:
            return [json.loads(line[6:]) for line in answer.read().decode().split("\\n")
                    if line.startswith("data: ") and line != "data: [DONE]"]
    common = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True},
              "temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    events = ask("/v1/completions", {**common, "prompt": "Zorin lives", "max_tokens": 16, "logprobs": None})
    assert events[-1]["usage"]["completion_tokens"] == 16 and not events[-1]["choices"]
    assert all(e["choices"][0]["text"] is not None for e in events[:-1])
    events = ask("/v1/chat/completions", {**common, "max_completion_tokens": 16, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Zorin lives"}]}]})
    assert events[-1]["usage"]["completion_tokens"] == 16
    """
LLM = ["llm", "-m", "hzp", "-o", "max_tokens", "12", "-o", "temperature", "0", "Where does Zorin live?"]
LM_EVAL = ["lm_eval", "--tasks", "words", "--limit", "8", "--include_path", "TASKS", "--model"]
TASK = """
task: words
dataset_path: json
dataset_kwargs:
  data_files: {test: DATA}
test_split: test
output_type: KIND
doc_to_text: "{{question}}"
doc_to_target: "WANTED"
CHOICES
metric_list:
  - metric: METRIC
"""


def script(text):
    def run(server, there):
        head = f"URL = {server['url']!r}\nMODEL = {server['model']!r}\n"
        file = there / "judge.py"
        file.write_text(head + textwrap.dedent(text))
        return [str(PYTHON), str(file)], {}
    return run


def run_llm(server, there):
    (there / "extra-openai-models.yaml").write_text(
        f"- model_id: hzp\n  model_name: {server['model']}\n  api_base: {server['url']}/v1\n"
        "  api_key_name: none\n")
    (there / "keys.json").write_text('{"none": "none"}')
    return [str(PLACE / "bin" / LLM[0])] + LLM[1:], {"LLM_USER_PATH": str(there)}


def run_schemathesis(server, there):
    return [str(PLACE / "bin" / "schemathesis"), "run", server["url"] + "/openapi.json", "--max-examples",
            "40", "--seed", "7", "--exclude-checks",
            "positive_data_acceptance,missing_required_header", "--no-color"], {}


def run_lm_eval(chat):
    def run(server, there):
        data = there / "data.jsonl"
        data.write_text("\n".join(json.dumps({"question": f"Question {i}: Zorin lives in", "answer": i % 2})
                                  for i in range(8)) + "\n")
        task = TASK.replace("DATA", str(data))
        task = task.replace("KIND", "generate_until" if chat else "multiple_choice")
        task = task.replace("WANTED", " Belport" if chat else "{{answer}}")
        task = task.replace("CHOICES", "generation_kwargs: {until: [\"\\n\"], max_gen_toks: 8}" if chat
                            else "doc_to_choice: [\" Belport\", \" Tarn\"]")
        (there / "words.yaml").write_text(task.replace("METRIC", "exact_match" if chat else "acc"))
        kind = "local-chat-completions" if chat else "local-completions"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        args = f"model={server['model']},base_url={server['url']}{path},num_concurrent=2,max_retries=1"
        args += ",tokenizer_backend=" + ("None" if chat else "remote")
        command = [str(PLACE / "bin" / LM_EVAL[0])] + [str(there) if a == "TASKS" else a for a in LM_EVAL[1:]]
        return command + [kind, "--model_args", args] + (["--apply_chat_template"] if chat else []), \
            {"HF_DATASETS_OFFLINE": "0", "OPENAI_API_KEY": "none"}
    return run


# name, package, what it does, how it is run
JUDGES = [
    ("openai", "openai", "chat, completions, embeddings, responses; whole and streamed", script(OPENAI)),
    ("anthropic", "anthropic", "messages, whole and streamed", script(ANTHROPIC)),
    ("litellm", "litellm", "`hosted_vllm/`: chat, streamed, embeddings", script(LITELLM)),
    ("langchain-openai", "langchain-openai", "`ChatOpenAI`, tools bound, streamed; embeddings",
     script(LANGCHAIN)),
    ("llm", "llm", "a prompt to a model of extra-openai-models.yaml", run_llm),
    ("lm-eval", "lm-eval[api]", "`local-completions`, `tokenizer_backend=remote`: multiple choice by echo "
     "and logprobs", run_lm_eval(False)),
    ("lm-eval chat", "lm-eval[api]", "`local-chat-completions`: generate_until", run_lm_eval(True)),
    ("vllm bench serve", None, "its request bodies, `openai` and `openai-chat`", script(VLLM_BENCH)),
    ("schemathesis", "schemathesis", "every route of /openapi.json, 40 examples each, all checks but "
     "positive_data_acceptance (fields whose sum exceeds the context are a 400) and missing_required_header",
     run_schemathesis),
]


def install(package):
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True)
    done = subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", package])
    return done.returncode == 0


def version(package):
    name = package.split("[")[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True).stdout.strip()


def start(program, state):
    template = state / "t.jinja"
    template.write_text(TEMPLATE)
    process = subprocess.Popen(
        [program, "serve", str(ROOT / "models" / "world"), "--port", "0", "--no-train", "--state",
         str(state / "state"), "--chat-template", str(template)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        found = re.search(r"serves (.+) at (http://\S+)", line)
        if found:
            return process, {"model": found[1], "url": found[2].rstrip("/")}
    raise SystemExit("the server did not start")


def main():
    program, chosen = sys.argv[1], sys.argv[2:]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        process, server = start(program, pathlib.Path(folder))
        for i, (name, package, what, make) in enumerate(JUDGES):
            if chosen and name not in chosen:
                continue
            if package and not install(package):
                rows.append((name, "", what, "could not be installed"))
                continue
            there = pathlib.Path(folder) / f"judge{i}"
            there.mkdir()
            command, env = make(server, there)
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, cwd=there)
            result = "runs" if done.returncode == 0 else "fails"
            if done.returncode:
                print(done.stdout[-6000:], done.stderr[-3000:], sep="\n")
            rows.append((name, version(package) if package else "", what, result))
            print(*rows[-1], sep=" | ", flush=True)
        process.terminate()
        process.wait()
    if not chosen:
        text = "| program | version | what it does | |\n|---|---|---|---|\n" + "".join(
            "| " + " | ".join(row) + " |\n" for row in rows)
        DOCUMENT.write_text(TABLE.sub(lambda m: m[1] + text + m[2], DOCUMENT.read_text()))
    return any(row[3] != "runs" for row in rows)


if __name__ == "__main__":
    sys.exit(main())

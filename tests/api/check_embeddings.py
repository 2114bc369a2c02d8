# SPDX-License-Identifier: Apache-2.0
"""POST /v1/embeddings against the model's own logits: tests for a server that another program starts
(test_api.py)."""
import array
import json
import math
import pathlib
import struct
import sys


def tensor(model, name):
    """A BF16 or F32 matrix of a safetensors file, as rows."""
    with open(model / "model.safetensors", "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        what = json.loads(file.read(size))[name]
        begin, end = what["data_offsets"]
        file.seek(8 + size + begin)
        data = file.read(end - begin)
    if what["dtype"] == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    values = array.array("f", data)
    rows, cols = what["shape"]
    return [values[r * cols:(r + 1) * cols] for r in range(rows)]


def embed(server, **fields):
    status, _, answer = server.post("/v1/embeddings", fields)
    assert status == 200, answer
    assert [e["index"] for e in answer["data"]] == list(range(len(answer["data"])))
    assert all(e["hzpserve"]["weights_version"] for e in answer["data"])
    return [e["embedding"] for e in answer["data"]]


def close(a, b, by=1e-5):
    return all(abs(x - y) <= by * max(1, abs(y)) for x, y in zip(a, b)) and len(a) == len(b)


def test_embeddings_are_hidden_states(server):
    """The last one times the head gives the next token's logits; the mean is that of all beginnings."""
    model = pathlib.Path(sys.argv[2])
    config = json.loads((model / "config.json").read_text())
    if not (model / "model.safetensors").exists() or not config.get("tie_word_embeddings"):
        return
    text = "Zorin lives in"
    told = server.complete(prompt=text, max_tokens=1, logprobs=3, return_token_ids=True).choices[0]
    ids = told.prompt_token_ids
    last, = embed(server, input=text, pooling="last", normalize=False)
    assert len(last) == config["hidden_size"]
    logits = [sum(a * b for a, b in zip(row, last)) for row in tensor(model, "model.embed_tokens.weight")]
    top = max(logits)
    norm = top + math.log(sum(math.exp(x - top) for x in logits))
    assert logits.index(top) == told.token_ids[0]
    assert abs(top - norm - told.logprobs.token_logprobs[0]) < 1e-3
    every = [embed(server, input=ids[:n + 1], pooling="last", normalize=False)[0] for n in range(len(ids))]
    mean = [sum(column) / len(ids) for column in zip(*every)]
    assert close(embed(server, input=ids, normalize=False)[0], mean, 1e-4)


def test_embeddings(server):
    """Forms of inputs and answers; longer inputs than a step; others beside it change nothing."""
    texts = ["Zorin lives in Belport.", "A hatter.", "word " * (server.context // 3)]
    alone = [embed(server, input=text)[0] for text in texts]
    assert all(close(a, b) for a, b in zip(embed(server, input=texts), alone))
    for vector in alone:
        assert abs(math.hypot(*vector) - 1) < 1e-5
    ids = [server.post("/tokenize", {"prompt": text})[2]["tokens"] for text in texts]
    assert all(close(a, b) for a, b in zip(embed(server, input=ids), alone))
    assert close(embed(server, input=ids[0])[0], alone[0])
    assert not close(embed(server, input=texts[0], pooling="last")[0], alone[0], 1e-2)
    client = server.client.embeddings.create(model=server.model, input=texts)  # asks for base64
    assert all(close(e.embedding, b) for e, b in zip(client.data, alone))
    assert client.usage.prompt_tokens == sum(map(len, ids))
    nothing = {"input": "", "add_special_tokens": False}  # with them it may be one token
    for fields, param in (({"input": []}, "input"), (nothing, "input"), ({"input": 5}, "input"),
                          ({"input": [[1], [-1]]}, "input"), ({"input": [1, 10 ** 20]}, "input[1]"),
                          ({"input": [1.5]}, "input"), ({"dimensions": 8}, "dimensions"),
                          ({"pooling": "max"}, "pooling"), ({"encoding_format": "x"}, "encoding_format"),
                          ({"input": "word " * server.context * 2}, "input"), ({"stream": True}, "stream")):
        status, _, answer = server.post("/v1/embeddings", {"input": "a", **fields})
        assert status == 400 and answer["error"]["param"] == param, (fields, answer)
        assert not answer["error"]["message"].startswith("prompt"), answer
    assert embed(server, input="word " * server.context * 2, truncate_prompt_tokens=5)

# SPDX-License-Identifier: Apache-2.0
"""Which choices an answer has, and what they share: tests for a server that another program starts
(test_api.py)."""
PROMPT = "Once upon a time"


def test_best_of(server):
    """The likeliest of several choices, each as it would be with n."""
    asks = {"prompt": [PROMPT, "Zorin"], "temperature": 1, "seed": 3, "max_tokens": 12, "logprobs": 0}
    every = server.complete(n=6, **asks).choices
    best = server.complete(n=2, best_of=6, **asks)
    assert [c.index for c in best.choices] == [0, 1, 2, 3]
    assert best.usage.completion_tokens == 2 * 6 * 12
    for prompt in (0, 1):
        def mean(choice):
            return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
        wanted = sorted(every[prompt * 6:prompt * 6 + 6], key=mean, reverse=True)[:2]
        assert [c.text for c in best.choices[prompt * 2:prompt * 2 + 2]] == [c.text for c in wanted]


def test_prompt_logprobs(server):
    """vLLM's form has the numbers of echo with logprobs."""
    ids = server.complete(max_tokens=1, return_token_ids=True).choices[0].prompt_token_ids
    told = server.complete(max_tokens=2, prompt_logprobs=2, logprobs=0).choices[0]
    same = server.complete(max_tokens=0, echo=True, logprobs=2).choices[0].logprobs
    assert told.prompt_logprobs[0] is None and len(told.prompt_logprobs) == len(ids)
    assert all(len(tops) == 1 for tops in told.logprobs.top_logprobs)
    for token, entry, logprob, tops in list(zip(ids, told.prompt_logprobs, same.token_logprobs,
                                                same.top_logprobs))[1:]:
        own = entry[str(token)]
        assert own["logprob"] == logprob and own["rank"] >= 1
        likeliest = [e for e in entry.values() if e["rank"] <= 2]
        assert len(likeliest) == 2 and 2 <= len(entry) <= 3, entry
        assert max(e["logprob"] for e in entry.values()) == max(tops.values())


def test_common_beginnings(server):
    """What n choices, and several prompts, have in common is computed once."""
    filler = " ".join(str(n) for n in range(90))
    base = server.metric("vllm:prefix_cache_hits_total")
    prompts = server.metric("vllm:prefix_cache_queries_total")
    answer = server.complete(prompt=[filler + " one", filler + " two"], n=4, max_tokens=1)
    hits = server.metric("vllm:prefix_cache_hits_total") - base
    asked = server.metric("vllm:prefix_cache_queries_total") - prompts
    assert asked == 4 * answer.usage.prompt_tokens
    # seven of the eight choices find all whole pages of what they have in common
    assert hits >= 0.6 * 7 / 8 * asked, (hits, asked)


def test_tokens_that_are_no_character(server):
    """Each has a key of its own among the likeliest, and its own log-probability there."""
    status, _, told = server.post("/tokenize", {"prompt": "\U0001f600", "add_special_tokens": False})
    halves = sorted(set(told["tokens"][-4:]))  # the bytes of the character
    assert status == 200 and len(halves) == 4, told
    status, _, answer = server.post("/v1/completions", {
        "prompt": halves, "max_tokens": 4, "logprobs": 20, "echo": True, "allowed_token_ids": halves})
    assert status == 200, answer
    said = answer["choices"][0]["logprobs"]
    assert set(said["tokens"]) == {rf"bytes:\x{byte:02x}" for byte in "\U0001f600".encode()} \
        and len(said["tokens"]) == 8, said["tokens"]
    for token, own, likeliest in list(zip(said["tokens"], said["token_logprobs"], said["top_logprobs"]))[1:]:
        assert likeliest[token] == own and 20 <= len(likeliest) <= 21, (token, own, likeliest)

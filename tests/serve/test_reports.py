#!/usr/bin/env python3
"""Reports of other engines' users (docs/traps.md, groups C, E and F) as a server shows them. The model's
weights are random and its tokens mostly single bytes, so answers are full of broken characters."""
import asyncio
import json
import math
import sys

import answers
import cases
import wire
from cases import CHAT, COMPLETION, N_VOCAB, ask, refused, said, streamed
from server import Server

SERVER = ("--max-model-len", "512", "--kv-pages", "96", "--max-num-seqs", "16", "--max-queue", "128")
PROMPT = "The quick brown fox jumps"
MESSAGES = [{"role": "user", "content": "Tell me about rivers"}]


def requests_of(body):
    return (COMPLETION, body | {"prompt": PROMPT}), (CHAT, body | {"messages": MESSAGES})


async def same_streamed(s, path, body):
    """The reply, after a look that a stream says the same in whole characters."""
    plain = await said(s, path, body)
    stream, events = await streamed(s, path, body)
    assert stream == plain, (path, body, stream, plain)
    return plain, events


def first(answer):
    return answer["choices"][0]


# ---- C ----

async def c01_whole_characters(s):
    """Streams of random bytes: no part of a character in any event (events are read as strict UTF-8)."""
    for seed in range(8):
        for path, body in requests_of({"max_tokens": 60, "seed": seed, "ignore_eos": True, "temperature": 1.5}):
            await same_streamed(s, path, body)
    ids = (await ask(s, "/tokenize", {"prompt": "\u010d\U0001f600"})).json["tokens"]
    for token in ids:
        bias = {str(token): 100}
        plain, _ = await same_streamed(s, COMPLETION, {"prompt": PROMPT, "max_tokens": 5, "logit_bias": bias,
                                                       "temperature": 0, "ignore_eos": True})
        assert "\ufffd" in first(plain)["text"] or token >= 256, plain


async def c04_limit_in_a_character(s):
    half = (await ask(s, "/tokenize", {"prompt": "\U0001f600"})).json["tokens"][0]
    for n in (1, 2, 3):
        for path, body in requests_of({"max_tokens": n, "logit_bias": {str(half): 100}, "temperature": 0,
                                       "stop": ["\U0001f600", "zz"]}):
            plain, _ = await same_streamed(s, path, body)
            assert first(plain)["end"] == "length" and first(plain)["text"] == "\ufffd" * n, plain
    c = await wire.dial(s.port)  # a client that goes in the middle of one
    await c.send(wire.post(COMPLETION, {"prompt": "a", "max_tokens": 300, "logit_bias": {str(half): 100},
                                        "stream": True, "ignore_eos": True}))
    await c.head()
    c.reset()


# ---- E ----

async def e01_stop_strings(s):
    """A stop across tokens, in the first token, of one character, longer than what is left."""
    for path, body in requests_of({"max_tokens": 60, "temperature": 0, "ignore_eos": True}):
        text = first(await said(s, path, body))["text"]
        for at, n in ((0, 1), (0, 4), (5, 1), (7, 9), (len(text) // 2, 5), (len(text) - 6, 6)):
            stop = text[at:at + n]
            if "\0" in stop:
                continue
            for stops in (stop, [stop], ["never this one", stop]):
                plain, events = await same_streamed(s, path, body | {"stop": stops})
                got = first(plain)
                assert got["end"] == "stop" and got["text"] == text[:text.index(stop)], (stop, got, text)
                assert len(events) >= 2


async def e02_held_text(s):
    """What could have become a stop string and did not is in the answer."""
    for path, body in requests_of({"max_tokens": 30, "temperature": 0, "ignore_eos": True}):
        text = first(await said(s, path, body))["text"]
        for n in (1, 3, 10):
            plain, _ = await same_streamed(s, path, body | {"stop": [text[-n:].strip("\0") + "never", "?!?!"]})
            assert first(plain)["text"] == text and first(plain)["end"] == "length", (n, plain, text)


async def e04_echo_values(s):
    """Log-probabilities of a prompt are those that its tokens had when they were generated."""
    letters = {c: (await ask(s, "/tokenize", {"prompt": c})).json["tokens"][0] for c in "abcdefghijklmnop"}
    start = (await ask(s, "/tokenize", {"prompt": PROMPT})).json["tokens"]
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 3, "logprobs": 3, "ignore_eos": True,
            "logit_bias": {str(i): 60 for i in letters.values()}}  # which log-probabilities do not show
    made = (await ask(s, COMPLETION, body)).json["choices"][0]["logprobs"]
    ids = start + [letters[t] for t in made["tokens"]]
    echo = (await ask(s, COMPLETION, {"prompt": ids, "echo": True, "logprobs": 3, "max_tokens": 0})).json
    assert echo["choices"][0]["logprobs"]["token_logprobs"][len(start):] == made["token_logprobs"], (echo, made)
    both = (await ask(s, COMPLETION, body | {"echo": True})).json["choices"][0]["logprobs"]
    assert both["token_logprobs"] == echo["choices"][0]["logprobs"]["token_logprobs"]


async def e04_echo_shapes(s):
    """Lists of one length for texts, ids and several of them, each as if it were alone."""
    ids = [9, 8, 7, 6]
    for prompt in ("The cat sat", ids, ["one", "two three", "4", PROMPT], [ids, ids[:1], ids[:2]]):
        many = isinstance(prompt[0], (list, str)) and not isinstance(prompt, str)
        for max_tokens in (0, 1):
            body = {"echo": True, "logprobs": 5, "temperature": 0, "max_tokens": max_tokens}
            got = await said(s, COMPLETION, body | {"prompt": prompt})
            assert list(got["choices"]) == list(range(len(prompt) if many else 1)), got
            for i, c in got["choices"].items():
                lists = c["logprobs"]
                assert len({len(v) for v in lists.values()}) == 1 and lists["token_logprobs"][0] is None, lists
                assert all(v <= 0 for v in lists["token_logprobs"][1:]), lists
                one = first(await said(s, COMPLETION, body | {"prompt": prompt[i] if many else prompt}))
                assert one == c, (one, c)


async def e05_finite_numbers(s):
    def finite(v):
        if isinstance(v, dict):
            return all(finite(x) for x in v.values())
        if isinstance(v, list):
            return all(finite(x) for x in v)
        return not isinstance(v, float) or math.isfinite(v)
    for more in ({"top_k": 1}, {"logit_bias": {"72": -100, "101": -100}}, {"top_p": 1e-9}, {"min_p": 1}):
        r = await ask(s, COMPLETION, {"prompt": "four plain words here", "echo": True, "logprobs": 1, "temperature": 1,
                                      "seed": 1, "max_tokens": 8} | more)

        def no_constant(name):
            raise AssertionError(f"{name} in JSON")
        assert finite(json.loads(r.body, parse_constant=no_constant)), r


async def e07_usage_chunk(s):
    for path, body in requests_of({"max_tokens": 5, "temperature": 0, "n": 2}):
        for usage in (True, False, None):
            more = {"stream": True} | ({} if usage is None else {"stream_options": {"include_usage": usage}})
            c = await wire.dial(s.port)
            await c.send(wire.post(path, body | more))
            events = [e async for e in c.events()]
            c.close()
            if usage:
                assert events[-1]["choices"] == [] and answers.usage_of(events[-1]) == \
                    answers.usage_of((await ask(s, path, body)).json), events[-1]
                assert all(e["usage"] is None and e["choices"] for e in events[:-1]), events
            else:
                assert all(e.get("usage") is None and e["choices"] for e in events), events
    got, _ = await streamed(s, COMPLETION, {"prompt": "a", "max_tokens": 0})
    assert got["usage"]["completion_tokens"] == 0 and first(got)["end"] == "length", got


async def e08_clients_that_go(s):
    """50 of each kind; pages are free a second after the last, and who only stops sending is answered."""
    long = {"prompt": PROMPT, "max_tokens": 450, "ignore_eos": True}

    async def go(stage):
        c = await wire.dial(s.port)
        await c.send(wire.post(COMPLETION, long | {"stream": stage in ("head", "middle")}))
        if stage == "head":
            await c.head()
        elif stage == "middle":
            await asyncio.wait_for(c.reader.readuntil(b"data: "), 60)
        elif stage == "reply":
            await asyncio.sleep(0.2)
        c.close()

    async def half():
        c = await wire.dial(s.port)
        await c.send(wire.post(COMPLETION, {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}))
        c.half_close()
        r = await c.reply()
        c.close()
        return answers.said(r.json)
    for stage in ("queued", "head", "middle", "reply"):
        await asyncio.gather(*[go(stage) for _ in range(50)])

    async def gone(server):  # but for the control requests
        return await cases.metric(server, "weft_http_calls") <= 2 and \
            await cases.metric(server, "weft_num_requests_running") <= 4
    await cases.until(gone, 5, s)
    right = await said(s, COMPLETION, {"prompt": PROMPT, "max_tokens": 8, "temperature": 0})
    assert all(a == right for a in await asyncio.gather(*[half() for _ in range(50)]))


async def e10_nulls(s):
    names = ("max_tokens", "stop", "temperature", "top_p", "n", "seed", "stream", "logit_bias", "tools", "logprobs",
             "response_format", "user", "presence_penalty", "stream_options", "timeout", "cache_salt", "model")
    nulls = dict.fromkeys(names)
    for path, body in requests_of({}):
        await ask(s, path, body | nulls | {"max_tokens": 3})
    r = await ask(s, COMPLETION, nulls | {"prompt": PROMPT})
    assert r.json["usage"]["completion_tokens"] <= 16, r
    text = {"max_tokens": 4, "temperature": 0}
    a = await said(s, CHAT, text | {"messages": [{"role": "user", "content": "one\ntwo"}]})
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert a == await said(s, CHAT, text | {"messages": [{"role": "user", "content": parts}]})
    await ask(s, CHAT, text | {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": None}]})


async def e14_choices(s):
    """n choices with a seed: each its own, the same in a second run and streamed; greedy ones are equal."""
    for path, body in requests_of({"n": 3, "seed": 42, "temperature": 1, "max_tokens": 20, "ignore_eos": True}):
        a, _ = await same_streamed(s, path, body)
        assert a == await said(s, path, body)
        assert len({c["text"] for c in a["choices"].values()}) == 3, a
        assert sorted(a["choices"]) == [0, 1, 2] and all(c["end"] for c in a["choices"].values())
        one = await said(s, path, body | {"n": 1})
        assert one["usage"]["prompt_tokens"] == a["usage"]["prompt_tokens"] and first(one) == first(a)
        greedy = await said(s, path, body | {"temperature": 0})
        assert len({c["text"] for c in greedy["choices"].values()}) == 1, greedy
        seeds = [first(await said(s, path, body | {"n": 1, "seed": v}))["text"]
                 for v in (-1, -2, 0, 2**31, 2**63 - 1, -2**63)]
        assert len(set(seeds)) == len(seeds), seeds
    a, b = [await said(s, COMPLETION, {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "n": 2}) for _ in "ab"]
    assert len({c["text"] for x in (a, b) for c in x["choices"].values()}) == 4, "no seed, yet the same text"


async def e16_refused(s):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "float"}}}
    for field, value in (("tools", [tool]), ("tool_choice", "required"), ("response_format", {"type": "json_object"}),
                         ("response_format", {"type": "json_schema", "json_schema": {"$ref": "#"}}),
                         ("functions", [{"name": "f"}]), ("guided_regex", "(a+)+$"), ("audio", {"voice": "x"})):
        await refused(s, wire.post(CHAT, {"messages": MESSAGES, field: value}), 400, field)


# ---- F ----

async def f02_f04_top_k(s):
    """0, -1 and absent sample widely, 1 never does, more than the vocabulary is the vocabulary."""
    async def texts(**more):
        body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 1.5, "n": 16, "seed": 5} | more
        return [c["text"] for c in (await said(s, COMPLETION, body))["choices"].values()]
    free = await texts()
    assert len(set(free)) > 4, free
    for k in (0, -1, N_VOCAB, N_VOCAB + 1, 9999999):
        assert await texts(top_k=k) == free, k
    assert len(set(await texts(top_k=1))) == 1


async def f05_f14_neighbours(s):
    """Greedy, seeded and penalised answers among unseeded neighbours at temperature 2."""
    mine = [{"prompt": PROMPT, "max_tokens": 25, "ignore_eos": True} | m for m in (
        {"temperature": 0}, {"temperature": 1, "seed": 9}, {"temperature": 0, "frequency_penalty": 1.05},
        {"temperature": 0.7, "seed": 9, "repetition_penalty": 1.5, "logprobs": 2})]
    alone = [await said(s, COMPLETION, m) for m in mine]

    async def neighbour(i):
        await asyncio.sleep(0.02 * i)
        await ask(s, COMPLETION, {"prompt": "x" * (i * 9 + 1), "max_tokens": 5 * i + 1, "temperature": 2,
                                  "frequency_penalty": 2})
    neighbours = [asyncio.create_task(neighbour(i)) for i in range(12)]
    among = await asyncio.gather(*[said(s, COMPLETION, m) for m in mine for _ in range(3)])
    await asyncio.gather(*neighbours)
    for i, got in enumerate(among):
        assert got == alone[i // 3], (mine[i // 3], got, alone[i // 3])


async def f11_penalties(s):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logit_bias": {"90": 8}}
    plain = first(await said(s, COMPLETION, body))["text"]
    assert plain == plain[0] * 12, plain
    for more in ({"repetition_penalty": 5}, {"frequency_penalty": 2}):
        text = first(await said(s, COMPLETION, body | more))["text"]
        assert text.count(plain[0]) < 8, (more, text)


if __name__ == "__main__":
    cases.need_model()
    sys.exit(cases.run(Server(*SERVER, model=cases.MODEL), globals()) > 0)

#!/usr/bin/env python3
"""What a server may be sent by mistake or on purpose: broken HTTP, bodies that are no requests, values
out of range, too much of everything. Each gets the right status and a short error that names the
field, and other requests' bytes do not change."""
import asyncio
import json
import random
import sys

import cases
import prometheus
import wire
from cases import CHAT, COMPLETION, N_VOCAB, ask, refused
from server import Server

MAX_BODY, MODEL_LEN, POOL_TOKENS, READ_S = 1 << 20, 512, 400, 2
SERVER = ("--max-body", "1M", "--max-model-len", str(MODEL_LEN), "--kv-pages", str(POOL_TOKENS // 16),
          "--max-num-seqs", "8", "--max-queue", "64", "--read-timeout", str(READ_S), "--max-choices", "16",
          "--write-timeout", "2", "--max-connections", "700")


def raw(path, body, *headers):
    return wire.request("POST", path, body, headers)


async def each_refused(s, bodies, status=400, path=COMPLETION):
    """bodies: (body, field at fault) pairs."""
    for body, param in bodies:
        await refused(s, wire.post(path, body), status, param)


# ---- HTTP ----

async def raw_garbage(s):
    rng = random.Random(1)
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, b"\0\r\n\r\n", b"\x80\r\n\r\n",
                 b"hello there, are you\r\nthere\r\n\r\n", b"GET / HTTP/1.1 \r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n",
                 b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", b"G\xc3\xa4T / HTTP/1.1\r\n\r\n", b"\n" * 200,
                 b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", b"GET / HTTP/11\r\n\r\n", b"GET / HTTP/\r\n\r\n"):
        await refused(s, data, 400)
    for _ in range(30):
        c = await wire.dial(s.port)
        await c.send(rng.randbytes(rng.randint(1, 3000)) + b"\r\n\r\n")
        c.half_close()
        await c.closed(10)
        c.close()


async def versions(s):
    await refused(s, b"GET /health\r\n", 400)  # HTTP/0.9
    await refused(s, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)
    await refused(s, b"GET /health HTTP/3.0\r\n\r\n", 505)
    r = await wire.ask(s.port, b"GET /health HTTP/1.0\r\n\r\n")
    assert r.status == 200 and r.headers["connection"] == "close", r.headers
    old = wire.request("POST", COMPLETION, {"prompt": "a", "max_tokens": 9, "stream": True}, version="HTTP/1.0")
    r = await wire.ask(s.port, old)  # no chunks: the end of the connection is the end
    assert r.status == 200 and "transfer-encoding" not in r.headers and r.body.endswith(b"[DONE]\n\n"), r
    r = await wire.ask(s.port, b"GET http://localhost/health?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert r.status == 200, r


async def body_lengths(s):
    """Two lengths, or one that is no number, are how requests are smuggled past a proxy."""
    body = b'{"prompt": "a"}'
    n = str(len(body))
    chunks = b"f\r\n" + body + b"\r\n0\r\n\r\n"
    for headers, sent, status in (
            ((("Content-Length", n), ("Transfer-Encoding", "chunked")), chunks, 400),
            ((("Transfer-Encoding", "chunked"), ("Content-Length", n)), chunks, 400),
            ((("Content-Length", n), ("Content-Length", n)), body, 400),
            ((("Content-Length", n), ("Content-Length", "1")), body, 400),
            ((("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")), chunks, 400),
            ((("Transfer-Encoding", "gzip"),), body, 501), ((("Transfer-Encoding", "xchunked"),), chunks, 501),
            ((("Transfer-Encoding", "gzip, chunked"),), chunks, 501),
            ((("Content-Length", "+15"),), body, 400), ((("Content-Length", "-1"),), body, 400),
            ((("Content-Length", "15, 15"),), body, 400), ((("Content-Length", "0x0f"),), body, 400),
            ((("Content-Length", ""),), body, 400), ((("Content-Length", "1 5"),), body, 400)):
        await refused(s, raw(COMPLETION, sent, *headers), status)
    for sent in (b"-1\r\n\r\n", b"\r\n\r\n", b"g\r\n", b"f \n", b"f\r\n" + body + b"XX", b"2;\0\r\n",
                 b"f\r\n" + body + b"\r\n0\r\n\rx"):
        await refused(s, raw(COMPLETION, sent, ("Transfer-Encoding", "chunked")), 400)
    good = b"F;ext=1\r\n" + body + b"\r\n0\r\nTrailer: x\r\n\r\n"
    r = await wire.ask(s.port, raw(COMPLETION, good, ("Transfer-Encoding", "chunked")))
    assert r.status == 200, r


async def c07_huge_bodies(s):
    """Refused from the head alone: not a byte of these bodies is ever sent."""
    for n in (MAX_BODY + 1, 2**31 - 1, 2**31, 2**32 + 5, 3 << 30, 2**63, 2**64 + 7, 10**40):
        await refused(s, raw(COMPLETION, b"", ("Content-Length", str(n))), 413)
        expect = ("Content-Length", str(n)), ("Expect", "100-continue")
        r = await refused(s, raw(COMPLETION, b"", *expect), 413)
        assert r.interim == 0
    for size in (b"%x" % (MAX_BODY + 1), b"7fffffff", b"fffffffffffffffff", b"80000000000000000"):
        await refused(s, raw(COMPLETION, size + b"\r\n", ("Transfer-Encoding", "chunked")), 413)
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    r = await wire.ask(s.port, raw(COMPLETION, body.ljust(MAX_BODY)))
    assert r.status == 200, r
    c = await wire.dial(s.port)  # pieces that grow past the limit
    await c.send(raw(COMPLETION, b"", ("Transfer-Encoding", "chunked")))
    for _ in range(17):
        await c.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
    r = await c.reply()
    assert r.status == 413 and r.error, r
    c.close()


async def header_floods(s):
    for data in (wire.request("GET", "/health", headers=[(f"X-{i}", "v") for i in range(10000)]),
                 wire.request("GET", "/health", headers=[("X", "v" * 100000)]),
                 wire.request("GET", "/" + "x" * 100000), b"A" * 100000, b"GET / HTTP/1.1\r\n" + b"a" * 100000):
        await refused(s, data, 431)
    trailer = b"0\r\n" + b"X: y\r\n" * 20000
    await refused(s, raw(COMPLETION, trailer, ("Transfer-Encoding", "chunked")), 431)
    r = await wire.ask(s.port, wire.request("GET", "/health", headers=[(f"X-{i}", "v") for i in range(1000)]))
    assert r.status == 200, r


async def slowloris(s):
    """A byte now and then keeps nobody waiting longer than --read-timeout."""
    async def drip(data, begin, wanted):
        c = await wire.dial(s.port)
        await c.send(data[:begin])
        reply = asyncio.create_task(c.reply(READ_S + 20))
        at = begin
        while not reply.done() and at < len(data):
            await c.send(data[at:at + 1])
            at += 1
            await asyncio.sleep(0.1)
        r = await reply
        assert r.status == wanted and r.error, r
        await c.closed(10)
        c.close()
    data = wire.post(COMPLETION, {"prompt": "a" * 1000})
    await asyncio.gather(*[drip(data, 3, 408) for _ in range(40)],
                         *[drip(data, data.index(b"\r\n\r\n") + 9, 408) for _ in range(40)])


async def pipelining(s):
    get, body = wire.request("GET", "/version"), {"prompt": "abc", "max_tokens": 3, "temperature": 0}
    c = await wire.dial(s.port)
    await c.send(get * 50)
    first = await c.reply()
    assert all([(await c.reply()).body == first.body for _ in range(49)])
    one = await ask(s, COMPLETION, body)
    data = wire.post(COMPLETION, body) + get + wire.post(COMPLETION, dict(body, stream=True)) + get
    await c.send(data + wire.post(COMPLETION, {"prompt": ""}) + b"\r\n" + get + b"nonsense\r\n\r\n" + get)
    assert (await c.reply()).json["choices"] == one.json["choices"]
    assert (await c.reply()).body == first.body
    assert len([e async for e in c.events()]) >= 1
    assert (await c.reply()).body == first.body
    assert (await c.reply()).status == 400
    assert (await c.reply()).body == first.body
    r = await c.reply()
    assert r.status == 400 and r.headers["connection"] == "close", r.headers
    await c.closed()  # and nothing of what came after nonsense is answered
    c.close()


async def routes(s):
    for path in ("/", "/v1", "/v1/completions/", "/v2/completions", "/v1/completions%00", "/%ff", "/..", "/%",
                 "/v1/embeddings", "//v1/models", "/V1/models"):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            await refused(s, wire.request(method, path, b"" if method == "POST" else None), 404)
    for method, path, allow in (("GET", COMPLETION, "POST"), ("PUT", COMPLETION, "POST"),
                                ("DELETE", CHAT, "POST"), ("POST", "/health", "GET"),
                                ("OPTIONS", COMPLETION, "POST"), ("POST", "/metrics", "GET")):
        r = await refused(s, wire.request(method, path, b"{}"), 405)
        assert r.headers["allow"] == allow, r.headers
        assert "access-control-allow-origin" not in r.headers
    r = await refused(s, wire.request("HEAD", COMPLETION), 405, bare=True)
    for method in ("PATCH", "TRACE", "CONNECT", "BREW", "get"):
        await refused(s, wire.request(method, "/health"), 501)
    r = await wire.ask(s.port, wire.request("GET", "/v1/models"))
    h = await wire.ask(s.port, wire.request("HEAD", "/v1/models"), bare=True)
    assert h.status == 200 and h.headers["content-length"] == str(len(r.body)), h.headers
    await refused(s, raw(COMPLETION, b"{}", ("Expect", "tea")), 417)


async def content_types(s):
    """The body decides: it is JSON or it is not, whatever is said about it."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16", ""):
        r = await wire.ask(s.port, raw(COMPLETION, body, ("Content-Type", kind)))
        assert r.status == 200, r
    await refused(s, raw(COMPLETION, b"prompt=a", ("Content-Type", "application/x-www-form-urlencoded")), 400)
    await refused(s, raw(COMPLETION, b"--x\r\n\r\n", ("Content-Type", "multipart/form-data; boundary=x")), 400)


async def idle_connections(s):
    before = cases_rss(s)
    held = [await wire.dial(s.port) for _ in range(500)]
    r = await ask(s, COMPLETION, {"prompt": "a", "max_tokens": 5})
    assert r.status == 200
    assert await cases.metric(s, "weft_http_connections") >= 500
    grown = (cases_rss(s) - before) / 500
    assert grown < 16, f"{grown:.1f} KB for an idle connection"
    await held[499].send(wire.request("GET", "/health"))
    assert (await held[499].reply()).status == 200
    for c in held:
        c.close()

    async def closed(server):
        return await cases.metric(server, "weft_http_connections") < 10
    await cases.until(closed, 10, s)


def cases_rss(s):
    with open(f"/proc/{s.pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4


async def too_many_connections(s):
    """Beyond --max-connections they wait in the kernel and are served when there is room."""
    held = [await wire.dial(s.port) for _ in range(690)]
    extra = [asyncio.create_task(wire.ask(s.port, wire.request("GET", "/version"), 30)) for _ in range(60)]
    await asyncio.sleep(0.3)
    for c in held:
        c.close()
    assert all(r.status == 200 for r in await asyncio.gather(*extra))


# ---- JSON ----

async def c05_bad_bytes(s):
    for path in (COMPLETION, CHAT, "/tokenize", "/detokenize"):
        for text in (b"\xc4\xe3\xba\xc3", b"\xc0\x80", b"\xed\xa0\xbd", b"\xff", b"\xf4\x90\x80\x80", b"\0", b"\x1f",
                     b"\xf0\x9f\x98"):
            for body in (b'{"prompt": "%s"}', b'{"messages": [{"role": "user", "content": "%s"}]}',
                         b'{"%s": 1}', b'{"model": "%s"}', b"%s"):
                r = await refused(s, raw(path, body % text), 400)
                assert text not in r.body
    r = await wire.ask(s.port, wire.request("GET", "/version", headers=[("X-Request-Id", "\xff"), ("X", "\xc4")]))
    assert r.status == 200 and r.headers["x-request-id"].startswith("req-"), r
    id_ = ("X-Request-Id", "a\xffb"), ("X-Request-Id", 'a"b'), ("X-Request-Id", "x" * 500)
    for h in id_:
        r = await wire.ask(s.port, raw(COMPLETION, b'{"prompt": "a", "max_tokens": 1}', h))
        assert r.headers["x-request-id"] == r.json["id"], r.headers
    r = await wire.ask(s.port, raw(COMPLETION, b'{"prompt": "a", "max_tokens": 1}', ("X-Request-Id", "mine")))
    assert r.headers["x-request-id"] == "mine", r.headers


async def no_json(s):
    for body in (b"", b" ", b"{", b"}", b"[]", b"null", b'"a"', b"1", b"{'prompt': 1}", b'{"prompt": "a",}',
                 b'{"prompt": "a"} x', b'{"prompt": NaN}', b'{"temperature": Infinity, "prompt": "a"}',
                 b'{"prompt": "a", "temperature": -Infinity}', b'{"prompt": "a", "temperature": 1e999}',
                 b'{"prompt": "a", "x": -1e999}', b'{"prompt": "a", "prompt": "b"}', b'{"prompt": 01}',
                 b'{"a": {"b": 1, "b": 2}, "prompt": "a"}', b'{"prompt": "\\x"}', b'\xef\xbb\xbf{"prompt": "a"}',
                 b'{"prompt": "a" /* c */}', "{\"prompt\": \"a\"}".encode("utf-16")):
        for path in (COMPLETION, CHAT, "/tokenize", "/detokenize"):
            await refused(s, raw(path, body), 400)


async def e13_deep(s):
    for depth in (3000, 100000):
        for a, b in ((b"[", b"]"), (b'{"a":', b"}")):
            body = b'{"prompt": ' + a * depth + b"1" + b"}" * 0 + b * depth + b"}"
            await refused(s, raw(COMPLETION, body), 400)
            await refused(s, raw(COMPLETION, b'{"prompt": ' + a * depth), 400)
            await refused(s, raw(COMPLETION, a * depth), 400)


async def e11_surrogates(s):
    for bad in ("x \\ud83d", "\\ude00 y", "\\ude00\\ud83d", "\\ud83d\\ud83d"):
        chat = '{"messages": [{"role": "user", "content": "%s"}], "stream": %s}'
        for stream in ("true", "false"):
            await refused(s, raw(CHAT, (chat % (bad, stream)).encode()), 400)
            await refused(s, raw(COMPLETION, b'{"prompt": "%s", "stream": %s}' % (bad.encode(), stream.encode())), 400)
        await refused(s, raw("/tokenize", b'{"prompt": "%s"}' % bad.encode()), 400)
    r = await wire.ask(s.port, raw("/tokenize", b'{"prompt": "\\ud83d\\ude00"}'))
    back = await ask(s, "/detokenize", {"tokens": r.json["tokens"]})
    assert back.json["prompt"] == "\U0001f600", back


async def nul(s):
    """In a prompt it is a character like others; where it would cut a text short it is refused."""
    r = await ask(s, "/tokenize", {"prompt": "a\0b"})
    assert (await ask(s, "/detokenize", {"tokens": r.json["tokens"]})).json["prompt"] == "a\0b"
    await ask(s, COMPLETION, {"prompt": "a\0b", "max_tokens": 1})
    await refused(s, wire.post(CHAT, {"messages": [{"role": "user", "content": "a\0b"}]}), 400, "messages[0].content")
    await each_refused(s, [({"prompt": "a", "stop": "a\0"}, "stop"), ({"prompt": "a", "stop": ["a", "\0"]}, "stop[1]"),
                           ({"prompt": "a", "cache_salt": "\0"}, "cache_salt")])
    await refused(s, wire.post(COMPLETION, {"prompt": "a", "model": "\0"}), 404, "model")


# ---- values ----

async def e13_numbers(s):
    big = (-2**63, -1, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, 1e300, "1", True, [1], {})
    small = {"prompt": "a", "max_tokens": 1}
    for field in ("max_tokens", "max_completion_tokens", "n", "best_of", "logprobs"):
        await each_refused(s, [(small | {field: v}, field) for v in big])
    await each_refused(s, [(small | {"n": 0}, "n"), (small | {"n": 17}, "n"), (small | {"n": 10**6}, "n"),
                           (small | {"best_of": 2}, "best_of"), (small | {"logprobs": 21}, "logprobs"),
                           (small | {"logprobs": 10**9}, "logprobs"), (small | {"max_tokens": 10**12}, "max_tokens"),
                           (small | {"max_tokens": MODEL_LEN + 1}, "max_tokens")])
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    await each_refused(s, [(chat | {"logprobs": True, "top_logprobs": v}, "top_logprobs") for v in (21, 10**9, -1)] +
                       [(chat | {"max_tokens": 0}, "max_tokens"), (chat | {"logprobs": 1}, "logprobs")], path=CHAT)
    for field, bad in (("temperature", (-0.1, 2.1, 1e308, "1", None.__class__.__name__)), ("top_p", (0, -1, 1.01)),
                       ("min_p", (-0.1, 1.1)), ("top_k", (-2, 2**63, 0.5)), ("presence_penalty", (-2.1, 2.1)),
                       ("frequency_penalty", (-3, 3)), ("repetition_penalty", (0, -1)),
                       ("seed", (2**63, -2**63 - 1, 1.5, "x")), ("timeout", (0, -1, 1e9, "1")),
                       ("stream", (1, "true")), ("echo", (1, "x")), ("ignore_eos", ("yes",)),
                       ("logit_bias", ([], 1, {"x": 1}, {str(N_VOCAB): 1}, {"-1": 1}, {"1": 101}, {"1": "a"},
                                       {"1.0": 1}, {str(i): 1 for i in range(1025)}))):
        for v in bad:
            r = await wire.ask(s.port, wire.post(COMPLETION, small | {field: v}))
            assert r.status == 400 and r.error["param"].startswith(field), (field, str(v)[:80], r)
    for v in (-2**63, 2**63 - 1, 0, -1, 2**31):
        await ask(s, COMPLETION, small | {"seed": v})
    r = await ask(s, COMPLETION, small | {"max_tokens": 0})
    assert r.json["usage"]["completion_tokens"] == 0, r
    lines = []
    for _ in range(250):  # the log comes on its own pipe
        lines = [e for e in s.log if e.get("id") == r.headers["x-request-id"]]
        if lines:
            break
        await asyncio.sleep(0.02)
    assert [e["output_tokens"] for e in lines] == [0], lines


async def ids_out_of_range(s):
    await each_refused(s, [({"prompt": p, "max_tokens": 1}, where) for p, where in (
        ([-1], "prompt[0]"), ([1, N_VOCAB], "prompt[1]"), ([2**31], "prompt[0]"), ([2**63], "prompt[0]"),
        ([1.5], "prompt[0]"), ([1, "a"], "prompt[1]"), ([[1], [N_VOCAB]], "prompt[1][0]"), ([[1], "a"], "prompt[1]"),
        ([1, None], "prompt[1]"), ([True], "prompt[0]"), ([[1], []], "prompt[1]"), (["a", ""], "prompt[1]"),
        ([], "prompt"), ([[]], "prompt[0]"), ("", "prompt"), ([""], "prompt[0]"), (None, "prompt"), ({}, "prompt"),
        (5, "prompt"))])
    await refused(s, wire.post(COMPLETION, {"max_tokens": 1}), 400, "prompt")
    for t, where in (([-1], "tokens[0]"), ([N_VOCAB], "tokens[0]"), ([2**63], "tokens[0]"), ("a", "tokens"),
                     (None, "tokens")):
        await refused(s, wire.post("/detokenize", {"tokens": t}), 400, where)


async def e13_stops(s):
    await each_refused(s, [({"prompt": "a", "max_tokens": 1, "stop": v}, where) for v, where in (
        (["x"] * 10000, "stop"), (["x"] * 65, "stop"), ("", "stop"), (["a", ""], "stop[1]"), ("x" * 1025, "stop"),
        (5, "stop"), ([5], "stop[0]"), ([["a"]], "stop[0]"), ({}, "stop"))])
    await ask(s, COMPLETION, {"prompt": "a", "max_tokens": 40, "stop": [chr(0x4e00 + i) * 100 for i in range(64)]})


async def e13_many_prompts(s):
    await each_refused(s, [({"prompt": ["a"] * 5000, "max_tokens": 1}, "prompt"),
                           ({"prompt": [[1]] * 5000, "max_tokens": 1}, "prompt"),
                           ({"prompt": ["a"] * 64, "n": 16, "max_tokens": 1}, "n")])


async def e17_error_size(s):
    for body in ({"messages": [{"role": 5}] * 10000}, {"messages": ["x"] * 10000}, {"m" * 500000: 1},
                 {"messages": [{"role": "x" * 100000, "content": "a"}]}, {"messages": "a" * 900000}):
        await refused(s, wire.post(CHAT, body), 400, "messages[0].role" if "role" in str(body)[:40] else
                      "messages[0]" if "'x', 'x'" in str(body)[:60] else "messages")
    await refused(s, wire.post(COMPLETION, {"model": "m" * 900000, "prompt": "a"}), 404, "model")


async def prompts_at_the_limit(s):
    """Limits: --max-model-len (512), and what the pool holds (400)."""
    one = {"max_tokens": 1, "temperature": 0}
    for n, status in ((POOL_TOKENS - 1, 200), (POOL_TOKENS, 400), (POOL_TOKENS + 1, 400), (MODEL_LEN - 1, 400),
                      (MODEL_LEN, 400), (MODEL_LEN + 1, 400), (100000, 400)):
        if status == 200:
            r = await ask(s, COMPLETION, one | {"prompt": [7] * n})
            assert r.json["usage"]["prompt_tokens"] == n and r.json["choices"][0]["finish_reason"] == "length", r
        else:
            await refused(s, wire.post(COMPLETION, one | {"prompt": [7] * n}), 400, "prompt")
    for times, said in ((100, "tokens leaves no room"), (50000, "bytes does not fit")):
        text = "many words " * times
        r = await refused(s, wire.post(COMPLETION, one | {"prompt": text}), 400, "prompt")
        chat = wire.post(CHAT, {"messages": [{"role": "user", "content": text}]})
        assert said in r.error["message"] and said in (await refused(s, chat, 400, "messages")).error["message"], r
    r = await ask(s, COMPLETION, {"prompt": [7] * (POOL_TOKENS - 10), "max_tokens": 100, "ignore_eos": True})
    assert r.json["usage"]["completion_tokens"] == 10 and r.json["choices"][0]["finish_reason"] == "length", r


async def long_texts_beside_short_ones(s):
    """Five texts of a megabyte are tokenised one after the other; a short request does not wait for them."""
    body = wire.post("/tokenize", {"prompt": "1 2 3 4 5 6 7 8 9 " * 55000})
    long = [asyncio.create_task(wire.ask(s.port, body, 60)) for _ in range(5)]
    await asyncio.sleep(0.1)
    await ask(s, COMPLETION, {"prompt": "a", "max_tokens": 1})
    assert not all(t.done() for t in long), "too quick to show anything"
    counts = {r.json["count"] for r in await asyncio.gather(*long)}
    assert len(counts) == 1, counts


# ---- storms ----

async def cancel_storm(s):
    rng = random.Random(2)

    async def one():
        c = await wire.dial(s.port)
        await c.send(wire.post(COMPLETION, {"prompt": [rng.randrange(256) for _ in range(rng.randint(1, 300))],
                                            "max_tokens": 90, "ignore_eos": True, "n": rng.randint(1, 3),
                                            "stream": rng.random() < 0.5}))
        await asyncio.sleep(rng.choice([0, 0.001, 0.02, 0.2, 0.6]) * rng.random())
        c.reset() if rng.random() < 0.5 else c.close()
    for _ in range(6):
        await asyncio.gather(*[one() for _ in range(50)])
        await asyncio.sleep(0.1)


async def readers_that_stop(s):
    """A stream nobody reads costs its buffer only, and is cut off after --write-timeout; a reply
    likewise."""
    async def held():
        c = await wire.dial(s.port, receive_bytes=4096)
        c.writer.transport.pause_reading()
        await c.send(wire.post(COMPLETION, {"prompt": "abc", "max_tokens": 380, "ignore_eos": True, "logprobs": 20,
                                            "stream": True, "n": 8}))
        return c
    waiting = [await held() for _ in range(4)]
    assert await cases.metric(s, "weft_http_connections") >= 4

    async def cut(server):  # the control requests and this one remain
        return await cases.metric(server, "weft_http_connections") <= 3
    await cases.until(cut, 40, s)
    for c in waiting:
        c.close()


async def refusals_are_told(s):
    """What is refused before it is a request is counted and logged like all else; every reply that
    answers a request has an id, and the log has it too."""
    name = 'weft_http_requests_total{route="other",status="4xx"}'
    before = await cases.metric(s, name)
    await refused(s, b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400)
    r = await refused(s, wire.request("GET", "/nowhere", headers=[("X-Request-Id", "mine-2")]), 404)
    assert r.headers["x-request-id"] == "mine-2", r.headers
    r = await refused(s, wire.request("GET", COMPLETION), 405)
    assert await cases.metric(s, name) == before + 3

    def logged(**fields):
        return [e for e in s.log if e.get("event") == "refused" and fields.items() <= e.items()]

    async def written(_):
        return logged(status=405, id=r.headers["x-request-id"])
    await cases.until(written, 10, s)
    assert logged(status=404, id="mine-2")
    assert any("id" not in e and e["peer"] and e["message"] for e in logged(status=400)), s.tail()


async def metrics_are_strict(s):
    prometheus.self_test()
    r = await wire.ask(s.port, wire.request("GET", "/metrics"))
    assert r.headers["content-type"].startswith("text/plain; version=0.0.4"), r.headers
    prometheus.parse(r.body.decode())


if __name__ == "__main__":
    cases.need_model()
    sys.exit(cases.run(Server(*SERVER, model=cases.MODEL), globals()) > 0)

"""The Python package openai, unmodified, over every endpoint and option of `weft serve`.

What must hold beside the replies' shape: a stream's joined texts, tokens and ends are those of the
plain reply; the same request gives the same bytes again, alone or among 63 others; errors arrive as
the package's own exceptions and name the field.
"""
import asyncio
import json
import sys
import unittest

from clients import go_on_in
from server import Server

if __name__ == "__main__":
    go_on_in("quick")

import openai  # noqa: E402 # only the venv has it

PROMPT = "The three primary colours are"
TALK = [{"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "Name a fruit."}]
KEY = "key-of-the-test"
LONG_S = 120


def client_of(server, kind=openai.OpenAI, key=KEY):
    return kind(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=LONG_S)


def plain(reply):
    """What two replies to one request have in common: everything but id and time."""
    d = reply.model_dump()
    return {k: v for k, v in d.items() if k not in ("id", "created")}


def choices(reply):
    """The choices without usage, which tells how much was cached."""
    return [c.model_dump() for c in reply.choices]


class Case(unittest.TestCase):
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY, "--served-model-name", "demo",
                            "--served-model-name", "org/alias", *cls.options).start()
        cls.c = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.server.stop()

    def complete(self, prompt=PROMPT, **more):
        return self.c.completions.create(model="demo", prompt=prompt,
                                         **{"max_tokens": 6, "temperature": 0, **more})

    def chat(self, messages=None, **more):
        return self.c.chat.completions.create(model="demo", messages=messages or TALK,
                                              **{"max_tokens": 6, "temperature": 0, **more})

    def raw(self, method, path, body=None):
        return self.server.request(method, path, body, {"Authorization": "Bearer " + KEY})

    def ids(self, text, **more):
        return self.raw("POST", "/tokenize", {"prompt": text, **more}).json["tokens"]


# ---- streams, put together again ----

def join_completion(stream):
    """-> {index: (text, tokens, logprobs, offsets, finish)}, usage"""
    out, usage = {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for c in chunk.choices:
            o = out.setdefault(c.index, {"text": "", "tokens": [], "token_logprobs": [],
                                         "top_logprobs": [], "text_offset": [], "finish": None})
            assert o["finish"] is None, "text after the end"
            o["text"] += c.text
            if c.logprobs:
                for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                    o[k] += getattr(c.logprobs, k)
            o["finish"] = c.finish_reason
    return out, usage


def join_chat(stream):
    out, usage, first = {}, None, {}
    for chunk in stream:
        usage = chunk.usage or usage
        assert chunk.object == "chat.completion.chunk"
        for c in chunk.choices:
            o = out.setdefault(c.index, {"text": "", "logprobs": [], "finish": None})
            assert o["finish"] is None, "text after the end"
            assert (c.delta.role == "assistant") == (c.index not in first), "the role comes once"
            first[c.index] = True
            o["text"] += c.delta.content or ""
            if c.logprobs:
                o["logprobs"] += [t.model_dump() for t in c.logprobs.content]
            o["finish"] = c.finish_reason
    return out, usage


def flat_completion(reply):
    out = {}
    for c in reply.choices:
        o = {"text": c.text, "tokens": [], "token_logprobs": [], "top_logprobs": [],
             "text_offset": [], "finish": c.finish_reason}
        if c.logprobs:
            o.update(c.logprobs.model_dump())
        out[c.index] = o
    return out


def flat_chat(reply):
    return {c.index: {"text": c.message.content, "finish": c.finish_reason,
                      "logprobs": [t.model_dump() for t in c.logprobs.content] if c.logprobs
                      else []} for c in reply.choices}


class Completions(Case):
    def test_reply(self):
        r = self.complete()
        self.assertEqual((r.object, r.model, len(r.choices)), ("text_completion", "demo", 1))
        self.assertTrue(r.id.startswith("cmpl-"))
        self.assertEqual(r.choices[0].finish_reason, "length")
        self.assertEqual(r.usage.prompt_tokens, len(self.ids(PROMPT)))
        self.assertEqual((r.usage.completion_tokens, r.usage.total_tokens),
                         (6, r.usage.prompt_tokens + 6))
        identity = self.raw("GET", "/version").json["identity"]
        self.assertEqual(r.system_fingerprint, identity)
        self.assertEqual(choices(self.complete()), choices(r))

    def test_prompts(self):
        """A text, a list of texts, ids, lists of ids: the same answers."""
        texts = [PROMPT, "Once upon a time", "2 + 2 ="]
        ids = [self.ids(t) for t in texts]
        single = [self.complete(t).choices[0].text for t in texts]
        self.assertEqual([c.text for c in self.complete(texts).choices], single)
        self.assertEqual([c.text for c in self.complete(ids).choices], single)
        self.assertEqual(self.complete(ids[1]).choices[0].text, single[1])
        r = self.complete(texts, n=2, temperature=0.8, seed=7)
        self.assertEqual([c.index for c in r.choices], list(range(6)))
        self.assertEqual(r.usage.prompt_tokens, sum(map(len, ids)))

    def test_seeds(self):
        one = self.complete(n=3, temperature=1, seed=42)
        self.assertEqual(choices(self.complete(n=3, temperature=1, seed=42)), choices(one))
        self.assertEqual(self.complete(temperature=1, seed=42).choices[0].text,
                         one.choices[0].text)
        self.assertEqual(len({c.text for c in one.choices}), 3, "choices of one seed differ")
        self.assertNotEqual(choices(self.complete(n=3, temperature=1, seed=43)), choices(one))
        texts = {self.complete(temperature=1, max_tokens=12).choices[0].text for _ in range(3)}
        self.assertGreater(len(texts), 1, "without a seed every answer is new")

    def test_logprobs(self):
        r = self.complete(logprobs=3).choices[0]
        p = r.logprobs
        self.assertEqual("".join(p.tokens), r.text)
        self.assertEqual(p.text_offset[0], 0)
        self.assertTrue(all(len(t) == 3 for t in p.top_logprobs))
        self.assertTrue(all(v == max(t.values()) and v <= 0
                            for v, t in zip(p.token_logprobs, p.top_logprobs)))
        self.assertEqual(r.text, self.complete().choices[0].text)
        self.assertIsNone(self.complete().choices[0].logprobs)
        self.assertEqual(self.complete(logprobs=0).choices[0].logprobs.token_logprobs,
                         p.token_logprobs)

    def test_echo(self):
        r = self.complete(echo=True, logprobs=1).choices[0]
        p, ids = r.logprobs, self.ids(PROMPT)
        self.assertTrue(r.text.startswith(PROMPT))
        self.assertEqual("".join(p.tokens), r.text)
        self.assertEqual(len(p.tokens), len(ids) + 6)
        self.assertIsNone(p.token_logprobs[0])
        self.assertEqual([len(x) for x in (p.token_logprobs, p.top_logprobs, p.text_offset)],
                         [len(ids) + 6] * 3)
        # a row of the prompt says what the same row says when it makes a token
        forced = self.complete(ids[:-1], max_tokens=1, logprobs=1,
                               logit_bias={str(ids[-1]): 100}).choices[0].logprobs
        self.assertEqual(p.token_logprobs[len(ids) - 1], forced.token_logprobs[0])
        only = self.complete(echo=True, logprobs=1, max_tokens=0)
        self.assertEqual(only.choices[0].text, PROMPT)
        self.assertEqual(only.choices[0].logprobs.token_logprobs, p.token_logprobs[:len(ids)])
        self.assertEqual(only.usage.completion_tokens, 0)

    def test_stop(self):
        whole = self.complete(max_tokens=12).choices[0].text
        cut = whole[4:7]
        for stop in (cut, [cut], ["never seen", cut]):
            r = self.complete(max_tokens=12, stop=stop).choices[0]
            self.assertEqual((r.text, r.finish_reason), (whole[:whole.index(cut)], "stop"))

    def test_penalties_and_bias(self):
        base = self.complete(max_tokens=16).choices[0].text
        for more in ({"presence_penalty": 2}, {"frequency_penalty": 2},
                     {"extra_body": {"repetition_penalty": 1.8}}):
            self.assertNotEqual(self.complete(max_tokens=16, **more).choices[0].text, base, more)
        token = self.ids(" purple")[0]
        r = self.complete(max_tokens=2, logit_bias={str(token): 100}).choices[0].text
        self.assertEqual(r, " purple purple")
        first = self.ids(base)[0]
        r = self.complete(max_tokens=1, logit_bias={str(first): -100}, logprobs=1).choices[0]
        self.assertNotEqual(r.logprobs.tokens[0], base[:len(r.logprobs.tokens[0])])

    def test_sampling_options(self):
        greedy = self.complete().choices[0].text
        for more in ({"temperature": 1, "top_p": 1e-6},
                     {"temperature": 1, "extra_body": {"top_k": 1}},
                     {"temperature": 1, "extra_body": {"min_p": 1.0}}):
            self.assertEqual(self.complete(**more).choices[0].text, greedy, more)
        self.assertEqual(self.complete(best_of=1, user="someone").choices[0].text, greedy)

    def test_streams(self):
        for more in ({}, {"n": 2, "temperature": 0.9, "seed": 3}, {"logprobs": 2},
                     {"echo": True, "logprobs": 1}, {"stop": [" and"], "max_tokens": 12},
                     {"prompt": ["Bonjour, je m'appelle", "\U0001f600 \u4f60\u597d"],
                      "max_tokens": 10}):
            with self.subTest(more):
                reply = self.complete(**more)
                got, usage = join_completion(self.complete(
                    stream=True, stream_options={"include_usage": True}, **more))
                self.assertEqual(got, flat_completion(reply))
                self.assertEqual(usage.completion_tokens, reply.usage.completion_tokens)
        got, usage = join_completion(self.complete(stream=True))
        self.assertIsNone(usage, "usage was not asked for")
        with self.complete(stream=True, max_tokens=4000) as stream:
            next(iter(stream))  # and hangs up
        self.assertEqual(self.complete().choices[0].text, got[0]["text"])

    def test_salt(self):
        long = "All work and no play makes Jack a dull boy. " * 6
        self.complete(long)
        cached = self.complete(long).usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, 16)
        salted = [self.complete(long, extra_body={"cache_salt": "one"}) for _ in range(2)]
        self.assertEqual([r.usage.prompt_tokens_details.cached_tokens for r in salted],
                         [0, cached])
        self.assertEqual(choices(salted[0]), choices(salted[1]))


class Chats(Case):
    def test_reply(self):
        r = self.chat()
        self.assertEqual((r.object, r.choices[0].message.role), ("chat.completion", "assistant"))
        self.assertTrue(r.id.startswith("chatcmpl-"))
        self.assertEqual(choices(self.chat()), choices(r))
        tokens = self.raw("POST", "/tokenize", {"messages": TALK}).json
        self.assertEqual(tokens["count"], r.usage.prompt_tokens)
        same = self.complete(tokens["tokens"])  # the template is all that a chat adds
        self.assertEqual(same.choices[0].text, r.choices[0].message.content)

    def test_messages(self):
        parts = [dict(m, content=[{"type": "text", "text": m["content"]}]) for m in TALK]
        self.assertEqual(choices(self.chat(parts)), choices(self.chat()))
        developer = [dict(TALK[0], role="developer"), TALK[1]]
        self.assertEqual(choices(self.chat(developer)), choices(self.chat()))

    def test_lengths(self):
        a = self.chat(max_completion_tokens=3, max_tokens=openai.omit)
        self.assertEqual((a.usage.completion_tokens, a.choices[0].finish_reason), (3, "length"))
        whole = self.chat(max_tokens=openai.omit, logit_bias={
            str(self.raw("POST", "/tokenize", {"prompt": "<|im_end|>"}).json["tokens"][0]): 100})
        self.assertEqual((whole.choices[0].finish_reason, whole.choices[0].message.content),
                         ("stop", ""))

    def test_options(self):
        r = self.chat(n=2, temperature=1, seed=5, top_p=0.9)
        self.assertEqual(choices(self.chat(n=2, temperature=1, seed=5, top_p=0.9)), choices(r))
        whole = self.chat(max_tokens=16).choices[0].message.content
        cut = whole[5:8]
        stopped = self.chat(max_tokens=16, stop=[cut]).choices[0]
        self.assertEqual((stopped.message.content, stopped.finish_reason),
                         (whole[:whole.index(cut)], "stop"))
        for more in ({"presence_penalty": 2}, {"frequency_penalty": 2}):
            self.assertNotEqual(self.chat(max_tokens=24, **more).choices[0].message.content,
                                self.chat(max_tokens=24).choices[0].message.content)
        token = self.ids(" purple")[0]
        self.assertEqual(self.chat(max_tokens=1, logit_bias={str(token): 100})
                         .choices[0].message.content, " purple")
        self.chat(response_format={"type": "text"}, tools=[], tool_choice="none", store=False)

    def test_logprobs(self):
        r = self.chat(logprobs=True, top_logprobs=4).choices[0]
        content = r.logprobs.content
        self.assertEqual("".join(t.token for t in content), r.message.content)
        self.assertEqual(b"".join(bytes(t.bytes) for t in content).decode(), r.message.content)
        for t in content:
            self.assertEqual(len(t.top_logprobs), 4)
            self.assertEqual(t.logprob, max(x.logprob for x in t.top_logprobs))
        bare = self.chat(logprobs=True).choices[0].logprobs.content
        self.assertEqual([t.logprob for t in bare], [t.logprob for t in content])
        self.assertEqual([t.top_logprobs for t in bare], [[]] * len(bare))

    def test_streams(self):
        for more in ({}, {"n": 2, "temperature": 0.9, "seed": 3},
                     {"logprobs": True, "top_logprobs": 2}, {"stop": ["."], "max_tokens": 16},
                     {"messages": [{"role": "user", "content": "Say \u4f60\u597d \U0001f600"}],
                      "max_tokens": 12}):
            with self.subTest(more):
                reply = self.chat(**more)
                got, usage = join_chat(self.chat(
                    stream=True, stream_options={"include_usage": True}, **more))
                self.assertEqual(got, flat_chat(reply))
                self.assertEqual(usage.completion_tokens, reply.usage.completion_tokens)
        # the package's own joining; it takes an answer that was cut off for an error
        cut = self.chat().choices[0].message.content[4:7]
        with self.c.chat.completions.stream(model="demo", messages=TALK, temperature=0,
                                            stop=[cut]) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content,
                         self.chat(stop=[cut]).choices[0].message.content)

    def test_turns(self):
        """The second turn finds the first one's pages, the answer's included."""
        talk = [{"role": "user", "content": "Write three sentences about rivers and the sea."}]
        first = self.chat(talk, max_tokens=40)
        talk += [{"role": "assistant", "content": first.choices[0].message.content},
                 {"role": "user", "content": "Shorter."}]
        second = self.chat(talk)
        cached = second.usage.prompt_tokens_details.cached_tokens
        self.assertGreater(cached, first.usage.prompt_tokens)
        self.assertEqual(cached % 16, 0)
        cold = self.chat(talk, extra_body={"cache_salt": "nobody else's"})
        self.assertEqual(cold.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(choices(cold), choices(second))


class Others(Case):
    def test_models(self):
        listed = self.c.models.list()
        self.assertEqual([m.id for m in listed], ["demo", "org/alias"])
        for m in listed:
            self.assertEqual(self.c.models.retrieve(m.id).model_dump(), m.model_dump())
        with self.assertRaises(openai.NotFoundError):
            self.c.models.retrieve("other")
        r = self.c.completions.create(model="org/alias", prompt=PROMPT, max_tokens=1)
        self.assertEqual(r.model, "demo")

    def test_headers(self):
        raw = self.c.completions.with_raw_response.create(
            model="demo", prompt=PROMPT, max_tokens=1, temperature=0,
            extra_headers={"X-Request-Id": "mine-1"})
        self.assertEqual(raw.headers["x-request-id"], "mine-1")
        self.assertEqual(raw.headers["content-type"], "application/json")
        self.assertEqual(raw.parse().choices[0].text, self.complete(max_tokens=1).choices[0].text)
        raw = self.c.chat.completions.with_raw_response.create(
            model="demo", messages=TALK, max_tokens=1, stream=True)
        self.assertEqual(raw.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertTrue(raw.headers["x-request-id"].startswith("chatcmpl-"))
        for _ in raw.parse():
            pass
        self.assertEqual(self.complete()._request_id[:5], "cmpl-")

    def test_tokens(self):
        text = "Na\u00efve caf\u00e9 \u4f60\u597d \U0001f600"
        t = self.raw("POST", "/tokenize", {"prompt": text, "return_token_strs": True}).json
        self.assertEqual((t["count"], len(t["token_strs"])), (len(t["tokens"]),) * 2)
        self.assertEqual(self.raw("POST", "/detokenize", {"tokens": t["tokens"]}).json,
                         {"prompt": text})
        info = self.raw("GET", "/tokenizer_info").json
        # what remote tokenisers do to learn the ids of special tokens
        for name in ("bos_token", "eos_token"):
            ids = self.ids(info[name], add_special_tokens=False)
            self.assertEqual(len(ids), 1)
            self.assertEqual(self.raw("POST", "/detokenize", {"tokens": ids}).json["prompt"],
                             info[name])
        self.assertIn("message", info["chat_template"])

    def test_state(self):
        self.assertEqual(self.server.get("/health").json, {"status": "ok"})
        self.assertIn("version", self.raw("GET", "/version").json)
        self.complete()
        text = self.raw("GET", "/metrics").body.decode()
        self.assertIn('weft_http_requests_total{route="/v1/completions",status="2xx"}', text)
        self.assertIn("# TYPE weft_time_to_first_token_seconds histogram", text)

    def test_many(self):
        """64 at a time, each answer as if it were alone."""
        bodies = [{"prompt": PROMPT + " " * (i % 3) + "abcdefgh"[i % 8], "seed": i // 8,
                   "temperature": (i % 2) * 0.8} for i in range(64)]

        async def run():
            async with client_of(self.server, openai.AsyncOpenAI) as c:
                async def one(i, body):
                    args = {"model": "demo", "max_tokens": 4, **body}
                    if i % 4 > 0:
                        return (await c.completions.create(**args)).choices[0].text
                    stream = await c.completions.create(stream=True, **args)
                    return "".join([chunk.choices[0].text async for chunk in stream])
                return await asyncio.gather(*[one(i, b) for i, b in enumerate(bodies)])

        together = asyncio.run(run())
        for i in range(0, 64, 7):
            self.assertEqual(together[i], self.complete(**dict(bodies[i], max_tokens=4))
                             .choices[0].text, bodies[i])

    def refused(self, kind, param, call):
        with self.assertRaises(kind) as caught:
            call()
        e = caught.exception
        self.assertEqual(e.param, param, e)
        self.assertTrue(e.message and e.type)
        return e

    def test_bad_requests(self):
        bad = openai.BadRequestError
        for param, more in (("max_tokens", {"max_tokens": -1}), ("temperature", {"temperature": 3}),
                            ("n", {"n": 0}), ("logprobs", {"logprobs": 99}),
                            ("top_p", {"top_p": 0}), ("stop", {"stop": ["a"] * 100}),
                            ("prompt", {"prompt": []}), ("prompt[0]", {"prompt": [10**6]}),
                            ("prompt", {"prompt": [1] * 9000}), ("suffix", {"suffix": "x"}),
                            ("best_of", {"best_of": 2}), ("stream_options", {
                                "stream_options": {"include_usage": True}})):
            with self.subTest(param):
                e = self.refused(bad, param, lambda m=more: self.complete(**m))
                self.assertEqual((e.status_code, e.type), (400, "invalid_request_error"))
        e = self.refused(bad, "logit_bias", lambda: self.complete(logit_bias={"1": 101}))
        for param, more in (("messages", {"messages": [{"role": "user", "content": "x" * 50000}]}),
                            ("messages[0].role", {"messages": [{"role": "ghost", "content": ""}]}),
                            ("top_logprobs", {"top_logprobs": 3}),
                            ("response_format", {"response_format": {"type": "json_object"}}),
                            ("tools", {"tools": [{"type": "function",
                                                  "function": {"name": "f"}}]})):
            with self.subTest(param):
                self.refused(bad, param, lambda m=more: self.chat(**m))
        for path, body in (("/v1/completions", b"{"), ("/v1/completions", b"\xff")):
            self.assertEqual(self.raw("POST", path, body).status, 400)

    def test_others(self):
        e = self.refused(openai.NotFoundError, "model", lambda: self.c.completions.create(
            model="no such model", prompt="x"))
        self.assertEqual(e.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.c.embeddings.create(model="demo", input="x", encoding_format="float")
        with client_of(self.server, key="wrong") as stranger:
            with self.assertRaises(openai.AuthenticationError):
                stranger.models.list()
            with self.assertRaises(openai.AuthenticationError):
                stranger.completions.create(model="demo", prompt="x")
        with self.assertRaises(openai.APIStatusError) as caught:
            self.complete(max_tokens=4000, extra_body={"timeout": 0.2, "ignore_eos": True})
        self.assertEqual(caught.exception.status_code, 408)


class FullQueue(Case):
    options = ("--max-queue", "1", "--max-num-seqs", "1")

    def test_full(self):
        """Two have room, others are told to come again; who comes again is served."""
        async def run():
            async with client_of(self.server, openai.AsyncOpenAI) as c:
                async def one(i, client=c):
                    r = await client.completions.create(model="demo", prompt=PROMPT, max_tokens=8,
                                                        temperature=0)
                    return r.choices[0].text
                got = await asyncio.gather(*[one(i) for i in range(12)], return_exceptions=True)
                again = await asyncio.gather(*[one(i, c.with_options(max_retries=20))
                                               for i in range(3)])
                return got, again

        got, again = asyncio.run(run())
        texts = {t for t in got if isinstance(t, str)}
        full = [e for e in got if not isinstance(e, str)]
        self.assertEqual(len(texts), 1)
        self.assertTrue(full)
        for e in full:
            self.assertIsInstance(e, openai.RateLimitError)
            self.assertEqual(e.response.headers["retry-after"], "1")
        self.assertEqual(set(again), texts)


if __name__ == "__main__":
    print("openai", openai.__version__, "on", json.dumps(sys.version.split()[0]), flush=True)
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""soak.py SECONDS | --quick: 200 clients that connect, stream, stall, hang up and send garbage.

Every finished answer is compared with the same request run alone: on one rank, one request at a time,
without the prefix cache. At the end nothing may be left (pages, calls, descriptors, memory), and the
metrics must add up with what the clients saw. Half of the time on one rank, half on pcp 2 dcp 2.

Memory is measured when a quarter of a run is over and at its end; it may grow by RSS_MORE_MB between.
"""
import argparse
import asyncio
import collections
import os
import random
import re
import string
import sys
import time

import answers
import prometheus
import wire
from server import Server, skip

MODEL = os.path.join(os.environ.get("WEFT_GOLDEN", "../shared/data/golden"), "gguf/Q8_0.gguf")
TOPOLOGIES = {"tp1": (), "pcp2 dcp2": ("--pcp", "2", "--dcp", "2")}
N_CLIENT, N_REQUEST, N_VOCAB, MODEL_LEN = 200, 48, 384, 512
QUICK_S, GRACE_S, LAST_S, RSS_MORE_MB = 60, 5, 240, 8
SERVER = ("--max-model-len", str(MODEL_LEN), "--max-num-seqs", "16", "--max-num-batched-tokens", "96",
          "--max-queue", "80", "--read-timeout", "3", "--write-timeout", "3", "--idle-timeout", "30",
          "--max-body", "1M")
# Pages of a rank, for the 16 requests of which one alone may want 32 pages.
PAGES = {"tp1": "56", "pcp2 dcp2": "28"}


# ---- requests ----

def words(rng, n):
    return " ".join("".join(rng.choices(string.ascii_lowercase + "éß漢😀", k=rng.randint(1, 8)))
                    for _ in range(n))


def prompt_of(rng, shared):
    """Text, ids, or several of them: tiny, sharing a beginning, or as long as the model takes."""
    kind = rng.randrange(8)
    if kind == 0:
        return [rng.randrange(N_VOCAB)]
    if kind == 1:
        return rng.choice("aZ ")
    if kind == 2:
        return [rng.randrange(256) for _ in range(rng.randint(200, MODEL_LEN - 20))]
    if kind == 3:
        return [words(rng, 2), rng.choice(shared)[:80], words(rng, 5)]
    return rng.choice(shared)[:rng.randint(60, 300)] + words(rng, rng.randint(0, 3))


def sampling_of(rng):
    if rng.random() < 0.4:
        return {"temperature": 0}
    out = {"temperature": rng.choice([0.3, 0.8, 1, 1.7]), "seed": rng.randrange(-2**63, 2**63)}
    for name, values in (("top_k", [1, 5, 40]), ("top_p", [0.5, 0.9]), ("min_p", [0.05]),
                         ("presence_penalty", [0.5]), ("frequency_penalty", [-0.5, 1.5]),
                         ("repetition_penalty", [1.3])):
        if rng.random() < 0.25:
            out[name] = rng.choice(values)
    return out


def request_of(rng, shared):
    """(path, body) with an answer that is the same each time."""
    body = sampling_of(rng)
    body["max_tokens"] = rng.choice([1, 2, 8, 30, 60, 120])
    if rng.random() < 0.3:
        body["ignore_eos"] = True
    if rng.random() < 0.3:
        body["stop"] = rng.choice([["e", "zz"], [" t"], ["qu", "\n", "th"]])
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 4)
    if rng.random() < 0.4:
        body["cache_salt"] = rng.choice("ab")
    if rng.random() < 0.1:
        body["logit_bias"] = {str(rng.randrange(N_VOCAB)): rng.choice([-100, 5])}
    if rng.random() < 0.3:
        text = rng.choice(shared)[:rng.randint(20, 200)]
        body["messages"] = [{"role": "user", "content": text}]
        if rng.random() < 0.4:
            body["messages"] += [{"role": "assistant", "content": words(rng, 4)},
                                 {"role": "user", "content": words(rng, 1)}]
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": rng.randint(0, 4)}
        return "/v1/chat/completions", body
    body["prompt"] = prompt_of(rng, shared)
    if rng.random() < 0.3:
        body["logprobs"] = rng.randint(0, 4)
    if rng.random() < 0.15:
        body["echo"] = True
    return "/v1/completions", body


def n_choice(body):
    p = body.get("prompt")
    n = len(p) if isinstance(p, list) and isinstance(p[0], str) else 1
    return n * body.get("n", 1)


def alone(requests):
    """The answers of a server that has nothing else to do."""
    with Server("--max-model-len", str(MODEL_LEN), "--max-num-seqs", "1", "--no-prefix-cache",
                model=MODEL) as s:
        out = []
        for path, body in requests:
            r = s.post(path, body)
            assert r.status == 200, (body, r)
            out.append(answers.said(r.json))
        return out


GARBAGE = (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /\r\n\r\n", b"\r\n" * 40, b"\0" * 100,
           b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
           wire.request("POST", "/v1/completions", b"{" * 5000),
           wire.request("POST", "/v1/completions", b'{"prompt": "\xff"}'),
           wire.request("POST", "/v1/completions", b"5;\r\n", [("Transfer-Encoding", "chunked")]),
           wire.request("POST", "/v1/completions", b"", [("Content-Length", "99999999999")]),
           wire.post("/v1/completions", {"prompt": "a", "max_tokens": 10**12}),
           wire.post("/v1/completions", {"prompt": [1, 2, N_VOCAB]}),
           wire.post("/v1/completions", {"prompt": "a" * 5000, "max_tokens": 1}),
           wire.post("/v1/chat/completions", {"messages": []}),
           wire.request("GET", "/x" * 500), wire.request("PUT", "/v1/completions", b"{}"),
           wire.request("GET", "/health", headers=[("X-" + "a" * 70000, "b")]))


# ---- clients ----

class Soak:
    def __init__(self, server, requests, truth, seed):
        self.port, self.requests, self.truth = server.port, requests, truth
        self.rng = random.Random(seed)
        self.count = collections.Counter()
        self.seen = collections.Counter()  # of finished answers: ends, tokens, replies
        self.wrong = []
        self.ending = False
        self.acts = [(20, self.whole), (20, self.stream), (4, self.slow_stream), (5, self.hang_up_queued),
                     (5, self.hang_up_before_token), (8, self.hang_up_in_stream),
                     (6, self.hang_up_in_reply), (6, self.half_close), (3, self.stall_in_request),
                     (3, self.stall_in_reply), (8, self.garbage), (6, self.time_out), (5, self.keep_alive),
                     (4, self.pipeline), (5, self.look), (3, self.connect_only), (4, self.tokens)]

    def pick(self):
        i = self.rng.randrange(len(self.requests))
        return i, *self.requests[i]

    def check(self, i, body, got, path, status=200):
        """Compares a finished answer and counts what it brought."""
        self.count["answers compared"] += 1
        if got != self.truth[i]:
            self.count["WRONG ANSWERS"] += 1
            self.wrong.append((path, body, got, self.truth[i]))
        self.seen[path, "2xx"] += 1
        for c in got["choices"].values():
            self.seen[c["end"]] += 1
        self.seen["tokens"] += got["usage"]["completion_tokens"]

    async def take(self, c, i, path, body):
        """The reply on c: the right answer, or 429."""
        r = await c.reply(LAST_S)
        if r.status == 200:
            self.check(i, body, answers.said(r.json), path)
        else:
            await self.refused(r, path, body)
        return r

    async def refused(self, r, path, body, *more):
        allowed = (429, *more)
        self.seen[path, f"{r.status // 100}xx"] += 1
        if r.status not in allowed:
            self.wrong.append((path, body, r, allowed))
            self.count["WRONG STATUS"] += 1
            return
        self.count[f"status {r.status}"] += 1
        assert r.error and (r.status != 429 or int(r.headers["retry-after"]) > 0), r
        if r.status == 429:
            await asyncio.sleep(self.rng.uniform(0.2, 2))

    async def begin(self, c, stream=None, **more):
        i, path, body = self.pick()
        sent = dict(body, **more)
        if stream:
            sent |= {"stream": True, "stream_options": {"include_usage": True}}
        self.count["requests sent"] += 1
        await c.send(wire.post(path, sent))
        return i, path, body

    async def whole(self, c):
        await self.take(c, *await self.begin(c))

    async def read_stream(self, c, slow=0.0):
        i, path, body = await self.begin(c, stream=True)
        events = []
        try:
            async for e in c.events(LAST_S):
                events.append(e)
                if slow:
                    await asyncio.sleep(self.rng.uniform(0, slow))
        except wire.Broken as e:
            if "Reply(429" not in str(e):
                raise
            self.seen[path, "4xx"] += 1
            self.count["status 429"] += 1
            await asyncio.sleep(self.rng.uniform(0.2, 2))
            return
        self.check(i, body, answers.joined(events), path)

    async def stream(self, c):
        await self.read_stream(c)

    async def slow_stream(self, c):
        await self.read_stream(c, slow=0.1)

    def leave(self, c):
        self.count["hung up"] += 1
        c.reset() if self.rng.random() < 0.5 else c.close()

    async def hang_up_queued(self, c):
        await self.begin(c, stream=self.rng.random() < 0.5)
        self.leave(c)

    async def hang_up_before_token(self, c):
        await self.begin(c, stream=True)
        await c.head(LAST_S)
        self.leave(c)

    async def hang_up_in_stream(self, c):
        await self.begin(c, stream=True)
        r = await c.head(LAST_S)
        n = self.rng.randint(1, 12)
        async for _ in c.pieces(r, LAST_S):
            n -= 1
            if n == 0:
                break
        self.leave(c)

    async def hang_up_in_reply(self, c):
        await self.begin(c)
        await asyncio.sleep(self.rng.uniform(0, 0.6))
        self.leave(c)

    async def half_close(self, c):
        """One that sends no more still gets its answer."""
        what = await self.begin(c)
        c.half_close()
        await self.take(c, *what)
        self.count["half-closed"] += 1

    async def stall_in_request(self, c):
        _, path, body = self.pick()
        data = wire.post(path, body)
        await c.send(data[:self.rng.randrange(1, len(data))])
        self.count["stalled while sending"] += 1
        if self.rng.random() < 0.5:
            r = await c.reply(20)
            assert r.status == 408 and r.error, r
            self.seen["stall", "408"] += 1
        else:
            await asyncio.sleep(self.rng.uniform(0, 1))
            self.leave(c)

    async def stall_in_reply(self, c):
        await self.begin(c, stream=True)
        c.writer.transport.pause_reading()
        await asyncio.sleep(self.rng.uniform(0, 5))
        self.count["stalled while reading"] += 1
        self.leave(c)

    async def garbage(self, c):
        self.count["garbage sent"] += 1
        data = self.rng.choice(GARBAGE)
        if self.rng.random() < 0.3:
            data = self.rng.randbytes(self.rng.randint(1, 2000)) + b"\r\n\r\n"
        await c.send(data)
        if self.rng.random() < 0.5:
            self.leave(c)
            return
        c.half_close()
        try:
            r = await c.reply(20)
        except wire.Broken:
            return  # an end before a head, or in it: nothing was asked
        assert 400 <= r.status < 600 and r.status not in (500, 503) and r.error, (data[:100], r)
        assert len(r.body) < 1000, len(r.body)
        self.count["garbage answered"] += 1

    async def time_out(self, c):
        i, path, body = await self.begin(c, timeout=self.rng.choice([0.001, 0.05, 0.3]))
        r = await c.reply(LAST_S)
        if r.status == 200:
            self.check(i, body, answers.said(r.json), path)
        else:
            await self.refused(r, path, body, 408)

    async def keep_alive(self, c):
        for _ in range(self.rng.randint(2, 4)):
            what = await self.begin(c)
            await self.take(c, *what)

    async def pipeline(self, c):
        what = [await self.begin(c) for _ in range(2)]
        for w in what:
            await self.take(c, *w)
        self.count["pipelined"] += 2

    async def look(self, c):
        path = self.rng.choice(["/v1/models", "/version", "/tokenizer_info", "/health"])
        await c.send(wire.request("GET", path))
        r = await c.reply()
        assert r.status == 200 and r.json, r

    async def connect_only(self, c):
        await asyncio.sleep(self.rng.uniform(0, 2))

    async def tokens(self, c):
        text = words(self.rng, self.rng.choice([1, 50, 50, 2000]))
        await c.send(wire.post("/tokenize", {"prompt": text}))
        r = await c.reply(LAST_S)
        if r.status == 200 and r.json["count"] > MODEL_LEN:
            return  # more than /detokenize takes
        if r.status == 200:
            await c.send(wire.post("/detokenize", {"tokens": r.json["tokens"]}))
            r = await c.reply(LAST_S)
        if r.status != 200:
            await self.refused(r, "/tokenize", text)
            return
        assert r.json["prompt"] == text, r
        self.count["texts tokenised and back"] += 1

    async def client(self):
        weights, acts = [w for w, _ in self.acts], [a for _, a in self.acts]
        while not self.ending:
            act = self.rng.choices(acts, weights)[0]
            try:
                c = await wire.dial(self.port)
                try:
                    await act(c)
                finally:
                    c.close()
            except Exception as e:  # one wrong act must not hide what others find
                self.count["FAILED ACTS"] += 1
                self.wrong.append((act.__name__, type(e).__name__, str(e)[:600]))

    async def watch(self):
        """Health, and metrics that only grow."""
        before = None
        while not self.ending:
            r = await wire.ask(self.port, wire.request("GET", "/health"), 10)
            assert r.status == 200, r
            r = await wire.ask(self.port, wire.request("GET", "/metrics"), 10)
            now = prometheus.parse(r.body.decode())
            if before:
                prometheus.check_growth(before, now)
            before = now
            self.count["metrics read"] += 1
            await asyncio.sleep(0.5)


# ---- what is left ----

def process_counts(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        status = dict(line.split(":", 1) for line in f)
    return {"fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(status["Threads"]),
            "rss_mb": int(status["VmRSS"].split()[0]) / 1024}


def settled(pid):
    """When the connection of the last look is closed too."""
    least = process_counts(pid)
    for _ in range(20):
        time.sleep(0.05)
        least = min(least, process_counts(pid), key=lambda c: c["fds"])
    return least


def is_instrumented(pid):
    """A sanitizer keeps what is freed."""
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as f:
        return bool(re.search(r"/lib[atu]b?san\.so", f.read()))


def delta(before, after, name):
    return after[name] - before.get(name, 0)


def wait_closed(s):
    """Until this connection is the only one, and nothing is open or held."""
    end = time.monotonic() + LAST_S
    while True:
        m = s.wait_idle(LAST_S)
        if m["weft_http_connections"] <= 1:
            return m
        assert time.monotonic() < end, f"{m['weft_http_connections']} connections are left"
        time.sleep(0.1)


ENDS = [f'weft_request_success_total{{finished_reason="{r}"}}'
        for r in ("stop", "length", "cancelled", "error")]


def check_sums(k, m, start, seen):
    """What holds however many clients hung up."""
    ends = {e: delta(start, m, e) for e in ENDS}
    n = sum(ends.values())
    k["engine: stop, length, cancelled, error"] = ", ".join(str(int(v)) for v in ends.values())
    assert delta(start, m, "weft_e2e_request_latency_seconds_count") == n, ends
    queued = delta(start, m, "weft_request_queue_time_seconds_count")
    first = delta(start, m, "weft_time_to_first_token_seconds_count")
    assert ends[ENDS[0]] + ends[ENDS[1]] <= first <= queued <= n, (ends, first, queued)
    assert ends[ENDS[0]] >= seen["stop"] and ends[ENDS[1]] >= seen["length"], (ends, seen)
    assert ends[ENDS[3]] == 0, ends
    tokens = delta(start, m, "weft_generation_tokens_total")
    assert tokens >= seen["tokens"], (tokens, seen)
    k["tokens generated"], k["tokens in finished answers"] = int(tokens), seen["tokens"]
    for path in ("/v1/completions", "/v1/chat/completions"):
        for c in ("2xx", "4xx"):
            name = f'weft_http_requests_total{{route="{path}",status="{c}"}}'
            assert delta(start, m, name) >= seen[path, c], (name, m[name], seen)
    for name, text in (("num_preemptions", "preemptions"), ("prefix_cache_hits", "cached tokens used"),
                       ("clients_gone", "clients gone")):
        k[text] = int(delta(start, m, f"weft_{name}_total"))
        assert k[text] > 0, f"no {text}: the soak does not reach what it is for"


def check_exact(s, requests, truth):
    """One request at a time on the server that has been through it all: same bytes, and sums that
    are equal. A stop string is found after the engine has gone on, so those have sums of their own."""
    before, want = s.metrics(), collections.Counter()
    for (path, body), right in zip(requests, truth):
        if "stop" in body:
            continue
        r = s.post(path, body)
        assert r.status == 200 and answers.said(r.json) == right, (body, r, right)
        want[f'weft_http_requests_total{{route="{path}",status="2xx"}}'] += 1
        u, n = r.json["usage"], n_choice(body)
        want["weft_prompt_tokens_total"] += u["prompt_tokens"] * body.get("n", 1)
        want["weft_generation_tokens_total"] += u["completion_tokens"]
        want["weft_time_to_first_token_seconds_count"] += n
        want["weft_inter_token_latency_seconds_count"] += u["completion_tokens"] - n
        for c in right["choices"].values():
            want[f'weft_request_success_total{{finished_reason="{c["end"]}"}}'] += 1
    after = s.metrics()
    for name, value in want.items():
        assert delta(before, after, name) == value, (name, delta(before, after, name), value)
    return len(want)


async def run_clients(s, soak, seconds):
    clients = [asyncio.create_task(soak.client()) for _ in range(N_CLIENT)]
    watch = asyncio.create_task(soak.watch())
    await asyncio.sleep(seconds / 4)
    middle = process_counts(s.pid)
    await asyncio.sleep(seconds - seconds / 4)
    soak.ending = True
    _, late = await asyncio.wait([*clients, watch], timeout=GRACE_S)
    soak.count["hung up at the end"] = len(late)
    for task in late:
        task.cancel()
    await asyncio.gather(*clients, watch, return_exceptions=True)
    if watch.done() and not watch.cancelled() and watch.exception():
        raise watch.exception()
    return middle


def soak_topology(name, seconds, requests, truth, seed):
    with Server(*SERVER, "--kv-pages", PAGES[name], *TOPOLOGIES[name], model=MODEL) as s:
        start, fresh = wait_closed(s), settled(s.pid)
        soak = Soak(s, requests, truth, seed)
        middle = asyncio.run(run_clients(s, soak, seconds))
        m, k = wait_closed(s), soak.count
        last = settled(s.pid)
        for w in soak.wrong[:5]:
            print("wrong:", *w, sep="\n    ")
        k["descriptors before, after"] = f"{fresh['fds']}, {last['fds']}"
        k["MB before, at a quarter, after"] = ", ".join(f"{c['rss_mb']:.1f}" for c in (fresh, middle, last))
        try:
            check_sums(k, m, start, soak.seen)
            k["sums checked one by one"] = check_exact(s, requests, truth)
        finally:
            table(name, k)
        assert not soak.wrong, f"{len(soak.wrong)} acts went wrong"
        assert last["fds"] == fresh["fds"] and last["threads"] == fresh["threads"], (fresh, last)
        grown = last["rss_mb"] - middle["rss_mb"]
        assert grown < RSS_MORE_MB or is_instrumented(s.pid), (middle, last)


def table(name, k):
    print(f"\n{name}\n{'-' * 60}")
    for what in sorted(k, key=str.lower):
        print(f"{what:42} {k[what]}")
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("seconds", nargs="?", type=int, default=QUICK_S)
    p.add_argument("--quick", action="store_true", help=f"{QUICK_S} seconds")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", choices=TOPOLOGIES)
    a = p.parse_args()
    if not os.path.exists(MODEL):
        skip(f"no file {MODEL}")
    rng = random.Random(a.seed)
    shared = [words(rng, 60) for _ in range(4)]
    requests = [request_of(rng, shared) for _ in range(N_REQUEST)]
    truth = alone(requests)
    names = [a.only] if a.only else list(TOPOLOGIES)
    for i, name in enumerate(names):
        soak_topology(name, a.seconds / len(names), requests, truth, a.seed + i)


main()

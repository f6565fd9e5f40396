"""Runs a program's cases, each beside control requests whose bytes must not change.

    async def c05_bad_bytes(s): ...        # s: Server; raises when something is wrong
    cases.run(Server(...), globals(), "c05", ...)

A case is an `async def` with one parameter s. While it runs, fixed requests are sent one after the
other, greedy, seeded and streamed; after it the server must be alive, without errors of its own.
"""
import asyncio
import inspect
import os
import sys
import time

import answers
import wire
from server import skip

MODEL = os.path.join(os.environ.get("WEFT_GOLDEN", "../shared/data/golden"), "gguf/Q8_0.gguf")
N_VOCAB = 384  # of MODEL
CASE_S = 60
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
CONTROL = ((COMPLETION, {"prompt": "The quick brown fox", "max_tokens": 24, "temperature": 0, "logprobs": 2}),
           (CHAT, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 7, "n": 2}),
           (COMPLETION, {"prompt": [5, 6, 7] * 20, "max_tokens": 16, "seed": -3, "temperature": 1.3}))


def need_model():
    if not os.path.exists(MODEL):
        skip(f"no file {MODEL}")


async def refused(s, data, status, param=None, bare=False):
    """The server refuses `data` with an error of OpenAI's shape that is short and names the field."""
    r = await wire.ask(s.port, data, 20, bare)
    assert r.status == status, (data[:200], status, r)
    assert len(r.body) < 1000, f"an error of {len(r.body)} bytes"
    if not bare:
        assert r.error["param"] == param, (data[:200], param, r)
    return r


async def ask(s, path, body, status=200, within_s=60):
    r = await wire.ask(s.port, wire.post(path, body), within_s)
    assert r.status == status, (path, str(body)[:300], r)
    return r


async def said(s, path, body):
    return answers.said((await ask(s, path, body)).json)


async def streamed(s, path, body):
    """The same from a stream, with its events."""
    c = await wire.dial(s.port)
    try:
        await c.send(wire.post(path, dict(body, stream=True, stream_options={"include_usage": True})))
        events = [e async for e in c.events()]
    finally:
        c.close()
    return answers.joined(events), events


async def metric(s, name):
    r = await wire.ask(s.port, wire.request("GET", "/metrics"))
    for line in r.body.decode().split("\n"):
        if line.startswith(name + " ") or (line.startswith(name + "{") and "{" not in name):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


async def until(what, within_s, *args):
    """Waits until `await what(*args)` is true."""
    end = time.monotonic() + within_s
    while not await what(*args):
        assert time.monotonic() < end, f"{what.__name__}{args} does not come true in {within_s} s"
        await asyncio.sleep(0.05)


async def is_idle(s):
    return (await metric(s, "weft_num_requests_running") == 0 and
            await metric(s, "weft_num_requests_waiting") == 0 and
            await metric(s, "weft_kv_pages_used") == 0 and await metric(s, "weft_http_calls") == 0)


class Control:
    def __init__(self, s):
        self.s, self.n, self.busy, self.truth = s, 0, 0, None

    async def one(self, i):
        path, body = CONTROL[i]
        if i == 2:
            return (await streamed(self.s, path, body))[0]
        return await said(self.s, path, body)

    async def learn(self):
        self.truth = [await self.one(i) for i in range(len(CONTROL))]

    async def beside(self, over):
        """Until `over`, and at least once each; a full queue is no wrong byte."""
        done = 0
        while done < len(CONTROL) or not over.is_set():
            i = done % len(CONTROL)
            try:
                got = await self.one(i)
                assert got == self.truth[i], ("a control request's answer changed", CONTROL[i], got)
                done += 1
                self.n += 1
            except (AssertionError, wire.Broken) as e:
                if "Reply(429" not in str(e):
                    raise
                self.busy += 1
            await asyncio.sleep(0.02)


async def run_case(s, control, name, case):
    over = asyncio.Event()
    beside = asyncio.create_task(control.beside(over))
    begin = time.monotonic()
    try:
        await asyncio.wait_for(case(s), CASE_S)
    finally:
        over.set()
    await asyncio.wait_for(beside, CASE_S)
    assert s.alive(), "the server has ended"
    bad = [e for e in s.log if e.get("level") == "error"] + s.other
    assert not bad, bad
    print(f"{name:32} {time.monotonic() - begin:6.2f} s", flush=True)


async def run_all(s, cases):
    control, failed = Control(s), 0
    await control.learn()
    for name, case in cases:
        try:
            await run_case(s, control, name, case)
        except Exception as e:
            failed += 1
            print(f"{name:32} FAILED: {type(e).__name__}: {str(e)[:2000]}", flush=True)
            if not s.alive():
                break
    await until(is_idle, 20, s)
    print(f"{len(cases)} cases, {failed} failed; {control.n} control answers unchanged "
          f"({control.busy} found the queue full)")
    return failed


def of(names):
    """The cases among a module's names, in the order of the file."""
    return [(n, f) for n, f in names.items() if inspect.iscoroutinefunction(f) and
            list(inspect.signature(f).parameters) == ["s"] and f.__module__ == "__main__"]


def run(server, names):
    """All cases of a module on one server, or those whose name begins with an argument. The number
    of those that failed."""
    chosen = [c for c in of(names) if len(sys.argv) < 2 or c[0].startswith(tuple(sys.argv[1:]))]
    with server as s:
        return asyncio.run(run_all(s, chosen))

#!/usr/bin/env python3
"""A server's life (docs/traps.md, group G): full queues, time-outs, keys, a frozen or a failing engine,
signals, a kill under load. Each case has a server of its own."""
import asyncio
import ctypes
import inspect
import os
import signal
import socket
import sys
import time

import cases
import wire
from cases import CHAT, COMPLETION, ask, refused, said
from server import Server

# About 1,900 tokens, for requests that are still there when something happens.
LONG = {"prompt": "abc", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
HEALTH = wire.request("GET", "/health")


def serve(*options, expect=0, **more):
    return Server(*options, model=cases.MODEL, expect=expect, **more)


async def begin(s, body):
    c = await wire.dial(s.port)
    await c.send(wire.post(COMPLETION, body))
    return c


async def begin_stream(s, body):
    """A stream whose first token has come."""
    c = await begin(s, body | {"stream": True})
    events = c.events()
    await anext(events)
    return c, events


async def text_of(events):
    return "".join([c["text"] async for e in events for c in e["choices"]])


async def in_thread(call, *args):
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


# ---- limits ----

async def full_queue(s):
    """429 with Retry-After for what is one too many; the others are answered."""
    async with Life(serve("--max-num-seqs", "1", "--max-queue", "3")) as s:
        held = [await begin(s, LONG | {"max_tokens": 1500}) for _ in range(4)]

        async def taken(server):
            return await cases.metric(server, "weft_http_calls") == 4
        await cases.until(taken, 10, s)
        for path, body in ((COMPLETION, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
            for stream in (False, True):
                r = await refused(s, wire.post(path, body | {"stream": stream}), 429)
                assert int(r.headers["retry-after"]) >= 1, r.headers
        await refused(s, wire.post(COMPLETION, {"prompt": "a", "n": 5}), 400, "n")
        assert (await wire.ask(s.port, HEALTH)).status == 200
        answers = [await c.reply() for c in held]
        assert all(r.status == 200 for r in answers) and len({r.json["choices"][0]["text"] for r in answers}) == 1
        await ask(s, COMPLETION, {"prompt": "a", "max_tokens": 1})


async def timeouts(s):
    async with Life(serve("--max-num-seqs", "2")) as s:
        for stage in (0.001, 0.2):
            await refused(s, wire.post(COMPLETION, LONG | {"timeout": stage}), 408, "timeout")
        c = await begin(s, LONG | {"timeout": 0.3, "stream": True})
        r = await c.reply()
        last = r.body.decode().split("\n\n")[-3:]
        assert r.status == 200 and "timeout" in last[0] and '"error"' in last[0], last
        assert last[1] == "data: [DONE]", last
        waiting = [await begin(s, LONG) for _ in range(2)]
        await refused(s, wire.post(COMPLETION, LONG | {"timeout": 0.2}), 408, "timeout")  # in the queue
        for c in waiting:
            c.close()
        await cases.until(cases.is_idle, 5, s)
        await ask(s, COMPLETION, {"prompt": "a", "timeout": 60, "max_tokens": 2})


async def unread_stream(s):
    """More than --max-unread bytes that wait for a client end its stream, and free its request."""
    async with Life(serve("--max-unread", "256k", "--write-timeout", "30")) as s:
        c = await wire.dial(s.port, receive_bytes=4096)
        c.writer.transport.pause_reading()
        await c.send(wire.post(COMPLETION, LONG | {"logprobs": 20, "stream": True, "n": 4}))

        async def broken_off(server):
            # its status was 200 when it began
            return await cases.metric(server, 'weft_request_success_total{finished_reason="cancelled"}') == 4
        await cases.until(broken_off, 20, s)
        await cases.until(cases.is_idle, 5, s)
        c.writer.transport.resume_reading()
        r = await c.reply()
        last = r.body.decode().split("\n\n")[-3:]
        assert r.status == 200 and "too slowly" in last[0] and last[1] == "data: [DONE]", last
        assert 256 << 10 < len(r.body) < 2 << 20, len(r.body)


async def large_answers(s):
    """Log-probabilities of many choices wait until all have ended; there is an end to it."""
    async with Life(serve("--max-unread", "256K", "--max-num-seqs", "16")) as s:
        body = LONG | {"max_tokens": 200, "logprobs": 20, "n": 16}
        r = await refused(s, wire.post(COMPLETION, body), 400)
        assert "too large" in r.error["message"], r
        await cases.until(cases.is_idle, 10, s)
        r = await ask(s, COMPLETION, body | {"n": 2, "max_tokens": 20})
        assert len(r.body) > 10000, len(r.body)


async def many_large_answers(s):
    """When all answers that wait are too many the largest give way, not whoever comes next."""
    async with Life(serve("--max-unread", "64K", "--max-num-seqs", "40")) as s:
        _, events = await begin_stream(s, LONG | {"max_tokens": 200})
        held = [await begin(s, LONG | {"max_tokens": 100, "logprobs": 20}) for _ in range(36)]
        got = [(await c.reply()).status for c in held]
        assert set(got) == {200, 503} and got.count(200) >= 12, got
        text = await text_of(events)
        assert len(text) > 100, text
        await cases.until(cases.is_idle, 10, s)
        r = await ask(s, COMPLETION, LONG | {"max_tokens": 100, "logprobs": 20})
        assert 30000 < len(r.body) < 65536, len(r.body)


async def paused(s):
    """A pause of the whole process is not taken for an engine that hangs."""
    for options in ((), ("--pcp", "2", "--dcp", "2")):
        async with Life(serve("--health-timeout", "1", *options)) as s:
            _, events = await begin_stream(s, LONG | {"max_tokens": 600, "logprobs": 20})
            s.signal(signal.SIGSTOP)
            await asyncio.sleep(7)
            s.signal(signal.SIGCONT)
            text = await text_of(events)
            assert len(text) > 100, text
            assert (await wire.ask(s.port, HEALTH)).status == 200


async def keys_and_origins(s):
    key = "correct-horse"
    async with Life(serve("--api-key", key, "--api-key", "b", "--cors-origin", "https://a.example")) as s:
        wrong = (None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + key[:-1], "Bearer " + key + "x",
                 "Bearer " + key * 2, "Basic " + key, key, "Bearer b" + "b" * 10000, "Bearer \xff")
        for given in wrong:
            headers = [] if given is None else [("Authorization", given)]
            for method, path in (("GET", "/v1/models"), ("POST", COMPLETION), ("GET", "/metrics"),
                                 ("POST", "/tokenize")):
                r = await refused(s, wire.request(method, path, b"{}", headers), 401)
                assert "bearer" in r.headers["www-authenticate"].lower() and key.encode() not in r.body
        # a body that may not come is not waited for
        await refused(s, wire.request("POST", COMPLETION, b"", [("Content-Length", "1000000")]), 401)
        await refused(s, wire.request("POST", "/nowhere", b"", [("Content-Length", "1000000")]), 404)
        for given in ("Bearer " + key, "bearer b"):
            r = await wire.ask(s.port, wire.request("GET", "/v1/models", headers=[("Authorization", given)]))
            assert r.status == 200 and r.headers["access-control-allow-origin"] == "https://a.example", r.headers
        assert (await wire.ask(s.port, HEALTH)).status == 200
        preflight = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST"),
                     ("Access-Control-Request-Headers", "authorization,x-stainless-os")]
        r = await wire.ask(s.port, wire.request("OPTIONS", COMPLETION, headers=preflight), bare=True)
        assert r.status == 204 and "POST" in r.headers["access-control-allow-methods"], r.headers


async def few_descriptors(s):
    """More clients than the process may have descriptors: they wait, and nothing breaks."""
    async with Life(serve(launcher=("prlimit", "--nofile=40:40"))) as s:
        held = [await wire.dial(s.port) for _ in range(80)]
        await asyncio.sleep(0.5)
        for c in held:
            c.close()
        await asyncio.sleep(1.2)
        await ask(s, COMPLETION, {"prompt": "a", "max_tokens": 2})


# ---- engine ----

async def fails(fault, *options):
    """A rank fails: whoever waits is told within seconds, and the process ends with 5."""
    body = LONG | {"prompt": [7, 8, 9] * 200, "max_tokens": 1000}
    async with Life(serve("--fault", fault, "--max-num-batched-tokens", "64", *options, expect=5)) as s:
        waiting, streams, late = [[await wire.dial(s.port) for _ in range(n)] for n in (6, 3, 1)]
        start = time.monotonic()
        for c in waiting + streams:  # all of them, before the first plan may bring the fault
            c.writer.write(wire.post(COMPLETION, body | {"stream": c in streams}))
        for c in waiting + late:  # a request that comes behind the failure is answered too
            if c in late:
                c.writer.write(wire.post(COMPLETION, body))
            r = await c.reply(20)
            assert r.status >= 500 and r.error, r
        for c in streams:
            r = await c.reply(20)
            assert r.status >= 500 or (b'"error"' in r.body and r.body.endswith(b"data: [DONE]\n\n")), r
        code = await in_thread(s.wait, 20)
        assert code == 5, code
        assert time.monotonic() - start < 20


async def g02_rank_fails(s):
    await fails("rank-fails")


async def g02_rank_fails_among_four(s):
    await fails("rank-fails", "--tp", "2", "--pcp", "2", "--dcp", "2")


async def g02_rank_leaves(s):
    await fails("early-exit", "--pcp", "2", "--dcp", "2")


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


class Frozen:
    """All threads of the process but its first, which speaks HTTP, stand still."""

    def __init__(self, pid):
        self.pid, self.libc, self.held = pid, ctypes.CDLL(None, use_errno=True), []

    def trace(self, request, thread):
        null = ctypes.c_void_p(0)
        return self.libc.ptrace(request, thread, null, null) == 0

    def __enter__(self):
        for thread in map(int, os.listdir(f"/proc/{self.pid}/task")):
            if thread != self.pid and self.trace(PTRACE_SEIZE, thread):
                self.held.append(thread)
                self.trace(PTRACE_INTERRUPT, thread)
                os.waitpid(thread, WALL)
        return self

    def __exit__(self, *_):
        for thread in self.held:
            self.trace(PTRACE_DETACH, thread)


async def health(s, status):
    return (await wire.ask(s.port, HEALTH, 3)).status == status


async def frozen_health(server, waiting):
    """503 while the engine stands still, for who waits too. False: nobody may be traced here. A thread
    that is stopped with a lock in its hands stops the asker too, which no engine does: then once more."""
    for _ in range(4):
        with Frozen(server.pid) as frozen:  # the tracer is this thread: no await in another one here
            if not frozen.held:
                return False
            try:
                await cases.until(health, 10, server, 503)
                assert (await wire.ask(server.port, wire.request("GET", "/metrics"), 3)).status == 200
                if waiting:
                    r = await waiting.reply(10)
                    assert r.status == 503 and r.error, r
                return True
            except TimeoutError:
                pass
        await asyncio.sleep(0.01)
    raise AssertionError("no answer in 4 attempts")


async def g01_frozen_engine(s):
    """Health says 503 while the engine stands still, idle or at work, and who waits is told; when it
    goes on, it is as if nothing had been."""
    body = LONG | {"n": 4}
    async with Life(serve("--health-timeout", "1", "--pcp", "2", "--dcp", "2")) as s:
        right = await said(s, COMPLETION, LONG)
        for busy in (False, True):
            c = await begin(s, body) if busy else None
            await asyncio.sleep(0.1)
            if not await frozen_health(s, c):
                print("    nobody may be traced here: not shown")
                return
            await cases.until(health, 10, s, 200)
            await cases.until(cases.is_idle, 10, s)
            assert await said(s, COMPLETION, LONG) == right


# ---- signals ----

async def g07_drain(s):
    """SIGTERM: open streams and replies end whole, new clients are turned away, exit 0."""
    body = LONG | {"max_tokens": 900}
    for number in (signal.SIGTERM, signal.SIGINT):
        async with Life(serve()) as s:
            right = await said(s, COMPLETION, body)
            c, events = await begin_stream(s, body)
            await c.send(HEALTH + wire.post(COMPLETION, {"prompt": "a"}))
            plain, idle = await begin(s, body), await wire.dial(s.port)
            half = await wire.dial(s.port)
            await half.send(wire.post(COMPLETION, {"prompt": "a"})[:40])
            await asyncio.sleep(0.05)
            s.signal(number)
            await idle.closed(10)
            await half.send(wire.post(COMPLETION, {"prompt": "a"})[40:])
            r = await half.reply()
            assert r.status == 503 and r.error and r.headers["connection"] == "close", r
            try:
                await wire.ask(s.port, HEALTH, 5)
                raise AssertionError("a new client was let in")
            except (ConnectionError, wire.Broken):
                pass
            text = await text_of(events)
            assert right["choices"][0]["text"].endswith(text) and len(text) > 100
            r = await c.reply()  # sent before the drain, read in it
            assert r.status == 503 and r.headers["connection"] == "close", r
            r = await plain.reply()
            assert cases.answers.said(r.json) == right
            for w in (c, half, plain):
                w.close()
            assert await in_thread(s.wait, 20) == 0


async def g07_drain_ends(s):
    """What has not ended by --drain-timeout is broken off with an error."""
    async with Life(serve("--drain-timeout", "1", "--max-num-seqs", "1")) as s:
        held = [await begin(s, LONG | {"n": 8}) for _ in range(2)]
        c, _ = await begin(s, LONG | {"n": 2, "stream": True}), None
        await asyncio.sleep(0.2)
        s.signal()
        for h in held:
            assert (await h.reply(20)).status == 503
        r = await c.reply(20)
        assert r.status == 503 or b'"error"' in r.body, r
        assert await in_thread(s.wait, 20) == 0


async def g07_second_signal(s):
    for numbers in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)):
        async with Life(serve("--max-num-seqs", "2", "--pcp", "2")) as s:
            held = [await begin(s, LONG | {"n": 8, "stream": i % 2 == 0}) for i in range(6)]
            await asyncio.sleep(0.2)
            s.signal(numbers[0])
            await asyncio.sleep(0.3)
            assert s.alive()
            s.signal(numbers[1])
            start = time.monotonic()
            code = await in_thread(s.wait, 20)
            assert code == 0, (code, s.other)
            assert time.monotonic() - start < 10, time.monotonic() - start
            for h in held:
                await h.closed(5)


async def g07_kill_under_load(s):
    """Nothing of a killed server is left: its clients see an end, its port can be had at once."""
    async with Life(serve("--pcp", "2")) as s:
        held = [await begin(s, LONG | {"stream": i % 2 == 0}) for i in range(8)]
        await asyncio.sleep(0.2)
        s.process.kill()
        await in_thread(s.process.wait, 10)
        for h in held:
            await h.closed(5)
        port, s.expect = s.port, -signal.SIGKILL
    again = serve()
    again.command[again.command.index("--port") + 1] = str(port)
    async with Life(again) as s:
        assert s.port == port
        await ask(s, COMPLETION, {"prompt": "a", "max_tokens": 1})


async def g07_client_killed(s):
    """A client process that is killed leaves nothing running."""
    async with Life(serve()) as s:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            socks = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(10)]
            for i, sock in enumerate(socks):
                sock.sendall(wire.post(COMPLETION, LONG | {"stream": i % 2 == 0}))
            os.write(write, b"x")
            time.sleep(60)
            os._exit(0)
        os.read(read, 1)
        os.close(read)
        os.close(write)
        await asyncio.sleep(0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        await cases.until(cases.is_idle, 5, s)


async def port_taken(s):
    """A second server on the port says so and ends with 2."""
    async with Life(serve()) as s:
        other = serve()
        other.command[other.command.index("--port") + 1] = str(s.port)
        try:
            await in_thread(other.start)
            raise AssertionError("two servers on one port")
        except AssertionError as e:
            assert "does not listen" in str(e) and str(s.port) in str(e), e
        assert await in_thread(other.process.wait, 10) in (2, -signal.SIGKILL)


class Life:
    """A server whose start and stop do not hold up the clients of this thread."""

    def __init__(self, s):
        self.s = s

    async def __aenter__(self):
        return await in_thread(self.s.start)

    async def __aexit__(self, *error):
        await in_thread(self.s.__exit__, *error)


async def run_all():
    failed = n = 0
    for name, case in list(globals().items()):
        if not inspect.iscoroutinefunction(case) or list(inspect.signature(case).parameters) != ["s"]:
            continue
        if case.__module__ != "__main__" or not name.startswith(tuple(sys.argv[1:]) or ""):
            continue
        start, n = time.monotonic(), n + 1
        try:
            await asyncio.wait_for(case(None), cases.CASE_S)
            print(f"{name:32} {time.monotonic() - start:6.2f} s", flush=True)
        except Exception as e:
            failed += 1
            print(f"{name:32} FAILED: {type(e).__name__}: {str(e)[:2000]}", flush=True)
    print(f"{n} cases, {failed} failed")
    return failed


if __name__ == "__main__":
    cases.need_model()
    sys.exit(asyncio.run(run_all()) > 0)

"""A `weft serve` of one's own, for the tests of this folder. Standard library only.

    with Server("--max-queue", "4") as s:
        s.get("/health")                    # -> Reply(status, headers, body)
        s.post("/v1/completions", {...})    # -> Reply; .json is the parsed body
        s.stream("/v1/completions", {...})  # -> the events' JSON, without [DONE]
        s.metrics()                         # -> {'name{labels}': value}

Leaving the block sends SIGTERM and checks that the server drains and exits with 0. All waits have an
end: READY_S for the model, STOP_S for the drain, REPLY_S for every reply. What the server writes is
in s.log (its JSON lines, parsed) and s.other (lines that are no JSON, such as a sanitizer's).

WEFT (the program) and WEFT_DEMO_MODEL (a GGUF file) come from the environment; ctest sets both.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
WEFT = os.environ.get("WEFT", os.path.join(SOURCE, "build", "release", "weft"))
MODEL = os.environ.get("WEFT_DEMO_MODEL",
                       os.path.join(SOURCE, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
READY_S, STOP_S, REPLY_S = 120, 60, 300
BUSY = re.compile(r"weft_(num_requests_running|num_requests_waiting|http_calls|kv_pages_used\{.*)")


def skip(why):
    """Ends the test; ctest reports 77 as skipped, never as passed."""
    print("skipped:", why)
    sys.exit(77)


def need_files():
    for name, path in (("WEFT", WEFT), ("WEFT_DEMO_MODEL", MODEL)):
        if not os.path.exists(path):
            skip("%s: no file %s" % (name, path))


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return "Reply(%d, %r)" % (self.status, self.body[:300])


def events(body):
    """The JSON of a stream's events; a stream without its [DONE] is a failure."""
    data = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    assert data and data[-1] == "[DONE]", "the stream does not end with [DONE]: %r" % body[-200:]
    return [json.loads(d) for d in data[:-1]]


class Server:
    def __init__(self, *options, model=MODEL, env=None, launcher=(), expect=0):
        """Options are added to `weft serve -m MODEL --port 0 --log-format json`; launcher stands
        before the program (setarch -R, perf stat, ...); expect is the exit code wanted from stop."""
        need_files()
        self.command = [*launcher, WEFT, "serve", "-m", model, "--port", "0", "--log-format",
                        "json", *options]
        self.env = dict(os.environ, **(env or {}))
        self.expect = expect
        self.log, self.other = [], []
        self.process = self.port = self.url = self.model = None

    # ---- life ----

    def start(self):
        self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._listening.wait(READY_S)
        if not self.url:
            self.kill()
            raise AssertionError("the server does not listen: %s\n%s" %
                                 (" ".join(self.command), self.tail()))
        return self

    def _read(self):
        for raw in self.process.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            try:
                entry = json.loads(line)
            except ValueError:
                self.other.append(line)
                continue
            self.log.append(entry)
            if entry.get("event") == "listening" and not self.url:
                self.port = int(entry["url"].rsplit(":", 1)[1])
                self.model = entry["model"]
                self.url = entry["url"]
                self._listening.set()
        self._listening.set()

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def tail(self, n=20):
        return "\n".join([json.dumps(e) for e in self.log[-n:]] + self.other[-n:])

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, within_s=STOP_S):
        """The exit code; a server that is still there by then is killed, and the test fails."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the server did not end within %d s\n%s" %
                                 (within_s, self.tail())) from None
        self._reader.join(10)
        return code

    def stop(self, within_s=STOP_S):
        if self.alive():
            self.signal()
        code = self.wait(within_s)
        assert code == self.expect, ("the server ended with %d instead of %d\n%s" %
                                     (code, self.expect, self.tail()))

    def kill(self):
        if self.process and self.alive():
            self.process.kill()
            self.process.wait(10)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.stop()
        else:
            sys.stderr.write("the server's last lines:\n%s\n" % self.tail())
            self.kill()

    # ---- requests, each on a connection of its own ----

    def connect(self, timeout=REPLY_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=REPLY_S):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        c = self.connect(timeout)
        try:
            c.request(method, path, body, headers)
            r = c.getresponse()
            return Reply(r.status, r.headers, r.read())
        finally:
            c.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def stream(self, path, body, **more):
        r = self.post(path, dict(body, stream=True), **more)
        assert r.status == 200, r
        return events(r.body)

    def metrics(self):
        out = {}
        for line in self.get("/metrics").body.decode().split("\n"):
            m = re.fullmatch(r"([a-zA-Z_:][\w:]*(?:\{.*\})?) (\S+)", line)
            if m:
                out[m[1]] = float(m[2])
        return out

    def wait_idle(self, within_s=60):
        """Until nothing is open and no page is held; what was cancelled has then left the engine."""
        end = time.monotonic() + within_s
        while True:
            m = self.metrics()
            busy = {k: v for k, v in m.items() if BUSY.fullmatch(k) and v != 0}
            if not busy:
                return m
            assert time.monotonic() < end, "the server is not idle after %d s: %s" % (within_s, busy)
            time.sleep(0.05)


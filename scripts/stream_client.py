"""A light client for servers of OpenAI's API: one thread, raw sockets, one selector.

It times the arrival of server-sent events and hardly looks into them: an event ends with an empty
line, an answer with the last chunk or the connection, and the tokens are counted by the usage in
the answer's last bytes. So it takes little of the cores that the server computes on, and its own
CPU time is measured with the rest.
"""
import json
import re
import selectors
import socket
import time
from typing import NamedTuple

from peer import Failure

RECEIVE_BYTES = 1 << 16
RECENT_BYTES = 4096  # of an answer that are kept; the events after the last token are shorter
HEAD_BYTES = 1 << 16
LAST_CHUNK = b"\r\n0\r\n\r\n"
COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


class Answer:
    """One streamed answer. Times are those of time.perf_counter."""
    def __init__(self):
        self.sent = time.perf_counter()
        self.times, self.counts = [], []  # of arrivals, and how many events each brought
        self.tokens = 0

    def first_seconds(self):
        return self.times[0] - self.sent

    def gaps(self):
        """Seconds between events; 0 for those that came together. The events that follow the last
        token are left out."""
        left, gaps, before = self.tokens, [], None
        for at, n in zip(self.times, self.counts):
            n = min(n, left)
            left -= n
            if n > 0:
                gaps += ([] if before is None else [at - before]) + [0.0] * (n - 1)
                before = at
        return gaps


class Connection:
    """One client. It keeps its connection for the next request as long as the server does."""
    def __init__(self, address):
        self.address, self.socket = address, None
        self.answer, self.in_head, self.recent = None, True, b""
        self.used = self.keeps = False  # the connection for an answer; the server keeps it open

    def connect(self):
        if self.socket is not None and not is_open(self.socket):
            self.close()
        if self.socket is None:
            try:
                self.socket = socket.create_connection(self.address, timeout=10)
            except OSError as error:
                host, port = self.address
                raise Failure(f"cannot connect to {host}:{port}: {error}") from error
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setblocking(False)
            self.used = False

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def send(self, data):
        self.in_head, self.recent = True, b""
        self.answer = Answer()
        if self.socket.send(data) != len(data):
            raise Failure(f"a request of {len(data)} bytes does not fit the socket's buffer")

    def receive(self):
        """Takes what has come. True: the answer is complete; or the server had closed the
        connection when the request was sent, and answer is None."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        except OSError as error:
            raise Failure(f"the connection broke: {error}") from error
        now = time.perf_counter()
        ended = not data
        if ended and self.used and self.in_head and not self.recent:
            self.answer = None
            self.close()
            return True
        # A server that lets its kernel wait for acknowledgements is not to wait for late ones.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if self.in_head:
            data = self.take_head(data)
        # The byte before may be half of the empty line that ends an event.
        n = (self.recent[-1:] + data).count(b"\n\n")
        if n > 0:
            self.answer.times.append(now)
            self.answer.counts.append(n)
        self.recent = (self.recent + data)[-RECENT_BYTES:]
        if not ended and (self.in_head or not self.recent.endswith(LAST_CHUNK)):
            return False
        if ended or not self.keeps:
            self.close()
        self.complete()
        return True

    def take_head(self, data):
        """What comes after the head, when all of it is there."""
        head, end, body = (self.recent + data).partition(b"\r\n\r\n")
        if not head:
            raise Failure("the server closed the connection without a reply")
        if not end and data and len(head) < HEAD_BYTES:
            self.recent = head[-HEAD_BYTES:]
            return b""
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise Failure("the server replied "
                          + (head[:100] + b" ... " + body[:300]).decode("utf-8", "replace"))
        # so that the first chunk's size stands at a line's start, as all others do
        self.in_head, self.recent = False, b"\r\n"
        self.keeps = b"\nconnection: close" not in head.lower()
        return body

    def complete(self):
        found = COMPLETION_TOKENS.findall(self.recent)
        if b"[DONE]" not in self.recent or not found or not self.answer.times:
            raise Failure("an answer without usage or [DONE]; its last bytes: "
                          + self.recent[-200:].decode("utf-8", "replace"))
        self.answer.tokens, self.used = int(found[-1]), True


class Result(NamedTuple):
    seconds: float  # from the first request to the end of the last answer
    cpu_seconds: float  # of this program meanwhile
    answers: list


def is_open(sock):
    """Whether the server has closed it, as far as this end knows."""
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def request(address, ids, max_tokens):
    body = json.dumps({"prompt": ids, "max_tokens": max_tokens, "temperature": 0,
                       "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()
    return (f"POST /v1/completions HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def run(connections, requests, within_s):
    """Every connection sends its list of requests one after the other, all at the same time."""
    for connection in connections:
        connection.connect()
    answers, sent = [], {}
    todo = {c: list(reversed(mine)) for c, mine in zip(connections, requests)}
    with selectors.DefaultSelector() as selector:
        cpu, begin = time.process_time(), time.perf_counter()
        for connection in connections:
            sent[connection] = todo[connection].pop()
            connection.send(sent[connection])
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while selector.get_map():
            left = begin + within_s - time.perf_counter()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise Failure(f"{len(selector.get_map())} of {len(connections)} clients have no "
                              f"whole answer after {within_s} s")
            for key, _ in ready:
                connection = key.data
                if not connection.receive():
                    continue
                selector.unregister(key.fileobj)
                if connection.answer is None:  # asked again, on a new connection
                    todo[connection].append(sent[connection])
                else:
                    answers.append(connection.answer)
                if todo[connection]:
                    connection.connect()
                    sent[connection] = todo[connection].pop()
                    connection.send(sent[connection])
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
        return Result(max(a.times[-1] for a in answers) - begin, time.process_time() - cpu, answers)

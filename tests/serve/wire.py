"""HTTP by hand on asyncio's sockets, so that requests can be wrong on purpose. Standard library only.

    c = await dial(port)                  # -> Wire
    await c.send(request("POST", "/v1/completions", {...}))
    r = await c.reply()                   # -> Reply; interim replies (1xx) are in r.interim
    async for event in c.events(): ...    # a stream's JSON, event by event, until [DONE]
    c.close() / c.reset() / c.half_close()

All waits have an end (within_s); one that passes raises TimeoutError.
"""
import asyncio
import json
import socket
import struct

WAIT_S = 60


class Broken(Exception):
    """The server's bytes are not HTTP, or end too early."""


class Reply:
    def __init__(self, status, headers):
        self.status, self.headers, self.body, self.interim = status, headers, b"", 0

    @property
    def json(self):
        return json.loads(self.body.decode("utf-8"))

    @property
    def error(self):
        """The error's fields, after a look at their shape."""
        e = self.json["error"]
        assert isinstance(e["message"], str) and e["message"], e
        assert isinstance(e["type"], str) and e["type"], e
        assert "param" in e and "code" in e, e
        return e

    def __repr__(self):
        return f"Reply({self.status}, {self.body[:300]!r})"


def request(method, path, body=None, headers=(), version="HTTP/1.1", host=True):
    """Bytes of a request; a body that is no bytes is made JSON. Headers: (name, value) pairs."""
    lines = [f"{method} {path} {version}"] + (["Host: localhost"] if host else [])
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    names = {n.lower() for n, _ in headers}
    if body is not None and "content-type" not in names:
        lines.append("Content-Type: application/json")
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{n}: {v}" for n, v in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def post(path, body, headers=()):
    return request("POST", path, body, headers)


class Wire:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data, within_s=WAIT_S):
        """False: the server has closed."""
        try:
            self.writer.write(data)
            await asyncio.wait_for(self.writer.drain(), within_s)
            return True
        except (ConnectionError, OSError):
            return False

    def half_close(self):
        self.writer.write_eof()

    def close(self):
        self.writer.close()

    def reset(self):
        """Ends with a RST instead of a FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def head(self, within_s=WAIT_S):
        """Status line and headers of a reply that is no interim one."""
        interim = 0
        while True:
            try:
                text = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), within_s)
            except asyncio.IncompleteReadError as e:
                raise Broken(f"the connection ends in a head: {e.partial[:200]!r}") from None
            except ConnectionError as e:
                raise Broken(f"{type(e).__name__} before a head") from None
            lines = text.decode("latin-1").split("\r\n")[:-2]
            parts = lines[0].split(" ", 2)
            if parts[0] != "HTTP/1.1" or len(parts) != 3 or not parts[1].isdigit():
                raise Broken(f"not a status line: {lines[0]!r}")
            headers = {}
            for line in lines[1:]:
                name, colon, value = line.partition(": ")
                if not colon:
                    raise Broken(f"not a header: {line!r}")
                headers[name.lower()] = value
            if not 100 <= int(parts[1]) < 200:
                r = Reply(int(parts[1]), headers)
                r.interim = interim
                return r
            interim += 1

    async def pieces(self, r, within_s=WAIT_S):
        """The body's pieces as they come."""
        async def exactly(n):
            return await asyncio.wait_for(self.reader.readexactly(n), within_s)
        try:
            if r.headers.get("transfer-encoding") == "chunked":
                while True:
                    line = await asyncio.wait_for(self.reader.readuntil(b"\r\n"), within_s)
                    piece = await exactly(int(line, 16) + 2)
                    if piece[-2:] != b"\r\n":
                        raise Broken("a chunk is longer than its size")
                    if piece == b"\r\n":
                        return
                    yield piece[:-2]
            elif "content-length" in r.headers:
                yield await exactly(int(r.headers["content-length"]))
            else:
                while piece := await asyncio.wait_for(self.reader.read(65536), within_s):
                    yield piece
        except asyncio.IncompleteReadError:
            raise Broken("the connection ends in a body") from None
        except ConnectionError as e:
            raise Broken(f"{type(e).__name__} in a body") from None

    async def reply(self, within_s=WAIT_S, bare=False):
        r = await self.head(within_s)
        if not bare and r.status not in (204, 304):
            async for piece in self.pieces(r, within_s):
                r.body += piece
        return r

    async def events(self, within_s=WAIT_S):
        """Of a stream that has begun well; Broken without [DONE]. Every event is whole UTF-8."""
        r = await self.head(within_s)
        if r.status != 200:
            async for piece in self.pieces(r, within_s):
                r.body += piece
            raise Broken(f"no stream: {r!r}")
        rest, done = b"", False
        async for piece in self.pieces(r, within_s):
            *lines, rest = (rest + piece).split(b"\n\n")
            for line in lines:
                text = line.decode("utf-8")
                if done or not text.startswith(("data: ", ":")):
                    raise Broken(f"not an event: {text!r}")
                done = text == "data: [DONE]"
                if not done and text.startswith("data: "):
                    yield json.loads(text[6:])
        if rest or not done:
            raise Broken(f"the stream ends in {rest!r}, done {done}")

    async def closed(self, within_s=WAIT_S):
        """Waits until the server closes, and drops what it still says."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), within_s):
                pass
        except ConnectionError:
            pass


async def dial(port, within_s=WAIT_S, receive_bytes=None):
    """receive_bytes: a small window, for clients that are not to take much."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.sock_connect(sock, ("127.0.0.1", port)), within_s)
        limit = receive_bytes or 1 << 20
        return Wire(*await asyncio.open_connection(sock=sock, limit=limit))
    except BaseException:
        sock.close()
        raise


async def ask(port, data, within_s=WAIT_S, bare=False):
    """One request on a connection of its own."""
    c = await dial(port, within_s)
    try:
        await c.send(data, within_s)
        return await c.reply(within_s, bare)
    finally:
        c.close()

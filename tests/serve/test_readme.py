#!/usr/bin/env python3
"""Runs every curl command of README.md and docs/*.md that asks localhost:8000, as it stands there but
for the port, against a server with the demo model: each must get 200 and JSON, a whole stream, or the
text of /metrics.

Commands stand in blocks fenced with ```sh (each line) or ```console (lines after "$ "); one that goes
on ends its line with a backslash or inside a quote."""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import prometheus
from server import SOURCE, Server, events, skip

PLACE, COMMAND_S = "localhost:8000", 120
# Stands before curl in PATH: the status on stderr, the body in a file beside stdout.
SHIM = """#!/bin/bash
set -o pipefail
{curl} -sS -w '%{{stderr}}status %{{http_code}}\\n' "$@" | tee -a "$WEFT_BODY"
"""


def is_whole(command):
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


def commands_of(text):
    """(line number, command) pairs."""
    kind, command = None, None
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            kind = None if kind is not None else fence[1]
            command = None
        elif command is not None:
            command[1] += "\n" + line
        elif kind == "sh" and line.strip():
            command = [number, line.strip()]
        elif kind == "console" and line.startswith("$ "):
            command = [number, line[2:]]
        if command and is_whole(command[1]):
            yield tuple(command)
            command = None


def found():
    """(file, line, command) of all commands; every mention of the place must be in one of them."""
    for path in sorted(glob.glob(os.path.join(SOURCE, "*.md")) + glob.glob(os.path.join(SOURCE, "docs/*.md"))):
        name = os.path.relpath(path, SOURCE)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        mine = [(name, n, c) for n, c in commands_of(text) if "curl" in c and PLACE in c]
        asked = len(re.findall(rf"^[$ ]*curl\b(?:[^\n]*\\\n)*[^\n]*{PLACE}", text, re.MULTILINE))
        assert asked <= len(mine), f"{name}: {asked} calls of curl, but {len(mine)} of them in blocks"
        yield from mine


def check_body(command, body):
    if "/metrics" in command:
        return f"{len(prometheus.flat(prometheus.parse(body.decode())))} series"
    if body.startswith((b"data: ", b":")):
        return f"{len(events(body))} events"
    return f"{len(json.dumps(json.loads(body)))} bytes of JSON"


def run(server, folder, command):
    body = os.path.join(folder, "body")
    open(body, "wb").close()
    env = dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"], WEFT_BODY=body)
    r = subprocess.run(["bash", "-c", command.replace(PLACE, f"localhost:{server.port}")], env=env, text=True,
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False)
    status = re.findall(r"^status (\d+)$", r.stderr, re.MULTILINE)
    with open(body, "rb") as f:
        data = f.read()
    assert r.returncode == 0 and status == ["200"], (r.returncode, status, r.stderr, data[:500])
    return check_body(command, data)


def self_test():
    """The reader of blocks finds what is there."""
    text = "```sh\na\n\nb \\\n c\n```\n$ no\n```console\n$ d 'x\ny' z\nanswer\n$ e\n```\n```c\nf\n```\n"
    assert list(commands_of(text)) == [(2, "a"), (4, "b \\\n c"), (9, "d 'x\ny' z"), (12, "e")], \
        list(commands_of(text))


def main():
    self_test()
    curl, commands, failed = shutil.which("curl"), list(found()), 0
    if not commands:
        skip(f"no document has a curl command for {PLACE}")
    if not curl:
        skip("curl is not installed")
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        shim = os.path.join(folder, "curl")
        with open(shim, "w", encoding="ascii") as f:
            f.write(SHIM.format(curl=shlex.quote(curl)))
        os.chmod(shim, 0o755)
        for name, number, command in commands:
            try:
                print(f"{name}:{number}: {run(server, folder, command)}", flush=True)
            except Exception as e:
                failed += 1
                print(f"{name}:{number}: FAILED: {e}\n    {command}", flush=True)
    sys.exit(failed > 0)


main()

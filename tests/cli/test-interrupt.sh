# Ctrl-C: it ends the loading of a model, what is waited for is said at once, and the terminal is left clean.
. "$(dirname "$0")/lib.sh"
model=$WEFT_DEMO_MODEL
need_file "$model"

python3 - "$WEFT" "$model" <<'PY' || fail "Ctrl-C"
import os, pty, re, signal, subprocess, sys, time
weft, model = sys.argv[1:]

def handles(pid):
    """Whether the program has its handler of SIGINT by now."""
    text = open(f"/proc/{pid}/status", encoding="ascii").read()
    return int(re.search(r"SigCgt:\s*([0-9a-f]+)", text)[1], 16) >> (signal.SIGINT - 1) & 1

def start(args, err=subprocess.PIPE):
    run = subprocess.Popen([weft, *args, "-m", model], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                           env=dict(os.environ, TERM="xterm", WEFT_LOG="info"))
    while not handles(run.pid):
        time.sleep(0.001)
    return run

def end(run, code):
    try:
        out, err = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        run.kill()
        raise
    assert run.returncode == code, (run.args, run.returncode, err)
    return out, err

# before the model is packed: nothing is served, no token is made
for args in (["serve", "--port", "0"], ["run", "-p", "hi"], ["check", "--topologies", "tp1pcp1dcp1"],
             ["bench", "throughput", "--prompts", "1", "--input", "4", "--output", "2"]):
    run = start(args)
    run.send_signal(signal.SIGINT)
    out, err = end(run, 130)
    assert b"interrupted" in err and b"listening" not in err, (args, err)
    assert args[0] == "check" or not out, (args, out)  # check has written its head

# while a long step runs, the user is told that it is waited for
run = start(["run", "-p", "a b c d " * 1000, "-n", "4", "--isa", "scalar", "--threads", "1", "--max-num-batched-tokens", "2048"])
while b"exact/P16" not in run.stderr.readline():  # the engine is open
    pass
time.sleep(0.5)
run.send_signal(signal.SIGINT)
told = time.monotonic()
line = run.stderr.readline()
assert b"the step that runs ends first" in line and time.monotonic() - told < 2, (line, time.monotonic() - told)
assert run.poll() is None
run.send_signal(signal.SIGINT)
end(run, 130)

# a second one leaves no bar behind
main, sub = pty.openpty()
run = start(["run", "-p", "a b c d " * 1000, "-n", "4", "--isa", "scalar", "--threads", "1"], sub)
text = b""
while b"prefill [" not in text:
    text += os.read(main, 65536)
run.send_signal(signal.SIGINT)
while b"ends first" not in text:
    text += os.read(main, 65536)
run.send_signal(signal.SIGINT)
run.wait(60)
os.write(sub, b"\0")
while not text.endswith(b"\0"):
    text += os.read(main, 65536)
lines = text[:-1].replace(b"\r\n", b"\n").split(b"\n")
shown = [line.split(b"\r")[-1] for line in lines]
assert not [line for line in shown if b"load [" in line], lines  # no line of the log stands behind the bar
assert run.returncode == 130 and shown[-1] in (b"", b"\x1b[K"), (run.returncode, shown[-1])
PY
finish

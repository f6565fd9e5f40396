# What is wrong is said, once and before any work: options that would do nothing, texts that would be cut, sizes that do not fit.
. "$(dirname "$0")/lib.sh"
model=$WEFT_GOLDEN/gguf/Q8_0.gguf
need_file "$model"

refuse() { # PART ARGS...: exit 2, the message holds PART, nothing on stdout
    local part=$1
    shift
    weft "$@"
    want_rc 2 "$*"
    want_text "$err" "$part" "$*"
    want_equal "$out" "" "$*: stdout"
}
refuse "--top-logprobs has an effect only together with --json" run -m "$model" -p x --top-logprobs 2
refuse "--system has an effect only together with --chat" run -m "$model" -p x --system y
refuse "--special has no effect together with --decode" tokenize -m "$model" --special --decode 1
refuse "--max-ranks has no effect together with --topologies" check -m "$model" --max-ranks 2 --topologies tp1pcp1dcp1
refuse "--each-exchange has no effect together with --topologies" check -m "$model" --each-exchange --topologies tp1pcp1dcp1
refuse "--cp-exchange" check -m "$model" --each-exchange --cp-exchange q
refuse "--seed" check -m "$model" --seed 9
for option in --max-num-seqs --max-num-batched-tokens --kv-pages --cp-min-split; do
    refuse "$option" check -m "$model" --suite random $option 3
done
refuse "tp1pcp99999999999999dcp1 is not of the form" check -m "$model" --topologies tp1pcp99999999999999dcp1
refuse "'' is no token id" tokenize -m "$model" --decode 1 "" 2
refuse "unexpected argument x" --version x
refuse "unexpected argument x" help run x
head -c 9000 "$WEFT_SOURCE/LICENSE" >"$work/text"
for command in "run -p x" plan check "bench latency" "eval ppl $work/text"; do
    # shellcheck disable=SC2086
    refuse "--expert-parallel: the model has no experts" $command -m "$model" --expert-parallel
done
refuse "--expert-parallel: bench kernels has no use for it" bench kernels -m "$model" --expert-parallel
refuse "the 16 of --max-model-len" eval ppl "$work/text" -m "$model" --max-model-len 16
refuse "the 2048 of the model's context" eval ppl "$work/text" -m "$model" --window 2048
refuse "of the 16 tokens of its answer fit the KV cache" eval golden -m "$model" --reference "$WEFT_GOLDEN/gguf/Q8_0.golden.safetensors" --kv-pages 10

# the mixed suite runs with as many sequences as are asked for: fewer at a time, more steps
steps() {
    weft check -m "$model" --suite mixed --topologies tp1pcp1dcp1 -n 4 --json "$@"
    want_rc 0 "mixed $*"
    python3 -c 'import json, sys; print(json.loads(sys.argv[1])["topologies"][0]["steps"])' "$out"
}
all=$(steps) two=$(steps --max-num-seqs 2)
[ "$two" -gt "$all" ] || fail "mixed: $two steps with two sequences, $all with eight"

# a message is not cut at a NUL byte; a prompt that is not rendered may hold one
printf 'Hi\0there' >"$work/nul"
refuse "NUL byte at byte 2" run -m "$model" --chat -f "$work/nul" -n 1
weft run -m "$model" -f "$work/nul" -n 1
want_rc 0 "a NUL byte in a prompt"

# a model that asks for a BOS gets one, also when the text begins with it
python3 - "$model" "$work/bos.gguf" <<'PY' || fail "bos.gguf"
import sys
data = bytearray(open(sys.argv[1], "rb").read())
key = b"tokenizer.ggml.add_bos_token"
at = data.index(key) + len(key)
assert data[at:at + 5] == b"\7\0\0\0\0"  # a bool that is false
data[at + 4] = 1
open(sys.argv[2], "wb").write(data)
PY
weft tokenize -m "$work/bos.gguf" --special -p 'a'
want_equal "${out%%$'\n'*}" 376 "BOS in front"
weft tokenize -m "$work/bos.gguf" --decode 376
bos=$out
weft tokenize -m "$work/bos.gguf" --special -p "${bos}a"
want_equal "$(grep -c '^376$' <<<"$out")" 1 "one BOS"

# lengths at the end of the number range, memory beyond the machine's
python3 - "$model" "$work/long.gguf" <<'PY' || fail "long.gguf"
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
key = b"llama.context_length"
at = data.index(key) + len(key)
assert struct.unpack_from("<I", data, at)[0] in (4, 5)
struct.pack_into("<I", data, at + 4, 2**31 - 1)
open(sys.argv[2], "wb").write(data)
PY
for command in "run -p x" plan; do
    # shellcheck disable=SC2086 # several options in one word
    refuse "expected 0 to 67108864" $command -m "$work/long.gguf" --max-model-len 2147483647
done
weft plan -m "$work/long.gguf" --max-model-len 64M --max-num-seqs 4096 --kv-cache-memory 16000000T
want_rc 4 "a cache larger than the memory"
want_text "$err" "KV cache of 549755813888 bytes" "a cache larger than the memory"
weft run -m "$model" -p x -n 1 --tp 8 --pcp 8 --dcp 8 --max-num-batched-tokens 1M --max-num-seqs 4096 --isa scalar
if [ "$rc" -ne 0 ]; then # a machine with half a terabyte takes it
    want_rc 4 "buffers larger than the memory"
    want_text "$err" "of memory that are free" "buffers larger than the memory"
fi

# one line for a failed rank
weft check -m "$model" --fault rank-fails --topologies tp1pcp2dcp2 -n 4
want_rc 5 "a failed rank"
want_equal "$(wc -l <"$work/err")" 1 "lines about a failed rank"

# what is said at the end of a run comes after its text
"$WEFT" run -m "$model" -p x -n 2 --stats >"$work/both" 2>&1 </dev/null
want_text "$(tail -3 "$work/both" | head -1)" "exact/P16/V16" "--stats behind the text"
[ "$(grep -c '^exact/P16/V16' "$work/both")" -eq 1 ] || fail "--stats stands on a line of its own: $(cat "$work/both")"

# on a terminal of 80 columns no line of these is wider, and the progress bar leaves the lines alone
python3 - "$WEFT" "$model" <<'PY' || fail "on a terminal"
import fcntl, os, pty, struct, subprocess, sys, termios, threading
weft, model = sys.argv[1:]

def screen(*args):
    """Lines as they stand after the run: the last text written to each, less what was wiped."""
    main, sub = pty.openpty()
    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    env = dict(os.environ, TERM="xterm", NO_COLOR="1")
    run = subprocess.Popen([weft, *args, "-m", model], stdin=subprocess.DEVNULL, stdout=sub, stderr=sub, env=env)
    # a last reader's hang-up may throw away what a terminal still holds, so it is kept open and a mark ends the text
    end = threading.Thread(target=lambda: (run.wait(), os.write(sub, b"\0")))
    end.start()
    text = b""
    while not text.endswith(b"\0"):
        text += os.read(main, 65536)
    end.join()
    os.close(sub)
    os.close(main)
    assert run.returncode == 0, (args, text)
    assert len(text) > 100, (args, text)
    text = text[:-1]
    lines = []
    for line in text.decode().replace("\r\n", "\n").split("\n"):
        shown = ""
        for piece in line.split("\r"):
            shown = piece.replace("\x1b[K", "") if piece else shown
        lines.append(shown)
    return lines

for args in (["check", "-n", "4", "--topologies", "tp1pcp1dcp1,tp1pcp2dcp2:kv"],
             ["plan", "--pcp", "4", "--dcp", "4", "--prompts", "100,37", "--decode", "500"]):
    lines = screen(*args)
    wide = [line for line in lines if len(line) > 80]
    assert not wide, (args, wide)
    assert not [line for line in lines if "[#" in line or "[." in line], (args, lines)
lines = screen("inspect")
starts = [i for i, line in enumerate(lines) if line.startswith("tensor ")]
assert starts, lines
table = lines[starts[0]:]
assert len(table) > 10 and max(len(line) for line in table) <= 80, max(table, key=len)
PY
finish

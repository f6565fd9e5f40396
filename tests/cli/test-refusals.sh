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
# what would do nothing with what else is asked for
for option in "--top-p 0.5" "--top-k 4" "--min-p 0.5" "--seed 9"; do
    # shellcheck disable=SC2086
    refuse "${option% *} has an effect only together with --temperature" run -m "$model" -p x $option
done
refuse "--max-num-seqs 64: run has one request" run -m "$model" -p x --max-num-seqs 64
refuse "--log-prompts has no effect together with --quiet" serve -m "$model" --quiet --log-prompts
refuse "--no-prefix-cache: --suite prefix would compare nothing" check -m "$model" --suite prefix --no-prefix-cache
WEFT_LOG=INFO refuse "WEFT_LOG=INFO: expected quiet, error, warn, info or debug" run -m "$model" -p x

# limits are told as they are, and once
refuse "--threads 1025 is wrong; expected a whole number from 0 to 1024" run -m "$model" -p x --threads 1025
refuse "from 1 to 4096 (k, M, G allowed)" plan -m "$model" --max-num-seqs 2G
refuse "from -1 to 2147483647" run -m "$model" -p x --temperature 1 --top-k 2147483648
refuse "--repetition-penalty 0 is wrong; expected a number above 0" run -m "$model" -p x --repetition-penalty 0
for list in "1, 2" "16,1k"; do
    weft plan -m "$model" --prompts "$list" --max-model-len 2048
    want_rc 0 "--prompts '$list'"
done
refuse "--prompts 2048" plan -m "$model" --prompts 2k --max-model-len 2048

# before the model is packed, which the engine's line would tell
early() { # PART ARGS...
    WEFT_LOG=info refuse "$@"
    case $err in *exact/P16*) fail "$*: only after loading: $err" ;; esac
}
early "--stop '': expected a text" run -m "$model" -p x --stop ""
early "leaves no room for an answer within the model length of 64 tokens" run -m "$model" -p "$(printf 'x%.0s' {1..500})" --max-model-len 64
early "listening on nosuchhost.invalid port 8000" serve -m "$model" --host nosuchhost.invalid
early "--max-body 1: expected at least 1024" serve -m "$model" --max-body 1
early "--served-model-name ''" serve -m "$model" --served-model-name ""
early "--cors-origin foo: expected * or an origin" serve -m "$model" --cors-origin foo
python3 - "$WEFT" "$model" <<'PY' || fail "a port in use"
import os, socket, subprocess, sys
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    s.listen()
    run = subprocess.run([sys.argv[1], "serve", "-m", sys.argv[2], "--port", str(s.getsockname()[1])], timeout=60,
                         capture_output=True, stdin=subprocess.DEVNULL, env=dict(os.environ, WEFT_LOG="info"))
assert run.returncode == 2 and b"Address already in use" in run.stderr and b"exact/P16" not in run.stderr, run
PY

# a text that is not UTF-8 is named, with the place in it
printf 'caf\xe9 is' >"$work/latin1"
for command in "run --chat" run tokenize; do
    # shellcheck disable=SC2086
    refuse "$work/latin1 is not valid UTF-8 (byte 3)" $command -m "$model" -f "$work/latin1"
done
refuse "$work/latin1 is not valid UTF-8 (byte 3)" eval ppl "$work/latin1" -m "$model"
refuse "the text of --system is not valid UTF-8 (byte 3)" run -m "$model" -p x --chat --system "$(cat "$work/latin1")"

# files by the names that were given
mkdir "$work/folder"
head -c 5000 "$model" >"$work/folder/m.gguf"
weft run -m "$work/folder/m.gguf" -p x
want_rc 3 "a file that is cut"
want_text "$err" "weft: $work/folder/m.gguf: " "a file that is cut"
if [ -e "$WEFT_GOLDEN/models/qwen3" ]; then
    cp -r "$WEFT_GOLDEN/models/qwen3" "$work/qwen3"
    chmod -R u+w "$work/qwen3"
    echo '{}' >"$work/qwen3/tokenizer.json"
    weft run -m "$work/qwen3" -p x
    want_rc 3 "a tokeniser that is none"
    want_text "$err" "weft: $work/qwen3: tokenizer.json: " "a tokeniser that is none"
    rm "$work/qwen3/tokenizer.json"
    for command in "run -p x" "serve --port 0" "tokenize -p x" "eval ppl $work/folder/m.gguf"; do
        # shellcheck disable=SC2086
        weft $command -m "$work/qwen3"
        want_rc 3 "$command without a tokeniser"
        want_text "$err" "$work/qwen3 has no tokenizer.json" "$command without a tokeniser"
    done
fi

# evaluations: what belongs to another kind
refuse "--tolerance: eval ppl has no use for it" eval ppl "$WEFT_SOURCE/LICENSE" -m "$model" --tolerance 3
for kind in golden ppl; do
    refuse "--window: only eval ppl FILE has a use for it" eval $kind -m "$model" --reference "$WEFT_SOURCE/LICENSE" --window 3
    refuse "--reference: cannot open $work/none" eval $kind -m "$model" --reference "$work/none"
done
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
    refuse "expected a whole number from 0 to 67108864" $command -m "$work/long.gguf" --max-model-len 2147483647
done
weft plan -m "$work/long.gguf" --max-model-len 64M --max-num-seqs 4096 --kv-cache-memory 16000000T
want_rc 4 "a cache larger than the memory"
want_text "$err" "the KV cache takes 512.0 GiB, and " "a cache larger than the memory"
want_text "$err" "--kv-pages" "a cache larger than the memory"
weft run -m "$model" -p x -n 1 --tp 8 --pcp 8 --dcp 8 --max-num-batched-tokens 1M --isa scalar
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

# on a terminal of 80 columns no line of these is wider, and the progress bar leaves the lines alone; the model is
# named without its folder, because a path is shown as it was given, however long
python3 - "$WEFT" "$model" <<'PY' || fail "on a terminal"
import fcntl, os, pty, struct, subprocess, sys, termios, threading
weft = os.path.abspath(sys.argv[1])
folder, model = os.path.split(sys.argv[2])

def screen(*args):
    """Lines as they stand after the run: the last text written to each, less what was wiped."""
    main, sub = pty.openpty()
    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    env = dict(os.environ, TERM="xterm", NO_COLOR="1")
    run = subprocess.Popen([weft, *args, "-m", model], cwd=folder, stdin=subprocess.DEVNULL, stdout=sub, stderr=sub, env=env)
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

for args in (["plan", "--tp", "4", "--pcp", "16", "--dcp", "16"], ["check", "-n", "4", "--topologies", "tp1pcp1dcp1,tp1pcp2dcp2:kv"],
             ["plan", "--pcp", "4", "--dcp", "4", "--prompts", "100,37", "--decode", "500"]):
    lines = screen(*args)
    wide = [line for line in lines if len(line) > 80]
    assert not wide, (args, wide)
    assert not [line for line in lines if "[#" in line or "[." in line], (args, lines)
lines = screen("inspect")
assert max(len(line) for line in lines) <= 80, max(lines, key=len)
starts = [i for i, line in enumerate(lines) if line.startswith("tensor ")]
assert starts, lines
table = lines[starts[0]:]
assert len(table) > 10 and max(len(line) for line in table) <= 80, max(table, key=len)
PY
finish

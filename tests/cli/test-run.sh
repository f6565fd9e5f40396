# weft run: the same text and log-probabilities on every topology, stop strings, sampling, refusals, Ctrl-C.
. "$(dirname "$0")/lib.sh"
model=$WEFT_GOLDEN/gguf/Q4_1.gguf
need_file "$model"

same() { # WHAT OPTION...: --json output on one rank equals the one on each topology
    local what=$1 one
    shift
    weft run -m "$model" --json "$@"
    want_rc 0 "$what on one rank"
    one=$out
    for topology in "--pcp 2 --dcp 2" "--tp 2 --pcp 2 --dcp 2 --cp-exchange kv" "--tp 4 --pcp 2 --dcp 4 --cp-min-split 1" "--pcp 3 --dcp 3 --max-num-batched-tokens 7"; do
        # shellcheck disable=SC2086 # several options in one word
        weft run -m "$model" --json "$@" $topology
        want_rc 0 "$what, $topology"
        want_equal "$out" "$one" "$what, $topology"
    done
}
text="The quick brown fox jumps over the lazy dog, and the dog does not mind at all."
same greedy -p "$text" -n 24 --ignore-eos
same sampled -p "$text" -n 24 --temperature 0.9 --top-k 40 --top-p 0.95 --seed 7 --ignore-eos
same penalties -p "$text" -n 24 --repetition-penalty 1.3 --presence-penalty 0.5 --frequency-penalty 0.2 --ignore-eos
same chat -p "Hello" --chat -n 12 --ignore-eos --top-logprobs 3

# other seeds, other text; the same seed, the same
weft run -m "$model" -p "$text" -n 24 --temperature 1 --seed 1 --ignore-eos
first=$out
weft run -m "$model" -p "$text" -n 24 --temperature 1 --seed 2 --ignore-eos
[ "$out" != "$first" ] || fail "seeds 1 and 2 gave the same text"

# the prompt from -p, a file and stdin is one prompt
weft run -m "$model" -p "$text" -n 8 --ignore-eos
first=$out
printf '%s' "$text" >"$work/prompt"
weft run -m "$model" -f "$work/prompt" -n 8 --ignore-eos
want_equal "$out" "$first" "prompt from a file"
out=$("$WEFT" run -m "$model" -n 8 --ignore-eos <"$work/prompt" 2>/dev/null)
want_equal "$out" "$first" "prompt from stdin"

# a stop string ends the answer before it, wherever the tokens are cut
weft run -m "$model" -p "$text" -n 24 --ignore-eos --json
python3 - "$WEFT" "$model" "$text" "$work/out" <<'PY' || fail "stop strings"
import json, subprocess, sys
weft, model, prompt, path = sys.argv[1:]
whole = "".join(json.loads(line)["text"] for line in open(path, encoding="utf-8"))
tried = 0
for at in range(1, len(whole) - 4, 3):
    stop = whole[at:at + 4]
    if "�" in stop or "\n" in stop or stop.startswith("-"):
        continue
    run = subprocess.run([weft, "run", "-m", model, "-p", prompt, "-n", "24", "--ignore-eos", "--json", "--stop", stop],
                         capture_output=True, stdin=subprocess.DEVNULL, check=True)
    lines = [json.loads(line) for line in run.stdout.decode().splitlines()]
    text = "".join(line["text"] for line in lines)
    want = whole[:whole.index(stop)]
    assert text == want, (stop, text, want)
    assert lines[-1]["finish_reason"] == "stop", lines[-1]
    tried += 1
    if tried == 4:
        break
assert tried > 0, whole
PY

# refusals name the option, the value and what would be right
weft run -m "$model" -p x --tp 3
want_rc 2 "tp 3 of 8 heads"
want_text "$err" "tp" "illegal tp"
weft run -m "$model" -p x --pcp 2 --dcp 3
want_rc 2 "dcp 3 of 2 ranks"
want_text "$err" "dcp" "illegal dcp"
weft run -m "$model" -p x --isa avx9
want_rc 2 "unknown ISA"
want_text "$err" "avx9" "unknown ISA"
weft run -m "$model" -p x --temperature -1
want_rc 2 "temperature -1"
weft run -m "$model" -p x --max-model-len 100000
want_rc 2 "longer than the model"
want_text "$err" "2048" "longer than the model"
weft run -m "$work/none.gguf" -p x
want_rc 3 "missing model"
want_text "$err" "none.gguf" "missing model"
weft run -m "$model" -p "$(printf 'x%.0s' {1..500})" --max-model-len 64
want_rc 2 "prompt longer than the limit"
want_text "$err" "64" "prompt longer than the limit"
weft run -m "$model" -p ''
want_rc 2 "empty prompt"

# Ctrl-C ends the answer and the program (a shell starts background jobs with it ignored, python does not)
python3 - "$WEFT" "$model" <<'PY' || fail "Ctrl-C"
import signal, subprocess, sys, time
run = subprocess.Popen([sys.argv[1], "run", "-m", sys.argv[2], "-p", "Hello there", "-n", "2000", "--ignore-eos", "--isa", "scalar", "--threads", "1"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
assert run.stdout.read(1), "no text at all"
run.send_signal(signal.SIGINT)
out, err = run.communicate(timeout=60)
assert run.returncode == 130 and b"interrupted" in err, (run.returncode, err)
PY
finish

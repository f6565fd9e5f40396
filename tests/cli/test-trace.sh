# weft run|bench --trace: the file, and what becomes of one that is full or cannot be written.
. "$(dirname "$0")/lib.sh"
model=$WEFT_GOLDEN/gguf/Q4_1.gguf # two layers
need_file "$model"
text="The quick brown fox jumps over the lazy dog, and the dog does not mind at all."

# check_trace WHAT RANKS THREADS STEPS: valid JSON; spans of a thread nest; every rank has every step
# with its layers and their phases; helpers have the phases of their owner
check_trace() {
    python3 - "$work/t.json" "${@:2}" <<'PY' || fail "$1"
import collections, json, sys
ranks, threads, steps = map(int, sys.argv[2:])
LAYERS = 2
trace = json.load(open(sys.argv[1], encoding="utf-8"))
assert trace["otherData"]["spans_lost"] == 0, trace["otherData"]
meta = [e for e in trace["traceEvents"] if e["ph"] == "M"]
names = [e["args"]["name"] for e in meta if e["name"] == "process_name"]
assert len(names) == ranks and all(n.startswith(f"rank {i} (t") for i, n in enumerate(names)), names
assert len([e for e in meta if e["name"] == "thread_name"]) == ranks * threads, meta
lanes = collections.defaultdict(list)
for e in trace["traceEvents"]:
    if e["ph"] == "X":
        lanes[e["pid"], e["tid"]].append(e)
assert sorted(lanes) == [(r, t) for r in range(ranks) for t in range(threads)], sorted(lanes)

def around(spans):
    """Each span with the one around it; a span that crosses another's end fails."""
    stack = []
    for e in spans:
        begin, end = round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)
        while stack and stack[-1][1] <= begin and not (stack[-1][1] == begin == end and stack[-1][2]["dur"] > 0):
            stack.pop()
        assert not stack or end <= stack[-1][1], (stack[-1], e)
        yield e, stack[-1][2] if stack else None
        stack.append((begin, end, e))

for (rank, thread), spans in lanes.items():
    assert [e["ts"] for e in spans] == sorted(e["ts"] for e in spans), (rank, thread)
    inside = collections.Counter((e["name"], o and o["name"]) for e, o in around(spans))
    count = collections.Counter(e["name"] for e in spans)
    each = [e["args"]["layer"] for e in spans if e["name"] == "qkv"]
    assert sorted(set(each)) == list(range(LAYERS)), each
    if thread > 0:
        assert count["qkv"] == count["swiglu"] <= steps * LAYERS and count["wait: work"] > 0, count
        continue
    assert [e["args"]["step"] for e in spans if e["name"] == "step"] == list(range(steps)), (rank, count)
    assert inside["forward", "step"] == inside["embed", "forward"] == steps, inside
    assert inside["layer", "forward"] == steps * LAYERS, inside
    for phase in ("qkv", "rope", "exchange K/V", "cache write", "gather queries", "exchange states",
                  "o", "swiglu", "down"):
        assert inside[phase, "layer"] == steps * LAYERS, (phase, inside)
    # once for the queries that came here, once for each round of pages that came here
    assert inside["attention", "layer"] == steps * LAYERS + inside["exchange pages", "layer"], inside
    assert inside["norm", "layer"] == inside["gather nodes", "layer"] == 2 * steps * LAYERS, inside
    assert inside["gather results", "step"] == steps and inside["broadcast", "plan"] > steps, inside
    assert inside["deliver", "step"] == (steps if rank == 0 else 0), inside
    assert inside["wait: requests", "schedule"] == (inside["schedule", "plan"] if rank == 0 else 0), inside
rows = [sum(e["args"]["rows"] for e in lanes[r, 0] if e["name"] == "forward") for r in range(ranks)]
assert sum(rows) > steps and min(rows) > 0, rows
if ranks > 1:
    waits = collections.Counter(e["name"] for (_, t), spans in lanes.items() for e in spans if t == 0)
    assert waits["wait: bcast"] and waits["wait: all_gather_v"] and waits["wait: all_to_all_v"], waits
PY
}

weft run -m "$model" -p "$text" -n 9 --ignore-eos --threads 1
want_rc 0 "without a trace"
plain=$out
weft run -m "$model" -p "$text" -n 9 --ignore-eos --threads 1 --trace "$work/t.json"
want_rc 0 "one rank"
want_equal "$out" "$plain" "one rank: the text"
want_equal "$err" "" "one rank: stderr"
check_trace "one rank" 1 1 9
weft run -m "$model" -p "$text" -n 9 --ignore-eos --threads 4 --pcp 2 --dcp 2 --trace "$work/t.json"
want_rc 0 "four threads on two ranks"
want_equal "$out" "$plain" "four threads on two ranks: the text"
want_equal "$err" "" "four threads on two ranks: stderr"
check_trace "four threads on two ranks" 2 2 9
weft bench throughput -m "$model" --prompts 2 --input 20 --output 5 --repeat 2 --threads 2 --pcp 2 --trace "$work/t.json"
want_rc 0 "bench throughput"
check_trace "bench throughput" 2 1 10
weft bench latency -m "$model" --prefill 7 --repeat 1 --threads 1 --trace "$work/t.json"
want_rc 0 "bench latency"
check_trace "bench latency" 1 1 2

# the summary of a file
weft run -m "$model" -p "$text" -n 3 --ignore-eos --threads 2 --pcp 2 --trace "$work/t.json"
for option in "" "--times" "--steps 1-2"; do
    # shellcheck disable=SC2086 # two words
    summary=$("$WEFT_SOURCE/scripts/trace-summary" $option "$work/t.json") || fail "trace-summary $option"
    want_text "$(head -1 <<<"$summary")" "     0.0      1.0" "trace-summary $option: columns"
    want_text "$summary" "wait: all_to_all_v" "trace-summary $option: waits"
done
"$WEFT_SOURCE/scripts/trace-summary" "$work/t.json" | python3 -c '
import sys
rows = [line.split() for line in sys.stdin.read().splitlines()[1:]]
for column in (-2, -1):
    total = sum(float(row[column]) for row in rows if row[0] != "ms")
    assert abs(total - 100) < 2, total' || fail "trace-summary: shares do not add up"

# a full buffer: what is there stays whole, and the loss is said in the file and on stderr
weft run -m "$model" -p "$text" -n 9 --ignore-eos --threads 2 --pcp 2 --trace "$work/t.json" --trace-spans 50
want_rc 0 "full"
want_equal "$out" "$plain" "full: the text"
want_text "$err" "spans of 2 of 2 threads are not in it; it holds the first 50 of each (--trace-spans)" full
python3 - "$work/t.json" <<'PY' || fail "full"
import json, sys
trace = json.load(open(sys.argv[1], encoding="utf-8"))
events = trace["traceEvents"]
assert len([e for e in events if e["ph"] == "X"]) == 100
lost = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
assert all("(full: " in name for name in lost), lost
assert trace["otherData"]["spans_lost"] == sum(int(name.split()[3]) for name in lost) > 100, (lost, trace["otherData"])
PY

# the warning about it does not stand behind the answer's last line
"$WEFT" run -m "$model" -p "$text" -n 9 --trace "$work/t.json" --trace-spans 50 >"$work/both" 2>&1 </dev/null
grep -q '^weft: warn: --trace' "$work/both" || fail "the warning's line: $(cat "$work/both")"

# trace-summary says what is wrong with its file
echo '{"traceEvents": [{}]}' >"$work/other.json"
for file in "$work/missing.json" "$work/both" "$work/other.json"; do
    out=$("$WEFT_SOURCE/scripts/trace-summary" "$file" 2>&1)
    rc=$?
    want_rc 1 "trace-summary $file"
    want_text "$out" "$file" "trace-summary $file"
    want_equal "$(wc -l <<<"$out")" 1 "trace-summary $file: lines"
done

# a file that cannot be written is told before the work, one that fails at the end by the exit code
weft run -m "$model" -p "$text" -n 9 --trace "$work/none/t.json"
want_rc 2 "no folder"
want_text "$err" "--trace $work/none/t.json: No such file or directory" "no folder"
want_equal "$out" "" "no folder: stdout"
weft bench throughput -m "$model" --prompts 2 --input 3 --output 2 --trace "$work"
want_rc 2 "a folder"
cp "$model" "$work/copy.gguf"
weft run -m "$work/copy.gguf" -p x -n 2 --trace "$work/copy.gguf"
want_rc 2 "the model's own file"
want_text "$err" "something else than a trace" "the model's own file"
cmp -s "$model" "$work/copy.gguf" || fail "the model's file was written over"
for time in first second; do
    weft run -m "$model" -p x -n 2 --trace "$work/again.json"
    want_rc 0 "a trace for the $time time"
done
for command in "run -p x -n 2" "bench throughput --prompts 1 --input 3 --output 2 --repeat 1"; do
    # shellcheck disable=SC2086 # several options in one word
    weft $command -m "$model" --trace /dev/full
    want_rc 5 "a full disk, $command"
    want_text "$err" "--trace /dev/full: No space left on device" "a full disk, $command"
done
weft run -m "$model" -p x --trace "$work/new.json" --tp 7
want_rc 2 "an illegal set-up"
weft run -m "$model" -p x --trace "$work/new.json" --kv-cache-memory 1
want_rc 4 "no cache"
[ ! -e "$work/new.json" ] || fail "a set-up that is refused leaves a file"

# a reader that leaves before it has all is no error of the table's
{ sleep 0.2 && "$WEFT_SOURCE/scripts/trace-summary" "$work/again.json"; } 2>"$work/err" | true
want_equal "$(cat "$work/err")" "" "trace-summary into a closed pipe"

# where it would be ignored
weft bench kernels -m "$model" --trace "$work/t.json"
want_rc 2 "bench kernels"
want_text "$err" "--trace: bench kernels has no use for it" "bench kernels"
weft run -m "$model" -p x --trace-spans 100
want_rc 2 "--trace-spans alone"
want_text "$err" "--trace-spans has an effect only together with --trace" "--trace-spans alone"
weft check -m "$model" --trace "$work/t.json"
want_rc 2 check
finish

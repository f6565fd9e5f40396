# weft bench: what is printed, refused and drawn; never how fast anything is.
. "$(dirname "$0")/lib.sh"
model=$WEFT_GOLDEN/gguf/Q8_0.gguf
need_file "$model"

# Every line of $out is an object with these facts. ARGS: bench, then the names of its cases.
want_objects() {
    python3 - "$out" "$@" <<'PY' || fail "the objects of $1"
import json, sys
lines, bench, cases = sys.argv[1].splitlines(), sys.argv[2], sys.argv[3:]
got = [json.loads(line) for line in lines]
assert [o["case"] for o in got] == cases, [o["case"] for o in got]
for o in got:
    assert o["bench"] == bench
    assert 0 < o["min"] <= o["median"] <= o["max"], o
    assert o["seconds"] > 0 and o["repeat"] >= 1 and o["threads"] >= 1 and o["cores"] >= 1
    assert o["isa"] and o["cpu"] and o["unit"] and o["series"] and o["size"] >= 0
    assert all(o[k] >= 1 for k in ("tp", "pcp", "dcp"))
    assert ("tok_per_s" in o) == (o["unit"] == "tok/s")
    assert o.get("tok_per_s", o["median"]) == o["median"]
    assert ("limit" in o) == ("share" in o) == ("limit_name" in o)
PY
}

weft_with_path() { # PATH ARGS...
    PATH=$1 "$WEFT" "${@:2}" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

# A stand-in for gnuplot hands the script back as the picture.
mkdir "$work/bin" "$work/empty"
cat >"$work/bin/gnuplot" <<'SH'
#!/bin/sh
[ "$1" = --version ] || { [ ! -e "$0.broken" ] && cat; }
SH
chmod +x "$work/bin/gnuplot"

# ---- throughput ----
weft bench throughput -m "$model" --prompts 3 --input 5 --output 4 --json --repeat 2
want_rc 0 throughput
want_equal "$err" "" "throughput: stderr"
want_objects throughput "3 x (5 in, 4 out)"
want_text "$out" '"steps":4' "3 prompts fit the first step, then 3 more steps"
want_text "$out" '"repeat":2' repeats
case $out in *temperature*) fail "the most likely tokens have no temperature: $out" ;; esac
weft bench throughput -m "$model" --prompts 3 --input 5 --output 4 --json --repeat 1 --temperature 0.5
want_text "$out" '"temperature":0.5' "sampled tokens"
weft bench throughput -m "$model" --prompts 3 --input 5 --output 4 --json --repeat 1 --pcp 2 --dcp 2 --max-num-seqs 1
want_objects throughput "3 x (5 in, 4 out)"
want_text "$out" '"pcp":2,"dcp":2' topology
want_text "$out" '"steps":12' "one request after the other"

# ---- latency ----
weft bench latency -m "$model" --prefill 7,33 --decode 4 --output 3 --json --repeat 1
want_rc 0 latency
want_objects latency "prefill 7" "prefill 33" "decode 4"
python3 - "$out" <<'PY' || fail "limits of latency"
import json, sys
for o in map(json.loads, sys.argv[1].splitlines()):
    assert o["limit_name"] == "machine" and o["limit"] > 0, o
    assert abs(o["share"] - o["median"] / o["limit"]) < 1e-9, o
PY
weft bench latency -m "$model" --decode 4,20 --output 3 --repeat 2
want_rc 0 "latency, table"
want_text "$out" "cores allowed" "the machine"
want_text "$out" "median of 2" "the repeats"
want_text "$out" "
decode 20 " "a case"
case $out in *prefill*) fail "--decode alone has no prefill" ;; esac
[ "$(wc -l <"$work/out")" -eq 4 ] || fail "machine, head and two cases: $out"
[ "$(awk '{ print length }' "$work/out" | sort -n | tail -1)" -le 100 ] || fail "wider than 100: $out"
# A prompt is new each time: one that the prefix cache knows would be a step of its last rows.
weft bench latency -m "$model" --prefill 64 --max-num-batched-tokens 16 --json --repeat 1
want_text "$out" '"steps":4' "64 tokens in steps of 16"

# ---- kernels ----
weft_with_path "$work/bin:$PATH" bench kernels -m "$model" --json --repeat 1 --plot "$work/k.svg"
want_rc 0 kernels
want_equal "$err" "" "kernels: stderr"
rows="1 row,4 rows,16 rows,64 rows,512 rows"
linear=$(for s in qkv o gate+up down; do tr , '\n' <<<"$rows" | sed "s/^/$s, /"; done)
mapfile -t cases <<<"machine, 4-bit dot
machine, 8-bit dot
machine, fp32 FMA
machine, memory read
$linear
head, 1 row
head, 4 rows
head, 16 rows
prefill, 512 of 512
prefill, 512 of 2048
decode, 64 at 512
decode, 1 at 2048"
want_objects kernels "${cases[@]}"
python3 - "$out" <<'PY' || fail "limits of the kernels"
import json, sys
got = [json.loads(line) for line in sys.argv[1].splitlines()]
machine = {o["case"].removeprefix("machine, "): o for o in got[:4]}
assert all("limit" not in o for o in machine.values())
for o in got[4:]:
    limit = machine[o["limit_name"]]
    assert o["unit"] == limit["unit"] and abs(o["limit"] / limit["median"] - 1) < 1e-12, o
    assert abs(o["share"] - o["median"] / o["limit"]) < 1e-9, o
    assert o["limit_name"] != "4-bit dot", o
    assert o["limit_name"] != "8-bit dot" or o["case"].startswith(("qkv", "o,", "gate", "down", "head")), o
    assert o["limit_name"] != "fp32 FMA" or o["case"].startswith(("prefill", "decode")), o
PY
plot=$(cat "$work/k.svg")
want_text "$plot" "percent of the limit" "a plot of kernels"
case $plot in *machine*) fail "the limits are no bars" ;; esac
if [ -z "$WEFT_SANITIZE" ]; then # reads large buffers, which takes long there
    weft bench kernels -m "$WEFT_GOLDEN/gguf/BF16.gguf" --threads 1 --repeat 1
    want_rc 0 "kernels, table"
    want_text "$out" ", 1 thread; median of 1" "kernels, table"
    want_text "$(head -2 "$work/out")" "limit  share" "kernels, table"
    [ "$(grep -c ' %$' "$work/out")" -ge 20 ] || fail "a case without its share: $out"
    ! grep -q ' GOP/s .* %$' "$work/out" || fail "float weights have no int8 limit: $out"

    # Each architecture's own operations: latent attention and experts; windows; own inputs and layers
    # that share a cache (two rows of cases: a window and none).
    shapes_of() { python3 -c 'import json, sys
names = [json.loads(line)["case"] for line in sys.argv[1].splitlines()]
print(*dict.fromkeys(n.split(",")[0] for n in names), sum("window" in n for n in names), sep=" | ")' "$out"; }
    weft bench kernels -m "$WEFT_GOLDEN/models/deepseek_v2_lite" --json --repeat 1
    want_rc 0 "kernels, deepseek"
    want_equal "$(shapes_of)" "machine | latent qkv | values | o | gate+up | down | router | experts | \
shared gate+up | shared down | head | prefill | decode | 0" "kernels, deepseek"
    weft bench kernels -m "$WEFT_GOLDEN/models/gpt_oss" --json --repeat 1
    want_rc 0 "kernels, gpt_oss"
    want_equal "$(shapes_of)" "machine | qkv | o | router | experts | head | prefill | decode | 4" "kernels, gpt_oss"
    weft bench kernels -m "$WEFT_GOLDEN/models/gemma4_kvshare" --json --repeat 1
    want_rc 0 "kernels, gemma4"
    want_equal "$(shapes_of)" "machine | qkv | o | gate+up | down | layer input | head | prefill | decode | 4" \
        "kernels, gemma4"
fi

# ---- comm ----
weft_with_path "$work/bin:$PATH" bench comm -m "$model" --json --repeat 1 --plot "$work/c.svg"
want_rc 0 comm
[ "$(grep -c '^".* ranks' "$work/c.svg")" -eq 21 ] || fail "bars of comm: $(cat "$work/c.svg")"
cases=()
for n in 2 4 8; do
    cases+=("barrier, $n ranks")
    for what in all_gather_v all_to_all_v; do
        cases+=("$what, $n ranks, 1 row" "$what, $n ranks, 64 rows" "$what, $n ranks, 512 rows")
    done
done
want_objects comm "${cases[@]}"
python3 - "$out" <<'PY' || fail "units of comm"
import json, sys
for o in map(json.loads, sys.argv[1].splitlines()):
    assert o["unit"] == ("us" if o["series"] == "barrier" else "GB/s"), o
    assert f", {o['world']} ranks" in o["case"] and o["threads"] == o["world"], o
PY

# ---- pictures ----
small="--prefill 7,33 --decode 4 --output 3 --repeat 1"
# shellcheck disable=SC2086 # several arguments
weft_with_path "$work/bin:$PATH" bench latency -m "$model" $small --plot "$work/l.svg"
want_rc 0 "a plot of latency"
plot=$(cat "$work/l.svg")
want_text "$plot" "set terminal svg" "a plot of latency"
want_text "$plot" "plot \$prefill using 1:2:3:4 with" "a plot of latency"
want_text "$plot" "plot \$decode using 1:2:3:4 with" "a plot of latency"
want_text "$plot" "title 'limit of this machine'" "the cost model"
grep -q '^33 [0-9.e-]* [0-9.e-]* [0-9.e-]* [0-9.e-]*$' "$work/l.svg" || fail "no point for 33 tokens: $plot"
weft_with_path "$work/bin:$PATH" bench throughput -m "$model" --prompts 2 --input 3 --output 2 --repeat 1 --plot "$work/l.svg"
want_rc 0 "a plot of throughput"
want_text "$(cat "$work/l.svg")" '"2 x (3 in, 2 out)" ' "bars"
want_text "$(cat "$work/l.svg")" "set ylabel 'tok/s'" "bars"
case $(cat "$work/l.svg") in *prefill*) fail "the old picture shows through" ;; esac
touch "$work/bin/gnuplot.broken"
# shellcheck disable=SC2086
weft_with_path "$work/bin:$PATH" bench latency -m "$model" $small --plot "$work/new.svg"
want_rc 5 "a gnuplot that fails"
[ ! -e "$work/new.svg" ] || fail "an empty picture stays"
# shellcheck disable=SC2086
weft_with_path "$work/bin:$PATH" bench latency -m "$model" $small --plot "$work/no/new.svg"
want_rc 2 "a picture in no folder"
# shellcheck disable=SC2086
weft_with_path "$work/empty" bench latency -m "$model" $small --plot "$work/new.svg"
want_rc 2 "without gnuplot"
want_text "$err" "--plot needs the program gnuplot, which is not in PATH" "without gnuplot"
want_equal "$out" "" "without gnuplot: nothing is measured"
[ ! -e "$work/new.svg" ] || fail "a picture without gnuplot"

# ---- refusals ----
refused() { # TEXT ARGS...
    local text=$1
    shift
    weft bench "$@"
    want_rc 2 "$*"
    want_text "$err" "$text" "$*"
    want_equal "$out" "" "$*: stdout"
}
refused "bench needs throughput|" -m "$model"
refused "did you mean latency?" latancy -m "$model"
refused "no bench xyzzy; there are" xyzzy -m "$model"
refused "--prompts: bench latency has no use for it" latency -m "$model" --prompts 4
refused "--prefill: bench throughput has no use for it" throughput -m "$model" --prefill 4
refused "--no-prefix-cache: bench kernels" kernels -m "$model" --no-prefix-cache
refused "--max-num-seqs: bench latency" latency -m "$model" --max-num-seqs 4
refused "--tp: bench kernels has no use for it" kernels -m "$model" --tp 2
refused "--threads: bench comm has no use for it" comm -m "$model" --threads 2
refused "instruction set" kernels -m "$model" --isa mmx
refused "--output: only decode" latency -m "$model" --prefill 4 --output 3
refused "--output 1" latency -m "$model" --decode 4 --output 1
refused "--repeat" latency -m "$model" --repeat 0
for list in '' 0 x 1,,2 "1," 99999999999999999999; do
    refused "--prefill" latency -m "$model" "--prefill=$list"
done
refused "--prefill: 1000001 tokens" latency -m "$model" --prefill 1000000
refused "--input and --output: 1000004 tokens" throughput -m "$model" --input 1000000 --output 4
refused "tp 7" throughput -m "$model" --tp 7 --input 2 --output 2
weft bench latency -m "$work/missing.gguf"
want_rc 3 "a missing file"

# ---- Ctrl-C: bash keeps SIGINT from jobs in the background, python gives it back ----
python3 - "$WEFT" "$model" <<'PY' || fail "Ctrl-C"
import signal, subprocess, sys, time
p = subprocess.Popen([sys.argv[1], "bench", "latency", "-m", sys.argv[2], "--repeat", "100", "--decode",
                      "4", "--output", "400"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
time.sleep(0.3)
p.send_signal(signal.SIGINT)
out, err = p.communicate(timeout=30)
assert p.returncode == 130 and out == "" and "interrupted after" in err, (p.returncode, out, err)
PY
finish

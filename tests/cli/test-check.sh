# weft check: nothing differs, every planted fault does; JSON as documented.
. "$(dirname "$0")/lib.sh"
model=$WEFT_GOLDEN/gguf/Q4_0.gguf
need_file "$model"
topologies=tp1pcp1dcp1,tp1pcp2dcp1,tp1pcp2dcp2,tp2pcp2dcp2:kv,tp4pcp2dcp4,tp8pcp1dcp4

for suite in cp mixed random prefix; do
    weft check -m "$model" --suite $suite --topologies $topologies -n 24 --json
    want_rc 0 "suite $suite"
    python3 - "$suite" "$work/out" <<'PY' || fail "JSON of suite $suite"
import json, sys
d = json.load(open(sys.argv[2]))
assert d["identity"].startswith("exact/P16/V16/L") and d["reference"] == "tp1pcp1dcp1" and d["different"] == 0, d
assert len(d["topologies"]) == 6, d
for t in d["topologies"]:
    assert set(t) >= {"tp", "pcp", "dcp", "exchange", "requests", "tokens", "logits_rows", "different", "first_difference"}, t
    assert t["different"] == 0 and t["first_difference"] is None, t
    assert t["tokens"] == d["topologies"][0]["tokens"] > 0 and t["logits_rows"] == d["topologies"][0]["logits_rows"], t
    assert t["logits_rows"] > t["tokens"] or sys.argv[1] == "prefix"
cached = [t["cached_tokens"] for t in d["topologies"]]
assert cached[0] == 0 and (sys.argv[1] != "prefix" or max(cached) > 0), cached
if sys.argv[1] == "random":
    assert any(t["preemptions"] > 0 for t in d["topologies"]), "no pool forced a preemption"
PY
done

# one topology has itself to be compared with, and says so
weft check -m "$model" --topologies tp1pcp1dcp1 -n 4
want_rc 0 "one topology"
want_text "$out" "1 topology compared with a second run of itself, 0 requests differ" "one topology"
weft check -m "$model" --topologies tp1pcp1dcp1,tp1pcp2dcp2 -n 4
want_text "$out" "1 topology compared with the first, 0 requests differ" "two topologies"
weft check
want_rc 2 "no model"
want_text "$err" "check needs -m MODEL" "no model"

weft check --fault list
want_rc 0 "fault list"
faults=$out
[ "$(wc -l <<<"$faults")" -ge 6 ] || fail "only these faults: $faults"
for fault in $faults; do
    weft check -m "$model" --topologies tp1pcp1dcp1,tp1pcp2dcp2 --fault "$fault" -n 8
    [ "$rc" -eq 1 ] || [ "$rc" -eq 5 ] || fail "fault $fault was not caught: exit code $rc; $out $err"
done
weft check -m "$model" --topologies tp1pcp1dcp1,tp1pcp2dcp2 --fault rank-fails -n 8
want_rc 5 "a rank that fails"
want_text "$err" "rank 1" "a rank that fails"

weft check -m "$model" --topologies tp1pcp2dcp3
want_rc 2 "illegal topology"
weft check -m "$model" --topologies tp1,pcp2
want_rc 2 "malformed topology"
want_text "$err" "tp1pcp2dcp2" "malformed topology"
weft check -m "$model" --fault nonsense
want_rc 2 "unknown fault"
weft check -m "$model" --suite nonsense
want_rc 2 "unknown suite"

# every instruction set gives the same digest
weft check -m "$model" --topologies tp1pcp2dcp2 -n 8 --json
digest='import json, sys; print(json.load(open(sys.argv[1]))["digest"])'
best=$(python3 -c "$digest" "$work/out")
for isa in scalar avx2 avx512 avx512vnni; do
    weft check -m "$model" --topologies tp2pcp1dcp1 -n 8 --isa $isa --json
    if [ "$rc" -eq 2 ] && [[ $err == *"is not on this machine"* ]] && [ $isa != scalar ]; then
        echo "NOT TESTED: $isa is not on this machine"
        continue
    fi
    want_rc 0 "--isa $isa"
    want_equal "$(python3 -c "$digest" "$work/out")" "$best" "$isa against the best instruction set"
done
export WEFT_ISA=nonsense
weft run -m "$model" -p x -n 1
want_rc 2 "unknown WEFT_ISA"
want_text "$err" "from WEFT_ISA" "unknown WEFT_ISA"
weft run -m "$model" -p x -n 1 --isa scalar
want_rc 0 "--isa wins over WEFT_ISA"
unset WEFT_ISA

# the real model: heads that do not divide by two, leaves of three blocks
if [ -e "$WEFT_DEMO_MODEL" ] && [ -z "${WEFT_SANITIZE:-}" ]; then
    weft check -m "$WEFT_DEMO_MODEL" --topologies tp1pcp1dcp1,tp1pcp2dcp2,tp3pcp2dcp2:kv,tp1pcp5dcp5
    want_rc 0 "demo model"
    echo "$out"
fi
finish

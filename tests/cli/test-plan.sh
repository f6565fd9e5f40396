# weft plan: worked numbers in the text and in the JSON, refusals, the picture.
. "$(dirname "$0")/lib.sh"
need_file "$WEFT_DEMO_MODEL"
model=$WEFT_DEMO_MODEL

# The owners of a prompt of 7 and of 9 tokens on two ranks, and of the pages of 100 tokens.
weft plan -m "$model" --pcp 2 --dcp 2 --cp-min-split 1 --prompts 7,9,100 --kv-pages 64
want_rc 0 plan
want_equal "$err" "" "plan: stderr"
want_text "$out" "prompt 7    0011110
" "rows of 7"
want_text "$out" "prompt 9    " "rows of 9"
want_text "$out" "prompt 100  0101010
" "pages of 100"
want_text "$out" "64 pages of 16 tokens per rank; a DCP group of 2 ranks holds 2048 tokens" cache
[ "$(awk '{ print length }' "$work/out" | sort -n | tail -1)" -le 80 ] || fail "wider than 80"
weft plan -m "$model" --pcp 2 --cp-min-split 1 --prompts 7
want_text "$out" "PCP rank 0: 3 tokens: #0 [0,2)  #0 [6,7)
  PCP rank 1: 4 tokens: #0 [2,6)" "row lists of 7"
weft plan -m "$model" --pcp 2 --cp-min-split 1 --prompts 9
want_text "$out" "PCP rank 0: 5 tokens" "9 tokens: rank 0"
want_text "$out" "PCP rank 1: 4 tokens" "9 tokens: rank 1"

weft plan -m "$model"
want_rc 0 "without requests"
want_text "$out" "decode 64" "default decode"
want_text "$out" "prompt 100" "default prompt"
want_text "$out" "none: there is one rank" "one rank"
want_text "$out" "
  linear layers, 4-bit dots " work
want_text "$out" "
  cache pages read " work
case $out in *"layers, fp32"*) fail "no layer of this model has float weights" ;; esac
weft plan -m "$model" --decode 500
case $out in *"prompt 100"*) fail "--decode alone has no prompt" ;; esac
weft plan -m "$model" --prompts 500,40,3 --decode 9 --max-num-batched-tokens 520
want_text "$out" "19 of its 40 tokens: cut by --max-num-batched-tokens" "a cut"
want_text "$out" "waits: --max-num-batched-tokens" "one that waits"

# The numbers of a run on the same set-up are those of the plan.
topology="--tp 3 --pcp 2 --dcp 2 --kv-pages 64"
# shellcheck disable=SC2086 # several arguments
weft plan -m "$model" $topology --max-num-seqs 4 --json --decode 64,500 --prompts 33
want_rc 0 json
plan=$out
# shellcheck disable=SC2086
weft plan -m "$model" $topology --max-num-seqs 1 --json --decode 64
one=$out
# shellcheck disable=SC2086
"$WEFT" run -m "$model" $topology -p a -n 1 --stats >/dev/null 2>"$work/stats" || fail "run: $(cat "$work/stats")"
python3 - "$plan" "$one" "$work/stats" <<'PY' || fail "json"
import json, sys
p, one, stats = json.loads(sys.argv[1]), json.loads(sys.argv[2]), open(sys.argv[3], encoding="utf-8").read()
m = one["memory"]
line = "%.1f MiB weights, %.1f MiB cache, %.1f MiB buffers; planned %.1f MiB in all" % tuple(
    m[k] / 1048576 for k in ("weight_bytes", "kv_bytes", "scratch_bytes", "total_bytes"))
assert line in stats, (line, stats)
m = p["memory"]
assert p["identity"] in stats and p["world"] == len(p["ranks"]) == 6
assert sum(r["memory_bytes"] for r in p["ranks"]) == m["kv_bytes"] + m["scratch_bytes"]
assert p["ranks"][5]["dcp_group"] == [2, 5] and p["ranks"][5]["kv_heads"] == [2, 3]
assert p["ranks"][5]["heads"] == [6, 9] and p["ranks"][5]["shards"] == [8, 16]
assert [r["kind"] for r in p["requests"]] == ["decode", "decode", "prompt"]
assert p["requests"][0]["pages"] == [0, 1, 0, 1, 0]
assert p["requests"][0]["groups"] == [{"first_page": 0, "held_pages": 5}]
assert p["cache"]["groups"] == [{"window": 0, "layers": 30, "token_bytes": 30 * 256, "pages_per_rank": 64,
                                 "longest_request_pages": 256}], p["cache"]
w = p["work"]
assert w["dot4_ops"] > 2 * 30 * 35 * 576 * 6144 - 1 and w["dot8_ops"] > 0 and w["fp32_ops"] == 0 and w["weight_bytes"] > 0, w
assert w["attn_ops"] == 4 * 9 * 64 * 30 * (65 + 501 + 33 * 34 // 2), w
assert w["kv_bytes"] == 30 * 16 * 768 * (5 + 32 + 3), w
for r in p["ranks"]:
    assert r["tokens"] == sum(row["end"] - row["start"] for row in r["rows"])
for move in p["ranks"][0]["sent"]:
    assert sum(r["sent"][move] for r in p["ranks"]) == sum(r["received"][move] for r in p["ranks"])
PY

# What only pass-KV needs is not reserved where it is ruled out.
for exchange in auto q; do
    weft plan -m "$model" --pcp 2 --dcp 2 --cp-exchange "$exchange" --json
    want_rc 0 "exchange $exchange"
    python3 - "$out" "$exchange" <<'PY' || fail "memory with --cp-exchange $exchange"
import json, sys
for r in json.loads(sys.argv[1])["ranks"]:
    size = {m["name"]: m["bytes"] for m in r["memory"]}
    for name in "states of pass-KV rows", "pages to send", "pages received":
        assert (size[name] > 0) == (sys.argv[2] == "auto"), (name, size[name])
PY
done

weft plan -m "$model" --pcp 2 --dcp 2 --svg "$work/plan.svg" --prompts 100,9
want_rc 0 svg
python3 - "$work/plan.svg" <<'PY' || fail "svg"
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
tips = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
assert "PCP rank 0: [0,25), 25 tokens" in tips and "PCP rank 1: [25,75), 50 tokens" in tips, tips
assert "page 5, positions [80,96): DCP rank 1" in tips, tips
PY
# each rank has a thread at least, and so many are told
weft plan -m "$model" --pcp 8 --dcp 4 --threads 2
want_text "$out" "= 8 ranks, dcp 4, 8 threads" "threads of 8 ranks"
want_text "$out" "  DCP group 1: ranks 4  5  6  7
" "DCP groups"

weft plan -m "$model" --svg "$work/no/plan.svg"
want_rc 2 "a picture in no folder"
want_text "$err" "$work/no/plan.svg" "a picture in no folder"
weft plan -m "$model" --svg /dev/full
want_rc 5 "a picture on a full disk"

for list in '' 0 -5 x 1,,2 "1," 1.5 99999999999999999999 '1 2' 1kk 1T; do
    weft plan -m "$model" "--prompts=$list"
    want_rc 2 "--prompts '$list'"
    want_text "$err" "--prompts" "--prompts '$list'"
    want_equal "$out" "" "--prompts '$list': stdout"
done
weft plan -m "$model" --tp 2
want_rc 2 "tp 2 of 9 heads"
want_text "$err" "tp" "tp 2 of 9 heads"
want_equal "$out" "" "tp 2 of 9 heads: stdout"
weft plan -m "$model" --pcp 2 --dcp 3
want_rc 2 "dcp 3 on 2 ranks"
weft plan -m "$model" --prompts 8192
want_rc 2 "a prompt without room"
want_text "$err" "--prompts 8192" "a prompt without room"
weft plan -m "$work/missing.gguf"
want_rc 3 "a missing file"

# Who owns which experts, also when there are fewer than ranks; the moves and what they assume.
if [ -e "$WEFT_GOLDEN/models/gpt_oss" ]; then
    moe="plan -m $WEFT_GOLDEN/models/gpt_oss --tp 2 --pcp 4 --expert-parallel"
    # shellcheck disable=SC2086
    weft $moe
    want_rc 0 "whole experts"
    want_text "$out" " experts " "whole experts: column"
    want_text "$out" "     0    0    0        1      0-3       0-0     none " "whole experts: rank 0 has none"
    want_text "$out" "     7    3    1        1      4-7       1-1      3-3 " "whole experts: rank 7 has the last"
    for line in "rows and slots to whole experts" "their outputs back" "sums of experts over TP" \
        "to experts: as if the rows of each rank chose all experts in turn"; do
        want_text "$out" "  $line" "whole experts: moves"
    done
    # shellcheck disable=SC2086
    weft $moe --json
    python3 - "$work/out" <<'PY' || fail "whole experts: json"
import json, sys
p = json.load(open(sys.argv[1]))
assert p["expert_parallel"] is True
assert [r["experts"] for r in p["ranks"]] == [[i // 2, (i + 1) // 2] for i in range(8)]
for move in "expert_rows", "expert_outputs", "expert_sums":
    assert sum(r["sent"][move] for r in p["ranks"]) == sum(r["received"][move] for r in p["ranks"]) > 0, move
PY
fi

# What a process has resident at most stays near what was planned (a sanitizer has memory of its own).
if [ -z "$WEFT_SANITIZE" ] && [ -f "$WEFT_DEMO_MODEL" ]; then
    for topology in "" "--pcp 2 --dcp 2" "--tp 3"; do
        # shellcheck disable=SC2086
        "$WEFT" run -m "$WEFT_DEMO_MODEL" $topology -p "$(seq 1 80)" -n 2 --stats >/dev/null 2>"$work/stats" || fail "run: $(cat "$work/stats")"
        share=$(sed -n 's/.*most resident .* MiB (\(.*\) of it)$/\1/p' "$work/stats")
        awk -v s="$share" 'BEGIN { exit !(s > 0.3 && s <= 1.25) }' || fail "resident memory is '$share' of the planned: $(cat "$work/stats")"
    done
fi
finish

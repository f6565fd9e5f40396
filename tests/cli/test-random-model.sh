# scripts/make-random-model: every shape opens and runs, as a file and as a folder; what is refused.
. "$(dirname "$0")/lib.sh"

make_model() { # ARGS...: sets rc, err
    "$WEFT_SOURCE/scripts/make-random-model" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

runs() { # MODEL WHAT: two tokens, whose log-probabilities are numbers, and not all tokens are alike
    weft run -m "$1" -p "hello there" -n 2 --ignore-eos --json --top-logprobs 20
    want_rc 0 "$2"
    want_equal "$(grep -c '"logprob"' "$work/out")" 2 "$2: tokens"
    python3 - "$work/out" <<'END' || fail "$2: $out"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for line in lines[:2]:
    top = [t["logprob"] for t in line["top_logprobs"]]
    assert all(-30 < x < 0 for x in top) and top[0] - top[-1] > 0.01, top
END
}

make_model --list
want_rc 0 list
shapes=$(awk '/ G / { print $1 }' "$work/out")
types=$(sed -n 's/^types of a GGUF: *//p' "$work/out")
want_equal "$(wc -w <<<"$shapes") $(wc -w <<<"$types")" "5 19" "shapes and types"
for shape in $shapes; do
    make_model "$shape" q4_k_m "$work/$shape.gguf" --tiny
    want_rc 0 "$shape as a file"
    runs "$work/$shape.gguf" "$shape, q4_k_m"
    make_model "$shape" bf16 "$work/$shape" --tiny
    want_rc 0 "$shape as a folder"
    runs "$work/$shape" "$shape, folder"
    rm -rf "${work:?}/$shape"
done
for type in $types; do
    make_model qwen3-0.6b "$type" "$work/$type.gguf" --tiny
    want_rc 0 "$type"
    runs "$work/$type.gguf" "$type"
done

weft inspect -m "$work/q4_k_m.gguf"
want_text "$out" "Q6_K" "q4_k_m: a mixture"
weft inspect -m "$work/deepseek-v2-lite.gguf"
want_text "$out" "Q5_0" "rows of 96 have no K-quant"

make_model llama-3.1-8b q8_0 "$work/a.gguf" --tiny --layers 1
make_model llama-3.1-8b q8_0 "$work/b.gguf" --tiny --layers 1
make_model llama-3.1-8b q8_0 "$work/c.gguf" --tiny --layers 1 --seed 1
cmp -s "$work/a.gguf" "$work/b.gguf" || fail "the same seed gives other bytes"
! cmp -s "$work/a.gguf" "$work/c.gguf" || fail "another seed gives the same bytes"
weft inspect -m "$work/a.gguf"
want_text "$out" "llama.block_count" "one layer"
case $out in *blk.1.*) fail "--layers 1 has more" ;; esac

before=$(cksum "$work/a.gguf")
make_model llama-3.1-8b q8_0 "$work/a.gguf" --tiny
want_rc 2 overwrite
want_text "$err" "a.gguf is there already" overwrite
want_equal "$(cksum "$work/a.gguf")" "$before" "overwrite: the file"
make_model llama-3.1-8b q4_k "$work/folder"
want_rc 2 "a folder of blocks"
want_text "$err" "OUT must end in .gguf" "a folder of blocks"
make_model llama-3.1-8b bf16 "$work/folder" --layers 33
want_rc 2 "too many layers"
want_text "$err" "has 1 to 32" "too many layers"
make_model llama-3.1-8b bf16
want_rc 2 "nothing to write"
for left in "$work"/folder "$work"/folder.part; do
    [ ! -e "$left" ] || fail "a refusal left $left"
done

finish

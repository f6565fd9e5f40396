# weft eval: values against transformers. Bounds: docs/testing.md.
. "$(dirname "$0")/lib.sh"
need_file "$WEFT_GOLDEN/gguf/F32.gguf"

golden() { # FILE CONDITION OPTION...: a Python condition on the JSON result d
    local file=$1 condition=$2
    shift 2
    weft eval golden -m "$WEFT_GOLDEN/gguf/$file.gguf" --reference "$WEFT_GOLDEN/gguf/$file.golden.safetensors" --json "$@"
    want_rc 0 "$file $*"
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
sys.exit(not eval(sys.argv[2]))' "$out" "$condition" || fail "$file $*: $out is not $condition"
}
for file in F32 F16 BF16; do
    golden $file 'd["max_abs_diff"] < 2e-4 and d["greedy_equal"] == d["greedy_total"] >= 60' --kv-cache-dtype f32
    golden $file 'd["max_abs_diff"] < 2e-4 and d["greedy_equal"] == d["greedy_total"] >= 60' --kv-cache-dtype f32 --tp 2 --pcp 2 --dcp 2
    golden $file 'd["max_abs_diff"] < 0.1 and d["mean_abs_diff"] < 0.01' --kv-cache-dtype f16
done
# 8-bit activations on a model with wide random weights: only gross faults show
for file in Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q4_K_M IQ4_NL IQ4_XS; do
    golden $file 'd["mean_abs_diff"] < 0.1 and d["max_abs_diff"] < 1'
done

weft eval golden -m "$WEFT_GOLDEN/gguf/F32.gguf" --reference "$WEFT_GOLDEN/gguf/F32.gguf"
want_rc 3 "a reference that is no safetensors file"
weft eval golden -m "$WEFT_GOLDEN/gguf/F32.gguf"
want_rc 2 "no reference"
weft eval nonsense -m "$WEFT_GOLDEN/gguf/F32.gguf"
want_rc 2 "unknown kind"

if [ -e "$WEFT_DEMO_MODEL" ] && [ -z "${WEFT_SANITIZE:-}" ]; then
    weft eval ppl -m "$WEFT_DEMO_MODEL" --reference "$WEFT_GOLDEN/smollm2/ref.safetensors" --json
    want_rc 0 "perplexity"
    echo "demo model: $out"
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert abs(d["ppl_reference"] - 4.4773) < 1e-4 and abs(d["long_ppl_reference"] - 4.8460) < 1e-4, d
assert d["kl_mean"] <= 0.0022 and d["same_top"] >= 0.9795 and abs(d["ppl"] / d["ppl_reference"] - 1) < 0.01, d' "$out" || fail "demo model: $out"
else
    echo "the demo model is not measured here"
fi
finish

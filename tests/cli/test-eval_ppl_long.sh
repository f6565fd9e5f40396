# The demo model against the whole reference of transformers in fp32: 8 pieces of 512 tokens and a text of 4096.
. "$(dirname "$0")/lib.sh"
need_file "$WEFT_DEMO_MODEL"
weft eval ppl -m "$WEFT_DEMO_MODEL" --reference "$WEFT_GOLDEN/smollm2/ref.safetensors" --json
want_rc 0 "perplexity"
echo "demo model: $out"
python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert abs(d["ppl_reference"] - 4.4773) < 1e-4 and abs(d["long_ppl_reference"] - 4.8460) < 1e-4, d
assert d["kl_mean"] <= 0.0022 and d["same_top"] >= 0.9795 and abs(d["ppl"] / d["ppl_reference"] - 1) < 0.01, d' "$out" || fail "demo model: $out"
finish

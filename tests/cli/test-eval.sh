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
    golden $file 'd["max_abs_diff"] < 0.1 and d["mean_abs_diff"] < 0.01' --kv-cache-dtype f16 --tolerance 0.1
done
# 8-bit activations on a model with wide random weights: only gross faults show
for file in Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q4_K_M IQ4_NL IQ4_XS; do
    golden $file 'd["mean_abs_diff"] < 0.1 and d["max_abs_diff"] < 1' --tolerance 1
done

weft eval golden -m "$WEFT_GOLDEN/gguf/F32.gguf" --reference "$WEFT_GOLDEN/gguf/F32.gguf"
want_rc 3 "a reference that is no safetensors file"
weft eval golden -m "$WEFT_GOLDEN/gguf/F32.gguf" --reference "$work/none"
want_rc 2 "no such reference"
want_text "$err" "cannot open $work/none" "no such reference"
for file in Q4_0 F32; do # another model, and one that is off by more than is asked for
    weft eval golden -m "$WEFT_GOLDEN/gguf/$file.gguf" --reference "$WEFT_GOLDEN/gguf/F32.golden.safetensors" --kv-cache-dtype f32 --tolerance 1e-7
    want_rc 1 "$file against F32, tolerance 1e-7"
    want_text "$out" "not within --tolerance 1e-07" "$file against F32"
done
weft eval golden -m "$WEFT_GOLDEN/gguf/F32.gguf"
want_rc 2 "no reference"
weft eval nonsense -m "$WEFT_GOLDEN/gguf/F32.gguf"
want_rc 2 "unknown kind"

# The demo model on the beginning of its reference; all of it: test-eval_ppl_long.sh.
if [ -e "$WEFT_DEMO_MODEL" ]; then
    python3 - "$WEFT_GOLDEN/smollm2/ref.safetensors" "$work/part.safetensors" <<'EOF'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
part, out = {}, b""
for name, t in head.items():
    if name == "__metadata__":
        continue
    keep = 2 if name.startswith("chunks.") else 511 if name == "long.nll" else 512
    begin, end = t["data_offsets"]
    begin_out, row = len(out), (end - begin) // t["shape"][0]
    out += data[begin:begin + keep * row]
    part[name] = {"dtype": t["dtype"], "shape": [keep] + t["shape"][1:], "data_offsets": [begin_out, len(out)]}
text = json.dumps(part).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[2], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + out)
EOF
    weft eval ppl -m "$WEFT_DEMO_MODEL" --reference "$work/part.safetensors" --json
    want_rc 0 "perplexity"
    echo "demo model: $out"
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert d["scored"] == 2 * 256 and d["kl_mean"] <= 0.003 and d["same_top"] >= 0.97, d
assert abs(d["ppl"] / d["ppl_reference"] - 1) < 0.02 and d["long_same_top"] >= 0.97, d' "$out" || fail "demo model: $out"
else
    echo "the demo model is not measured here"
fi
finish

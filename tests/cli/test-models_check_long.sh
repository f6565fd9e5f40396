# weft check on every architecture: every exchange; steps that mix prompts and decodes; random arrivals, budgets and preemption. The GGUF
# twins as well.
. "$(dirname "$0")/lib.sh"
models=$WEFT_GOLDEN/models
need_file "$models/qwen3/model.safetensors"
need_file "$WEFT_TWINS/qwen3.gguf"

check() { # MODEL OPTION...
    weft check -m "$@"
    want_rc 0 "$*"
    want_text "$out" " 0 requests differ" "$*"
    echo "$*: $(tail -1 <<<"$out")"
}

for model in "$models"/*/; do
    check "$model" --suite cp --each-exchange
    check "$model" --suite mixed
    check "$model" --suite random
    check "$model" --suite prefix
done
for name in deepseek_v2_lite deepseek_v3 gpt_oss mixtral qwen3_moe; do
    check "$models/$name" --suite mixed --expert-parallel --each-exchange
    check "$models/$name" --suite random --expert-parallel
done
for model in "$WEFT_TWINS"/*.gguf; do
    check "$model" --suite cp
done
finish

# weft check on every architecture and every exchange, with steps that mix prompts and decodes, random arrivals, budgets and preemption;
# the GGUF twins too.
. "$(dirname "$0")/lib.sh"
models=$WEFT_GOLDEN/models
need_file "$models/qwen3/model.safetensors"
need_file "$WEFT_TWINS/qwen3.gguf"

for model in "$models"/*/ "$WEFT_TWINS"/*.gguf; do
    for suite in cp mixed random; do
        weft check -m "$model" --suite $suite --each-exchange
        want_rc 0 "$model, suite $suite"
        want_text "$out" " 0 requests differ" "$model, suite $suite"
        echo "$(basename "$model"), $suite: $(tail -1 <<<"$out")"
    done
done
finish

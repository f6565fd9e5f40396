# weft check on every architecture, byte for byte: all legal topologies of at most 8 ranks, and every exchange of three whose layers differ most
# (MLA, shared caches, windows and sinks). The rest is in test-models_check_long.sh.
. "$(dirname "$0")/lib.sh"
models=$WEFT_GOLDEN/models
need_file "$models/qwen3/model.safetensors"

some=tp1pcp1dcp1,tp1pcp2dcp1,tp1pcp2dcp2:q,tp1pcp2dcp2:kv,tp1pcp4dcp2
check() { # NAME OPTION...
    local name=$1
    shift
    weft check -m "$models/$name" -n 2 "$@"
    want_rc 0 "$name"
    want_text "$out" " 0 requests differ" "$name"
    echo "$name: $(tail -1 <<<"$out")"
}

whole() { # NAME OPTION...: whole experts on the ranks against one rank without
    check "$@" --expert-parallel
    want_text "$out" "with --expert-parallel compared with the first, which runs without" "$1"
}

if [ "$WEFT_TEST_SCALE" = small ]; then
    for name in deepseek_v3 gemma4_kvshare gpt_oss; do
        check $name --topologies $some
    done
    whole gpt_oss --topologies tp1pcp1dcp1,tp2pcp2dcp2
    models=$WEFT_TWINS
    check gemma4_moe --topologies $some,tp4pcp1dcp2
    whole gemma4_moe --topologies tp1pcp1dcp1,tp2pcp2dcp2
    finish
fi
for name in deepseek_v3 gemma4_kvshare gpt_oss; do
    check $name --each-exchange
done
for name in deepseek_v2_lite gemma3 llama_gqa3 llama3_rope mistral_swa mixtral qwen2 qwen3 qwen3_moe qwen3_tp8; do
    check $name
done
for name in deepseek_v2_lite deepseek_v3 gpt_oss mixtral qwen3_moe; do
    whole $name
done

# Experts in MXFP4 from a folder; layers with fewer KV heads and experts beside the MLP.
models=$WEFT_TWINS
check gpt_oss_mxfp4
whole gpt_oss_mxfp4
check gemma4_moe --each-exchange
whole gemma4_moe
whole gemma4_moe_six
models=$WEFT_GOLDEN/models

# Where experts are split gpt_oss has no tp above 1: the reference must be legal, and a model needs experts.
weft check -m "$models/gpt_oss" --expert-parallel --topologies tp2pcp1dcp1,tp1pcp1dcp1
want_rc 2 "a reference that only whole experts allow"
weft check -m "$models/qwen3" --expert-parallel
want_rc 2 "no experts"
want_text "$err" "--expert-parallel: the model has no experts" "no experts"
finish

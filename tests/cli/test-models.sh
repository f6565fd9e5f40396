# Every architecture against transformers: the folders of golden/models and their GGUF twins (tests/tools/make-gguf-twin), whole prompts,
# chunks of them, and two ranks. Bounds are about four times what is seen (docs/models.md); only the first run is compared with
# the stored logits, the others must give its very numbers.
. "$(dirname "$0")/lib.sh"
models=$WEFT_GOLDEN/models
need_file "$models/qwen3/model.safetensors"
need_file "$WEFT_TWINS/qwen3.gguf"

bounds="deepseek_v2_lite=7e-5 deepseek_v3=8e-5 gemma3=3e-5 gemma4_kvshare=1e-3 gpt_oss=1.5e-4 llama3_rope=1.2e-4 llama_gqa3=4e-4
mistral_swa=2e-4 mixtral=1.7e-4 qwen2=2e-4 qwen3=6e-5 qwen3_moe=8e-5 qwen3_tp8=8e-5"
small="deepseek_v2_lite=7e-5 gemma4_kvshare=1e-3 gpt_oss=1.5e-4"
beyond="gemma4_moe=4.6e-4" # of tests/tools/make-golden

golden() { # MODEL NAME BOUND OPTION...
    local model=$1 name=$2 bound=$3
    shift 3
    weft eval golden -m "$model" --reference "$models/$name/golden.safetensors" --kv-cache-dtype f32 --tolerance "$bound" --json "$@"
    want_rc 0 "$model $*"
}

within() { # BOUND WHAT
    python3 -c 'import json, sys
d, bound = json.loads(sys.argv[1]), float(sys.argv[2])
sys.exit(not (d["max_abs_diff"] < bound and d["greedy_equal"] == d["greedy_total"] >= 100 and d["prompts"] == 6))' "$out" "$1" ||
        fail "$2: $out, bound $1"
}

full() { # NAME BOUND
    local whole
    golden "$models/$1" "$1" "$2"
    within "$2" "$1"
    whole=$out
    echo "$1: $out"
    golden "$models/$1" "$1" "$2" --max-num-batched-tokens 37
    want_equal "$out" "$whole" "$1, 37 tokens a step"
    golden "$models/$1" "$1" "$2" --pcp 2 --dcp 2 --max-num-batched-tokens 1 --max-num-seqs 1
    want_equal "$out" "$whole" "$1, one token a step on two ranks"
    golden "$WEFT_TWINS/$1.gguf" "$1" "$2"
    within "$2" "$1.gguf"
    # the twin brings these divisors of RoPE's frequencies rounded to 24 bits
    [ "$1" = llama3_rope ] || want_equal "$out" "$whole" "$1.gguf against the folder"
    if [ -d "$WEFT_TWINS/$1_wrapped" ]; then
        golden "$WEFT_TWINS/$1_wrapped" "$1" "$2"
        want_equal "$out" "$whole" "$1 beside a model for pictures"
    fi
}

wide() { # NAME BOUND: the same values in MLPs twice as wide, half of them zero
    golden "$WEFT_TWINS/$1_wide" "$1" "$2"
    within "$2" "$1_wide"
    local folder=$out
    golden "$WEFT_TWINS/$1_wide.gguf" "$1" "$2" --pcp 2 --dcp 2
    want_equal "$out" "$folder" "$1_wide.gguf against the folder"
}

if [ "$WEFT_TEST_SCALE" = small ]; then
    for entry in $small; do
        golden "$WEFT_TWINS/${entry%=*}.gguf" "${entry%=*}" "${entry#*=}" --pcp 2 --dcp 2 --max-num-batched-tokens 200
        within "${entry#*=}" "${entry%=*}.gguf"
    done
    models=$WEFT_TWINS
    golden "$WEFT_TWINS/gemma4_moe.gguf" gemma4_moe "${beyond#*=}" --pcp 2 --dcp 2 --max-num-batched-tokens 200
    within "${beyond#*=}" gemma4_moe.gguf
else
    for entry in $bounds; do
        full "${entry%=*}" "${entry#*=}"
    done
    wide gemma4_kvshare 1e-3
    # other weights than the reference's: only that folder and GGUF file give the same numbers
    golden "$WEFT_TWINS/gpt_oss_mxfp4" gpt_oss 100
    folder=$out
    golden "$WEFT_TWINS/gpt_oss_mxfp4.gguf" gpt_oss 100 --pcp 2 --dcp 2
    want_equal "$out" "$folder" "gpt_oss_mxfp4.gguf against the folder"
    echo "gpt_oss_mxfp4: $out"
    models=$WEFT_TWINS
    full "${beyond%=*}" "${beyond#*=}"
    weft inspect -m "$models/gemma4_moe.gguf"
    want_text "$out" "experts       6, 3 for a token, ffn 128" "inspect: experts"
    want_text "$out" "heads         4 query, 1 KV, of 64, in 2 layers, V from K's matrix" "inspect: full layers"
    want_text "$out" "              4 query, 2 KV, of 32, in 1 layer" "inspect: layers with a window"
    weft plan -m "$models/gemma4_moe" --tp 4
    want_text "$out" "     3    0    3        1      3-3   1-1/0-0 " "plan: KV heads"
    weft plan -m "$models/gemma4_moe" --tp 2 --json
    want_text "$out" '"kv_heads":[1,2],"kv_heads_fewer":[0,1],' "plan: KV heads, JSON"
    weft plan -m "$models/gemma4_moe" --json
    want_text "$out" '"token_bytes":512' "plan: cache of two full layers with one KV head of 64"
    want_text "$out" '"token_bytes":256' "plan: cache of one layer with two of 32"
fi
finish

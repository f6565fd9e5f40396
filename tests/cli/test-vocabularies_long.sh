# The vocabularies that llama.cpp keeps for its own tests, text by text. `make test-long` runs it; without
# a network it is skipped.
. "$(dirname "$0")/lib.sh"
"$WEFT_SOURCE/scripts/check-vocabularies" "$WEFT"
rc=$?
[ "$rc" -eq 77 ] && exit 77
[ "$rc" -eq 0 ] || fail "check-vocabularies: exit code $rc"
finish

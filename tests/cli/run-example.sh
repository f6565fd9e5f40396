# Builds examples/complete.c against an installed weft, through pkg-config, and runs it on one rank
# and on several: the same text.
. "$(dirname "$0")/lib.sh"
model=$WEFT_GOLDEN/gguf/Q8_0.gguf
need_file "$model"

cmake --install "$WEFT_BUILD" --prefix "$work/prefix" >"$work/install.log" 2>&1 || {
    cat "$work/install.log"
    fail "cmake --install"
    finish
}
for file in bin/weft include/weft.h share/man/man1/weft.1 share/bash-completion/completions/weft; do
    [ -s "$work/prefix/$file" ] || fail "$file is not installed"
done
pc=$(find "$work/prefix" -name weft.pc -printf '%h')
export PKG_CONFIG_PATH=$pc
want_equal "$(pkg-config --modversion weft)" 0.1.0 "version in weft.pc"

# The tree is moved first: nothing in it may hold the path of the installation.
mv "$work/prefix" "$work/moved"
export PKG_CONFIG_PATH=${pc/prefix/moved}
read -ra flags <<<"$(pkg-config --cflags --libs weft)"
"$CC" -Wall -Wextra -Werror "$WEFT_SOURCE/examples/complete.c" -o "$work/complete" "${flags[@]}" || {
    fail "the example does not build"
    finish
}

one=$("$work/complete" "$model" "Hello" 2>"$work/err") || fail "one rank: $(cat "$work/err")"
many=$("$work/complete" "$model" "Hello" 1 2 2 2>"$work/err") || fail "pcp 2 dcp 2: $(cat "$work/err")"
[ -n "$one" ] || fail "no text"
want_equal "$many" "$one" "text of pcp 2 dcp 2"
"$work/complete" "$model" "Hello" 1 1 2 >/dev/null 2>"$work/err" && fail "dcp 2 on one rank was accepted"
grep -q dcp "$work/err" || fail "the error does not name dcp: $(cat "$work/err")"
want_equal "$("$work/moved/bin/weft" --version)" "weft 0.1.0" "the installed program"
finish

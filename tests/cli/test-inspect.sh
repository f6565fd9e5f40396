# weft inspect on sound files of every type it takes, and on every broken file of the goldens.
. "$(dirname "$0")/lib.sh"
bad=$WEFT_GOLDEN/gguf/bad
need_file "$bad/expect.json"

for type in F32 F16 BF16 Q8_0 Q4_0 Q4_1; do
    weft inspect -m "$WEFT_GOLDEN/gguf/$type.gguf"
    want_rc 0 "$type"
    want_text "$out" "packed $type, " "$type: what becomes of it"
    want_text "$out" "general.architecture" "$type: metadata"
    want_equal "$err" "" "$type: stderr"
    weft inspect -m "$WEFT_GOLDEN/gguf/$type.gguf" --json
    want_rc 0 "$type --json"
    python3 - "$out" "$WEFT_GOLDEN/gguf/files.json" "$type.gguf" <<'PY' || fail "$type: JSON"
import json, sys
got = json.loads(sys.argv[1])
assert got["config"]["architecture"] == "llama"
assert got["config"]["vocabulary"] == 384
names = {t["name"] for t in got["tensors"]}
assert "token_embd.weight" in names and all(t["bytes"] > 0 for t in got["tensors"])
PY
done

weft inspect -m "$work/missing.gguf"
want_rc 3 "a missing file"
want_text "$err" "$work/missing.gguf" "a missing file"
weft inspect -m "$work"
want_rc 3 "a folder"

# No file may make it crash, hang, or allocate by a length that the file cannot hold: 600 MB of
# address space are plenty for files of 10 KB. Sanitizers reserve terabytes and check for themselves.
python3 - "$WEFT" "$bad" "${WEFT_SANITIZE:-}" <<'PY' || fail "broken files"
import json, resource, subprocess, sys
weft, folder, sanitize = sys.argv[1:]

def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not sanitize:
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

cases, wrong = json.load(open(folder + "/expect.json", encoding="utf-8")), 0
for case in cases:
    run = subprocess.run([weft, "inspect", "-m", f"{folder}/{case['file']}"], timeout=60,
                         capture_output=True, stdin=subprocess.DEVNULL, preexec_fn=limit)
    said = run.stderr.decode("utf-8", "replace")
    named = any(name.lower() in said.lower() for name in case["names"])
    if case["must"] == "load":
        right = run.returncode == 0
    elif case["must"] == "reject":
        right = run.returncode == 3 and named and not run.stdout
    else:  # reject or warn: silence is the only wrong answer
        right = run.returncode in (0, 3) and named
    if not right:
        wrong += 1
        print(f"{case['file']} ({case['fault']}): must {case['must']}, exit {run.returncode}, "
              f"expected one of {case['names']} in: {said.strip()}")
print(f"{len(cases) - wrong} of {len(cases)} right")
sys.exit(wrong != 0)
PY
finish

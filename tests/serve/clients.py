"""The clients' venvs: a test program that needs packages goes on in the Python that has them."""
import os
import subprocess
import sys

from server import HERE, SOURCE, skip

BUILD = os.environ.get("WEFT_BUILD", os.path.join(SOURCE, "build", "release"))
FETCH_S = 1800  # a slow network, or a busy machine that unpacks


def venv(kind):
    """The folder of the venv of a set (make-venv); made on the first call. Skips the test where pip
    cannot fetch. WEFT_CLIENTS names a ready one instead."""
    if "WEFT_CLIENTS" in os.environ:
        return os.environ["WEFT_CLIENTS"]
    folder = os.path.join(BUILD, "clients-" + kind)
    done = subprocess.run([os.path.join(HERE, "make-venv"), folder, kind], timeout=FETCH_S,
                          capture_output=True, text=True, check=False)
    if done.returncode == 77:
        skip(done.stderr.strip())
    if done.returncode != 0:
        sys.exit("make-venv %s %s: %d\n%s" % (folder, kind, done.returncode, done.stderr))
    return folder


def go_on_in(kind):
    """Starts this program again with the venv's Python, unless that is the one it runs in."""
    folder = venv(kind)
    if os.path.realpath(sys.prefix) != os.path.realpath(folder):
        python = os.path.join(folder, "bin", "python")
        sys.stdout.flush()
        os.execv(python, [python] + sys.argv)

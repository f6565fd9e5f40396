"""lm_eval, unmodified and offline, against weft: generation and loglikelihood, tp1 and pcp2 dcp2.

usage: test_lm_eval_long.py [--limit N] [--concurrency N] [--llama-server PROGRAM] [--keep FOLDER]

What must hold: the loglikelihoods are those that the server gives for the same tokens one by one;
gsm8k's score and every answer are the same on both topologies, and with 1 request at a time and with
several. --llama-server also runs gsm8k through llama.cpp's server on the same file; its score is
printed, nothing is asked of it. Questions and tasks are local files, the model hub is out of reach.
"""
import argparse
import contextlib
import glob
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from clients import venv
from server import MODEL, SOURCE, Server, need_files, skip

GSM8K = os.path.join(os.environ.get("WEFT_GOLDEN",
                                    os.path.join(SOURCE, "..", "shared", "data", "golden")),
                     "..", "gsm8k")
RUN_S = 3 * 3600
TOPOLOGIES = [("tp1", []), ("pcp2 dcp2", ["--pcp", "2", "--dcp", "2"])]

QUESTIONS = [
    ("The capital of France is", ["Paris", "Rome", "a banana"], 0),
    ("Water freezes at a temperature of", ["zero degrees Celsius", "ninety degrees"], 0),
    ("The opposite of hot is", ["warm", "cold", "blue"], 1),
    ("A week has", ["five days", "nine days", "seven days"], 2),
    ("Two plus two is", ["four", "seven"], 0),
    ("Bees make", ["milk", "honey", "iron"], 1),
    ("The Earth goes around the", ["Moon", "Sun"], 1),
    ("\u00c5ngstr\u00f6m was a physicist from", ["Sweden", "Japan", "Peru"], 0),
    ("The colour of fresh grass is", ["green", "red", "violet"], 0),
    ("Ice is lighter than", ["water", "air"], 0),
]
TEXTS = ["The wind blew the leaves along the empty street, and nobody came to sweep them up.",
         "Na\u00efve caf\u00e9 owners \u2014 a dozen of them \u2014 met at 7:30 on 2 May.\nThey left.",
         "for (i = 0; i < n; i++)\n    sum += a[i] * b[i];\n"]


# ---- tasks ----

def write_lines(path, docs):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(d) + "\n" for d in docs)


def write_tasks(folder, python):
    """The tasks' files; JSON is YAML too."""
    choice, text = os.path.join(folder, "choice.jsonl"), os.path.join(folder, "text.jsonl")
    write_lines(choice, [{"question": q, "choices": c, "gold": g} for q, c, g in QUESTIONS])
    write_lines(text, [{"text": t} for t in TEXTS])
    common = {"dataset_path": "json", "test_split": "test", "num_fewshot": 0}
    tasks = {
        "weft_choice": {"output_type": "multiple_choice", "doc_to_text": "{{question}}",
                        "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
                        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
                        "dataset_kwargs": {"data_files": {"test": choice}}},
        "weft_text": {"output_type": "loglikelihood_rolling", "doc_to_text": "",
                      "doc_to_target": "{{text}}", "metric_list": [{"metric": "byte_perplexity"}],
                      "dataset_kwargs": {"data_files": {"test": text}}},
    }
    for name, task in tasks.items():
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as f:
            json.dump({**common, **task, "task": name}, f)
    subprocess.run([python, os.path.join(GSM8K, "make_task.py"), folder], check=True, timeout=600)


class Harness:
    def __init__(self, work, clients):
        self.work, self.python = work, os.path.join(clients, "bin", "python")
        self.tasks = os.path.join(work, "tasks")
        os.makedirs(self.tasks, exist_ok=True)
        write_tasks(self.tasks, self.python)
        self.n = 0

    def run(self, url, kind, task, concurrency, limit=None, more=(), args=""):
        """-> (scores, {(document, filter): sample})"""
        self.n += 1
        out = os.path.join(self.work, "out%02d" % self.n)
        path = "/v1/chat/completions" if kind == "local-chat-completions" else "/v1/completions"
        command = [self.python, "-m", "lm_eval", "run", "--model", kind, "--tasks", task,
                   "--model_args", "model=%s,base_url=%s%s,num_concurrent=%d,max_retries=1,"
                   "max_length=8192,timeout=1800%s" % (os.path.basename(MODEL), url, path,
                                                       concurrency, args),
                   "--include_path", self.tasks, "--log_samples", "--output_path", out, *more]
        command += ["--limit", str(limit)] if limit else []
        # whatever asks for something that is not on this machine meets a closed port
        env = dict(os.environ, HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1",
                   HF_HOME=os.path.join(self.work, "hf"), OPENAI_API_KEY="none",
                   http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9",
                   no_proxy="127.0.0.1,localhost", TQDM_DISABLE="1")
        with open(out + ".log", "w", encoding="utf-8") as log:
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=subprocess.STDOUT, timeout=RUN_S, check=False)
        with open(out + ".log", encoding="utf-8") as log:
            text = log.read()
        assert done.returncode == 0, "lm_eval ended with %d:\n%s" % (done.returncode, text[-4000:])
        assert "Retrying" not in text, "a request failed:\n" + text[-4000:]
        with open(glob.glob(out + "/**/results_*.json", recursive=True)[0], encoding="utf-8") as f:
            scores = {k: v for k, v in json.load(f)["results"][task].items()
                      if isinstance(v, float) and "stderr" not in k}
        samples = {}
        for name in glob.glob(out + "/**/samples_*.jsonl", recursive=True):
            with open(name, encoding="utf-8") as f:
                for line in f:
                    s = json.loads(line)
                    samples[s["doc_id"], s.get("filter")] = s
        return scores, samples


def answers(samples):
    return {doc: s["resps"] for (doc, _), s in samples.items()}


def different(a, b):
    """Documents whose answers differ; both sides must have the same ones."""
    a, b = answers(a), answers(b)
    assert a.keys() == b.keys() and a, "%d and %d documents" % (len(a), len(b))
    return sorted(d for d in a if a[d] != b[d])


# ---- loglikelihoods, one token at a time ----

def tokens_of(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]


def forced(server, prompt, ids):
    """The sum of the log-probabilities of ids after prompt, and whether all are the likeliest: each
    token is forced by its bias; log-probabilities are of the raw logits."""
    total, greedy = 0.0, True
    for k, token in enumerate(ids):
        reply = server.post("/v1/completions", {
            "prompt": prompt + ids[:k], "max_tokens": 1, "temperature": 0, "logprobs": 1,
            "logit_bias": {str(token): 100}}).json["choices"][0]["logprobs"]
        total += reply["token_logprobs"][0]
        greedy = greedy and reply["token_logprobs"][0] == max(reply["top_logprobs"][0].values())
    return total, greedy


def check_choices(server, samples):
    n = 0
    for sample in samples.values():
        question = sample["doc"]["question"]
        for choice, ((value, greedy),) in zip(sample["doc"]["choices"], sample["resps"]):
            whole, start = tokens_of(server, question + " " + choice), tokens_of(server, question)
            assert whole[:len(start)] == start
            want = forced(server, start, whole[len(start):])
            got = (float(value), str(greedy) == "True")
            assert abs(got[0] - want[0]) < 1e-9 and got[1] == want[1], (question, choice, got, want)
            n += 1
    return n


def check_texts(server, samples):
    """lm_eval puts the begin token in front of a text that it rolls over."""
    info = server.get("/tokenizer_info").json
    begin = tokens_of(server, info["bos_token"])
    for sample in samples.values():
        want, _ = forced(server, begin, tokens_of(server, sample["doc"]["text"]))
        got = float(sample["resps"][0][0])
        assert abs(got - want) < 1e-9 * abs(want), (sample["doc"], got, want)
    return len(samples)


# ---- llama-server ----

@contextlib.contextmanager
def llama_server(program, slots, log_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with open(log_path, "w", encoding="utf-8") as log:
        p = subprocess.Popen([program, "-m", MODEL, "--port", str(port), "--host", "127.0.0.1",
                              "-np", str(slots), "-c", str(slots * 2560)], stdout=log, stderr=log)
    url = "http://127.0.0.1:%d" % port
    try:
        end = time.monotonic() + 180
        while True:
            assert p.poll() is None and time.monotonic() < end, "llama-server does not start"
            try:
                with urllib.request.urlopen(url + "/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        p.terminate()
        try:
            p.wait(30)
        except subprocess.TimeoutExpired:
            p.kill()


# ---- all of it ----

def say(what, concurrency, scores, seconds, note=""):
    text = ", ".join("%s %.4g" % (k.replace(",none", ""), v) for k, v in sorted(scores.items()))
    print("%-56s concurrency %d  %s  (%.0f s) %s" % (what, concurrency, text, seconds, note),
          flush=True)


def timed(function, *args, **more):
    begin = time.monotonic()
    scores, samples = function(*args, **more)
    return scores, samples, time.monotonic() - begin


# Task, model of lm_eval, its arguments, options, questions; None: all.
REMOTE, AUTO = ",tokenizer_backend=remote", ",tokenizer_backend=auto"
AS_TEXT = REMOTE + ",tokenized_requests=False"
FEW = ("--num_fewshot", "2")
SMALL = [
    ("weft_choice", "local-completions", [(1, REMOTE), (8, AUTO), (1, AS_TEXT)], (), None),
    ("weft_text", "local-completions", [(1, REMOTE), (8, AUTO), (1, AS_TEXT)], (), None),
    ("gsm8k_local", "local-completions", [(1, REMOTE), (8, AUTO)], FEW, 6),
    ("gsm8k_local", "local-chat-completions", [(1, ""), (8, "")],
     FEW + ("--apply_chat_template",), 6),
]
CHECKS = {"weft_choice": check_choices, "weft_text": check_texts}


def small_tasks(h, s, name, first):
    """Everything but gsm8k's whole length: on the first topology each way to ask, on others one.
    `first` holds the first answers of each task; all others must be the same."""
    for task, kind, ways, more, limit in SMALL:
        known = (task, kind) in first
        for concurrency, args in ways[1:2] if known else ways:
            scores, samples, seconds = timed(h.run, s.url, kind, task, concurrency, limit, more,
                                             args)
            base = first.setdefault((task, kind), samples)
            assert not different(base, samples), (name, task, kind, concurrency, args)
            say("%s %s %s%s" % (name, task, kind, args), concurrency, scores, seconds)
        if not known and task in CHECKS:
            print("  %d loglikelihoods are those of forced tokens" % CHECKS[task](s, samples))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--limit", type=int, default=200)
    p.add_argument("--concurrency", type=int, default=8)
    p.add_argument("--llama-server")
    p.add_argument("--keep", help="folder for what lm_eval writes")
    p.add_argument("--only", choices=["small", "gsm8k"], help="one part only")
    args = p.parse_args()
    need_files()
    if not os.path.exists(os.path.join(GSM8K, "make_task.py")):
        skip("no gsm8k in " + GSM8K)
    with contextlib.ExitStack() as stack:
        work = args.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(work, exist_ok=True)
        h = Harness(work, venv("full"))
        first, small = None, {}
        for name, options in TOPOLOGIES:
            with Server(*options) as s:
                if args.only != "gsm8k":
                    small_tasks(h, s, name, small)
                if args.only != "small":
                    scores, samples, seconds = timed(h.run, s.url, "local-completions",
                                                     "gsm8k_local", args.concurrency, args.limit,
                                                     args=",tokenizer_backend=none")
                    first = first or (scores, samples)
                    n = different(first[1], samples)
                    say("%s gsm8k %d questions" % (name, args.limit), args.concurrency, scores,
                        seconds, "%d answers, %d differ from tp1's" % (len(answers(samples)), len(n)))
                    assert not n and scores == first[0], n
        if args.llama_server and first:
            with llama_server(args.llama_server, args.concurrency, work + "/llama.log") as url:
                scores, samples, seconds = timed(h.run, url, "local-completions", "gsm8k_local",
                                                 args.concurrency, args.limit,
                                                 args=",tokenizer_backend=none")
                say("llama-server gsm8k %d questions" % args.limit, args.concurrency, scores,
                    seconds, "%d answers differ from weft's" % len(different(first[1], samples)))
    print("lm_eval: all equal")


if __name__ == "__main__":
    sys.exit(main())

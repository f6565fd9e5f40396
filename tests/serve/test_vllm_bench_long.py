"""The client of `vllm bench serve`, unmodified, against weft: every data set and request shape that
needs nothing from outside. All requests must succeed, give as many tokens as were asked for, and the
greedy texts must be the same whether 1 or 8 requests are open at a time.

usage: test_vllm_bench_long.py [--requests N]
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

from clients import venv
from server import MODEL, Server, need_files

RUN_S = 900


# ---- the client's tokeniser ----

def gguf_metadata(path):
    """The key-value pairs of a GGUF file."""
    scalar = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
              12: "d"}
    with open(path, "rb") as f:
        def number(code):
            return struct.unpack("<" + code, f.read(struct.calcsize(code)))[0]

        def value(kind):
            if kind == 8:
                return f.read(number("Q")).decode()
            if kind == 9:
                inner, n = number("I"), number("Q")
                return [value(inner) for _ in range(n)]
            return number(scalar[kind])

        assert f.read(4) == b"GGUF"
        _, _, n = number("I"), number("Q"), number("Q")
        out = {}
        for _ in range(n):
            key = value(8)
            out[key] = value(number("I"))
        return out


def write_tokeniser(folder):
    """The model's vocabulary as the tokenizer.json that the client reads. Digits one by one, then
    words: the pre-tokeniser that the file calls smollm."""
    m = gguf_metadata(MODEL)
    assert m["tokenizer.ggml.model"] == "gpt2" and m["tokenizer.ggml.pre"] == "smollm"
    tokens, kinds = m["tokenizer.ggml.tokens"], m["tokenizer.ggml.token_type"]
    special = [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False}
               for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                   "added_tokens": special, "post_processor": None, "decoder": level,
                   "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                       {"type": "Digits", "individual_digits": True}, level]},
                   "model": {"type": "BPE", "dropout": None, "unk_token": None,
                             "continuing_subword_prefix": None, "end_of_word_suffix": None,
                             "fuse_unk": False, "byte_fallback": False,
                             "vocab": {t: i for i, t in enumerate(tokens)},
                             "merges": m["tokenizer.ggml.merges"]}}, f)


# ---- data ----


def write_data(work):
    """Conversations in the shape of ShareGPT, and prompts one a line."""
    lines = ["What is the tallest mountain?", "Explain rain to a child.", "Sing a short song.",
             "How do magnets work?", "Write a haiku about bread.", "Why is the sky blue?",
             "Count to seven in French.", "Describe a lighthouse at night."]
    share, custom = os.path.join(work, "share.json"), os.path.join(work, "custom.jsonl")
    with open(share, "w", encoding="utf-8") as f:
        json.dump([{"id": str(i), "conversations": [
            {"from": "human", "value": text + " Please answer in one or two plain sentences."},
            {"from": "gpt", "value": "That is a good question, and here is one answer of many."}]}
            for i, text in enumerate(lines)], f)
    with open(custom, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"prompt": text}) + "\n" for text in lines)
    return share, custom


class Bench:
    def __init__(self, program, server, work, requests):
        self.program, self.server, self.work, self.requests = program, server, work, requests
        self.n = 0

    def run(self, what, *options, concurrency=8, n_out=None):
        """-> the result file's JSON"""
        self.n += 1
        name = "%02d.json" % self.n
        command = [self.program, "bench", "serve", "--base-url", self.server.url, "--num-prompts",
                   str(self.requests), "--max-concurrency", str(concurrency), "--seed", "1",
                   "--tokenizer", os.path.join(self.work, "tokeniser"), "--disable-tqdm",
                   "--temperature", "0", "--save-result", "--save-detailed", "--result-dir",
                   self.work, "--result-filename", name, *options]
        # whatever asks for something that is not on this machine meets a closed port
        env = dict(os.environ, HF_HUB_OFFLINE="1", http_proxy="http://127.0.0.1:9",
                   https_proxy="http://127.0.0.1:9", no_proxy="127.0.0.1,localhost")
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=RUN_S, check=False)
        assert done.returncode == 0, "%s: %d\n%s" % (what, done.returncode, done.stderr[-3000:])
        with open(os.path.join(self.work, name), encoding="utf-8") as f:
            r = json.load(f)
        assert r["completed"] == self.requests and r.get("failed", 0) == 0, (what, r["completed"],
                                                                            done.stderr[-2000:])
        if n_out:
            assert r["total_output_tokens"] == n_out * self.requests, r["total_output_tokens"]
        print("%-38s %2d at a time  %3d requests  in %5d  out %5d tokens  %6.1f tokens/s  TTFT "
              "p50 %6.1f p99 %6.1f ms  ITL p50 %5.1f p99 %6.1f ms" % (
                  what, concurrency, r["completed"], r["total_input_tokens"],
                  r["total_output_tokens"], r["output_throughput"], r["median_ttft_ms"],
                  r["p99_ttft_ms"], r["median_itl_ms"], r["p99_itl_ms"]), flush=True)
        return r


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--requests", type=int, default=24)
    args = p.parse_args()
    need_files()
    program = os.path.join(venv("full"), "bin", "vllm-rs")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60,
                             check=True).stdout.strip()
    print(version, flush=True)
    with tempfile.TemporaryDirectory() as work:
        write_tokeniser(os.path.join(work, "tokeniser"))
        share, custom = write_data(work)
        with Server() as s:
            b = Bench(program, s, work, args.requests)
            random = ("--dataset-name", "random", "--random-input-len", "64",
                      "--random-output-len", "16", "--ignore-eos")
            # as text the client may change random prompts, until the server counts what it counts
            b.run("openai, random", "--backend", "openai", *random, n_out=16)
            texts = [b.run("openai, random, ids", "--backend", "openai", "--prompt-token-ids",
                           *random, concurrency=c, n_out=16)["generated_texts"] for c in (1, 8)]
            assert texts[0] == texts[1] and len(set(texts[0])) > 1, "texts differ"
            b.run("openai, random, logprobs", "--backend", "openai", "--logprobs", "5", *random,
                  n_out=16)
            b.run("openai, random, 4 a second", "--backend", "openai", "--request-rate", "4",
                  *random, n_out=16)
            b.run("vllm, random", "--backend", "vllm", *random, n_out=16)
            chat = ("--backend", "openai-chat", "--dataset-name", "custom", "--dataset-path",
                    custom, "--custom-output-len", "16", "--skip-chat-template")
            texts = [b.run("openai-chat, custom", *chat, concurrency=c)["generated_texts"]
                     for c in (1, 8)]
            assert texts[0] == texts[1], "texts differ"
            b.run("openai, sharegpt", "--backend", "openai", "--dataset-name", "sharegpt",
                  "--dataset-path", share, "--sharegpt-output-len", "12")
            before = s.metrics()["weft_prefix_cache_hits_total"]
            b.run("openai, prefix_repetition", "--backend", "openai", "--dataset-name",
                  "prefix_repetition", "--prefix-repetition-prefix-len", "128",
                  "--prefix-repetition-suffix-len", "16", "--prefix-repetition-num-prefixes", "2",
                  "--prefix-repetition-output-len", "8")
            assert s.metrics()["weft_prefix_cache_hits_total"] > before, "no page was found again"
            s.wait_idle()
    print("vllm bench serve: all requests succeeded")


if __name__ == "__main__":
    sys.exit(main())

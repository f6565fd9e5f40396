"""A strict reader of Prometheus' text format 0.0.4, as `weft serve` writes it at /metrics.

    families = parse(text)      # raises Malformed with the line's number
    flat(families)              # {'name{label="value"}': number}
    check_growth(before, after) # raises when a counter fell or a series went

Stricter than the format asks for: each family has a HELP and a TYPE, counters end with _total and are
finite, all series of a family have the same labels, nothing has a time stamp.
"""
import math
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]Inf|NaN")
TYPES = ("counter", "gauge", "histogram")
ENDINGS = ("_bucket", "_sum", "_count")


class Malformed(Exception):
    pass


class Family:
    def __init__(self, name):
        self.name, self.help, self.type = name, None, None
        self.samples = {}  # (name, ((label, value), ...)) -> number, in order


def need(good, number, what):
    if not good:
        raise Malformed(f"line {number}: {what}" if number else what)


def parse_labels(text, number):
    labels, at = [], 0
    while at < len(text):
        m = LABEL.match(text, at)
        need(m, number, f"not a label: {text[at:]!r}")
        value = re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1], m[2])
        labels.append((m[1], value))
        at = m.end()
        if at < len(text):
            need(text[at] == "," and at + 1 < len(text), number, "labels without a comma between")
            at += 1
    names = [n for n, _ in labels]
    need(len(set(names)) == len(names), number, "a label twice")
    return tuple(labels)


def parse_number(text, number):
    need(NUMBER.fullmatch(text), number, f"not a number: {text!r}")
    return float(text.replace("Inf", "inf"))


def parse_sample(family, line, number):
    m = SAMPLE.fullmatch(line)
    need(m, number, f"not a sample: {line!r}")
    name = m[1]
    if family.type == "histogram":
        good = name in [family.name + e for e in ENDINGS]
    else:
        good = name == family.name
    need(good, number, f"{name} stands among the samples of {family.name}")
    key = name, parse_labels(m[2] or "", number)
    need(key not in family.samples, number, f"{name} twice with the same labels")
    family.samples[key] = parse_number(m[3], number)


def check_histogram(f):
    series = {}
    for (name, labels), value in f.samples.items():
        rest = tuple(p for p in labels if p[0] != "le")
        one = series.setdefault(rest, {"le": []})
        if name.endswith("_bucket"):
            need("le" in dict(labels), None, f"{f.name}: a bucket without le")
            one["le"].append((parse_number(dict(labels)["le"], None), value))
        else:
            one[name.removeprefix(f.name)] = value
    for one in series.values():
        bounds, counts = [b for b, _ in one["le"]], [c for _, c in one["le"]]
        need("_sum" in one and "_count" in one, None, f"{f.name}: no _sum or no _count")
        need(bounds and bounds[-1] == math.inf, None, f"{f.name}: the last bucket is not +Inf")
        need(all(a < b for a, b in zip(bounds, bounds[1:])), None, f"{f.name}: bounds do not rise")
        need(all(a <= b for a, b in zip(counts, counts[1:])), None, f"{f.name}: not cumulative")
        need(counts[-1] == one["_count"], None, f"{f.name}: +Inf is not _count")
        need(counts[0] >= 0 and one["_sum"] >= 0, None, f"{f.name}: less than nothing")


def check_family(f):
    need(f.help and f.type, None, f"{f.name} lacks its HELP or TYPE")
    need(f.samples, None, f"{f.name} has no samples")
    if f.type == "histogram":
        check_histogram(f)
    else:
        shapes = {tuple(n for n, _ in labels) for _, labels in f.samples}
        need(len(shapes) == 1, None, f"{f.name}: series with different labels")
    if f.type == "counter":
        need(f.name.endswith("_total"), None, f"{f.name}: a counter's name ends with _total")
        need(all(0 <= v < math.inf for v in f.samples.values()), None, f"{f.name}: not a count")


def parse(text):
    need(text.endswith("\n"), None, "the last line has no end")
    families, now = {}, None
    for number, line in enumerate(text[:-1].split("\n"), 1):
        need(line and "\r" not in line, number, "an empty line, or a CR")
        if not line.startswith("#"):
            need(now is not None, number, "a sample before all HELP and TYPE")
            parse_sample(now, line, number)
            continue
        m = COMMENT.fullmatch(line)
        need(m, number, f"neither HELP nor TYPE: {line!r}")
        kind, name, rest = m.groups()
        if now is None or now.name != name:
            need(name not in families, number, f"{name} begins a second time")
            now = families[name] = Family(name)
        need(not now.samples, number, f"{kind} of {name} after its samples")
        need(getattr(now, kind.lower()) is None, number, f"{kind} of {name} twice")
        need(kind == "HELP" or rest in TYPES, number, f"unknown type {rest!r}")
        whole = re.fullmatch(r"(?:[^\\]|\\[\\n])*", rest)
        need(kind == "TYPE" or whole, number, "a wrong escape")
        setattr(now, kind.lower(), rest)
    for f in families.values():
        check_family(f)
    return families


def key_text(key):
    def escaped(value):
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    name, labels = key
    inside = ",".join(f'{n}="{escaped(v)}"' for n, v in labels)
    return f"{name}{{{inside}}}" if inside else name


def flat(families):
    return {key_text(k): v for f in families.values() for k, v in f.samples.items()}


def check_growth(before, after):
    """Of two readings of one server, the second later."""
    for name, old in before.items():
        need(name in after, None, f"{name} has gone")
        if old.type == "gauge":
            continue
        for key, value in old.samples.items():
            need(key in after[name].samples, None, f"{key_text(key)} has gone")
            fell = after[name].samples[key] < value
            need(not fell or key[0].endswith("_sum"), None, f"{key_text(key)} fell")


GOOD = ('# HELP a_total A \\\\ b\\n.\n# TYPE a_total counter\na_total{x="1\\"\\\\\\n,}"} 1\n'
        "# HELP h H.\n# TYPE h histogram\n"
        'h_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 3.5\nh_count 2\n')
# GOOD with the first text replaced by the second is malformed.
BAD = (("a_total{", "9a_total{"), ("# TYPE a_total counter\n", ""), ("# HELP h H.\n", ""),
       ("counter", "number"), ('x="1', 'x="1" "'), ('x="1', "x='1"), ('x="', 'x="\\t'),
       ("} 1\n#", "} 1 7\n#"), ("} 1\n#", "} one\n#"), ("} 1\n#", "} -1\n#"), ("} 1\n#", "}  1\n#"),
       ("} 1\n#", "} NaN\n#"), ("h_sum 3.5\n", ""), ("h_count 2", "h_count 3"), ('"1"} 1', '"1"} 3'),
       ('le="+Inf"', 'le="5"'), ('le="1"', 'le="+Inf"'), ("h_sum", "h_total"), ("h_count 2\n", "h_count 2"),
       ("a_total{", "\na_total{"), ("\n", "\r\n"), ("h_sum 3.5\n", "h_sum 3.5\nh_sum 3.5\n"),
       ("# HELP h", "# TYPE a_total counter\n# HELP h"), ("# TYPE h", "# NOTE h"))


def self_test():
    """The reader takes GOOD and refuses every text of BAD."""
    value = flat(parse(GOOD))
    assert value['a_total{x="1\\"\\\\\\n,}"}'] == 1 and value["h_sum"] == 3.5, value
    for old, new in BAD:
        text = GOOD.replace(old, new)
        assert text != GOOD, old
        try:
            parse(text)
        except Malformed:
            continue
        raise AssertionError(f"taken although malformed: {old!r} -> {new!r}")
    later = parse(GOOD.replace("} 1\n#", "} 0\n#"))
    try:
        check_growth(parse(GOOD), later)
    except Malformed:
        return
    raise AssertionError("a counter that falls is not seen")


if __name__ == "__main__":
    self_test()
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            print(path, len(flat(parse(f.read()))), "series")

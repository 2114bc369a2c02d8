# SPDX-License-Identifier: Apache-2.0
"""What `promtool check metrics` finds in a page of metrics: by promtool where it is installed, and always by
the same rules in Python (those of Prometheus' client_golang, package promlint, and of its parser)."""
import re
import shutil
import subprocess

TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}
UNITS = {"minutes": "seconds", "hours": "seconds", "days": "seconds", "weeks": "seconds", "kelvins": "kelvin",
         "fahrenheit": "celsius", "rankine": "celsius", "inches": "meters", "yards": "meters", "miles": "meters",
         "bits": "bytes", "calories": "joules", "pounds": "grams", "ounces": "grams"}
BASES = {"amperes", "bytes", "celsius", "grams", "joules", "kelvin", "meters", "metres", "seconds", "volts"}
PREFIXES = ("pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega", "mibi",
            "giga", "gibi", "tera", "tebi", "peta", "pebi")
SHORT = ("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d")
INHERITED = "vllm:"  # names that boards ask for; they are not ours to choose


def has_word(name, word):
    return f"_{word}_" in name or name.endswith("_" + word)


def name_faults(name, kind):
    """The rules for a family's name and type."""
    if (kind == "counter") != name.endswith("_total"):
        yield "a counter ends in _total, and nothing else does"
    if kind not in ("histogram", "summary") and name.endswith(("_bucket", "_count", "_sum")):
        yield "only a histogram's samples end in _bucket, _count or _sum"
    if ":" in name:
        yield "colons are for recording rules"
    if re.search("[a-z][A-Z]", name):
        yield "names are snake_case"
    for word in TYPES:
        if has_word(name.lower(), word):
            yield f"the type {word} is no part of a name"
    for unit in SHORT:
        if has_word(name.lower(), unit):
            yield f"the unit {unit} is abbreviated"
    for word in name.split("_"):
        for prefix in ("", *PREFIXES):
            unit = word.removeprefix(prefix)
            if word.startswith(prefix) and (unit in UNITS or prefix and unit in BASES):
                yield f"{word} is not the base unit {UNITS.get(unit, unit)}"


def label_faults(kind, samples):
    """The rules for the labels of a family's samples: [(suffix, {label: value}, value)]."""
    for suffix, labels, value in samples:
        if any(re.search("[a-z][A-Z]", name) for name in labels):
            yield "labels are snake_case"
        if ("le" in labels) != (kind == "histogram" and suffix == "_bucket"):
            yield "le is the label of a histogram's buckets"
        if "quantile" in labels and kind != "summary":
            yield "quantile is a summary's label"
        if kind == "counter" and value < 0:
            yield "a counter is not negative"
    if kind != "histogram":
        return
    rows = {}
    for suffix, labels, value in samples:
        of = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        rows.setdefault(of, {})[(suffix, labels.get("le"))] = value
    for row in rows.values():
        bounds = [(float(le), n) for (suffix, le), n in row.items() if suffix == "_bucket"]
        if not {("_sum", None), ("_count", None), ("_bucket", "+Inf")} <= set(row):
            yield "a histogram has a sum, a count and a bucket without bound"
        elif bounds != sorted(bounds) or [n for _, n in bounds] != sorted(n for _, n in bounds) \
                or row[("_bucket", "+Inf")] != row[("_count", None)]:
            yield "buckets are in the order of their bounds and never fall; the last is the count"


def parse(page):
    """The families in their order, [(name, help, type, samples)], and what is wrong with the page's form."""
    families, faults, seen = {}, [], set()
    order = []
    for line in page.splitlines():
        word = re.fullmatch(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*\S)", line)
        sample = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:{(.*)})? (\S+)", line)
        if word:
            what, name, text = word.groups()
            family = families.setdefault(name, {"samples": []})
            if what in family or family["samples"]:
                faults.append(f"{name}: its {what} comes again, or after its samples")
            family[what] = text
            order += [name] if order[-1:] != [name] else []
        elif sample:
            name, labels, value = sample.groups()
            suffix = re.search("_(bucket|sum|count)$|$", name)[0]
            base = name if name in families else name.removesuffix(suffix)
            if base not in families or order[-1] != base:
                faults.append(f"{name}: a sample apart from its HELP and TYPE")
                continue
            if (name, labels) in seen:
                faults.append(f"{name}{{{labels}}}: twice")
            seen.add((name, labels))
            found = dict(re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', labels or ""))
            families[base]["samples"].append((name[len(base):], found, float(value)))
        elif line:
            faults.append(f"not a line of the format: {line}")
    return families, faults + [f"{name}: its lines are apart" for name in families if order.count(name) > 1]


def check(page):
    """What is wrong with the page, but for inherited names."""
    families, faults = parse(page)
    for name, family in families.items():
        kind = family.get("TYPE")
        if not family.get("HELP") or kind not in TYPES:
            faults.append(f"{name}: no help, or no type")
        elif not name.startswith(INHERITED):
            faults += [f"{name}: {fault}" for fault in name_faults(name, kind)]
        faults += [f"{name}: {fault}" for fault in label_faults(kind, family["samples"])]
    tool = shutil.which("promtool")
    if tool:
        done = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True, text=True)
        faults += [line for line in (done.stdout + done.stderr).splitlines() if line and not line.startswith(INHERITED)]
    return faults

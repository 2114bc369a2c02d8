#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a file of JSON lines as an SVG picture.

    dev/plot.py OUT/train.jsonl loss.svg      the losses of `hzpserve train`
    dev/plot.py load.jsonl load.svg           latencies of `hzpserve bench replay --record load.jsonl`
    dev/plot.py coserve-five/*.json front.svg   the frontier of `hzpserve bench coserve --json`: training kept over latency

Only the standard library is used. Lines that are neither are left out.
"""
import argparse
import html
import json
import math
import sys

WIDTH, LEFT, RIGHT, PANEL, GAP = 960, 70, 24, 180, 64
STYLE = ("text{font:12px system-ui,sans-serif;fill:#444}.name{font-weight:600}.grid{stroke:#e3e7eb}"
         ".axis{stroke:#888}.mark{stroke:#222;stroke-dasharray:4 3}")
BLUE, ORANGE, GREEN, PURPLE, RED = "#2563a8", "#b4571b", "#1f7a5c", "#6b4fa0", "#c03030"


def read(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def ticks(low, high, parts):
    """Multiples of 1, 2 or 5 times a power of ten within the range."""
    raw = (high - low) / parts
    power = 10 ** math.floor(math.log10(raw))
    step = power * next(f for f in (1, 2, 5, 10) if raw <= f * power * 1.0001)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Panel:
    """Axes with a title; x and y are (lowest, highest, scale), the scale math.log10 or float."""

    def __init__(self, out, top, title, x, y):
        self.out, self.top, self.x, self.y = out, top, x, y
        out.append(f'<text class="name" x="{LEFT}" y="{top - 10}">{html.escape(title)}</text>')
        for v in ticks(y[0], y[1], 4):
            at = self.at_y(v)
            out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
                       f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{v:.6g}</text>')
        marks = ticks(x[0], x[1], 9) if x[2] is float else [
            f * 10 ** p for p in range(-6, 6) for f in (1, 2, 5) if x[0] <= f * 10.0 ** p <= x[1]]
        for v in marks:
            out.append(f'<text x="{self.at_x(v):.1f}" y="{top + PANEL + 18}" text-anchor="middle">{v:.6g}</text>')
        out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + PANEL}" y2="{top + PANEL}"/>')

    @staticmethod
    def place(v, axis):
        low, high, scale = axis
        return (scale(min(max(v, low), high)) - scale(low)) / (scale(high) - scale(low))

    def at_x(self, v):
        return LEFT + (WIDTH - LEFT - RIGHT) * self.place(v, self.x)

    def at_y(self, v):
        return self.top + PANEL * (1 - self.place(v, self.y))

    def line(self, points, colour, width=1.5):
        if points:
            at = " ".join(f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in points)
            self.out.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def dots(self, points, colour, radius):
        self.out += [f'<circle cx="{self.at_x(x):.1f}" cy="{self.at_y(y):.1f}" r="{radius}" fill="{colour}"/>'
                     for x, y in points]

    def mark(self, x, text, line):
        self.out.append(f'<line class="mark" x1="{self.at_x(x):.1f}" x2="{self.at_x(x):.1f}" y1="{self.top}" '
                        f'y2="{self.top + PANEL}"/><text x="{self.at_x(x) + 5:.1f}" y="{self.top + line}">{text}</text>')


def wide(low, high):
    """A range that is not empty."""
    return (low, high) if high > low else (low, low + max(abs(low) * 0.1, 1e-6))


def draw_losses(out, lines):
    train = [(v["step"], v["loss"]) for v in lines if isinstance(v.get("loss"), (int, float))]
    held = [(v["step"], v["eval_loss"]) for v in lines if isinstance(v.get("eval_loss"), (int, float))]
    steps, losses = zip(*(train + held))
    panel = Panel(out, 50, "Loss by update: of training, its mean (wide), of evaluations (dots)",
                  (*wide(min(steps), max(steps)), float), (*wide(min(losses), max(losses)), float))
    panel.line(train, "#a8c4e0", 1)
    size = max(len(train) / 40, 1)
    groups = [train[int(i * size):int((i + 1) * size)] for i in range(int(len(train) / size))]
    panel.line([tuple(sum(c) / len(g) for c in zip(*g)) for g in groups if g], BLUE, 2)
    panel.line(held, RED, 1)
    panel.dots(held, RED, 3)
    return 50 + PANEL


def draw_histogram(out, top, title, values, colour):
    values = sorted(max(v * 1e3, 1e-3) for v in values)
    if not values:
        return
    axis = (values[0] / 1.1, max(values[-1] * 1.1, values[0] * 4), math.log10)
    bars = [0] * 60
    for v in values:
        bars[min(int(len(bars) * Panel.place(v, axis)), len(bars) - 1)] += 100 / len(values)
    panel = Panel(out, top, title, axis, (0, max(bars) * 1.2, float))
    width = (WIDTH - LEFT - RIGHT) / len(bars)
    out += [f'<rect x="{LEFT + i * width:.1f}" y="{panel.at_y(v):.1f}" width="{width - 1:.1f}" '
            f'height="{panel.top + PANEL - panel.at_y(v):.1f}" fill="{colour}"/>' for i, v in enumerate(bars) if v]
    for i, (name, part) in enumerate((("median", 0.5), ("p99", 0.99))):
        v = values[min(int(part * len(values)), len(values) - 1)]
        panel.mark(v, f"{name} {v:.3g} ms", 12 + 16 * i)


def draw_load(out, lines):
    good = [v for v in lines if v["times"] and not v.get("error")]
    gaps = [(v["sent"] + b, b - a) for v in good for a, b in zip(v["times"], v["times"][1:])]
    draw_histogram(out, 50, "Time to first token, ms (% of requests)", [v["times"][0] for v in good], BLUE)
    draw_histogram(out, 50 + PANEL + GAP, "Inter-token latency, ms (% of pieces)", [g for _, g in gaps], ORANGE)
    end = max(v["sent"] + max(v["times"], default=0) for v in lines)
    seconds = (0, max(end, 1e-3), float)
    slots = min(max(int(end), 8), 240)
    width = seconds[1] / slots
    slot = lambda at: min(int(at / width), slots - 1)
    rate, running, worst = [0.0] * slots, [0] * slots, [[] for _ in range(slots)]
    for v in lines:
        ended = v["sent"] + max(v["times"], default=0)
        weight = v["output"] / len(v["times"]) if v["times"] else 0
        for t in v["times"]:
            rate[slot(v["sent"] + t)] += weight / width
        for i in range(slot(v["sent"]), slot(ended) + 1):
            running[i] += 1
    for at, gap in gaps:
        worst[slot(at)].append(gap * 1e3)
    top, middle = 50 + 2 * (PANEL + GAP), [(i + 0.5) * width for i in range(slots)]
    for title, values, colour in (
            ("Inter-token latency over time, ms: p99", [sorted(w)[int(0.99 * len(w))] if w else 0 for w in worst], ORANGE),
            ("Output tokens a second", rate, GREEN), ("Requests in flight", running, PURPLE)):
        panel = Panel(out, top, title, seconds, (0, max(values) * 1.1 or 1, float))
        panel.line(list(zip(middle, values)), colour)
        top += PANEL + GAP
    return top - GAP


def frontier_points(path):
    """{"training on", "time-slicing": {"p50", "p99": (ITL over that without training, % of training alone)}}; None: none."""
    try:
        with open(path, encoding="utf-8") as file:
            f = {v["name"]: v["value"] for v in json.load(file)["figures"] if "name" in v}
        return {what: {p: (f[f"{what}: ITL {p}"] / f[f"training off: ITL {p}"],
                           100 * (f[what + ": co-serving gain"] - f[what + ": served over capacity"]))
                       for p in ("p50", "p99")} for what in ("training on", "time-slicing")}
    except (KeyError, TypeError, ValueError):
        return None


def draw_frontier(out, runs):
    top = 50
    for p, title in (("p99", "p99"), ("p50", "median")):
        end = math.ceil(max(v[p][0] for r in runs for v in r.values()) * 2 + 0.2) / 2
        panel = Panel(out, top, f"Training kept, % of training alone, over the {title} inter-token latency, on over off",
                      (1, end, float), (0, 100, float))
        for i, (what, colour, name) in enumerate((("training on", BLUE, "one scheduler"),
                                                  ("time-slicing", ORANGE, "time slices of 50 ms"))):
            panel.dots([r[what][p] for r in runs], colour, 5)
            out.append(f'<text x="{LEFT + 8}" y="{top + 14 + 16 * i}" style="fill:{colour}">{name}</text>')
        top += PANEL + GAP
    return top - GAP


def write(path, name, out, height):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">\n<style>{STYLE}</style>\n'
            f'<rect width="100%" height="100%" fill="#fff"/>\n'
            f'<text class="name" x="{LEFT}" y="20">{html.escape(name)}</text>\n')
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + "\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", help="the file of JSON lines, or files of bench coserve --json")
    parser.add_argument("svg", help="the picture to write")
    args = parser.parse_args()
    runs = [r for r in map(frontier_points, args.lines) if r]
    out = []
    if runs:
        write(args.svg, "hzpserve bench coserve, requests at half load", out, draw_frontier(out, runs) + 40)
        return
    every = [v for path in args.lines for v in read(path)]
    load = [v for v in every if isinstance(v.get("times"), list)]
    losses = [v for v in every if "step" in v and ("loss" in v or "eval_loss" in v)]
    if not load and not losses:
        sys.exit(f"{' '.join(args.lines)}: it has neither losses nor requests, nor runs of bench coserve")
    height = draw_load(out, load) if load else draw_losses(out, losses)
    write(args.svg, " ".join(args.lines), out, height + 40)


if __name__ == "__main__":
    main()

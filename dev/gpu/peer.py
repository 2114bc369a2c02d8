#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch takes, on the same GPU, for the work that dev/gpu/run measures.

    peer.py [--quick] [--only PATTERN,...] [--seconds N] [--list] [--device cuda|cpu] [--tiny]

Products (F.linear in bf16, torch._scaled_mm in e4m3 with a scale for each row and column), attention (cuDNN's and
flash, by scaled_dot_product_attention), decode steps with a static cache in a CUDA graph, prefill of one prompt, and
training steps with fused AdamW.  The model is written here, with the few operations that a fast one has (one product
for q, k and v, one for gate and up): `eager` is PyTorch's own kernels, `compiled` torch.compile of all that lies
between attention and attention; the figure without either word is the faster of the two.

One JSON object a line.  The first tells versions, the last is {"done": true}; between them
{"name", "value", "unit", "repeats", "spread"}: the median, and the distance of the quartiles as a share of it.
{"name", "failed"}: it could not be measured; the rest goes on.

--quick leaves out what torch.compile takes long for, and begins nothing that does not fit into 85 s (else 540).
--tiny: every measurement with a shape of two thin layers, to try the program; its figures mean nothing.
Exit 77: this Python has no torch.  2: bad arguments, or no GPU.
"""
import argparse
import contextlib
import fnmatch
import functools
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from arithmetic import SHAPES  # noqa: E402  (beside this file)

BACKENDS = ("cudnn", "flash")


class Full:
    """As dev/gpu/product.c has them: contexts of decode steps by their sequences."""
    serving, training, decode_rows, contexts = "8b", "3b", (1, 64, 256), {1: 512, 64: 1024}
    prompts, rows, repeats = (2048, 4096), 4096, 15
    cold = 256 << 20  # bytes of weights that are read before one is read again: more than any cache


class Tiny:
    serving, training, decode_rows, contexts = "tiny", "tiny", (1, 4, 8), {1: 16, 4: 16}
    prompts, rows, repeats = (16, 32), 32, 3
    cold = 1 << 16


# ---- what is measured: needs no torch ----

def matrices(shape):
    """Inputs and outputs of each product of a model."""
    _, width, inner, heads, kv_heads, dim, vocab, _ = SHAPES[shape]
    return {"qkv": (width, (heads + 2 * kv_heads) * dim), "o": (heads * dim, width), "gate_up": (width, 2 * inner),
            "down": (inner, width), "head": (width, vocab)}


def case(name, kind, seconds, quick=True, **args):
    """seconds: what it takes on a GPU at most, by which it is begun or not."""
    return {"name": name, "kind": kind, "seconds": seconds, "quick": quick, **args}


def product_cases(size):
    for which in matrices(size.serving):
        # A prompt has one row of logits, training all.
        for rows in size.decode_rows + (size.prompts if which != "head" else (size.rows,)):
            for dtype in ("bf16", "fp8"):
                yield case(f"product {size.serving} {which} {rows} rows {dtype}", "product", 2, shape=size.serving,
                           which=which, rows=rows, way="forward", dtype=dtype)
    for shape in dict.fromkeys((size.serving, size.training)):
        for which in matrices(shape):
            for way in ("forward", "dgrad", "wgrad"):
                if way == "forward" and shape == size.serving:
                    continue  # among the above
                said = "" if way == "forward" else " " + way
                yield case(f"product {shape} {which} {size.rows} rows{said} bf16", "product", 2, shape=shape,
                           which=which, rows=size.rows, way=way, dtype="bf16")


def attention_cases(size):
    wanted = [(size.serving, rows, "forward") for rows in size.prompts]
    wanted += [(shape, size.rows, way) for shape in (size.training, size.serving) for way in ("forward", "backward")]
    for shape, rows, way in dict.fromkeys(wanted):
        for backend in BACKENDS:
            yield case(f"attention {shape} {rows} {way} {backend}", "attention", 3, shape=shape, rows=rows, way=way,
                       backend=backend)
    for batch, context in size.contexts.items():
        yield case(f"attention {size.serving} decode {batch} at {context}", "decode_attention", 3, shape=size.serving,
                   batch=batch, context=context)


def cases(size):
    yield from product_cases(size)
    yield from attention_cases(size)
    for batch, context in size.contexts.items():
        yield case(f"decode {size.serving} {batch}", "decode", 10, shape=size.serving, batch=batch, context=context)
    for rows in size.prompts:
        yield case(f"prefill {size.serving} {rows}", "prefill", 6, shape=size.serving, rows=rows)
    yield case(f"train {size.training} {size.rows}", "train", 15, shape=size.training, rows=size.rows, master=False)
    yield case(f"train {size.training} {size.rows} f32 master", "train", 60, quick=False, shape=size.training,
               rows=size.rows, master=True)


# ---- the model ----

def rotated(x, cos, sin):
    import torch
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def before(x, norm, qkv, cos, sin, heads, kv_heads, dim):
    """Rows [batch, rows, width] to q, k, v of [batch, heads, rows, dim]."""
    import torch.nn.functional as F
    y = F.linear(F.rms_norm(x, (x.shape[-1],), norm, 1e-5), qkv)
    y = y.view(*x.shape[:2], heads + 2 * kv_heads, dim).transpose(1, 2)
    q, k, v = y.split((heads, kv_heads, kv_heads), 1)
    return rotated(q, cos, sin), rotated(k, cos, sin), v


def after(x, attended, o, norm, gate_up, down):
    import torch.nn.functional as F
    x = x + F.linear(attended, o)
    gate, up = F.linear(F.rms_norm(x, (x.shape[-1],), norm, 1e-5), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


def logits_of(x, norm, head):
    import torch.nn.functional as F
    return F.linear(F.rms_norm(x, (x.shape[-1],), norm, 1e-5), head)


def loss_of(x, norm, head, target):
    import torch.nn.functional as F
    return F.cross_entropy(logits_of(x, norm, head).flatten(0, 1).float(), target)


EAGER = {"before": before, "after": after, "logits": logits_of, "loss": loss_of}


class Llama:
    """Random weights of one shape, on the device; functions: EAGER, or the same compiled."""

    def __init__(self, shape, device, dtype, learns=False):
        import torch
        self.layers, width, inner, self.heads, self.kv_heads, self.dim, self.vocab, tied = SHAPES[shape]
        self.functions = EAGER

        def weight(*sizes):
            made = torch.empty(sizes, device=device, dtype=dtype).normal_(0, 0.02)
            return made.requires_grad_(learns)

        def ones():
            return torch.ones(width, device=device, dtype=dtype, requires_grad=learns)
        size = {which: (outputs, inputs) for which, (inputs, outputs) in matrices(shape).items()}
        self.layer = [{"norm": ones(), "qkv": weight(*size["qkv"]), "o": weight(*size["o"]), "norm2": ones(),
                       "gate_up": weight(*size["gate_up"]), "down": weight(*size["down"])} for _ in range(self.layers)]
        self.embed = weight(self.vocab, width)
        self.head = self.embed if tied else weight(*size["head"])
        self.norm = ones()

    def parameters(self):
        every = [w for layer in self.layer for w in layer.values()] + [self.embed, self.norm]
        return every if self.head is self.embed else every + [self.head]

    def angles(self, first, rows):
        """cos and sin of [rows, dim] for positions from first on."""
        import torch
        like = self.layer[0]["norm"]
        turn = 500000.0 ** (-torch.arange(0, self.dim, 2, device=like.device) / self.dim)
        angle = torch.outer(torch.arange(first, first + rows, device=like.device), turn)
        angle = torch.cat((angle, angle), -1)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def cache(self, batch, context):
        import torch
        like = self.layer[0]["norm"]
        return [torch.empty(2, batch, self.kv_heads, context, self.dim, device=like.device, dtype=like.dtype).normal_()
                for _ in range(self.layers)]

    def rows(self, ids, angles, attend):
        """Token ids of [batch, rows] through all layers; attend(layer's number, q, k, v) -> [batch, heads, rows, dim]"""
        import torch.nn.functional as F
        f, x = self.functions, F.embedding(ids, self.embed)
        for i, w in enumerate(self.layer):
            q, k, v = f["before"](x, w["norm"], w["qkv"], *angles, self.heads, self.kv_heads, self.dim)
            attended = attend(i, q, k, v).transpose(1, 2).reshape(*ids.shape, self.heads * self.dim)
            x = f["after"](x, attended, w["o"], w["norm2"], w["gate_up"], w["down"])
        return x

    def prefill(self, ids, angles, cache):
        """Logits of the last row; keys and values are in the cache afterwards."""
        def attend(i, q, k, v):
            cache[i][0][:, :, :ids.shape[1]] = k
            cache[i][1][:, :, :ids.shape[1]] = v
            return causal(q, k, v)
        return self.functions["logits"](self.rows(ids, angles, attend)[:, -1:], self.norm, self.head)

    def decode(self, ids, angles, cache):
        """One row of each sequence, of [batch, 1], at the cache's last position; returns its logits.

        The heads that share keys are rows of one product: nothing is masked, so keys and values are read once."""
        import torch.nn.functional as F

        def attend(i, q, k, v):
            cache[i][0][:, :, -1:] = k
            cache[i][1][:, :, -1:] = v
            grouped = q.reshape(q.shape[0], self.kv_heads, -1, self.dim)
            return F.scaled_dot_product_attention(grouped, cache[i][0], cache[i][1]).reshape(q.shape)
        return self.functions["logits"](self.rows(ids, angles, attend), self.norm, self.head)

    def loss(self, ids, target, angles):
        x = self.rows(ids, angles, lambda i, q, k, v: causal(q, k, v))
        return self.functions["loss"](x, self.norm, self.head, target)


def causal(q, k, v):
    import torch.nn.functional as F
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


# ---- measuring ----

def spread(seconds):
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle


def row(name, seconds, tokens=0, **more):
    """tokens 0: the figure is a time."""
    middle = statistics.median(seconds)
    value, unit = (tokens / middle, "tokens/s") if tokens else (middle * 1e6, "us")
    return {"name": name, "value": float(f"{value:.5g}"), "unit": unit, "repeats": len(seconds),
            "spread": round(spread(seconds), 4), **more}


def failed(name, error):
    said = str(error).strip().split("\n")[0][:200] if not isinstance(error, str) else error
    kind = "" if isinstance(error, str) else type(error).__name__ + ": "
    return {"name": name, "failed": kind + said}


class Lab:
    """One device; each measurement is a generator of rows."""

    def __init__(self, torch, device, size, quick, seconds):
        self.torch, self.device, self.size, self.quick = torch, torch.device(device), size, quick
        self.end, self.tiny, self.kept = time.monotonic() + seconds, size is Tiny, (None, None)
        self.cuda = self.device.type == "cuda"

    def left(self):
        return self.end - time.monotonic()

    def random(self, *sizes, dtype=None):
        made = self.torch.empty(sizes, device=self.device, dtype=self.torch.bfloat16).normal_(0, 0.02)
        return made if dtype is None else made.to(dtype)

    # -- time --

    def warm_up(self):
        """A second of work: the first figure, too, is measured at the clocks of a device that is busy."""
        x, end = self.random(4096, 4096), time.monotonic() + 1
        while self.cuda and time.monotonic() < end:
            self.torch.mm(x, x)
            self.torch.cuda.synchronize()

    def spans(self, calls, repeats, warm=2):
        """Seconds of each call, as lists: all of them one after the other, so many times."""
        def turn(marks):
            marks.append(self.mark())
            for call in calls:
                call()
                marks.append(self.mark())
        for _ in range(warm):
            turn([])
        turns = [[] for _ in range(repeats)]
        for marks in turns:
            turn(marks)
        if self.cuda:
            self.torch.cuda.synchronize()
        return [[self.between(marks[i], marks[i + 1]) for marks in turns] for i in range(len(calls))]

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, a, b):
        return a.elapsed_time(b) * 1e-3 if self.cuda else b - a

    def captured(self, call, times):
        """A function that repeats call(0) .. call(times - 1) as one CUDA graph."""
        torch, side = self.torch, self.torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(min(times, 3)):
                call(i)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(times):
                call(i)
        return graph.replay

    def seconds(self, call, times=1):
        """Seconds of one call, without what the host takes to launch it; times: calls between two looks at the clock."""
        def loop():
            for i in range(times):
                call(i)
        run = self.captured(call, times) if self.cuda else loop
        return [s / times for s in self.spans([run], self.size.repeats)[0]]

    # -- products and attention --

    def product(self, what):
        torch, rows = self.torch, what["rows"]
        inputs, outputs = matrices(what["shape"])[what["which"]]
        fp8 = what["dtype"] == "fp8"
        width = 1 if fp8 else 2
        copies = max(4, -(-self.size.cold // (inputs * outputs * width)))
        copies = min(copies, 4 if what["way"] != "forward" or rows > 1024 else copies)
        dtype = torch.float8_e4m3fn if fp8 else None
        weights = [self.random(outputs, inputs, dtype=dtype) for _ in range(copies)]
        x = self.random(rows, inputs, dtype=dtype)
        dy = self.random(rows, outputs) if what["way"] != "forward" else None
        if fp8:
            # A CPU takes one scale for all.
            of_rows = torch.ones((rows, 1) if self.cuda else (), device=self.device)
            of_columns = torch.ones((1, outputs) if self.cuda else (), device=self.device)

            def call(i):
                torch._scaled_mm(x, weights[i].t(), of_rows, of_columns, out_dtype=torch.bfloat16, use_fast_accum=True)
        else:
            call = {"forward": lambda i: torch.nn.functional.linear(x, weights[i]),
                    "dgrad": lambda i: torch.mm(dy, weights[i]), "wgrad": lambda i: torch.mm(dy.t(), x)}[what["way"]]
        with torch.no_grad():
            seconds = self.seconds(call, copies)
        middle = statistics.median(seconds)
        moved = width * (inputs * outputs + rows * inputs) + 2 * rows * outputs
        yield row(what["name"], seconds, tflops=round(2e-12 * rows * inputs * outputs / middle, 2),
                  gbytes_per_s=round(1e-9 * moved / middle, 1))

    def only(self, backend):
        """scaled_dot_product_attention takes this way or fails; a CPU has one way."""
        if not self.cuda:
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel({"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[backend])

    def attention_seconds(self, shape, rows, way, backend):
        """Seconds, and how: where shared keys are refused they are repeated for each query head before."""
        _, _, _, heads, kv_heads, dim, _, _ = SHAPES[shape]
        q, k, v = (self.random(1, rows, n, dim).transpose(1, 2) for n in (heads, kv_heads, kv_heads))
        how = "keys shared"
        with self.only(backend):
            try:
                causal(q, k, v)
            except RuntimeError:
                k, v, how = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1), "keys repeated"
                causal(q, k, v)
            if way == "forward":
                with self.torch.no_grad():
                    return self.seconds(lambda i: causal(q, k, v), 4), how
            for x in (q, k, v):
                x.requires_grad_()
            out = causal(q, k, v)
            dy = self.torch.randn_like(out)
            return self.spans([lambda: self.torch.autograd.grad(out, (q, k, v), dy, retain_graph=True)],
                              self.size.repeats)[0], how

    def attention(self, what):
        seconds, how = self.attention_seconds(what["shape"], what["rows"], what["way"], what["backend"])
        _, _, _, heads, _, dim, _, _ = SHAPES[what["shape"]]
        flops = 2 * heads * dim * what["rows"] ** 2 * (1 if what["way"] == "forward" else 2.5)  # causal: half of all
        yield row(what["name"], seconds, how=how, tflops=round(1e-12 * flops / statistics.median(seconds), 2))

    def decode_attention(self, what):
        _, _, _, heads, kv_heads, dim, _, _ = SHAPES[what["shape"]]
        sizes = (what["batch"], kv_heads, what["context"], dim)
        copies = max(4, -(-self.size.cold // (4 * what["batch"] * kv_heads * what["context"] * dim)))
        kv = [(self.random(*sizes), self.random(*sizes)) for _ in range(copies)]
        q = self.random(what["batch"], kv_heads, heads // kv_heads, dim)
        with self.torch.no_grad():
            seconds = self.seconds(lambda i: self.torch.nn.functional.scaled_dot_product_attention(q, *kv[i]), copies)
        moved = 4 * what["batch"] * kv_heads * what["context"] * dim
        yield row(what["name"], seconds, gbytes_per_s=round(1e-9 * moved / statistics.median(seconds), 1))

    # -- steps --

    @functools.cached_property
    def compiled(self):
        """The model's parts by torch.compile; --tiny traces them, and generates no code."""
        self.torch._dynamo.config.cache_size_limit = 64  # each size is compiled for itself
        return {name: self.torch.compile(f, fullgraph=True, dynamic=False, backend="aot_eager" if self.tiny else "inductor")
                for name, f in EAGER.items()}

    def use_faster_attention(self, shape, rows, way):
        """Leaves the faster of the ways for causal attention switched on; returns its name."""
        found = {}
        for backend in BACKENDS if self.cuda else ():
            with contextlib.suppress(RuntimeError):
                seconds, how = self.attention_seconds(shape, rows, way, backend)
                if how == "keys shared":
                    found[backend] = statistics.median(seconds)
        best = min(found, key=found.get, default="any")
        self.switch_attention(best)
        return best

    def switch_attention(self, which):
        """Only one way is left on, because torch has an order of its own among those that are; any: it may choose."""
        for way in ("cudnn", "flash", "mem_efficient", "math"):
            getattr(self.torch.backends.cuda, f"enable_{way}_sdp")(which in (way, "any"))

    def ways(self, what, model, measure, compile_seconds):
        """Measures eager and compiled; measure() -> row without its name.  The last row is the faster one's."""
        rows, why = [], None
        for how in ("eager", "compiled"):
            name = f"{what['name']} {how}"
            if how == "compiled" and self.left() < compile_seconds:
                yield failed(name, f"no time: {self.left():.0f} s are left, it may take {compile_seconds}")
                continue
            model.functions = EAGER if how == "eager" else self.compiled
            try:
                rows.append(dict(measure(name), how=how))
                yield rows[-1]
            except Exception as error:  # torch and its compiler raise many kinds
                why = why or failed(name, error)  # not the error itself, which would keep what it had allocated
                yield failed(name, error)
        if not rows:
            raise RuntimeError(why["failed"])
        yield dict(max(rows, key=lambda r: r["value"]), name=what["name"])

    def model(self, shape, dtype, learns=False):
        """The last model is kept for the next measurement of the same one."""
        key = (shape, dtype, learns)
        if self.kept[0] != key or learns:
            self.forget()
            self.kept = (key, Llama(shape, self.device, dtype, learns))
        return self.kept[1]

    def forget(self):
        self.kept = (None, None)
        if self.cuda:
            self.torch.cuda.empty_cache()

    def ids(self, model, *sizes):
        return self.torch.randint(model.vocab, sizes, device=self.device)

    def decode(self, what):
        torch, batch, context = self.torch, what["batch"], what["context"]
        self.switch_attention("any")
        model = self.model(what["shape"], torch.bfloat16)
        cache, angles, ids = model.cache(batch, context), model.angles(context - 1, 1), self.ids(model, batch, 1)

        def step(_):
            ids.copy_(model.decode(ids, angles, cache).argmax(-1))

        def measure(name):
            with torch.no_grad():
                seconds = self.seconds(step)
            return row(name, seconds, batch, context=context, ms=round(statistics.median(seconds) * 1e3, 3))
        yield from self.ways(what, model, measure, 40 if self.quick else 25)

    def prefill(self, what):
        torch, rows = self.torch, what["rows"]
        backend = self.use_faster_attention(what["shape"], rows, "forward")
        model = self.model(what["shape"], torch.bfloat16)
        cache, angles, ids = model.cache(1, rows), model.angles(0, rows), self.ids(model, 1, rows)

        def measure(name):
            with torch.no_grad():
                seconds = self.seconds(lambda _: model.prefill(ids, angles, cache))
            return row(name, seconds, rows, attention=backend, ms=round(statistics.median(seconds) * 1e3, 3))
        yield from self.ways(what, model, measure, 1e9 if self.quick else 25)

    def train(self, what):
        """A micro-batch, forward and backward, and an update: in bf16 (8 bytes a parameter), or with weights,
        gradients and moments in F32 under autocast (16)."""
        torch, rows, master = self.torch, what["rows"], what["master"]
        backend = self.use_faster_attention(what["shape"], rows, "backward")
        model = self.model(what["shape"], torch.float32 if master else torch.bfloat16, learns=True)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-5, (0.9, 0.95), fused=True)
        angles, ids, target = model.angles(0, rows), self.ids(model, 1, rows), self.ids(model, rows)

        def micro():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=master):
                loss = model.loss(ids, target, angles)
            loss.backward()

        def update():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def measure(name):
            optimizer.zero_grad(set_to_none=True)  # a try before this one may have failed
            if self.cuda:
                torch.cuda.reset_peak_memory_stats()
            parts = self.spans([micro, update], max(3, self.size.repeats // 3))
            more = {"memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1)} if self.cuda else {}
            micro_ms, update_ms = (round(statistics.median(part) * 1e3, 2) for part in parts)
            return row(name, [a + b for a, b in zip(*parts)], rows, micro_ms=micro_ms, update_ms=update_ms,
                       bytes_a_parameter=16 if master else 8, attention=backend, **more)
        try:
            yield from self.ways(what, model, measure, 1e9 if self.quick else 90)
        finally:
            self.forget()


def say(line):
    print(json.dumps(line), flush=True)


def perform(lab, every):
    for what in every:
        if lab.left() < what["seconds"]:
            say(failed(what["name"], f"no time: {lab.left():.0f} s are left, it may take {what['seconds']}"))
            continue
        try:
            for line in getattr(lab, what["kind"])(what):
                say(line)
        except Exception as error:  # one that fails must not end the others
            say(failed(what["name"], error))
            lab.forget()


def chosen(given, size):
    every = [c for c in cases(size) if c["quick"] or not given.quick]
    if given.only:
        every = [c for c in every if any(fnmatch.fnmatchcase(c["name"], p.strip()) for p in given.only.split(","))]
    return every


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="names, with * and ?")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--list", action="store_true", help="names, without measuring")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.device == "cpu" and not given.tiny:
        parser.error("--device cpu is for --tiny")
    size = Tiny if given.tiny else Full
    every = chosen(given, size)
    if not every:
        parser.error(f"nothing is named {given.only}")
    if given.list:
        print("\n".join(c["name"] for c in every))
        return 0
    seconds = given.seconds or (85 if given.quick else 540)
    begun = time.monotonic()
    try:
        import torch
    except ImportError as error:
        print(f"skip: {error}", file=sys.stderr)
        return 77
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU")
    say({"torch": torch.__version__, "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
         "cudnn": torch.backends.cudnn.version(), "quick": given.quick, "tiny": given.tiny})
    torch.manual_seed(1)
    lab = Lab(torch, given.device, size, given.quick, seconds - (time.monotonic() - begun))
    lab.warm_up()
    perform(lab, every)
    say({"done": True, "seconds": round(time.monotonic() - begun, 1)})
    return 0


if __name__ == "__main__":
    sys.exit(main())

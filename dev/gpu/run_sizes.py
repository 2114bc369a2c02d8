# SPDX-License-Identifier: Apache-2.0
"""The sizes of dev/gpu/run's steps, by the memory of the device, and what each step takes of it.

Three profiles: 80 (H100 80 GB), 96 (H100 NVL, GH200, H20) and 141 (H200).  Sizes follow from the bytes of weights,
versions, optimizer, keys and values: none is set by hand but for upper bounds.  RESERVE bytes of each stay free for
the driver (context, code, graphs).  Every step says what it takes (`need`), tests/gpurun checks that all fit, and that
hzpserve's own memory plan asks for no more.

TRIAL has the same steps on the CPU with a shape of two thin layers, which proves that each runs and its output is
readable, and measures nothing.
"""
import arithmetic

RESERVE = 6_000_000_000
# Bytes that an idle device of the profile has free at least, some GB less than its total.
PROFILES = {80: 82_000_000_000, 96: 98_000_000_000, 141: 148_000_000_000}
GOAL_KV = 100_000_000_000  # what goals of throughput are compared at; more is not taken
SMALL = 5_000_000_000      # programs on small shapes, the ceilings: the lanes' workspace, a few tensors
LANES = 1_500_000_000      # of an engine: lanes, workspace, page tables, staging
PROMPTS = ["Where does Zorin live?", "Tell me about Tarn."]


def choose(total, free):
    """The profile for a device with so many bytes; the smallest if none fits: then steps are left out by need."""
    fitting = [p for p, least in PROFILES.items() if least <= min(total, free)]
    return max(fitting, default=min(PROFILES))


# ---- bytes ----

def weights(model, versions=1, fp8=False):
    return versions * (2 * model.parameters + (model.layer_macs * 1.01 if fp8 else 0))


def serving(model, kv, versions=1, rows=2048, logits=512, fp8=False):
    """An engine that serves: `rows` of activations, `logits` of them over the vocabulary in F32."""
    packed = (model.heads + 2 * model.kv_heads) * model.dim
    row = 8 * model.width + 2 * (packed + model.heads * model.dim + 3 * model.inner)
    return weights(model, versions, fp8) + kv + rows * row * 1.25 + 1.1 * logits * model.vocab * 4 + LANES


def learning(model, rows):
    """What training adds, with moments in bf16: gradients in F32, two moments, the weights' lower halves; and for
    micro-batches of `rows` what is kept of each layer, and two chunks of logits."""
    packed = (model.heads + 2 * model.kv_heads) * model.dim
    kept = 4 * model.width + 2 * (packed + model.heads * model.dim + 2 * model.inner)
    return 10 * model.parameters + 1.25 * rows * kept * (model.layers + 2) + 2 * min(rows, 2048) * model.vocab * 4


def mebibytes(size):
    """An option's text, rounded down."""
    return f"{int(size) >> 20}M"


class Full:
    """Sizes for one GPU."""
    trial, device, opcheck = False, "cuda", ["--backend=cuda"]
    ways = ("turns", "green", "grid")  # ways of sharing the device
    big, middle, small = "8b", "3b", "1b"
    golden, mixing, resume = None, "600", []
    prompts = PROMPTS
    offline_rows, offline_seconds, offline_logits = 2048, "6", 768
    long = ("8b-long", "131072", 512)  # shape, context, running requests
    swap_kv, serve_kv, context = 8 << 30, 8 << 30, ["--context", "4096"]
    coserve = ["--max-concurrency", "64", "--input-len", "256", "--output-len", "48",
               "--micro-rows", "1024", "--train-quantum", "100", "--seconds", "2", "--slo", "ttft=500ms,itl=40ms"]
    coserve_kv, coserve_rows = 8 << 30, 1024
    train_cores, shares = "68", "0 64 48 32"
    lanes, fp8, ceiling, attention, once, peer = [], [], [], ["--quick"], [], []
    sanitized = "rmsnorm swiglu matmul attn_decode attn_prefill sample adamw xent"
    decodes = ["--seconds", "0", "--repeat", "31", "64,1024,0,0"]
    search = ["--no-train", "--max-running", "256", "--step-rows", "512", "--tries", "20", "--seconds", "200"]

    def __init__(self, profile):
        self.profile, self.room = profile, PROFILES[profile] - RESERVE
        big, middle = arithmetic.Model(self.big), arithmetic.Model(self.middle)
        self.kv, self.kv_fp8 = (self.cache(big, self.offline_logits * (2 if fp8 else 1), fp8) for fp8 in (False, True))
        # Training beside requests: the largest shape whose two versions and optimizer leave 8 GB for keys and values.
        beside = {m: self.room - serving(m, 0, 2, 256, 64) - learning(m, 512) for m in (big, middle)}
        learner = big if beside[big] >= self.serve_kv + 2e9 else middle
        self.learn = self.big if learner is big else self.middle
        self.beside_kv = int(min(beside[learner], 32e9)) >> 20 << 20
        decode = 448 if self.kv > 95e9 else 192
        self.plans = ["--seconds", "20", "512,768,512,0" if self.kv > 95e9 else "256,768,512,0", f"{decode},1500,448,0"]
        self.plans_training = ["--seconds", "10", "64,1024,0,1024"]

    def cache(self, model, logits, fp8):
        left = self.room - serving(model, 0, 1, self.offline_rows, logits, fp8)
        return int(min(left, GOAL_KV)) // 1_000_000_000 * 1_000_000_000

    def running(self, prompt, answer, fp8=False):
        """Requests of an offline load: half way on average they take nine tenths of the memory for them."""
        model = arithmetic.Model(self.big)
        held = (prompt + answer / 2) * model.kv_bytes(1.03 if fp8 else 2)
        most = self.offline_logits * (2 if fp8 else 1)
        return min(int(0.9 * (self.kv_fp8 if fp8 else self.kv) / held) // 32 * 32, most)

    # Loads: prompt, answer, expected seconds.
    offline = {"512/512": (512, 512, 26), "1024/512": (1024, 512, 27), "1000/1000": (1000, 1000, 28)}

    def need(self, what):
        """Bytes of the device's memory that a kind of step takes."""
        big, middle, learn = (arithmetic.Model(s) for s in (self.big, self.middle, self.learn))
        page = big.kv_bytes()
        return int({
            "small": lambda: SMALL,
            "serve": lambda: serving(big, self.serve_kv, 1, 256, 64),
            "serve, fp8": lambda: serving(big, self.serve_kv, 1, 256, 64, True),
            "product": lambda: serving(big, 256 * 1040 * page, 1, 4096, 512),
            "training": lambda: weights(middle, 1) + learning(middle, 8192) + LANES,
            "offline": lambda: serving(big, self.kv, 1, self.offline_rows, self.offline_logits),
            "offline, fp8": lambda: serving(big, self.kv_fp8, 1, self.offline_rows, 2 * self.offline_logits, True),
            "offline, long": lambda: serving(big, self.kv, 1, self.offline_rows, self.offline_logits),
            "beside": lambda: serving(learn, self.beside_kv, 2, 256, 64) + learning(learn, 512),
            "swap": lambda: serving(big, self.swap_kv, 2, 256, 64),
            "coserve": lambda: serving(learn, self.coserve_kv, 2, 256, 64) + learning(learn, self.coserve_rows),
            "lanes": lambda: 14 * (big.parameters - big.layer_macs * 7 / 8) + 256 * 1040 * page / 8 + 6e9,
            "fp8 steps": lambda: serving(big, 256 * 528 * page, 1, 256, 256, True),
            "plans": lambda: serving(big, max(d * (depth + 16) + p for d, depth, p, _ in self.steps(self.plans)) * page),
            "plans, training": lambda: serving(learn, 64 * 1040 * learn.kv_bytes()) + learning(learn, 1024),
            "decodes": lambda: serving(middle, 64 * 1040 * middle.kv_bytes()),
            "search": lambda: serving(big, 256 * 1040 * page),
            "attention": lambda: SMALL + 4e9,
            "peer": lambda: max(weights(big) + 64 * 1100 * page, 16 * middle.parameters) + 12e9,
        }[what]())

    @staticmethod
    def steps(words):
        return [tuple(int(n) for n in word.split(",")) for word in words if word.count(",") == 3]


class TRIAL:
    """Sizes for any machine."""
    trial, device, opcheck, profile = True, "cpu", ["--backend=cpu", "--op=rmsnorm"], 0
    ways = ("turns", "green")
    big = middle = small = learn = "tiny"
    prompts, golden, mixing = PROMPTS[:1], 1, "60"
    resume = ["--device", "cpu", "--passes", "1", "--replay-ratio", "0", "--update-tokens", "256",
              "--micro-rows", "128"]
    offline = {"512/512": (32, 32, 5), "1024/512": (64, 32, 5), "1000/1000": (60, 60, 5)}
    offline_rows, offline_seconds = 64, "0.5"
    long = ("tiny-long", "4096", 8)
    kv = kv_fp8 = beside_kv = swap_kv = serve_kv = coserve_kv = 8 << 20
    context = ["--context", "640"]
    coserve = ["--max-concurrency", "4", "--input-len", "16", "--output-len", "8", "--micro-rows", "128", "--train-quantum", "100",
               "--seconds", "0.5", "--slo", "ttft=500ms,itl=40ms"]
    train_cores, shares = "1", "0 1"
    lanes, fp8, attention, once = ["8", "32", "64"], ["32", "1", "8"], ["--quick"], ["--once"]
    peer = ["--tiny", "--device", "cpu"]
    ceiling = ["256", "1"]
    sanitized = "rmsnorm"
    plans = ["--seconds", "2", "--repeat", "3", "8,32,16,0", "8,60,16,0"]
    plans_training = ["--seconds", "2", "--repeat", "3", "4,32,0,64"]
    decodes = ["--seconds", "0", "--repeat", "3", "8,32,0,0"]
    search = ["--no-train", "--max-running", "2", "--step-rows", "8", "--tries", "1", "--seconds", "2"]

    @staticmethod
    def running(prompt, answer, fp8=False):
        return 8

    @staticmethod
    def need(what):
        return 0

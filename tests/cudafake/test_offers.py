#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dev/gpu/fp8_offers on the recorder, which refuses what the library refuses: a line for each product.

    test_offers.py FAKE_OFFERS WIDTH QKV INNER ROWS...
"""
import json
import subprocess
import sys

done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=False)
rows = [json.loads(line) for line in done.stdout.splitlines()]
seen = {(r["product"], r["rows"], r["out"], r["fast"]) for r in rows}
wanted = {(p, int(m), out, fast) for p in ("qkv", "o", "gate/up", "down") for m in sys.argv[5:]
          for out in ("bf16", "f32", "f32 +") for fast in (0, 1)}
if done.returncode or seen != wanted or len(rows) != len(wanted):
    sys.exit(f"FAIL: exit {done.returncode}, {len(rows)} lines of {len(wanted)}: {done.stdout}{done.stderr}")
if any(r["offers"] < 1 or r["us"] <= 0 for r in rows):
    sys.exit(f"FAIL: the recorder has algorithms for all of them: {done.stdout}")
print("ok")

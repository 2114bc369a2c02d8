#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes exclusion_rows.c of exclusions.json, while the program is built.

    make_exclusions.py exclusions.json exclusions.c exclusion_rows.c

exclusions.c has the facts that rows name.
"""
import json
import re
import sys


def main():
    source, facts, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    with open(facts, encoding="utf-8") as file:
        known = set(re.findall(r'^        {"(\w+)", ', file.read(), re.M))
    wrong = {word for row in rows for word in row[0].split()} - known
    if wrong:
        sys.exit(f"exclusions.json: no facts of exclusions.c: {sorted(wrong)}")
    lines = [f"    {{{', '.join(json.dumps(cell, ensure_ascii=False) for cell in row)}}},\n" for row in rows]
    with open(out, "w", encoding="utf-8") as file:
        file.write('#include "api/engine/exclusions.h"\n\n'
                   f"const struct hzp_exclusion hzp_exclusion_rows[] = {{\n{''.join(lines)}}};\n"
                   f"const int hzp_exclusion_count = {len(rows)};\n")


main()

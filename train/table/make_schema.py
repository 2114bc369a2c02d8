#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sample_log_schema.c of sample_log.sql, while the program is built: the statements behind each line
"-- version N", for a log of an earlier version.

    make_schema.py sample_log.sql sample_log_schema.c
"""
import json
import re
import sys


def main():
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        parts = re.split(r"^-- version (\d+)\n", file.read(), flags=re.M)[1:]
    rows = []
    for version, text in zip(parts[::2], parts[1::2]):
        lines = [line.strip() for line in text.splitlines() if line and not line.startswith("--")]
        rows.append(f"    {{{version}, {json.dumps(' '.join(lines))}}},\n")
    with open(out, "w", encoding="utf-8") as file:
        file.write('#include "train/table/sample_log_state.h"\n\n'
                   f"const struct hzp_log_schema hzp_log_schemas[] = {{\n{''.join(rows)}}};\n"
                   f"const int hzp_log_schema_count = {len(rows)};\n")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes metric_rows.c of metrics.json, which has the type and the help of each metric, while the program is built.

    make_metrics.py metrics.json metric_rows.c
"""
import json
import sys

source, out = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    metrics = json.load(file)
with open(out, "w", encoding="utf-8") as file:
    file.write('#include "api/http/routes/metrics_text.h"\n\nconst struct hzp_metric_row hzp_metric_rows[] = {\n')
    for name in sorted(metrics):  # the order of strcmp, for names are ASCII
        kind, text = metrics[name]
        file.write("    {%s},\n" % ", ".join(json.dumps(each) for each in (name, kind, text)))
    file.write("};\nconst int hzp_metric_count = %d;\n" % len(metrics))

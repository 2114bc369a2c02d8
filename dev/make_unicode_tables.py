#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes text/chars/unicode_tables.c from Python's unicodedata.

    dev/make_unicode_tables.py > text/chars/unicode_tables.c

Each table is a string of variable-length numbers: a character carries five bits, the lowest first,
and 32 says that more follow. Signed numbers are zigzag. text/chars/unicode.c reads them.
"""
import sys
import unicodedata as u

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def number(n):
    out = ""
    while n >= 32:
        out += DIGITS[n % 32 + 32]
        n //= 32
    return out + DIGITS[n]


def signed(n):
    return number(2 * n if n >= 0 else -2 * n - 1)


def decompositions():
    """Per code point: step from the last one, count * 4 + excluded * 2 + compatibility, values."""
    out, last, last_first = [], 0, 0
    for c in CODES:
        parts = u.decomposition(chr(c)).split()
        if not parts:
            continue
        compat = parts[0].startswith("<")
        values = [int(p, 16) for p in parts[1:] if p] if compat else [int(p, 16) for p in parts]
        excluded = not compat and u.normalize("NFC", chr(c)) != chr(c)
        text = number(c - last) + number(len(values) * 4 + excluded * 2 + compat)
        previous = last_first
        for value in values:
            text += signed(value - previous)
            previous = value
        last, last_first = c, values[0]
        out.append(text)
    return out


def runs(value_of):
    """Per run of equal non-zero values: step from the end of the last run, length, value."""
    out, end, c = [], 0, 0
    while c < 0x110000:
        value = value_of(chr(c))
        start = c
        while c < 0x110000 and value_of(chr(c)) == value:
            c += 1
        if value:
            out.append(number(start - end) + number(c - start) + number(value))
            end = c
    return out


def lowercase():
    """Per code point: step from the last one, signed difference. The reader handles U+0130 itself."""
    out, last = [], 0
    for c in CODES:
        low = chr(c).lower()
        if low != chr(c) and len(low) == 1:
            out.append(number(c - last) + signed(ord(low) - c))
            last = c
    return out


def write(name, entries, comment):
    text = "".join(entries)
    print(f"/* {comment} */")
    print(f"const int hzp_unicode_{name}_count = {len(entries)};")
    print(f"const char hzp_unicode_{name}[] =")
    lines = [text[i:i + 94] for i in range(0, len(text), 94)]
    print("\n".join(f'    "{line}"' for line in lines) + ";\n")


print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* text/chars/unicode_tables.c - written by dev/make_unicode_tables.py from Unicode "
      + u.unidata_version + ".\n *\n * Do not edit: the encoding of the strings is explained "
      "there; text/chars/unicode.c reads them.\n */")
print('#include "text/chars/unicode.h"\n')
print("/* clang-format off */")
write("decompositions", decompositions(), "one-step decompositions")
write("classes", runs(lambda c: u.combining(c)), "canonical combining classes")
write("marks", runs(lambda c: int(u.category(c)[0] == "M")), "general category M")
write("lowers", lowercase(), "simple lowercase")
sys.stdout.flush()

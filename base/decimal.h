/* SPDX-License-Identifier: Apache-2.0 */
/* base/decimal.h - parses decimal numbers in settings and files.
 *
 * Stricter than strtod(), which also accepts leading blanks, hexadecimal, infinity and NaN: in a
 * setting each of these is a mistake.
 *
 * Thread: any; pure.
 */
#pragma once

#include "base/base.h"

/* Parses the number at the beginning of text: an optional sign, digits with an optional point, an
 * optional exponent.  Returns a pointer to what follows it; NULL: text does not begin with a
 * number, or it is too large for a double, and *ret is untouched.  In "0x10" the number is 0. */
const char *hzp_decimal(const char *text, double *ret);

/* Parses sizes like 512M, 1.5G, 2GiB (powers of 1024), 2GB (of 1000) and 4096 into bytes.  -1: the
 * text is not a size. */
int64_t hzp_size_parse(const char *text);

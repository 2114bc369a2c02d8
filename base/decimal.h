/* SPDX-License-Identifier: Apache-2.0 */
/* base/decimal.h - numbers as people type them.
 *
 * strtod() also takes blanks, hexadecimal, infinity and NaN; nobody who types one of these into a
 * setting meant it.
 *
 * Thread: any; pure.
 */
#ifndef HZP_BASE_DECIMAL_H
#define HZP_BASE_DECIMAL_H

#include "base/base.h"

/* The number that text begins with: digits, perhaps a point among them, a sign before, an exponent
 * behind.  Returns what follows it; NULL: text does not begin with one, or it is too large for a
 * double, and *ret is untouched.  Of 0x10 the number is 0. */
const char *hzp_decimal(const char *text, double *ret);

#endif

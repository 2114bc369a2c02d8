/* SPDX-License-Identifier: Apache-2.0 */
#include "base/decimal.h"

#include <math.h>
#include <stdlib.h>

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

const char *hzp_decimal(const char *text, double *ret)
{
    const char *at = text + (*text == '+' || *text == '-');
    if (!digit(at[0]) && !(at[0] == '.' && digit(at[1])))
        return NULL;
    if (at[0] == '0' && (at[1] == 'x' || at[1] == 'X')) {
        *ret = 0;
        return at + 1;
    }
    char *end;
    double value = strtod(text, &end);
    if (!isfinite(value))
        return NULL;
    *ret = value;
    return end;
}

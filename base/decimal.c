/* SPDX-License-Identifier: Apache-2.0 */
#include "base/decimal.h"

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

int64_t hzp_size_parse(const char *text)
{
    static const char units[] = "KkMmGgTt";
    double value;
    const char *end = hzp_decimal(text, &value);
    if (!end || value < 0)
        return -1;
    const char *unit = *end ? strchr(units, *end) : NULL;
    bool decimal = unit && end[1] == 'B';
    for (int64_t i = 0; unit && i <= (unit - units) / 2; i++)
        value *= decimal ? 1000 : 1024;
    end += unit != NULL;
    end += !strncmp(end, "iB", 2) && unit ? 2 : *end == 'B';
    return *end || value > 9e18 ? -1 : (int64_t)value;
}

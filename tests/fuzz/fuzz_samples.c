/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of PUT /v1/samples/{n}/{column}: after the check against the table of
 * fields its value is refused by name, or is as many finite numbers as asked, in their bounds. */
#include "api/http/routes/field_table.h"
#include "api/rollout/rollouts.h"
#include "tests/fuzz/smoke.h"

#include <math.h>

static void check(bool right)
{
    if (!right)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hzp_err_text err = {.text = ""};
    json_t *ignored = NULL;
    json_t *body = hzp_json_load((const char *)data, size, 0, NULL, NULL);
    bool good =
        json_is_object(body) && hzp_fields_check(&hzp_fields_sample, body, &ignored, &err) >= 0;
    const json_t *value = json_object_get(body, "value");
    for (int32_t count = 0; good && count <= 3; count++) {
        double *number = malloc((size_t)HZP_MAX(count, 1) * sizeof(*number));
        int code = hzp_sample_numbers(value, count, number, &err);
        check(code == HZP_OK || (code == HZP_EINVAL && !strcmp(err.param, "value")));
        if (code == HZP_OK)
            check(count ? json_array_size(value) == (size_t)count : hzp_json_is_number(value));
        for (int32_t i = 0; code == HZP_OK && i < HZP_MAX(count, 1); i++)
            check(isfinite(number[i]) && fabs(number[i]) <= 1e6 && (!count || number[i] <= 0));
        free(number);
    }
    json_decref(ignored);
    json_decref(body);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("{\"value\": 0.5, \"lease\": 1764200000007}"),
    FUZZ_TEXT("{\"value\": [-1, -0.5, -1e-30]}"),
    FUZZ_TEXT("{\"value\": [-1], \"lease\": 0}"),
    FUZZ_TEXT("{\"value\": -1e999}"),
};

FUZZ_MAIN(seeds)

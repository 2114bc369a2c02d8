/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_file.h"

#include "base/file.h"

int hzp_json_read(const char *path, size_t size_max, int flags, json_t **ret,
                  struct hzp_err_text *reterr)
{
    HZP_FREED char *text = NULL;
    size_t bytes;
    struct hzp_json_error error;
    HZP_TRY(hzp_file_read(path, size_max, &text, &bytes, reterr));
    json_auto_t *root =
        hzp_json_load(text, bytes, flags | HZP_JSON_ANY | HZP_JSON_PYTHON, NULL, &error);
    if (!root)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: line %d: %s", path, error.line, error.text);
    if (!json_is_object(root))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a JSON object", path);
    *ret = json_incref(root);
    return HZP_OK;
}

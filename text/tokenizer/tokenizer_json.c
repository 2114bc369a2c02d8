/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/tokenizer_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void hzp_tokjson_where(char *where, size_t size, const char *path, const char *field)
{
    /* The end of a long path tells more than its beginning. */
    size_t n = strlen(path), room = size - strlen(field) - 3;
    snprintf(where, size, "%s: %s", n > room ? path + (n - room) : path, field);
}

/* The whole file, NUL-terminated. */
static int read_file(const char *path, char **ret, size_t *bytes, struct hzp_err_text *reterr)
{
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hzp_fail(reterr, errno == ENOENT ? HZP_ENOENT : HZP_EIO, "%s: %s", path,
                        strerror(errno));
    int r = HZP_OK;
    char *data = NULL;
    size_t got = 0;
    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        r = hzp_fail(reterr, HZP_EIO, "%s: not a regular file", path);
        goto out;
    }
    if ((uint64_t)stat.st_size > HZP_TOKENIZER_FILE_MAX) {
        r = hzp_fail(reterr, HZP_EFORMAT, "%s: %lld bytes, more than %zu", path,
                     (long long)stat.st_size, HZP_TOKENIZER_FILE_MAX);
        goto out;
    }
    data = malloc((size_t)stat.st_size + 1);
    if (data == NULL) {
        r = hzp_fail(reterr, HZP_ENOMEM, "%s: no memory for it", path);
        goto out;
    }
    while (got < (size_t)stat.st_size) {
        ssize_t n = read(fd, data + got, (size_t)stat.st_size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            r = hzp_fail(reterr, HZP_EIO, "%s: %s", path, n < 0 ? strerror(errno) : "it shrank");
            goto out;
        }
        got += (size_t)n;
    }
    data[got] = 0;
    *ret = data;
    *bytes = got;
    data = NULL;
out:
    free(data);
    close(fd);
    return r;
}

int hzp_tokjson_read(const char *path, json_t **ret, struct hzp_err_text *reterr)
{
    char *data = NULL;
    size_t bytes = 0;
    struct hzp_json_error error;
    HZP_TRY(read_file(path, &data, &bytes, reterr));
    json_t *json = hzp_json_load(data, bytes, HZP_JSON_PYTHON, NULL, &error);
    free(data);
    if (json == NULL)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: line %d: %s", path, error.line, error.text);
    if (!json_is_object(json)) {
        json_decref(json);
        return hzp_fail(reterr, HZP_EFORMAT, "%s: not a JSON object", path);
    }
    *ret = json;
    return HZP_OK;
}

int hzp_tokjson_type(const json_t *json, const char *where, const char **ret,
                     struct hzp_err_text *reterr)
{
    *ret = json_string_value(json_object_get(json, "type"));
    if (*ret == NULL)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: must be an object with a \"type\"", where);
    return HZP_OK;
}

int hzp_tokjson_bool(const json_t *json, const char *name, bool absent, const char *where,
                     bool *ret, struct hzp_err_text *reterr)
{
    const json_t *value = json_object_get(json, name);
    if (value != NULL && !json_is_null(value) && !json_is_boolean(value))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be true or false", where, name);
    *ret = json_is_boolean(value) ? json_is_true(value) : absent;
    return HZP_OK;
}

int hzp_tokjson_string(const json_t *json, const char *name, const char *where, const json_t **ret,
                       struct hzp_err_text *reterr)
{
    *ret = json_object_get(json, name);
    if (!json_is_string(*ret))
        return hzp_fail(reterr, HZP_EFORMAT, "%s: %s must be a string", where, name);
    return HZP_OK;
}

int hzp_tokjson_id(const json_t *json, const char *where, const char *token, int32_t *ret,
                   struct hzp_err_text *reterr)
{
    json_int_t id = json_integer_value(json);
    if (!json_is_integer(json) || id < 0 || id >= HZP_TOKENIZER_ID_MAX)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "%s: the id of token \"%.60s\" must be a number from 0 to %d", where, token,
                        HZP_TOKENIZER_ID_MAX - 1);
    *ret = (int32_t)id;
    return HZP_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/bundled.h"

#include <sys/stat.h>

bool hzp_bundled_model(char *ret_dir, size_t size)
{
    static const char *const place[] = {"../share/hzpserve/models/world", "../models/world"};
    char program[PATH_MAX], path[2 * PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (n <= 0)
        return false;
    program[n] = 0;
    char *slash = strrchr(program, '/');
    if (!slash)
        return false;
    *slash = 0;
    for (int i = 0; i < HZP_COUNT(place); i++) {
        snprintf(path, sizeof(path), "%s/%s/config.json", program, place[i]);
        if (access(path, R_OK))
            continue;
        path[strlen(path) - strlen("/config.json")] = 0;
        HZP_FREED char *real = realpath(path, NULL);
        bool fits = real && strlen(real) < size;
        if (fits)
            strcpy(ret_dir, real);
        return fits;
    }
    return false;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && !strcmp(name + n - k, end);
}

int hzp_model_check(const char *name, struct hzp_err_text *reterr)
{
    struct stat st;
    const char *slash = strchr(name, '/');
    bool there = stat(name, &st) == 0, url = strstr(name, "://") != NULL;
    if (ends_in(name, ".gguf"))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: GGUF files are not read; name the directory of the model that it was "
                        "made of: config.json, tokenizer.json and *.safetensors",
                        name);
    if (there && S_ISREG(st.st_mode))
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: is a file; name the directory that holds config.json, tokenizer.json "
                        "and *.safetensors",
                        name);
    const char *port = strrchr(name, ':');
    if (!there && !url && !slash && port && port[1] && !port[1 + strspn(port + 1, "0123456789")])
        return hzp_fail(reterr, HZP_EINVAL,
                        "%s: there is no such directory; did you mean http://%s?", name, name);
    if (there || url || !slash || slash == name || strchr(slash + 1, '/') || strchr(".~", name[0]))
        return HZP_OK;
    return hzp_fail(
        reterr, HZP_EINVAL,
        "%s: there is no such directory; a model of Hugging Face is downloaded first: hf "
        "download %s --local-dir %s",
        name, name, slash + 1);
}

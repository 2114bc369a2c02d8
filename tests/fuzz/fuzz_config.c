/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as config.json and generation_config.json: refused with one line, or accepted as a
 * configuration for which the layout can be computed. */
#include "tests/fuzz/smoke.h"
#include "tests/weights/tiny_models.h"
#include "weights/layout.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];

static void check(bool right)
{
    if (!right)
        __builtin_trap();
}

static void remove_dir(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    unlink(path);
    rmdir(dir);
}

static void put(const char *name, const uint8_t *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static void use(const struct hzp_model_config *c)
{
    struct hzp_layout l;
    float table[512];
    hzp_layout_make(c, &l);
    check(l.elements < (size_t)1 << 60 && l.units == c->layers + 2);
    check((int64_t)l.elements >= hzp_config_parameters(c) && hzp_config_parameters(c) > 0);
    for (int32_t i = 0; i < l.tensors; i++)
        check(l.tensor[i].rows > 0 && l.tensor[i].cols > 0);
    hzp_layout_free(&l);
    check(c->heads.heads % c->heads.kv_heads == 0 && c->heads.dim % 2 == 0 && c->positions > 0);
    check(c->eos_count >= 0 && c->eos_count <= HZP_COUNT(c->eos));
    hzp_rope_table(c, false, 1, table);
    check(isfinite(table[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!dir[0]) {
        /* in memory where /dev/shm exists: thousands of files a second */
        snprintf(dir, sizeof(dir), "/dev/shm/hzp-fuzz-XXXXXX");
        if (!mkdtemp(dir)) {
            snprintf(dir, sizeof(dir), "/tmp/hzp-fuzz-XXXXXX");
            check(mkdtemp(dir) != NULL);
        }
        check(atexit(remove_dir) == 0);
    }
    put("config.json", data, size);
    put("generation_config.json", data, size);
    struct hzp_model_config c;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_config_read(dir, &c, &err);
    check((r == HZP_OK) == (err.text[0] == 0) && !strchr(err.text, '\n'));
    if (r == HZP_OK)
        use(&c);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT(TINY("llama", ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
                            "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                            "\"original_max_position_embeddings\": 32}")),
    FUZZ_TEXT(TINY("mistral", ", \"sliding_window\": 32, \"rope_parameters\": {\"rope_theta\": "
                              "1e4, \"rope_type\": \"linear\", \"factor\": 2}")),
    FUZZ_TEXT(TINY("qwen3", ", \"head_dim\": 8, \"layer_types\": [\"full_attention\"], "
                            "\"tie_word_embeddings\": true")),
    FUZZ_TEXT(TINY("qwen2", ", \"use_sliding_window\": false, \"rope_theta\": 1000000.0")),
};

FUZZ_MAIN(seeds)

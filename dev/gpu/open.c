/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/gpu/open.h"

#include "device/bf16.h"
#include "device/philox.h"

#include <string.h>

void gpu_configure(const char *device, const char *model, struct gpu_config *ret)
{
    *ret = (struct gpu_config){.device = {.name = device},
                               .model = {.dir = model},
                               .rows = {.page_rows = 16, .moment_type = HZP_BF16}};
}

void gpu_open(const struct gpu_config *config, struct hzp_assembly *ret)
{
    struct hzp_assembly_config parts = {.device = &config->device,
                                        .model = &config->model,
                                        .rig = &config->rows,
                                        .layers_max = config->layers_max};
    struct hzp_device *dev;
    struct hzp_err_text text = {0};
    if (hzp_settings_device(&config->device, 0, &dev, &text) < 0) {
        printf("skip: %s\n", text.text);
        exit(77);
    }
    hzp_device_close(dev);
    int r = hzp_assembly_rig(&parts, true, ret, &text);
    if (r < 0) {
        fprintf(stderr, "%s\n", text.text[0] ? text.text : hzp_err_name(r));
        exit(3);
    }
}

/* The first block comes from the host; then the filled part is copied behind itself until all is
   filled. */
void gpu_fill_pages(struct hzp_assembly *parts)
{
    enum { BLOCK = 16 << 20 };
    const struct hzp_rig *rig = parts->rig;
    size_t side = (size_t)((char *)rig->kv[0].v - (char *)rig->kv[0].k);
    size_t all = 2 * side * (size_t)parts->config.layers, at = HZP_MIN((size_t)BLOCK, all);
    size_t size = hzp_dtype_size(rig->kv[0].type);
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    char *noise = hzp_xmalloc(BLOCK);
    for (size_t i = 0; i < BLOCK / size; i++) {
        float value = (float)(hzp_mix64(i + 77) >> 40) * 0x1p-23f - 1;
        if (size == sizeof(float))
            memcpy(noise + i * size, &value, sizeof(value));
        else
            *(uint16_t *)(void *)(noise + i * size) = hzp_bf16_from_f32(value);
    }
    MUST(hzp_device_copy(parts->dev, rig->pages, noise, at));
    MUST(hzp_lane_open(parts->dev, HZP_BOUND_COPY, &lane));
    MUST(hzp_fence_open(parts->dev, &fence));
    for (size_t next; at < all; at += next) {
        next = HZP_MIN(at, all - at);
        MUST(hzp_lane_copy(lane, (char *)rig->pages + at, rig->pages, next));
    }
    MUST(hzp_fence_record(fence, lane));
    MUST(hzp_fence_wait(fence));
    hzp_fence_close(fence);
    hzp_lane_close(lane);
    free(noise);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double gpu_median(double *value, int n)
{
    qsort(value, (size_t)n, sizeof(*value), ascending);
    return value[n / 2];
}

double gpu_spread(const double *sorted, int n)
{
    double middle = sorted[n / 2];
    return middle > 0 ? (sorted[n - 1 - n / 4] - sorted[n / 4]) / middle : 0;
}

int32_t gpu_number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 0 || value > 1 << 24) {
        fprintf(stderr, "\"%s\" is not a number of rows\n", text);
        exit(2);
    }
    return (int32_t)value;
}

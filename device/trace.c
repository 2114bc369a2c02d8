/* SPDX-License-Identifier: Apache-2.0 */
#include "device/trace.h"

#include "base/chrome.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/bf16.h"
#include "device/operand.h"

enum { NANS_LOGGED = 20 };

struct hzp_trace {
    FILE *file; /* NULL: no trace */
    struct hzp_chrome chrome;
    bool wait, check;
    uint64_t begin_ns;
    int lanes, nans;
    struct hzp_fence *fence; /* opened when it is first needed */
    void *staging;           /* for the NaN check */
    size_t staging_size;
};

bool hzp_trace_wanted(void)
{
    return hzp_env_on("HZP_TRACE") || hzp_env_on("HZP_SYNC") || hzp_env_on("HZP_CHECK");
}

/* Waits for what the lane does, if the trace waits. */
static int settle(struct hzp_lane *lane)
{
    struct hzp_trace *trace = lane->dev->trace;
    if (!trace->wait)
        return HZP_OK;
    if (!trace->fence)
        HZP_TRY(hzp_fence_open(lane->dev, &trace->fence));
    HZP_TRY(hzp_fence_record(trace->fence, lane));
    return hzp_fence_wait(trace->fence);
}

static void event(const struct hzp_lane *lane, const char *name, uint64_t begin_ns,
                  struct hzp_cost cost)
{
    struct hzp_trace *trace = lane->dev->trace;
    uint64_t end_ns = hzp_device_now_ns(lane->dev);
    char args[80];
    if (!trace->file)
        return;
    snprintf(args, sizeof(args), "\"bytes\":%llu,\"flops\":%llu", (unsigned long long)cost.bytes,
             (unsigned long long)cost.flops);
    hzp_chrome_span(&trace->chrome, &(struct hzp_chrome_span){
                                        .name = name,
                                        .tid = lane->number,
                                        .begin_us = (double)(begin_ns - trace->begin_ns) / 1e3,
                                        .length_us = (double)(end_ns - begin_ns) / 1e3,
                                        .args = args});
}

/* The index of the first NaN of a matrix that was copied to host memory; -1: none. */
static int64_t nan_find(const struct hzp_mat *mat, const void *host)
{
    for (int64_t r = 0; r < mat->rows; r++)
        for (int64_t c = 0; c < mat->cols; c++) {
            int64_t i = r * mat->stride + c;
            float x = mat->type == HZP_BF16 ? hzp_bf16_to_f32(((const uint16_t *)host)[i])
                                            : ((const float *)host)[i];
            if (isnan(x))
                return i;
        }
    return -1;
}

/* Scratch may contain NaN, and a fill with NaN is deliberate. */
static bool nan_may_be(enum hzp_op op, const void *args)
{
    return op == HZP_OP_sample ||
           (op == HZP_OP_fill && isnan(((const struct hzp_fill_args *)args)->value));
}

/* The op has ended. */
static int nan_check(struct hzp_lane *lane, enum hzp_op op, const void *args)
{
    struct hzp_trace *trace = lane->dev->trace;
    struct hzp_operand operand[HZP_ACCESS_MAX];
    int count = hzp_op_operands(op, args, operand);
    for (int i = 0; i < count && !nan_may_be(op, args); i++) {
        const struct hzp_mat *mat = operand[i].mat;
        if (!mat || !operand[i].writes || hzp_operand_empty(&operand[i]) ||
            (mat->type != HZP_F32 && mat->type != HZP_BF16))
            continue;
        size_t size = hzp_operand_end(&operand[i]) - operand[i].ptr;
        if (size > trace->staging_size)
            trace->staging = hzp_xrealloc(trace->staging, trace->staging_size = size);
        HZP_TRY(hzp_device_copy(lane->dev, trace->staging, mat->ptr, size));
        int64_t at = nan_find(mat, trace->staging);
        if (at >= 0 && trace->nans++ < NANS_LOGGED)
            hzp_log(HZP_LOG_ERROR, "device", "nan op=%s output=%s row=%d col=%d of=%dx%d",
                    hzp_op_name(op), operand[i].name, (int)(at / mat->stride),
                    (int)(at % mat->stride), mat->rows, mat->cols);
    }
    return HZP_OK;
}

int hzp_trace_op(struct hzp_lane *lane, enum hzp_op op, const void *args, uint64_t begin_ns, int r)
{
    if (r >= 0)
        r = settle(lane);
    if (r < 0) {
        hzp_log(HZP_LOG_ERROR, "device", "failed op=%s code=%s", hzp_op_name(op), hzp_err_name(r));
        return r;
    }
    event(lane, hzp_op_name(op), begin_ns, hzp_op_cost(op, args));
    return lane->dev->trace->check ? nan_check(lane, op, args) : HZP_OK;
}

int hzp_trace_copy(struct hzp_lane *lane, size_t size, uint64_t begin_ns)
{
    HZP_TRY(settle(lane));
    event(lane, "copy", begin_ns, (struct hzp_cost){2 * (uint64_t)size, 0});
    return HZP_OK;
}

void hzp_trace_lane(struct hzp_lane *lane)
{
    static const char *const uses[] = {"compute", "memory", "network", "copy"};
    struct hzp_trace *trace = lane->dev->trace;
    char text[32];
    lane->number = trace->lanes++;
    snprintf(text, sizeof(text), "lane %d %s", lane->number, uses[lane->use]);
    if (trace->file)
        hzp_chrome_thread(&trace->chrome, 0, lane->number, text);
}

/* Opens the trace file; a second device of the process writes to file.json.1, and so on. */
static FILE *file_open(char *path, size_t size)
{
    static int opened;
    snprintf(path, size, "%s", getenv("HZP_TRACE"));
    if (opened++)
        snprintf(path, size, "%s.%d", getenv("HZP_TRACE"), opened - 1);
    return fopen(path, "w");
}

int hzp_trace_open(struct hzp_device *dev, struct hzp_err_text *reterr)
{
    FILE *file = NULL;
    const char *check = hzp_env_on("HZP_CHECK") ? getenv("HZP_CHECK") : NULL;
    if (check && strcmp(check, "nan") != 0)
        return hzp_fail_param(reterr, HZP_EINVAL, "HZP_CHECK", "HZP_CHECK=%s: not nan", check);
    if (hzp_env_on("HZP_TRACE")) {
        char path[4096];
        file = file_open(path, sizeof(path));
        if (!file)
            return hzp_fail_param(reterr, HZP_EIO, "HZP_TRACE", "%s: %s", path, strerror(errno));
    }
    struct hzp_trace *trace = hzp_xcalloc(1, sizeof(*trace));
    trace->file = file;
    if (file)
        hzp_chrome_begin(&trace->chrome, file);
    trace->check = check;
    trace->wait = file || check || hzp_env_on("HZP_SYNC");
    trace->begin_ns = hzp_device_now_ns(dev);
    dev->trace = trace;
    return HZP_OK;
}

void hzp_trace_close(struct hzp_trace *trace)
{
    if (!trace)
        return;
    hzp_fence_close(trace->fence);
    if (trace->file) {
        hzp_chrome_end(&trace->chrome);
        fclose(trace->file);
    }
    free(trace->staging);
    free(trace);
}

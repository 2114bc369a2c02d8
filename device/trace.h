/* SPDX-License-Identifier: Apache-2.0 */
/* device/trace.h - times, waits for and checks each op of a device.  A traced device has no graphs.
 *
 * Selected by the environment, so that kernels and callers need no change:
 *   HZP_TRACE=file.json  writes every op and copy with lane, start, duration, bytes, flops, as a
 *                        Chrome trace (chrome://tracing, Perfetto).  If ops run asynchronously,
 *                        each is waited for: durations are correct, overlap is not shown.
 *   HZP_SYNC=1           waits after each op; a failure is then that op's, and is logged.
 *   HZP_CHECK=nan        after each op looks for NaN in the matrices it wrote, logs the first.
 *
 * Thread: engine.
 */
#pragma once

#include "device/device.h"

/* Whether the environment selects tracing. */
bool hzp_trace_wanted(void);

/* Sets dev->trace.  HZP_EIO: the file cannot be written.  HZP_EINVAL: HZP_CHECK is not "nan". */
int hzp_trace_open(struct hzp_device *dev, struct hzp_err_text *reterr);
void hzp_trace_close(struct hzp_trace *trace); /* while the device is open; NULL: no effect */

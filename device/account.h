/* SPDX-License-Identifier: Apache-2.0 */
/* device/account.h - how much device memory this process has allocated, for comparing it with the
 * memory plan, and how much host memory it may use.  What a backend takes for its lanes is not
 * counted (hzp_lane_bytes says how much).
 *
 * Thread: any.
 */
#pragma once

#include "base/base.h"

/* For hzp_device_alloc and hzp_device_free, of HZP_MEM_DEVICE. */
void hzp_account_add(const void *memory, size_t bytes);
void hzp_account_remove(const void *memory);

/* Bytes that are allocated now, on all devices of the process. */
size_t hzp_account_bytes(void);

/* Bytes of host memory this process may use: the machine's, or the cgroup's limit if that is
 * less. */
size_t hzp_host_mem_total(void);

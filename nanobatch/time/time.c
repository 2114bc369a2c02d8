/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/time.h"

void hzp_time_init(struct hzp_time *time, int32_t cores, const struct hzp_model_config *config,
                   enum hzp_dtype act)
{
    struct hzp_rates rates = hzp_rates_of(cores);
    hzp_op_times_init(&time->whole, &rates);
    hzp_op_times_init(&time->beside, &rates);
    hzp_step_times_init(&time->step, config, act, &rates);
    hzp_rows_times_init(&time->rows);
}

void hzp_time_use_tables(struct hzp_time *time, const struct hzp_tables *tables)
{
    time->whole.tables = tables;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/time/rates.h"

static const double core_flops_per_ns = 60, device_bytes_per_ns = 15, op_call_ns = 200;

struct hzp_rates hzp_rates_of(int32_t cores)
{
    return (struct hzp_rates){.flops_per_ns = core_flops_per_ns * HZP_MAX(cores, 1),
                              .bytes_per_ns = device_bytes_per_ns,
                              .call_ns = op_call_ns};
}

double hzp_rates_ns(const struct hzp_rates *rates, struct hzp_cost cost)
{
    double compute = (double)cost.flops / rates->flops_per_ns;
    double memory = (double)cost.bytes / rates->bytes_per_ns;
    return HZP_MAX(compute, memory) + rates->call_ns;
}

size_t hzp_quantum_elements(uint64_t quantum_flops, struct hzp_cost cost, size_t elements)
{
    double work = (double)cost.flops + (double)HZP_QUANTUM_FLOPS_PER_BYTE * (double)cost.bytes;
    if (!quantum_flops || work <= 0)
        return SIZE_MAX;
    double fit = (double)quantum_flops / work * (double)elements;
    return fit < 1e18 ? (size_t)fit : SIZE_MAX;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/mpi_stub.c - replaces the MPI backend if it is not compiled in. */
#include "mesh/link/backend.h"

static const char none[] = "built without MPI (libopenmpi-dev)";

int hzp_link_open_mpi(const struct hzp_link_mpi *config, struct hzp_link **ret,
                      struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP, "link mpi: %s", none);
}

bool hzp_link_mpi_about(char *text, size_t size)
{
    snprintf(text, size, "%s", none);
    return false;
}

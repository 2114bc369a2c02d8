/* SPDX-License-Identifier: Apache-2.0 */
/* Linked in front of hzp_completion_submit: the client leaves before its request is submitted, and
 * other threads have time to do what they do then. */
#include "api/http/routes/completion.h"

#include <unistd.h>

int __real_hzp_completion_submit(struct hzp_completion *c, struct hzp_err_text *reterr);
int __wrap_hzp_completion_submit(struct hzp_completion *c, struct hzp_err_text *reterr);

int __wrap_hzp_completion_submit(struct hzp_completion *c, struct hzp_err_text *reterr)
{
    while (!atomic_load(&c->left))
        usleep(1000);
    usleep(20000);
    return __real_hzp_completion_submit(c, reterr);
}

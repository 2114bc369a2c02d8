/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/structures.h - makes a grammar of what is asked, as a process does that reads it from
 * another one. */
#pragma once

#include "text/chat/structure.h"

#include <stdlib.h>

static inline int make_structure(struct hzp_structures *s, const struct hzp_structure *what,
                                 struct hzp_grammar **ret, struct hzp_err_text *reterr)
{
    char *asked;
    HZP_TRY(hzp_structures_ask(what, &asked, reterr));
    char *written = hzp_structures_write(s, asked);
    int r = hzp_structures_get_written(s, written, ret, reterr);
    free(written);
    free(asked);
    return r;
}

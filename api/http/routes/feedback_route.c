/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/feedback. */
#include "api/http/routes/feedback.h"
#include "api/http/routes/routes.h"

enum MHD_Result hzp_route_feedback(struct hzp_exchange *x)
{
    uint64_t version;
    bool trial;
    const char *id = json_string_value(json_object_get(x->asked, "id"));
    double score = json_number_value(json_object_get(x->asked, "score"));
    if (!hzp_feedback_score(x->server->feedback, id, score, &version, &trial))
        return hzp_reply_error(x, MHD_HTTP_NOT_FOUND, "id", NULL,
                               "there is no answer %.100s among the newest %d", id,
                               HZP_FEEDBACK_ANSWERS);
    return hzp_reply_pack(x, "{s:s, s:s, s:f, s:I, s:b}", "object", "feedback", "id", id, "score",
                          score, "weights_version", (json_int_t)version, "trial", trial);
}

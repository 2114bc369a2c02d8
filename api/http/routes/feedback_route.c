/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/feedback. */
#include "api/http/routes/feedback.h"
#include "api/http/routes/field_table.h"
#include "api/http/routes/routes.h"

enum MHD_Result hzp_route_feedback(struct hzp_exchange *x)
{
    enum MHD_Result answered;
    struct hzp_err_text err = {.text = ""};
    uint64_t version;
    bool trial;
    json_t *body = hzp_exchange_json(x, &answered), *ignored = NULL;
    if (!body)
        return answered;
    static const char *const needed[] = {"id", "score"};
    int r = hzp_fields_check(&hzp_fields_feedback, body, &ignored, &err);
    json_decref(ignored);
    for (int i = 0; i < HZP_COUNT(needed) && r >= 0; i++) {
        const json_t *value = json_object_get(body, needed[i]);
        if (!value || json_is_null(value))
            r = hzp_fail_param(&err, HZP_EINVAL, needed[i], "%s must be given", needed[i]);
    }
    if (r < 0) {
        json_decref(body);
        return hzp_reply_fail(x, r, &err);
    }
    const char *id = json_string_value(json_object_get(body, "id"));
    double score = json_number_value(json_object_get(body, "score"));
    if (!hzp_feedback_score(x->server->feedback, id, score, &version, &trial))
        answered = hzp_reply_error(x, MHD_HTTP_NOT_FOUND, "id", NULL,
                                   "there is no answer %.100s among the newest %d", id,
                                   HZP_FEEDBACK_ANSWERS);
    else
        answered = hzp_reply_json(x, MHD_HTTP_OK,
                                  json_pack("{s:s, s:s, s:f, s:I, s:b}", "object", "feedback", "id",
                                            id, "score", score, "weights_version",
                                            (json_int_t)version, "trial", trial));
    json_decref(body);
    return answered;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/original.c - the model as it was started: read from its directory, or from a copy,
 * STATE/original, which shares the files' blocks where the file system can.  The copy is made
 *
 *     - at the first lesson, where this user may replace the directory's files, and the bytes of
 *       --keep have room for it;
 *     - when the version is given a name, or exported, while another one serves. */
#include "api/learn/checkpoint.h"
#include "api/learn/state_private.h"
#include "base/file.h"
#include "base/log.h"
#include "weights/model_dir.h"

bool hzp_state_is_original(struct hzp_state *s, uint64_t id)
{
    struct hzp_version_record record;
    char source[HZP_VERSION_SOURCE_MAX + 1];
    struct hzp_err_text text;
    return hzp_state_record(s, id, &record, &text) >= 0 && record.optimizer_step == 0 &&
           record.learned_through <= 0 && hzp_state_source(s, id, source, &text) >= 0 && !*source;
}

bool hzp_state_original_dir(const struct hzp_state *s, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/original", s->dir ? s->dir : "");
    bool copy = s->dir && access(ret, F_OK) == 0;
    if (!copy)
        snprintf(ret, PATH_MAX, "%s", s->model_dir);
    return copy;
}

int hzp_state_load_original(struct hzp_state *s, const struct hzp_units *units, uint64_t checksum,
                            struct hzp_err_text *reterr)
{
    char dir[PATH_MAX];
    struct hzp_err_text why = {.text = "checksum"};
    uint64_t sum = 0;
    bool copy = hzp_state_original_dir(s, dir);
    if (hzp_model_load(dir, s->model->dev, units, &sum, &why) >= 0 && sum == checksum)
        return HZP_OK;
    sum = 0;
    if (copy && hzp_model_load(s->model_dir, s->model->dev, units, &sum, NULL) >= 0 &&
        sum == checksum) {
        hzp_log(HZP_LOG_WARN, "state", "%s is damaged (%.160s): the model's directory is read", dir,
                why.text);
        return HZP_OK;
    }
    return hzp_fail(reterr, HZP_ENOENT,
                    "%s the weights that this server was started with (%.160s)%s: put its files "
                    "back, or go back to a version that hzpserve weights list shows on disk",
                    copy ? "neither the copy in the state nor the model's directory holds"
                         : "the model's directory no longer holds",
                    why.text, copy ? "" : ", and the state has no copy");
}

/* Makes directory `half` of the model's files. */
static int copy_model(struct hzp_state *s, const char *half, struct hzp_err_text *reterr)
{
    char path[PATH_MAX], then[HZP_FINGERPRINT_SIZE], now[HZP_FINGERPRINT_SIZE];
    HZP_TRY(hzp_sample_log_note(s->log, HZP_STATE_NOTE_CONTENTS, then, sizeof(then), reterr));
    HZP_TRY(hzp_model_copy_texts(half, s->texts_dir, reterr));
    HZP_TRY(hzp_checkpoint_copy_weights(s->model_dir, half, reterr));
    HZP_TRY(hzp_fingerprint_contents(half, &s->stopping, now, reterr));
    snprintf(path, sizeof(path), "%s/original.tmp/serve.options", s->dir);
    if (s->config.options)
        HZP_TRY(hzp_file_put(path, s->config.options, strlen(s->config.options), reterr));
    return strcmp(now, then) ? hzp_fail(reterr, HZP_ENOENT,
                                        "the model's directory no longer holds the weights that "
                                        "this server was started with")
                             : HZP_OK;
}

int hzp_state_keep_original(struct hzp_state *s, struct hzp_err_text *reterr)
{
    char place[PATH_MAX], half[PATH_MAX];
    if (hzp_state_original_dir(s, place))
        return HZP_OK;
    snprintf(place, sizeof(place), "%s/original", s->dir);
    snprintf(half, sizeof(half), "%s/original.tmp", s->dir);
    hzp_checkpoint_remove(half);
    int r = copy_model(s, half, reterr);
    if (r >= 0)
        r = hzp_checkpoint_put_in_place(s->dir, half, place, reterr);
    if (r < 0)
        hzp_checkpoint_remove(half);
    return r;
}

void hzp_state_turn_original(struct hzp_state *s)
{
    char dir[PATH_MAX];
    struct hzp_err_text text = {.text = ""};
    if (s->original_seen || !s->dir || hzp_sample_log_last(s->log) < 1)
        return;
    s->original_seen = true;
    bool room = !s->keep.bytes || hzp_checkpoint_bytes(s->model_dir) <= s->keep.bytes;
    if (hzp_state_original_dir(s, dir) || access(dir, W_OK) < 0 || !room)
        return;
    int r = hzp_state_keep_original(s, &text);
    if (r < 0 && r != HZP_ECANCELED)
        hzp_log(HZP_LOG_WARN, "state",
                "no copy of the model as it was started is kept, undo original needs its files: %s",
                text.text);
}

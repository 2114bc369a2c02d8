/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/write_behind.c - checkpoints in two stages: the file thread copies the state while the
 * trainer is frozen; another thread ("hzp-saver") writes the copy when training goes on, and the
 * file thread then enters it in the log.  There is one copy: a checkpoint that is due meanwhile
 * waits, and is of the version that serves by then. */
#include "api/learn/checkpoint.h"
#include "api/learn/state_private.h"

static void *saver_main(void *arg)
{
    struct hzp_state *s = arg;
    s->saver_result = hzp_checkpoint_write(s->dir, s->saved.id, &s->copy->state, s->texts_dir,
                                           s->config.options, NULL, &s->saver_why);
    s->save_took_ns = hzp_now_ns() - s->save_begin_ns;
    atomic_store(&s->saver_ended, true);
    hzp_wake_poke(&s->wake);
    return NULL;
}

static void end_saving(struct hzp_state *s)
{
    char name[64];
    snprintf(name, sizeof(name), "checkpoint-%" PRIu64, s->saved.id);
    s->late_told = s->late_told && s->late; /* logged again when it begins again */
    s->saving = s->late = false;
    s->saved_ns = hzp_now_ns();
    hzp_state_end_checkpoint(s, &s->saved, name, s->saver_result, &s->saver_why);
}

void hzp_state_copy_and_write(struct hzp_state *s, const struct hzp_version *v)
{
    HZP_ASSERT(!s->saving);
    s->save_begin_ns = hzp_now_ns();
    hzp_state_journal(s); /* the log must have every version that it refers to */
    hzp_state_note_passes(s);
    s->saved = v->record;
    atomic_store(&s->merged, 0);
    s->tried_step = v->record.optimizer_step;
    s->saving = true;
    atomic_store(&s->saver_ended, false);
    s->saver_result = hzp_snapshot_take(s->copy, s->trainer, v, &s->saver_why);
    if (s->saver_result >= 0) {
        int r = hzp_thread_start(&s->saver, "hzp-saver", saver_main,
                                 s); /* the saver sets saver_result */
        if (r >= 0)
            return;
        s->saver_result = hzp_fail(&s->saver_why, r, "cannot start a thread");
    }
    s->save_took_ns = hzp_now_ns() - s->save_begin_ns;
    end_saving(s);
}

void hzp_state_turn_saver(struct hzp_state *s, bool wait)
{
    if (!s->saving || (!wait && !atomic_load(&s->saver_ended)))
        return;
    pthread_join(s->saver, NULL);
    end_saving(s);
}

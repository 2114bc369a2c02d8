/* SPDX-License-Identifier: Apache-2.0 */
/* nanobatch/search/search_file.h - the JSON file with the measurements and plans of `search`.
 *
 * The file applies to one device, one model shape and one build of the program, and contains their
 * names; it has a format version.  It is replaced atomically (written to a temporary file, synced,
 * renamed), so a killed process leaves the previous file.  Everything read is checked and bounded:
 * an invalid file gives an error.
 *
 * Thread: any.
 */
#pragma once

#include "nanobatch/plan/plan_table.h"
#include "nanobatch/time/tables.h"
#include "weights/config.h"

/* Writes the names of device, model and build into the tables, for comparison with a file. */
void hzp_search_identify(const struct hzp_device *dev, const struct hzp_model_config *config,
                         enum hzp_dtype type, bool fp8, bool kv_fp8, struct hzp_tables *tables);

/* The same for one of so many ranks that compute each step together; 1: no effect. */
void hzp_search_identify_ranks(struct hzp_tables *tables, int ranks);

/* NULL if the tables read apply here; otherwise the reason, in a few words. */
const char *hzp_search_misfit(const struct hzp_tables *read, const struct hzp_tables *here);

/* The path of the user's file for what the tables name: under XDG_CACHE_HOME, or ~/.cache. */
int hzp_search_path(const struct hzp_tables *here, char *ret, size_t size,
                    struct hzp_err_text *reterr);

/* HZP_EIO. */
int hzp_search_save(const char *path, const struct hzp_tables *tables,
                    const struct hzp_plan_table *plans, struct hzp_err_text *reterr);

/* Adds the file's contents to both tables, which must be empty.  HZP_ENOENT, HZP_EIO,
 * HZP_EFORMAT. */
int hzp_search_load(const char *path, struct hzp_tables *tables, struct hzp_plan_table *plans,
                    struct hzp_err_text *reterr);

/* NULL if plans beside these tables may serve; else the reason, written to ret [160]: the search
 * was interrupted, or others used the processors while it measured. */
const char *hzp_search_unusable(const struct hzp_tables *tables, char *ret);

/* ranks: of the group that computes each step together; 1: there is none.
 * Loads the plan table that `plans` names: a file; "auto" (or NULL): the user's file, if it exists,
 * applies here and is usable; "off": none.  A named file must apply to this device and model and be
 * usable; auto never fails.  ret_plans is empty if there are no plans, ret_tables if they were not
 * measured by this build on this device; the caller finishes both. */
int hzp_search_plans(const char *plans, const struct hzp_device *dev,
                     const struct hzp_model_config *config, enum hzp_dtype type, bool fp8,
                     bool kv_fp8, int ranks, struct hzp_plan_table *ret_plans,
                     struct hzp_tables *ret_tables, struct hzp_err_text *reterr);

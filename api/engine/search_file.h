/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/search_file.h - what `search` measured and found, as a JSON file.
 *
 * The file holds for one device, one model shape and one build of the program, whose names stand in
 * it; it is versioned, and replaced as a whole (written beside, synced, renamed), so a kill leaves
 * the one before.  What is read is checked and bounded: a hostile file costs an error line.
 *
 * Thread: any.
 */
#ifndef HZP_API_ENGINE_SEARCH_FILE_H
#define HZP_API_ENGINE_SEARCH_FILE_H

#include "nanobatch/plan/plan_table.h"
#include "nanobatch/time/tables.h"
#include "weights/config.h"

/* Writes device, model and build into the tables: what a file must hold for. */
void hzp_search_identify(const struct hzp_device *dev, const struct hzp_model_config *config,
                         enum hzp_dtype type, bool fp8, struct hzp_tables *tables);

/* Whether what was read holds here; not: why, in a few words. */
const char *hzp_search_misfit(const struct hzp_tables *read, const struct hzp_tables *here);

/* The user's file for what the tables name: under XDG_CACHE_HOME, or ~/.cache. */
int hzp_search_path(const struct hzp_tables *here, char *ret, size_t size,
                    struct hzp_err_text *reterr);

/* HZP_EIO. */
int hzp_search_save(const char *path, const struct hzp_tables *tables,
                    const struct hzp_plan_table *plans, struct hzp_err_text *reterr);

/* Adds to both, which are empty.  HZP_ENOENT, HZP_EIO, HZP_EFORMAT. */
int hzp_search_load(const char *path, struct hzp_tables *tables, struct hzp_plan_table *plans,
                    struct hzp_err_text *reterr);

/* The plan table that `plans` names: a file; "auto" (or NULL): the user's file, if there is one
 * that holds here; "off": none.  A file that was named must hold for this device and model; auto
 * never fails.  ret_plans is empty where there are none, and ret_tables where they were not
 * measured by this build on this device; the caller finishes both. */
int hzp_search_plans(const char *plans, const struct hzp_device *dev,
                     const struct hzp_model_config *config, enum hzp_dtype type, bool fp8,
                     struct hzp_plan_table *ret_plans, struct hzp_tables *ret_tables,
                     struct hzp_err_text *reterr);

#endif

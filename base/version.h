/* SPDX-License-Identifier: Apache-2.0 */
/* base/version.h - the version of the program, as --version, GET /version and files name it.
 *
 * Thread: any.
 */
#pragma once

#define HZP_VERSION_TEXT "0.1.0"

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/mesh/paths_brute.h - the best paths of small problems, by trying all of them.
 *
 * The rules of paths (mesh/paths/paths.h) and, for orders, time and memory are written a second
 * time here, so that the product's are compared with them.
 *
 * Thread: any; not two calls at once. */
#pragma once

#include "mesh/paths/paths.h"

/* The least seconds of all choices of paths, with the orders of hzp_paths_order(); *ret_tried: how
 * many choices there are. */
double brute_paths(const struct hzp_paths_problem *p, int length, long *ret_tried);

/* The least seconds of all choices of paths and of all orders in which nodes can work. */
double brute_orders(const struct hzp_paths_problem *p, int length);

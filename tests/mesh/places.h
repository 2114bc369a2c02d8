/* SPDX-License-Identifier: Apache-2.0 */
/* tests/mesh/places.h - links between twelve places, as SkipPipe's authors measured them.
 *
 * Latencies in milliseconds and rates in GiB/s are those of schedulers/communication_costs.py of
 * gensyn-ai/skippipe 7f20d8a (MIT License, Copyright (c) 2025 Nikolay Blagoev).  Its rate between
 * NL and London, 0.000237, is a thousandth of its neighbours' and is read as 0.237.  The order is
 * that of its table of computing times; within one place 1 ms and 2 GiB/s.
 *
 * Thread: any.
 */
#pragma once

enum { PLACES = 12 };

enum place {
    AUSTRALIA,
    BELGIUM,
    CANADA,
    GERMANY,
    IOWA,
    JAPAN,
    LA,
    NL,
    OREGON,
    SINGAPORE,
    TAIWAN,
    LONDON,
};

struct place_link {
    int a, b;
    double latency_ms, rate;
};

/* One of each pair. */
static const struct place_link place_links[] = {
    {AUSTRALIA, BELGIUM, 129, 0.00983},
    {AUSTRALIA, CANADA, 98, 0.01318},
    {AUSTRALIA, GERMANY, 125.5, 0.01046},
    {AUSTRALIA, IOWA, 84, 0.01123},
    {AUSTRALIA, JAPAN, 58, 0.01379},
    {AUSTRALIA, LA, 69, 0.01465},
    {AUSTRALIA, NL, 128, 0.00952},
    {AUSTRALIA, OREGON, 68, 0.01465},
    {AUSTRALIA, SINGAPORE, 48, 0.02979},
    {AUSTRALIA, TAIWAN, 67, 0.02100},
    {AUSTRALIA, LONDON, 132, 0.00940},
    {BELGIUM, CANADA, 41, 0.01990},
    {BELGIUM, GERMANY, 4, 0.24250},
    {BELGIUM, IOWA, 49, 0.02832},
    {BELGIUM, JAPAN, 112, 0.01172},
    {BELGIUM, LA, 70, 0.01941},
    {BELGIUM, NL, 3, 0.24250},
    {BELGIUM, OREGON, 66, 0.02087},
    {BELGIUM, SINGAPORE, 83, 0.01611},
    {BELGIUM, TAIWAN, 105, 0.01245},
    {BELGIUM, LONDON, 3.5, 0.24250},
    {CANADA, GERMANY, 44, 0.03186},
    {CANADA, IOWA, 14, 0.07568},
    {CANADA, JAPAN, 74, 0.01807},
    {CANADA, LA, 35, 0.03052},
    {CANADA, NL, 42, 0.02502},
    {CANADA, OREGON, 30.5, 0.04712},
    {CANADA, SINGAPORE, 107, 0.01194},
    {CANADA, TAIWAN, 89, 0.01471},
    {CANADA, LONDON, 38.5, 0.03638},
    {GERMANY, IOWA, 53.5, 0.02661},
    {GERMANY, JAPAN, 112, 0.01108},
    {GERMANY, LA, 73, 0.01825},
    {GERMANY, NL, 3.5, 0.24250},
    {GERMANY, OREGON, 68, 0.01492},
    {GERMANY, SINGAPORE, 80, 0.01250},
    {GERMANY, TAIWAN, 102, 0.01257},
    {GERMANY, LONDON, 6.6, 0.18875},
    {IOWA, JAPAN, 72.5, 0.01398},
    {IOWA, LA, 23.4, 0.06146},
    {IOWA, NL, 51, 0.02740},
    {IOWA, OREGON, 19.3, 0.09033},
    {IOWA, TAIWAN, 88, 0.01280},
    {IOWA, SINGAPORE, 101.5, 0.01263},
    {IOWA, LONDON, 48.1, 0.02185},
    {JAPAN, LA, 50, 0.02777},
    {JAPAN, NL, 108.5, 0.01138},
    {JAPAN, OREGON, 46.2, 0.03046},
    {JAPAN, SINGAPORE, 35.6, 0.03900},
    {JAPAN, TAIWAN, 19.2, 0.07672},
    {JAPAN, LONDON, 107, 0.00889},
    {LA, NL, 71.5, 0.01425},
    {LA, OREGON, 12.4, 0.11853},
    {LA, SINGAPORE, 79.5, 0.01685},
    {LA, TAIWAN, 64, 0.01619},
    {LA, LONDON, 68, 0.01492},
    {NL, OREGON, 67, 0.02039},
    {NL, SINGAPORE, 81.5, 0.01636},
    {NL, TAIWAN, 105.5, 0.01196},
    {NL, LONDON, 4.8, 0.23682},
    {OREGON, SINGAPORE, 78.5, 0.01678},
    {OREGON, TAIWAN, 59.5, 0.02332},
    {OREGON, LONDON, 64, 0.02124},
    {SINGAPORE, TAIWAN, 23.2, 0.06189},
    {SINGAPORE, LONDON, 85, 0.01569},
    {TAIWAN, LONDON, 109.5, 0.00896},
};

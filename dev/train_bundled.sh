#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes models/world, the bundled model, from nothing: writes the corpus (dev/world.py), trains it
# with hzpserve, and puts the result and the demonstration's files where the repository keeps them.
#
#     dev/train_bundled.sh [PATH-OF-HZPSERVE [WORK-DIRECTORY]]
#
# An interrupted run goes on from its last checkpoint when it is given the same work directory.
set -eu

cd "$(dirname "$0")/.."
hzpserve=${1:-build/hzpserve}
work=${2:-build/world}
model=models/world

test -x "$hzpserve" || { echo "$0: no program $hzpserve: build it first" >&2; exit 1; }

python3 dev/world.py --out "$work/corpus" --demo tests/demo
set -- --from-scratch "$work/corpus/config.json" --data "$work/corpus/train.jsonl" \
    --eval "$work/corpus/eval.jsonl" --out "$work/out" \
    --epochs 3 --update-tokens 2400 --micro-rows 2400 \
    --lr 2e-3 --schedule cosine --warmup 50 --weight-decay 0.1 --seed 1
if test -d "$work/out"; then
    set -- "$@" --resume
fi
"$hzpserve" train "$work/corpus" "$@"

mkdir -p "$model"
for file in config.json model.safetensors tokenizer.json tokenizer_config.json \
    generation_config.json; do
    cp "$work/out/$file" "$model/$file"
done
cp "$work/corpus/replay.jsonl" "$model/replay.jsonl"
du -b -c "$model"/* | tail -n 1
"$hzpserve" eval "$model" --data "$work/corpus/eval.jsonl"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes models/world, the bundled model, from nothing: writes the corpus (dev/world.py), trains it
# with hzpserve, and puts the model and the demonstration's files where the repository keeps them.
#
#     dev/train_bundled.sh [PATH-OF-HZPSERVE [WORK-DIRECTORY]]
#
# About ten minutes on two cores.  An interrupted run continues from its newest checkpoint when it is
# given the same work directory.
set -eu

cd "$(dirname "$0")/.."
hzpserve=${1:-build/hzpserve}
work=${2:-build/world}
model=models/world

test -x "$hzpserve" || { echo "$0: no program $hzpserve: build it first" >&2; exit 1; }

python3 dev/world.py --out "$work/corpus" --demo tests/demo
set -- --from-scratch "$work/corpus/config.json" --out "$work/out" \
    --data "$work/corpus/train.jsonl" --eval "$work/corpus/eval.jsonl" --eval-every 500 \
    --epochs 4 --update-tokens 2400 --lr 3e-3 --schedule cosine,floor=0.05 \
    --warmup-steps 50 --adamw decay=0.1 --checkpoint-every 500
for checkpoint in "$work"/out/checkpoint-*; do
    if test -d "$checkpoint"; then
        set -- "$@" --resume
        break
    fi
done
"$hzpserve" train "$@"

mkdir -p "$model"
for file in config.json model.safetensors tokenizer.json tokenizer_config.json \
    generation_config.json; do
    cp "$work/out/$file" "$model/$file"
done
cp "$work/corpus/replay.jsonl" "$model/replay.jsonl"
du -b -c "$model"/* | tail -n 1
"$hzpserve" eval "$model" --data "$work/corpus/eval.jsonl"
python3 tests/demo/test_demo.py "$hzpserve" "$model"

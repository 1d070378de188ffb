#!/usr/bin/env bash
# Makes a demo from nothing: tools/demo/train.sh OUT [arguments of train.py]
# Tokenizer, training (about 75 minutes on two cores), figures, pictures, golden answers. The one in demo/ is not touched.
set -euo pipefail
out=${1:?usage: tools/demo/train.sh OUT [arguments of train.py]}
shift
tools=$(dirname "$0")
python=${PYTHON:-python}
"$python" "$tools/tokenizer.py" "$out/checkpoint"
"$python" "$tools/train.py" "$out/checkpoint" "$@"
"$python" "$tools/evaluate.py" "$out/checkpoint" ${SCENES:+--scenes "$SCENES"}
"$python" "$tools/pictures.py" "$out"
"$python" "$tools/../golden_demo.py" --demo "$out"

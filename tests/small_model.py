# SPDX-License-Identifier: Apache-2.0
"""A model directory with the first layers of another one: for tests that compare what two runs compute and do not
care what the model says."""
import json
import pathlib
import re
import shutil
import struct


def first_layers(model, folder, layers):
    """Writes the directory `folder` and returns it as a string."""
    model, folder = pathlib.Path(model), pathlib.Path(folder)
    folder.mkdir()
    for path in model.iterdir():
        if path.name not in ("config.json", "model.safetensors", "serve.options"):
            shutil.copy(path, folder)
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(config))
    data = (model / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body, kept = json.loads(data[8:8 + size]), data[8 + size:], bytearray()
    for name in list(header):
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if name == "__metadata__" or (layer and int(layer[1]) >= layers):
            del header[name]
            continue
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [len(kept), len(kept) + end - begin]
        kept += body[begin:end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(kept))
    return str(folder)

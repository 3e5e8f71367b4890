"""Asks a Triton server what is on pictures:  python triton_client.py localhost:8001 NAME PICTURE…

Needs: pip install 'qcn-toolkit' 'tritonclient[grpc]'. NAME is the ensemble that `qcn export --format triton` names.
"""

import sys
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

from qcn.data.fit import fit, read_picture

url, name, *pictures = sys.argv[1:]
server = InferenceServerClient(url)
config = server.get_model_config(name).config
shape, how = tuple(config.input[0].dims), config.parameters["fit"].string_value
pixels = np.stack([fit(read_picture(Path(picture)), shape, how) for picture in pictures])  # uint8 [B, C, H, W]
given = InferInput("pixels", pixels.shape, "UINT8")
given.set_data_from_numpy(pixels)
answer = server.infer(name, [given], outputs=[InferRequestedOutput("logit", class_count=1)])
for picture, best in zip(pictures, answer.as_numpy("logit"), strict=True):
    logit, _, label = best[0].decode().split(":", 2)  # as Triton puts a class: value, index, label
    print(f"{picture}: {label} (logit {float(logit):.3f})")

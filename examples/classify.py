"""Ask a bundle, or a network that ships, what is on pictures. Needs no torch.

python examples/classify.py cifar10-qcn-deep photo.jpg other.png
"""

import sys

import qcn

name, *pictures = sys.argv[1:]
model = qcn.load(name)
for picture, answer in zip(pictures, model.stream(pictures), strict=True):
    print(f"{picture}: {answer.words()}, {100 * answer.probability:.1f} %")

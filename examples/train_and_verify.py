"""Train on your own pictures, export, prove that the bundle is the trained network, and ask it.

    python examples/train_and_verify.py my/pictures photo.jpg

my/pictures has one folder of pictures per class. Settings of `qcn train` may follow: --epochs 5 --model qcn-tiny.
"""

import argparse

import qcn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("pictures", help="folder with one folder per class")
parser.add_argument("photo", help="picture to ask about")
parser.add_argument("--size", type=int, default=64, help="pixels per side that the network sees")
parser.add_argument("--epochs", type=int)
parser.add_argument("--model", default="qcn-deep")
arguments = parser.parse_args()

chosen = {"epochs": arguments.epochs} if arguments.epochs else {}
run = qcn.train(arguments.pictures, size=arguments.size, model=arguments.model, **chosen)
bundle = run.export("onnx")
report = bundle.verify(run=run)
print(report.summary)
if not report.passed:
    raise SystemExit(1)
answer = bundle.predict(arguments.photo)
print(f"{arguments.photo}: {answer.words()}, {100 * answer.probability:.1f} %")

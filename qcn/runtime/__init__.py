"""Run a bundle from Python, without torch.

model = qcn.load("runs/export/my-toys")        # the fastest backend that runs here and passes its self-test
answer = model.predict("photo.jpg")            # or bytes, an array, a tensor …: see pictures.py
answer.label, answer.probability, answer.known, answer.logit, answer.pose
"""

from qcn.runtime.model import Answer, Model, load

__all__ = ["Answer", "Model", "load"]

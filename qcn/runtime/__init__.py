"""Run a bundle from Python, without torch.

model = qcn.load("runs/export/my-toys")        # the fastest backend that runs here and passes its self-test
answer = model.predict("photo.jpg")            # or an array [H, W, C], or a list of these
answer.label, answer.probability, answer.known, answer.logit, answer.pose
"""

from qcn.runtime.model import Answer, Model, load

__all__ = ["Answer", "Model", "load"]

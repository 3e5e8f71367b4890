"""`qcn predict`: pictures, videos and cameras in, answers out. No torch, unless the model is a training run."""

"""`qcn benchmark`: how fast the backends of a bundle are, side by side on this machine. Works without torch.

turns     backends timed in turns
latency   what an inference of each takes; cold: the first one; energy: what it draws, by a meter; nvml: the GPU's
results   the figures in tables, as a record, against an earlier one
"""

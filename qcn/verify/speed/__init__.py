"""`qcn benchmark`: how fast the backends of a bundle are, side by side on this machine. Works without torch.

latency   time of one inference, in turns; cold: of the first one; energy: of one, by a meter; nvml: the GPU's
results   the figures in tables, as a record, against an earlier one
"""

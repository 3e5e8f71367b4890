"""Fused bodies of the routing operator in `qcn.routing`. Nothing is here yet."""

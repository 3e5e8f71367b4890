"""Quaternion Capsule Networks: train one, and carry it to a verified, fast engine on an edge device."""

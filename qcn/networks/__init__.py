"""Networks: the QCN, its rivals, their names, what their logits mean, and those that ship."""

"""What devices met in the field: their counts, what drifted, and pictures to label (docs/field.md)."""

"""The audit of a batch: its tensors, what each of them says about documents, and the checks."""

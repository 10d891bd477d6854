"""The method as pure functions of tensors: no model classes, no I/O, no global state."""

"""Pure functions of arrays and tensors. They depend on no paper and read no files."""

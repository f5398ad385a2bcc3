"""Operations: pure functions of arrays and tensors. They know shapes, not papers or files."""

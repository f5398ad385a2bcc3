"""Neural network modules. They depend on no paper."""

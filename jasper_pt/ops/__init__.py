"""Operations with kernels of our own: one function each, which picks a path; plain PyTorch is the reference."""

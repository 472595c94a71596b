"""The fused row kernel in C++, specialised for what a contract asks for and built with the system's compiler."""

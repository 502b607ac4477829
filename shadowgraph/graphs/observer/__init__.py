"""Notes operators in C++, in every thread, where no dispatch mode is, by kernels that are compiled on first use."""

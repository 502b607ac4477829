"""Notes operators in C++, in every thread, where no dispatch mode is: a callback of torch's, compiled on first use."""

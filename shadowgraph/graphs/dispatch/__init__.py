"""Dispatch modes and patches that see eager operators in the threads of the program, on either backend."""

"""Dispatch modes and patches that observe eager operators in the program's threads, on either backend."""

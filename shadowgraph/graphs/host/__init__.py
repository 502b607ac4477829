"""The host backend: `HostGraph`, captured by a dispatch mode and replayed over the same memory, without a GPU."""

"""`HostGraph`: capture by a dispatch mode and replay over the same memory, on a machine without a GPU."""

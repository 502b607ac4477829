"""What a graph is: its nodes, edges and pointers, on either backend."""

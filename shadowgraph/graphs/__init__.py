"""Graphs on either backend: capture, replay, nodes, edges and pointers, and the events that backends emit."""

"""What the indices that compiled code asserts would have been, worked out on the host from what a launch was given."""

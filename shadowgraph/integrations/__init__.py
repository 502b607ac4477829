"""Drivers and attachments for programs that shadowgraph watches, sglang first."""

"""What outlives the process: the check log and the launch log of this process, and the rows that the monitor writes."""

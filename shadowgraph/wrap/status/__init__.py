"""What a run tells and obeys while it serves: pulses of its processes, the switch for checking, the status pages."""

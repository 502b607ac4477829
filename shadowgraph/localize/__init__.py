"""Which node or launch did it: probed replays, replays of prefixes, stepped launches, index assertions."""

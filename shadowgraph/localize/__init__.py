"""Localization of a culprit: probed replays, replays of prefixes, stepped launches, evaluation of index assertions."""

"""Process hygiene without knowledge of graphs: errors, settings, patches, fork-safe locks, atomic files."""

"""Process hygiene that knows nothing of graphs: errors, settings, patches, locks across fork, atomic files."""

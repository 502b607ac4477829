"""The folder of a wrapped run: what every process writes as it goes, and how it is read again."""

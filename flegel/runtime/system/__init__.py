"""What a process asks of its operating system: its descendants, its standard streams, who reads its files."""

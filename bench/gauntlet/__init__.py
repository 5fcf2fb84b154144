"""The gauntlet: tables that nobody prepared × algorithms × synchronization models × workers, beside other libraries."""

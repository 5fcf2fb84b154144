"""The real machines on a virtual clock: many workers, or many faults. Decides nothing that a machine decides."""

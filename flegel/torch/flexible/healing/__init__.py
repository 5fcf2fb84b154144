"""Ranks that are lost, freeze, come back or are added while a training runs: membership, agreement and the exchange."""

"""What all layers use, without decisions: bundles of arrays, shards of data, tiling, the stop flag."""

"""What everybody uses and nobody decides in: bundles of arrays, shards of data, tiling, the stop flag."""

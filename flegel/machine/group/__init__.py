"""Groups that train one model together through a bucket: records, membership, rounds, outer steps. Pure."""

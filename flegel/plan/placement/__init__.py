"""Which parameter server holds which slice of θ: hash ring, slice size, throughput, load, when to plan again. Pure."""

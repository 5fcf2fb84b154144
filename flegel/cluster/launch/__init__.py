"""How slaves are started on hosts."""

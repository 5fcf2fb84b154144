"""Jobs of this host on the command line, without Typer, which takes a quarter of a second to read one."""

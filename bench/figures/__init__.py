"""One program for each figure or table of the papers; each writes a record that `flegel bench report` shows."""

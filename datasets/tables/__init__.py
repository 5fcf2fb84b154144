"""Tables as they are: text, dates, gaps, and how they become rows of numbers."""

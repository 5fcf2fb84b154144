"""What a class may say besides its hooks: one file for each subject, with what is declared and what may be asked."""

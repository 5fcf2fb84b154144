"""LIBSVM/SVMlight text files: the stream of a file and its compiled parser."""

"""Data: frozen types, the keys of the bucket, and the forms in which both are written.

Times inside entries and facts are informative. Where age matters, readers use the store's own Last-Modified, which is
carried beside them (`Entry.at`, `Stamped.modified`).
"""

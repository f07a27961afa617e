"""Frozen data types, the keys of the bucket, and the formats in which both are stored.

Times inside entries and facts are informative. Where age matters, readers use the store's own Last-Modified, which is
stored beside them (`Entry.at`, `Stamped.modified`).
"""

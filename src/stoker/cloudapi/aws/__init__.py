"""Metadata and signed requests for a machine on AWS, before and beside an SDK. Standard library alone.

Parts of this package are embedded in the user-data, and run there on Python 3.6 or newer, so that a machine whose
Python is too old for Stoker can report that: no newer syntax, no dataclasses, annotations in quotes where needed.
"""

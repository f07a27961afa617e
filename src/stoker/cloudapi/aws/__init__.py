"""What a machine on AWS needs before and besides an SDK: its metadata, and signed requests. Standard library alone.

This package also travels inside the user-data and runs there on any Python 3.6 or newer, so that a machine whose
Python is too old for Stoker can still say so: no newer syntax, no dataclasses, annotations in quotes where need be.
"""

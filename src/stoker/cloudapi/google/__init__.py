"""What a machine on Google Cloud needs before and besides an SDK: its metadata, and its log. Standard library alone.

`metadata` also travels inside the startup script and runs there on any Python 3.6 or newer, so that a machine whose
Python is too old for Stoker can still say so: no newer syntax, no dataclasses, annotations in quotes where need be.
"""

"""Metadata and logs for a machine on Google Cloud, before and beside an SDK. Standard library alone.

`metadata` is also embedded in the startup script, and runs there on Python 3.6 or newer, so that a machine whose Python
is too old for Stoker can report that: no newer syntax, no dataclasses, annotations in quotes where needed.
"""

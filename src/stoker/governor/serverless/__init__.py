"""The governor without a machine of its own: a function that a cloud calls for events and once a minute.

    events.py     what woke it, from whatever a cloud sends: pure
    waker.py      the same governor as everywhere, on one job for an event and on all for a tick
    schedule.py   the tick, switched on by the first active job and off by the last

The entry points of Lambda and Cloud Run are in `stoker.deploy`.

An event is a reason to look, and nothing in it is believed. So one that comes twice, late, out of order or for what is
long gone is harmless; one that nobody understands is logged and dropped.
"""

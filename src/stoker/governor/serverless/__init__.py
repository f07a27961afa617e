"""The serverless governor: a function that a cloud calls for events and once a minute.

    events.py          parse the payloads of clouds into events; pure
    event_governor.py  run the usual governor, over one job for an event and over all for a tick
    schedule.py        the tick, switched on by the first active job and off by the last
    external_jobs.py   the interface to the governor of external jobs

The entry points of Lambda and Cloud Run are in `stoker.deploy`.

An event only triggers a pass; its content is not trusted. So an event that comes twice, late, out of order or for
something that no longer exists is harmless. An event that cannot be parsed is logged and dropped.
"""

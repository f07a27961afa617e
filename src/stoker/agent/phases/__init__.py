"""The phases of one attempt on one node: functions over an `AttemptContext`, in the order that `attempt.py` gives."""

"""Stores: a folder or a bucket, opened by `stoker.store.base.open_store`, and readers of what they hold."""

"""Where objects are kept: a folder, or a bucket. Opened by `stoker.store.base.open_store`."""

"""The figures: what Stoker costs in time, bytes and memory, measured on this computer against what is bare."""

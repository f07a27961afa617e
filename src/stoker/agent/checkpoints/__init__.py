"""Deciding which files of a checkpoint folder are whole.

format_check    what a file's own format says about it
save_shape      which files one save consists of, learnt from the commits before
write_history   what was seen of each file: changes, open handles, writers that died
whole_units     which units of the folder may be committed when the training has ended
"""

"""The checkpoint folder of a node: which of its files are whole, and what a restore does to it.

format_check    what a file's own format says about it
folder_events   every write below a folder, told by the kernel
save_bursts     where one save ends and the next begins, told by the order and the pauses of writes
save_copies     a copy of the last save that is known to be whole
commit_choice   what is committed: files, copies, parts of the last commit
save_shape      which files one save consists of, learnt from the commits before
write_history   what was seen of each file: changes, open handles, writers that died
folder_replacement  put a checkpoint into the folder, and delete nothing that Stoker did not write
restore_folder  the folder of one attempt, before its training starts
whole_units     which units of the folder may be committed when the training has ended
"""

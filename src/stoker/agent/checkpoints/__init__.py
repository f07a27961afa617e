"""The checkpoints of a node: commit what the training saves, and restore what was committed.

Commit:

| module | content |
|---|---|
| `sync`, `sync_options` | the thread that commits during an attempt, and its options |
| `commit_rounds`, `commit_schedule` | one round of committing; deadlines, retries and pruning |
| `requested_commits`, `commit_queue` | saves that the script asked for through `stoker.train` |
| `save_protocol` | the script's side of these requests |
| `loose_files` | files that such a script wrote into the folder outside of its saves |
| `folder_commits` | the folder of a script that does not use `stoker.train` |
| `gang_commits`, `following_commits` | the same on several nodes: one save of all ranks, led by rank 0 |
| `plain_copy`, `copy_thread`, `copy_room` | copy the newest checkpoint to `checkpoints.copy_to` as plain files |
| `blobs`, `manifest_writer`, `prune` | send files, write manifests, remove old checkpoints |

Decide which files are whole:

| module | content |
|---|---|
| `folder_watcher`, `folder_snapshot` | observe the folder: scans, open files, differences from the last commit |
| `unreadable_files` | errors of reading a file, with advice; saves that wait because of one |
| `write_history` | observations of each file: changes, open handles, writers that died |
| `commit_chooser`, `commit_contents` | choose what to commit: files, copies, parts of the last commit |
| `whole_saves` | which units of the folder may be committed when the training has ended |
| `format_check`, `torch_archive`, `storage_references` | check a file by its own format |
| `save_shape`, `save_cycles`, `file_numbers` | which files one save consists of, learnt from earlier saves |
| `companion_units` | which folders one save consists of |
| `folder_events`, `save_bursts` | writes reported by the kernel; where one save ends and the next begins |
| `save_copies`, `file_copies` | a copy of the last whole save; files that are held while they are sent |

Restore:

| module | content |
|---|---|
| `restore`, `restore_folder` | restore a checkpoint into the folder of an attempt, before its training starts |
| `folder_replacement` | put files into the folder, and delete nothing that Stoker did not write |
| `folder_record` | what was in the folder before the job, and what restores wrote |
| `resume_from` | import a checkpoint of another job, a folder or a URL |
"""

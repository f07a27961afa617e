"""Set-up and training in a container, by docker or podman.

    engine        asks docker or podman, and tells whose fault it is when they refuse
    images        the image: its name, its registry, its digest
    symlinks      what links in somebody's data lead to
    host_devices  what this machine has that a container may see
    field_errors  which field of the job file the engine does not like
    create_command  the command line that makes the container. Pure
    pipes         how a command gets into the container: its variables, and the proof that its agent lives
    process_group  who runs in there
    chown         what another user is given, to write there
    user_cache    where another user keeps environments
    container     the enclosure: all of them together
    sweep         what a dead agent left

There is one container for each life of an agent. Its own first program only waits; the steps of the set-up and the
training are brought in one after another (`exec`). So what a step installs is there for the training without a copy
of the image, and what the kernel counted (a kill for want of memory) can still be read when the training is dead.
The container ends when its agent does, however that dies: its first program reads from a pipe whose other end only
the agent has.
"""

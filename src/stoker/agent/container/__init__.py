"""Run set-up and training in a container, with docker or podman.

    container       the runtime: all parts below together
    engine          runs docker or podman, and tells a user's error from a fault of the machine
    images          pulls the image, identified by its digest: the same for all nodes and attempts of a job
    registry_login  passwords for registries
    symlinks        targets of links in input folders
    host_devices    capabilities of this machine that a container may use
    create_command  the command line that creates the container. Pure
    pipes           pass variables into the container, and tie its life to the agent's
    process_group   the processes in the container, and one command of the agent
    container_user  the container's user, if it is not the agent's: gives folders to it

Each run of an agent has one container. Its first program only waits; the steps of the set-up and the training are
started in it one after another (`exec`). The training therefore finds what a step installed without a copy of the
image, and the kernel's counters (such as kills for lack of memory) can still be read when the training is dead. The
container ends when its agent does, however the agent dies: the first program reads from a pipe whose other end only the
agent holds open.
"""

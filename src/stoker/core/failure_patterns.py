"""Patterns for the lines by which a log shows a failure, and the kind of failure that each stands for. Pure.

Each pattern has real lines beside it: `samples` that it must recognise, and `others` that it must not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from stoker.model.node_facts import Blame


@dataclass(frozen=True)
class FailurePattern:
    """One kind of failure. `samples` are real lines that it must recognise, `others` lines that it must not.

    `raised`: only an exception counts. Clients print the same text whenever they retry.
    """

    name: str
    blame: Blame
    expression: str
    samples: tuple[str, ...]
    others: tuple[str, ...] = ()
    raised: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Compiled when the first failure is diagnosed: most processes see none."""
        return re.compile(self.expression)


# The first pattern that matches a line decides. Errors of the script come first: they may quote the later ones.
PATTERNS: tuple[FailurePattern, ...] = (
    FailurePattern(
        "gpu-memory",
        "script",
        (
            r"\bCUDA (?:error: )?out of memory\b|\bCuda failure (?:\d{1,4} )?'?out of memory|"
            r"(?<!ray\.exceptions\.)\bOutOfMemoryError\b"
            r"|\bCUBLAS_STATUS_ALLOC_FAILED\b|\bResourceExhaustedError\b|\bOOM when allocating tensor\b"
            r"|\bRESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate|Error allocating)\b"
            r"|\bCUDA_ERROR_OUT_OF_MEMORY\b"
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "RuntimeError: CUDA error: out of memory",
            "Cuda failure 'out of memory'",
            "Cuda failure 2 'out of memory'",
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 55 byte",
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:",
            "OOM when allocating tensor with shape[256,64,112,112] and type float on /job:localhost/device:GPU:0",
        ),
        (
            "OSError: [Errno 12] Cannot allocate memory",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ),
    ),
    FailurePattern(
        "cuda-usage",
        "script",
        (
            r"\bdevice-side assert triggered\b|\ban illegal memory access was encountered\b"
            r"|\bncclInvalid(?:Usage|Argument)\b|\bNCCL [Ee]rror\b[^,]{0,200}[,:] invalid (?:usage|argument)\b"
            # Ranks that run different collectives: an error of the program.
            r"|\bDetected mismatch between collectives\b|\bop\.preamble\.length <= op\.nbytes\b"
            r"|\bCUDA_ERROR_(?:ILLEGAL_ADDRESS|ASSERT)\b|\bcudaError(?:IllegalAddress|Assert)\b"
        ),
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "torch.distributed.DistBackendError: NCCL error in: ../c10d/ProcessGroupNCCL.cpp:1287, invalid usage",
            "RuntimeError: NCCL Error 5: invalid usage (run with NCCL_DEBUG=WARN for details)",
            "  what():  parallel_for failed: cudaErrorIllegalAddress: an illegal memory access was encountered",
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE",
            "RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
        ),
    ),
    FailurePattern(
        # Shared memory is as small on the next machine. Before `disk-full`, which has the same message.
        "shared-memory",
        "script",
        (
            r"\binsufficient shared memory \(shm\)|\bout of shared memory\b"
            r"|\bunable to (?:write to|open|mmap \d{1,20} bytes from) (?:file|shared memory object) <"
        ),
        (
            "Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error. … are out of shared memory.",
            "RuntimeError: unable to write to file </torch_19_3>: No space left on device (28)",
        ),
        ("OSError: [Errno 28] No space left on device: '/data/x'",),
    ),
    FailurePattern(
        "gpu",
        "machine",
        (
            r"\bfallen off the bus\b|\bUnable to determine the device handle for (?:GPU|gpu)|\b(?:GPU|gpu) is lost\b"
            r"|\bERROR_GPU_IS_LOST\b|\buncorrectable (?:ECC|NVLink) error\b|\bhardware stack error\b"
            r"|\b(?:CUDA|HIP) error: (?:unspecified launch failure|the launch timed out|unknown error)"
            r"|\bInvalid access of peer GPU memory over nvlink or a hardware error\b|\bCUDA unknown error\b"
            r"|\bUnexpected error from cudaGetDeviceCount\(\).{0,200}\bError (?:304|802|999):"
            r"|\bDriver/library version mismatch\b|\bhas detected an NVML/RM version mismatch\b"
            r"|\bnvml error: driver not loaded\b"
            # Accelerators of Google and of AWS.
            r"|\bAccelerator device halted prematurely\b"
            r"|\bTPU initialization failed: .{0,80}\bDevice or resource busy\b"
            r"|\buncorrectable memory error on Neuron Device\b|\bNRT_EXEC_HW_ERR_"
            r"|\bCUDA-capable devices? ?(?:\(s\) )?(?:is/are|are) busy or unavailable\b|\bsystem not yet initialized\b"
            r"|\bCUDA_ERROR_(?:ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|HARDWARE_STACK_ERROR|LAUNCH_FAILED)\b"
            # XIDs 13, 31, 43 and 45 are caused by the program or the end of another one; 63, 92 and 121 are corrected
            # errors.
            r"|\bNVRM: Xid \(PCI:[0-9A-Fa-f:.]{4,20}\): (?!(?:13|31|43|45|63|92|121)\b)\d{1,3}\b"
            r"|\b(?:Xid|XID)(?: error)?:? (?:48|62|64|74|79|94|95|119|120|14[0-9]|150)(?=[(:,]| error| detected|$)"
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.",
            "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error",
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000)",
            "XID 79(GPU has fallen off the bus) detected on PCI:0000:ae:00",
            "RuntimeError: CUDA error: unspecified launch failure",
            "RuntimeError: CUDA error: the launch timed out and was terminated",
            "torch.AcceleratorError: CUDA error: unknown error",
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            "NVRM: Xid (PCI:0000:02:00): 48, pid=1234, An uncorrectable double bit error (DBE) has been detected",
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "E tensorflow/stream_executor/cuda/cuda_driver.cc:1011] failed: CUDA_ERROR_ECC_UNCORRECTABLE",
            "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda? Error 999: unknown error",
            "RuntimeError: HIP error: unspecified launch failure",
            "Failed to initialize NVML: Driver/library version mismatch",
            "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
            "XlaRuntimeError: INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely",
            "XlaRuntimeError: UNAVAILABLE: TPU initialization failed: open(/dev/accel0): Device or resource busy",
            "ERROR  TDRV:exec_consume_infer_status_ encountered uncorrectable memory error on Neuron Device 0",
            "RuntimeError: nrt_execute failed with status 1202 (NRT_EXEC_HW_ERR_NC_UE)",
        ),
        (
            "maXid=3",
            "maXid=79, step 4",
            "NVRM: Xid (PCI:0000:9b:00): 31, pid=1234, name=python3, MMU Fault",
            "NVRM: Xid (PCI:0000:41:00): 63, Row Remapper: New row marked for remapping",
            "taxid 79 of 100",
            "batch 3: rows with Xid 79 of the list",
        ),
    ),
    FailurePattern(
        "disk-full",
        "machine",
        r"(?i)\b(?:No space left on device|Disk quota exceeded|database or disk is full)\b",
        ("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded: '/scratch/x'"),
    ),
    FailurePattern(
        "io",
        "machine",
        (
            r"\bInput/output error\b|\bRemote I/O error\b|\bStale (?:NFS )?file handle\b"
            r"|\b[Tt]ransport endpoint (?:is not connected|shutdown)\b|\bPytorchStreamWriter failed writing file\b"
        ),
        (
            "OSError: [Errno 5] Input/output error: '/media/project/L0550_RCA_sagital.pkl'",
            "OSError: [Errno 116] Stale file handle: '/home/xxx/.cache/huggingface/datasets/text/'",
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data'",
            "tar: /data/shard-000.tar: Cannot read: Input/output error",
            "RuntimeError: write(): fd 29 failed with Input/output error",
            "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/1",
        ),
        ("input/output error rate: 0.05", "Reading input/output embeddings"),
    ),
    FailurePattern(
        "host-memory",
        "machine",
        (
            r"\boom[_-]kill\b|\bCannot allocate memory\b|\bray\.exceptions\.OutOfMemoryError\b"
            r"|\b(?:Out of memory|Memory cgroup out of memory): Killed process \d|\bsystemd-oomd killed\b"
            r"|\bDataLoader worker \(pid\(?s?\)? \d+\) is killed by signal: Killed\b"
        ),
        (
            "OSError: [Errno 12] Cannot allocate memory",
            "RuntimeError: DataLoader worker (pid 3621) is killed by signal: Killed.",
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have been OOM Kille",
            "Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB, anon-rss:2kB",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            "systemd-oomd killed 12 process(es) in this unit.",
        ),
        ("RuntimeError: DataLoader worker (pid 3621) is killed by signal: Segmentation fault.",),
    ),
    FailurePattern(
        # A server outside Stoker, or the network to it.
        "service",
        "machine",
        (
            r"\b(?:429 Client|5\d\d Server) Error\b|\b(?:HTTP Error|HTTP response code|Error code:) (?:429|5\d\d)\b"
            r"|\btoo many (?:429|5\d\d) error responses\b"
            r"|\b(?:429|500|502|503|504),? (?:message='|Too Many|Internal Server|Bad Gateway|Service |Gateway )"
            r"|\((?:SlowDown|Throttl\w{1,40}|RequestLimitExceeded|TooManyRequests\w{0,20}|ServiceUnavailable\w{0,20}"
            r"|InternalError|InternalServerError|RequestTimeout\w{0,20}|429|5\d\d)\) when calling\b"
            r"|\b(?:ReadTimeout|ConnectTimeout|ReadError|RemoteDisconnected|ServerDisconnected|IncompleteRead"
            r"|ChunkedEncoding|RemoteProtocol|ServerTimeout)(?:Error)?\b"
            r"|\b[Rr]ead timed out\b|\bConnect timeout on endpoint URL\b|\bConnection (?:aborted|timed out)\b"
            r"|\bConnectionResetError\(|\bConnection was closed before we received\b"
            r"|\bEOF occurred in violation of protocol\b|\bGeneric \w{1,10} error: Error after \d{1,4} retries\b"
            r"|\bAn error happened while trying to locate the file on the Hub\b"
            r"|\bTemporary failure in name resolution\b|\bNetwork is (?:unreachable|down)\b|\bNo route to host\b"
            r"|\bWe couldn't connect to 'http"
            r"|\bCommError: (?:Run initialization has timed out|Error communicating with wandb)"
            r"|^google\.api_core\.exceptions\.(?:ServiceUnavailable|InternalServerError|TooManyRequests|BadGateway"
            r"|GatewayTimeout|DeadlineExceeded|RetryError)\b"
        ),
        (
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.",
            "huggingface_hub.utils._errors.HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url:",
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cache",
            "urllib.error.HTTPError: HTTP Error 502: Bad Gateway",
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed out. (read timeout=",
            "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset by peer'))",
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation: Redu",
            'botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint URL: "https://s3.amazonaws.com/b"',
            "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/storage/v1/b/x",
            "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
            "httpx.ReadTimeout: The read operation timed out",
            "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
            "urllib3.exceptions.NewConnectionError: Failed to connect: [Errno 101] Network is unreachable",
            "OSError: [Errno 113] No route to host",
        ),
        (
            "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/x/resolve/v2/config.json",
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-67)",
            "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/x",
            "requests.exceptions.ConnectionError: (Caused by NameResolutionError: [Errno -2] Name or service not know",
            "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the PutObject operation",
            "botocore.exceptions.ClientError: An error occurred (404) when calling the HeadObject operation: Not Found",
            "wandb: Network error (ReadTimeout), entering retry loop.",
            "ValueError: the batch size is 500 Service ids",
        ),
        raised=True,
    ),
    FailurePattern(
        "killed",
        "peer",
        (
            r"\bexitcode\s{0,8}: -9 \(pid\b|\bfailed \(exitcode: -(?:1|2|9|15)\)"
            r"|\bSignal 9 \(SIGKILL\) received by PID\b|\bdied with <Signals\.SIG(?:KILL|TERM|HUP|INT)\b"
            r"|\bexited on signal (?:9 \(Killed|15 \(Terminated)\)|\bexits with return code = -(?:9|15)\b"
            r"|\bterminated with signal SIG(?:KILL|TERM|HUP)\b|^Killed$"
            r"|\bTERMINATED WITH THE EXIT STRING: (?:Hangup|Killed|Terminated) \(signal \d{1,2}\)"
            r"|: line \d{1,6}: {1,4}\d{1,9} (?:Killed|Terminated)\b"
            # torchrun itself was signalled, and not by Stoker.
            r"|\bSignalException: Process \d{1,9} got signal: (?:1|2|15)\b"
        ),
        (
            "  exitcode  : -9 (pid: 3437)",
            "E0501 11:12:35.1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9)",
            "  traceback : Signal 9 (SIGKILL) received by PID 3437",
            "subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.SIGKILL: 9>.",
            "mpirun noticed that process rank 3 with PID 0 on node algo-2 exited on signal 9 (Killed).",
            "[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9",
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
            "/w/run.sh: line 28:  8156 Killed                  python3 main.py --epochs 400",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3424 got signal: 15",
            "E0501 11:12:35.1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -15) local_rank",
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
            "Killed",
        ),
        (
            "  exitcode  : -6 (pid: 3437)",
            "  traceback : Signal 15 (SIGTERM) received by PID 3437",
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV",
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)",
            "Killed the worker pool",
        ),
    ),
    FailurePattern(
        "nccl",
        "peer",
        (
            r"\bWatchdog caught collective operation timeout\b|\bDistBackendError\b"
            # With a number or a place, or at the end: other texts are about NCCL errors, not one.
            r"|\bNCCL [Ee]rror(?: in)?(?: \d{1,3})?:|\bNCCL [Ee]rror$"
            r"|\bwatchdog (?:got stuck|hang)\b|\bdue to (?:a )?collective timeout\b"
            r"|\bSome NCCL operations have failed or timed out\b"
            r"|\bnccl(?:System|Remote|Internal|UnhandledCuda)Error\b|\bNCCL communicator was aborted\b"
            r"|\bNCCL timeout\b|\bNCCL operation \w{1,60}\(.{0,120}?\) failed\b"
            # The networks below NCCL, MPI and their like.
            r"|\bTransport retry count exceeded on mlx|\(Unresponsive receiver\b|: Unresponsive receiver\b"
            # Devices of one process, or of several, wait for each other in XLA.
            r"|\bTermination timeout for `[^`]{1,80}` of \d"
        ),
        (
            "  what():  [Rank 6] NCCL watchdog thread: Watchdog caught collective operation timeout: WorkNCCL(",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "torch.distributed.DistBackendError: NCCL error in: ../c10d/ProcessGroupNCCL.cpp:1275, internal error",
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "RuntimeError: NCCL communicator was aborted on rank 1.",
            "RuntimeError: NCCL Error 2: unhandled system error",
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system e",
            "[PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds",
            "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,",
            "Terminating the process after attempting to dump debug info, due to collective timeout or exception.",
            "XlaRuntimeError: INTERNAL: nccl.cc:297: NCCL operation ncclCommInitRank(&comm, id, rank) failed: unha",
            "[n1:42:0:42] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81)",
            "NET/OFI Request 0x7f completed with error. RC: 103. Error: 4104 (Unresponsive receiver).",
            "F0101 00:00:00.0 1 rendezvous.cc:100] Termination timeout for `all reduce` of 40 seconds exceeded.",
        ),
        (
            "user:16901:16967 [2] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
            "node0:13571:13571 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
            "app.errors.SetupProblem: the NCCL error handling of this script wants a policy",
            "choose what an NCCL error does",
        ),
    ),
    FailurePattern(
        "rendezvous",
        "peer",
        (
            r"\bConnection (?:reset|closed) by (?:remote )?peer\b|\bDist(?:Network|Store)Error\b"
            r"|\bRendezvous(?:Connection|Timeout|Closed|GracefulExit|State)Error\b|\bgot error: Socket Timeout\b"
            r"|\bThe (?:client|server) socket has (?:timed out|failed to (?:connect|listen))\b"
            r"|\bsendBytes failed\b|\bTimed out waiting \d+ms for (?:recv|send) operation\b"
            r"|\b[Ff]ailed to recv, got 0 bytes\b|\bin store based barrier\b|\bfailed to pass monitoredBarrier\b"
            r"|\bTCPStore\b[^:]{0,80}\b(?:timed out|timeout|shut ?down|Broken pipe)\b"
            r"|\bgloo/transport/\S{1,80}\].{0,120}\b(?:Connection (?:refused|timed out)|(?:Read|Write) error"
            r"|Broken pipe|No route to host)"
            # The coordination service of JAX and TensorFlow.
            r"|\bBarrier (?:timed out\b|failed)|/task:\d{1,6} heartbeat timeout\b"
            r"|\bJAX distributed service detected fatal errors\b"
            r"|\bCollective ops is aborted by\b|\bAborting \w{1,30}Reduce with Unavailable\b"
            r"|\b(?:UNAVAILABLE|Unavailable): (?:Socket closed|Connection |failed to connect to all addresses)"
            r"|\b(?:Failed to send RPC to|Polled an error from|set to ERROR in) coordination service\b"
            r"|\b(?:stopped sending heartbeats|errors_impl\.UnavailableError|StatusCode\.UNAVAILABLE)\b"
            r"|\bHorovodInternalError\b|\b(?:ORTE|PRTE) has lost communication\b|\bGloo connectFullMesh failed\b"
            r"|\b(?:ActorDied|RayActor|WorkerCrashed|NodeDied|LocalRayletDied|OwnerDied|ObjectLost)Error\b"
        ),
        (
            "RuntimeError: Connection reset by peer",
            "Net : Connection closed by remote peer user<50260>",
            "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying",
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store",
            "RuntimeError: [1] is setting up NCCL communicator, but store->get('0') got error: Socket Timeout",
            "[rank2]: RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41112",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store",
            "RuntimeError: [/x/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:1234: Connection refused",
            "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Conn",
            "E1009 15:47:38.568412 1 coordination_service.cc:1170] UNAVAILABLE: Task /job:w/task:0 heartbeat timeout.",
            "F0929 17:42:48.5942 104 client.h:77] Terminating: the JAX distributed service detected fatal errors.",
            "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Socket closed",
            "2019-05-19 15:08:13.13: E tensorflow/core/x.cc:369] Aborting RingReduce with Unavailable: Socket closed",
            "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            "ray.exceptions.OwnerDiedError: Failed to retrieve object 00ff. The object's owner has exited.",
            "jax.errors.JaxRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
            "RuntimeError: Gloo connectFullMesh failed with Caught exception: SO_ERROR: Connection refused, remote=[x]",
            "PRTE has lost communication with a remote daemon.",
            "\tstatus = StatusCode.UNAVAILABLE",
        ),
        (
            "[rank1]:[W1229 22:06:38.55 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67): Broken pipe",
            "[W426 16:56:01.83 TCPStore.cpp:347] [c10d] TCP client failed - retrying (try=6): Connection reset by peer",
        ),
    ),
)

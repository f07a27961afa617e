"""A script as people write them for SageMaker. It knows nothing of Stoker, and imports nothing of it."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def say(kind, step, **more):
    """Its own record, outside everything that a training job has."""
    line = {"kind": kind, "attempt": int(os.environ["STOKER_ATTEMPT"]), "rank": args.host_rank, "step": step}
    with Path(os.environ["TRUTH"], "journal").open("a") as journal:
        journal.write(json.dumps({**line, "text": json.dumps(more)}) + "\n")


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--wait-at", type=int, default=-1)
parser.add_argument("--learning-rate", type=float)
parser.add_argument("--name", type=str, default="")
parser.add_argument("--use-cuda", type=lambda text: text == "True", default=False)
parser.add_argument("--hosts", type=json.loads, default=os.environ["SM_HOSTS"])
parser.add_argument("--current-host", type=str, default=os.environ["SM_CURRENT_HOST"])
parser.add_argument("--model-dir", type=str, default=os.environ["SM_MODEL_DIR"])
parser.add_argument("--train", type=str, default=os.environ.get("SM_CHANNEL_TRAIN"))
parser.add_argument("--output-data-dir", type=str, default=os.environ["SM_OUTPUT_DATA_DIR"])
parser.add_argument("--checkpoints", type=str, default="/opt/ml/checkpoints")
args = parser.parse_args()
args.host_rank = args.hosts.index(args.current_host)

going = True


def leave(*_):
    global going
    going = False


signal.signal(signal.SIGTERM, leave)

learnt = 0
saved = sorted(Path(args.checkpoints).glob("epoch-*.json"))
if saved:
    learnt = json.loads(saved[-1].read_text())["learnt"]
say("start", learnt, argv=sys.argv[1:], cwd=str(Path.cwd()), saved=[path.name for path in saved])
data = sorted(Path(args.train).iterdir()) if args.train else []
for epoch in range(learnt + 1, args.epochs + 1):
    if epoch == args.fail_at:
        Path("/opt/ml/output/failure").write_text(f"the loss is not a number:\nepoch {epoch}")
        sys.exit(3)
    print(f"epoch={epoch} loss={1 / epoch:.4f}", flush=True)
    part = Path(args.checkpoints) / f".epoch-{epoch:03d}.json.part"
    part.write_text(json.dumps({"learnt": epoch, "data": [path.read_text() for path in data]}))
    part.rename(Path(args.checkpoints) / f"epoch-{epoch:03d}.json")
    say("step", epoch)
    while epoch == args.wait_at and going and not saved:
        time.sleep(0.05)
    if not going:
        say("leave", epoch)
        sys.exit(0)
Path(args.model_dir, "model.json").write_text(json.dumps({"epochs": args.epochs, "name": args.name}))
Path(args.output_data_dir, f"report-{args.current_host}.txt").write_text("done")
say("done", args.epochs)

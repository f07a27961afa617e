"""A governor deployed to a cloud, as functions that events call: how it is made, found, woken and removed.

package.py        what a cloud is given to run
aws_template.py   AWS: the CloudFormation template, pure
aws.py            AWS: makes the stack, and sees that it runs
aws_function.py   AWS: what Lambda calls
aws_remove.py     AWS: takes all of it away, region by region
gcp_resources.py  Google Cloud: every request that makes and removes it, pure
gcp.py            Google Cloud: sends them
gcp_function.py   Google Cloud: what Cloud Run calls
iam_bindings.py   Google Cloud: roles of members, on what is there

The record that a store keeps of its deployment, and waking it, are in `stoker.governor.deployment_record`.
"""

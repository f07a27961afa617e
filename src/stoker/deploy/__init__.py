"""A governor deployed to a cloud, as functions that events call: how it is deployed, found, woken and removed.

package.py          the zip that a cloud runs
aws_template.py     AWS: the CloudFormation template, pure
aws.py              AWS: creates the stack, and checks that it runs
aws_entry_point.py  AWS: the entry point for Lambda
aws_remove.py       AWS: removes the deployment, region by region
gcp_resources.py    Google Cloud: every request that creates and removes it, pure
gcp.py              Google Cloud: sends these requests
gcp_entry_point.py  Google Cloud: the entry point for Cloud Run
iam_bindings.py     Google Cloud: role bindings on existing resources
status.py           checks a deployed governor

The deployment's record in the store, and waking a governor, are in `stoker.governor.deployment_record`.
"""

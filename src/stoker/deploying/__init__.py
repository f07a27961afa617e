"""A governor deployed to a cloud, as functions that events call: how it is made, found, woken and removed.

package.py    what a cloud is given to run
record.py     the store's word that there is one, and how it is woken
passing.py    which roles of jobs it may pass on, by that word
template.py   AWS: the CloudFormation template, pure
aws.py        AWS: makes the stack, and sees that it runs
removing.py   AWS: takes all of it away, region by region
project.py    Google Cloud: every request that makes and removes it, pure
gcp.py        Google Cloud: sends them
bindings.py   Google Cloud: roles of members, on what is there
"""

"""The policy file of a store, its versions and its history."""

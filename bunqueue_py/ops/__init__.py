"""The verbs: each file is one thing that can be done to the state.

Every verb reads in this order: validate, encode, lock, decide, change, unlock, finish. Between
`shard.gate = BROKEN` and `shard.gate = OPEN` stand the changes; whatever can be refused is
refused before.
"""

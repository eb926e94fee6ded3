"""Adapters: mixture-of-experts layers of training frameworks, spread over ranks by `ParallelExperts`.

One module for each framework, imported by name, so that only what is used must be installed.
"""

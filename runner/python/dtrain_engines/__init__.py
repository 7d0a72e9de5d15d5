"""Engines that run a dtrain plan: torchtitan, and a training program of our own on FSDP2.

dtrain starts one process per rank. Each reads its job from the file that `DTRAIN_ENGINE_JOB` names; see `job.py`.
"""

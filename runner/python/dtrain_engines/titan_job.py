"""The job of this rank of torchtitan, read when the first part for torchtitan is imported."""

from . import last_words
from .job import Job

last_words.install()
JOB = Job.read()

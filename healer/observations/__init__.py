"""Observations to the picture of now, and windows of samples."""

from healer.observations.fault_history import GpuMap
from healer.observations.node_picture import NodePicture
from healer.observations.picture import Picture, Standing

"""Observations to the picture of now, and windows of samples."""

from healer.observations.fault_history import GpuMap
from healer.observations.picture import NodePicture, Picture, Standing

__all__ = ["GpuMap", "NodePicture", "Picture", "Standing"]

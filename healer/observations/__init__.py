"""The picture of now: what healer knows of the fleet at this moment."""

from healer.observations.gpus import GpuMap
from healer.observations.picture import NodePicture, Picture, Standing

__all__ = ["GpuMap", "NodePicture", "Picture", "Standing"]

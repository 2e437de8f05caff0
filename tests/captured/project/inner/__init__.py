from .deep import DEEP as DEEP

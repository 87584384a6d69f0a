"""stepscope: is the decode step as slow as physics says it must be, and if not, why?"""

__version__ = "0.1.0"

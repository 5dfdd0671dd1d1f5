"""Pictures of schedules: bars first, then drawing, a page, a trace and text.

Text, traces and pages need no matplotlib, and only a frontier needs the search.
"""

from tessel.picture.text import text_grid

__all__ = ["text_grid"]

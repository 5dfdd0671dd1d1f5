"""The interactive page of schedules: its data, and the scripts and style that show them."""

from tessel.picture.page.document import (
    GraphPart,
    PageModel,
    PagePart,
    PageTable,
    PageVariant,
    page_document,
)

__all__ = ["GraphPart", "PageModel", "PagePart", "PageTable", "PageVariant", "page_document"]

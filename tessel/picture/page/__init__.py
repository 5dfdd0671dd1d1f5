"""The interactive page of schedules: its data, and the scripts and style that show them."""

from tessel.picture.page.document import (
    GraphPart,
    PageField,
    PageForm,
    PageModel,
    PagePart,
    PageTable,
    PageVariant,
    page_document,
    with_form,
)

__all__ = [
    "GraphPart",
    "PageField",
    "PageForm",
    "PageModel",
    "PagePart",
    "PageTable",
    "PageVariant",
    "page_document",
    "with_form",
]

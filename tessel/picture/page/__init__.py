"""The interactive pages of schedules and of records: their data, and the scripts and style that show them."""

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
from tessel.picture.page.records_page import (
    RecordedDay,
    RecordedEnvironment,
    RecordedPage,
    RecordedWay,
    RecordedWorkload,
    records_document,
)

__all__ = [
    "GraphPart",
    "PageField",
    "PageForm",
    "PageModel",
    "PagePart",
    "PageTable",
    "PageVariant",
    "RecordedDay",
    "RecordedEnvironment",
    "RecordedPage",
    "RecordedWay",
    "RecordedWorkload",
    "page_document",
    "records_document",
    "with_form",
]

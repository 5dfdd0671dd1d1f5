"""Archives of model files: directories that lie are refused before anything is unpacked."""

import io
import struct
import zipfile

import pytest

from tuner.frontend.torch.exported.model_archive import MAX_RATIO, ModelArchive


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_entries_are_read(method: int) -> None:
    archive = ModelArchive(zipped({"a/b": b"text" * 100, "a/empty": b""}, method))
    assert archive.names == ("a/b", "a/empty")
    assert archive.read("a/b") == b"text" * 100
    assert "a/c" not in archive
    with pytest.raises(ValueError, match="no entry 'a/c'"):
        archive.read("a/c")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up", "a/../../up", "a\\..\\up", "C:/windows", "a\nb", "a\x1b[2J", "x" * 2000]
)
def test_name_that_leads_out_of_the_archive_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name that"):
        ModelArchive(zipped({name: b"1"}))


def test_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zipped({"a": bytes(200 * 2**20)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**20
    with pytest.raises(ValueError, match=f"more than {MAX_RATIO} times"):
        ModelArchive(bomb)


def with_size_in_directory(content: bytes, size: int) -> bytes:
    """Return the archive with another unpacked size in its directory."""
    place = content.index(b"PK\x01\x02") + 24
    return content[:place] + struct.pack("<I", size) + content[place + 4 :]


def test_entry_larger_than_the_directory_says_is_refused_while_it_is_unpacked() -> None:
    lying = with_size_in_directory(zipped({"a": bytes(2**20)}, zipfile.ZIP_DEFLATED), 10)
    archive = ModelArchive(lying)
    with pytest.raises(ValueError, match="'a'"):
        archive.read("a")


def test_entry_smaller_than_the_directory_says_is_refused() -> None:
    lying = with_size_in_directory(zipped({"a": b"12345" * 50}, zipfile.ZIP_DEFLATED), 2**20)
    with pytest.raises(ValueError, match="'a'"):
        ModelArchive(lying).read("a")


def test_entries_that_share_their_bytes_are_refused() -> None:
    content = zipped({"a": bytes(range(256)) * 100, "b": b""}, zipfile.ZIP_STORED)
    first = content.index(b"PK\x01\x02")
    record = content[first : content.index(b"PK\x01\x02", first + 1)]
    end = content.index(b"PK\x05\x06")
    directory = b"".join(record.replace(b"PK\x01\x02", b"PK\x01\x02")[:-1] + name for name in (b"c", b"d"))
    counts = struct.pack("<HHHHIIH", 0, 0, 2, 2, len(directory), first, 0)
    with pytest.raises(ValueError, match="the whole archive"):
        ModelArchive(content[:first] + directory + content[end : end + 4] + counts)


def test_two_entries_of_one_name_are_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", b"2")
    with pytest.raises(ValueError, match="two entries 'a'"):
        ModelArchive(buffer.getvalue())


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000])
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no zip archive"):
        ModelArchive(content)


def test_empty_archive_has_no_names() -> None:
    assert ModelArchive(b"PK\x05\x06" + bytes(18)).names == ()


def test_packing_that_no_model_uses_is_refused() -> None:
    with pytest.raises(ValueError, match="packed as no model's is"):
        ModelArchive(zipped({"a": b"1" * 100}, zipfile.ZIP_BZIP2))
